"""Agent evaluation: success and perception on evaluation seeds, with real, blank and shuffled pictures or words.

An agent that has learned to win by the words alone is as good without pictures. So `evaluate_policy` plays the same
seeds five times:

    real        the policy sees the pictures: these numbers are the result
    blank       the policy sees grey pictures
    shuffled    the policy sees pictures of other states
    random      no model: a random legal action in every turn
    oracle      no model: the environment's own best play, where it knows one

Where no picture is shown, the state is told in words, and an agent may win without reading them. Then `blank` leaves
only what the texts of all states begin with, such as the rules, and `shuffled` gives the text of another state. Names
of actions that each state has for itself tell of it, too: `blank` leaves those that all states have, and `shuffled`
gives those of the other state.

Blind tests of this kind are usual for models that answer questions about pictures (Goyal et al., "Making the V in VQA
Matter", CVPR 2017). `run_evaluation.py` calls this for `sightline evaluate`, `training.py` at the end of a run.
"""

from __future__ import annotations

import hashlib
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import gymnasium
import numpy as np

from sightline.agents.algorithms.returns import is_complete
from sightline.agents.engines.engine import Engine, SingleProcess
from sightline.agents.prompting import common_start
from sightline.agents.rewards import BlockRewards, TurnRewards
from sightline.agents.rollouts import (
    CHANCE_OF_MOVES,
    EpisodeTask,
    PictureFilter,
    RolloutWorker,
    StateWords,
    TextFilter,
    words_of,
)
from sightline.agents.samplers import Sampler
from sightline.agents.sharing import gather_episodes, light_turn, reference_to
from sightline.agents.trajectory_log import LOGGED_EPISODES
from sightline.agents.types import Trajectory
from sightline.envs.games.contract import Observation
from sightline.envs.games.wrapping import has_oracle, oracle, random_action
from sightline.envs.success import stated_success
from sightline.envs.tasks import SuccessRule
from sightline.errors import BadInput, line_of
from sightline.evaluation.episode_stats import known_success, success_by_rule, summarise_episodes
from sightline.evaluation.seeds import EvalSeeds
from sightline.evaluation.video import Film, Reel, at_video_size
from sightline.images import Picture

PictureCondition = Literal["real", "blank", "shuffled"]
"""Pictures that the agent is shown: the real one; a grey one; that of another state. Of texts: the real one; the part
that the texts of all states have in common; that of another state."""
Medium = Literal["pictures", "words"]
"""What tells the agent the state, and is taken away or exchanged by the control."""
PICTURE_CONDITIONS: tuple[PictureCondition, ...] = get_args(PictureCondition)
MID_GREY = 128
FRAMES_PER_SECOND = 2
"""Of videos of games, whose environments name no rate: time to look at a card."""
POOL = 512
"""Maximum number of different pictures, or texts, to shuffle: enough to be uninformative, few enough to keep."""
STATES_OF_EPISODE = 64
"""Maximum number of such states from one episode, so that they come from several."""
REPORT_EVERY = 30.0
"""Seconds after which an evaluation says again how far it is."""
ALONE = SingleProcess()
"""The engine that plays all episodes in this process."""

Choose = Callable[[gymnasium.Env[Any, Any], Mapping[str, Any], np.random.Generator], "str | None"]
"""(environment, info of its state, random generator) -> name of an action; None plays a random one."""

Watch = Callable[[str], Callable[[int], None]]
"""Maker of progress callbacks: what is about to be played, in a few words -> a callback. The callback receives the
number of turns after every step of the games; it may show progress, and it may raise to stop the evaluation."""


def unwatched(what: str) -> Callable[[int], None]:
    """A `Watch` that shows nothing."""
    return lambda turns: None


def progress_lines(say: Callable[[str], None], episodes: int) -> Watch:
    """A `Watch` that says what is about to be played, and then every `REPORT_EVERY` seconds how far it is.

    Args:
        say: receives the lines.
        episodes: how many are played each time.
    """

    def watch(what: str) -> Callable[[int], None]:
        say(f"{what}: {episodes} episodes are played")
        start = last_report = time.monotonic()
        turns = 0

        def after_turns(count: int) -> None:
            nonlocal turns, last_report
            turns += count
            if time.monotonic() - last_report >= REPORT_EVERY:
                last_report = time.monotonic()
                say(f"{what}: {turns:,} turns so far, {last_report - start:.0f} s")

        return after_turns

    return watch


# -- the whole evaluation ----------------------------------------------------------------------------------------------


