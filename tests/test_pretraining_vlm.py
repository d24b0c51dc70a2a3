"""How the bundled vision-language model is made, and what it is."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import our_games
from points24 import judged
from pretraining.vlm import train as training
from pretraining.vlm.building import with_a_matching_layer
from pretraining.vlm.curriculum import CURRICULA, GAMES, PLAN, ROOMS, exercises
from pretraining.vlm.exercise import PLANNED, REPLIES, Exercise
from pretraining.vlm.rooms import CELLS, KINDS, LOOKS
from sightline.agents.parsing import read_reply
from sightline.agents.prompting import prompt_text
from sightline.envs.games.making import GameMaker
from sightline.images import Picture
from sightline.models.vlm.loading import BUNDLED, bundled_vlm_folder
from sightline.models.vlm.model import VLM, load_vlm
from sightline.models.vlm.types import ChatTurn
from sightline_tasks.games.cards import RANKS
from sightline_tasks.games.formulas import value
from sightline_tasks.games.points24 import Points24, is_held_out

MOST_MEGABYTES = 25


@pytest.fixture(scope="module")
def bundled() -> VLM:
    return load_vlm(device="cpu")


@pytest.fixture(scope="module")
def rooms() -> VLM:
    return load_vlm("bundled-rooms", device="cpu")


@pytest.fixture(scope="module")
def cards() -> VLM:
    return load_vlm("bundled-cards", device="cpu")


@pytest.fixture(scope="module")
def some() -> list[Exercise]:
    return list(islice(exercises(1), 150))


@pytest.fixture(scope="module")
def some_rooms() -> list[Exercise]:
    return list(islice(exercises(1, ROOMS), 1000))


def test_lessons_are_of_all_games_and_told_truly(some: list[Exercise]) -> None:
    assert {lesson.game for lesson in some} == set(GAMES) <= {*our_games(), "cartpole"}
    for lesson in some:
        names = GameMaker(lesson.game)().get_wrapper_attr("action_names")
        reply = read_reply(lesson.reply, REPLIES, names, tuple(lesson.facts))
        assert reply.stated == lesson.facts and reply.action in names


@pytest.mark.when_changed("pretraining")
def test_lessons_of_rooms_are_shown_or_told_and_say_what_each_cell_shows(some_rooms: list[Exercise]) -> None:
    assert {(lesson.game, len(lesson.pictures)) for lesson in some_rooms} == {(g, n) for g in ROOMS for n in (0, 1)}
    for lesson in some_rooms:
        reply = read_reply(lesson.reply, REPLIES, lesson.actions, tuple(lesson.facts))
        assert reply.stated == lesson.facts and reply.action in lesson.actions
        assert len(lesson.cells) == (CELLS**2 if lesson.pictures else 0)
        assert all(kind in KINDS and look in LOOKS for kind, look, _, _ in lesson.cells)
    shown = [lesson for lesson in some_rooms if lesson.cells]
    grids = [lesson for lesson in shown if lesson.game == "babyai"]
    for lesson in grids:  # what the mission names is in the cell that the facts say, and what is ahead before the agent
        things = {f"column{column}, row {row}": (kind, look) for kind, look, column, row in lesson.cells}
        mission = lesson.prompt.partition("Your mission: ")[2].partition("\n")[0]
        if lesson.facts["target"] != "not in sight":
            kind, look = things[lesson.facts["target"]]
            assert kind in mission and look in mission
        kind, look = things["column 4, row 6"]
        assert lesson.facts["ahead"] == (kind if kind in ("nothing", "wall") else f"{look} {kind}")
    assert {one.facts["target"] == "not in sight" for one in grids} == {False, True}
    for lesson in (one for one in shown if one.game == "household" and one.facts["holding"] != "nothing"):
        assert lesson.facts["holding"].split()[-1] in {kind for kind, *_ in lesson.cells[6 * CELLS :]}


def test_what_the_task_names_is_said_to_be_where_it_is(some_rooms: list[Exercise]) -> None:
    """With nothing in the hand, the household's target is its thing; with that in the hand, the place for it."""
    found = []
    for lesson in (one for one in some_rooms if one.game == "household"):
        facts, task = lesson.facts, lesson.prompt.partition("Your task is to: ")[2].partition(".")[0]
        if not task.startswith("put ") or task.startswith(("put two", "put a hot", "put a cool", "put a clean")):
            continue
        thing, place = task.split()[2], task.split()[-1]
        contents = {one.split()[-1] for one in facts["contents"].split(", ")}
        held = facts["holding"].split()[-1]
        at = facts["place"].partition(",")[0].rpartition(" ")[0]
        here = at == place if held == thing else thing in contents
        assert facts["target"] == f"{place if held == thing else thing}, {'here' if here else 'elsewhere'}"
        found.append((here, held == thing))
    assert len(set(found)) == 4 and 0.2 < np.mean([here for here, _ in found]) < 0.7


