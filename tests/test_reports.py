"""Plots, videos and the report, on fabricated data."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sightline.errors import BadInput
from sightline.reports import plots, video
from sightline.reports.html import MAX_VIDEO_BYTES, write_report
from sightline.reports.video import read_frames, write_scored_video

METRICS: list[dict[str, Any]] = [
    {"step": 100, "rollout/reward": 0.5, "rollout/success": 0.1, "rollout/return": 12.0},
    {"step": 200, "evaluation/reward": 0.6, "evaluation/success_rate": 0.4, "evaluation/return": 40.0}
    | {"evaluation/ci_low": 0.2, "evaluation/ci_high": 0.6},
    {"step": 300, "rollout/reward": float("nan"), "rollout/return": None},
    {"note": "a line without a step"},
]
RECIPE = """\
description: Balance a pole
env: cartpole
goal: ["pole <script>alert(1)</script> & upright"]
baseline: [pole and cart]
steps: 40000
seed: 3
reward: {kind: zero_shot, encoder: bundled, alpha: 0.5}
learner: {algorithm: DQN}
"""
RESULT: dict[str, Any] = {
    "chosen_step": 36000,
    "success_rate": 0.97,
    "ci_low": 0.91,
    "ci_high": 0.99,
    "episodes": 100,
    "panel": "test-3f9a",
    "return": 191.2,
    "return_ci_low": 187.0,
    "return_ci_high": 195.0,
    "reward": 0.94,
    "measures": {"away_from_wall": 0.88},
    "untrained": {"success_rate": 0.04, "return": 12.4, "reward": 0.71, "measures": {"away_from_wall": 0.41}},
    "seconds": 415.0,
}
PLANE: dict[str, Any] = {
    "axes": [
        {"name": "cart <b>", "unit": "m", "values": [-1, 0, 1]},
        {"name": "pole angle", "unit": "°", "values": [-90, 90]},
    ],
    "reward": [[0.1, 0.2], [0.3, 0.9], [0.2, None]],
}

FILES = [
    *("recipe.yaml", "metrics.jsonl", "result.json", "landscape.json", "versions.json", "warnings.json"),
    *("model_card.md", "command.txt", "videos/untrained.mp4", "videos/chosen.mp4"),
]


def parse(svg: str) -> ElementTree.Element:
    root = ElementTree.fromstring(svg)
    assert root.tag.endswith("svg")
    return root


def words_of(svg: str) -> str:
    return " ".join(" ".join(parse(svg).itertext()).split())


def fabricate(run: Path) -> Path:
    (run / "videos").mkdir(parents=True)
    frames, rewards = np.zeros((3, 16, 16, 3), np.uint8), np.zeros(3)
    for name in ("untrained", "chosen"):
        write_scored_video(run / "videos" / f"{name}.mp4", frames, rewards, 10, name)
    (run / "recipe.yaml").write_text(RECIPE)
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in METRICS) + '{"step": 400, "roll')
    (run / "result.json").write_text(json.dumps(RESULT))
    (run / "landscape.json").write_text(json.dumps(PLANE))
    (run / "versions.json").write_text(json.dumps({"torch": "2.9.0"}))
    (run / "warnings.json").write_text(json.dumps(["the encoder does not know 'wibble'"]))
    (run / "model_card.md").write_text("# A <tiny> encoder")
    (run / "command.txt").write_text("sightline train cartpole seed=3\n")
    return run


def test_learning_curves_have_a_panel_for_each_metric() -> None:
    words = words_of(plots.learning_curves(METRICS, chosen_step=200))
    for expected in (
        "Reward under the words",
        "Success rate",
        "Ground-truth return",
        "chosen checkpoint",
        "95 % interval",
    ):
        assert expected in words
    assert "chosen checkpoint" not in words_of(plots.learning_curves(METRICS))


def test_learning_curves_without_success_show_reward_and_return() -> None:
    words = words_of(plots.learning_curves([{"step": 1, "rollout/reward": 0.1, "rollout/return": 2}]))
    assert "Success" not in words and "Ground-truth return" in words


@pytest.mark.parametrize("metrics", [[], [{"step": 0}], [{"step": 5, "evaluation/return": 1.0}]])
def test_learning_curves_take_any_missing_keys(metrics: list[dict[str, Any]]) -> None:
    assert "not recorded" in words_of(plots.learning_curves(metrics))


def test_a_step_written_again_counts_once() -> None:
    steps, values = plots._series([{"step": 2, "a": 1}, {"step": 1, "a": 0}, {"step": 2, "a": 3}], "a")
    assert steps.tolist() == [1, 2] and values.tolist() == [0, 3]


def test_landscape_of_one_and_two_axes() -> None:
    assert "cart <b> (m)" in words_of(plots.landscape(PLANE))
    curve = {"axes": PLANE["axes"][:1], "reward": [0.1, None, 0.3]}
    assert "reward" in words_of(plots.landscape(curve))
    with pytest.raises(ValueError, match="cannot be drawn"):
        plots.landscape({"axes": PLANE["axes"], "reward": [0.1, 0.2, 0.3]})


def test_plots_are_reproducible_and_change_no_global_state() -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    assert plots.learning_curves(METRICS) == plots.learning_curves(METRICS)
    assert dict(matplotlib.rcParams) == before


def test_score_curve_is_a_png() -> None:
    png = plots.score_curve(np.array([0.1, 0.5, np.nan, 0.2]), "a $5 note, then $3")
    assert png.startswith(b"\x89PNG") and int.from_bytes(png[16:20], "big") == 1280


@pytest.mark.parametrize("size", [(48, 64), (33, 31), (401, 301)])
def test_video_round_trip(tmp_path: Path, size: tuple[int, int]) -> None:
    frames = np.zeros((20, *size, 3), np.uint8)
    frames[:, :, : size[1] // 2] = (200, 40, 40)
    frames[:, :, size[1] // 2 :] = (30, 60, 180)
    path = tmp_path / "videos" / "clip.mp4"
    write_scored_video(path, frames, np.linspace(-1, 1, 20), fps=20, caption="a caption " * 30)
    read = list(read_frames(path))
    assert len(read) == 20 and list(path.parent.iterdir()) == [path]
    height, width = read[0].shape[:2]
    picture = max(384, size[0])
    assert height % 2 == width % 2 == 0 and picture < height < 2 * picture
    middle = width / 2
    enlarged = size[1] * -(-384 // size[0]) if size[0] < 384 else size[1]
    left, right = (read[0][100, round(middle + side * enlarged / 4)] for side in (-1, 1))
    assert np.abs(left.astype(int) - (200, 40, 40)).max() < 16
    assert np.abs(right.astype(int) - (30, 60, 180)).max() < 16


def test_the_strip_moves_with_the_reward(tmp_path: Path) -> None:
    frames, rewards = np.zeros((4, 32, 32, 3), np.uint8), np.array([0.0, 1.0, np.nan, 0.5])
    strips = [picture[384:] for picture in video._scored_pictures(frames, rewards, "x", (0.0, 1.0))]
    ys = [np.argwhere(np.abs(strip.astype(int) - (213, 94, 0)).sum(axis=2) < 30)[:, 0] for strip in strips]
    assert ys[1].mean() < ys[3].mean() < ys[0].mean() and len(ys[2]) == 0


@pytest.mark.parametrize(
    ("frames", "rewards"),
    [
        (np.zeros((4, 8, 8), np.uint8), np.zeros(4)),
        (np.zeros((4, 8, 8, 3), np.float32), np.zeros(4)),
        (np.zeros((0, 8, 8, 3), np.uint8), np.zeros(0)),
        (np.zeros((4, 8, 8, 3), np.uint8), np.zeros(3)),
    ],
)
def test_wrong_shapes_leave_no_file(tmp_path: Path, frames: np.ndarray, rewards: np.ndarray) -> None:
    with pytest.raises(ValueError):
        write_scored_video(tmp_path / "clip.mp4", frames, rewards, 10, "")
    assert not list(tmp_path.iterdir())


def test_interrupted_writing_leaves_the_video_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "clip.mp4"
    path.write_bytes(b"the video before")

    def interrupted(*_: Any) -> Iterator[np.ndarray]:
        yield np.zeros((64, 64, 3), np.uint8)
        raise KeyboardInterrupt

    monkeypatch.setattr(video, "_scored_pictures", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_scored_video(path, np.zeros((4, 8, 8, 3), np.uint8), np.zeros(4), 10, "")
    assert list(tmp_path.iterdir()) == [path] and path.read_bytes() == b"the video before"


def test_gif_frames_are_exact(tmp_path: Path) -> None:
    from PIL import Image

    colours = [(255, 0, 0), (0, 255, 0), (0, 0, 255)]
    pictures = [Image.new("RGB", (20, 10), colour) for colour in colours]
    pictures[0].save(tmp_path / "clip.gif", save_all=True, append_images=pictures[1:], duration=[40, 400, 70])
    read = list(read_frames(tmp_path / "clip.gif"))
    assert [tuple(frame[5, 5]) for frame in read] == colours and read[0].shape == (10, 20, 3)


@pytest.mark.parametrize("name", ["broken.mp4", "broken.gif", "missing.mp4"])
def test_what_is_no_video_is_said_in_one_line(tmp_path: Path, name: str) -> None:
    if name.startswith("broken"):
        (tmp_path / name).write_bytes(b"this is text, not a video")
    with pytest.raises(BadInput) as caught:
        list(read_frames(tmp_path / name))
    assert name in str(caught.value) and "\n" not in str(caught.value)


def test_report_shows_the_run_and_loads_nothing(tmp_path: Path) -> None:
    page = write_report(fabricate(tmp_path / "run")).read_text("utf-8")
    assert "pole &lt;script&gt;alert(1)&lt;/script&gt; &amp; upright" in page and "<script" not in page
    for load in ('src="http', 'href="http', "url(http", "@import", "<link"):
        assert load not in page
    for shown in ("Balance a pole", "wibble", "test-3f9a", "A &lt;tiny&gt; encoder", "2.9.0", "train cartpole seed=3"):
        assert shown in page
    plain = page.replace("\u202f", " ")
    for number in ("4 %", "97 %", "91 % – 99 %", "12.4", "191", "187 – 195", "0.710", "88 %", "36 000", "7 min"):
        assert number in plain
    assert page.count("data:video/mp4;base64,") == 2 and page.count("<svg") == 2


def test_report_of_an_empty_folder(tmp_path: Path) -> None:
    page = write_report(tmp_path).read_text("utf-8")
    for gentle in ("not been evaluated", "No metrics", "No videos", "not measured over", "Neither recipe"):
        assert gentle in page
    assert (
        tmp_path.name in page and "None" not in page and [file.name for file in tmp_path.iterdir()] == ["report.html"]
    )


@pytest.mark.parametrize("name", FILES)
def test_report_tolerates_any_missing_or_broken_file(tmp_path: Path, name: str) -> None:
    run = fabricate(tmp_path / "run")
    if not name.endswith(".mp4"):
        (run / name).write_text("{[")
        assert write_report(run).is_file()
    (run / name).unlink()
    assert "None" not in write_report(run).read_text("utf-8").replace(RECIPE, "")


def test_without_known_success_the_return_is_the_headline(tmp_path: Path) -> None:
    run = fabricate(tmp_path / "run")
    unknown = {"success_rate": None, "ci_low": None, "ci_high": None}
    (run / "result.json").write_text(json.dumps(RESULT | unknown | {"untrained": unknown | {"return": 12.4}}))
    page = write_report(run).read_text("utf-8")
    headline = page[page.index('class="headline"') :]
    assert "Success rate, before" not in page and "12.4" in headline[:200] and "187 – 195" in page


def test_a_large_video_is_named_instead(tmp_path: Path) -> None:
    run = fabricate(tmp_path / "run")
    with (run / "videos" / "chosen.mp4").open("ab") as file:
        file.truncate(MAX_VIDEO_BYTES)
    page = write_report(run).read_text("utf-8")
    assert "too large" in page and page.count("data:video/mp4;base64,") == 1