def evaluate_policy(
    worker: RolloutWorker,
    sampler: Sampler,
    eval_seeds: EvalSeeds,
    keep: Callable[[PictureCondition, list[Trajectory]], None] = lambda pictures, episodes: None,
    rewards: TurnRewards | None = None,
    engine: Engine = ALONE,
    watch: Watch = unwatched,
) -> dict[str, Any]:
    """Evaluate an agent, and whatever it is compared with, on the same seeds.

    Args:
        keep: called with the episodes of each picture condition.
        rewards, engine: see `play_eval_seeds`.
        watch: see `Watch`.

    Returns:
        The agent's `summary`; `control`, the `Medium` that tells it the state (None if nothing was played); and under
        `blank`, `shuffled`, `random` and `oracle` the summaries of the comparisons
        (`oracle` is None if the environment has none, or one that knows no move in these episodes).
    """
    numbers: dict[str, Any] = {}
    episodes: list[Trajectory] = []
    control: Medium | None = None
    for pictures in PICTURE_CONDITIONS:
        # Where nothing was shown, there is nothing to hide: the same episodes stand for all.
        if pictures == "real" or control is not None:
            after_turns = watch(f"{pictures} {control or 'observations'}")
            medium = control or "pictures"
            episodes = play_eval_seeds(worker, sampler, eval_seeds, pictures, after_turns, rewards, engine, medium)
        if pictures == "real":
            control = _medium(episodes)
        keep(pictures, episodes)
        condition = summary(episodes, eval_seeds, worker.success)
        if pictures == "real":
            numbers |= condition
        else:
            numbers[pictures] = condition
    numbers["control"] = control
    numbers["random"] = random_play(worker, eval_seeds, engine, watch)
    numbers["oracle"] = oracle_play(worker, eval_seeds, engine, watch)
    return numbers


def _medium(episodes: Sequence[Trajectory]) -> Medium | None:
    """What told the agent the state; None if no turn was played."""
    turns = [turn for episode in episodes for turn in episode.turns]
    if not turns:
        return None
    return "pictures" if any(turn.exchange.pictures for turn in turns) else "words"


# -- episodes of the policy --------------------------------------------------------------------------------------------


def play_eval_seeds(
    worker: RolloutWorker,
    sampler: Sampler,
    eval_seeds: EvalSeeds,
    pictures: PictureCondition = "real",
    after_turns: Callable[[int], None] | None = None,
    rewards: TurnRewards | None = None,
    engine: Engine = ALONE,
    medium: Medium = "pictures",
) -> list[Trajectory]:
    """Play one episode of every evaluation seed; the result depends on nothing but sampler, seeds and pictures.

    Args:
        pictures: what the sampler is shown; environment and visible facts are always those of the real picture.
        after_turns: called with the number of turns that were just played.
        rewards: scores the episodes; None leaves them the environment's own rewards.
        engine: of several processes, each of which plays its share.
        medium: whether `pictures` is about pictures or, where the state is told in words, about texts.

    Returns:
        Trajectories in the order of the seeds, of all processes on each of them (`sharing.gather_episodes`). None has
        prompts, and only the first ones, which are logged, have pictures: thousands of games would fill the memory.
    """
    tasks = [EpisodeTask(seed) for seed in eval_seeds.seeds[engine.rank :: engine.world]]
    picture_filter: PictureFilter | None = None
    text_filter: TextFilter | None = None
    if medium == "words" and pictures != "real":
        texts = collect_texts(worker, eval_seeds)
        text_filter = ShuffledTexts(texts) if pictures == "shuffled" else BlankTexts(texts)
    elif pictures == "blank":
        picture_filter = blank_picture
    elif pictures == "shuffled":
        picture_filter = ShuffledPictures(collect_pictures(worker, eval_seeds))
    # A reward model that reads frames scores them in blocks while the games are played, so that few are held at a time.
    blocks = BlockRewards(rewards) if rewards is not None and rewards.needs_frames else None
    packed_pictures: dict[str, Picture] = {}

    def packed(picture: Picture) -> Picture:
        if picture.digest not in packed_pictures:
            packed_pictures[picture.digest] = picture.packed()
        return packed_pictures[picture.digest]

    # Prompts are dropped as soon as a turn is over, and pictures are packed or dropped: so memory does not grow with
    # the number of turns.
    def at_turn(index: int, episode: Trajectory) -> None:
        replacement = packed if index < LOGGED_EPISODES else reference_to
        episode.turns[-1] = light_turn(episode.turns[-1], replacement)
        if blocks is not None:
            blocks.take(index, episode)

    def at_end(index: int, episode: Trajectory) -> None:
        episode.end = None
        if blocks is not None:
            blocks.end(index, episode)

    episodes = worker.play(
        sampler,
        tasks,
        picture_filter=picture_filter,
        text_filter=text_filter,
        after_turns=after_turns,
        at_turn=at_turn,
        at_end=at_end,
    )
    if blocks is not None:
        blocks.score()
    elif rewards is not None:
        rewards.score(episodes)
    return gather_episodes(engine, episodes, 1, pictured=LOGGED_EPISODES)


