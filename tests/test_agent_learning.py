"""What learning rests on: that a model which has not changed finds what it said as probable as it did. And that it
learns (deselect that with `-m "not learning"`)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import Finished
from sightline.agents.agent_setup import AgentSetup, build
from sightline.agents.demos import Demo, demonstrations
from sightline.agents.resolving import best_play, resolve
from sightline.agents.rollouts import EpisodeTask
from sightline.agents.sequences import build_sequences, count_turns
from sightline.agents.types import Advantages, Trajectory
from sightline.agents.warm_start import schedule_of, warm_start
from sightline.config.agents import Replies, WarmStart
from sightline.config.loading import for_agent, load_recipe
from sightline.envs.games.making import GameMaker
from sightline.errors import BadInput
from small_trajectories import turn_by_turn

Sightline = Callable[..., Finished]
ALGORITHMS = ("ppo", "grpo", "rloo", "gigpo", "reinforce")
FROZEN = (
    *("update.learning_rate=1e-12", "update.epochs=1", "update.minibatch=20", "update.micro_batch=8"),
    *("update.thought_weight=0.5",),
    *("update.kl_thoughts=0.1", "update.kl_actions=0.1", "update.entropy=0.01", "rollouts.temperature=1.5"),
)


def setup_of(*overrides: str, recipe: str = "numberline") -> AgentSetup:
    return build(resolve(for_agent(load_recipe(recipe, overrides))))


def played_by(setup: AgentSetup, tasks: int = 2, group: int = 4) -> list[Trajectory]:
    """Episodes in which tasks are played by groups, with unparsable and illegal replies among them."""
    drawn = [EpisodeTask(seed, member) for seed in range(2, 2 + tasks) for member in range(group)]
    return setup.rollout_worker(training=True).play(setup.sampler(training=True), drawn)


def test_evaluation_is_greedy_or_sampled_as_the_recipe_says() -> None:
    tasks = [EpisodeTask(seed) for seed in range(3)]

    def replies(*overrides: str, training: bool = False) -> list[str]:
        setup = setup_of("replies.max_tokens=16", "replies.thoughts=false", *overrides)
        episodes = setup.rollout_worker().play(setup.sampler(training), tasks)
        return [turn.sample.text for episode in episodes for turn in episode.turns]

    greedy, sampled = replies(), replies("evaluation.temperature=1")
    assert greedy == replies("rollouts.temperature=2", "rollouts.top_k=2") != sampled
    assert sampled == replies("evaluation.temperature=1", "rollouts.top_k=1") == replies(training=True)


# -- the ratio is one --------------------------------------------------------------------------------------------------


@cache
def played_once(window: int, tasks: int = 2) -> list[Trajectory]:
    return played_by(setup_of(*FROZEN, f"rollouts.window={window}"), tasks)


@pytest.mark.parametrize("ratio", ["turn", "token"])
@pytest.mark.parametrize(
    ("algorithm", "window"), [("ppo", 1), ("ppo", 3), ("grpo", 1), ("rloo", 3), ("gigpo", 3)], ids=str
)
def test_weights_that_do_not_change_give_a_ratio_of_one(algorithm: str, ratio: str, window: int) -> None:
    setup = setup_of(*FROZEN, f"algorithm.kind={algorithm}", f"update.ratio={ratio}", f"rollouts.window={window}")
    played = played_once(window)
    setup.engine.prepare(setup.vlm)
    setup.vlm.keep_reference()
    if setup.vlm.scorer.value_head is not None:
        with torch.no_grad():
            for weight in setup.vlm.scorer.value_head.parameters():
                weight.add_(0.1)
    learner = setup.learner()
    mismatch = learner.compute_values(played)
    tokens = sum(len(turn.sample.ids) for episode in played for turn in episode.turns)
    assert mismatch["mismatch_tokens"] == tokens if algorithm == "ppo" else 0 < mismatch["mismatch_tokens"] < tokens
    assert mismatch["mismatch"] / mismatch["mismatch_tokens"] < 1e-5
    assert mismatch["mismatch_max"] < 1e-3
    advantages = learner.compute_advantages(played)
    numbers: dict[str, Any] = learner.learn(played, advantages, 0, 0.0)
    assert numbers["update/steps"] >= 2
    assert numbers["update/turns"] >= 20
    assert numbers["update/ratio"] == pytest.approx(1, abs=1e-4)
    assert numbers["update/ratio_max"] == pytest.approx(1, abs=1e-3)
    assert numbers["update/clipped"] == 0
    assert numbers["update/kl_old"] == pytest.approx(0, abs=1e-5)
    assert numbers["update/kl_reference"] == pytest.approx(0, abs=1e-5)
    assert numbers["update/gradient_norm"] > 0.01
    merged = [len(sequence.turns) for sequence in build_sequences(played, advantages)]
    assert (max(merged) > 1) == (window > 1), "turns share passages where the window allows it"
    if algorithm == "ppo":
        assert all(turn.value for episode in played for turn in episode.turns)
        assert all(bool(episode.last_value) == (episode.end is not None) for episode in played)


@cache
def played_in_bfloat16(model: tuple[str, ...]) -> list[Trajectory]:
    """A group whose members are paid differently, whatever was sampled: that depends on how the processor rounds."""
    played = played_by(setup_of(*FROZEN, *model), tasks=1)
    for member, episode in enumerate(played):
        episode.turns[-1].reward = float(member)
    return played


@pytest.mark.parametrize(("algorithm", "micro_batch", "near"), [("grpo", 1, 1e-3), ("ppo", 1, 1e-3), ("grpo", 8, 1e-2)])
def test_adapters_in_bfloat16_give_a_ratio_of_one_as_well(algorithm: str, micro_batch: int, near: float) -> None:
    """Sampling and scoring round in different places, so the learner's own log-probabilities are the old ones. What is
    left is that libraries multiply larger and smaller matrices in different ways, so that the last pass differs."""
    model = ("policy.dtype=bfloat16", "policy.lora.rank=4", "update.kl_thoughts=0", "update.kl_actions=0")
    model += ("rollouts.temperature=3", "update.thought_weight=1")
    setup = setup_of(*FROZEN, *model, f"update.micro_batch={micro_batch}", f"algorithm.kind={algorithm}")
    setup.engine.prepare(setup.vlm)
    played, learner = played_in_bfloat16(model), setup.learner()
    mismatch = learner.compute_values(played)
    assert mismatch["mismatch_max"] > 5e-3, "what the test is about"
    assert learner.compute_values(played) == mismatch, "compared with sampling in either attempt"
    numbers: dict[str, Any] = learner.learn(played, learner.compute_advantages(played), 0, 0.0)
    # How differently depends on the processor: with passes of eight the mean was 1.0014 on one, below 1.001 on others.
    assert numbers["update/ratio"] == pytest.approx(1, abs=max(1e-3, near / 4))
    assert numbers["update/ratio_max"] == pytest.approx(1, abs=near)


def test_a_ratio_of_one_is_no_matter_of_course() -> None:
    """The same after learning with a rate that changes something, or at another temperature."""
    setup = setup_of(*FROZEN, "update.learning_rate=1e-3", "update.kl_thoughts=0", "update.kl_actions=0")
    played = played_once(1)
    setup.engine.prepare(setup.vlm)
    learner = setup.learner()
    learner.compute_values(played)
    numbers: dict[str, Any] = learner.learn(played, learner.compute_advantages(played), 0, 0.0)
    assert numbers["update/ratio_max"] > 1.01
    mismatch = learner.compute_values(played)
    assert mismatch["mismatch"] / mismatch["mismatch_tokens"] > 1e-3
    other = setup_of(*FROZEN, "rollouts.temperature=1.0", "update.kl_thoughts=0", "update.kl_actions=0")
    mismatch = other.learner().compute_values(played)
    assert mismatch["mismatch"] / mismatch["mismatch_tokens"] > 1e-3


@pytest.mark.parametrize(("algorithm", "everything"), [("grpo", False), ("ppo", True)])
def test_only_values_need_every_turn_scored_before_learning(algorithm: str, everything: bool) -> None:
    weights = ("update.kl_thoughts=0.1", "update.kl_actions=0")
    setup = setup_of(*FROZEN, f"algorithm.kind={algorithm}", *weights)
    setup.engine.prepare(setup.vlm)
    setup.vlm.keep_reference()
    played, learner = played_once(1), setup.learner()
    passes: list[int] = []
    setup.vlm.scorer.register_forward_hook(lambda *told: passes.append(len(told[1][0].value_rows)))
    compared = learner.compute_values(played)
    turns = sum(len(episode.turns) for episode in played)
    if everything:
        assert sum(passes) >= turns and compared["mismatch_tokens"] > 8
    else:
        assert passes == [8] and compared["mismatch_tokens"] > 0
    assert learner.learn(played, learner.compute_advantages(played), 0, 0.0)["update/turns"]


def test_the_reference_scores_what_is_learned_from_and_nothing_else() -> None:
    setup = setup_of(*FROZEN, "algorithm.kind=grpo")
    setup.engine.prepare(setup.vlm)
    setup.vlm.keep_reference()
    played, learner = played_by(setup, tasks=3), setup.learner()
    for turn in (turn for episode in played[:4] for turn in episode.turns):
        turn.reward = 0.0  # a group without a difference
    learner.compute_values(played)
    advantages = learner.compute_advantages(played)
    assert advantages[:4] == [None] * 4 and any(advantages)
    learner.learn(played, advantages, 0, 0.0)
    for episode, credit in zip(played, advantages, strict=True):
        for turn in episode.turns:
            if credit is None:
                assert turn.ref_logprobs is None
    found = [t for e, credit in zip(played, advantages, strict=True) if credit is not None for t in e.turns]
    for turn in (turn for turn in found if turn.ref_logprobs is not None):
        np.testing.assert_allclose(turn.ref_logprobs, turn.sample.logprobs, atol=1e-4)
    assert sum(turn.ref_logprobs is not None for turn in found) > 5


@pytest.mark.parametrize("wanted", [False, True])
def test_entropy_is_kept_where_all_episodes_end_alike_if_wanted(wanted: bool) -> None:
    settings = ("update.kl_thoughts=0", "update.learning_rate=1e-4", "update.epochs=1", "update.entropy=1.0")
    setup = setup_of(*settings, "algorithm.kind=grpo", f"update.all_turns={wanted}")
    setup.engine.prepare(setup.vlm)
    played, learner = played_by(setup), setup.learner()
    for turn in (turn for episode in played for turn in episode.turns):
        turn.reward = 0.0
    played[-1].error = "broken"
    learner.compute_values(played)
    advantages = learner.compute_advantages(played)
    assert advantages == [None] * 8
    first, second = (learner.learn(played, advantages, update, 0.0) for update in range(2))
    assert advantages == [None] * 8  # the caller's are left alone: which groups teach something is told by them
    if not wanted:
        assert first["update/turns"] == first["update/steps"] == 0
        return
    assert first["update/turns"] == sum(len(episode.turns) for episode in played[:-1])
    before, after = first["update/choice_entropy"], second["update/choice_entropy"]
    assert before is not None and after is not None and after > before + 0.01


@pytest.mark.parametrize(
    ("overrides", "processes", "why"),
    [
        (("policy.dtype=bfloat16",), 1, r"policy\.dtype=bfloat16 rounds the steps .* policy\.lora=\{\}"),
        (("device=cuda:0",), 2, "device=cuda:0 would put all 2 processes on one GPU; say device=cuda,"),
        (("policy.sampler=vllm",), 2, r"policy\.sampler=vllm is for one process, and torchrun has started 2"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_is_loaded(
    overrides: tuple[str, ...], processes: int, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RANK": 0, "WORLD_SIZE": processes}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr("sightline.agents.agent_setup.load_model", lambda recipe: pytest.fail("loaded"))
    with pytest.raises(BadInput, match=why) as told:
        setup_of(*overrides)
    assert "\n" not in str(told.value)


def test_merged_passages_are_scored_as_single_ones() -> None:
    setup, played = setup_of(*FROZEN), played_once(3)
    blank = [Advantages(np.zeros(len(episode.turns))) for episode in played]
    merged, single = build_sequences(played, blank), build_sequences(*turn_by_turn(played, blank))
    assert count_turns(merged) == count_turns(single) == len(single) > len(merged)
    with torch.no_grad():
        together = setup.vlm.score([sequence.tokens for sequence in merged], 1.5)
        apart = setup.vlm.score([sequence.tokens for sequence in single], 1.5)
    torch.testing.assert_close(together.logprobs, apart.logprobs, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(together.values, apart.values, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(together.choice_entropy, apart.choice_entropy, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_led_to_better_becomes_more_probable(algorithm: str) -> None:
    """One step by the policy loss alone: replies with an advantage gain on those without."""
    settings = ("update.kl_thoughts=0", "update.epochs=1", "update.minibatch=500", "update.learning_rate=3e-5")
    settings += ("rollouts.temperature=1.5", "update.thought_weight=1.0", f"algorithm.kind={algorithm}")
    if algorithm == "ppo":
        settings += ("algorithm.value_coefficient=0",)
    setup = setup_of(*settings)
    played = played_once(1, tasks=16)
    setup.engine.prepare(setup.vlm)
    learner = setup.learner()
    learner.compute_values(played)
    advantages = learner.compute_advantages(played)
    learner.learn(played, advantages, 0, 0.0)
    known = [(each, one) for each, one in zip(played, advantages, strict=True) if one is not None]
    found = build_sequences(*turn_by_turn([each for each, _ in known], [one for _, one in known]))
    with torch.no_grad():
        after = setup.vlm.score([sequence.tokens for sequence in found], 1.5).logprobs.numpy()
    turns = [sequence.turns[0] for sequence in found]
    ends = np.cumsum([len(turn.turn.sample.logprobs) for turn in turns])[:-1]
    gained = np.array(
        [(new - turn.turn.sample.logprobs).sum() for new, turn in zip(np.split(after, ends), turns, strict=True)]
    )
    advantages = np.array([turn.advantage if turn.turn.on_policy else 0.0 for turn in turns])
    assert (gained * advantages).sum() > 0
    assert np.corrcoef(gained, advantages)[0, 1] > 2 / np.sqrt(len(gained))  # two standard errors of none


# -- it learns ---------------------------------------------------------------------------------------------------------


@pytest.mark.learning
def test_success_rises_and_comes_from_looking(sightline: Sightline, tmp_path: Path) -> None:
    run = tmp_path / "run"
    overrides = ("steps=2500", "evaluation.every=1250", "evaluation.episodes=32", "evaluation.test_episodes=60")
    done = sightline("train", "numberline", *overrides, "tensorboard=false", "--run-dir", run, "--json")
    assert done.code == 0, done.err
    result = json.loads(done.out)
    assert result["untrained"]["success_rate"] < 0.7
    assert result["success_rate"] > 0.9
    assert result["truthful_replies"] > 0.9
    for look in ("blank", "shuffled"):
        assert result[look]["success_rate"] < 0.75, look
    assert result["oracle"]["success_rate"] == 1


@pytest.mark.learning
def test_a_sentence_pays_and_a_pole_is_held(sightline: Sightline, tmp_path: Path) -> None:
    """A thirteenth of the recipe's turns, in smaller updates, and longer episodes than any in training."""
    overrides = ("seed=1", "steps=720", "rollouts.tasks=24", "rollouts.episode_steps=20", "update.minibatch=80")
    overrides += ("update.learning_rate=0.0002", "episode_steps=32")
    fewer = ("evaluation.every=720", "evaluation.episodes=1", "evaluation.test_episodes=5", "videos=false")
    run = ("tensorboard=false", "--run-dir", tmp_path / "run", "--json")
    done = sightline("train", "cartpole-agent", *overrides, *fewer, *run)
    assert done.code == 0, done.err
    result = json.loads(done.out)
    assert result["untrained"]["success_rate"] <= 0.1
    assert result["success_rate"] >= 0.5
    assert result["blank"]["success_rate"] <= 0.2 and result["shuffled"]["success_rate"] <= 0.2
    assert result["reward"] > result["untrained"]["reward"] + 0.1, "the words see it too"


