"""How the bundled vision-language model is made, and what it is."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import our_games
from pretraining.vlm import train as training
from pretraining.vlm.curriculum import GAMES, REPLIES, Exercise, exercises
from sightline.agents.parsing import read_reply
from sightline.agents.prompting import prompt_text
from sightline.envs.games.making import GameMaker
from sightline.images import Picture
from sightline.models.vlm.loading import bundled_vlm_folder
from sightline.models.vlm.model import VLM, load_vlm
from sightline.models.vlm.types import ChatTurn

MOST_MEGABYTES = 25


@pytest.fixture(scope="module")
def bundled() -> VLM:
    return load_vlm(device="cpu")


@pytest.fixture(scope="module")
def some() -> list[Exercise]:
    return list(islice(exercises(1), 150))


def test_lessons_are_of_all_games_and_told_truly(some: list[Exercise]) -> None:
    assert {lesson.game for lesson in some} == set(GAMES) <= {*our_games(), "cartpole"}
    for lesson in some:
        names = GameMaker(lesson.game)().get_wrapper_attr("action_names")
        reply = read_reply(lesson.reply, REPLIES, names, tuple(lesson.facts))
        assert reply.stated == lesson.facts and reply.action in names


def test_equal_seeds_give_equal_lessons(some: list[Exercise]) -> None:
    again = list(islice(exercises(1), 50))
    assert [lesson.reply for lesson in again] == [lesson.reply for lesson in some[:50]]
    assert all(
        np.array_equal(one, other)
        for a, b in zip(again, some, strict=False)
        for one, other in zip(a.pictures, b.pictures, strict=True)
    )
    assert [lesson.reply for lesson in islice(exercises(2), 50)] != [lesson.reply for lesson in again]


def test_the_actions_show_no_skill() -> None:
    """Whether + is said does not depend on whether it is right, where both moves are legal."""
    said: dict[bool, list[bool]] = {True: [], False: []}
    for lesson in islice(exercises(3, {"numberline": 1.0}), 1500):
        current, target = int(lesson.facts["current"]), int(lesson.facts["target"])
        if 0 < current < 5:
            said[current < target].append('"action": "+"' in lesson.reply)
    right, wrong = (np.mean(said[is_right]) for is_right in (True, False))
    assert abs(right - wrong) < 0.12


@pytest.mark.parametrize("game", GAMES)
def test_every_action_and_rank_is_a_token(bundled: VLM, game: str) -> None:
    for lesson in islice(exercises(4, {game: 1.0}), 30):
        ids = bundled.tokens.encode(lesson.reply)
        texts = [bundled.decode([token]) for token in ids]
        action = lesson.reply.rpartition('": "')[2].removesuffix('"}')
        assert texts[-2] == action and texts[-1] == '"}'
        assert bundled.decode(ids) == lesson.reply
        # CartPole came after the words had been chosen: some of its own are spelt.
        for values in lesson.facts.values() if game != "cartpole" else ():
            assert set(values.replace("row ", "").replace(" column ", " ").split(", ")) <= {t.strip() for t in texts}


def test_any_text_can_be_written(bundled: VLM) -> None:
    for text in ("Größe 7 × 3 = 21; 漢字 \U0001f600\n\tend", prompt_text("Other rules.", REPLIES, (), ("a", "b"))):
        assert bundled.decode(bundled.tokens.encode(text)) == text


def test_the_bundled_model_is_small_and_has_a_card() -> None:
    folder = bundled_vlm_folder()
    size = sum(file.stat().st_size for file in folder.iterdir())
    assert size < MOST_MEGABYTES * 1e6
    card = (folder / "README.md").read_text()
    assert "not for science" in card and all(game in card for game in GAMES)


def test_the_bundled_model_sees(bundled: VLM) -> None:
    """Facts of the two games that come with recipes are read right, and not without the picture."""
    for game in ("numberline", "ezpoints"):
        shown = list(islice(exercises(training.HELD_OUT_SEED + 2, {game: 1.0}), 60))
        assert _truthful(bundled, shown, [one.pictures for one in shown]) > 0.95
        assert _truthful(bundled, shown, [tuple(np.full_like(p, 128) for p in one.pictures) for one in shown]) < 0.3


def _truthful(vlm: VLM, shown: list[Exercise], pictures: list[tuple[np.ndarray, ...]]) -> float:
    given = zip(shown, pictures, strict=True)
    prompts = [vlm.encode([ChatTurn(one.prompt, tuple(map(Picture, seen)))]) for one, seen in given]
    texts = [sample.text for sample in vlm.generate(prompts, None, max_tokens=40)]
    stated = [read_reply(text, REPLIES, (), tuple(one.facts)).stated for text, one in zip(texts, shown, strict=True)]
    return float(np.mean([said == one.facts for said, one in zip(stated, shown, strict=True)]))


def test_training_lowers_the_loss_and_writes_what_loads(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    said: list[str] = []
    training.train(tmp_path / "model", updates=100, batch=16, learning_rate=3e-3, seed=0, say=said.append)
    losses = [float(line.split("loss ")[1].split(",")[0]) for line in said if line.startswith("update")]
    assert losses and losses[-1] < 20
    vlm: Any = load_vlm(str(tmp_path / "model"), device="cpu")
    lesson = next(exercises(5))
    prompt = vlm.encode([ChatTurn(lesson.prompt, tuple(map(Picture, lesson.pictures)))])
    (sample,) = vlm.generate([prompt], None, max_tokens=5)
    assert len(sample.ids) >= 1