def blank_picture(picture: Picture, task: EpisodeTask, turn: int) -> Picture:
    """Picture filter: a grey picture of the same size."""
    return Picture(np.full_like(picture.pixels, MID_GREY))


@dataclass(frozen=True)
class ShuffledPictures:
    """Picture filter: the picture of another state, chosen by the task's seed and the turn alone.

    It never shows the real picture: where the pool has no other one of that size, a grey one is shown.

    Attributes:
        pool: different pictures, in an order that does not depend on the episodes.
    """

    pool: tuple[Picture, ...]

    @cached_property
    def _by_shape(self) -> dict[tuple[int, ...], list[Picture]]:
        groups: dict[tuple[int, ...], list[Picture]] = defaultdict(list)
        for picture in self.pool:
            groups[picture.pixels.shape].append(picture)
        return groups

    def __call__(self, picture: Picture, task: EpisodeTask, turn: int) -> Picture:
        same_shape = self._by_shape.get(picture.pixels.shape, ())
        candidates = [candidate for candidate in same_shape if candidate.digest != picture.digest]
        if not candidates:
            return blank_picture(picture, task, turn)
        return candidates[_number_of_turn(task, turn) % len(candidates)]


def _number_of_turn(task: EpisodeTask, turn: int) -> int:
    """Number of 64 bits for a turn. A hash, not a generator: it does not depend on the order of turns."""
    turn_hash = hashlib.sha256(f"{task.seed} {task.member} {turn}".encode()).digest()
    return int.from_bytes(turn_hash[:8], "big")


class BlankTexts:
    """Text filter: what the texts of all states begin with, such as the rules, and the actions that all states have;
    nothing of the state.

    Args:
        pool: different words of states. Those of a single one do not say what differs, so that nothing is told at all.
    """

    def __init__(self, pool: Sequence[StateWords]) -> None:
        self._start = ""
        self._actions: set[str] = set()
        if len(pool) > 1:
            self._start = common_start([words.text for words in pool])
            # Once a game is over there is nothing to do.
            of_states = [set(words.actions) for words in pool if words.actions]
            self._actions = set.intersection(*of_states) if of_states else set()

    def __call__(self, words: StateWords, task: EpisodeTask, turn: int) -> StateWords:
        # A state that the pool has not seen may share less with the others.
        actions = tuple(name for name in words.actions if name in self._actions)
        return StateWords(common_start([self._start, words.text]), actions)


@dataclass(frozen=True)
class ShuffledTexts:
    """Text filter: the words of another state, chosen as `ShuffledPictures` does; none where the pool has no other.

    Attributes:
        pool: different words of states, in an order that does not depend on the episodes.
    """

    pool: tuple[StateWords, ...]

    def __call__(self, words: StateWords, task: EpisodeTask, turn: int) -> StateWords:
        candidates = [candidate for candidate in self.pool if candidate.text != words.text]
        if not candidates:
            return StateWords("")
        return candidates[_number_of_turn(task, turn) % len(candidates)]


def collect_pictures(worker: RolloutWorker, eval_seeds: EvalSeeds) -> tuple[Picture, ...]:
    """Collect different pictures of an environment by random play on the evaluation seeds.

    The pictures are the same whatever the order of the seeds; the worker must not be playing.
    """
    pool: dict[str, Picture] = {}

    def add_pictures(observation: Observation, info: Mapping[str, Any], steps: int) -> bool:
        for image in observation.images:
            picture = Picture(np.array(image))
            if picture.digest not in pool:
                pool[picture.digest] = picture.packed()
        return len(pool) < POOL and steps < STATES_OF_EPISODE

    for seed in sorted(set(eval_seeds.seeds)):
        if len(pool) >= POOL:
            break
        _play_without_model(worker, seed, _random_action, add_pictures)
    return tuple(pool[digest] for digest in sorted(pool))


