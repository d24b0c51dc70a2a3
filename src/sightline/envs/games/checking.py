"""Checks of a game before training on it (`sightline check-env`), made by playing it.

A game's rules are for its own tests. These checks look for common defects of any game: episodes that the seed does not
determine, states that the picture does not show, texts that leak the visible facts or the best action, traces of the
last episode, and actions that cannot be parsed from a reply.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import math
import numbers
import re
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils.env_checker import check_env

from sightline.envs.games.actions import AnyEnv, attribute, check_action_names
from sightline.envs.games.wrapping import has_oracle, oracle, random_action
from sightline.envs.making import DEFAULT_EPISODE_STEPS
from sightline.envs.stepping import close_env
from sightline.envs.success import stated_success
from sightline.envs.watching import PictureWatch
from sightline.errors import BadInput, RunFailed, reason_and_place

MAX_STEPS = 2000
"""Steps after which an episode is taken to never end."""
TURNS = 16
"""Turns by which pictures are judged before training."""
MAX_REPEATED = 5
"""Greatest number of episodes that are repeated to compare them."""

RoundTrip = Callable[[str, tuple[str, ...]], "str | None"]
"""(name of an action, all names) -> name parsed from a reply with this action; None if none is."""


@dataclass(frozen=True)
class Finding:
    """Result of one check.

    Attributes:
        name: name of the check.
        passed: true if no defect was found.
        detail: what was checked, or the defect and where it was found.
        won, played: numbers of episodes, for checks of the win rate.
    """

    name: str
    passed: bool
    detail: str
    won: int | None = None
    played: int | None = None


@dataclass(frozen=True)
class TimeStep:
    """Record of one time step.

    Attributes:
        text: text of the observation.
        pictures: digests of the pictures of the observation.
        reward: reward of the step that led here; 0 after a reset.
        over: true if the episode was terminated or truncated.
        best: best action by the oracle; None without an oracle, or if it knows none.
        info: deep copy of the info.
        seconds: how long the step took, with its pictures; 0 after a reset.
    """

    text: str
    pictures: tuple[bytes, ...]
    reward: float
    over: bool
    best: str | None
    info: dict[str, Any]
    seconds: float = 0.0

    @property
    def visible(self) -> Hashable:
        """Visible part of the observation: the pictures, or the text if there are none."""
        return self.pictures or self.text

    @property
    def facts(self) -> dict[str, str]:
        return dict(self.info.get("facts", {}))

    @property
    def success(self) -> bool | None:
        """Success of the state; None where it is not stated, or in a form that is refused."""
        try:
            return stated_success(self.info)
        except BadInput:
            return None

    @property
    def legal(self) -> tuple[str, ...]:
        return tuple(self.info.get("legal_actions", ()))


GAME_KEYS = {"success", "is_success", "legal_actions", "action_mask", "facts", "kind", "mistakes"}
"""Infos that have a meaning to games."""
Episode = list[TimeStep]
Choose = Callable[[TimeStep], str]


def check_game(
    maker: Callable[[], AnyEnv], episodes: int = 20, seed: int = 0, round_trip: RoundTrip | None = None
) -> list[Finding]:
    """Check a game for defects by playing it.

    Args:
        maker: factory of games with the interface of `sightline.envs.games.contract` (a `GameMaker`).
        episodes: number of episodes of random play, and again of the oracle if there is one; at least 2.
        seed: seed of the first episode; each next one has the next number.
        round_trip: writes an action into a reply and parses it again; None skips this check.

    Returns:
        Findings in the order of the checks. If the game raises an exception, its finding ends the checks of play.

    Raises:
        BadInput: too few episodes, or as raised by `maker`.
    """
    if episodes < 2:
        raise BadInput(f"episodes={episodes} is too few to compare any; use at least 2 (the default is 20)")
    env = maker()
    findings = [_check_gymnasium(env), _check_names(env)]
    if not findings[-1].passed:
        return findings
    names = _names(env)
    try:
        findings += _checks_of_play(maker, env, range(seed, seed + episodes))
        names = names or _opening(env, seed)[0].legal  # those of one state stand for all
    except Exception as error:
        findings.append(Finding("no exception", False, _in_one_line(error)))
    finally:
        close_env(env)
    if round_trip is not None:
        findings.append(_check_replies(names, round_trip))
    return findings


def _checks_of_play(maker: Callable[[], AnyEnv], env: AnyEnv, seeds: range) -> list[Finding]:
    at_random = [play(env, seed, random_player(env, seed)) for seed in seeds]
    by_oracle: list[Episode] = []
    if has_oracle(env):
        for seed in seeds:
            game = play(env, seed, _follow_oracle(env, seed))
            # Where it never knows a move, all of its play would be random.
            if any(time_step.best is not None for time_step in game):
                by_oracle.append(game)
    games = at_random + by_oracle
    seeds_twice = seeds[:MAX_REPEATED]
    findings = [
        _check_infos(env, games),
        *_check_seeds(maker, seeds_twice),
        _check_reset(maker, env, seeds_twice, seeds[-1] + 1),
        _check_picture(games),
        _check_fact_leaks(env, games),
        _check_answer_leaks(_names(env), at_random, by_oracle),
        _check_legal_actions(_names(env), games),
        _check_termination(env, games),
        _check_success(games),
        _tell_time(at_random),
        _check_wins("random play", at_random, must_win=False),
    ]
    if by_oracle:
        findings.append(_check_wins("oracle", by_oracle, must_win=True, note=_knowledge(by_oracle, len(seeds))))
    return findings


def play(env: AnyEnv, seed: int, choose: Choose, most_steps: int | None = None) -> Episode:
    """Play one episode from a reset with `seed`, for at most `most_steps` steps (default: `MAX_STEPS`)."""
    if most_steps is None:
        most_steps = MAX_STEPS
    observation, info = env.reset(seed=seed)
    episode = [_time_step(env, observation, 0.0, False, info)]
    while not episode[-1].over and len(episode) <= most_steps:
        action = choose(episode[-1])
        began = time.perf_counter()
        observation, reward, terminated, truncated, info = env.step(action)
        seconds = time.perf_counter() - began
        if not math.isfinite(reward):
            raise RunFailed(f"the reward of step {len(episode)} is {reward}, from which nothing can be learned")
        time_step = _time_step(env, observation, float(reward), bool(terminated or truncated), info)
        episode.append(replace(time_step, seconds=seconds))
    return episode


def random_player(env: AnyEnv, *seed: int) -> Choose:
    """Uniformly random policy over the legal actions, or over all actions where none is legal."""
    rng = np.random.default_rng([0, *seed])
    names = _names(env)

    def choose(time_step: TimeStep) -> str:
        legal = [name for name in time_step.legal if name in names or not names]
        return random_action(env, legal, rng)

    return choose


def _follow_oracle(env: AnyEnv, seed: int) -> Choose:
    """The oracle's policy, which plays at random where it knows no move."""
    choose_at_random = random_player(env, seed)
    names = _names(env)

    def choose(time_step: TimeStep) -> str:
        best = time_step.best
        if best is not None and (best in names or not names):
            return best
        return choose_at_random(time_step)

    return choose


