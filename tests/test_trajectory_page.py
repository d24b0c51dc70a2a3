"""The page of episodes and the report of an agent, made of runs of scripted play."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sightline.reports import plots, trajectories_page
from sightline.reports.run_page import write_report
from sightline.reports.trajectories_page import recorded_sets, write_trajectories
from sightline.reports.verdicts import looking_verdict
from small_runs import EVIL, fabricate_run, fabricated_metrics

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fabricate_run(tmp_path_factory.mktemp("agents") / "run").path


@pytest.fixture
def run(recorded: Path, tmp_path: Path) -> Path:
    """A copy that may be spoiled."""
    return Path(shutil.copytree(recorded, tmp_path / "run"))


def embedded(page: Path) -> dict[str, Any]:
    found = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    assert len(found) == 1
    data: dict[str, Any] = json.loads(found[0])
    return data


def loads_nothing(text: str) -> bool:
    return "default-src 'none'" in text and not re.search(r"""(src|href)=["']?(https?:)?//|@import|url\((?!#)""", text)


# -- the page of episodes ----------------------------------------------------------------------------------------------


def test_the_page_holds_all_that_was_recorded(run: Path) -> None:
    page = write_trajectories(run)
    assert page == run / "trajectories.html" and loads_nothing(page.read_text())
    data = embedded(page)
    assert [one["name"] for one in data["sets"]] == [
        *("test-real", "test-blank", "test-shuffled", "update-0001", "update-0004")
    ]
    assert [one["title"] for one in data["sets"]][1:4] == [
        "test, blank observations",
        "test, shuffled observations",
        "update 1",
    ]
    for one in data["sets"]:
        written = json.loads((run / "trajectories" / f"{one['name']}.json").read_text())["episodes"]
        assert [episode["seed"] for episode in one["episodes"]] == [episode["seed"] for episode in written]
        for shown, episode in zip(one["episodes"], written, strict=True):
            for turn, as_written in zip(shown["turns"], episode["turns"], strict=True):
                assert "".join(token[0] for token in turn["tokens"]) == as_written["reply"]
                assert data["prompts"][turn["prompt"]] == as_written["prompt"]
                advantages = [token[3] if len(token) > 3 else turn["advantage"] for token in turn["tokens"]]
                assert advantages == [advantage for _, _, advantage, _ in as_written["tokens"]]
                assert turn["true"] == as_written["true"] and turn["action"] == as_written["action"]
    named = {digest for one in data["sets"] for e in one["episodes"] for t in e["turns"] for digest in t["pictures"]}
    assert set(data["pictures"]) == named  # each once
    assert all(url.startswith("data:image/png;base64,") for url in data["pictures"].values())


def test_what_a_reply_says_is_never_markup(run: Path) -> None:
    page = write_trajectories(run).read_text()
    assert EVIL not in page and "<img src=x" not in page
    assert page.count("\\u003c/script\\u003e\\u003cimg") > 2  # it is there, as text


def test_updates_come_in_order_of_their_numbers(tmp_path: Path) -> None:
    folder = tmp_path / "trajectories"
    folder.mkdir()
    for name in ("update-10000", "update-0002", "test-shuffled", "watched", "test-real", "update-0010"):
        (folder / f"{name}.json").write_text('{"format": 1, "episodes": []}')
    assert [one.name for one in recorded_sets(tmp_path)[0]] == [
        *("test-real", "test-shuffled", "watched", "update-0002", "update-0010", "update-10000")
    ]


@pytest.mark.parametrize("episodes", ["", "{}", "[{}]", '[{"turns": [{}]}]', "null", '["a"]', '[{"turns": 3}]', "\x00"])
def test_damaged_records_are_named_and_left_out(run: Path, episodes: str) -> None:
    (run / "trajectories" / "update-0001.json").write_text(f'{{"format": 1, "episodes": {episodes}}}')
    page = write_trajectories(run)
    assert "update-0001.json is damaged" in page.read_text()
    assert [one["name"] for one in embedded(page)["sets"]][3:] == ["update-0004"]
    assert write_report(run).is_file()


def test_a_missing_picture_is_no_reason_to_fail(run: Path) -> None:
    missing = next((run / "trajectories" / "pictures").iterdir())
    missing.unlink()
    assert embedded(write_trajectories(run))["pictures"][missing.stem] is None


def test_a_picture_is_never_taken_from_elsewhere(run: Path) -> None:
    file = run / "trajectories" / "update-0001.json"
    document = json.loads(file.read_text())
    episodes = document["episodes"]
    (run / "secret.png").write_bytes(b"secret")
    episodes[0]["turns"][0]["pictures"] = ["../../secret"]
    file.write_text(json.dumps(document))
    assert embedded(write_trajectories(run))["pictures"]["../../secret"] is None


