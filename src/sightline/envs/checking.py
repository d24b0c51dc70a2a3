"""Checks of an environment before a policy on states learns in it (`sightline check-env`), made by random play.

They look for what makes a run worthless: pictures that show nothing, episodes that the seed does not determine, and
success or rewards that say nothing. Facts that cannot be defects, such as the time of a step, are listed as well.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from sightline.envs.frames import rgb_frame
from sightline.envs.games.checking import Finding, limit_in_words
from sightline.envs.making import EnvMaker
from sightline.envs.probing import ROUNDING, random_actions
from sightline.envs.spaces import is_picture
from sightline.envs.stepping import CheckedEnv, close_env, reward_advice, scalar_reward
from sightline.envs.watching import PictureWatch, equal
from sightline.errors import BadInput, RunFailed, line_of, reason_and_place

RECORDED = 64
"""Steps that are played twice, with a picture of each."""
PATIENCE = 20.0
"""Seconds of random play, after which no further episode is begun, and none of many steps goes on."""
UNLEARNABLE = "cannot be learned from"
"""What the finding of an own reward says that is no number."""
SEEDS = 5
"""Seeds whose episodes are compared."""


@dataclass(frozen=True)
class Moment:
    """What one step of random play led to.

    Attributes:
        observed: the observation, as learners read it.
        picture: digest of the picture; None if none was drawn.
        own_reward: the environment's own reward; None if it is no number.
        over: whether the episode ended.
        success: as the environment states it; None if it does not.
    """

    observed: Any
    picture: bytes | None = None
    own_reward: float | None = 0.0
    over: bool = False
    success: bool | None = None


class _Recorder(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Wrapper that records what an environment states beside its observations.

    Attributes:
        reward: the own reward of the last step, as it is.
        truths: keys of all infos that are truth values.
    """

    reward: Any = 0.0
    truths: frozenset[str] = frozenset()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observed, info = self.env.reset(seed=seed, options=options)
        self._note_truths(info)
        return observed, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observed, self.reward, terminated, truncated, info = self.env.step(action)
        self._note_truths(info)
        return observed, self.reward, terminated, truncated, info

    def _note_truths(self, info: dict[str, Any]) -> None:
        self.truths |= {str(key) for key, value in info.items() if isinstance(value, bool | np.bool_)}


class Player:
    """An environment that is played at random, with the errors of training in lines.

    Args:
        maker: of the environment.
        frames: whether it draws.

    Attributes:
        env: what is played.
        size: height and width of the newest picture.
        watch: of the pictures that were recorded.
        changes: (mean difference, share of pixels that differ) from each of them to the next of its episode.
        step_seconds, frame_seconds: of each step and picture.
    """

    def __init__(self, maker: EnvMaker, frames: bool) -> None:
        self.env = _Recorder(maker())
        self._stepped = CheckedEnv(self.env, frames, f"'{maker.env_id}'", needs_reward=False)
        self.frames = frames
        self.watch = PictureWatch()
        self.size: tuple[int, ...] = (0, 0)
        self.step_seconds: list[float] = []
        self.frame_seconds: list[float] = []
        self.changes: list[tuple[float, float]] = []

    def begin(self, seed: int) -> Moment:
        """Begin an episode."""
        return Moment(self._stepped.reset(seed))

    def step(self, action: Any) -> Moment:
        """Make one step."""
        began = time.perf_counter()
        step = self._stepped.step(action, draws=False)
        self.step_seconds.append(time.perf_counter() - began)
        over = step.terminated or step.truncated
        return Moment(step.state, None, scalar_reward(self.env.reward), over, step.flags.get("success"))

    def draw(self) -> np.ndarray:
        """uint8[H, W, 3], the picture of the present state."""
        began = time.perf_counter()
        picture = self._stepped.frame()
        assert picture is not None, "it is written into no array"
        self.size = picture.shape[:2]
        self.frame_seconds.append(time.perf_counter() - began)
        return picture

    def recorded(self, seed: int, steps: int) -> list[Moment]:
        """Play as many steps, with pictures; episodes have the seeds from `seed` on."""
        actions = random_actions(self.env, seed)
        moments = [self.begin(seed)]
        begins = True
        last: np.ndarray | None = None
        for _ in range(steps):
            moment = self.step(next(actions))
            if self.frames:
                # Drawn apart from the step, so that each is timed alone.
                picture = self.draw()
                self.watch.see(picture[None], moment.observed, [begins])
                # From one episode to the next a picture changes anyway.
                if last is not None and not begins:
                    self.changes.append(_change(last, picture))
                last = picture
                digest = hashlib.blake2b(picture.tobytes(), digest_size=16).digest()
                moment = replace(moment, picture=digest)
            moments.append(moment)
            begins = moment.over
            if moment.over:
                seed += 1
                moments.append(self.begin(seed))
        return moments

    def episode(self, seed: int, until: float = np.inf, most_steps: int | None = None) -> list[Moment]:
        """Play one episode without pictures, to its end, a number of steps, or a moment of `time.monotonic`."""
        actions = random_actions(self.env, seed)
        moments = [self.begin(seed)]
        while not moments[-1].over and time.monotonic() < until and len(moments) - 1 != most_steps:
            moments.append(self.step(next(actions)))
        return moments

    def close(self) -> str | None:
        """Close the environment; the error of that in a line, if there is one."""
        try:
            self.env.close()
        except (Exception, SystemExit) as error:
            return reason_and_place(error)
        return None


