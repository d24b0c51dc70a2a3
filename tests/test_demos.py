"""Demonstrations: true, best, made anew the same, and safe on disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import our_games
from sightline.agents.demos import BARREN, LINES, PICTURES, Demo, demonstrations, read_demos, thoughts_of, write_demos
from sightline.agents.parsing import read_reply
from sightline.config.agents import Replies, WarmStart
from sightline.config.loading import for_agent, load_recipe
from sightline.envs.games.making import GameMaker
from sightline.errors import BadInput, RunFailed
from sightline.images import Picture
from sightline_tasks.games.number_line import NumberLine

FORMS = (Replies(), Replies(format="tags"), Replies(facts=False, thoughts=False))
GAMES = our_games()


def made(
    samples: int, explore: float = 0.3, seed: int = 0, settings: Replies = FORMS[0], game: str = "numberline"
) -> list[Demo]:
    return list(demonstrations(GameMaker(game), settings, samples, seed, WarmStart(explore=explore)))


def same(first: Demo, second: Demo) -> bool:
    digests = [[picture.digest for picture in demo.pictures] for demo in (first, second)]
    return digests[0] == digests[1] and vars(first) | {"pictures": ()} == vars(second) | {"pictures": ()}


@pytest.mark.parametrize("settings", FORMS, ids=["json", "tags", "action"])
def test_number_line_is_demonstrated_as_arithmetic_says(settings: Replies) -> None:
    demos = made(60, settings=settings)
    assert len(demos) == 60 and len({demo.seed for demo in demos}) > 10
    for demo in demos:
        reply = read_reply(demo.reply, settings, ("-", "+"), ("current", "target"))
        current, target = int(demo.facts["current"]), int(demo.facts["target"])
        assert reply.action == ("+" if current < target else "-")
        assert reply.stated == (demo.facts if settings.facts else {})
        assert reply.thoughts == (f"current is {current}, target is {target}" if settings.thoughts else "")
        assert ("thoughts" in demo.reply) == settings.thoughts and ("thoughts" in demo.text) == settings.thoughts
        assert len(demo.pictures) == 1 and demo.pictures[0].pixels.shape == (96, 96, 3)
    truth = {(demo.facts["current"], demo.facts["target"]): demo.pictures[0].digest for demo in demos}
    assert all(truth[demo.facts["current"], demo.facts["target"]] == demo.pictures[0].digest for demo in demos)
    assert len(set(truth.values())) == len(truth)


@pytest.mark.parametrize("game", sorted(GAMES))
def test_every_game_is_demonstrated(game: str) -> None:
    demos = made(12, game=game, settings=Replies(thoughts=False))
    env = GameMaker(game)()
    names, asked = env.get_wrapper_attr("action_names"), env.get_wrapper_attr("asked")
    for demo in demos:
        reply = read_reply(demo.reply, Replies(thoughts=False), names, asked)
        assert reply.failure is None and list(reply.stated) == list(asked) and reply.stated == demo.facts


def test_equal_arguments_make_equal_demonstrations_and_fewer_the_first_of_them() -> None:
    twenty, again, other = made(20), made(20), made(20, seed=1)
    assert all(same(first, second) for first, second in zip(twenty, again, strict=True))
    assert all(same(first, second) for first, second in zip(made(7), twenty, strict=False))
    assert not all(same(first, second) for first, second in zip(twenty, other, strict=True))
    assert made(0) == []


def test_exploring_plays_random_moves_but_demonstrates_the_best_ones() -> None:
    def shares(explore: float) -> tuple[float, float]:
        demos = made(300, explore=explore)
        pairs = [(a, b) for a, b in pairwise(demos) if a.seed == b.seed]
        distance = [[abs(int(d.facts["current"]) - int(d.facts["target"])) for d in pair] for pair in pairs]
        best = [("+" in d.reply) == (int(d.facts["current"]) < int(d.facts["target"])) for d in demos]
        return float(np.mean([after >= before for before, after in distance])), float(np.mean(best))

    assert shares(0.0) == (0.0, 1.0)
    strayed, best = shares(1.0)
    assert strayed > 0.3 and best == 1.0


def test_any_action_can_be_demonstrated_with_true_facts() -> None:
    demos = list(
        demonstrations(GameMaker("test_demos:Lost"), FORMS[0], 200, settings=WarmStart(explore=0.0, mistakes=1.0))
    )
    up = [read_reply(demo.reply, FORMS[0], ("-", "+")).action == "+" for demo in demos]
    best = [int(demo.facts["current"]) < int(demo.facts["target"]) for demo in demos]
    assert 0.4 < np.mean(up) < 0.6 and 0.4 < np.mean(np.equal(up, best)) < 0.7  # edges allow one only
    for before, after in pairwise(demos):  # what is shown is what is played
        if before.seed == after.seed:
            moved = int(after.facts["current"]) - int(before.facts["current"])
            assert moved == 0 or (moved > 0) == (read_reply(before.reply, FORMS[0], ("-", "+")).action == "+")


def test_a_share_of_mistakes_is_demonstrated() -> None:
    demos = list(demonstrations(GameMaker("numberline"), FORMS[0], 400, settings=WarmStart(mistakes=0.4)))
    best = [("+" in demo.reply) == (int(demo.facts["current"]) < int(demo.facts["target"])) for demo in demos]
    assert 0.72 < np.mean(best) < 0.9  # half of what is legal is best, and more at the edges


class Lost(NumberLine):
    def oracle(self) -> str | None:
        return None


def test_games_that_know_no_best_play_are_refused() -> None:
    maker = GameMaker("CartPole-v1", {"render_mode": "rgb_array"}, prompt="Balance it.", actions=("left", "right"))
    with pytest.raises(BadInput, match="does not know its best play"):
        next(demonstrations(maker, FORMS[0], 5))
    with pytest.raises(RunFailed, match=f"{BARREN} games"):
        next(demonstrations(GameMaker("test_demos:Lost"), FORMS[0], 5))


def test_thoughts_say_what_is_seen() -> None:
    assert thoughts_of({"player": "12", "dealer": "7"}) == "player is 12, dealer is 7"
    assert thoughts_of({}) == ""


# -- on disk -----------------------------------------------------------------------------------------------------------


def test_what_is_written_is_read(tmp_path: Path) -> None:
    demos = made(40)
    pixels = np.random.default_rng(0).integers(0, 256, (2, 5, 7, 3), np.uint8)
    demos.append(Demo("two\nlines é", tuple(map(Picture, pixels)), '{"action": "加"}', 3, 0, {}))
    assert write_demos(tmp_path / "a" / "demos", demos) == 41
    read = list(read_demos(tmp_path / "a" / "demos"))
    assert all(same(first, second) for first, second in zip(demos, read, strict=True))
    assert (read[-1].pictures[1].pixels == pixels[1]).all()
    digests = {picture.digest for demo in demos for picture in demo.pictures}
    assert {file.stem for file in (tmp_path / "a" / "demos" / PICTURES).iterdir()} == digests
    first = {picture.digest: picture for demo in read for picture in demo.pictures}
    assert all(picture is first[picture.digest] for demo in read for picture in demo.pictures)


def test_an_interrupted_call_leaves_no_lines_and_is_made_good_by_the_next(tmp_path: Path) -> None:
    demos = made(10)

    def interrupted() -> Any:
        yield from demos[:6]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_demos(tmp_path, interrupted())
    assert not (tmp_path / LINES).exists() and any((tmp_path / PICTURES).iterdir())
    assert write_demos(tmp_path, demos) == 10 and len(list(read_demos(tmp_path))) == 10
    before = (tmp_path / LINES).read_bytes()
    with pytest.raises(BadInput, match="already"):
        write_demos(tmp_path, demos[:2])
    assert (tmp_path / LINES).read_bytes() == before


@pytest.mark.parametrize("name", ["notes.txt", ".hidden", "pictures/holiday.png", "pictures/sub/a.txt", "src/a.py"])
def test_a_folder_that_holds_other_things_is_refused_and_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(BadInput, match=r"holds other things .*new or empty"):
        write_demos(tmp_path, made(2))
    assert sorted(tmp_path.rglob("*")) == before


def test_files_that_were_half_written_when_a_call_was_killed_are_no_strangers(tmp_path: Path) -> None:
    (tmp_path / PICTURES).mkdir()
    (tmp_path / PICTURES / ".0123456789abcdef.png.12-34.writing").write_bytes(b"half")
    (tmp_path / f".{LINES}.12-34.writing").write_bytes(b"half")
    assert write_demos(tmp_path, made(2)) == 2


def test_a_file_is_no_folder_for_demonstrations(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for place in ("file", "file/below"):
        with pytest.raises((BadInput, RunFailed)) as caught:
            write_demos(tmp_path / place, made(1))
        assert "file" in str(caught.value) and "Error" not in str(caught.value)
    assert (tmp_path / "file").read_text() == "mine"


def _line(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    lines = (folder / LINES).read_text().splitlines()
    document = json.loads(lines[2])
    changed = change(document)
    lines[2] = changed if isinstance(changed, str) else json.dumps(document)
    (folder / LINES).write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda line: "", "no JSON"),
        (lambda line: '{"text": "x"', "no JSON"),
        (lambda line: "[" * 100_000, "no JSON"),
        (lambda line: "[]", "no object"),
        (lambda line: line.pop("reply") and None, "'reply' is missing or no str"),
        (lambda line: line.update(turn=True), "'turn' is missing or no int"),
        (lambda line: line.update(facts={"current": 3}), "a fact is no text"),
        (lambda line: line.update(pictures=["../../secret"]), "no name of a picture"),
        (lambda line: line.update(pictures=[3]), "no name of a picture"),
        (lambda line: line.update(pictures=["0" * 16]), "missing or damaged"),
    ],
)
def test_broken_lines_are_named(tmp_path: Path, change: Callable[[dict[str, Any]], Any], complaint: str) -> None:
    write_demos(tmp_path, made(5))
    _line(tmp_path, change)
    read = read_demos(tmp_path)
    next(read), next(read)
    with pytest.raises(BadInput, match=f"line 3.*{complaint}") as raised:
        next(read)
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 1000


def test_damaged_pictures_are_named(tmp_path: Path) -> None:
    write_demos(tmp_path, made(1))
    (file,) = (tmp_path / PICTURES).iterdir()
    file.write_bytes(Picture(np.zeros((4, 4, 3), np.uint8)).png)
    with pytest.raises(BadInput, match="not the picture that was stored"):
        list(read_demos(tmp_path))
    file.write_bytes(file.read_bytes()[:30])
    with pytest.raises(BadInput, match="missing or damaged"):
        list(read_demos(tmp_path))
    with pytest.raises(BadInput, match="holds no demonstrations"):
        next(read_demos(tmp_path / "nowhere"))


# -- LLaVA's form ------------------------------------------------------------------------------------------------------


def conversations(folder: Path, count: int = 4, **changes: Any) -> Path:
    """Demonstrations in LLaVA's form; `changes` are made to the third."""
    folder.mkdir(parents=True, exist_ok=True)
    entries: list[dict[str, Any]] = []
    for number in range(count):
        name = f"images/{number % 2}.png"
        file = folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(Picture(np.full((24, 24, 3), number % 2 * 90, np.uint8)).png)
        said = [{"from": "human", "value": f"<image>\nTurn {number}."}, {"from": "gpt", "value": '{"action": "+"}'}]
        entries.append({"id": str(number), "image": name, "conversations": said})
    entries[2] |= changes
    table = folder / "sft.json"
    table.write_text(json.dumps(entries))
    return table


