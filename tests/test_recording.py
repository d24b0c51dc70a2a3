"""Episodes that are played and kept whole: `Episode` and `record_episodes`."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from sightline.datasets.episode import Episode
from sightline.errors import BadInput
from sightline.evaluation.recording import record_episodes


class Counter(gymnasium.Env[np.ndarray, int]):
    """Counts its steps in an array that it overwrites, adds the action, and draws the count as a grey level."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 7}
    observation_space = spaces.Box(-1e6, 1e6, (2,), np.float32)
    action_space: Any = spaces.Discrete(3)

    def __init__(self, says_success: str = "success", length: int = 4) -> None:
        self.render_mode = "rgb_array"
        self._says_success = says_success
        self._length = length
        self._state = np.zeros(2, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, Any]:
        super().reset(seed=seed)
        self._state[:] = (0, seed or 0)
        return self._state, {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._state += (1, action)
        count = int(self._state[0])
        info = {self._says_success: True} if count == self._length else {}
        return self._state, float(10 * count), False, count == self._length, info

    def render(self) -> Any:
        return np.full((3, 5, 3), int(self._state[0]), np.uint8)


def test_all_of_an_episode_is_kept() -> None:
    [episode] = record_episodes(Counter, lambda _: np.array([2]), [5], "always 2")
    assert episode.source == "always 2" and episode.seed == 5 and episode.fps == 7 and episode.steps == 4
    assert episode.reset_frame is not None and episode.frames is not None
    assert episode.reset_frame.shape == (3, 5, 3) and (episode.reset_frame == 0).all()
    assert episode.frames[:, 0, 0, 0].tolist() == [1, 2, 3, 4]
    assert episode.reset_state is not None and episode.states is not None and episode.actions is not None
    assert episode.reset_state.tolist() == [0, 5]
    assert episode.states.tolist() == [[1, 7], [2, 9], [3, 11], [4, 13]]
    assert episode.actions.tolist() == [2, 2, 2, 2]
    assert episode.env_reward is not None and episode.env_reward.tolist() == [10, 20, 30, 40]
    assert episode.success is not None and episode.success.tolist() == [False, False, False, True]
    assert not episode.terminated


def test_the_policy_sees_the_state_it_acts_in() -> None:
    seen = []

    def policy(states: Any) -> np.ndarray:
        seen.append(states.copy())
        return np.array([0])

    list(record_episodes(Counter, policy, [1], "a policy", frames=False))
    assert [state.tolist() for state in seen] == [[[0, 1]], [[1, 1]], [[2, 1]], [[3, 1]]]


def test_random_play_depends_on_the_seed_of_its_episode_alone() -> None:
    alone = [episode.actions for episode in record_episodes(Counter, None, [4], "random", frames=False)]
    second = [episode.actions for episode in record_episodes(Counter, None, [3, 4], "random", frames=False)]
    assert alone[0] is not None and second[0] is not None and second[1] is not None
    assert alone[0].tolist() == second[1].tolist()


def test_success_that_is_not_stated_is_unknown() -> None:
    [unstated] = record_episodes(lambda: Counter("won_maybe"), None, [0], "random", frames=False)
    assert unstated.success is None and unstated.frames is None
    [other_key] = record_episodes(lambda: Counter("is_success"), None, [0], "random", frames=False)
    assert other_key.success is not None and other_key.success.sum() == 1


def test_the_environment_is_closed_when_nobody_wants_more(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []
    monkeypatch.setattr(Counter, "close", lambda self: closed.append(self))
    episodes = record_episodes(Counter, None, range(100), "random", frames=False)
    next(episodes)
    episodes.close()  # type: ignore[attr-defined]
    assert len(closed) == 1


def test_an_episode_as_a_clip() -> None:
    frames = np.arange(3 * 2 * 2 * 3, dtype=np.uint8).reshape(3, 2, 2, 3)
    clip = Episode("x", frames, success=np.array([False, False, True]), terminated=True, instruction="up").clip()
    assert clip.shape == (3, 1) and clip.instruction == "up" and clip.states is None
    assert clip.first[:, 0].tolist() == [True, False, False]
    assert clip.ended is not None and clip.ended[:, 0].tolist() == [False, False, True]
    assert clip.terminated is not None and clip.terminated[:, 0].tolist() == [False, False, True]
    assert np.array_equal(np.asarray(clip.frames)[:, 0], frames)


def test_arrays_of_different_lengths_are_refused() -> None:
    with pytest.raises(BadInput, match="2 states, 3 env_reward"):
        Episode("x", states=np.zeros((2, 1)), env_reward=np.zeros(3, np.float32))
    with pytest.raises(BadInput, match="no steps"):
        Episode("x")