@pytest.mark.learning
@pytest.mark.parametrize("truthful", [None, 0.0])
def test_a_warm_start_teaches_a_scrambled_model_to_reply(
    truthful: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sightline.agents.warm_start.HELD_OUT", 32)
    monkeypatch.setattr("sightline.agents.warm_start.CHECK_EVERY", 25)
    setup = setup_of("replies.max_tokens=24")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in setup.vlm.model.named_parameters():
            if "language" in name and weight.ndim == 2:
                weight.copy_(weight.flatten()[torch.randperm(weight.numel(), generator=generator)].view_as(weight))
    setup.engine.prepare(setup.vlm)
    told: list[tuple[int, dict[str, float | None]]] = []
    settings = WarmStart(samples=800, batch=16, learning_rate=2e-3, stop_at=truthful)
    last = warm_start(setup, settings, lambda samples, numbers: told.append((samples, numbers)))
    assert told[-1][1] == last
    if truthful is not None:
        assert [samples for samples, _ in told] == [400], "it ends as soon as it is good enough"
        return
    assert [samples for samples, _ in told] == [400, 800]
    assert last["warm_start/loss"] is not None and last["warm_start/loss"] < 0.1


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ("constant", [0.5, 1, 1, 1, 1]),
        ("linear", [0.5, 1, 0.75, 0.5, 0.25]),
        ("cosine", [0.5, 1, 0.5 + math.sqrt(0.5) / 2, 0.5, 0.5 - math.sqrt(0.5) / 2]),
    ],
)
def test_schedules_of_a_warm_start(schedule: Any, rates: list[float]) -> None:
    """After one update of rise, of five."""
    assert learning_rates(WarmStart(schedule=schedule, warm_up=0.2, learning_rate=2.0), 5) == pytest.approx(
        [2 * rate for rate in rates]
    )