def test_demonstrations_in_the_form_of_llava_are_read(tmp_path: Path) -> None:
    demos = list(read_demos(conversations(tmp_path)))
    assert [demo.text for demo in demos] == ["Turn 0.", "Turn 1.", "Turn 2.", "Turn 3."]
    assert all(demo.reply == '{"action": "+"}' and demo.facts == {} for demo in demos)
    assert demos[0].pictures[0] is demos[2].pictures[0], "equal pictures are held once"
    assert [int(demo.pictures[0].pixels.max()) for demo in demos[:2]] == [0, 90]
    several = list(read_demos(conversations(tmp_path / "b", image=["0.png", "1.png"])))
    assert len(several[2].pictures) == 2, "images are found below 'images' as well"
    marked = conversations(tmp_path / "d")
    marked.write_bytes(b"\xef\xbb\xbf" + marked.read_bytes())
    assert len(list(read_demos(marked))) == 4, "a mark of the byte order is no complaint"
    words = list(read_demos(conversations(tmp_path / "c", image=None)))
    assert words[2].pictures == ()


def test_pictures_of_conversations_may_be_in_another_folder(tmp_path: Path) -> None:
    table = conversations(tmp_path / "a")
    (tmp_path / "a" / "images").rename(tmp_path / "images")
    with pytest.raises(BadInput, match=r"say where by warm_start\.image_folder=DIR"):
        list(read_demos(table))
    demos = list(read_demos(table, str(tmp_path)))
    assert [int(demo.pictures[0].pixels.max()) for demo in demos[:2]] == [0, 90]
    with pytest.raises(BadInput, match=r"there is no picture 'images/0\.png' below"):
        list(read_demos(table, str(tmp_path / "elsewhere")))
    with pytest.raises(BadInput, match="holds its own; leave it out"):
        list(read_demos(tmp_path / "demos", str(tmp_path)))
    with pytest.raises(BadInput, match=r"image_folder: warm_start\.demos is the file"):
        load_recipe("numberline", ["warm_start.image_folder=here"])


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"image": "gone.png"}, "there is no picture 'gone.png'"),
        ({"image": "../secret.png"}, "there is no picture"),
        ({"image": "sft.json"}, "cannot be read as a picture"),
        ({"conversations": []}, "has 0 messages"),
        ({"conversations": [{"from": "human"}]}, "no 'conversations' with a 'value' each"),
        ({"conversations": [{"from": "human", "value": "a"}] * 4}, "has 4 messages"),
    ],
)
def test_broken_conversations_are_named(tmp_path: Path, changes: dict[str, Any], complaint: str) -> None:
    (tmp_path / "secret.png").write_bytes(Picture(np.zeros((4, 4, 3), np.uint8)).png)
    with pytest.raises(BadInput, match=complaint) as raised:
        list(read_demos(conversations(tmp_path / "a", **changes)))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("content", [b"{", b"{}", b"\xff"])
