"""Whole runs of agents, tiny: exact resumption after any end, and equal play however it is divided up."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import TESTS, Finished
from sightline.agents import training
from sightline.agents.rollouts import EpisodeTask, RolloutWorker
from sightline.agents.samplers import Completion, Conversation, Key, only_text
from sightline.agents.samplers.policy import PolicySampler
from sightline.agents.types import Trajectory
from sightline.config.agents import Replies
from sightline.envs.games.making import GameMaker
from sightline.models.vlm.model import VLM, load_vlm
from sightline.runs.metrics import read_metrics
from sightline.runs.state import read_state
from sightline.runs.stopping import StopRequests
from tiny_families import build_family

Sightline = Callable[..., Finished]

SMALL = (
    *("steps=20", "episode_steps=4", "tensorboard=false", "checkpoints.every=5", "evaluation.every=10"),
    *("evaluation.stop_at=null", "evaluation.episodes=2", "evaluation.test_episodes=2", "videos.final=false"),
    *("rollouts.tasks=2", "rollouts.parallel=3"),
    *("update.minibatch=8", "update.micro_batch=4", "update.epochs=1"),
)
"""Overrides that make a run of seconds, of several updates, evaluations and checkpoints, out of a recipe."""
KINDS: dict[str, tuple[str, ...]] = {
    "ppo": ("numberline", *SMALL, "update.epochs=2", "update.schedule=linear"),
    "grpo": (
        *("numberline", *SMALL, "algorithm.kind=grpo", "algorithm.group=2", "update.kl_actions=0.1"),
        *("warm_start.samples=24", "warm_start.batch=8", "rollouts.window=2", "checkpoints.keep=1"),
        *("rollouts.temperature=1.5", "steps=30", "rollouts.dynamic_sampling=1", "rollouts.top_k=20", "seed=2"),
    ),
    "lora": ("numberline", *SMALL, "rollouts.tasks=3", "policy.lora.rank=2", "seed=3"),
    "words": (
        *("numberline", *SMALL, "policy.model=./llama", "text_only=true", "rollouts.window=2", "policy.lora.rank=2"),
        *("replies.facts=false", "replies.max_tokens=24", "steps=16"),
    ),
}
"""A value head and an anchor; groups (of which those that teach nothing are played anew), an anchor that is
warm-started, and merged passages; adapters; a language model."""
AGAIN = "go on with the same command and --resume"
KILL = int(signal.SIGKILL)
DEATHS: dict[str, list[tuple[str, int, int]]] = {
    "ppo": [("update", 1, KILL), ("saved", 2, KILL), ("saving", 1, KILL), ("reply", 3, KILL)],
    "grpo": [
        ("warm start", 2, KILL),
        ("saving", 1, KILL),
        ("saved", 1, KILL),
        ("recording", 1, KILL),
        ("saved", 2, KILL),
    ],
    "lora": [("saving", 3, KILL), ("step", 2, KILL), ("saved", 2, KILL)],
    "words": [("saved", 2, KILL), ("reply", 2, KILL)],
}
"""Where a run is killed, one attempt after the other; then it is let go on to its end."""
STOPS: list[tuple[signal.Signals, int, str, int]] = [
    (signal.SIGTERM, 143, "reply", 14),
    (signal.SIGINT, 130, "step", 2),
]
"""Signal, exit code, and where it comes, of the attempts of one more run of `ppo`; then it is let go on, too."""


def carry_out(jobs: Sequence[dict[str, Any]], cwd: Path) -> list[int]:
    """Exit codes of jobs of `agent_worker.py`."""
    done = subprocess.run(
        [sys.executable, str(TESTS / "agent_worker.py")],
        input=json.dumps(list(jobs)),
        capture_output=True,
        text=True,
        cwd=cwd,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    codes: list[int] = json.loads(done.stdout.splitlines()[-1])
    return codes


def job(arguments: Sequence[str], run: Path, log: Path, die: Any = None, resume: bool = True) -> dict[str, Any]:
    command = ["train", *arguments, "--run-dir", str(run), *(["--resume"] if resume else [])]
    return {"arguments": command, "log": str(log), "die": die}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For each kind a run that was left alone and one that was killed again and again; `log-<kind>-<attempt>` tells.
    And one that was stopped by a signal after the other, and resumed."""
    folder = tmp_path_factory.mktemp("runs")
    build_family("llama", folder / "llama")
    jobs, expected = [], []
    for kind, arguments in KINDS.items():
        jobs.append(job(arguments, folder / f"{kind}-whole", folder / f"log-{kind}-whole", resume=False))
        expected.append(0)
        for attempt, die in enumerate([*DEATHS[kind], None]):
            log = folder / f"log-{kind}-{attempt}"
            jobs.append(job(arguments, folder / f"{kind}-killed", log, die, resume=attempt > 0))
            expected.append(0 if die is None else -KILL)
    for attempt, (number, code, place, time) in enumerate(STOPS):
        die, log = (place, time, int(number)), folder / f"log-stopped-{attempt}"
        jobs.append(job(KINDS["ppo"], folder / "stopped", log, die, resume=attempt > 0))
        expected.append(code)
    jobs.append(job(KINDS["ppo"], folder / "stopped", folder / f"log-stopped-{len(STOPS)}"))
    expected.append(0)
    codes = carry_out(jobs, folder)
    logs = [Path(one["log"]).read_text()[-500:] for one in jobs]
    assert codes == expected, [log for log, code, want in zip(logs, codes, expected, strict=True) if code != want]
    return folder


