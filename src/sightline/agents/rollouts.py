"""Rollout worker: plays episodes with a sampler, many at a time in one batch.

    task     slot 0          slot 1          slot 2          one `Sampler.generate` call for each row:
    turn 0   seed 7, #0      seed 7, #1      seed 9, #0      all slots in one batch
    turn 1   seed 7, #0      seed 7, #1      seed 9, #0
    turn 2   seed 7, #0      seed 9, #1 <-   seed 9, #0      a finished episode makes room for the next task

    one turn: observation -> chat message -> reply (sampled tokens) -> parsed action -> env.step -> reward

Every episode has a task seed and an index within its group, and all its randomness is derived from these: the
environment's from the seed, the sampler's and that of random actions from seed, index and turn. So an episode is the
same whatever is played beside it, in whatever order, on however many processes. The table of all streams of chance is
at the head of `sightline.evaluation.seeds`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from sightline.agents.parsing import action_tokens, choice_tokens, read_reply
from sightline.agents.prompting import prompt_text
from sightline.agents.samplers import Completion, Key, Sampler
from sightline.agents.types import Reply, Trajectory, Turn
from sightline.config.agents import Replies
from sightline.config.basics import Workers
from sightline.envs.frames import rgb_frame
from sightline.envs.games.contract import Observation
from sightline.envs.games.processes import GamePool, MakeGame, begin
from sightline.envs.success import stated_success
from sightline.envs.tasks import SuccessRule
from sightline.envs.workers import WorkerDied
from sightline.errors import BadInput, RunFailed, reason_and_place
from sightline.evaluation.episode_stats import success_by_rule
from sightline.images import Picture
from sightline.models.device import available_cores
from sightline.models.shrinking import Shrink
from sightline.models.vlm.model import VLM
from sightline.models.vlm.types import ChatTurn
from sightline.replies import COMMON

PictureFilter = Callable[[Picture, "EpisodeTask", int], Picture]
"""(picture, task, turn) -> the picture that is shown in its place."""


class StateWords(NamedTuple):
    """What the sampler is told of a state in words.

    Attributes:
        text: of the observation.
        actions: names that the state has for its actions; empty where those of the environment are told, in all states.
    """

    text: str
    actions: tuple[str, ...] = ()


TextFilter = Callable[[StateWords, "EpisodeTask", int], StateWords]
"""(words of a state, task, turn) -> the words that are told in their place."""
CHANCE_OF_MOVES = 2
"""First number of the PRNG keys of random actions, so that they differ from those of sampling."""
RESTARTS = 2
"""Times that an episode is repeated because the process of its environment has died; then it counts as broken."""
CACHE_SIZE = 4096
"""Prompt texts and parsed replies that are kept: many turns of a rollout have the same ones."""


@dataclass(frozen=True)
class EpisodeTask:
    """Episode to be played: its task seed, and its index within the group of episodes with that seed."""

    seed: int
    member: int = 0


@dataclass(frozen=True, eq=False)
class _ParsedReply:
    """Parsed reply with its action tokens; see `Turn`. It is cached and shared by turns, so treat it as immutable."""

    reply: Reply
    action_tokens: np.ndarray
    choice: int | None = None
    choices: tuple[int, ...] = ()


class _Texts:
    """Prompt texts and parsed replies of a worker, cached.

    Attributes:
        replies: requested format, and what follows from a reply in another one.
        vlm: the policy, for the tokens of a reply; None if replies are only text.
    """

    def __init__(self, replies: Replies, vlm: VLM | None) -> None:
        self.replies = replies
        self.vlm = vlm
        # Episodes of a group have the same beginning, and many observations differ in their pictures only.
        self.prompt_text = lru_cache(CACHE_SIZE)(
            lambda text, queried_facts, names, memory: prompt_text(text, replies, queried_facts, names, memory)
        )
        self.parse = lru_cache(CACHE_SIZE)(self._parse)

    def _parse(
        self,
        ids: tuple[int, ...],
        text: str,
        finished: bool,
        queried_facts: tuple[str, ...],
        action_names: tuple[str, ...],
        legal: tuple[str, ...],
    ) -> _ParsedReply:
        vlm = self.vlm
        thinking = COMMON if vlm is None else vlm.tokens.thinking
        reply = read_reply(text, self.replies, action_names, queried_facts, finished, thinking)
        if vlm is None or not ids:
            return _ParsedReply(reply, np.zeros(len(ids), bool))
        # Characters of the action -> its tokens, for the weights in the loss.
        tokens = action_tokens(reply.span, vlm.offsets(ids))
        # The token that decides between the legal actions, for the entropy bonus.
        choice, choices = choice_tokens(text, reply.span, legal, vlm.tokens.encode, vlm.tokens.offsets, ids)
        return _ParsedReply(reply, tokens, choice, choices)


@dataclass(frozen=True)
class _Rules:
    """What is the same in all episodes of a worker; see `RolloutWorker`."""

    texts: _Texts
    window: int
    success: SuccessRule
    keeps_frames: bool
    shrink: Shrink | None
    prompt_tokens: int | None


class RolloutWorker:
    """Plays episodes of one environment with a sampler, several at the same time.

    Args:
        make: makes one environment; as many are made as are played at once, and kept.
        replies: requested format of replies, and what follows from a reply in another one.
        window: turns of the conversation that the sampler is shown, the present one included.
        parallel: episodes played at the same time.
        vlm: the policy whose tokens replies consist of; None if replies are only text, which is not trained on.
        success: an episode succeeds if `info["success"]` is true at `every` step, at `any` step, or at its `end`.
        keeps_frames: whether turns keep the frame of the state that they led to, for a reward model.
        shrink: makes these frames smaller (`sightline.rewards.base.frame_shrinker`); None keeps their size.
        workers: `inline` steps all episodes in this process, one after the other; `processes` spreads them over as many
            processes as there are cores.
        prompt_tokens: of a prompt, at most: earlier turns are left out to keep to it. For policies only: the tokens of
            others are not known.
        step_timeout: seconds that a reset or a step may take in a process; one that takes longer has died.
    """

    def __init__(
        self,
        make: MakeGame,
        replies: Replies,
        window: int = 1,
        parallel: int = 64,
        vlm: VLM | None = None,
        success: SuccessRule = "end",
        keeps_frames: bool = False,
        workers: Workers = "inline",
        prompt_tokens: int | None = None,
        step_timeout: float | None = None,
        shrink: Shrink | None = None,
    ) -> None:
        self._rules = _Rules(_Texts(replies, vlm), window, success, keeps_frames, shrink, prompt_tokens)
        self.success: SuccessRule = success
        self._parallel = parallel
        processes = min(parallel, available_cores()) if workers == "processes" else 0
        self.games = GamePool(make, processes, step_timeout)

    def play(
        self,
        sampler: Sampler,
        tasks: Sequence[EpisodeTask],
        key: Key = (),
        picture_filter: PictureFilter | None = None,
        text_filter: TextFilter | None = None,
        after_turns: Callable[[int], None] | None = None,
        at_turn: Callable[[int, Trajectory], None] | None = None,
        at_end: Callable[[int, Trajectory], None] | None = None,
    ) -> list[Trajectory]:
        """Play every task to its end.

        Args:
            key: prefix of the PRNG key of every turn, so that the same task can be played differently.
            picture_filter: changes the pictures that the sampler is shown, not the episode's facts.
            text_filter: changes the words of states likewise.
            after_turns: called with the number of turns that were just played.
            at_turn: called with the index of a task and its episode so far, after each of its turns. What it takes out
                of the newest turn is not kept until the episode ends; later prompts show it all the same.
            at_end: called with the index of a task and its episode, which has just ended.

        Returns:
            Trajectories in the order of the tasks. Where the environment broke down, one with `error`.
        """
        waiting = deque(enumerate(tasks))
        trajectories: dict[int, Trajectory] = {}
        active: list[_Episode] = []
        free_slots = list(range(self._parallel))
        while waiting or active:
            # Every free slot takes the next task. All resets begin before the first is waited for.
            while waiting and free_slots:
                index, task = waiting.popleft()
                slot = free_slots.pop(0)
                active.append(_Episode(self._rules, self.games, slot, index, task, key, picture_filter, text_filter))
            for episode in active:
                episode.observe()
            playing = [episode for episode in active if not episode.over]
            if playing:
                # One batch: the next turn of every running episode.
                conversations = [episode.conversation() for episode in playing]
                completions = sampler.generate(conversations, [episode.key() for episode in playing])
                # Environments step side by side: all begin before the first is waited for.
                for episode, completion in zip(playing, completions, strict=True):
                    episode.step(completion)
                for episode in playing:
                    episode.observe()
                    if at_turn is not None:
                        at_turn(episode.index, episode.trajectory)
            for episode in active:
                if not episode.over:
                    continue
                trajectories[episode.index] = episode.trajectory
                if at_end is not None:
                    at_end(episode.index, episode.trajectory)
                free_slots.append(episode.slot)
                # An environment that broke down is not trusted with another episode.
                if episode.trajectory.error is not None:
                    self.games.discard(episode.slot)
            active = [episode for episode in active if not episode.over]
            if playing and after_turns is not None:
                after_turns(len(playing))
        return [trajectories[index] for index in range(len(tasks))]

    def first_turns(self, sampler: Sampler, tasks: Sequence[EpisodeTask]) -> list[Turn]:
        """Have the first turn of each task replied to, and play nothing. Tasks that cannot be begun are left out."""
        episodes: list[_Episode] = []
        for task in tasks:
            # One environment serves all: what an episode keeps of its start does not change with the next reset.
            episode = _Episode(self._rules, self.games, 0, 0, task)
            episode.observe()
            if episode.over:
                self.games.discard(0)
            else:
                episodes.append(episode)
        conversations = [episode.conversation() for episode in episodes]
        completions = sampler.generate(conversations, [episode.key() for episode in episodes])
        return [episode.parsed_turn(completion) for episode, completion in zip(episodes, completions, strict=True)]

    def close(self) -> None:
        """Close all environments."""
        self.games.close()


def _copied(observation: Observation) -> Observation:
    """An observation with pictures that no later one overwrites: some environments draw on one canvas all the time."""
    return Observation(observation.text, tuple(np.array(image) for image in observation.images))


def words_of(observation: Observation, info: Mapping[str, Any], action_names: Sequence[str]) -> StateWords:
    """What a state tells in words.

    Args:
        info: of the state.
        action_names: of the environment; empty if each state has its own.
    """
    return StateWords(observation.text, () if action_names else tuple(info.get("legal_actions", ())))


def _equal(first: Observation, second: Observation) -> bool:
    if first.text != second.text or len(first.images) != len(second.images):
        return False
    return all(np.array_equal(*images) for images in zip(first.images, second.images, strict=True))


class _Episode:
    """Running episode in a slot of a worker.

    Args:
        games: of the worker; that of the slot is this episode's alone until it is over.
        index: of the task in the worker's list.
        key: prefix of the PRNG keys.
        picture_filter, text_filter: see `RolloutWorker.play`.
    """

    def __init__(
        self,
        rules: _Rules,
        games: GamePool,
        slot: int,
        index: int,
        task: EpisodeTask,
        key: Key = (),
        picture_filter: PictureFilter | None = None,
        text_filter: TextFilter | None = None,
    ) -> None:
        self._rules = rules
        self._games = games
        self._game = game = games[slot]
        self.slot = slot
        self.index = index
        self._task = task
        self._key = key
        self._picture_filter = picture_filter
        self._text_filter = text_filter
        self.trajectory = Trajectory(task.seed, task.member)
        self.over = False
        self._exchanges: list[ChatTurn] = []
        self._info: dict[str, Any] = {}
        self._action_names: tuple[str, ...] = game.get_wrapper_attr("action_names")
        self._queried_facts: tuple[str, ...] = game.get_wrapper_attr("asked")
        self._states_success = False
        """Whether the state that the episode began with says if it is a success."""
        self._pending: Callable[[], Any] | None = None
        """Waits for the result of the reset or step that was begun last; None once that is observed."""
        self._observation: Observation | None = None
        """What the environment showed last."""
        self._begin("reset", seed=task.seed)

    def key(self) -> Key:
        """PRNG key of the next turn."""
        return (*self._key, self._task.seed, self._task.member, len(self.trajectory.turns))

    def conversation(self) -> list[ChatTurn]:
        """Messages of the window, as many as the budget of tokens allows; the last one waits for its reply.

        window 2:    turn 0   turn 1   turn 2   turn 3
                                       shown    shown, to be replied to
        """
        messages = self._exchanges[-self._rules.window :]
        vlm = self._rules.texts.vlm
        if self._rules.prompt_tokens is not None and vlm is not None:
            # The oldest are left out first, and never the present one.
            while len(messages) > 1 and len(vlm.encode(messages).ids) > self._rules.prompt_tokens:
                messages = messages[1:]
        return messages

    def step(self, completion: Completion) -> None:
        """Parse a reply, and begin to play its action; `observe` goes on."""
        turn = self.parsed_turn(completion)
        self.trajectory.turns.append(turn)
        # From now on the conversation holds the sampled ids: later prompts contain exactly what was sampled, which is
        # what allows turns to share a training sequence (token in, token out).
        self._exchanges[-1] = turn.exchange
        if turn.played is None:  # forfeited, and lost whatever went before
            self.trajectory.success = self._success(forfeited=True)
            self.over = True
            return
        self._begin("step", turn.played)

    def observe(self) -> None:
        """Take in the state that the reset or the last action led to."""
        pending = self._pending
        self._pending = None
        if pending is None:
            return
        try:
            if not self.trajectory.turns:
                self._observe_start(self._outcome(pending, self._repeat))
                return
            terminated, truncated = self._observe_step(self._outcome(pending, self._repeat))
        except BadInput:
            raise  # no other episode would go better
        except (Exception, SystemExit) as error:
            self._break_down(error)
            return
        self.over = bool(terminated or truncated)
        if truncated and not terminated:
            # Cut off by time: the critic bootstraps from the state that would have come next.
            self.trajectory.truncated = True
            vlm = self._rules.texts.vlm
            if vlm is not None and self.trajectory.turns[-1].prompt is not None:
                self.trajectory.end = vlm.encode(self.conversation())

    def _observe_start(self, result: Any) -> None:
        """Take in what a reset gave."""
        observation, self._info = result
        observation = _copied(observation)
        self.trajectory.kind = str(self._info.get("kind", ""))
        self._states_success = stated_success(self._info) is not None
        self.trajectory.success = self._success()
        if self._rules.keeps_frames:
            self.trajectory.reset_frame = self._frame(observation)
        self._show(observation)

    def _observe_step(self, result: Any) -> tuple[bool, bool]:
        """Take in what a step gave, which is the outcome of the newest turn: (terminated, truncated)."""
        observation, reward, terminated, truncated, self._info = result
        observation = _copied(observation)
        turn = self.trajectory.turns[-1]
        if not math.isfinite(reward):
            number = len(self.trajectory.turns)
            raise ValueError(f"the reward of turn {number} is {reward} (episode with seed {self._task.seed})")
        turn.env_reward = float(reward)
        turn.reward += turn.env_reward  # it holds the penalty already
        turn.success = stated_success(self._info)
        if self._rules.keeps_frames:
            turn.frame = self._frame(observation)
        self.trajectory.success = self._success()
        self.trajectory.mistakes = int(self._info.get("mistakes", 0))
        self._show(observation)
        return terminated, truncated

    def _frame(self, observation: Observation) -> np.ndarray:
        """uint8[H, W, 3]: what the policy sees is what a reward model sees, or a drawing where the policy sees none."""
        frame = observation.images[-1] if observation.images else self._render()
        if self._rules.shrink is not None:
            frame = self._rules.shrink(frame[None])[0]
        return frame

    def _render(self) -> np.ndarray:
        """uint8[H, W, 3], the frame of the present state."""

        def repeat(error: WorkerDied) -> np.ndarray:
            self._repeat(error)
            return rgb_frame(self._game)

        frame: np.ndarray = self._outcome(lambda: rgb_frame(self._game), repeat)
        return frame

    def _success(self, forfeited: bool = False) -> bool | None:
        """Success of the episode so far; None if the environment does not say."""
        states = [turn.success for turn in self.trajectory.turns]
        return success_by_rule(states, self._states_success, forfeited)[self._rules.success]

    def _begin(self, method: str, *args: Any, **options: Any) -> None:
        try:
            self._pending = begin(self._game, method, *args, **options)
        except (Exception, SystemExit) as error:
            self._break_down(error)

    def _outcome(self, call: Callable[[], Any], repeat: Callable[[WorkerDied], Any]) -> Any:
        """The result of a call of the game; if the game's process has died, the episode is repeated in a new one."""
        while True:
            try:
                return call()
            except WorkerDied as error:
                if self.trajectory.restarts == RESTARTS:
                    raise
                self.trajectory.restarts += 1
                # The new process may die as well: the repetition is a call like the one before.
                call = partial(repeat, error)

    def _repeat(self, error: WorkerDied) -> Any:
        """Begin a new game, play the episode as far as it was, and then the call that was cut off.

        Raises:
            RunFailed: the environment does not repeat itself from its seed.
        """
        self._game = self._games[self.slot]
        start = self._game.reset(seed=self._task.seed)
        if not self.trajectory.turns:
            return start
        observation: Observation = start[0]
        *actions, interrupted_action = [turn.played for turn in self.trajectory.turns]
        for action in actions:
            observation = self._game.step(action)[0]
        # Replies were written to what was seen before: a game that goes another way would mix two episodes.
        if self._observation is None or not _equal(observation, self._observation):
            raise RunFailed(f"{error}, and the environment does not repeat itself from its seed") from error
        return self._game.step(interrupted_action)

    def _show(self, observation: Observation) -> None:
        """Append an observation to the conversation."""
        self._observation = observation
        pictures = tuple(Picture(image) for image in observation.images)
        words = words_of(observation, self._info, self._action_names)
        turn = len(self.trajectory.turns)
        if self._picture_filter is not None:
            pictures = tuple(self._picture_filter(picture, self._task, turn) for picture in pictures)
        if self._text_filter is not None:
            words = self._text_filter(words, self._task, turn)
        names = self._action_names or words.actions
        # What the last reply wrote down for this turn.
        memory = self.trajectory.turns[-1].reply.memory if self.trajectory.turns else ""
        text = self._rules.texts.prompt_text(words.text, self._queried_facts, names, memory)
        self._exchanges.append(ChatTurn(text, pictures))
        # What no later prompt shows is let go.
        del self._exchanges[: -self._rules.window]

    def parsed_turn(self, completion: Completion) -> Turn:
        """Make the turn of a reply, before its action is played."""
        texts = self._rules.texts
        settings = texts.replies
        sample = completion.sample
        legal: tuple[str, ...] = tuple(self._info.get("legal_actions", self._action_names))
        ids = tuple(sample.ids.tolist())
        names = self._action_names or legal
        parsed = texts.parse(ids, sample.text, sample.finished, self._queried_facts, names, legal)
        action = parsed.reply.action
        # Without names any text may be tried; the environment says what came of it.
        is_legal = action in legal if names else action is not None
        action_to_play = self._choose_action(action, is_legal, legal)
        penalty = settings.penalty if action is None or not is_legal else 0.0
        # A random action in place of the reply's is not the policy's: its outcome would be credited to whatever was
        # written. Only with a penalty the reply had a consequence of its own.
        on_policy = action_to_play is None or action_to_play == action or settings.penalty > 0
        # The ground truth of perception, of the facts that replies are asked for.
        facts = self._info.get("facts", {})
        message = self._exchanges[-1]
        return Turn(
            exchange=ChatTurn(message.text, message.pictures, ids, reply_text=sample.text),
            prompt=completion.prompt,
            sample=sample,
            reply=parsed.reply,
            played=action_to_play,
            on_policy=on_policy,
            legal=is_legal,
            reward=-penalty,
            penalty=penalty,
            facts={name: facts[name] for name in settings.asks(facts)},
            legal_actions=legal,
            action_tokens=parsed.action_tokens,
            choice=parsed.choice,
            choices=parsed.choices,
            version=completion.version,
        )

    def _choose_action(self, action: str | None, is_legal: bool, legal: Iterable[str]) -> str | None:
        """Choose the action to play for a parsed one; None forfeits the episode."""
        settings = self._rules.texts.replies
        if action is not None and (is_legal or settings.illegal == "play"):
            return action
        names = tuple(legal) or self._action_names
        consequence = settings.unparsable if action is None else settings.illegal
        if not names or consequence == "forfeit":
            return None
        rng = np.random.default_rng((CHANCE_OF_MOVES, *self.key()))
        return names[int(rng.integers(len(names)))]

    def _break_down(self, error: Exception | SystemExit) -> None:
        """End the episode with an error of the environment; the worker replaces the environment."""
        if isinstance(error, RunFailed):
            # Our own lines say it all.
            self.trajectory.error = str(error)
        else:
            self.trajectory.error = reason_and_place(error)
        self.over = True
