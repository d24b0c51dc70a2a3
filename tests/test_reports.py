"""Plots, videos and the report, on fabricated data."""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sightline.errors import BadInput
from sightline.evaluation import video
from sightline.evaluation.video import write_scored_video
from sightline.images import read_video
from sightline.labels.store import BACKUP, DATABASE, Context, LabelStore
from sightline.labels.types import Answer, Outcome, Question, Segment, preference
from sightline.reports import plots
from sightline.reports.costs import reward_costs
from sightline.reports.examples import LARGE, labels_and_examples
from sightline.reports.run_page import MAX_VIDEO_BYTES, write_report
from sightline.runs.files import write_document

pytestmark = pytest.mark.plots

METRICS: list[dict[str, Any]] = [
    {"step": 100, "rollout/reward": 0.5, "rollout/success": 0.1, "rollout/return": 12.0},
    {"step": 200, "evaluation/reward": 0.6, "evaluation/success_rate": 0.4, "evaluation/return": 40.0}
    | {"evaluation/ci_low": 0.2, "evaluation/ci_high": 0.6},
    {"step": 300, "rollout/reward": float("nan"), "rollout/return": None},
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
    """Text of one or several SVG documents."""
    return " ".join(
        " ".join(text for one in svg.split("</svg>")[:-1] for text in parse(one + "</svg>").itertext()).split()
    )


def write_metrics(run: Path, records: list[dict[str, Any]], rest: str = "") -> None:
    text = "".join(json.dumps(line) + "\n" for line in [{"format": 1}, *records])
    (run / "metrics.jsonl").write_text(text + rest)


def write_recipe(run: Path, text: str) -> None:
    (run / "recipe.yaml").write_text("format: 1\n" + text)


def fabricate(run: Path) -> Path:
    (run / "videos").mkdir(parents=True)
    frames, rewards = np.zeros((3, 16, 16, 3), np.uint8), np.zeros(3)
    for name in ("untrained", "chosen"):
        write_scored_video(run / "videos" / f"{name}.mp4", frames, rewards, 10, name)
    write_recipe(run, RECIPE)
    write_metrics(run, METRICS, '{"step": 400, "roll')
    write_document(run / "result.json", RESULT)
    write_document(run / "landscape.json", PLANE)
    write_document(run / "versions.json", {"torch": "2.9.0"})
    write_document(run / "warnings.json", {"warnings": ["the encoder does not know 'wibble'"]})
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
    words = words_of(plots.learning_curves(metrics))
    assert "Ground-truth return" in words and ("not recorded" in words) == (len(metrics) == 0 or len(metrics[0]) == 1)


def test_plots_follow_light_and_dark() -> None:
    drawn = plots.learning_curves(METRICS, chosen_step=200)
    assert "var(--accent, #0072B2)" in drawn and "#0072b2" not in drawn and "fill: #ffffff" not in drawn


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
    read = list(read_video(path))
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
    read = list(read_video(tmp_path / "clip.gif"))
    assert [tuple(frame[5, 5]) for frame in read] == colours and read[0].shape == (10, 20, 3)


@pytest.mark.parametrize("name", ["broken.mp4", "broken.gif", "missing.mp4"])
def test_what_is_no_video_is_said_in_one_line(tmp_path: Path, name: str) -> None:
    if name.startswith("broken"):
        (tmp_path / name).write_bytes(b"this is text, not a video")
    with pytest.raises(BadInput) as caught:
        list(read_video(tmp_path / name))
    assert name in str(caught.value) and "\n" not in str(caught.value)


def test_report_shows_the_run_and_loads_nothing(tmp_path: Path) -> None:
    page = write_report(fabricate(tmp_path / "run")).read_text("utf-8")
    assert (
        "pole &lt;script&gt;alert(1)&lt;/script&gt; &amp; upright" in page
        and "<script" not in page
        and "onclick" not in page
    )
    for load in ('src="http', 'href="http', "url(http", "@import", "<link"):
        assert load not in page
    for shown in ("Balance a pole", "wibble", "test-3f9a", "A &lt;tiny&gt; encoder", "2.9.0", "train cartpole seed=3"):
        assert shown in page
    plain = page.replace("\u202f", " ")
    for number in ("4 %", "97 %", "91 % – 99 %", "12.4", "191", "187 – 195", "0.710", "88 %", "36 000", "7 min"):
        assert number in plain
    assert page.count("data:video/mp4;base64,") == 2 and page.count("<svg") == 4


def test_a_warm_start_alone_is_not_compared_with_itself(tmp_path: Path) -> None:
    run = fabricate(tmp_path / "run")
    assert "before and after training" in write_report(run).read_text("utf-8")
    write_recipe(run, RECIPE.replace("steps: 40000", "steps: 0"))
    assert "before and after training" not in write_report(run).read_text("utf-8")


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
    write_document(run / "result.json", RESULT | unknown | {"untrained": unknown | {"return": 12.4}})
    page = write_report(run).read_text("utf-8")
    headline = page[page.index('class="headline"') :]
    assert "Success rate, before" not in page and "12.4" in headline[:200] and "187 – 195" in page


def test_a_large_video_is_named_instead(tmp_path: Path) -> None:
    run = fabricate(tmp_path / "run")
    with (run / "videos" / "chosen.mp4").open("ab") as file:
        file.truncate(MAX_VIDEO_BYTES)
    page = write_report(run).read_text("utf-8")
    assert "too large" in page and page.count("data:video/mp4;base64,") == 1


LEARNED = """\
env: cartpole-continuous
goal: ["pole <script>alert(1)</script> upright"]
reward:
  kind: learned
  teacher: {kind: chat, model: "seer <b>7B</b>"}
  feedback: {kind: pairs, sampler: k_center}
  model: {kind: embeddings, encoder: bundled}
  labels: null
"""
ROUNDS: list[dict[str, Any]] = [
    {"step": 1000, "labels/asked": 10, "labels/kept": 8, "labels/first": 0.4, "labels/second": 0.4}
    | {"labels/unsure": 0.2, "labels/accuracy": 0.5, "labels/cost": 0.5, "labels/requests": 20, "labels/tokens": 4000}
    | {"reward/held_out_accuracy": 0.75, "reward/rank_correlation": 0.3, "time/waiting_for_teacher": 3.0},
    {"step": 2000, "labels/asked": 40, "labels/kept": 38, "labels/first": 0.5, "labels/second": 0.3}
    | {"labels/equal": 0.2, "labels/accuracy": 1.0, "labels/cost": 2.25, "labels/requests": 80, "labels/tokens": 16000}
    | {"labels/seconds": 1.5, "reward/rank_correlation": -0.2, "time/waiting_for_teacher": 4.5},
    {"step": 3000, "rollout/reward": 0.2},
]


class Seer:
    name, signature = "seer", "seer v1"


def frame(brightness: int, size: int = 12) -> np.ndarray:
    return np.full((size, size, 3), brightness, np.uint8)


def remember(store: LabelStore, place: int, answer: Answer, run: str = "run", size: int = 12) -> None:
    """Keep an answer to a pair, the second of which is brighter and earns more."""
    pair = []
    for brightness, earned in ((place, 0.0), (place + 100, 1.0)):
        shown = np.stack([frame(0), frame(brightness)]) if size == 12 else frame(brightness, size)[None]
        pair.append(Segment(shown, np.full(len(shown), earned / len(shown), np.float32)))
    store.record(Question("compare", tuple(pair), ("a <i>goal</i>",)), Seer(), answer, Context(run, "task", 10 * place))


def taught(run: Path, answers: int = 20, called: str = "run") -> Path:
    """A run whose teacher gave so many answers, in turn first, second and none."""
    fabricate(run)
    write_recipe(run, LEARNED)
    write_metrics(run, ROUNDS)
    turns = (preference(0.0), preference(1.0), Answer(Outcome.UNSURE))
    with LabelStore(run / "labels") as store:
        for place in range(answers):
            remember(store, place, turns[place % 3], called)
    return run


def section(page: str, heading: str) -> str:
    """From a heading to the next, as text with single spaces."""
    start = page.index(f"<h2>{heading}</h2>")
    return " ".join(page[start : page.find("<h2>", start + 1)].replace("\u202f", " ").split())


def shown_pictures(page: str) -> list[np.ndarray]:
    from PIL import Image

    sources = re.findall(r'src="data:image/\w+;base64,([^"]+)"', page)
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(source)))) for source in sources]