def test_missions_change_so_that_only_the_words_say_what_is_meant(some_rooms: list[Exercise]) -> None:
    for game, start in (("babyai", "Your mission: "), ("household", "Your task is to: ")):
        given = [one.prompt.partition(start)[2].partition(".")[0] for one in some_rooms if one.game == game]
        assert len(set(given)) > 20 and np.mean([one == other for one, other in pairwise(given)]) < 0.7


def test_the_actions_in_rooms_do_something_and_show_no_skill(some_rooms: list[Exercise]) -> None:
    """What is taken lies there, and is the goal's thing no more often than any other that lies there."""
    taken, expected = [], []
    for lesson in (one for one in some_rooms if one.game == "household"):
        action = read_reply(lesson.reply, REPLIES, lesson.actions).action or ""
        kinds = {thing.split()[-1] for thing in lesson.facts["contents"].split(", ")} - {"nothing"}
        if not action.startswith("take "):
            continue
        assert action.removeprefix("take ") in kinds and lesson.facts["holding"] == "nothing"
        wanted = [
            kind for kind in kinds if f" {kind} " in lesson.prompt.partition("Your task is to: ")[2].split("\n")[0]
        ]
        if wanted and len(kinds) > 1:
            taken.append(action.removeprefix("take ") in wanted)
            expected.append(len(wanted) / len(kinds))
    assert len(taken) > 10 and abs(np.mean(taken) - np.mean(expected)) < 0.3
    for lesson in (one for one in some_rooms if one.game == "babyai"):
        action = read_reply(lesson.reply, REPLIES, lesson.actions).action
        assert action != "forward" or lesson.facts["ahead"] == "nothing"
        assert action not in ("toggle", "done")


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


@pytest.mark.when_changed("pretraining")
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


def test_goals_facts_and_actions_of_rooms_are_made_of_the_same_tokens(rooms: VLM) -> None:
    said = [rooms.decode([token]) for token in rooms.tokens.encode('"action": "go to shelf 2"}')]
    assert said[-4:] == ["go to ", "shelf", " 2", '"}']
    for text in (
        "put a mug in shelf.",
        '{"place": "shelf 1", "contents": "hot mug, plate", "holding": "mug"',
        "take mug",
    ):
        tokens = [rooms.decode([token]).strip() for token in rooms.tokens.encode(text)]
        assert {word for word in ("mug", "shelf", "hot", "plate") if word in text} <= set(tokens)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_processes_share_all_parts_of_a_batch(world: int) -> None:
    """None is left out or learned twice, and of two processes each has as many of the longer ones."""
    parts = [(start, start + 1) for start in range(training.PARTS)]
    shares = [training.share_of(parts, rank, world) for rank in range(world)]
    assert sorted(part for share in shares for part in share) == parts
    assert world == 3 or len({sum(start for start, _ in share) for share in shares}) == 1


@pytest.mark.parametrize("name", BUNDLED)
def test_any_text_can_be_written(name: str, request: pytest.FixtureRequest) -> None:
    vlm = request.getfixturevalue({"bundled": "bundled", "bundled-rooms": "rooms", "bundled-cards": "cards"}[name])
    for text in ("Größe 7 × 3 = 21; 漢字 \U0001f600\n\tend", prompt_text("Other rules.", REPLIES, (), ("a", "b"))):
        assert vlm.decode(vlm.tokens.encode(text)) == text


@pytest.mark.parametrize(("name", "games"), CURRICULA.items())
def test_the_bundled_models_are_small_and_have_cards(name: str, games: dict[str, float]) -> None:
    folder = bundled_vlm_folder(name)
    size = sum(file.stat().st_size for file in folder.iterdir())
    assert size < MOST_MEGABYTES * 1e6
    card = (folder / "README.md").read_text()
    assert "not for science" in card and all(game in card for game in games)