def test_a_file_without_conversations_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(BadInput):
        list(read_demos(tmp_path / "a.json"))
    with pytest.raises(BadInput, match="cannot be read"):
        list(read_demos(tmp_path / "nowhere.json"))


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_command_writes_what_a_recipe_asks_for(sightline: Callable[..., Any], tmp_path: Path) -> None:
    options = ("replies.format=tags", "env_options.max_position=2", "warm_start.explore=0")
    done = sightline("demos", "numberline", "--turns", 9, "--out", "some", "--seed", 4, *options)
    assert done.code == 0 and "9 turns" in done.out
    read = list(read_demos(Path("some")))
    maker = GameMaker("numberline", {"max_position": 2})
    replies = for_agent(load_recipe("numberline")).replies.model_copy(update={"format": "tags"})
    wanted = list(demonstrations(maker, replies, 9, seed=4, settings=WarmStart(explore=0.0)))
    assert not replies.thoughts and all(same(first, second) for first, second in zip(read, wanted, strict=True))
    as_json = json.loads(sightline("demos", "numberline", "--turns", 9, "--out", "more", "--json", "seed=4").out)
    assert as_json["turns"] == 9 and as_json["games"] == len({demo.seed for demo in read_demos(Path("more"))})


def test_the_command_shows_what_the_recipe_would_be_shown(sightline: Callable[..., Any]) -> None:
    """Points24 is judged on held-out hands: those of its demonstrations are others, and a game has no recipe's form."""
    assert sightline("demos", "points24", "--turns", 3, "--out", "plans").code == 0
    recipe = for_agent(load_recipe("points24"))
    assert recipe.warm_start is not None and recipe.env_options["held_out"]
    wanted = demonstrations(GameMaker("points24", {"held_out": False}), recipe.replies, 3, 0, recipe.warm_start)
    assert all(map(same, read_demos(Path("plans")), wanted)) and len(list(read_demos(Path("plans")))) == 3
    assert sightline("demos", "frozenlake", "--turns", 3, "--out", "walk").code == 0
    refused = sightline("demos", "cartpole", "--out", "x")
    assert refused.code == 2 and len(refused.lines) == 1 and "no recipe for an agent" in refused.err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("numberlin", "--out", "x"), "numberline"),
        (("numberline", "--out", "x", "replies.form=tags"), "did you mean 'format'"),
        (("numberline", "--out", "x", "env_options.size=3"), "size"),
        (("numberline", "--out", "x", "warm_start.explore=2"), "explore"),
    ],
)
def test_the_command_complains_in_one_line(sightline: Callable[..., Any], arguments: Any, complaint: str) -> None:
    done = sightline("demos", *arguments)
    assert done.code == 2 and len(done.lines) == 1 and complaint in done.err


def test_the_command_does_not_write_over_demonstrations(sightline: Callable[..., Any]) -> None:
    assert sightline("demos", "numberline", "--turns", 2, "--out", "x").code == 0
    again = sightline("demos", "numberline", "--turns", 2, "--out", "x")
    assert again.code == 2 and "already" in again.err
    Path("foreign").mkdir()
    Path("foreign", "thesis.txt").write_text("precious")
    foreign = sightline("demos", "numberline", "--turns", 2, "--out", "foreign")
    assert foreign.code == 2 and len(foreign.lines) == 1 and "'thesis.txt'" in foreign.err
    assert [file.name for file in Path("foreign").iterdir()] == ["thesis.txt"]


def test_a_seed_that_nothing_takes_is_refused(sightline: Callable[..., Any]) -> None:
    done = sightline("demos", "numberline", "--out", "x", "--seed", 2**32)
    assert done.code == 2 and len(done.lines) == 1 and "seed" in done.err and not Path("x").exists()