@pytest.mark.parametrize(("late_gap", "late_right", "told"), [(0.1, 0.6, True), (2.0, 0.6, False), (0.1, 1.0, False)])
def test_why_accuracy_fell_is_said_where_pairs_became_alike(
    tmp_path: Path, late_gap: float, late_right: float, told: bool
) -> None:
    """The first 40 pairs are 2 apart and judged right, some of the last 20 wrongly."""
    run = taught(tmp_path / "run", answers=0)
    with LabelStore(run / "labels") as store:
        for number in range(60):
            late = number >= 40
            frames = np.full((2, 1, 8, 8, 3), number, np.uint8)
            frames[1] += 100
            gap = late_gap if late else 2.0
            segments = tuple(
                Segment(shown, np.array([earned], np.float32)) for shown, earned in zip(frames, (0, gap), strict=True)
            )
            right = not late or number % 20 < 20 * late_right
            question = Question("compare", segments, ("a goal",))
            store.record(question, Seer(), preference(float(right)), Context("run", "t", number))
    said = section(write_report(run).read_text("utf-8"), "What the teacher said")
    line = "100 % in the first third and 60 % in the last, as pairs became alike: their true returns differ by 0.1 "
    assert (line in said) == told


def test_what_the_teacher_said_is_counted_over_all_rounds(tmp_path: Path) -> None:
    said = section(write_report(taught(tmp_path / "run")).read_text("utf-8"), "What the teacher said")
    numbers = dict(re.findall(r'<div class="label">([^<]+)</div> <div class="value">([^<]+)</div>', said))
    # Of 8 decided pairs half are right, of 24 all: 28 of 32.
    assert numbers == {
        "Labels": "40", "Usable": "95 %", "Accuracy": "88 %", "Cost": "2.25", "Waited for teacher": "7.5 s"
    }  # fmt: skip
    for note in ("2 rounds", "2 unsure", "80 requests, 16 000 tokens", "1.5 s for an answer", "for measuring only"):
        assert note in said
    for panel in ("Questions", "usable answers", "labels, by ground truth", "Rank correlation with ground truth"):
        assert panel in said