def _names(env: AnyEnv) -> tuple[str, ...]:
    names: tuple[str, ...] = tuple(env.get_wrapper_attr("action_names"))
    return names


def _time_step(env: AnyEnv, observation: Any, reward: float, over: bool, info: Mapping[str, Any]) -> TimeStep:
    text, images = observation
    digests = tuple(hashlib.blake2b(np.asarray(image).tobytes(), digest_size=16).digest() for image in images)
    best = None if over else oracle(env)
    return TimeStep(text, digests, reward, over, best, _plain(dict(info)))


class _PlainInfos(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Wrapper for Gymnasium's checker, which copies infos and compares them, whatever they hold."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return observation, _without_nan(_plain(info))

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        *result, info = self.env.step(action)
        return *result, _without_nan(_plain(info))


def _without_nan(value: Any) -> Any:
    """A plain value with a word in place of NaN, which is unequal to itself."""
    if isinstance(value, dict):
        return {key: _without_nan(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_without_nan(part) for part in value)
    if isinstance(value, np.ndarray) and value.dtype.kind in "fc":
        return np.nan_to_num(value, nan=-1.0)
    if isinstance(value, float | np.floating) and np.isnan(value):
        return "NaN"
    return value


def _plain(value: Any) -> Any:
    """A copy of what an info holds, with the name of its class in place of anything that cannot be compared."""
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    if isinstance(value, tuple):
        return tuple(_plain(part) for part in value)
    if isinstance(value, str | bytes | numbers.Number | np.generic | np.ndarray | None):
        return copy.deepcopy(value)
    return type(value).__name__


def _alike(first: Any, second: Any) -> bool:
    """Whether two copies of infos are equal; NaN equals NaN."""
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(_alike(part, second[key]) for key, part in first.items())
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return len(first) == len(second) and all(map(_alike, first, second))
    array = np.asarray(first)
    other_array = np.asarray(second)
    if array.dtype.kind in "fc" and other_array.dtype.kind in "fc":
        return np.array_equal(array, other_array, equal_nan=True)
    same_type = type(first) is type(second) and array.dtype == other_array.dtype
    return same_type and np.array_equal(array, other_array)


def _in_one_line(error: Exception) -> str:
    if isinstance(error, BadInput | RunFailed):
        return str(error)  # our own lines say it all
    return reason_and_place(error)[:300]


def _check_gymnasium(env: AnyEnv) -> Finding:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns of any wrapper, and there always is one
            check_env(_PlainInfos(env), skip_render_check=True, skip_close_check=True)
    except Exception as error:
        return Finding("gymnasium", False, _in_one_line(error))
    return Finding("gymnasium", True, "keeps to Gymnasium's interface")


def _check_names(env: AnyEnv) -> Finding:
    name = "action names"
    if not env.has_wrapper_attr("action_names"):
        return Finding(name, False, "the environment has no action_names")
    names = _names(env)
    if not names:
        return Finding(name, True, "given by each state, in info['legal_actions']; any text, where it lists none")
    try:
        check_action_names(names, type(env.unwrapped).__name__)
    except BadInput as error:
        return Finding(name, False, str(error))
    detail = f"{len(names)}: {', '.join(names)}"
    source = attribute(env, "names_from")
    if source:
        detail += f" (from the environment's {source})"
    return Finding(name, True, detail)


def _check_infos(env: AnyEnv, games: list[Episode]) -> Finding:
    """Check that infos hold the required keys. (Gymnasium's checker compares observations with their space.)"""
    name = "infos"
    facts = tuple(env.get_wrapper_attr("asked"))
    for where, time_step in _time_steps(games):
        for key in ("success", "legal_actions", "facts"):
            if key not in time_step.info:
                return Finding(name, False, f"{where}: the info lacks '{key}'")
        try:
            stated_success(time_step.info)
        except BadInput as error:
            return Finding(name, False, f"{where}: {error}")
        for fact in facts:
            if not isinstance(time_step.facts.get(fact), str):
                return Finding(name, False, f"{where}: there is no text for the fact '{fact}'")
    return Finding(name, True, f"success, legal actions, facts ({', '.join(facts) or 'none asked'})")


def _check_seeds(maker: Callable[[], AnyEnv], seeds: Iterable[int]) -> list[Finding]:
    """Check that equal seeds give equal episodes, and other seeds other ones."""
    copies = (maker(), maker())
    difference = ""
    episodes = []
    for seed in seeds:
        # One stream of random actions for all episodes: any difference between them is due to the game's seed.
        first, second = (play(env, seed, random_player(env)) for env in copies)
        difference = difference or _difference(first, second, f"seed {seed}")
        episodes.append(first)
    for env in copies:
        close_env(env)
    alike = f"{len(episodes)} episodes played twice, alike to the pixel"
    equal_seeds = Finding("equal seeds", not difference, difference or alike)
    differs = any(_difference(episodes[0], episode, "") for episode in episodes[1:])
    detail = "give other episodes" if differs else "all seeds give the same episode"
    return [equal_seeds, Finding("other seeds", differs, detail)]


def _difference(first: Episode, second: Episode, where: str) -> str:
    """First difference between two episodes, in words; empty if they are equal."""
    for step, (a, b) in enumerate(zip(first, second, strict=False)):
        for part, equal in (
            ("text", a.text == b.text),
            ("picture", a.pictures == b.pictures),
            ("reward", a.reward == b.reward),
            ("end", a.over == b.over),
            ("info", _alike(a.info, b.info)),
        ):
            if not equal:
                return f"{where}, step {step}: the {part} differs"
    if len(first) != len(second):
        return f"{where}: one episode is longer"
    return ""


def _check_reset(maker: Callable[[], AnyEnv], used: AnyEnv, seeds: Sequence[int], other: int) -> Finding:
    """Check that a reset gives the same as on a new copy, whatever was played before (with the seed `other`)."""
    name = "last episode"
    on_fresh_copies = [_opening_of_a_fresh_copy(maker, seed) for seed in seeds]
    again = [_opening_of_a_fresh_copy(maker, seed) for seed in seeds]
    if any(_difference(first, second, "") for first, second in zip(on_fresh_copies, again, strict=True)):
        return Finding(name, True, "not checked: equal seeds give unequal starts already")
    # A game is left in the middle, too, as when a run is stopped.
    half = len(play(used, other, random_player(used, other))) // 2
    for seed, fresh in zip(seeds, on_fresh_copies, strict=True):
        for what, choose, steps in (
            ("a whole random episode", random_player(used, other, seed), MAX_STEPS),
            ("half an episode", random_player(used, other), half),
            ("an episode of the oracle", _follow_oracle(used, other), MAX_STEPS),
        ):
            play(used, other, choose, steps)
            trace = _difference(fresh, _opening(used, seed), f"after {what}, reset with seed {seed}")
            if trace:
                return Finding(name, False, trace.replace(", step 0:", ":") + " from that of a fresh copy")
    return Finding(name, True, "a reset leaves no trace of it")


def _opening_of_a_fresh_copy(maker: Callable[[], AnyEnv], seed: int) -> Episode:
    fresh = maker()
    try:
        return _opening(fresh, seed)
    finally:
        fresh.close()


def _opening(env: AnyEnv, seed: int) -> Episode:
    return play(env, seed, random_player(env), most_steps=0)


def _check_picture(games: list[Episode]) -> Finding:
    """Check that the visible facts are a function of the picture, or of it and the words, which may say what to look
    for: no picture has two values of a fact under the same words."""
    name = "picture"
    truths: dict[tuple[Hashable, str], tuple[str, dict[str, str]]] = {}
    for where, time_step in _time_steps(games):
        # The first state of each look is compared with all later ones.
        first, facts = truths.setdefault((time_step.visible, time_step.text), (where, time_step.facts))
        for fact, value in time_step.facts.items():
            if facts.get(fact) != value:
                values = f"'{facts.get(fact)}' ({first}) and '{value}' ({where})"
                return Finding(name, False, f"looks the same for two states: {fact} is {values}")
    what = "pictures" if games[0][0].pictures else "texts"
    # By the visible part alone: words may differ while the picture never changes.
    different = {visible for visible, _ in truths}
    if len(different) == 1:
        return Finding(name, False, f"never changes, in {sum(map(len, games))} states")
    return Finding(name, True, f"{len(different)} different {what}, none of them with two meanings")


def _check_fact_leaks(env: AnyEnv, games: list[Episode]) -> Finding:
    """Check that the text does not leak visible facts.

    A fact leaks if its value is in the text at every step, and the values that the text mentions determine it. A text
    that always lists all values leaks nothing.
    """
    name = "facts in words"
    if not games[0][0].pictures:
        return Finding(name, True, "there are no pictures: everything is meant to be in words")
    first_steps = [game[0] for game in games]
    later_steps = list(itertools.chain.from_iterable(game[1:] for game in games))
    for when, time_steps in (("at the start", first_steps), ("later", later_steps)):
        for fact in env.get_wrapper_attr("asked"):
            statements = [(time_step.text, time_step.facts.get(fact, "")) for time_step in time_steps]
            values = sorted({value for _, value in statements})
            if len(values) < 2 or not all(_mentions(text, value) for text, value in statements):
                continue
            # How often the text mentions each value -> the true value.
            pairs = []
            for text, value in statements:
                mentions = tuple(_mentions(text, any_value) for any_value in values)
                pairs.append((mentions, value))
            if _determines(pairs):
                example = statements[0][1]
                return Finding(name, False, f"the text says {fact} {when}, for example '{example}': no need to look")
    return Finding(name, True, "what should be seen is not told")


def _check_answer_leaks(names: tuple[str, ...], at_random: list[Episode], by_oracle: list[Episode]) -> Finding:
    """Check that neither the text, nor how often it mentions each action, determines the oracle's action.

    Only texts that occurred in episodes of different seeds are compared: a text that occurs once predicts anything.
    """
    name = "answer in words"
    if not by_oracle:
        return Finding(name, True, "not checked: there is no oracle")
    if not by_oracle[0][0].pictures:
        return Finding(name, True, "there are no pictures: everything is meant to be in words")
    # The number of an episode stands for its seed: both ways of playing have the same seeds.
    time_steps = []
    mentions: dict[str, tuple[int, ...]] = {}
    for number, game in [*enumerate(at_random), *enumerate(by_oracle)]:
        for time_step in game:
            if time_step.best is None:
                continue
            time_steps.append((number, time_step))
            mentions[time_step.text] = tuple(_mentions(time_step.text, action) for action in names)
    readings: tuple[tuple[str, Callable[[str], Hashable]], ...] = (
        ("the text", lambda text: text),
        ("which actions the text mentions", mentions.__getitem__),
    )
    for what, read in readings:
        episodes_with: dict[Hashable, set[int]] = defaultdict(set)
        for number, time_step in time_steps:
            episodes_with[read(time_step.text)].add(number)
        shared = []
        for _, time_step in time_steps:
            reading = read(time_step.text)
            if len(episodes_with[reading]) > 1:
                shared.append((reading, time_step.best))
        best_actions = {best for _, best in shared}
        if len(best_actions) > 1 and _determines(shared):
            return Finding(name, False, f"{what} alone says what to do, in all {len(shared)} states that were compared")
    return Finding(name, True, "the best action does not follow from the text")


def _mentions(text: str, words: str) -> int:
    """How often a text holds these words, as words of their own."""
    if not words:
        return 0
    return len(re.findall(rf"(?<!\w){re.escape(words)}(?!\w)", text))


def _determines(pairs: Iterable[tuple[Hashable, Hashable]]) -> bool:
    """True if the second element of each pair is a function of the first."""
    values: dict[Hashable, Hashable] = {}
    return all(values.setdefault(key, value) == value for key, value in pairs)


def _check_legal_actions(names: tuple[str, ...], games: list[Episode]) -> Finding:
    name = "legal actions"
    counts: Counter[int] = Counter()
    for where, time_step in _time_steps(games):
        unknown = [action for action in time_step.legal if names and action not in names]
        if unknown:
            return Finding(name, False, f"{where}: '{unknown[0]}' is legal but no action")
        if time_step.over:
            continue
        if names and not time_step.legal:
            return Finding(name, False, f"{where}: nothing is legal, but the game goes on")
        if time_step.best is not None and time_step.legal and time_step.best not in time_step.legal:
            return Finding(name, False, f"{where}: the oracle says '{time_step.best}', which is not legal")
        counts[len(time_step.legal)] += 1
    fewest = min(counts)
    most = max(counts)
    if not most:
        return Finding(name, True, "any text is an action")
    numbers_in_words = str(most)
    if fewest != most:
        numbers_in_words = f"{fewest} to {most}"
    if names:
        return Finding(name, True, f"{numbers_in_words} of {len(names)} at a time")
    return Finding(name, True, f"{numbers_in_words} in each state")


def _check_termination(env: AnyEnv, games: list[Episode]) -> Finding:
    endless = sum(not game[-1].over for game in games)
    longest = max(len(game) - 1 for game in games)
    if endless:
        return Finding("ends", False, f"{endless} of {len(games)} episodes had not ended after {MAX_STEPS} steps")
    return Finding("ends", True, limit_in_words(env, longest))


def limit_in_words(env: AnyEnv, longest: int) -> str:
    """How long episodes are at most, and whether that is the limit that environments without one are given."""
    has_own_limit = False
    own_spec = env.unwrapped.spec
    if own_spec is not None:
        # That of the environment was made without a limit, see `sightline.envs.constructing`.
        spec = gymnasium.registry.get(own_spec.id)
        has_own_limit = spec is not None and spec.max_episode_steps is not None
    limit = f"after {longest} steps at the latest"
    if longest != DEFAULT_EPISODE_STEPS or has_own_limit:
        return f"{limit} in random play"
    return f"{limit}, which is our own limit where an environment has none; episode_steps=N sets another"


def picture_trouble(maker: Callable[[], AnyEnv], seed: int = 0) -> str | None:
    """What is wrong with the pictures that an agent will be shown, in one line, by a few random turns; None if nothing
    is, or the game has none."""
    env = maker()
    try:
        watch = PictureWatch()
        number = 0
        while watch.steps < TURNS or (watch.flaw is not None and watch.steps < 4 * TURNS):
            choose = random_player(env, seed, number)
            number += 1
            observation, info = env.reset(seed=seed + number)
            over = False
            while not over and watch.steps < 4 * TURNS:
                if not observation.images:
                    return None
                # What moves in a game is in the picture alone: that turns change something is taken for granted.
                watch.see(observation.images[-1:], watch.steps)
                now = _time_step(env, observation, 0.0, False, info)
                observation, _, terminated, truncated, info = env.step(choose(now))
                over = bool(terminated or truncated)
                if watch.steps >= TURNS and watch.flaw is None:
                    return None
        return watch.trouble_with(f"all pictures of {watch.steps} random turns")
    finally:
        close_env(env)


def states_success(env: AnyEnv, seed: int = 0, episodes: int = 3, most_steps: int = 200) -> bool:
    """Whether the infos of a game say what success is, in some state of a few random episodes."""
    # Most environments that state it do so in their first state already.
    attempts = [(seed, 0)]
    attempts += [(number, most_steps) for number in range(seed, seed + episodes)]
    for number, steps in attempts:
        episode = play(env, number, random_player(env, number), steps)
        if any(time_step.success is not None for time_step in episode):
            return True
    return False


HOW_TO_STATE_SUCCESS = (
    "state it in the info 'success', or say success_from=reward (a positive reward), or success_from=KEY of an info"
)
"""What to do about an environment that does not say what success is."""


def _check_success(games: list[Episode]) -> Finding:
    """Tell whether success is stated. An environment that does not can be learned from by its rewards all the same."""
    time_steps = list(itertools.chain.from_iterable(games))
    states_it = [time_step.success is not None for time_step in time_steps]
    if not any(states_it):
        infos: set[str] = set()
        for time_step in time_steps:
            infos.update(time_step.info)
        own_infos = sorted(infos - GAME_KEYS)
        detail = f"is not stated, so returns are all there is to judge by; {HOW_TO_STATE_SUCCESS}"
        if own_infos:
            detail += f"; its infos: {', '.join(own_infos)}"
        return Finding("success", True, detail)
    if all(states_it):
        return Finding("success", True, "is stated in every state")
    at_ends = sum(game[-1].success is not None for game in games)
    return Finding("success", True, f"is stated in some states, at the end of {at_ends} of {len(games)} episodes")


def _tell_time(games: Sequence[Episode]) -> Finding:
    steps: list[float] = []
    for game in games:
        steps += [time_step.seconds for time_step in game[1:]]
    if not steps:
        return Finding("time", True, "no step was made")
    step = "a step"
    if any(time_step.pictures for time_step in itertools.chain.from_iterable(games)):
        step = "a step with its picture"
    return Finding("time", True, f"{step} takes {1000 * np.median(steps):.3g} ms")


def _check_wins(name: str, games: list[Episode], must_win: bool, note: str = "") -> Finding:
    mean = float(np.mean([_return_of(game) for game in games]))
    if all(time_step.success is None for time_step in itertools.chain.from_iterable(games)):
        return Finding(name, True, f"mean return {mean:.2f} in {len(games)} episodes{note}")
    won = sum(bool(game[-1].success) for game in games)
    detail = f"won {won} of {len(games)}, mean return {mean:.2f}{note}"
    return Finding(name, won > 0 or not must_win, detail, won, len(games))


def _return_of(game: Episode) -> float:
    return sum(time_step.reward for time_step in game)


def _knowledge(by_oracle: list[Episode], episodes: int) -> str:
    """How far an oracle knew what to do in so many episodes, in words; empty if it always did."""
    notes = ""
    if len(by_oracle) < episodes:
        notes += f"; without {episodes - len(by_oracle)} of {episodes} episodes, in which it knows no move"
    best = [time_step.best for time_step in itertools.chain.from_iterable(by_oracle) if not time_step.over]
    if None in best:
        notes += f"; {100 * best.count(None) / len(best):.0f} % of its moves are random, where it knows none"
    return notes


def _check_replies(names: tuple[str, ...], round_trip: RoundTrip) -> Finding:
    for name in names:
        read = round_trip(name, names)
        if read != name:
            was = "nothing"
            if read is not None:
                was = f"'{read}'"
            return Finding("replies", False, f"from a reply with the action '{name}', {was} is read")
    return Finding("replies", True, "every action that is written is read again")


def _time_steps(games: list[Episode]) -> Iterator[tuple[str, TimeStep]]:
    """All time steps of the episodes, each with its place in words."""
    for number, game in enumerate(games):
        for step, time_step in enumerate(game):
            yield f"episode {number}, step {step}", time_step