# -- what is compared --------------------------------------------------------------------------------------------------


def numbers(run: Path) -> list[dict[str, Any]]:
    """All metrics but those of time."""
    records = read_metrics(run / "metrics.jsonl")
    return [{k: v for k, v in record.items() if not k.startswith("time/")} for record in records]


def result_of(run: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((run / "result.json").read_text())
    return {key: value for key, value in result.items() if key != "seconds"}


def weights_in(run: Path) -> dict[str, bytes]:
    """Every file of weights, by checkpoint and name."""
    found = sorted((run / "checkpoints").glob("*/*.safetensors"))
    return {f"{file.parent.name}/{file.name}": file.read_bytes() for file in found}


def optimiser_of(run: Path) -> dict[str, dict[str, torch.Tensor]]:
    newest = max((run / "checkpoints").glob("step-*"))
    state: dict[str, dict[str, torch.Tensor]] = read_state(newest / "trainer.safetensors")["optimiser"]["state"]
    return state


def episodes_of(run: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in (run / "trajectories").glob("*.json")}


def check_equal(run: Path, whole: Path) -> None:
    """Bit for bit."""
    assert numbers(run) == numbers(whole)
    assert result_of(run) == result_of(whole)
    mine, theirs = weights_in(run), weights_in(whole)
    assert mine.keys() == theirs.keys()
    assert [name for name in theirs if mine[name] != theirs[name]] == []
    mine_of, theirs_of = optimiser_of(run), optimiser_of(whole)
    assert mine_of.keys() == theirs_of.keys()
    assert all(torch.equal(mine_of[n][k], theirs_of[n][k]) for n in theirs_of for k in theirs_of[n])
    assert episodes_of(run) == episodes_of(whole)
    for name in ("untrained.json", "recipe.yaml", "warnings.json"):
        assert (run / name).is_file() == (whole / name).is_file(), name
        assert not (whole / name).is_file() or (run / name).read_text() == (whole / name).read_text()
    assert not list((run / "checkpoints").glob(".writing*"))


# -- killed and resumed ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(KINDS))
def test_kill_nine_and_resume(runs: Path, kind: str) -> None:
    check_equal(runs / f"{kind}-killed", runs / f"{kind}-whole")


def test_the_runs_that_are_compared_are_worth_it(runs: Path) -> None:
    """Several updates that change the model, evaluations between them, and attempts that got somewhere."""
    for kind in KINDS:
        whole = numbers(runs / f"{kind}-whole")
        updates = [record for record in whole if "update/loss" in record]
        assert len(updates) >= 2
        assert len([record for record in whole if "evaluation/score" in record]) >= 3
        assert all(record["update/gradient_norm"] > 0 for record in updates if record["update/steps"])
        # It is measured before each update's first step, and an update may have nothing to tell the policy.
        assert any(record["update/kl_reference"] > 0 for record in updates[1:])
        logs = [(runs / f"log-{kind}-{i}").read_text() for i in range(len(DEATHS[kind]) + 1)]
        resumed = [int(step) for step in re.findall(r"resuming from (?:step|turn) (\d+)", "".join(logs))]
        assert max(resumed) > 0, "something was learned by then"
        kept = weights_in(runs / f"{kind}-whole")
        steps = sorted({name.partition("/")[0] for name in kept if name.startswith("step-")})
        file = "adapter_model.safetensors" if kind in ("lora", "words") else "model.safetensors"
        assert len(steps) == (1 if kind == "grpo" else 2)
        assert len({kept[f"{step}/{file}"] for step in steps}) == len(steps)
    assert any("resuming" not in (runs / f"log-{kind}-1").read_text() for kind in KINDS), "killed before any checkpoint"
    assert (runs / "grpo-whole" / "checkpoints" / "warm-000000000000").is_dir()
    # Killed between the warm start and the evaluation of the model before RL: only the latter is made anew.
    log = (runs / "log-grpo-3").read_text()
    assert "resuming from step 0" in log and "before RL" in log and "warm start: " not in log
    assert "adapter_model.safetensors" in str(list(weights_in(runs / "lora-whole")))


def test_tasks_that_teach_nothing_are_played_anew_once(runs: Path) -> None:
    """Two tasks of two episodes are an update; for each whose episodes ended alike there was one more."""
    records = read_metrics(runs / "grpo-whole" / "metrics.jsonl")
    updates = [one for one in records if one.get("rollout/episodes") is not None]
    for one in updates:
        # zero_variance is the share of all that were played: a of 2 at first, and b of these a again
        missing = one["rollout/episodes"] / 2 - 2
        assert 0 <= missing <= 2 and missing <= one["rollout/zero_variance"] * (2 + missing) + 1e-9
    assert any(one["rollout/episodes"] > 4 for one in updates)


def test_every_step_is_told_once(runs: Path) -> None:
    for kind in KINDS:
        steps = [(record["step"], "evaluation/score" in record) for record in numbers(runs / f"{kind}-killed")]
        assert len(set(steps)) == len(steps)
        assert [step for step, _ in steps] == sorted(step for step, _ in steps)


@pytest.mark.parametrize("attempt", range(len(STOPS)), ids=["terminated", "interrupted"])
def test_signals_save_and_leave(runs: Path, attempt: int) -> None:
    first, again = ((runs / f"log-stopped-{number}").read_text() for number in (attempt, attempt + 1))
    (resumed,) = (line for line in again.splitlines() if line.startswith("resuming"))
    turn = int(resumed.split(" of ")[0].rpartition(" ")[2])
    assert 0 < turn < numbers(runs / "ppo-whole")[-1]["step"]
    said = f"sightline: stopped by {STOPS[attempt][0].name}; saved at step {turn}; {AGAIN}"
    assert first.splitlines()[-1] == said
    assert "Traceback" not in first
    check_but_for_checkpoints(runs / "stopped", runs / "ppo-whole")


def check_but_for_checkpoints(run: Path, whole: Path) -> None:
    """A run that was saved at another turn keeps other checkpoints; all that came out is the same."""
    assert numbers(run) == numbers(whole)
    assert result_of(run) == result_of(whole)
    best = f"best-{result_of(whole)['chosen_step']:012d}/model.safetensors"
    assert weights_in(run)[best] == weights_in(whole)[best]
    assert episodes_of(run) == episodes_of(whole)


@pytest.mark.parametrize("damage", ["model.safetensors", "session.json"])
def test_a_damaged_newest_checkpoint_falls_back(sightline: Sightline, runs: Path, tmp_path: Path, damage: str) -> None:
    run = Path(shutil.copytree(runs / "ppo-whole", tmp_path / "run"))
    (run / "result.json").unlink()
    newest = max((run / "checkpoints").glob("step-*"))
    file = newest / damage
    file.write_bytes(file.read_bytes()[:-20])
    done = sightline("train", *KINDS["ppo"], "--run-dir", run, "--resume")
    assert done.code == 0, done.err
    assert f"{newest.name} is damaged" in done.err
    check_equal(run, runs / "ppo-whole")


def test_a_damaged_checkpoint_is_no_hindrance_to_saving_before_it(
    sightline: Sightline, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resumed from the one before and stopped at once, something is saved while the damaged one is still there."""
    from sightline.agents.learning import PolicyLearner

    run = Path(shutil.copytree(runs / "ppo-whole", tmp_path / "run"))
    newest = max((run / "checkpoints").glob("step-*"))
    shutil.rmtree(run / "checkpoints" / f"step-{0:012d}", ignore_errors=True)
    moved = newest.with_name(f"step-{10**6:012d}")  # as of a run with longer ways between checkpoints
    newest.rename(moved)
    (moved / "session.json").write_text("{")
    learn = PolicyLearner.learn

    def stopped(self: PolicyLearner, *arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return learn(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(PolicyLearner, "learn", stopped)
        done = sightline("train", *KINDS["ppo"], "--run-dir", run, "--resume")
    assert done.code == 143, done.err
    assert "saved at step" in done.lines[-1]


def test_a_damaged_best_is_said(sightline: Sightline, runs: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(runs / "ppo-whole", tmp_path / "run"))
    (best,) = (run / "checkpoints").glob(f"best-{result_of(run)['chosen_step']:012d}")
    (best / "model.safetensors").write_bytes(b"")
    done = sightline("evaluate", run)
    assert (done.code, len(done.lines)) == (2, 1)
    assert "the chosen checkpoint" in done.lines[-1] and "is damaged" in done.lines[-1]
    done = sightline("train", "--run-dir", run, "--resume")
    assert done.code == 0 and "another one is chosen from here on" in done.err
    assert sightline("evaluate", run, "--episodes", "2").code == 0


def test_without_the_model_before_rl_nothing_is_anchored_to_another(
    sightline: Sightline, runs: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(runs / "grpo-whole", tmp_path / "run"))
    (run / "checkpoints" / "warm-000000000000" / "model.safetensors").write_bytes(b"")
    done = sightline("train", "--run-dir", run, "--resume")
    assert done.code == 1
    assert "the model before RL" in done.lines[-1]


def test_resuming_a_finished_run_changes_nothing(sightline: Sightline, runs: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(runs / "lora-whole", tmp_path / "run"))
    assert sightline("train", *KINDS["lora"], "--run-dir", run, "--resume").code == 0
    check_equal(run, runs / "lora-whole")


def test_a_finished_run_can_be_made_longer(sightline: Sightline, runs: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(runs / "ppo-whole", tmp_path / "run"))
    before = numbers(run)
    done = sightline("train", "--run-dir", run, "--resume", "steps=50")
    assert done.code == 0, done.err
    assert numbers(run)[: len(before)] == before
    assert numbers(run)[-1]["step"] >= 50 > before[-1]["step"]
    assert sightline("evaluate", run, "--episodes", "2").code == 0


def test_a_run_that_is_good_from_the_start_ends_there(sightline: Sightline, tmp_path: Path) -> None:
    run = tmp_path / "run"
    arguments = ("train", "numberline", *SMALL, "evaluation.stop_at=0", "--run-dir", run)
    assert sightline(*arguments).code == 0
    assert result_of(run)["chosen_step"] == 0
    assert [record["step"] for record in numbers(run)] == [0]
    before = result_of(run)
    again = sightline(*arguments, "--resume")
    assert again.code == 0, again.err
    assert result_of(run) == before
    assert [record["step"] for record in numbers(run)] == [0], "what was measured before the first turn is told once"
    assert "this run has ended already" in again.err


def test_other_seeds_give_other_runs(sightline: Sightline, runs: Path, tmp_path: Path) -> None:
    assert sightline("train", *KINDS["ppo"], "seed=1", "steps=12", "--run-dir", tmp_path / "run").code == 0
    assert numbers(tmp_path / "run") != numbers(runs / "ppo-whole")
    refused = sightline("train", *KINDS["ppo"], "seed=2", "steps=12", "--run-dir", tmp_path / "run", "--resume")
    assert (refused.code, len(refused.lines)) == (2, 1)
    assert "seed=1" in refused.err


def test_stops_are_obeyed_where_work_is_long(
    sightline: Sightline, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the warm start, in play before RL, and in the last test, a stop that is overdue is not waited for."""
    monkeypatch.setattr(StopRequests, "overdue", lambda stop, seconds=0.0: stop.requested())
    run = tmp_path / "run"

    def stopped_in(owner: Any, name: str, *options: str) -> str:
        original = getattr(owner, name)

        def stopping(*arguments: Any, **named: Any) -> Any:
            os.kill(os.getpid(), signal.SIGTERM)
            return original(*arguments, **named)

        with monkeypatch.context() as patch:
            patch.setattr(owner, name, stopping)
            done = sightline("train", *KINDS["grpo"], "--run-dir", run, *options)
        assert done.code == 143, done.err
        assert not (run / "result.json").exists()
        return done.lines[-1]

    assert stopped_in(VLM, "score") == f"sightline: stopped by SIGTERM; nothing was collected yet; {AGAIN}"
    assert not (run / "untrained.json").exists()
    last = stopped_in(PolicySampler, "generate", "--resume")
    assert last == f"sightline: stopped by SIGTERM; saved at step 0; {AGAIN}"
    assert not (run / "untrained.json").exists()
    turns = numbers(runs / "grpo-whole")[-1]["step"]
    last = stopped_in(training, "evaluate_policy", "--resume")
    assert last == f"sightline: stopped by SIGTERM; saved at step {turns}; {AGAIN}"
    assert sightline("train", *KINDS["grpo"], "--run-dir", run, "--resume").code == 0
    check_equal(run, runs / "grpo-whole")


# -- however it is divided up ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def vlm() -> VLM:
    return load_vlm(value_head=True, device="cpu")


def played_by(
    vlm: VLM,
    tasks: Sequence[EpisodeTask],
    temperature: float,
    parallel: int,
    chance: tuple[int, ...] = (),
    window: int = 1,
) -> dict[tuple[int, int], Trajectory]:
    table = RolloutWorker(GameMaker("numberline"), REPLIES, window, parallel, vlm)
    try:
        trajectories = table.play(PolicySampler(vlm, temperature, REPLIES.max_tokens), tasks, chance)
    finally:
        table.close()
    assert [(one.seed, one.member) for one in trajectories] == [(task.seed, task.member) for task in tasks]
    return {(one.seed, one.member): one for one in trajectories}


REPLIES = Replies(thoughts=False, max_tokens=24)


def test_prompts_that_episodes_have_in_common_are_read_once(vlm: VLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """In all turns of a rollout; groups part with time."""
    generate, asked, read, different = VLM.generate, [], [], []

    def counted(self: VLM, prompts: Any, *rest: Any, of: Any = None, **further: Any) -> Any:
        asked.append(len(prompts if of is None else of))
        read.append(len(prompts))
        different.append(len({prompt.digest for prompt in prompts}))
        return generate(self, prompts, *rest, of=of, **further)

    monkeypatch.setattr(VLM, "generate", counted)
    played_by(vlm, [EpisodeTask(seed, member) for seed in range(4) for member in range(8)], 1.0, 32)
    assert len(asked) > 1 and sum(read) < 0.6 * sum(asked)
    assert read[0] == different[0] <= 4 and sum(read) < 1.5 * sum(different), "not much is read twice"


def test_earlier_turns_are_left_out_to_keep_to_a_budget_of_tokens(vlm: VLM) -> None:
    """Of a window of 3: as many as fit, the newest ones; the present turn always."""
    sampler, tasks = PolicySampler(vlm, 1.0, 24), [EpisodeTask(seed) for seed in range(6)]
    lengths = {}
    for budget in (None, 100, 1):
        table = RolloutWorker(GameMaker("numberline"), REPLIES, 3, 6, vlm, prompt_tokens=budget)
        played = table.play(sampler, tasks)
        table.close()
        lengths[budget] = [[len(turn.prompt.ids) for turn in one.turns if turn.prompt] for one in played]
    one_turn = lengths[None][0][0]
    assert {length for episode in lengths[1] for length in episode} == {one_turn}
    longest = max(length for episode in lengths[None] for length in episode)
    assert longest > 100 > max(length for episode in lengths[100] for length in episode) > one_turn


def test_notes_of_a_reply_come_with_the_next_turn(vlm: VLM) -> None:
    replies = Replies(fields={"notes": "", "action": ""}, memory="notes", max_tokens=24)

    class Writes:
        def generate(self, conversations: Sequence[Conversation], keys: Sequence[Key]) -> list[Completion]:
            said = [f'{{"notes": "turn {key[-1]}", "action": "+"}}' for key in keys]
            return [only_text(text, finished=True) for text in said]

    table = RolloutWorker(GameMaker("numberline"), replies)
    (episode,) = table.play(Writes(), [EpisodeTask(3)])
    table.close()
    shown = [turn.exchange.text.partition("written down: ")[2].partition("\n")[0] for turn in episode.turns]
    assert len(shown) > 1 and shown == ["nothing", *(f"turn {i}" for i in range(len(shown) - 1))]


def same(a: Trajectory, b: Trajectory) -> bool:
    """Token by token, move by move; log-probabilities but for rounding."""
    return (
        (a.success, a.truncated, a.kind, len(a.turns)) == (b.success, b.truncated, b.kind, len(b.turns))
        and all(s.played == t.played and s.state == t.state for s, t in zip(a.turns, b.turns, strict=True))
        and all(np.array_equal(s.sample.ids, t.sample.ids) for s, t in zip(a.turns, b.turns, strict=True))
        and all(
            np.allclose(s.sample.logprobs, t.sample.logprobs, atol=2e-4) for s, t in zip(a.turns, b.turns, strict=True)
        )
    )


@pytest.mark.parametrize(("temperature", "window"), [(0.0, 1), (1.0, 1), (1.5, 3)])
def test_how_many_are_played_at_once_and_in_which_order_changes_nothing(
    vlm: VLM, temperature: float, window: int
) -> None:
    """Rounding depends on who is read together, so where two tokens are as good as equally probable a reply may turn
    out otherwise: 1 of 10 000 tokens at most, since chance is a number of 53 bits. None of these is such a one."""
    tasks = [EpisodeTask(seed, member) for seed in range(3) for member in range(2)]
    alone = played_by(vlm, tasks, temperature, 1, (7,), window)
    for parallel, order in ((64, tasks[::-1]), (4, tasks[3:] + tasks[:3])):
        together = played_by(vlm, order, temperature, parallel, (7,), window)
        assert [key for key in alone if not same(alone[key], together[key])] == []
    if temperature:
        other = played_by(vlm, tasks, temperature, 64, (8,), window)
        assert [key for key in alone if not same(alone[key], other[key])], "it is chance that is held, not the replies"
        members = [same(alone[seed, 0], alone[seed, 1]) for seed in range(3)]
        assert not all(members), "episodes of a group differ"


def test_evaluation_and_run_do_not_depend_on_how_many_play(sightline: Sightline, runs: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = sightline("train", *KINDS["ppo"], "rollouts.parallel=64", "evaluation.parallel=1", "--run-dir", run)
    assert done.code == 0, done.err
    whole = runs / "ppo-whole"
    mine, theirs = numbers(run), numbers(whole)
    assert [record.keys() for record in mine] == [record.keys() for record in theirs]
    for one, other in zip(mine, theirs, strict=True):
        for key in one:
            if key.startswith("rollout/") or key == "step":
                assert one[key] == pytest.approx(other[key], abs=1e-4), key
    assert result_of(run)["panel"] == result_of(whole)["panel"]


@pytest.mark.parametrize("kind", ["grpo", "lora"])
def test_what_a_run_has_chosen_can_be_examined_anew(sightline: Sightline, runs: Path, kind: str) -> None:
    done = sightline("evaluate", runs / f"{kind}-whole", "--episodes", "2", "--json")
    assert done.code == 0, done.err
    numbers_again, result = json.loads(done.out), result_of(runs / f"{kind}-whole")
    assert {key: result[key] for key in numbers_again} == numbers_again
