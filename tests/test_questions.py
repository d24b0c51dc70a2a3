"""Questions about pictures as games: tables, data sets, answers, rewards of one's own, wrong input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sightline.agents.demos import demonstrations
from sightline.agents.evaluation import oracle_play, random_play
from sightline.agents.rollouts import RolloutWorker
from sightline.config.agents import Replies, WarmStart
from sightline.envs.games.checking import check_game
from sightline.envs.games.contract import ActionText
from sightline.envs.games.making import GameMaker
from sightline.envs.games.questions import Questions
from sightline.errors import BadInput, RunFailed
from sightline.evaluation.seeds import make_panel


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Ten pictures of one grey each, and how bright they are."""
    lines = ["file_name,question,answer,room"]
    for number in range(10):
        Image.new("RGB", (40, 20), (number * 25,) * 3).save(tmp_path / f"{number}.png")
        lines.append(f'{number}.png,"How bright, and why?",{number * 25},{"dark" if number < 5 else "light"}')
    (tmp_path / "table.csv").write_text("\n".join(lines))
    return tmp_path


def test_a_question_is_asked_and_answered(photos: Path) -> None:
    game = GameMaker("questions", {"data": str(photos), "kind": "room", "render_size": [32, 32]})()
    assert isinstance(game.action_space, ActionText)
    observation, info = game.reset(seed=1)
    assert game.observation_space.contains(observation)
    assert observation.text == "How bright, and why?" and info["legal_actions"] == ()
    grey = int(observation.images[0][16, 16, 0])
    assert tuple(observation.images[0][0, 0]) == (128, 128, 128), "a wide picture is fitted in, with a border"
    assert info["kind"] == ("dark" if grey < 125 else "light")
    _, reward, terminated, _, info = game.step(f" {grey} ")
    assert (reward, terminated, info["success"]) == (1.0, True, True)
    game.reset(seed=1)
    assert game.step("no idea")[1] == 0.0


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_tables_of_excel_and_windows_are_read(photos: Path, encoding: str) -> None:
    """They begin with a mark of their byte order, which nobody sees."""
    table = (photos / "table.csv").read_text().replace("why?", "où?").replace("\n", "\r\n")
    (photos / "table.csv").write_bytes(table.encode(encoding))
    observation, _ = Questions(str(photos)).reset(seed=1)
    assert observation.text == "How bright, and où?"


def test_every_fifth_question_is_held_out(photos: Path) -> None:
    asked = {held: Questions(str(photos), held_out=held) for held in (False, True)}
    seen: dict[bool, set[int]] = {False: set(), True: set()}
    for held, game in asked.items():
        for seed in range(60):
            observation, _ = game.reset(seed=seed)
            seen[held].add(int(observation.images[0][112, 112, 0]))
    assert seen == {True: {100, 225}, False: {number * 25 for number in range(10)} - {100, 225}}


def test_a_reward_of_ones_own(photos: Path) -> None:
    game = Questions(str(photos), pay=lambda answer, row: 1 - abs(int(answer) - int(row["answer"])) / 255)
    game.reset(seed=0)
    best = str(game.oracle())
    assert game.step(best)[1] == 1.0
    game.reset(seed=0)
    _, reward, _, _, info = game.step(str(int(best) + 51))
    assert reward == pytest.approx(0.8) and info["success"] is False
    game.reset(seed=0)
    with pytest.raises(RunFailed, match="'bright' failed"):
        game.step("bright")


def test_a_data_set_of_hugging_face(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    pictures = [Image.fromarray(np.full((8, 8, 3), value, np.uint8)) for value in (0, 50, 100, 150, 200)]
    table = {"image": pictures, "question": ["how bright?"] * 5, "answer": ["0", "50", "100", "150", "200"]}
    datasets.Dataset.from_dict(table).cast_column("image", datasets.Image()).save_to_disk(str(tmp_path / "saved"))
    game = Questions(str(tmp_path / "saved"), render_size=(32, 32))
    observation, _ = game.reset(seed=3)
    assert game.step(str(int(observation.images[0][0, 0, 0])))[1] == 1.0


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"data": ""}, "env_options.data=FOLDER"),
        ({"question": "questoin"}, "'question'"),
        ({"kind": "place"}, "no column 'place'"),
        ({"data": "."}, "neither a CSV file nor a data set"),
    ],
)
def test_what_is_missing_is_said_in_one_line(photos: Path, options: dict[str, Any], expected: str) -> None:
    with pytest.raises(BadInput) as caught:
        GameMaker("questions", {"data": str(photos)} | options)()
    assert expected in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("workers", ["inline", "processes"])
def test_games_of_any_text_have_honest_baselines(photos: Path, workers: Any) -> None:
    """Guesses are answers of the table; no answer is against the rules; best play is the table's."""
    maker = GameMaker("questions", {"data": str(photos)})
    worker = RolloutWorker(maker, Replies(facts=False), parallel=2, workers=workers)
    panel = make_panel("questions", "photos", 200)
    guessed, best = random_play(worker, panel), oracle_play(worker, panel)
    assert best is not None and best["score"] == 1.0
    assert guessed["errors"] == 0 and guessed["illegal"] == 0 and 0.05 < guessed["success_rate"] < 0.25, "one in eight"
    worker.close()
    findings = {finding.name: finding for finding in check_game(maker)}
    assert findings["legal actions"].passed and findings["legal actions"].detail == "any text is an action"
    shown = list(demonstrations(maker, Replies(facts=False), 30, settings=WarmStart(explore=0.5, mistakes=0.5)))
    assert len({demo.reply for demo in shown}) > 5


@pytest.mark.parametrize("name", ["10.png", "../secret.png", "/etc/hostname"])
def test_a_table_names_pictures_of_its_own_folder_only(photos: Path, name: str) -> None:
    Image.new("RGB", (4, 4)).save(photos.parent / "secret.png")
    (photos / "table.csv").write_text(f"file_name,question,answer\n{name},what?,that")
    with pytest.raises(BadInput, match="row 1: there is no picture"):
        Questions(str(photos))


def test_two_tables_are_refused(photos: Path) -> None:
    (photos / "other.csv").write_text("a")
    with pytest.raises(BadInput, match=r"several tables \(other.csv, table.csv\)"):
        Questions(str(photos))


def test_any_words_are_an_answer(photos: Path) -> None:
    """What an agent replies is not compared with a list of actions."""
    from sightline.agents.parsing import read_reply

    reply = read_reply('{"action": "one hundred"}', Replies(thoughts=False, facts=False), (), (), True)
    assert reply.action == "one hundred"
