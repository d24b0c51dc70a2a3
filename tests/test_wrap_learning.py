"""Do ordinary learners, which know nothing of Sightline, learn from words through `wrap` alone? (Under a minute each.)

All train on CartPole from one sentence, in episodes of 60 steps, and are judged by the environment's own success over
episodes of 200. The environment's own reward is never read.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import SyncVectorEnv
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.env_util import make_vec_env
from torch import Tensor, nn
from torch.distributions import Categorical

from sightline.rewards.wrap import wrap
from sightline.rewards.zero_shot import ZeroShotReward
from sightline_tasks.control.cartpole import CartPole

pytestmark = pytest.mark.learning

Act = Callable[[np.ndarray], np.ndarray]
MAKE = functools.partial(
    gymnasium.make,
    "sightline.envs:sightline/CartPole-v0",
    render_mode="rgb_array",
    render_size=(64, 64),
    max_episode_steps=60,
)


@pytest.fixture(scope="module")
def words() -> ZeroShotReward:
    return ZeroShotReward("pole vertically upright on top of the cart", "pole and cart")


def success(act: Act, episodes: int = 20) -> float:
    """Share of all states over 200 steps in which the pole is upright, as the environment says."""
    envs = [CartPole() for _ in range(episodes)]
    states = np.stack([env.reset(seed=1000 + i)[0] for i, env in enumerate(envs)])
    upright = 0
    for _ in range(200):
        steps = [env.step(action) for env, action in zip(envs, act(states), strict=True)]
        states = np.stack([step[0] for step in steps])
        upright += sum(step[4]["success"] for step in steps)
    return upright / (200 * episodes)


def of_sb3(model: Any) -> Act:
    return lambda states: np.asarray(model.predict(states, deterministic=True)[0])


def greedy(network: nn.Module) -> Act:
    return lambda states: network(torch.as_tensor(states)).argmax(-1).numpy()


def judge(untrained: float, trained: float) -> None:
    assert untrained <= 0.4
    assert trained >= 0.8


def mlp(outputs: int, hidden: int = 64) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(4, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, outputs)
    )


def test_dqn_of_stable_baselines(words: ZeroShotReward) -> None:
    env = wrap(make_vec_env(MAKE, 16, seed=0), words)
    model = DQN(
        *("MlpPolicy", env, 1e-3),
        learning_starts=500,
        buffer_size=20_000,
        batch_size=128,
        gamma=0.98,
        train_freq=8,
        gradient_steps=32,
        target_update_interval=256,
        exploration_fraction=0.4,
        seed=0,
        device="cpu",
    )
    before = success(of_sb3(model))
    judge(before, success(of_sb3(model.learn(10_000))))


def test_ppo_of_stable_baselines(words: ZeroShotReward) -> None:
    before, after = (success(of_sb3(model)) for model in trained_by_ppo(words))
    judge(before, after)


def test_other_words_teach_something_else(words: ZeroShotReward) -> None:
    """Everything else is the same: were it not the words that teach, this would succeed as well."""
    other = ZeroShotReward("pole hanging down below the cart", words.baseline, encoder=words.encoder)
    *_, model = trained_by_ppo(other)
    assert success(of_sb3(model)) <= 0.4


def trained_by_ppo(reward: ZeroShotReward) -> Iterator[PPO]:
    """The learner before and after."""
    env = wrap(make_vec_env(MAKE, 16, seed=1), reward)
    model = PPO("MlpPolicy", env, 2e-3, n_steps=32, batch_size=128, gamma=0.98, gae_lambda=0.9, seed=1, device="cpu")
    yield model
    yield model.learn(10_000)


def test_ppo_in_one_file(words: ZeroShotReward) -> None:
    """The usual loop over a Gymnasium vector environment: rollout, advantages, epochs of clipped updates."""
    torch.manual_seed(0)
    count, steps = 16, 32
    envs = wrap(SyncVectorEnv([MAKE] * count, autoreset_mode="SameStep"), words)
    actor, critic = mlp(2), mlp(1)
    parameters = [*actor.parameters(), *critic.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=1e-3, eps=1e-5)
    before = success(greedy(actor))
    now = torch.as_tensor(envs.reset(seed=0)[0])
    for _ in range(20):
        seen, actions, log_probs, rewards, ends, values = [], [], [], [], [], []
        for _ in range(steps):
            with torch.no_grad():
                policy = Categorical(logits=actor(now))
                action, value = policy.sample(), critic(now)[:, 0]
            after, reward, terminated, truncated, info = envs.step(action.numpy())
            ended = terminated | truncated
            reward = torch.as_tensor(reward)
            if ended.any():  # the clock is no end of the world: what would come after is bootstrapped
                last = torch.as_tensor(np.stack(info["final_obs"][ended]))
                with torch.no_grad():
                    reward[torch.as_tensor(ended)] += 0.98 * critic(last)[:, 0]
            for store, item in zip(
                (seen, actions, log_probs, rewards, ends, values),
                (now, action, policy.log_prob(action), reward, torch.as_tensor(ended).float(), value),
                strict=True,
            ):
                store.append(item)
            now = torch.as_tensor(after)
        with torch.no_grad():
            following, advantage = critic(now)[:, 0], torch.zeros(count)
        advantages: list[Tensor] = []
        for t in reversed(range(steps)):
            going = 1 - ends[t]
            advantage = rewards[t] + 0.98 * following * going - values[t] + 0.98 * 0.9 * going * advantage
            following = values[t]
            advantages.insert(0, advantage)
        states, taken, old, worth = (torch.cat(part) for part in (seen, actions, log_probs, values))
        gains = torch.cat(advantages)
        for _ in range(10):
            for batch in torch.randperm(len(gains)).split(128):
                policy = Categorical(logits=actor(states[batch]))
                ratio = (policy.log_prob(taken[batch]) - old[batch]).exp()
                gain = (gains[batch] - gains[batch].mean()) / (gains[batch].std() + 1e-8)
                lower = torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain)
                error = (critic(states[batch])[:, 0] - gains[batch] - worth[batch]).square()
                loss = -lower.mean() + 0.5 * error.mean() - 0.001 * policy.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(parameters, 0.5)
                optimizer.step()
    judge(before, success(greedy(actor)))


def test_dqn_in_one_file(words: ZeroShotReward) -> None:
    """The usual loop over one Gymnasium environment: act, store, learn a little."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    env = wrap(MAKE(), words)
    network, target = mlp(2), mlp(2)
    target.load_state_dict(network.state_dict())
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    before = success(greedy(network))
    total = 5_000
    states, afters = np.zeros((2, total, 4), np.float32)
    actions, rewards = np.zeros(total, np.int64), np.zeros(total, np.float32)
    state, _ = env.reset(seed=0)
    for step in range(total):
        explore = rng.random() < max(0.05, 1 - step / 2000)
        action = int(rng.integers(2)) if explore else int(greedy(network)(state))
        after, reward, _, truncated, _ = env.step(action)  # it never terminates
        states[step], actions[step], rewards[step], afters[step] = state, action, reward, after
        state = env.reset()[0] if truncated else after
        if step >= 500:
            optimizer.param_groups[0]["lr"] = 1e-3 * (1 - step / total)
            batch = rng.integers(0, step + 1, 64)
            with torch.no_grad():
                following = target(torch.as_tensor(afters[batch])).max(1).values
                wanted = torch.as_tensor(rewards[batch]) + 0.98 * following
            value = network(torch.as_tensor(states[batch])).gather(1, torch.as_tensor(actions[batch])[:, None])[:, 0]
            loss = nn.functional.smooth_l1_loss(value, wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if step % 200 == 0:
            target.load_state_dict(network.state_dict())
    judge(before, success(greedy(network)))