def check_control(maker: EnvMaker, episodes: int = 20, seed: int = 0, in_processes: bool = False) -> list[Finding]:
    """Check an environment for a policy on states by playing it.

    Args:
        maker: factory of the environment, with pictures.
        episodes: number of episodes of random play, or fewer if they take long; at least 2.
        seed: seed of the first episode; each next one has the next number.
        in_processes: whether training will step each environment in a process of its own.

    Returns:
        Findings in the order of the checks. If the environment raises an exception, its finding ends the checks.

    Raises:
        BadInput, RunFailed: it cannot be made, with pictures or without.
    """
    if episodes < 2:
        raise BadInput(f"episodes={episodes} is too few to compare any; use at least 2 (the default is 20)")
    maker, findings = _that_can_be_made(maker)
    try:
        findings += _checks_of_play(maker, episodes, seed, in_processes)
    except (Exception, SystemExit) as error:
        findings.append(Finding("no exception", False, " ".join(line_of(error).split())[:300]))
    return findings


def _that_can_be_made(maker: EnvMaker) -> tuple[EnvMaker, list[Finding]]:
    """The factory, without pictures if only these fail, and the findings of that."""
    try:
        _spaces_of(maker)
        findings: list[Finding] = []
    except (BadInput, RunFailed) as error:
        # Training without pictures may still work, and is checked.
        maker = replace(maker, render=False)
        try:
            _spaces_of(maker)
        except (BadInput, RunFailed):
            raise error from None
        findings = [Finding("pictures", False, str(error))]
    return maker, [*_tell_spaces(maker), *findings]


def _spaces_of(maker: EnvMaker) -> tuple[spaces.Space[Any], spaces.Space[Any], spaces.Space[Any]]:
    """What an environment observes, what a policy reads of that, and what it does; it is made, reset and drawn once."""
    env = maker()
    # Resets as in training, with errors in a line.
    stepped = CheckedEnv(env, False, f"'{maker.env_id}'", needs_reward=False)
    try:
        stepped.reset(0)
        if maker.render:
            rgb_frame(env)
        return env.unwrapped.observation_space, env.observation_space, env.action_space
    finally:
        close_env(env)


def _tell_spaces(maker: EnvMaker) -> Iterator[Finding]:
    observed, read, acted = _spaces_of(maker)
    reads = described(read)
    if is_picture(read):
        reads = f"pictures, {reads}"
    yield Finding("observations", True, f"{described(observed)}; a policy reads {reads}")
    actions = described(acted)
    if isinstance(acted, spaces.Discrete):
        actions += "; to check it for an agent, name them: prompt=… actions=[…]"
    yield Finding("actions", True, actions)


