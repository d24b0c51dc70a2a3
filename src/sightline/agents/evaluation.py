"""How well an agent plays a panel, and whether it looks: the same episodes with the pictures, without them, and with
pictures of other states.

An agent that has learned to win by the words alone is as good without pictures. So every result stands beside two with
broken sight, beside play at random and beside the game's own best play, all on the same panel. Blind tests of this kind
are usual for models that answer questions about pictures (Goyal et al., "Making the V in VQA Matter", CVPR 2017).
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import gymnasium
import numpy as np

from sightline.agents.algorithms.returns import is_whole
from sightline.agents.rollouts import CHANCE_OF_MOVES, EpisodeTask, PictureFilter, RolloutWorker
from sightline.agents.samplers import Sampler
from sightline.agents.types import Trajectory
from sightline.envs.games.contract import Observation
from sightline.envs.games.wrapping import has_oracle, oracle
from sightline.evaluation.seeds import EvalSeeds
from sightline.evaluation.statistics import bootstrap_mean, wilson
from sightline.images import Picture

Looking = Literal["real", "blank", "shuffled"]
"""What is shown: the picture; one grey for all of it; the picture of another state."""
LOOKS: tuple[Looking, ...] = get_args(Looking)
MID_GREY = 128
POOL = 512
"""Different pictures of other states, at most: enough that they say nothing, few enough to be kept."""
STATES_OF_EPISODE = 64
"""Of an episode that is played for such pictures, at most, so that they come from several episodes."""

Choose = Callable[[gymnasium.Env[Any, Any], Mapping[str, Any], np.random.Generator], str]
"""A game, the info of its state, and chance -> the name of an action."""


def play(
    table: RolloutWorker,
    sampler: Sampler,
    panel: EvalSeeds,
    look: Looking = "real",
    after_turns: Callable[[int], None] | None = None,
) -> list[Trajectory]:
    """Play every seed of a panel once; what is played depends on nothing but sampler, panel and look.

    Args:
        look: what the sampler is shown; the game, and what counts as true, is always that of the real picture.
        after_turns: called with the number of turns that were just played.

    Returns:
        Trajectories in the panel's order.
    """
    tasks = [EpisodeTask(seed) for seed in panel.seeds]
    return table.play(sampler, tasks, look=look_of(table, panel, look), after_turns=after_turns)


def look_of(table: RolloutWorker, panel: EvalSeeds, look: Looking) -> PictureFilter | None:
    """What is shown instead of pictures; None for the pictures themselves."""
    if look == "real":
        return None
    return blank if look == "blank" else Shuffled(gathered_pictures(table, panel))


def blank(picture: Picture, task: EpisodeTask, turn: int) -> Picture:
    """A grey picture of the same size."""
    return Picture(np.full_like(picture.pixels, MID_GREY))


@dataclass(frozen=True)
class Shuffled:
    """Shows the picture of another state, chosen by the task's seed and the turn alone.

    It never shows what should be seen: where the pool has no other picture of that size, a grey one is shown.

    Attributes:
        pool: different pictures, in an order of their own.
    """

    pool: tuple[Picture, ...]

    def __call__(self, picture: Picture, task: EpisodeTask, turn: int) -> Picture:
        shape, digest = picture.pixels.shape, picture.digest
        others = [one for one in self.pool if one.pixels.shape == shape and one.digest != digest]
        if not others:
            return blank(picture, task, turn)
        chance = hashlib.sha256(f"{task.seed} {task.member} {turn}".encode()).digest()
        return others[int.from_bytes(chance[:8], "big") % len(others)]


def gathered_pictures(table: RolloutWorker, panel: EvalSeeds) -> tuple[Picture, ...]:
    """Different pictures of a game, from episodes with the panel's seeds that are played at random.

    They are the same whatever the order of the seeds; the table must not be playing.
    """
    found: dict[str, Picture] = {}

    def keep(observation: Observation, steps: int) -> bool:
        for image in observation.images:
            picture = Picture(image)
            found.setdefault(picture.digest, picture)
        return len(found) < POOL and steps < STATES_OF_EPISODE

    for seed in sorted(set(panel.seeds)):
        if len(found) >= POOL:
            break
        _walk(table, seed, _at_random, keep)
    return tuple(found[digest] for digest in sorted(found))


# -- numbers -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Outcome:
    """What counts of an episode.

    Attributes:
        clean: won without any mistake.
        truths: (facts stated as they are, facts that could be seen) of each turn with facts; None if nobody was asked.
        illegal, unparsable: turns.
    """

    success: bool
    clean: bool
    total: float
    turns: int
    kind: str
    truths: tuple[tuple[int, int], ...] | None = None
    illegal: int = 0
    unparsable: int | None = None


def summary(trajectories: Sequence[Trajectory], panel: EvalSeeds) -> dict[str, Any]:
    """Plain numbers of a panel, with 95 % intervals.

    Returns:
        `success_rate` with `ci_low` and `ci_high` (Wilson); `return` with `return_ci_low` and `return_ci_high`
        (bootstrap); `episodes`, those that the rates are of, and `errors`, those that broke and are left out; `panel`;
        `turns`, the mean of an episode; of all facts `truthful`, the share that was stated as it is; of turns
        `truthful_replies` (all facts true), `illegal` and `unparsable`; of episodes `clean`: won, every reply of it
        naming a legal action, and without a number that the game rejected. `kinds` has the episodes, `success_rate`
        and `clean` of each of the game's kinds, `kinds_mean` is the mean over kinds of `clean`; None if it has none.
        `score`, from 0 to 1, is what checkpoints are chosen by: `kinds_mean` (else `clean`) times `truthful_replies`
        (else 1). What cannot be measured is None; the score is then 0.
    """
    whole = [_outcome(trajectory) for trajectory in trajectories if is_whole(trajectory)]
    return _summary(whole, len(trajectories) - len(whole), panel)


def _outcome(trajectory: Trajectory) -> _Outcome:
    turns = trajectory.turns
    faultless = trajectory.mistakes == 0 and all(turn.legal for turn in turns)
    return _Outcome(
        success=trajectory.success,
        clean=trajectory.success and faultless,
        total=float(trajectory.rewards.sum()),
        turns=len(turns),
        kind=trajectory.kind,
        truths=tuple(turn.truths for turn in turns if turn.facts),
        illegal=sum(turn.reply.action is not None and not turn.legal for turn in turns),
        unparsable=sum(turn.reply.failure is not None for turn in turns),
    )


def _summary(outcomes: Sequence[_Outcome], errors: int, panel: EvalSeeds) -> dict[str, Any]:
    turns = sum(outcome.turns for outcome in outcomes)
    truths = [truth for outcome in outcomes for truth in outcome.truths or ()]
    unparsable = [outcome.unparsable for outcome in outcomes if outcome.unparsable is not None]
    kinds = _kinds(outcomes)
    clean = _mean([outcome.clean for outcome in outcomes])
    kinds_mean = _mean([kind["clean"] for kind in kinds.values()]) if kinds else None
    truthful_replies = _mean([true == of for true, of in truths])
    skill = clean if kinds_mean is None else kinds_mean
    return {
        **_success_and_return(outcomes),
        "episodes": len(outcomes),
        "errors": errors,
        "panel": str(panel),
        "turns": _mean([outcome.turns for outcome in outcomes]),
        "truthful": _share(sum(true for true, _ in truths), sum(of for _, of in truths)),
        "truthful_replies": truthful_replies,
        "illegal": _share(sum(outcome.illegal for outcome in outcomes), turns),
        "unparsable": _share(sum(unparsable), turns) if unparsable else None,
        "clean": clean,
        "kinds": kinds,
        "kinds_mean": kinds_mean,
        "score": (skill or 0.0) * (1.0 if truthful_replies is None else truthful_replies),
    }


def _success_and_return(outcomes: Sequence[_Outcome]) -> dict[str, float | None]:
    if not outcomes:
        return dict.fromkeys(("success_rate", "ci_low", "ci_high", "return", "return_ci_low", "return_ci_high"))
    low, high = wilson(sum(outcome.success for outcome in outcomes), len(outcomes))
    totals = np.array([outcome.total for outcome in outcomes])
    return_low, return_high = bootstrap_mean(totals)
    return {
        "success_rate": _mean([outcome.success for outcome in outcomes]),
        "ci_low": low,
        "ci_high": high,
        "return": float(totals.mean()),
        "return_ci_low": return_low,
        "return_ci_high": return_high,
    }


def _kinds(outcomes: Sequence[_Outcome]) -> dict[str, dict[str, Any]] | None:
    """None if the game does not tell kinds apart."""
    groups: dict[str, list[_Outcome]] = defaultdict(list)
    for outcome in outcomes:
        groups[outcome.kind].append(outcome)
    if not any(groups):
        return None
    return {
        kind: {
            "episodes": len(groups[kind]),
            "success_rate": _mean([outcome.success for outcome in groups[kind]]),
            "clean": _mean([outcome.clean for outcome in groups[kind]]),
        }
        for kind in sorted(groups)
    }


def describe_agent(numbers: Mapping[str, Any]) -> str:
    """A summary in one line."""
    if numbers["success_rate"] is None:
        return f"all {numbers['errors']} episodes broke"
    low, high = 100 * numbers["ci_low"], 100 * numbers["ci_high"]
    parts = [f"success {_percent(numbers['success_rate'])} [{low:.0f}, {high:.0f}]"]
    if numbers["clean"] != numbers["success_rate"]:
        parts.append(f"without mistakes {_percent(numbers['clean'])}")
    if numbers["truthful_replies"] is not None:
        parts.append(f"true replies {_percent(numbers['truthful_replies'])}")
    parts.append(f"return {numbers['return']:.2f} [{numbers['return_ci_low']:.2f}, {numbers['return_ci_high']:.2f}]")
    parts += [f"{name} {_percent(numbers[name])}" for name in ("illegal", "unparsable") if numbers[name]]
    if numbers["errors"]:
        parts.append(f"{numbers['errors']} episodes broke")
    return ", ".join(parts)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if len(values) else None


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


# -- what a result is compared with ------------------------------------------------------------------------------------


def random_play(table: RolloutWorker, panel: EvalSeeds) -> dict[str, Any]:
    """A summary of playing evenly among the legal actions. Nobody is asked, so nothing is true or unparsable."""
    return _played_by(table, panel, _at_random)


def oracle_play(table: RolloutWorker, panel: EvalSeeds) -> dict[str, Any] | None:
    """A summary of the game's own best play, with random legal actions where it has no advice; None if the game does
    not know how to play."""
    return _played_by(table, panel, _best) if has_oracle(table.game(0)) else None


def _played_by(table: RolloutWorker, panel: EvalSeeds, choose: Choose) -> dict[str, Any]:
    outcomes = [_walk(table, seed, choose) for seed in panel.seeds]
    whole = [outcome for outcome in outcomes if outcome is not None]
    return _summary(whole, len(outcomes) - len(whole), panel)


def _walk(
    table: RolloutWorker,
    seed: int,
    choose: Choose,
    go_on: Callable[[Observation, int], bool] = lambda observation, steps: True,
) -> _Outcome | None:
    """Play an episode without anybody being asked.

    Args:
        go_on: shown every state and the number of steps before it; False leaves the episode.

    Returns:
        None if the environment broke down.
    """
    game = table.game(0)
    names: tuple[str, ...] = game.get_wrapper_attr("action_names")
    total, steps, illegal, over = 0.0, 0, 0, False
    try:
        observation, info = game.reset(seed=seed)
        kind = str(info.get("kind", ""))
        while go_on(observation, steps) and not over:
            legal = info.get("legal_actions", names)
            action = choose(game, info, np.random.default_rng((CHANCE_OF_MOVES, seed, steps)))
            illegal += action not in legal
            observation, reward, terminated, truncated, info = game.step(np.int64(names.index(action)))
            total, steps, over = total + float(reward), steps + 1, bool(terminated or truncated)
    except Exception:
        table.replace(0)
        return None
    success = bool(info.get("success", False))
    clean = success and not illegal and not info.get("mistakes", 0)
    return _Outcome(success, clean, total, steps, kind, illegal=illegal)


def _at_random(game: gymnasium.Env[Any, Any], info: Mapping[str, Any], chance: np.random.Generator) -> str:
    names: tuple[str, ...] = game.get_wrapper_attr("action_names")
    legal = tuple(info.get("legal_actions", names)) or names
    return legal[int(chance.integers(len(legal)))]


def _best(game: gymnasium.Env[Any, Any], info: Mapping[str, Any], chance: np.random.Generator) -> str:
    return oracle(game) or _at_random(game, info, chance)


# -- all of it ---------------------------------------------------------------------------------------------------------


def evaluate_policy(
    table: RolloutWorker,
    sampler: Sampler,
    panel: EvalSeeds,
    keep: Callable[[Looking, list[Trajectory]], None] = lambda look, played: None,
) -> dict[str, Any]:
    """All that is measured of a model: its summary, and under `blank`, `shuffled`, `random` and `oracle` those to
    compare it with (`oracle` is None if the game does not know how to play).

    Args:
        keep: is given what was played with each look.
    """
    numbers: dict[str, Any] = {}
    for look in LOOKS:
        played = play(table, sampler, panel, look)
        keep(look, played)
        found = summary(played, panel)
        numbers |= found if look == "real" else {look: found}
    numbers["random"] = random_play(table, panel)
    numbers["oracle"] = oracle_play(table, panel)
    return numbers