def test_early_updates_give_way(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = embedded(write_trajectories(run))
    size = sum(len(json.dumps(one, ensure_ascii=False)) for one in data["sets"])
    size += sum(len(url) for url in data["pictures"].values())
    monkeypatch.setattr(trajectories_page, "MAX_BYTES", size)
    assert len(embedded(write_trajectories(run))["sets"]) == 5
    monkeypatch.setattr(trajectories_page, "MAX_BYTES", size - 1)
    page = write_trajectories(run)
    assert [one["name"] for one in embedded(page)["sets"]] == [
        *("test-real", "test-blank", "test-shuffled", "update-0004")
    ]
    assert "Left out, so that the page stays light: update 1." in page.read_text()
    monkeypatch.setattr(trajectories_page, "MAX_BYTES", 1)
    assert [one["name"] for one in embedded(write_trajectories(run))["sets"]] == ["test-real"]


def test_without_records_there_is_a_page_all_the_same(tmp_path: Path) -> None:
    text = write_trajectories(tmp_path).read_text()
    assert "Nothing was recorded" in text and loads_nothing(text)


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (Debian: chromium)")
@pytest.mark.parametrize(
    ("anchor", "said"),
    [
        ("", ("Episode 1, ", "Turn 1 of", "test, real observations")),
        ("#update-0001/1/2", ("Turn 2 of", "advantage", "What it says it sees")),
        ("#update-0001/12/1", ("The environment broke down: OSError: the simulator is gone",)),
        ("#nonsense/%/x", ("Episode 1, ",)),
    ],
)
def test_a_browser_shows_it(run: Path, anchor: str, said: tuple[str, ...]) -> None:
    shown = in_browser(f"{write_trajectories(run).as_uri()}{anchor}")
    for words in said:
        assert words in shown
    assert "<img src=x" not in shown.replace("&lt;img", "")


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (Debian: chromium)")
def test_filters_and_keys(run: Path) -> None:
    """A script that is added to the page uses it and leaves what it found in the page's title."""
    page = write_trajectories(run)
    count = dict.fromkeys(("won", "lost", "unparsable", "untruthful", "illegal"), 0)
    for episode in json.loads((run / "trajectories" / "update-0001.json").read_text())["episodes"]:
        turns = episode["turns"]
        count["won"] += episode["success"] and not episode["error"]
        count["lost"] += not episode["success"] and not episode["error"]
        count["unparsable"] += any(turn["failure"] for turn in turns)
        count["untruthful"] += any(not all(turn["true"].values()) for turn in turns)
        count["illegal"] += any(turn["action"] and not turn["legal"] for turn in turns)
    script = """
    const found = {}, rows = () => document.querySelectorAll("#list button").length;
    const chips = () => [...document.querySelectorAll("#outcomes button")];
    const chip = (name) => chips().find((b) => b.textContent.startsWith(name + " "));
    const key = (name) => document.body.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true }));
    for (const name of ["won", "lost", "unparsable", "untruthful", "illegal"]) {
      chip(name).click(); found[name] = rows();
      if (chip(name).getAttribute("aria-pressed") === "true") chip(name).click();
    }
    found.all = rows();
    key("ArrowDown"); found.down = location.hash; key("ArrowRight"); found.right = location.hash;
    key("ArrowLeft"); key("ArrowUp"); found.back = location.hash;
    const search = document.getElementById("search");
    search.value = "RATHER not"; search.dispatchEvent(new Event("input")); found.search = rows();
    search.value = "no such words"; search.dispatchEvent(new Event("input")); found.nothing = rows();
    document.title = JSON.stringify(found);
    """
    page.write_text(page.read_text().replace("follow();\n</script>", f"follow();\n{script}</script>"))
    shown = in_browser(f"{page.as_uri()}#update-0001/1/1")
    found = json.loads(html.unescape(re.findall(r"<title>(.*?)</title>", shown, re.DOTALL)[0]))
    assert {name: found[name] for name in count} == count
    assert (found["all"], found["nothing"]) == (12, 0) and found["search"] == count["unparsable"]
    assert found["down"] == "#update-0001/2/1" and found["back"] == "#update-0001/1/1"
    assert found["right"] in ("#update-0001/2/2", "#update-0001/2/1")


def in_browser(address: str) -> str:
    """The page's markup once its scripts have run."""
    assert CHROMIUM is not None
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=2000", "--dump-dom"]
    done = subprocess.run([CHROMIUM, *options, address], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


# -- the report --------------------------------------------------------------------------------------------------------


@pytest.mark.plots
def test_the_report_shows_the_run_and_loads_nothing(run: Path) -> None:
    write_trajectories(run)
    page = write_report(run)
    text = page.read_text()
    assert page == run / "report.html" and loads_nothing(text)
    words = " ".join(html.unescape(re.sub(r"<style>.*?</style>|<[^>]*>", " ", text, flags=re.DOTALL)).split())
    result = json.loads((run / "result.json").read_text())
    for numbers in (result, result["untrained"], result["blank"], result["shuffled"], result["random"]):
        rate, low, high = (f"{100 * numbers[name]:.0f} %" for name in ("success_rate", "ci_low", "ci_high"))
        assert f"{rate} {low} – {high}" in words
    for expected in (
        *("Number line, learned by looking", "Does it look?", "Random legal actions", "The game's own best play"),
        *("By kind", "Success rate, and true replies", "KL divergence", "Learning rate", "turn 3 600"),
        *("raise <b>update.kl_thoughts</b>", "Test, real observations, episode", "sightline train numberline seed=3"),
        *("kl_thoughts: 0.0", "2.9.0", "21 min"),
    ):
        assert expected in words
    assert "raise <b>" not in text
    assert 'href="trajectories.html#test-real/' in text and text.count("data:image/png") >= 1


def test_a_game_in_words_shows_what_was_told(run: Path) -> None:
    for file in (run / "trajectories").glob("*.json"):
        document = json.loads(file.read_text())
        for episode in document["episodes"]:
            for turn in episode["turns"]:
                turn |= {"pictures": [], "prompt": "You are <b>in</b> a hall." + " It is long." * 100}
        file.write_text(json.dumps(document))
    result = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps(result | {"control": "words"}))
    text = write_report(run).read_text()
    assert "with no words of the state (of its text only what those of all states begin with" in text
    assert "You are &lt;b&gt;in&lt;/b&gt; a hall." in text and "It is long. …" not in text and " …</div>" in text
    assert "what was told" in text and "no picture" not in text and "Does it read?" in text


@pytest.mark.plots
def test_the_report_of_an_empty_folder(tmp_path: Path) -> None:
    text = write_report(tmp_path).read_text()
    for expected in ("has not been evaluated yet", "No metrics were recorded yet", "Neither recipe nor versions"):
        assert expected in text
    assert "Does it look?" not in text


@pytest.mark.parametrize(
    "name",
    [
        *("recipe.yaml", "versions.json", "warnings.json", "command.txt", "trajectories/test-real.json"),
        # What plots are made of.
        *(pytest.param(name, marks=pytest.mark.plots) for name in ("metrics.jsonl", "result.json")),
    ],
)
@pytest.mark.parametrize("content", [None, "[", "null", "[1]"])
def test_the_report_tolerates_any_missing_or_broken_file(run: Path, name: str, content: str | None) -> None:
    (run / name).unlink()
    if content is not None:
        (run / name).write_text(content)
    assert "</html>" in write_report(run).read_text()


def test_a_result_without_comparisons_is_shown(run: Path) -> None:
    result = json.loads((run / "result.json").read_text())
    for name in ("blank", "shuffled", "oracle", "untrained", "kinds", "truthful_replies"):
        result[name] = None
    (run / "result.json").write_text(json.dumps(result))
    text = write_report(run).read_text()
    assert "Does it look?" not in text and "By kind" not in text and "best play" not in text


def numbers(rate: float, reach: float) -> dict[str, float]:
    return {"success_rate": rate, "ci_low": rate - reach, "ci_high": rate + reach}


@pytest.mark.parametrize(
    ("real", "blank", "shuffled", "answer"),
    [
        (numbers(0.9, 0.05), numbers(0.5, 0.05), numbers(0.4, 0.05), "Yes"),
        (numbers(0.9, 0.05), numbers(0.5, 0.05), numbers(0.84, 0.05), "Not shown"),
        (numbers(0.9, 0.05), numbers(0.82, 0.05), numbers(0.4, 0.05), "Not shown"),
        (numbers(0.6, 0.3), numbers(0.5, 0.3), numbers(0.6, 0.3), "Not shown"),
        (numbers(0.6, 0.1), numbers(0.6, 0.1), numbers(0.7, 0.1), "No"),
        (numbers(0.0, 0.03), numbers(0.0, 0.03), numbers(0.0, 0.03), "Not shown"),
    ],
)
def test_it_looks_only_if_both_blind_intervals_lie_below(
    real: dict[str, Any], blank: dict[str, Any], shuffled: dict[str, Any], answer: str
) -> None:
    verdict = looking_verdict({**real, "blank": blank, "shuffled": shuffled})
    assert verdict is not None and verdict.answer == answer and verdict.good == (answer == "Yes")
    assert looking_verdict({**real, "blank": blank}) is None
    told = looking_verdict({**real, "blank": blank, "shuffled": shuffled}, text_only=True)
    assert told is not None and told.answer == "It cannot"


@pytest.mark.plots
@pytest.mark.parametrize("metrics", [[], [{"step": 0}], [{"step": 5, "rollout/illegal": 0.1}], [{"note": "no step"}]])
def test_curves_take_any_missing_keys(metrics: list[dict[str, Any]]) -> None:
    assert plots.learning_curves(metrics, 3).startswith("<svg")
    vitals = plots.agent_vitals(metrics)
    assert bool(vitals) == any("rollout/illegal" in line for line in metrics)


@pytest.mark.plots
def test_curves_say_what_they_show() -> None:
    words = plots.learning_curves(fabricated_metrics(), 3600)
    for expected in ("Success rate, and true replies", "true replies", "chosen checkpoint", "evaluation"):
        assert expected in words
    assert "chosen checkpoint" not in plots.learning_curves(fabricated_metrics())