def collect_texts(worker: RolloutWorker, eval_seeds: EvalSeeds) -> tuple[StateWords, ...]:
    """Collect different words of an environment's states, as `collect_pictures` does pictures."""
    pool: set[StateWords] = set()
    action_names = worker.games[0].get_wrapper_attr("action_names")

    def add_text(observation: Observation, info: Mapping[str, Any], steps: int) -> bool:
        pool.add(words_of(observation, info, action_names))
        return len(pool) < POOL and steps < STATES_OF_EPISODE

    for seed in sorted(set(eval_seeds.seeds)):
        if len(pool) >= POOL:
            break
        _play_without_model(worker, seed, _random_action, add_text)
    return tuple(sorted(pool))


# -- numbers -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Outcome:
    """Statistics of one episode.

    Attributes:
        success: by rule, see `success_by_rule`; None where it is unknown.
        clean: success without any mistake; None where success is unknown.
        reward: mean reward of a turn, which the policy learns from; None if no model played.
        perception: (facts stated correctly, visible facts) of each turn with facts; None if no model played.
        illegal, unparsable, replaced: numbers of turns; `replaced` had a random move in place of the player's.
    """

    success: dict[str, bool | None]
    clean: bool | None
    total: float
    turns: int
    kind: str
    perception: tuple[tuple[int, int], ...] | None = None
    reward: float | None = None
    illegal: int = 0
    unparsable: int | None = None
    replaced: int = 0


def summary(trajectories: Sequence[Trajectory], eval_seeds: EvalSeeds, rule: SuccessRule = "end") -> dict[str, Any]:
    """Summary of evaluation episodes as plain numbers, with 95 % confidence intervals.

    Args:
        rule: the task's rule of success.

    Returns:
        What `summarise_episodes` gives, `length` in turns; `episodes`, those that the rates are of, and `errors`, those
        that broke and are left out (`error`, only if there are any, is why the first of them did); `panel`, the
        evaluation seeds; `reward`, the mean reward of a turn, by the reward model if there is one; perception accuracy
        as `truthful`, the share of visible facts that were stated correctly, and `truthful_replies`, the share of turns
        in which all were; shares of turns `illegal`, `unparsable`, and `replaced`, in which a random move was played in
        place of the reply's; share of episodes `clean`: success, every reply naming a legal action, and no move that
        the environment counts as a mistake. `kinds` has the episodes, `success_rate` and `clean` of each category of
        tasks, `kinds_mean` is the mean over categories of `clean`; None if there are none. `score`, from 0 to 1,
        selects checkpoints: `kinds_mean` (else `clean`) times `truthful_replies` (else 1); 0 if no episode was played
        to its end. What cannot be measured is None: where the environment does not state success, so are all rates of
        it, and the score.
    """
    outcomes: list[_Outcome] = []
    errors: list[str] = []
    for trajectory in trajectories:
        if is_complete(trajectory):
            outcomes.append(_outcome(trajectory, rule))
        else:
            errors.append(trajectory.error or "it ended early")
    return _summary(outcomes, errors, eval_seeds, rule)


def _outcome(trajectory: Trajectory, rule: SuccessRule) -> _Outcome:
    turns = trajectory.turns
    states = [turn.success for turn in turns]
    success = success_by_rule(states, trajectory.success is not None, forfeited=trajectory.forfeited)
    success[rule] = trajectory.success
    faultless = trajectory.mistakes == 0 and all(turn.legal for turn in turns)
    return _Outcome(
        success=success,
        clean=_clean(trajectory.success, faultless),
        total=trajectory.env_return,
        turns=len(turns),
        kind=trajectory.kind,
        perception=tuple(turn.perception for turn in turns if turn.facts),
        reward=float(trajectory.rewards.mean()),
        illegal=sum(turn.reply.action is not None and not turn.legal for turn in turns),
        unparsable=sum(turn.reply.failure is not None for turn in turns),
        replaced=sum(turn.played not in (None, turn.reply.action) for turn in turns),
    )


def _clean(success: bool | None, faultless: bool) -> bool | None:
    """Whether an episode succeeded without a mistake; None where success is unknown."""
    if success is None:
        return None
    return success and faultless


