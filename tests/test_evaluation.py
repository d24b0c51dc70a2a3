"""Intervals, panels, and episodes played on them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from conftest import our_tasks
from sightline.config.loading import for_control, load_recipe
from sightline.control.control_setup import ControlSetup
from sightline.control.resolving import env_maker
from sightline.envs.making import EnvMaker
from sightline.envs.tasks import Task, find_task
from sightline.errors import RunFailed
from sightline.evaluation import episodes as episodes_module
from sightline.evaluation.episode_stats import EpisodeStats, describe, summarise_episodes
from sightline.evaluation.episodes import play_one, play_panel
from sightline.evaluation.seeds import EvalSeeds, describe_env, make_panel
from sightline.evaluation.statistics import bootstrap_mean, wilson
from sightline.rewards.base import Clip, RewardModel, windows
from sightline.rewards.config import RewardSetup
from sightline.rewards.ground_truth import GroundTruthReward
from sightline.rewards.zero_shot import ZeroShotReward
from sightline_tasks.games.number_line import NumberLine
from small_envs import Clock

CLOCK = EnvMaker("small_envs:Clock", frame_size=(8, 8))
TASK = Task("clock", "small_envs:Clock")


def zeros(states: np.ndarray) -> np.ndarray:
    return np.zeros(len(states), int)


# -- intervals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [
        (0, 10, 0.0, 0.2775328),
        (10, 10, 0.7224672, 1.0),
        (5, 10, 0.2365931, 0.7634069),
        (95, 100, 0.8882495, 0.9784563),
        (100, 100, 0.9630065, 1.0),
        (0, 100, 0.0, 0.0369935),
    ],
)
def test_wilson_golden_numbers(successes: int, trials: int, low: float, high: float) -> None:
    assert wilson(successes, trials) == pytest.approx((low, high), abs=1e-6)


@settings(deadline=None)
@given(st.integers(1, 300), st.floats(0, 1))
def test_wilson_equals_scipy(trials: int, share: float) -> None:
    successes = round(share * trials)
    expected = binomtest(successes, trials).proportion_ci(method="wilson")
    low, high = wilson(successes, trials)
    assert (low, high) == pytest.approx((expected.low, expected.high), abs=1e-9)
    assert 0 <= low <= successes / trials <= high <= 1


def test_wilson_of_nothing() -> None:
    assert wilson(0, 0) == (0.0, 1.0)


def test_bootstrap_of_a_mean() -> None:
    values = np.random.default_rng(3).normal(10, 2, 400)
    low, high = bootstrap_mean(values)
    half = 1.96 * values.std() / np.sqrt(400)
    assert low == pytest.approx(values.mean() - half, abs=0.03)
    assert high == pytest.approx(values.mean() + half, abs=0.03)
    assert bootstrap_mean(values) == (low, high), "a fixed seed of its own"
    assert bootstrap_mean(np.full(5, 7.0)) == (7.0, 7.0)
    assert bootstrap_mean(np.array([3.0])) == (3.0, 3.0)


# -- panels -----------------------------------------------------------------------------------------------------------


def test_panel_golden_values() -> None:
    """The same on every machine, for ever: published numbers refer to these hashes."""
    panel = make_panel("test", "sightline/CartPole-v0", 100)
    assert panel.seeds[:3] == (3493900832, 2796862943, 1305543424)
    assert str(panel) == "test-100-852b9400fe99"


def test_panels_differ_by_name_seed_environment_and_length() -> None:
    panels = [
        make_panel("test", "a", 5),
        make_panel("validation", "a", 5),
        make_panel("test", "a", 5, seed=1),
        make_panel("test", "b", 5),
        make_panel("test", "a", 6),
    ]
    assert len({panel.digest for panel in panels}) == len(panels)
    test, validation, other, _, longer = panels
    assert not set(test.seeds) & set(validation.seeds)
    assert not set(test.seeds) & set(other.seeds)
    assert longer.seeds[:5] == test.seeds
    assert make_panel("test", "a", 5) == test
    assert len(set(make_panel("test", "a", 1000).seeds)) == 1000


def test_panels_differ_by_all_that_changes_what_is_played_and_how_it_is_judged() -> None:
    def panel(recipe: str, *overrides: str) -> EvalSeeds:
        completed = for_control(load_recipe(recipe, ["reward.kind=ground_truth", *overrides]))
        task = find_task(completed.env)
        make = env_maker(completed, None, render=False)
        return ControlSetup(completed, task, make, make, make, RewardSetup(GroundTruthReward()), ()).panel("test", 3)

    by_env = [panel("cartpole", f"env={task.name}") for task in our_tasks()]
    assert len({one.digest for one in by_env}) == len(our_tasks())
    car = [
        panel("mountain-car"),
        panel("mountain-car", "episode_steps=77"),
        panel("mountain-car", "env_options={look: textured}"),
        panel("mountain-car", "env=sightline/MountainCar-v0", "env_options={look: textured}", "episode_steps=77"),
    ]
    assert len({one.digest for one in car}) == len(car)
    assert panel("mountain-car", "seed=4", "steps=99").digest == car[0].digest, "how it is learned changes nothing"
    textured = panel("mountain-car", "env=mountain-car-textured")
    assert textured.digest == car[2].digest, "whether the task or the recipe says it"


def test_what_is_played_is_put_into_the_same_words_everywhere() -> None:
    assert describe_env("a") == describe_env("a", env_options={}, episode_steps=None, in_words=False) == "a"
    assert describe_env("a", episode_steps=5, env_options={"b": 1, "a": "x"}) == (
        'a {"env_options": {"a": "x", "b": 1}, "episode_steps": 5}'
    )
    objects = [{"it": object(), "who": lengths_of, "how": {"b", "a"}, "grid": np.eye(50), 3: (1, 2)} for _ in range(2)]
    first, second = (describe_env("a", env_options=options) for options in objects)
    assert first == second
    assert first != describe_env("a", env_options=objects[0] | {"grid": np.eye(50) * 2})
    assert first != describe_env("a", env_options=objects[0] | {"how": {"c", "a"}})


# -- episodes ---------------------------------------------------------------------------------------------------------


def lengths_of(panel: EvalSeeds) -> list[int]:
    """How long the clock's episodes last, by an environment of its own."""
    env: Any = CLOCK()
    return [int(env.reset(seed=seed)[0][1]) for seed in panel.seeds]