def test_a_learned_reward_is_called_so(tmp_path: Path) -> None:
    page = write_report(taught(tmp_path / "run")).read_text("utf-8")
    assert "Reward under the words" not in page and "What the words reward" not in page and "None" not in page
    assert page.count("Learned reward") == 2 and "the learned reward is higher" in section(
        page, "What the learned reward likes"
    )
    facts = dict(re.findall("<dt>([^<]+)</dt><dd>([^<]+)</dd>", page))
    assert facts["Teacher"] == "chat, seer &lt;b&gt;7B&lt;/b&gt;" and facts["Feedback"] == "pairs, k center"
    assert facts["Reward network"] == "embeddings, bundled" and facts["Questions asked"] == "40"
    assert "Encoder" not in facts and "<script" not in page and "onclick" not in page and "<b>" not in page


@pytest.mark.parametrize(
    ("kind", "name", "heading"),
    [
        ("zero_shot", "Reward under the words", "What the words reward"),
        ("progress", "Reward under the words", "What the words reward"),
        ("ground_truth", "Environment reward", "What the environment rewards"),
        ("sparse", "Success as reward", "What counts as success"),
    ],
)
def test_every_other_reward_has_its_name_and_no_teacher(tmp_path: Path, kind: str, name: str, heading: str) -> None:
    run = fabricate(tmp_path / "run")
    write_recipe(run, f"reward: {{kind: {kind}}}")
    page = write_report(run).read_text("utf-8")
    assert page.count(name) == 2 and f"<h2>{heading}</h2>" in page
    assert "What the teacher said" not in page and "<dt>Teacher" not in page and not (run / "labels").exists()


@pytest.mark.parametrize(
    ("reward", "facts"),
    [
        ("{teacher: {kind: encoder, encoder: bundled}, feedback: {kind: ratings, levels: 4}, model: {kind: cnn}}",
         ("<dd>encoder, bundled<", "<dd>ratings, 4 levels<", "<dd>cnn<")),
        ("{teacher: {kind: human, name: human}, feedback: {kind: scores}, model: {kind: states}}",
         ("<dd>human<", "<dd>scores<", "<dd>states<")),
        ("{teacher: {kind: human, name: Ada}, feedback: {kind: ladder, size: 10}}",
         ("<dd>human, Ada<", "<dd>ladder, 10 rungs<")),
        ("{teacher: 3, feedback: [], model: null}", ("<dd>learned<",)),
    ],
)  # fmt: skip
def test_facts_of_a_learned_reward(tmp_path: Path, reward: str, facts: tuple[str, ...]) -> None:
    write_recipe(tmp_path, "reward: {kind: learned, " + reward[1:])
    page = write_report(tmp_path).read_text("utf-8")
    assert all(fact in page for fact in facts) and "<dd>None" not in page and ", None" not in page