def _summary(
    outcomes: Sequence[_Outcome], errors: Sequence[str], eval_seeds: EvalSeeds, rule: SuccessRule
) -> dict[str, Any]:
    # Rules by which the environment states success in every episode.
    success: dict[str, np.ndarray] = {}
    for name in get_args(SuccessRule):
        by_rule = known_success([outcome.success[name] for outcome in outcomes])
        if by_rule is not None:
            success[name] = by_rule
    totals = np.array([outcome.total for outcome in outcomes])
    lengths = np.array([outcome.turns for outcome in outcomes])
    numbers: dict[str, Any] = {**summarise_episodes(totals, lengths, success, rule)}

    numbers["episodes"] = len(outcomes)
    numbers["errors"] = len(errors)
    if errors:
        numbers["error"] = errors[0]
    numbers["panel"] = str(eval_seeds)
    numbers["reward"] = _mean([outcome.reward for outcome in outcomes if outcome.reward is not None])

    # Perception: of all visible facts, and of all turns with facts.
    perception: list[tuple[int, int]] = []
    for outcome in outcomes:
        perception += outcome.perception or ()
    correct_facts = sum(correct for correct, _ in perception)
    visible_facts = sum(visible for _, visible in perception)
    truthful_replies = _mean([correct == visible for correct, visible in perception])
    numbers["truthful"] = _share(correct_facts, visible_facts)
    numbers["truthful_replies"] = truthful_replies

    # Shares of turns. Without a model there are no replies that could be parsed.
    turns = sum(outcome.turns for outcome in outcomes)
    unparsable = [outcome.unparsable for outcome in outcomes if outcome.unparsable is not None]
    numbers["illegal"] = _share(sum(outcome.illegal for outcome in outcomes), turns)
    numbers["unparsable"] = _share(sum(unparsable), turns) if unparsable else None
    numbers["replaced"] = _share(sum(outcome.replaced for outcome in outcomes), turns)
    numbers["measures"] = {}

    # Skill: episodes without a mistake, by category of tasks if there are any.
    clean = _mean(known_success([outcome.clean for outcome in outcomes]))
    kinds = _kinds(outcomes, rule, states_success=bool(success))
    kinds_mean = None
    if kinds and success:
        kinds_mean = _mean([kind["clean"] for kind in kinds.values()])
    numbers["clean"] = clean
    numbers["kinds"] = kinds
    numbers["kinds_mean"] = kinds_mean

    skill = clean if kinds_mean is None else kinds_mean
    numbers["score"] = _score(skill, truthful_replies) if outcomes else 0.0
    return numbers


def _score(skill: float | None, truthful_replies: float | None) -> float | None:
    """What selects checkpoints: an agent that wins but misreports the pictures is no good agent."""
    if skill is None or truthful_replies is None:
        return skill
    return skill * truthful_replies


def _kinds(outcomes: Sequence[_Outcome], rule: SuccessRule, states_success: bool) -> dict[str, dict[str, Any]] | None:
    """Success by category of tasks, None where it is not stated; None if the environment has no categories."""
    groups: dict[str, list[_Outcome]] = defaultdict(list)
    for outcome in outcomes:
        groups[outcome.kind].append(outcome)
    if not any(groups):
        return None
    kinds: dict[str, dict[str, Any]] = {}
    for kind in sorted(groups):
        group = groups[kind]
        kinds[kind] = {"episodes": len(group), "success_rate": None, "clean": None}
        if states_success:
            kinds[kind]["success_rate"] = _mean([bool(outcome.success[rule]) for outcome in group])
            kinds[kind]["clean"] = _mean([bool(outcome.clean) for outcome in group])
    return kinds


def _mean(values: Sequence[float] | np.ndarray | None) -> float | None:
    if values is None or not len(values):
        return None
    return float(np.mean(values))


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


# -- baselines ---------------------------------------------------------------------------------------------------------


def random_play(
    worker: RolloutWorker, eval_seeds: EvalSeeds, engine: Engine = ALONE, watch: Watch = unwatched
) -> dict[str, Any]:
    """Summary of the random baseline, uniform over legal actions. No model replies, so perception is not measured."""
    outcomes = _play_panel(worker, eval_seeds, _random_action, engine, watch("random play"))
    return _summary_of_complete(outcomes, eval_seeds, worker)


def oracle_play(
    worker: RolloutWorker, eval_seeds: EvalSeeds, engine: Engine = ALONE, watch: Watch = unwatched
) -> dict[str, Any] | None:
    """Summary of the environment's oracle, of the episodes in which it knows a move; None if there are none.

    Where it knows none later on, a random legal action is played, and the share of these is in `replaced`.
    """
    if not has_oracle(worker.games[0]):
        return None
    outcomes = _play_panel(worker, eval_seeds, _oracle_action, engine, watch("the oracle"))
    # Episodes in which every move was a random one say nothing about the oracle.
    advised = [outcome for outcome in outcomes if isinstance(outcome, str) or outcome.replaced < outcome.turns]
    if not any(isinstance(outcome, _Outcome) for outcome in advised):
        return None
    return _summary_of_complete(advised, eval_seeds, worker)


