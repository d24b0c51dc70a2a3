"""Success as environments state it: what is read, what is unknown, and what is refused rather than guessed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from sightline.envs.frame_vector import FrameVectorEnv, episode_seeds
from sightline.envs.making import EnvMaker
from sightline.envs.success import stated_success, truth, with_success
from sightline.errors import BadInput
from small_envs import Clock

HERE = __name__


class Nothing:
    """A value of somebody's own."""


@pytest.mark.parametrize("kind", [bool, np.bool_, int, float, np.int64, np.float32, np.uint8])
def test_truth_values_are_read_in_every_common_form(kind: Any) -> None:
    for expected in (True, False):
        stated = kind(expected)
        forms = [stated, np.array(stated), np.array([stated]), torch.tensor(expected), torch.tensor([[expected]])]
        assert [truth(form, "the info") for form in forms] == [expected] * len(forms)
        assert all(type(truth(form, "the info")) is bool for form in forms)


@pytest.mark.parametrize(
    ("stated", "shown"),
    [
        ("False", "'False' (text)"),
        ("true", "'true' (text)"),
        ("0", "'0' (text)"),
        ("", "'' (text)"),
        (b"1", "b'1' (text)"),
        (np.array(["False"]), "array(['False']"),
        (float("nan"), "nan (a float)"),
        (np.array([np.nan]), "array([nan]) (a ndarray)"),
        (0.5, "0.5 (a float)"),
        (2, "2 (a int)"),
        (-1, "-1 (a int)"),
        ({"arm": True}, "{'arm': True} (a dict)"),
        ({}, "{} (a dict)"),
        ([True], "[True] (a list)"),
        ((), "() (a tuple)"),
        (np.array([True, False]), "array([ True, False]) (a ndarray)"),
        (np.zeros(0, bool), "array([], dtype=bool) (a ndarray)"),
        (torch.tensor([1.0, 0.0]), "tensor([1., 0.]) (a Tensor)"),
        (Nothing, "Nothing"),
    ],
)
def test_what_is_no_truth_value_is_refused_and_not_guessed(stated: Any, shown: str) -> None:
    for read in (stated_success, with_success):
        with pytest.raises(BadInput) as caught:
            read({"is_success": stated}, "'lab:Reach'")
        line = str(caught.value)
        assert "\n" not in line and shown in line
        assert "the info 'is_success' of 'lab:Reach'" in line and "success_from=reward" in line


def test_success_that_nobody_states_is_unknown() -> None:
    for info in ({}, {"won": True}, {"success": None}, {"success": None, "is_success": None}):
        assert stated_success(info) is None
        assert "success" not in with_success(info)


def test_the_first_of_the_two_names_counts_and_both_become_one() -> None:
    assert stated_success({"success": 0, "is_success": 1}) is False
    assert stated_success({"success": None, "is_success": 1}) is True
    assert with_success({"is_success": np.array([1.0]), "own": 3}) == {"own": 3, "success": True}


class States(Clock):
    """States success in a form of its own."""

    def __init__(self, render_mode: str | None = None, success: Any = None, key: str = "success") -> None:
        super().__init__(render_mode)
        self.success, self.key = success, key

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        state, reward, ended, truncated, _ = super().step(action)
        return state, reward, ended, truncated, {self.key: self.success}


@pytest.mark.parametrize("key", ["success", "is_success", "won"])
def test_policies_learn_from_the_same_reading(key: str) -> None:
    def vector(*stated: Any) -> FrameVectorEnv:
        makers = iter([EnvMaker(f"{HERE}:States", {"success": one, "key": key}, success_from=source) for one in stated])
        return FrameVectorEnv(lambda: next(makers)(), len(stated), episode_seeds(0), frames=False)

    source = "won" if key == "won" else None
    actions = np.zeros(3, int)
    envs = vector(True, np.array([0.0]), np.float32(1))
    envs.reset()
    assert envs.step(actions).success.tolist() == [True, False, True]  # type: ignore[union-attr]
    # The second one's would be put into an array of the first one's type, and be true.
    for wrong in ("False", float("nan"), {}):
        envs = vector(True, wrong, False)
        envs.reset()
        with pytest.raises(BadInput, match=f"the info '{key}' of .*, neither true nor false"):
            envs.step(actions)
    if source is None:
        envs = vector(None, None, None)
        envs.reset()
        assert envs.step(actions).success is None