@pytest.mark.parametrize(("warm_up", "updates"), [(0.05, 20), (0.05, 40), (0.2, 5), (0, 4), (0.9, 4), (0.05, 1)])
def test_the_one_cycle_schedule_reaches_its_peak(warm_up: float, updates: int) -> None:
    rates = learning_rates(WarmStart(warm_up=warm_up, learning_rate=2.0), updates)
    assert len(rates) == updates and all(math.isfinite(rate) and rate > 0 for rate in rates)
    assert max(rates) <= 2 + 1e-9 and (updates == 1 or max(rates) > 1.5)


def learning_rates(settings: WarmStart, updates: int) -> list[float]:
    optimiser = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], settings.learning_rate)
    schedule = schedule_of(optimiser, settings, updates)
    rates = []
    for _ in range(updates):
        rates.append(float(optimiser.param_groups[0]["lr"]))
        optimiser.step()
        schedule.step()
    return rates


@pytest.mark.parametrize(("samples", "checked"), [(16, 32), (288, 72), (2000, 128)])
def test_a_short_warm_start_is_measured_on_fewer_replies(
    samples: int, checked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []

    def counted(setup: AgentSetup, demos: Sequence[Demo]) -> float:
        counts.append(len(demos))
        return 1.0

    monkeypatch.setattr("sightline.agents.warm_start._perception_accuracy", counted)
    monkeypatch.setattr("sightline.agents.warm_start.OptimiserSteps.step", lambda *arguments: (0.0, 0.0))
    setup = setup_of("replies.max_tokens=24")
    setup.engine.prepare(setup.vlm)
    warm_start(setup, WarmStart(samples=samples, batch=samples), lambda samples, numbers: None)
    assert counts == [checked]


def test_demonstrations_are_of_the_game_that_the_warm_start_names(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Demo] = []

    def noted(*arguments: Any) -> Iterator[Demo]:
        for demo in best_play(*arguments):
            shown.append(demo)
            yield demo

    monkeypatch.setattr("sightline.agents.warm_start.best_play", noted)
    setup = setup_of("replies.max_tokens=24", "env_options.max_position=9", "warm_start.env_options.max_position=1")
    settings = setup.recipe.warm_start
    assert settings is not None
    setup.engine.prepare(setup.vlm)
    warm_start(setup, settings.model_copy(update={"samples": 16, "batch": 16}), lambda samples, numbers: None)
    assert {number for demo in shown for number in demo.facts.values()} <= {"0", "1"}
    assert len(shown) > 16


def test_a_run_of_no_steps_is_a_warm_start_and_its_model_is_taken_further(
    tmp_path: Path, sightline: Sightline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SFT as a step of its own, on others' demonstrations, by epochs."""
    monkeypatch.setattr("sightline.agents.warm_start.HELD_OUT", 16)
    demos = list(demonstrations(GameMaker("numberline"), Replies(thoughts=False), 54))
    (tmp_path / "images").mkdir()
    entries = []
    for number, demo in enumerate(demos):
        (tmp_path / "images" / f"{number}.png").write_bytes(demo.pictures[0].png)
        said = [{"from": "human", "value": f"<image>{demo.text}"}, {"from": "gpt", "value": demo.reply}]
        entries.append({"image": f"{number}.png", "conversations": said})
    (tmp_path / "sft.json").write_text(json.dumps(entries))
    fewer = ("evaluation.episodes=1", "evaluation.test_episodes=1", "videos=false", "tensorboard=false")
    sft = ("steps=0", f"warm_start.demos={tmp_path / 'sft.json'}", "warm_start.epochs=2", "warm_start.batch=8")
    done = sightline("train", "numberline", *sft, *fewer, "--run-dir", tmp_path / "sft", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["chosen_step"] == 0
    assert "warm start: 72 samples" in done.err, "two passes over all but 16, in whole batches"
    (model,) = (tmp_path / "sft" / "checkpoints").glob("best-*")
    more = ("steps=8", f"policy.model={model}", "rollouts.tasks=2", "rollouts.parallel=2")
    done = sightline("train", "numberline", *more, *fewer, "--run-dir", tmp_path / "rl", "--json")
    assert done.code == 0, done.err


def test_no_steps_and_no_warm_start_are_refused(sightline: Sightline) -> None:
    done = sightline("train", "numberline", "steps=0", "--dry-run")
    assert done.code == 2 and "say warm_start={}" in done.err
    done = sightline("train", "numberline", "warm_start.epochs=2", "--dry-run")
    assert done.code == 2 and "epochs are passes over warm_start.demos" in done.err