def _play_panel(
    worker: RolloutWorker, eval_seeds: EvalSeeds, choose: Choose, engine: Engine, after_turns: Callable[[int], None]
) -> list[_Outcome | str]:
    """Play every seed by a rule, each process its share; gives the error where the environment broke down."""
    outcomes: list[_Outcome | str] = []
    for seed in eval_seeds.seeds[engine.rank :: engine.world]:
        outcome = _play_without_model(worker, seed, choose)
        outcomes.append(outcome)
        after_turns(0 if isinstance(outcome, str) else outcome.turns)
    # Process r played the seeds r, r + world, …: put them back into the order of the seeds.
    shares = engine.gather(outcomes)
    return [shares[i % engine.world][i // engine.world] for i in range(len(eval_seeds.seeds))]


def _summary_of_complete(
    outcomes: Sequence[_Outcome | str], eval_seeds: EvalSeeds, worker: RolloutWorker
) -> dict[str, Any]:
    complete = [outcome for outcome in outcomes if not isinstance(outcome, str)]
    errors = [outcome for outcome in outcomes if isinstance(outcome, str)]
    return _summary(complete, errors, eval_seeds, worker.success)


def _play_without_model(
    worker: RolloutWorker,
    seed: int,
    choose: Choose,
    go_on: Callable[[Observation, Mapping[str, Any], int], bool] = lambda observation, info, steps: True,
) -> _Outcome | str:
    """Play an episode by a rule.

    Args:
        go_on: called with every observation, its info and the number of steps before it; False leaves the episode.

    Returns:
        Its statistics, or the error by which the environment broke down.
    """
    game = worker.games[0]
    total = 0.0
    steps = illegal = replaced = 0
    over = False
    states: list[bool | None] = []
    try:
        observation, info = game.reset(seed=seed)
        kind = str(info.get("kind", ""))
        states_success = stated_success(info) is not None
        while go_on(observation, info, steps) and not over:
            # Keyed by seed and step, so that a move does not depend on the episodes before.
            rng = np.random.default_rng((CHANCE_OF_MOVES, seed, steps))
            action = choose(game, info, rng)
            if action is None:
                action = _random_action(game, info, rng)
                replaced += 1
            legal_actions = info["legal_actions"]
            # Where nothing has a name, any text may be tried.
            has_names = bool(legal_actions or game.get_wrapper_attr("action_names"))
            illegal += has_names and action not in legal_actions

            observation, reward, terminated, truncated, info = game.step(action)
            total += float(reward)
            steps += 1
            over = bool(terminated or truncated)
            states.append(stated_success(info))
    except BadInput:
        raise  # no other episode would go better
    except Exception as error:
        worker.games.discard(0)
        return line_of(error)
    success = success_by_rule(states, states_success)
    faultless = not illegal and not info.get("mistakes", 0)
    clean = _clean(success[worker.success], faultless)
    return _Outcome(success, clean, total, steps, kind, illegal=illegal, replaced=replaced)


def _random_action(game: gymnasium.Env[Any, Any], info: Mapping[str, Any], rng: np.random.Generator) -> str:
    return random_action(game, info["legal_actions"], rng)


def _oracle_action(game: gymnasium.Env[Any, Any], info: Mapping[str, Any], rng: np.random.Generator) -> str | None:
    return oracle(game)


def film_episode(
    worker: RolloutWorker, sampler: Sampler, eval_seeds: EvalSeeds, rewards: TurnRewards | None
) -> Film | None:
    """Play the first evaluation seed for a video; None if the agent is shown no pictures, or the episode broke."""
    (episode,) = worker.play(sampler, [EpisodeTask(eval_seeds.seeds[0])])
    if not is_complete(episode) or not all(turn.exchange.pictures for turn in episode.turns):
        return None
    if rewards is not None:
        rewards.score([episode])
    newest_pictures = (turn.exchange.pictures[-1] for turn in episode.turns)
    frames = Reel(at_video_size(picture.pixels[None])[0] for picture in newest_pictures)
    fps = worker.games[0].metadata.get("render_fps") or FRAMES_PER_SECOND
    return Film(frames, episode.rewards, int(fps), f"{len(episode.turns)} turns")
