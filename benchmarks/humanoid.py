"""What needs no learning on the humanoid: doing nothing, and the best constant action that a search finds.

    PYTHONPATH=tools python benchmarks/humanoid.py constants [--poses kneeling splits] [--controls torque position]

For each pose and kind of control: the share of 100 fresh episodes in the true physics in which the pose is held at the
end, after 1.5 s and after 5 s. The search is the cross-entropy method over the 17 numbers of an action: 64 candidates a
generation, one humanoid each, in the fast physics; it begins once with no torque, or straight joints, and once, for
target angles, with those of the pose's own example. The best of each search are compared on 32 starts of the true
physics, and the winner is tested on others. The torso's pose is not commanded, so a constant can still fall over.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np

from pretraining.encoder.humanoid import to_actions
from running import keep, kept, sized
from sightline.evaluation.statistics import wilson
from sightline_tasks.humanoid.body import ACTION_SECONDS, ROOT, Control, Physics, Skeleton, make_model
from sightline_tasks.humanoid.env import HumanoidVector
from sightline_tasks.humanoid.poses import POSES, place
from sightline_tasks.humanoid.simulation import HELD_SECONDS

CANDIDATES, ELITE, LEAST_STD = 64, 8, 0.05
SHORT, LONG, LAST = 50, 167, round(HELD_SECONDS / ACTION_SECONDS)
"""Control steps of 1.5 s, of 5 s, and of the time at the end in which a pose must be held."""
SEEDS = {"search": 10_000, "choice": 20_000, "test": 30_000}


def held(pose: str, control: Control, action: np.ndarray, count: int, steps: int, seed: int) -> np.ndarray:
    """bool[count], whether humanoids that repeat an action [17] hold the pose at the end, in the true physics."""
    return play(pose, control, np.tile(action, (count, 1)), steps, seed, "gymnasium")[0]


def play(
    pose: str, control: Control, actions: np.ndarray, steps: int, seed: int, physics: Physics
) -> tuple[np.ndarray, np.ndarray]:
    """Repeat an action for each of N humanoids: whether it holds the pose at the end, and its score, both [N].

    The score, by which the search chooses, is the share of the last 0.6 seconds in the pose plus the mean ground truth.
    """
    envs = HumanoidVector(len(actions), pose, physics, control, max_episode_steps=steps)
    envs.reset(seed=seed)
    scores, ever_diverged = np.zeros(len(actions)), np.zeros(len(actions), bool)
    infos: dict[str, np.ndarray] = {}
    for step in range(steps):
        _, rewards, diverged, _, infos = envs.step(actions)
        scores += rewards / steps + (step >= steps - LAST) * infos["in_pose"] / LAST
        ever_diverged |= diverged  # what is begun anew in its place counts as failed
        if diverged.any():
            envs.reset(seed=seed, options={"reset_mask": diverged})
    envs.close()
    return infos["success"] & ~ever_diverged, scores


def search(pose: str, control: Control, start: np.ndarray, generations: int, rng: np.random.Generator) -> np.ndarray:
    """The best candidates [ELITE, 17] of a cross-entropy search."""
    mean, std = start, np.full(17, 0.5)
    best: list[tuple[float, np.ndarray]] = []
    for generation in range(generations):
        candidates = np.clip(mean + std * rng.normal(size=(CANDIDATES, 17)), -1, 1)
        candidates[0] = mean
        _, scores = play(pose, control, candidates, SHORT, SEEDS["search"] + generation, "fast")
        order = np.argsort(-scores)[:ELITE]
        best += [(float(scores[i]), candidates[i]) for i in order]
        mean = 0.5 * mean + 0.5 * candidates[order].mean(axis=0)
        std = np.maximum(0.7 * std + 0.3 * candidates[order].std(axis=0), LEAST_STD)
    best.sort(key=lambda each: -each[0])
    return np.stack([mean, *(candidate for _, candidate in best[: ELITE - 1])])


def starts(pose: str, control: Control) -> Iterator[np.ndarray]:
    """Actions that a search begins with."""
    yield np.zeros(17)
    if control == "position":
        model = make_model("gymnasium", control)
        angles = place(Skeleton(model), POSES[pose].angles)[ROOT:][model.actuator_trnid[:, 0] - 1]
        yield to_actions(model, angles)


def best_constant(pose: str, control: Control, generations: int) -> np.ndarray:
    """The constant action [17] that holds the pose in most of 32 starts of the true physics."""
    rng = np.random.default_rng(0)
    found = np.concatenate([search(pose, control, start, generations, rng) for start in starts(pose, control)])
    shares = [held(pose, control, action, 32, SHORT, SEEDS["choice"]).mean() for action in found]
    return np.asarray(found[int(np.argmax(shares))])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["constants"])
    parser.add_argument("--poses", nargs="+", choices=list(POSES), default=list(POSES)[: sized(None, 1)])
    parser.add_argument("--controls", nargs="+", choices=["torque", "position"], default=["torque", "position"])
    parser.add_argument("--generations", type=int, default=sized(40, 1))
    parser.add_argument("--episodes", type=int, default=sized(100, 2))
    arguments = parser.parse_args()
    rows: dict[str, dict[str, dict[str, float]]] = {}
    print("| pose | control | nothing, 1.5 s | nothing, 5 s | best constant, 1.5 s | best constant, 5 s |")
    print("|---|---|---|---|---|---|")
    for pose in arguments.poses:
        for control in arguments.controls:
            constant = best_constant(pose, control, arguments.generations)
            cells, row = [], rows.setdefault(f"{pose}, {control}", {})
            for name, action in (("nothing", np.zeros(17)), ("constant", constant)):
                for steps in (SHORT, LONG):
                    each = held(pose, control, action, arguments.episodes, steps, SEEDS["test"])
                    low, high = wilson(int(each.sum()), len(each))
                    row[f"{name}, {steps} steps"] = {"held": float(each.mean()), "ci_low": low, "ci_high": high}
                    cells.append(f"{each.mean():.0%} [{low:.0%}, {high:.0%}]")
            print(f"| {pose} | {control} | {' | '.join(cells)} |", flush=True)
            known = kept("humanoid.json", "constants")
            keep("humanoid.json", "constants", known | rows | {"episodes": arguments.episodes})


if __name__ == "__main__":
    main()
