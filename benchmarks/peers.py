"""Ways to the main job's result that a user would take instead of `sightline train cartpole`, with the same settings.

    python benchmarks/peers.py NAME --seed SEED        # one of them; `benchmarks/main_job.py peers` runs all

All have the recipe's sentence, encoder, learner, steps, validation panel and test panel; they differ in where frames
come from and when these are scored:

    sb3_loop          Stable-Baselines3 with our environment and its picture, scored in a batch after each rollout
    sb3_wrapper       the same with a wrapper that scores every step by itself
    published         the published design (vlmrm, 2024): SubprocVecEnv, Gymnasium's picture of 400x600, fetched by
                      a second round trip and scored after the rollout
    published_small   the same with our environment's picture of 64x64 pixels

Each prints a JSON line when a validation panel succeeds for the first time, and one at the end, with its result.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")

import gymnasium
import numpy as np
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv

import sightline as sl
from running import loaded
from sightline.config.learners import DQNLearner
from sightline.config.loading import for_control
from sightline.config.recipe import ControlRecipe
from sightline.control.precision import with_dtypes
from sightline.control.resolving import resolve

# -- environments ------------------------------------------------------------------------------------------------------


def small_picture() -> gymnasium.Env[Any, Any]:
    """Our CartPole, whose picture the encoder reads as it is."""
    return gymnasium.make("sightline.envs:sightline/CartPole-v0", render_mode="rgb_array", render_size=(64, 64))


class NeverEnding(gymnasium.Wrapper[Any, Any, Any, Any]):
    """CartPole that goes on after the pole has fallen, as in the published task."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        state, reward, _, truncated, info = self.env.step(action)
        unwrapped: Any = self.env.unwrapped
        unwrapped.steps_beyond_terminated = None
        return state, reward, False, truncated, info


def large_picture() -> gymnasium.Env[Any, Any]:
    """Gymnasium's CartPole with its own picture, 400x600."""
    return NeverEnding(gymnasium.make("CartPole-v1", render_mode="rgb_array", max_episode_steps=200))


class ScoreEachStep(gymnasium.Wrapper[Any, Any, Any, Any]):
    """The wrapper that one writes first: the reward of a step is that of its picture."""

    def __init__(self, env: gymnasium.Env[Any, Any], reward: sl.ZeroShotReward) -> None:
        super().__init__(env)
        self._reward = reward

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        state, _, terminated, truncated, info = self.env.step(action)
        frame = self.env.render()
        assert isinstance(frame, np.ndarray)
        return state, float(self._reward(frame[None])[0]), terminated, truncated, info


# -- learning ----------------------------------------------------------------------------------------------------------


class ScoreAfterRollout(BaseCallback):
    """Frames in a list, stacked and scored when the rollout ends; then the learner goes on."""

    def __init__(self, reward: sl.ZeroShotReward) -> None:
        super().__init__()
        self._reward = reward
        self._frames: list[np.ndarray] = []

    def _on_step(self) -> bool:
        self._frames.append(np.stack(self.training_env.env_method("render")))
        return True

    def _on_rollout_end(self) -> None:
        frames = np.stack(self._frames)
        rewards = self._reward(frames.reshape(-1, *frames.shape[2:])).reshape(frames.shape[:2])
        buffer = self.model.replay_buffer  # type: ignore[attr-defined]
        rows = (buffer.pos - len(frames) + np.arange(len(frames))) % buffer.buffer_size
        buffer.rewards[rows] = rewards
        self._frames = []


class Validate(BaseCallback):
    """Play the validation panel now and then, and keep the policy that the words' reward likes best."""

    def __init__(self, recipe: ControlRecipe, reward: sl.ZeroShotReward) -> None:
        super().__init__()
        self._recipe = recipe
        self._reward = reward
        self._next = recipe.evaluation.every or recipe.steps
        self._best_score = -np.inf
        self.best: dict[str, Any] = {}
        self._has_succeeded = False

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        if self.num_timesteps >= self._next:
            self._next += self._recipe.evaluation.every or self._recipe.steps
            self.validate()

    def validate(self) -> None:
        numbers = panel(self.model, self._recipe.evaluation.episodes or 16, self._reward, seed=1)
        if numbers["reward"] > self._best_score:
            self._best_score = numbers["reward"]
            self.best = {name: weight.clone() for name, weight in self.model.policy.state_dict().items()}
        if numbers["success_rate"] == 1 and not self._has_succeeded:
            self._has_succeeded = True
            print(json.dumps({"first_success": self.num_timesteps}), flush=True)


def panel(model: Any, episodes: int, reward: sl.ZeroShotReward, seed: int = 0) -> dict[str, Any]:
    """The test panel for seed 0; another one for others."""
    return sl.evaluate(model, "cartpole", episodes=episodes, reward=reward, seed=seed, score_every=4)


def train(name: str, recipe: ControlRecipe, seed: int) -> dict[str, Any]:
    """The result of a peer on the test panel."""
    settings: Any = recipe.reward
    reward = sl.ZeroShotReward(recipe.goal, recipe.baseline, alpha=settings.alpha, dtype=settings.dtype)
    env, scores_rollouts = PEERS[name](recipe.envs, reward)
    learner = recipe.learner
    assert isinstance(learner, DQNLearner)
    model = DQN(
        "MlpPolicy",
        env,
        learning_rate=lambda left: learner.learning_rate * left,
        buffer_size=learner.buffer_size,
        batch_size=learner.batch_size,
        gamma=learner.gamma,
        learning_starts=learner.learning_starts,
        train_freq=(learner.chunk, "step"),
        gradient_steps=learner.gradient_steps,
        target_update_interval=learner.target_update_interval,
        exploration_fraction=learner.exploration_fraction,
        exploration_final_eps=learner.exploration_final_eps,
        policy_kwargs={"net_arch": list(learner.hidden)},
        seed=seed,
        device="cpu",
    )
    untrained = panel(model, recipe.evaluation.untrained_episodes or 20, reward)
    validation = Validate(recipe, reward)
    try:
        model.learn(recipe.steps, callback=[*([ScoreAfterRollout(reward)] if scores_rollouts else []), validation])
    finally:
        env.close()
    validation.validate()
    model.policy.load_state_dict(validation.best)
    return panel(model, recipe.evaluation.test_episodes or 100, reward) | {"untrained": untrained}


def sb3_loop(count: int, reward: sl.ZeroShotReward) -> tuple[VecEnv, bool]:
    return DummyVecEnv([small_picture] * count), True


def sb3_wrapper(count: int, reward: sl.ZeroShotReward) -> tuple[VecEnv, bool]:
    return DummyVecEnv([lambda: ScoreEachStep(small_picture(), reward)] * count), False


def published(count: int, reward: sl.ZeroShotReward, make: Callable[[], Any] = large_picture) -> tuple[VecEnv, bool]:
    return SubprocVecEnv([make] * count), True


PEERS: dict[str, Callable[[int, sl.ZeroShotReward], tuple[VecEnv, bool]]] = {
    "sb3_loop": sb3_loop,
    "sb3_wrapper": sb3_wrapper,
    "published": published,
    "published_small": functools.partial(published, make=small_picture),
}
"""Name -> the environments, and whether their rollouts are scored afterwards."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=PEERS)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    recipe = with_dtypes(resolve(for_control(loaded("cartpole"))))
    result = train(arguments.name, recipe, arguments.seed)
    print(json.dumps({"result": result}), flush=True)


if __name__ == "__main__":
    main()
