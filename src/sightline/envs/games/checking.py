"""Is a game fit to train an agent on? What goes wrong most often, looked for by playing it.

A game's own tests say whether its rules are right. These checks ask what holds for any game: a seed decides everything,
the picture shows the state, the words give away neither what is to be seen nor what is to be done, an episode knows
nothing of the one before, and every action can be written.
"""

from __future__ import annotations

import copy
import hashlib
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.utils.env_checker import check_env, data_equivalence

from sightline.envs.games.wrapping import AnyEnv, check_action_names, has_oracle, oracle
from sightline.errors import BadInput

BOUND = 2000
"""Steps after which an episode that has not ended is held to be endless."""
PAIRS = 5
"""Episodes that are played twice, or after others, at most."""

RoundTrip = Callable[[str, tuple[str, ...]], "str | None"]
"""The name of an action and all names -> the name that is read from a reply with this action; None if none is."""


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Attributes:
        name: of the check.
        passed: whether the game may stay as it is.
        detail: what was seen, or what is wrong and where.
        won, played: episodes, if the check is about winning them.
    """

    name: str
    passed: bool
    detail: str
    won: int | None = None
    played: int | None = None


@dataclass(frozen=True)
class Moment:
    """One state as it was shown, with the reward of the step that led to it (0 at the start).

    Attributes:
        pictures: a digest of each.
        best: what the oracle would do; None if there is no oracle, or it has no advice.
        over: terminated or truncated.
        info: a copy of all that was in the info.
    """

    text: str
    pictures: tuple[bytes, ...]
    reward: float
    over: bool
    best: str | None
    info: dict[str, Any]

    @property
    def sight(self) -> Hashable:
        """What the agent can see: the pictures, or, where there are none, the words."""
        return self.pictures or self.text

    @property
    def facts(self) -> dict[str, str]:
        return dict(self.info.get("facts", {}))

    @property
    def legal(self) -> tuple[str, ...]:
        return tuple(self.info.get("legal_actions", ()))


Episode = list[Moment]
Choose = Callable[[Moment], str]


def check_game(
    maker: Callable[[], AnyEnv], episodes: int = 20, seed: int = 0, round_trip: RoundTrip | None = None
) -> list[Finding]:
    """Play a game and look for defects.

    Args:
        maker: makes copies of the game, with the contract of `sightline.envs.games.contract` (a `GameMaker`).
        episodes: played at random, and again by the oracle if there is one; at least 2.
        seed: of the first episode; the next has the next number.
        round_trip: how an action is written into a reply and read from it again; None leaves this check out.

    Returns:
        Findings in the order of the checks. When the game breaks off with an exception, that is the last one.

    Raises:
        BadInput: too few episodes, or what `maker` raises.
    """
    if episodes < 2:
        raise BadInput(f"episodes={episodes} is too few to compare any; 2 are the least, 20 are usual")
    env = maker()
    findings = [_gymnasiums_own(env), _action_names(env)]
    if not findings[-1].passed:
        return findings
    try:
        findings += _of_play(maker, env, range(seed, seed + episodes))
    except Exception as error:
        findings.append(Finding("no exception", False, _in_one_line(error)))
    finally:
        env.close()
    if round_trip is not None:
        findings.append(_replies(_names(env), round_trip))
    return findings


def _of_play(maker: Callable[[], AnyEnv], env: AnyEnv, seeds: range) -> list[Finding]:
    at_random = [play(env, seed, random_player(env, seed)) for seed in seeds]
    by_oracle = [play(env, seed, _follow_oracle(env, seed)) for seed in seeds] if has_oracle(env) else []
    games = at_random + by_oracle
    seeds_twice = seeds[:PAIRS]
    findings = [
        _infos(env, games),
        *_seeds(maker, seeds_twice),
        _last_episode(maker, env, seeds_twice, seeds[-1] + 1),
        _picture(games),
        _facts_in_words(env, games),
        _answer_in_words(_names(env), at_random, by_oracle),
        _legal_actions(_names(env), games),
        _ends(games),
        _won("random play", at_random, must_win=False),
    ]
    return [*findings, _won("oracle", by_oracle, must_win=True)] if by_oracle else findings


def play(env: AnyEnv, seed: int, choose: Choose, most_steps: int | None = None) -> Episode:
    """Play one episode, from a reset with this seed, for so many steps at most (else `BOUND`)."""
    most_steps = BOUND if most_steps is None else most_steps
    observation, info = env.reset(seed=seed)
    episode = [_moment(env, observation, 0.0, False, info)]
    names = _names(env)
    while not episode[-1].over and len(episode) <= most_steps:
        action = names.index(choose(episode[-1]))
        observation, reward, terminated, truncated, info = env.step(np.int64(action))
        episode.append(_moment(env, observation, float(reward), bool(terminated or truncated), info))
    return episode


def random_player(env: AnyEnv, *seed: int) -> Choose:
    """Any legal action, all equally likely; any action at all where none is said to be legal."""
    rng, names = np.random.default_rng([0, *seed]), _names(env)

    def choose(moment: Moment) -> str:
        known = [name for name in moment.legal if name in names] or list(names)
        return known[int(rng.integers(len(known)))]

    return choose


def _follow_oracle(env: AnyEnv, seed: int) -> Choose:
    lost = random_player(env, seed)
    names = _names(env)
    return lambda moment: moment.best if moment.best in names else lost(moment)


def _names(env: AnyEnv) -> tuple[str, ...]:
    names: tuple[str, ...] = tuple(env.get_wrapper_attr("action_names"))
    return names


def _moment(env: AnyEnv, observation: Any, reward: float, over: bool, info: Mapping[str, Any]) -> Moment:
    text, images = observation
    digests = tuple(hashlib.blake2b(image.tobytes(), digest_size=16).digest() for image in map(np.asarray, images))
    return Moment(text, digests, reward, over, None if over else oracle(env), copy.deepcopy(dict(info)))


def _in_one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


def _gymnasiums_own(env: AnyEnv) -> Finding:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it dislikes wrappers, and there always is one
            check_env(env, skip_render_check=True, skip_close_check=True)
    except Exception as error:
        return Finding("gymnasium", False, _in_one_line(error))
    return Finding("gymnasium", True, "keeps to Gymnasium's interface")


def _action_names(env: AnyEnv) -> Finding:
    name = "action names"
    if not env.has_wrapper_attr("action_names"):
        return Finding(name, False, "the environment has no action_names")
    names = _names(env)
    try:
        check_action_names(names, type(env.unwrapped).__name__)
    except BadInput as error:
        return Finding(name, False, str(error))
    count = getattr(env.action_space, "n", None)
    if count != len(names):
        return Finding(name, False, f"{len(names)} names for {count} actions")
    return Finding(name, True, f"{len(names)}: {', '.join(names)}")


def _infos(env: AnyEnv, games: list[Episode]) -> Finding:
    """Observations are checked by their space, in Gymnasium's check."""
    name, asked = "infos", tuple(env.get_wrapper_attr("asked"))
    for where, moment in _moments(games):
        for key in ("success", "legal_actions", "facts"):
            if key not in moment.info:
                return Finding(name, False, f"{where}: the info lacks '{key}'")
        if not isinstance(moment.info["success"], bool | np.bool_):
            return Finding(name, False, f"{where}: success is {moment.info['success']!r}, not True or False")
        missing = [fact for fact in asked if not isinstance(moment.facts.get(fact), str)]
        if missing:
            return Finding(name, False, f"{where}: there is no text for the fact '{missing[0]}'")
    return Finding(name, True, f"success, legal actions, facts ({', '.join(asked) or 'none asked'})")


