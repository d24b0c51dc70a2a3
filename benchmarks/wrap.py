"""Cost of `wrap`: a vector environment with words as its reward, beside the same rendered and scored by hand.

    python benchmarks/wrap.py [--envs 16] [--steps 200] [--rounds 16]

Both step the same environments by the same actions with the same encoder, in the same process and turn by turn, and
their rewards must be equal. Results go to `benchmarks/results/wrap.json`; `ratio` is the median over rounds of the time
with `wrap` over the time by hand.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import SyncVectorEnv
from stable_baselines3.common.vec_env import DummyVecEnv

from running import keep, sized
from sightline.rewards.wrap import wrap
from sightline.rewards.zero_shot import ZeroShotReward

MAKE = functools.partial(
    gymnasium.make, "sightline.envs:sightline/CartPole-v0", render_mode="rgb_array", render_size=(64, 64)
)


def by_hand(envs: Any, model: ZeroShotReward, actions: np.ndarray) -> np.ndarray:
    rewards = []
    for row in actions:
        envs.step(row)
        frames = envs.render() if isinstance(envs, SyncVectorEnv) else envs.get_images()
        rewards.append(model(np.stack(frames)))
    return np.stack(rewards)


def by_wrap(envs: Any, model: ZeroShotReward, actions: np.ndarray) -> np.ndarray:
    return np.stack([envs.step(row)[1] for row in actions])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--envs", type=int, default=sized(16, 2))
    parser.add_argument("--steps", type=int, default=sized(200, 5), help="vector steps in a round, at most an episode")
    parser.add_argument("--rounds", type=int, default=sized(16, 1))
    given = parser.parse_args()
    torch.set_num_threads(1)  # with more, the timing is mostly that of threads that wait for each other
    model = ZeroShotReward("pole vertically upright on top of the cart", "pole and cart")
    for kind, make in {"gymnasium": SyncVectorEnv, "stable-baselines3": DummyVecEnv}.items():
        bare, wrapped = make([MAKE] * given.envs), wrap(make([MAKE] * given.envs), model)
        seconds: dict[str, list[float]] = {"by_hand": [], "wrap": []}
        for number in range(given.rounds + 1):
            # The last step of an episode is left out: by hand, SB3 would show the next one's first state.
            actions = np.random.default_rng(number).integers(0, 2, (min(given.steps, 199), given.envs))
            rewards = []
            ways = [("by_hand", bare, by_hand), ("wrap", wrapped, by_wrap)]
            for name, envs, play in ways if number % 2 else reversed(ways):  # neither is always the second
                if kind == "gymnasium":
                    envs.reset(seed=number)
                else:
                    envs.seed(number)
                    envs.reset()
                started = time.perf_counter()
                rewards.append(play(envs, model, actions))
                seconds[name].append(time.perf_counter() - started)
            assert np.array_equal(rewards[0], rewards[1])
        ratios = [one / other for one, other in zip(seconds["wrap"], seconds["by_hand"], strict=True)][1:]  # warmed up
        rate = given.envs * len(actions) / statistics.median(seconds["wrap"][1:])
        result = {"ratio": statistics.median(ratios), "ratios": ratios, "steps_per_second": rate, "envs": given.envs}
        print(f"{kind}: {result['ratio']:.3f} times the time by hand, {rate:.0f} steps/s", flush=True)
        keep("wrap.json", kind, result)


if __name__ == "__main__":
    main()