@pytest.mark.when_changed("pretraining")
def test_the_second_model_sees_rooms_and_grids(rooms: VLM) -> None:
    for game in ("household", "babyai"):
        stream = exercises(training.HELD_OUT_SEED + 2, {game: 1.0})
        shown = list(islice((one for one in stream if one.pictures), 60))
        assert _truthful(rooms, shown, [one.pictures for one in shown]) > 0.9
        commonest = Counter(tuple(one.facts.values()) for one in shown).most_common(1)[0][1] / len(shown)
        grey = [tuple(np.full_like(picture, 128) for picture in one.pictures) for one in shown]
        assert _truthful(rooms, shown, grey) <= commonest  # no one who cannot see is right more often


def test_the_third_model_adds_up_hands(cards: VLM) -> None:
    shown = list(islice(exercises(training.HELD_OUT_SEED + 2, {"blackjack-total": 1.0}), 100))
    assert _truthful(cards, shown, [one.pictures for one in shown]) > 0.95
    assert _truthful(cards, shown, [tuple(np.full_like(p, 128) for p in one.pictures) for one in shown]) < 0.05


@pytest.mark.when_changed("pretraining")
def test_the_third_model_keeps_account_of_its_attempts(cards: VLM) -> None:
    """In most attempts at 24 every number is one that is left, every result is right, and so is what is left then."""
    shown = list(
        islice((one for one in exercises(training.HELD_OUT_SEED + 2, {PLAN: 1.0}) if "down: nothing" in one.prompt), 24)
    )
    prompts = [cards.encode([ChatTurn(one.prompt, tuple(map(Picture, one.pictures)))]) for one in shown]
    counts: Counter[str] = Counter()
    for one, sample in zip(shown, cards.generate(prompts, None, max_tokens=PLANNED.max_tokens), strict=True):
        reply = read_reply(sample.text, PLANNED, Points24.action_names, tuple(one.facts))
        numbers = [int(number) for number in json.loads(one.reply)["plan"].split(":")[0].split()]
        counts += judged(reply.thoughts, numbers)
    assert counts["attempts"] >= 48 and counts["faultless"] > 0.8 * counts["attempts"]


def test_hands_of_any_length_are_added_up_in_lessons() -> None:
    lessons = list(islice(exercises(3, {"blackjack-total": 1.0}), 200))
    added = [lesson.facts["total"].split(", ") for lesson in lessons]
    lengths = Counter(map(len, added))
    assert all(lengths[count] > 15 for count in (2, 3, 4))
    assert all(int(hand[-1].split()[-1]) <= 21 for hand in added)


def test_plans_in_lessons_are_written_down_and_followed() -> None:
    """Whatever the last attempt makes: skill is left to others."""
    lessons = list(islice(exercises(4, {"points24-plan": 1.0}), 300))
    values: Counter[bool] = Counter()
    later = 0
    for lesson in lessons:
        reply = json.loads(lesson.reply)
        hand = [min(RANKS.index(rank) + 1, 10) for rank in reply["cards"].split(", ")]
        assert not is_held_out(hand), "kept for evaluation"
        *attempts, formula = reply["plan"].split("; ")
        written = re.search(r"Formula so far: (\S+)\nYou have written down: (.*)\n", lesson.prompt)
        assert written is not None and f"{formula}=".startswith(written[1].replace("empty", "") + reply["action"])
        if attempts:
            assert written[2] == "nothing" and 1 <= len(attempts) <= 10
            values[value(formula) == 24] += 1
        else:
            assert written[2].split("; ")[-1] == formula
            later += 1
    assert 60 < later < 240 and values[True] < 0.2 * values[False]


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


@pytest.mark.parametrize("at", [0, 1])
def test_a_layer_that_looks_for_equals_changes_nothing_at_first_and_finds_them(rooms: VLM, at: int) -> None:
    torch.manual_seed(0)
    deeper = with_a_matching_layer(rooms.model, at).eval()
    ids = torch.tensor(
        [rooms.tokens.encode("There you see: mug, plate, fork. You hold: nothing. Is there a plate here?")]
    )
    with torch.no_grad():
        torch.testing.assert_close(deeper(input_ids=ids).logits, rooms.model(input_ids=ids).logits)
        deeper.set_attn_implementation("eager")
        attention = deeper(input_ids=ids, output_attentions=True).attentions[at][0].mean(0)
    plate = rooms.tokens.encode("plate")
    first, again = (i for i, token in enumerate(ids[0].tolist()) if [token] == plate)
    assert int(attention[again].argmax()) == first and float(attention[again, first]) > 0.3


@pytest.mark.when_changed("pretraining")
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