@pytest.mark.parametrize("count", [1, 7, 25, 60])
def test_each_seed_is_played_once_in_order(count: int) -> None:
    panel = make_panel("test", "clock", count)
    played = play_panel(zeros, CLOCK, TASK, panel, None)
    assert played is not None
    assert played.rewards is None
    lengths = np.array(lengths_of(panel))
    assert np.array_equal(played.lengths, lengths)
    assert np.array_equal(played.returns, lengths * (lengths + 1) / 2)
    assert played.success is not None
    assert played.success.all(), "the clock succeeds at its last step"


@pytest.mark.parametrize("parallel", [1, 3, 25])
def test_results_do_not_depend_on_how_many_play_at_once(
    monkeypatch: pytest.MonkeyPatch, bundled: Any, parallel: int
) -> None:
    panel = make_panel("test", "cartpole", 8)
    task = find_task("cartpole")
    model = ZeroShotReward(task.goal, task.baseline, encoder=bundled)
    maker = EnvMaker(task.env, episode_steps=20, frame_size=(64, 64))

    def leaning(states: np.ndarray) -> np.ndarray:
        return (states[:, 2] + 0.3 * states[:, 3] > 0).astype(int)

    usual = play_panel(leaning, maker, task, panel, model)
    monkeypatch.setattr(episodes_module, "PARALLEL", parallel)
    other = play_panel(leaning, maker, task, panel, model)
    assert usual is not None
    assert other is not None
    assert usual.rewards is not None
    assert other.rewards is not None
    for name in ("returns", "lengths", "success"):
        assert np.array_equal(getattr(usual, name), getattr(other, name)), name
    np.testing.assert_allclose(usual.rewards, other.rewards, atol=1e-5)


