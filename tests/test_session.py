"""A session between two steps, for both roles: films, choices made again, states of earlier versions."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import imageio.v2 as imageio
import pytest

from conftest import TINY, Finished

Sightline = Callable[..., Finished]
CONTROL = (
    *("cartpole", *(one for one in TINY if not one.startswith(("videos", "tensorboard"))), "tensorboard=true"),
    *("steps=128", "evaluation.episodes=1", "evaluation.test_episodes=1"),
)
AGENT = (
    *("numberline", "steps=20", "rollouts.tasks=2", "rollouts.parallel=2", "evaluation.every=20"),
    *("evaluation.episodes=1", "evaluation.test_episodes=1", "replies.thoughts=false", "replies.max_tokens=24"),
)


@pytest.mark.parametrize("arguments", [CONTROL, AGENT], ids=["control", "agent"])
def test_films_while_training_goes_on(sightline: Sightline, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    run = tmp_path / "run"
    steps = 64 if arguments is CONTROL else 8
    done = sightline("train", *arguments, "videos={final: false, " + f"every: {steps}" + "}", "--run-dir", run)
    assert done.code == 0, done.err
    films = sorted(file.name for file in (run / "videos").iterdir())
    assert len(films) >= 2 and all(name.startswith("step-") and name.endswith(".mp4") for name in films), films
    with imageio.get_reader(run / "videos" / films[0]) as film:
        assert sum(1 for _ in film) >= 1
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard"), size_guidance={"images": 0}).Reload()
    shown = [event.step for tag in events.Tags()["images"] for event in events.Images(tag)]
    assert len(shown) == len(films) and f"step-{shown[0]:09d}.mp4" in films
    (tag, *_) = events.Tags()["images"]
    assert events.Images(tag)[0].encoded_image_string.startswith(b"GIF8")


def test_a_film_that_fails_does_not_end_the_run(
    sightline: Sightline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **named: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("sightline.session.write_scored_video", fail)
    done = sightline("train", *CONTROL, "videos.every=128", "--run-dir", tmp_path / "run")
    assert done.code == 0, done.err
    warned = json.loads((tmp_path / "run" / "warnings.json").read_text())["warnings"]
    assert any("the video of step 128 could not be made: no space left" in line for line in warned)


def test_checkpoints_of_earlier_versions_are_refused_in_one_line(sightline: Sightline, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert sightline("train", *CONTROL, "videos=false", "--run-dir", run).code == 0
    for folder in (run / "checkpoints").glob("step-*"):
        manifest = json.loads((folder / "manifest.json").read_text())
        del manifest["files"]["session.json"]
        (folder / "manifest.json").write_text(json.dumps(manifest))
        (folder / "session.json").unlink()
    (run / "result.json").unlink()
    done = sightline("train", "--run-dir", run, "--resume")
    assert done.code == 2 and len(done.lines) == 1
    assert "was written by an earlier version and cannot be resumed" in done.err
    assert sightline("evaluate", run, "--episodes", "2").code == 0
    shutil.rmtree(run)


def test_the_log_says_which_gpus_draw(sightline: Sightline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sightline.session.drawing_in_words", lambda: "worker processes that draw by EGL …")
    arguments = ("env=small_envs:Clock", "goal=a clock", *TINY, "learner.algorithm=DQN", "envs=2", "steps=64")
    for workers, said in (("processes", True), ("inline", False)):
        done = sightline("train", *arguments, f"workers={workers}", "--run-dir", tmp_path / workers)
        assert done.code == 0, done.err
        assert ("worker processes that draw by EGL …" in done.err + done.out) == said