def described(space: spaces.Space[Any]) -> str:
    """A space in a few words, such as `float32[4]` or `2 choices`."""
    if isinstance(space, spaces.Box):
        low = float(np.min(space.low))
        high = float(np.max(space.high))
        return f"{space.dtype}{list(space.shape)} from {low:.4g} to {high:.4g}"
    if isinstance(space, spaces.Discrete):
        return f"{int(space.n)} choices"
    if isinstance(space, spaces.Dict):
        return "a dictionary of " + ", ".join(f"{name}: {described(part)}" for name, part in space.items())
    if isinstance(space, spaces.Tuple):
        return "a tuple of " + ", ".join(map(described, space.spaces))
    if isinstance(space, spaces.Text):
        return "text"
    if type(space).__module__.startswith("gymnasium."):
        return str(space)[:80]
    return type(space).__name__


def _checks_of_play(maker: EnvMaker, episodes: int, seed: int, in_processes: bool) -> Iterator[Finding]:
    records = []
    players = []
    for _ in range(2):  # one after the other: some simulators allow one environment in a process
        player = Player(maker, maker.render)
        try:
            records.append(player.recorded(seed, RECORDED))
        finally:
            closing = player.close()
        players.append(player)
    player = Player(maker, maker.render)
    try:
        yield _check_equal_seeds(records, player, seed)
        yield _check_other_seeds(player, seed)
        if maker.render:
            yield _check_pictures(players[0])
        # Slow simulators are judged by fewer episodes.
        until = time.monotonic() + PATIENCE
        games = [player.episode(seed, until)]
        while len(games) < episodes and time.monotonic() < until:
            games.append(player.episode(seed + len(games), until))
        yield _check_success(player, games)
        yield _check_own_reward(player, games)
        yield _check_ends(player, games)
        yield _tell_time([*players, player])
        yield _check_copies(maker, player, in_processes)
    finally:
        closing = player.close() or closing
    # Last, since it is known only once all players are closed.
    yield Finding("closes", closing is None, closing or "without an error")


def _check_equal_seeds(records: Sequence[list[Moment]], player: Player, seed: int) -> Finding:
    name = "equal seeds"
    advice = "draw all chance from self.np_random, after super().reset(seed=seed)"
    for step, (first, second) in enumerate(zip(*records, strict=False)):
        parts = (
            ("observation", equal(first.observed, second.observed, ROUNDING)),
            ("own reward", equal(first.own_reward, second.own_reward, ROUNDING)),
            ("end", first.over == second.over),
            ("picture", first.picture == second.picture),
        )
        for part, is_same in parts:
            if not is_same:
                where = f"seed {seed}, step {step}: the {part} differs between two copies"
                return Finding(name, False, f"{where}; {advice}")
    # Chance that a constructor seeds is the same in all copies, and goes on from reset to reset.
    start = player.begin(seed).observed
    if not equal(start, player.begin(seed).observed, ROUNDING):
        return Finding(name, False, f"two resets with seed {seed} give other observations; {advice}")
    return Finding(name, True, f"{RECORDED} steps played twice, alike")


def _check_other_seeds(player: Player, seed: int) -> Finding:
    # The first states are looked at first: most environments differ there already.
    starts = [player.begin(seed + number).observed for number in range(SEEDS)]
    if not all(equal(starts[0], start) for start in starts):
        return Finding("other seeds", True, "give other starts")
    # The same actions for all of them: any difference is due to the seed.
    draws = random_actions(player.env, seed)
    actions = [next(draws) for _ in range(RECORDED)]
    outcomes = [list(_observations_of(player, seed + number, actions)) for number in range(SEEDS)]
    if not all(equal(outcomes[0], outcome) for outcome in outcomes):
        return Finding("other seeds", True, "give the same start, and other episodes")
    return Finding(
        "other seeds", True, "give the same episode, so that a panel of many seeds is one episode, played many times"
    )


def _observations_of(player: Player, seed: int, actions: Sequence[Any]) -> Iterator[Any]:
    """What is observed in an episode of a seed in which these actions are taken."""
    player.begin(seed)
    for action in actions:
        moment = player.step(action)
        yield moment.observed
        if moment.over:
            return