def _seeds(maker: Callable[[], AnyEnv], seeds: Iterable[int]) -> list[Finding]:
    """Both questions need the same actions in all episodes, so one random player's numbers serve for all."""
    copies, differs = (maker(), maker()), ""
    episodes = []
    for seed in seeds:
        first, second = (play(env, seed, random_player(env)) for env in copies)
        differs = differs or _difference(first, second, f"seed {seed}")
        episodes.append(first)
    for env in copies:
        env.close()
    same = Finding("equal seeds", not differs, differs or f"{len(episodes)} episodes played twice, alike to the pixel")
    all_alike = not any(_difference(episodes[0], episode, "") for episode in episodes[1:])
    detail = "all seeds give the same episode" if all_alike else "give other episodes"
    return [same, Finding("other seeds", not all_alike, detail)]


def _difference(first: Episode, second: Episode, where: str) -> str:
    """What tells two episodes apart, as early as possible; empty if nothing does."""
    for step, (a, b) in enumerate(zip(first, second, strict=False)):
        for part, equal in (
            ("text", a.text == b.text),
            ("picture", a.pictures == b.pictures),
            ("reward", a.reward == b.reward),
            ("end", a.over == b.over),
            ("info", data_equivalence(a.info, b.info, exact=True)),
        ):
            if not equal:
                return f"{where}, step {step}: the {part} differs"
    return "" if len(first) == len(second) else f"{where}: one episode is longer"


