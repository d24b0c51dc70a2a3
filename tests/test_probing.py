"""Pictures that show nothing, seeds that are ignored and rewards that never change are noticed, and nothing else is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from odd_pictures import Bandit, Walk
from sightline.config.loading import for_control, load_recipe
from sightline.control.control_setup import build_setup
from sightline.control.resolving import resolve
from sightline.envs.probing import probe
from sightline.envs.watching import PictureWatch, equal
from sightline.errors import BadInput


@pytest.mark.parametrize(
    ("draws", "said"),
    [
        ("black", "of one colour, (0, 0, 0)"),
        ("grey", "of one colour, (90, 90, 90)"),
        ("sky", "are the same, though what is observed changes"),
        ("start", "stay as they were when their episode began"),
        ("bar", None),
        ("undrawn", None),
        ("rarely", None),
        ("flash", None),
    ],
)
def test_pictures_that_show_nothing_are_noticed_by_a_few_steps(draws: str, said: str | None) -> None:
    trouble = probe(Walk("rgb_array", draws), frames=True).picture_trouble
    assert trouble is None if said is None else trouble is not None and said in trouble


@pytest.mark.parametrize(("draws", "flawed"), [("bar", False), ("start", False), ("sky", True), ("black", True)])
def test_episodes_of_one_step_are_compared_with_each_other(draws: str, flawed: bool) -> None:
    assert (probe(Bandit("rgb_array", draws), frames=True).picture_trouble is not None) == flawed


def test_a_world_that_moves_slowly_is_watched_a_little_longer() -> None:
    seen = probe(Walk("rgb_array", slow=0.3), frames=True)
    assert seen.picture_trouble is None
    black = probe(Walk("rgb_array", "black"), frames=True)
    assert (black.steps, len(black.pictures)) == (64, 8)


def test_a_probe_tells_what_an_environment_states_and_pays() -> None:
    usual = probe(Walk("rgb_array", states=True), frames=True)
    assert (usual.steps, usual.states_success, usual.pays_nothing, usual.unrepeated) == (16, True, False, None)
    assert usual.pictures.shape == (6, 32, 32, 3) and usual.step_seconds > 0 and usual.frame_seconds > 0
    assert probe(Walk(pays="nothing"), frames=False).pays_nothing
    assert probe(Walk(pays="vector"), frames=False).own_rewards == (None,) * 16
    assert not probe(Walk(pays="none"), frames=False).pays_nothing
    assert not probe(Walk(), frames=False).states_success
    assert probe(Walk(length=5), frames=False).ended and not probe(Walk(), frames=False).ended


def test_a_probe_without_steps_only_resets() -> None:
    seen = probe(Walk("rgb_array", "black"), frames=True, steps=0)
    assert seen.steps == 0 and seen.own_rewards == () and not seen.pays_nothing
    assert len(seen.pictures) == 1


def test_seeds_that_are_ignored_are_noticed() -> None:
    assert probe(Walk(seeded=False), frames=False).unrepeated == "observation"

    class Coloured(Walk):
        def render(self) -> np.ndarray:
            return super().render() + np.random.default_rng().integers(0, 9, (32, 32, 3), np.uint8)

    assert probe(Coloured("rgb_array"), frames=True).unrepeated == "picture"

    class Rounding(Walk):
        def reset(self, **options: Any) -> tuple[np.ndarray, dict[str, Any]]:
            state, info = super().reset(**options)
            return state.astype(np.float64) * (1 + 1e-15 * self.begun), info

    assert probe(Rounding("rgb_array"), frames=True).unrepeated is None


def test_a_probe_leaves_random_states_alone() -> None:
    env = Walk("rgb_array")
    env.action_space.seed(3)
    np.random.seed(3)
    probe(env, frames=True)
    first, drawn = env.action_space.sample(), np.random.random()
    env.action_space.seed(3)
    np.random.seed(3)
    assert np.array_equal(first, env.action_space.sample()) and drawn == np.random.random()


def test_success_that_is_no_truth_value_is_refused() -> None:
    class Saying(Walk):
        def _info(self) -> dict[str, Any]:
            return {"success": "False"}

    with pytest.raises(BadInput, match="neither true nor false"):
        probe(Saying(), frames=False)


def test_a_watch_of_several_environments_names_the_blank_one() -> None:
    watch, rng = PictureWatch(), np.random.default_rng(0)
    for step in range(5):
        pictures = rng.integers(0, 256, (3, 8, 8, 3), np.uint8)
        pictures[1] = 7
        watch.see(pictures, np.full((3, 2), step))
    assert watch.flaw == "blank" and not watch.is_content
    assert "5 steps of environment 2 of 3 are of one colour, (7, 7, 7)" in (watch.trouble or "")
    watch.see(rng.integers(0, 256, (3, 8, 8, 3), np.uint8), np.full((3, 2), 9))
    assert watch.trouble is None and watch.is_content


def test_a_watch_of_episodes_of_one_step_sees_that_nothing_changes() -> None:
    watch, picture = PictureWatch(), np.arange(192, dtype=np.uint8).reshape(1, 8, 8, 3)
    for step in range(5):
        watch.see(picture, np.full((1, 2), step), [True])
    assert watch.flaw == "still"


def test_pictures_of_a_state_that_stays_are_not_blamed() -> None:
    watch, picture = PictureWatch(), np.arange(192, dtype=np.uint8).reshape(1, 8, 8, 3)
    for _ in range(9):
        watch.see(picture, {"place": np.zeros(2), "said": "nothing"})
    assert watch.trouble is None


def test_observations_of_any_form_are_compared() -> None:
    one = {"a": np.array([1.0, 2.0]), "b": ("text", 3)}
    assert equal(one, {"a": np.array([1.0, 2.0]), "b": ("text", 3)})
    assert not equal(one, {"a": np.array([1.0, 2.0]), "b": ("text", 4)})
    assert not equal(one, {"a": np.array([1.0, 2.0 + 1e-9]), "b": ("text", 3)})
    assert equal(one, {"a": np.array([1.0, 2.0 + 1e-9]), "b": ("text", 3)}, tolerance=1e-6)
    assert not equal(one, {"a": np.array([1.0])})


SHORT = ("steps=32", "learner.chunk=16", "evaluation.episodes=1", "evaluation.test_episodes=1", "videos.final=false")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            "draws=black",
            "nothing can be learned from these pictures: all pictures of 64 random steps are of one colour",
        ),
        ("draws=sky", "nothing can be learned from these pictures: all pictures of 64 random steps are the same"),
        ("seeded=false", "panels are not fixed: two resets with seed 0 gave another observation"),
        ("draws=bar", None),
    ],
)
def test_training_says_before_it_starts_what_cannot_be_learned_from(options: str, said: str | None) -> None:
    words = ["goal=the bar is at the right", f"env_options.{options}"]
    recipe = load_recipe(None, ["env=odd_pictures:Walk", *words, *SHORT])
    setup = build_setup(resolve(for_control(recipe)))
    others = [line for line in setup.warnings if not line.startswith("these pictures are unlike")]
    assert any(line.startswith(said) for line in others) if said else not others


def test_an_own_reward_that_is_always_0_is_said_where_it_is_learned_from() -> None:
    own = ["env=odd_pictures:Walk", "env_options={pays: nothing, states: true}", "reward.kind=ground_truth", *SHORT]
    (line,) = build_setup(resolve(for_control(load_recipe(None, own)))).warnings
    assert line.startswith("the environment's own reward was 0 in the first 16 steps; if it always is, pay with reward")