def test_processes_find_the_same_numbers(bundled: Any) -> None:
    panel, task = make_panel("test", "cartpole", 5), find_task("cartpole")
    model = ZeroShotReward(task.goal, task.baseline, encoder=bundled)
    maker = EnvMaker(task.env, episode_steps=20, frame_size=(64, 64))
    here, there = (play_panel(zeros, maker, task, panel, model, processes=processes) for processes in (0, 2))
    assert here is not None and there is not None
    assert here.rewards is not None and there.rewards is not None
    assert np.array_equal(here.returns, there.returns)
    np.testing.assert_allclose(here.rewards, there.rewards, atol=1e-5)


def test_rewards_are_means_over_the_frames_of_the_very_episode() -> None:
    class Brightness(RewardModel):
        def reward(self, clip: Clip) -> np.ndarray:
            assert isinstance(clip.frames, np.ndarray)
            return clip.frames[:, :, 0, 0, 0].astype(np.float32)

    panel = make_panel("test", "clock", 30)
    played = play_panel(zeros, CLOCK, TASK, panel, Brightness())
    assert played is not None
    assert played.rewards is not None
    np.testing.assert_allclose(played.rewards, (np.array(lengths_of(panel)) + 1) / 2, atol=1e-6)


class Times(RewardModel):
    """The picture's time, which is the number of the step."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def reward(self, clip: Clip) -> np.ndarray:
        times = np.asarray(clip.frames)[:, :, 0, 0, 0].astype(np.float32)
        self.seen += times.ravel().tolist()
        return times


@pytest.mark.parametrize("processes", [0, 2])
@pytest.mark.parametrize("every", [1, 2, 4, 100])
def test_some_steps_of_each_episode_are_scored_and_its_last_one(every: int, processes: int) -> None:
    """The same ones whoever plays beside; returns and success are of all steps."""
    panel = make_panel("test", "clock", 12)
    model = Times()
    played = play_panel(zeros, CLOCK, TASK, panel, model, processes=processes, score_every=every)
    assert played is not None and played.rewards is not None and played.success is not None
    lengths = lengths_of(panel)
    scored = [sorted({*range(every, length + 1, every), length}) for length in lengths]
    np.testing.assert_allclose(played.rewards, [np.mean(times) for times in scored], atol=1e-6)
    assert sorted(model.seen) == sorted(time for times in scored for time in times), "no other picture is looked at"
    assert played.returns.tolist() == [length * (length + 1) / 2 for length in lengths]
    assert played.success.all()


@pytest.mark.parametrize("at_once", [1, 37, 512])
def test_windows_do_not_reach_from_one_episode_into_another(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    """Environments play one episode after the other, and are scored in batches that end anywhere."""

    class Rise(RewardModel):
        window = 4

        def reward(self, clip: Clip) -> np.ndarray:
            seen = windows(np.asarray(clip.frames)[:, :, 0, 0, 0].astype(np.float32), clip.first, self.window)
            return np.asarray(seen[:, :, -1] - seen[:, :, 0])

    monkeypatch.setattr(episodes_module, "SCORED_AT_ONCE", at_once)
    panel = make_panel("test", "clock", 60)
    played = play_panel(zeros, CLOCK, TASK, panel, Rise())
    assert played is not None and played.rewards is not None
    expected = [np.minimum(np.arange(length), 3).mean() for length in lengths_of(panel)]
    np.testing.assert_allclose(played.rewards, expected, atol=1e-6)
    rewards = play_one(zeros, CLOCK, panel.seeds[0], Rise(), EnvMaker("small_envs:Clock")).rewards
    np.testing.assert_array_equal(rewards, np.minimum(np.arange(len(rewards)), 3))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_rewards_that_are_no_numbers_fail_in_one_line(value: float) -> None:
    class Broken(RewardModel):
        def reward(self, clip: Clip) -> np.ndarray:
            assert isinstance(clip.frames, np.ndarray)
            return np.where(clip.frames[:, :, 0, 0, 0] == 2, value, 0.5).astype(np.float32)

    with pytest.raises(RunFailed, match=r"Broken: .*not finite numbers.*look at what it returns") as caught:
        play_panel(zeros, CLOCK, TASK, make_panel("test", "clock", 30), Broken())
    assert "\n" not in str(caught.value)
    with pytest.raises(RunFailed, match="1 of 7 rewards"):
        play_one(zeros, CLOCK, 5, Broken(), EnvMaker("small_envs:Clock"))


@pytest.mark.parametrize(("rule", "expected"), [("any", True), ("every", False)])
def test_success_rules(rule: Any, expected: bool) -> None:
    played = play_panel(zeros, CLOCK, Task("clock", "c", success=rule), make_panel("test", "clock", 5), None)
    assert played is not None
    assert played.success is not None
    assert (played.success == expected).all()


def test_one_bad_step_breaks_every(monkeypatch: pytest.MonkeyPatch) -> None:
    """CartPole pushed one way: it succeeds at first, so `any` holds and `every` does not."""
    maker = EnvMaker("sightline/CartPole-v0", episode_steps=60, render=False)
    panel = make_panel("test", "cartpole", 4)
    for rule, expected in (("every", 0.0), ("any", 1.0)):
        played = play_panel(zeros, maker, Task("c", "c", success=rule), panel, None)  # type: ignore[arg-type]
        assert played is not None
        assert played.summary()["success_rate"] == expected


def test_success_at_any_time_and_at_the_end_are_told_apart() -> None:
    """CartPole pushed one way stands at first and has fallen at the end; the clock succeeds at its last step only."""
    maker = EnvMaker("sightline/CartPole-v0", episode_steps=60, render=False)
    fallen = play_panel(zeros, maker, find_task("cartpole"), make_panel("test", "cartpole", 4), None)
    clock = play_panel(zeros, CLOCK, Task("c", "c", success="every"), make_panel("test", "clock", 5), None)
    assert fallen is not None
    assert clock is not None
    numbers = fallen.summary()
    assert [numbers[key] for key in ("success_rate", "success_any", "success_end")] == [0.0, 1.0, 0.0]
    assert describe(numbers).startswith("success 0 % [")
    numbers = clock.summary()
    assert [numbers[key] for key in ("success_rate", "success_any", "success_end")] == [0.0, 1.0, 1.0]
    assert describe(numbers).startswith("success in every state 0 % [")
    assert "in the last one 100 %" in describe(numbers)
    assert "success in some state 100 %" in describe(numbers | {"success_rate": 1.0, "success_end": 0.0})


def test_a_return_of_nothing_is_left_out_unless_nothing_else_is_known() -> None:
    numbers = {"episodes": 4, "success_rate": None, "return": 0.0, "return_ci_low": 0.0, "return_ci_high": 0.0}
    assert describe(numbers) == "return 0.00 [0.00, 0.00]"
    assert describe(numbers | {"reward": 0.5}) == "reward 0.500"
    won = {"success_rate": 0.5, "ci_low": 0.2, "ci_high": 0.8}
    assert describe(numbers | won) == "success 50 % [20, 80]"
    paid = {"return": 0.0, "return_ci_low": -1.0, "return_ci_high": 1.0}
    assert describe(numbers | won | paid) == "success 50 % [20, 80], return 0.00 [-1.00, 1.00]"


def test_episode_stats_are_kept_and_taken_per_slot() -> None:
    stats = EpisodeStats(3)
    stats.add(np.array([0, 2]), np.array([1.0, 5.0]), np.array([True, False]), {"upright": np.array([True, False])})
    stats.add(np.array([0, 1]), np.array([2.0, 7.0]), np.array([False, True]))
    assert stats.returns.tolist() == [3.0, 7.0, 5.0]
    assert stats.lengths.tolist() == [2, 1, 1]
    assert stats.success["every"].tolist() == [False, True, False]
    assert stats.success["any"].tolist() == [True, True, False]
    assert stats.success["end"].tolist() == [False, True, False]
    assert stats.measures["upright"].tolist() == [True, True, False]
    finished = stats.take(np.array([2, 0]))
    assert finished == [
        {"return": 5.0, "length": 1, "every": False, "any": False, "end": False},
        {"return": 3.0, "length": 2, "every": False, "any": True, "end": False},
    ]
    assert stats.returns.tolist() == [0.0, 7.0, 0.0]
    assert stats.lengths.tolist() == [0, 1, 0]
    assert stats.success["every"].tolist() == [True, True, True]
    assert stats.success["any"].tolist() == [False, True, False]
    assert stats.success["end"].tolist() == [False, True, False]
    assert stats.measures["upright"].all()
    assert stats.knows_success


def test_episode_stats_go_on_from_their_state() -> None:
    stats, other = EpisodeStats(2), EpisodeStats(2)
    every = np.arange(2)
    stats.add(every, np.array([1.0, 2.0]), np.array([True, False]))
    other.restore(stats.state())
    for each in (stats, other):
        each.add(every, np.array([1.0, 2.0]), np.array([False, True]))
    assert stats.take(every) == other.take(every)
    assert other.knows_success


def test_episodes_are_summarised_alike_for_every_role() -> None:
    returns, success = np.array([1.0, 2.0, 6.0]), np.array([True, False, True])
    lengths, by_rule = np.array([4, 5, 9]), {"any": success, "every": success & False, "end": success}
    numbers = summarise_episodes(returns, lengths, by_rule, "any")
    assert (numbers["length"], numbers["success_any"], numbers["success_end"]) == (6.0, 2 / 3, 2 / 3)
    assert summarise_episodes(returns, lengths, by_rule, "every")["success_rate"] == 0.0
    assert numbers["return"] == 3.0
    assert numbers["success_rate"] == 2 / 3
    assert (numbers["ci_low"], numbers["ci_high"]) == wilson(2, 3)
    unknown = summarise_episodes(returns, lengths, {}, "any")
    assert unknown["success_rate"] is None
    assert unknown["ci_low"] is None
    assert unknown["return_ci_low"] == numbers["return_ci_low"]
    assert set(summarise_episodes(np.array([]), np.array([], int), {}, "any").values()) == {None}


def test_summary_and_its_line() -> None:
    panel = make_panel("test", "clock", 20)
    played = play_panel(zeros, CLOCK, TASK, panel, None)
    assert played is not None
    numbers = played.summary()
    assert numbers["success_rate"] == 1.0
    assert (numbers["ci_low"], numbers["ci_high"]) == wilson(20, 20)
    assert numbers["return_ci_low"] <= numbers["return"] <= numbers["return_ci_high"]
    assert numbers["episodes"] == 20
    assert numbers["panel"] == str(panel)
    assert numbers["reward"] is None
    assert "success 100 %" in describe(numbers)
    assert "\n" not in describe(numbers)


def test_where_success_is_unknown_it_is_not_invented() -> None:
    maker = EnvMaker("Pendulum-v1", episode_steps=5, render=False)

    def still(states: np.ndarray) -> np.ndarray:
        return np.zeros((len(states), 1), np.float32)

    played = play_panel(still, maker, find_task("pendulum"), make_panel("test", "p", 3), None)
    assert played is not None
    assert played.success is None
    numbers = played.summary()
    assert numbers["success_rate"] is None
    assert numbers["success_any"] is None
    assert numbers["success_end"] is None
    assert numbers["ci_low"] is None
    assert "success" not in describe(numbers)


def test_measures() -> None:
    maker = EnvMaker("sightline/CartPole-v0", render=False)
    played = play_panel(zeros, maker, find_task("cartpole"), make_panel("test", "cartpole", 3), None)
    assert played is not None
    assert played.summary()["measures"] == {"away_from_wall": 0.0}, "always to the left ends at the wall"
    for rule in ("any", "every"):
        mistyped = dataclasses.replace(find_task("cartpole"), measures=("away_from_walls",), success=rule)
        played = play_panel(zeros, maker, mistyped, make_panel("test", "cartpole", 3), None)
        assert played is not None
        assert played.summary()["measures"] == {}, "what no info states is unknown"


def test_success_without_a_mistake() -> None:
    make = EnvMaker("sightline/NumberLine-v0", render=False)
    panel = make_panel("test", "numberline", 20)
    # All the way up and then down: every target is reached, without a mistake where it lies above the start.
    moves = iter([1] * 5 + [0] * 5)
    played = play_panel(lambda states: np.full(len(states), next(moves)), make, find_task("numberline"), panel, None)
    assert played is not None
    above = 0
    game = NumberLine()
    for seed in panel.seeds:
        game.reset(seed=seed)
        above += game.target > game.current
    assert 0 < above < 20
    numbers = played.summary()
    assert (numbers["success_rate"], numbers["clean"], numbers["measures"]) == (1.0, above / 20, {})
    assert f"without mistakes {100 * above / 20:.0f} %" in describe(numbers)


def test_giving_up() -> None:
    asked = iter([False, False, True])
    assert play_panel(zeros, CLOCK, TASK, make_panel("test", "clock", 5), None, lambda: next(asked)) is None


def test_one_episode_for_a_video(bundled: Any) -> None:
    shown = EnvMaker("small_envs:Clock", frame_size=(12, 14))
    model = ZeroShotReward(("a pole",), encoder=bundled)
    filmed = play_one(zeros, CLOCK, 5, model, shown)
    frames, rewards = filmed.frames, filmed.rewards
    assert filmed.repeats
    (length,) = lengths_of(EvalSeeds("p", "c", (5,)))
    assert frames.shape == (length, 12, 14, 3)
    assert [int(frame[0, 0, 0]) for frame in frames] == list(range(1, length + 1))
    expected = [model(np.full((1, 8, 8, 3), t, np.uint8))[0] for t in range(1, length + 1)]
    np.testing.assert_allclose(rewards, expected, atol=1e-5)
    own = play_one(zeros, CLOCK, 5, None, shown).rewards
    assert own.tolist() == list(range(1, length + 1))


def test_a_film_of_large_pictures_is_kept_at_a_videos_size() -> None:
    shown = EnvMaker("small_envs:Clock", frame_size=(1080, 1920))
    frames = play_one(zeros, CLOCK, 5, None, shown).frames
    assert frames.shape[1:] == (512, 910, 3)
    assert [int(frame[100, 100, 0]) for frame in frames] == list(range(1, len(frames) + 1))


class Alone(Clock):
    """One at a time in a process, as emulators are, and as those are whose `close` shuts their library down."""

    open = 0

    def __init__(self, render_mode: str | None = None, render_size: tuple[int, int] = (16, 16)) -> None:
        super().__init__(render_mode, render_size)
        assert type(self).open == 0, "one environment per process"
        type(self).open += 1

    def close(self) -> None:
        type(self).open = 0


def test_a_film_needs_one_environment_at_a_time() -> None:
    make = EnvMaker(f"{__name__}:Alone", frame_size=(8, 8))
    filmed = play_one(zeros, make, 5, Brightness(), EnvMaker(f"{__name__}:Alone", frame_size=(12, 14)))
    assert filmed.frames.shape == (7, 12, 14, 3) and filmed.repeats
    assert filmed.rewards.tolist() == list(range(1, 8))
    assert Alone.open == 0


class Brightness(RewardModel):
    """Pays how bright the first pixel is."""

    def reward(self, clip: Clip) -> np.ndarray:
        return np.asarray(clip.frames)[:, :, 0, 0, 0].astype(np.float32)


class Numbered(Clock):
    """Its episodes grow longer, whatever their seeds."""

    episodes = 0

    def reset(self, **options: Any) -> tuple[np.ndarray, dict[str, Any]]:
        type(self).episodes += 1
        self.shortest = self.longest = 3 + type(self).episodes
        return super().reset(**options)


@pytest.mark.parametrize("env", [f"{__name__}:Numbered", "small_envs:Unrepeatable"])
def test_the_film_of_an_unrepeatable_episode_is_of_the_very_episode_that_was_judged(env: str) -> None:
    """Sizes tell which environment drew: the one that was judged, at 8x8, or the one for people."""
    make, shown = (EnvMaker(env, frame_size=size) for size in ((8, 8), (12, 14)))
    filmed = play_one(zeros, make, 5, Brightness(), shown)
    assert not filmed.repeats
    assert filmed.frames.shape[1:] == (8, 8, 3) and len(filmed.frames) == len(filmed.rewards)
    assert [frame[0, 0, 0] for frame in filmed.frames] == filmed.rewards.tolist()
    own = play_one(zeros, make, 5, None, shown)
    assert not own.repeats and own.frames.shape[1:] == (12, 14, 3) and len(own.frames) == len(own.rewards)