def _last_episode(maker: Callable[[], AnyEnv], used: AnyEnv, seeds: Sequence[int], other: int) -> Finding:
    """A reset must give what it gives on a fresh copy, whatever was played before (with the seed `other`)."""
    name = "last episode"
    on_fresh_copies, again = ([_opening_of_a_fresh_copy(maker, seed) for seed in seeds] for _ in range(2))
    if any(_difference(one, two, "") for one, two in zip(on_fresh_copies, again, strict=True)):
        return Finding(name, True, "not looked at: equal seeds give unequal starts already")
    half = len(play(used, other, random_player(used, other))) // 2
    for seed, fresh in zip(seeds, on_fresh_copies, strict=True):
        for what, choose, steps in (
            ("a whole random episode", random_player(used, other, seed), BOUND),
            ("half an episode", random_player(used, other), half),
            ("an episode of the oracle", _follow_oracle(used, other), BOUND),
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


def _picture(games: list[Episode]) -> Finding:
    """Whatever changes the facts must change the picture: so one picture never goes with two truths."""
    name = "picture"
    truths: dict[Hashable, tuple[str, dict[str, str]]] = {}
    for where, moment in _moments(games):
        first, facts = truths.setdefault(moment.sight, (where, moment.facts))
        for fact, value in moment.facts.items():
            if facts.get(fact) != value:
                seen = f"'{facts.get(fact)}' ({first}) and '{value}' ({where})"
                return Finding(name, False, f"looks the same for two states: {fact} is {seen}")
    what = "pictures" if games[0][0].pictures else "texts"
    if len(truths) == 1:
        return Finding(name, False, f"never changes, in {sum(map(len, games))} states")
    return Finding(name, True, f"{len(truths)} different {what}, none of them with two meanings")


def _facts_in_words(env: AnyEnv, games: list[Episode]) -> Finding:
    """A fact leaks if its value stands in the text at all times, and which of its values stand there decides it. A text
    that always lists them all gives nothing away."""
    name = "facts in words"
    if not games[0][0].pictures:
        return Finding(name, True, "there are no pictures: everything is meant to be in words")
    for when, moments in (("at the start", [game[0] for game in games]), ("later", [m for g in games for m in g[1:]])):
        for fact in env.get_wrapper_attr("asked"):
            told = [(moment.text, moment.facts.get(fact, "")) for moment in moments]
            values = sorted({value for _, value in told})
            if len(values) < 2 or not all(_mentions(text, value) for text, value in told):
                continue
            if _determines((tuple(_mentions(text, known) for known in values), value) for text, value in told):
                return Finding(name, False, f"the text says {fact} {when}, for example '{told[0][1]}': no need to look")
    return Finding(name, True, "what should be seen is not told")


def _answer_in_words(names: tuple[str, ...], at_random: list[Episode], by_oracle: list[Episode]) -> Finding:
    """The oracle's action must not follow from the text, nor from which actions the text mentions and how often.

    Texts count that were shown in episodes of different seeds: one that stands for itself can predict anything.
    """
    name = "answer in words"
    if not by_oracle:
        return Finding(name, True, "not looked at: there is no oracle")
    if not by_oracle[0][0].pictures:
        return Finding(name, True, "there are no pictures: everything is meant to be in words")
    moments = [
        (number, moment)
        for games in (at_random, by_oracle)
        for number, game in enumerate(games)
        for moment in game
        if moment.best is not None
    ]
    mentions = {moment.text: tuple(_mentions(moment.text, action) for action in names) for _, moment in moments}
    readings: tuple[tuple[str, Callable[[str], Hashable]], ...] = (
        ("the text", lambda text: text),
        ("which actions the text mentions", mentions.__getitem__),
    )
    for what, read in readings:
        shown_in: dict[Hashable, set[int]] = defaultdict(set)
        for number, moment in moments:
            shown_in[read(moment.text)].add(number)
        shared = [(read(m.text), m.best) for _, m in moments if len(shown_in[read(m.text)]) > 1]
        if len({best for _, best in shared}) > 1 and _determines(shared):
            return Finding(name, False, f"{what} alone says what to do, in all {len(shared)} states that were compared")
    return Finding(name, True, "the best action does not follow from the text")


def _mentions(text: str, words: str) -> int:
    return len(re.findall(rf"(?<!\w){re.escape(words)}(?!\w)", text)) if words else 0


def _determines(pairs: Iterable[tuple[Hashable, Hashable]]) -> bool:
    """Whether nothing goes with two different things."""
    known: dict[Hashable, Hashable] = {}
    return all(known.setdefault(key, value) == value for key, value in pairs)


def _legal_actions(names: tuple[str, ...], games: list[Episode]) -> Finding:
    name = "legal actions"
    counts: Counter[int] = Counter()
    for where, moment in _moments(games):
        unknown = [action for action in moment.legal if action not in names]
        if unknown:
            return Finding(name, False, f"{where}: '{unknown[0]}' is legal but no action")
        if moment.over:
            continue
        if not moment.legal:
            return Finding(name, False, f"{where}: nothing is legal, but the game goes on")
        if moment.best is not None and moment.best not in moment.legal:
            return Finding(name, False, f"{where}: the oracle says '{moment.best}', which is not legal")
        counts[len(moment.legal)] += 1
    few, many = min(counts), max(counts)
    return Finding(name, True, f"{few if few == many else f'{few} to {many}'} of {len(names)} at a time")


def _ends(games: list[Episode]) -> Finding:
    endless = sum(not game[-1].over for game in games)
    longest = max(len(game) - 1 for game in games)
    if endless:
        return Finding("ends", False, f"{endless} of {len(games)} episodes had not ended after {BOUND} steps")
    return Finding("ends", True, f"after {longest} steps at the latest")


def _won(name: str, games: list[Episode], must_win: bool) -> Finding:
    won = sum(bool(game[-1].info.get("success")) for game in games)
    mean = float(np.mean([sum(moment.reward for moment in game) for game in games]))
    detail = f"won {won} of {len(games)}, mean return {mean:.2f}"
    return Finding(name, won > 0 or not must_win, detail, won, len(games))


def _replies(names: tuple[str, ...], round_trip: RoundTrip) -> Finding:
    for name in names:
        read = round_trip(name, names)
        if read != name:
            was = "nothing" if read is None else f"'{read}'"
            return Finding("replies", False, f"from a reply with the action '{name}', {was} is read")
    return Finding("replies", True, "every action that is written is read again")


def _moments(games: list[Episode]) -> Iterator[tuple[str, Moment]]:
    """All states, each with where it was met."""
    for number, game in enumerate(games):
        for step, moment in enumerate(game):
            yield f"episode {number}, step {step}", moment
