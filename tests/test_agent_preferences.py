"""A reward that is learned from a teacher's preferences pays an agent."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import Finished, trained
from sightline.labels.store import LabelStore
from sightline.preferences.pebble import Pebble
from sightline.rewards.base import Interrupted

Sightline = Callable[..., Finished]
TAUGHT = (
    *("numberline", "steps=400", "tensorboard=false", "videos=false", "checkpoints.every=100"),
    *("rollouts.tasks=8", "rollouts.parallel=8", "evaluation.every=100", "evaluation.episodes=4"),
    *("evaluation.test_episodes=4", "reward.kind=learned", "reward.teacher.kind=scripted", "reward.model.kind=cnn"),
    *("reward.model.channels=[4,4]", "reward.model.size=[24,24]", "reward.frame_size=[48,48]"),
    *("reward.explore=60", "reward.every=100", "reward.questions=12", "reward.pool=60", "reward.segment=1"),
    *("reward.fitting.epochs=4", "reward.fitting.ensemble=1"),
)


def metrics_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()[1:]]


def without_times(run: Path) -> list[dict[str, Any]]:
    kept = ("time/", "labels/seconds", "labels/remembered")
    return [{k: v for k, v in record.items() if not k.startswith(kept)} for record in metrics_of(run)]


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose agent was paid by a learned reward."""
    return trained(tmp_path_factory.mktemp("taught"), *TAUGHT)


def test_the_reward_is_learned_from_what_the_agent_does(taught: Path) -> None:
    metrics = metrics_of(taught)
    updates = [record for record in metrics if "rollout/reward" in record]
    rounds = [record["step"] for record in metrics if "labels/asked" in record]
    assert rounds and rounds[0] >= 60
    before = [record["rollout/reward"] for record in updates if record["step"] <= rounds[0]]
    after = [record["rollout/reward"] for record in updates if record["step"] > rounds[0]]
    assert set(before) == {0.0}, "nothing is paid before the first labels"
    assert after and any(abs(reward) > 1e-3 for reward in after)
    with LabelStore(taught / "labels") as store:
        assert len(list(store.labels())) >= 12
    result = json.loads((taught / "result.json").read_text())
    assert result["chosen_step"] >= rounds[0], "chosen by a reward that means something"
    assert (taught / "checkpoints" / f"best-{result['chosen_step']:012d}" / "reward.safetensors").is_file()
    assert "What the teacher said" in (taught / "report.html").read_text()


def test_it_is_resumed_to_the_same(sightline: Sightline, taught: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(taught, tmp_path / "run"))
    newest = max((run / "checkpoints").glob("step-*"))
    shutil.rmtree(newest)
    (run / "result.json").unlink()
    done = sightline("train", *TAUGHT, "--run-dir", run, "--resume")
    assert done.code == 0, done.err
    assert without_times(run) == without_times(taught)
    results = [json.loads((one / "result.json").read_text()) | {"seconds": 0} for one in (run, taught)]
    assert results[0] == results[1]
    numbers = sightline("evaluate", run, "--episodes", "4", "--json")
    assert numbers.code == 0 and json.loads(numbers.out)["reward"] == pytest.approx(results[0]["reward"])


@pytest.mark.parametrize("pause", ["of the first labels", "the last"])
def test_a_stop_while_labels_are_awaited_changes_nothing(
    sightline: Sightline, taught: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pause: str
) -> None:
    """The pause in which a run was stopped, the last one too, comes before its next update."""
    learn, calls = Pebble.learn, list[int]()
    metrics = metrics_of(taught)
    first = next(record["step"] for record in metrics if "labels/asked" in record)
    steps = [record["step"] for record in metrics if "rollout/reward" in record]
    at = first if pause == "of the first labels" else steps[-1]

    def stopped(self: Any, step: int, should_stop: Callable[[], bool]) -> Any:
        calls.append(step)
        if step == at and calls.count(at) == 1:
            raise Interrupted
        return learn(self, step, should_stop)

    monkeypatch.setattr(Pebble, "learn", stopped)
    run = tmp_path / "run"
    cut = sightline("train", *TAUGHT, "--run-dir", run)
    assert cut.code > 128 and not (run / "result.json").exists()
    assert sightline("train", *TAUGHT, "--run-dir", run, "--resume").code == 0
    assert without_times(run) == without_times(taught)


def test_states_cannot_be_read(sightline: Sightline) -> None:
    others = [one for one in TAUGHT if not one.startswith("reward.model")]
    done = sightline("train", *others, "reward.model={kind: states}", "--dry-run")
    assert done.code == 2 and "an agent sees pictures" in done.err