def _change(before: np.ndarray, after: np.ndarray) -> tuple[float, float]:
    """How much a picture changes: mean absolute difference of its numbers, and share of its pixels that differ."""
    difference = np.abs(after.astype(np.int16) - before)
    return float(difference.mean()), float(difference.any(axis=2).mean())


def _check_pictures(player: Player) -> Finding:
    height, width = player.size
    trouble = player.watch.trouble_with(f"all pictures of {RECORDED} random steps")
    if trouble is not None:
        return Finding("pictures", False, trouble)
    amount, share = np.mean(player.changes or [(0.0, 0.0)], axis=0)
    return Finding(
        "pictures",
        True,
        f"{height}x{width}; a random step changes {100 * share:.3g} % of the pixels, by {amount:.3g} of 255 on average "
        "over the picture",
    )


def _check_success(player: Player, games: Sequence[list[Moment]]) -> Finding:
    stating = [moments for moments in games if any(moment.success is not None for moment in moments)]
    if stating:
        won = sum(any(moment.success for moment in moments) for moments in stating)
        return Finding("success", True, f"is stated; random play had it in {won} of {len(games)}", won, len(games))
    keys = ", ".join(sorted(player.env.truths))
    info = ""
    if keys:
        info = f", success_from=KEY if one of its infos does ({keys:.80})"
    return Finding(
        "success",
        True,
        f"is not stated, so that runs report returns alone; say success_from=reward if a positive reward is one{info}",
    )


def _check_own_reward(player: Player, games: Sequence[list[Moment]]) -> Finding:
    name = "own reward"
    rewards: list[float | None] = []
    returns = []
    for moments in games:
        of_episode = [moment.own_reward for moment in moments[1:]]
        rewards += of_episode
        returns.append(sum(filter(None, of_episode)))
    if None in rewards:
        return Finding(
            name,
            True,
            f"is no number but {player.env.reward!r:.40}: it is ignored where words pay, and {UNLEARNABLE} "
            f"(reward.kind=ground_truth){reward_advice(player.env.reward)}",
        )
    if not any(rewards):
        return Finding(
            name,
            True,
            f"was 0 at every step of {len(games)} random episodes; if it always is, pay with a sentence (goal=…) or "
            "with success (reward.kind=success), not with reward.kind=ground_truth",
        )
    plural = "s" if len(games) > 1 else ""
    return Finding(
        name,
        True,
        f"returns from {min(returns):.4g} to {max(returns):.4g}, mean {np.mean(returns):.4g} (random play, "
        f"{len(games)} episode{plural})",
    )


def _check_ends(player: Player, games: Sequence[list[Moment]]) -> Finding:
    longest = max(len(moments) - 1 for moments in games)
    if not all(moments[-1].over for moments in games):
        return Finding("ends", True, f"an episode had not ended after {longest} steps, when time was up")
    return Finding("ends", True, limit_in_words(player.env, longest))


def _tell_time(players: Sequence[Player]) -> Finding:
    steps: list[float] = []
    frames: list[float] = []
    for player in players:
        steps += player.step_seconds
        frames += player.frame_seconds
    times = f"a step takes {1000 * np.median(steps):.3g} ms"
    if frames:
        times += f", a picture {1000 * np.median(frames):.3g} ms"
    return Finding("time", True, times)


def _check_copies(maker: EnvMaker, player: Player, in_processes: bool) -> Finding:
    """Check that a second environment in this process works, and that the first one outlives it."""
    try:
        player.begin(0)
        other = Player(maker, maker.render)
        try:
            other.episode(0, most_steps=2)
        finally:
            other.close()
        # In the middle of its episode, as environments of training are while others are evaluated.
        player.step(next(random_actions(player.env, 0)))
        if maker.render:
            player.draw()
    except (Exception, SystemExit) as error:
        reason = " ".join(line_of(error).split()).removesuffix("; fix its render()")
        return Finding(
            "copies", in_processes, f"one at a time in a process ({reason:.150}); train with workers=processes"
        )
    return Finding("copies", True, "two in one process do not disturb each other")