def test_what_rewards_have_cost_is_said_in_words() -> None:
    assert reward_costs([{"step": 1, "reward/loss": 0.5}]) == ""
    counts = {"requests": 1200.0, "failed_requests": 2.0, "asked": 400.0, "unanswered": 0.0, "input_tokens": 90000.0}
    metrics = [{"step": 1, "reward/requests": 3.0}, {"step": 2} | {f"reward/{name}": n for name, n in counts.items()}]
    words = "1 200 requests, 2 failed, 400 questions, 90 000 tokens read"
    assert reward_costs(metrics).replace("\u202f", " ") == words
    metrics.append({"step": 3, "reward/money": 1.5, "reward/seconds": 75.0})
    assert reward_costs(metrics).replace("\u202f", " ") == f"{words}, 75 s until answers came, 1.50 paid"


def test_a_script_does_not_measure_only(tmp_path: Path) -> None:
    run = taught(tmp_path / "run")
    write_recipe(run, "reward: {kind: learned, teacher: {kind: scripted}}")
    said = section(write_report(run).read_text("utf-8"), "What the teacher said")
    assert "The teacher is a script" in said and "measuring only" not in said


@pytest.mark.parametrize("end", [0.42, 0.97, None])
def test_success_at_the_end_is_said_if_it_differs(tmp_path: Path, end: float | None) -> None:
    run = fabricate(tmp_path / "run")
    untrained = RESULT["untrained"] | {"success_end": 0.03}
    write_document(run / "result.json", RESULT | {"success_end": end, "untrained": untrained})
    page = write_report(run).read_text("utf-8").replace("\u202f", " ")
    assert ("Success at the end" in page) == ("42 %" in page) == ("3 %<" in page) == (end == 0.42)


def test_answers_are_shown_from_the_first_to_the_last(tmp_path: Path) -> None:
    page = write_report(taught(tmp_path / "run")).read_text("utf-8")
    said = section(page, "What the teacher said")
    steps = [int(step) for step in re.findall(r"Step (\d+):", said)]
    # Of the places 0, 1, 3, 4, …, 18, 19 those nearest to six equal distances.
    assert len(steps) == 6 and steps[0] == 0 and steps[-1] == 190 and steps == sorted(steps)
    assert max(np.diff(steps)) <= 50
    assert all(step // 10 % 3 != 2 for step in steps), "an answer that taught nothing was shown"
    for step, figure in zip(steps, said.split("<figure>")[1:], strict=True):
        first = step // 10 % 3 == 0
        assert ("left preferred" in figure) == ("unlike ground truth" in figure) == first
        assert ("right preferred" in figure) == (not first)
        classes = re.findall('<img class="([^"]*)"', figure)
        assert [" preferred" in names for names in classes] == [first, not first]
        assert all(names.startswith("tiny") for names in classes)
        brightness = [picture.mean() for picture in shown_pictures(figure)]
        assert brightness == [step // 10, step // 10 + 100], "not the last frames of the pair"


def test_large_pictures_are_made_small(tmp_path: Path) -> None:
    run = taught(tmp_path / "run", answers=0)
    with LabelStore(run / "labels") as store:
        remember(store, 1, preference(0.5), size=3 * LARGE)
    page = write_report(run).read_text("utf-8")
    assert [picture.shape for picture in shown_pictures(page)] == [(LARGE, LARGE, 3)] * 2
    assert ": equal" in page and 'class="tiny' not in page and "unlike" not in page


def test_ratings_and_scores_show_one_picture(tmp_path: Path) -> None:
    with LabelStore(tmp_path / "labels") as store:
        single = (Segment(frame(9)[None], np.zeros(1, np.float32)),)
        here = Context(tmp_path.name, "task", 5)
        store.record(Question("rate", single, ("goal",), 3), Seer(), Answer(Outcome.VALUE, 2.0), here)
        store.record(Question("score", single, ("goal",)), Seer(), Answer(Outcome.VALUE, 0.25), here)
    found = labels_and_examples(tmp_path)[1]
    assert found is not None and [example.answer for example in found] == ["level 2 of 0 to 2", "score 0.25"]
    assert [len(example.pictures) for example in found] == [1, 1] and found[0].right is None


def test_a_renamed_run_still_shows_its_own_labels(tmp_path: Path) -> None:
    assert len(labels_and_examples(taught(tmp_path / "run", called="its name before"))[1] or []) == 6


def test_a_shared_store_shows_only_what_the_run_asked(tmp_path: Path) -> None:
    run = taught(tmp_path / "run", answers=0)
    shutil.rmtree(run / "labels")
    bundled = (
        "env: cartpole\ngoal: a pole\nsteps: 9000\nreward: {kind: learned, labels: SHARED}\nlearner: {algorithm: SAC}"
    )
    write_recipe(run, bundled.replace("SHARED", str(tmp_path / "shared")))
    with LabelStore(tmp_path / "shared") as store:
        remember(store, 1, preference(0.0), "another")
        assert labels_and_examples(run)[1] == []
        remember(store, 2, preference(0.0), "run")
        assert [example.step for example in labels_and_examples(run)[1] or []] == [20]


def test_without_a_store_the_numbers_stand(tmp_path: Path) -> None:
    run = taught(tmp_path / "run")
    shutil.rmtree(run / "labels")
    said = section(write_report(run).read_text("utf-8"), "What the teacher said")
    assert "cannot be shown" in said and "88 %" in said and "<img" not in said and not (run / "labels").exists()


def overwrite_database(labels: Path) -> None:
    (labels / DATABASE).write_bytes(b"no database " * 999)


def cut_the_database(labels: Path) -> None:
    data = (labels / DATABASE).read_bytes()
    (labels / DATABASE).write_bytes(data[:8192] + b"\xff" * 4096 + data[12288:])


def lose_the_database(labels: Path) -> None:
    (labels / DATABASE).unlink()


def lose_the_frames(labels: Path) -> None:
    shutil.rmtree(labels / "frames")


def overwrite_the_frames(labels: Path) -> None:
    for file in (labels / "frames").rglob("*.png"):
        file.write_bytes(b"no picture")


def spoil_a_field(labels: Path) -> None:
    import sqlite3

    with sqlite3.connect(labels / DATABASE) as database:
        database.execute("UPDATE labels SET segments = '{not json'")
    database.close()


@pytest.mark.parametrize(
    "damage",
    [overwrite_database, cut_the_database, lose_the_database, lose_the_frames, overwrite_the_frames, spoil_a_field],
)
def test_a_damaged_store_costs_one_line(tmp_path: Path, damage: Any) -> None:
    run = taught(tmp_path / "run")
    assert (run / "labels" / BACKUP).is_file()
    damage(run / "labels")
    said = section(write_report(run).read_text("utf-8"), "What the teacher said")
    assert said.count("cannot be shown: the label store is missing or damaged") == 1 and "<img" not in said


def test_a_single_damaged_picture_is_passed_over(tmp_path: Path) -> None:
    run = taught(tmp_path / "run", answers=5)
    with LabelStore(run / "labels") as store:
        store.frame_files(store.labels()[1].segments[1])[-1].write_bytes(b"no picture")
    assert [example.step for example in labels_and_examples(run)[1] or []] == [0, 30, 40]


def test_the_page_about_labels_is_named_if_it_is_there(tmp_path: Path) -> None:
    run = taught(tmp_path / "run")
    assert "sightline label stats" in write_report(run).read_text("utf-8")
    (run / "labels.html").write_text("the page")
    page = write_report(run).read_text("utf-8")
    assert 'href="labels.html"' in page and "sightline label stats" not in page


def test_teaching_curves_leave_out_what_was_not_measured() -> None:
    assert plots.teaching_curves([{"step": 5, "rollout/reward": 1.0}, {"note": "no step"}]) == ""
    words = words_of(plots.teaching_curves([{"step": 5, "labels/asked": 4, "labels/accuracy": None}]))
    assert "asked" in words and "Accuracy" not in words and "correlation" not in words and "usable" not in words


def test_a_smaller_panel_before_training_is_told(tmp_path: Path) -> None:
    run = fabricate(tmp_path / "run")
    before = RESULT | {"success_rate": 0.0, "ci_low": 0.0, "ci_high": 0.16, "episodes": 20}
    write_document(run / "result.json", RESULT | {"episodes": 100, "untrained": before})
    page = write_report(run).read_text("utf-8")
    assert re.search(r"0\s*%\s*–\s*16\s*% \(20 episodes\) before", page)
    write_document(run / "result.json", RESULT | {"episodes": 20, "untrained": before})
    assert "(20 episodes) before" not in write_report(run).read_text("utf-8")
