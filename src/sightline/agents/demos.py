"""Demonstrations: what an agent is shown, and the reply that a game's own best play would give.

On disk they are a folder: `demos.jsonl` with one object a line (`text`, `pictures`, `reply`, `seed`, `turn`, `facts`),
and `pictures/`, each distinct picture once, as a PNG file named by its digest. Others' are read in LLaVA's form, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from sightline.agents.prompting import demonstration, prompt_text
from sightline.config.agents import Replies, WarmStart
from sightline.config.decoding import decoded
from sightline.envs.games.wrapping import has_oracle, oracle, random_action, thoughts
from sightline.envs.vector import close_env
from sightline.errors import BadInput, RunFailed
from sightline.images import Picture, PictureFiles, file_within, read_image
from sightline.runs.files import write_atomically

LINES, PICTURES = "demos.jsonl", "pictures"
BARREN = 1_000
"""Episodes in a row in which best play is never known; then it is given up."""
_CHANCE_OF_TASKS, _CHANCE_OF_MOVES = 1, 2
_OURS = re.compile(r"(pictures/[0-9a-f]{16}\.png|(pictures/)?\.[\w.]+\.\d+-\d+\.writing)")
"""Files that an interrupted call may leave behind."""
_KINDS: dict[str, type] = {"text": str, "pictures": list, "reply": str, "seed": int, "turn": int, "facts": dict}


@dataclass(frozen=True, eq=False)
class Demo:
    """One turn, and how to reply.

    Attributes:
        text: all words of the prompt, with how to reply.
        pictures: what is shown.
        reply: the reply's text.
        seed: of the game that it is from.
        turn: of that game, from 0.
        facts: what can be seen: name -> text.
    """

    text: str
    pictures: tuple[Picture, ...]
    reply: str
    seed: int
    turn: int
    facts: dict[str, str]


def demonstrations(
    maker: Callable[[], gymnasium.Env[Any, Any]],
    replies: Replies,
    samples: int,
    seed: int = 0,
    settings: WarmStart | None = None,
) -> Iterator[Demo]:
    """Play a game and say in every turn what best play would reply.

    Equal arguments give equal demonstrations, and fewer samples the first of them.

    Args:
        maker: makes a game that knows its best play.
        replies: their form.
        samples: turns.
        seed: of all chance.
        settings: how the game is played meanwhile (`explore`), and what of it is demonstrated (`later_turns`,
            `mistakes`).

    Raises:
        BadInput: the game does not know how to play.
        RunFailed: best play is never known, as in games that cannot be won.
    """
    settings, env = settings or WarmStart(), maker()
    try:
        if settings.mistakes < 1 and not has_oracle(env):
            kind = type(env.unwrapped).__name__
            raise BadInput(
                f"{kind} does not know its best play (oracle()), so nothing can be demonstrated; leave it out, or "
                "teach it only to see, by warm_start.mistakes=1"
            )
        chance = np.random.default_rng((seed, _CHANCE_OF_MOVES))
        made = barren = 0
        for episode in range(samples * BARREN):
            if made == samples:
                return
            task = int(np.random.SeedSequence((seed, _CHANCE_OF_TASKS, episode)).generate_state(1)[0])
            barren += 1
            for demo in _played(env, replies, task, chance, settings):
                yield demo
                made, barren = made + 1, 0
                if made == samples:
                    break
            if barren == BARREN:
                raise RunFailed(f"best play was not known in {BARREN} games in a row; are they winnable at all?")
    finally:
        close_env(env)


def _played(
    env: gymnasium.Env[Any, Any], replies: Replies, seed: int, chance: np.random.Generator, settings: WarmStart
) -> Iterator[Demo]:
    """One game, as long as there is something to demonstrate."""
    asked: Sequence[str] = env.get_wrapper_attr("asked")
    observation, info = env.reset(seed=seed)
    turn, over, memory = 0, False, ""

    def happens(share: float) -> bool:
        return share > 0 and (share >= 1 or chance.random() < share)

    while not over:
        seen = replies.asks(asked) if replies.fields else asked
        facts = {name: str(info["facts"][name]) for name in seen}
        names = env.get_wrapper_attr("action_names") or info["legal_actions"]
        legal, reasons = info["legal_actions"], thoughts(env)
        shown = random_action(env, legal, chance) if happens(settings.mistakes) else oracle(env)
        if shown is None:
            return
        text = prompt_text(observation.text, replies, asked, names, memory)
        memory = reasons or thoughts_of(facts)
        if turn == 0 or happens(settings.later_turns):
            reply = demonstration(replies, facts, memory, shown)
            # Copies: some environments draw on one canvas all the time.
            pictures = tuple(Picture(np.array(image)) for image in observation.images)
            yield Demo(text, pictures, reply, seed, turn, facts)
        played = random_action(env, legal, chance) if happens(settings.explore) else shown
        observation, _, terminated, truncated, info = env.step(played)
        turn, over = turn + 1, bool(terminated or truncated)


def thoughts_of(facts: Mapping[str, str]) -> str:
    """A plain true sentence: what is seen, once more, for games that cannot say why a move is best."""
    return ", ".join(f"{name} is {value}" for name, value in facts.items())


def write_demos(folder: Path, demos: Iterable[Demo]) -> int:
    """Write demonstrations to a folder that holds nothing else; gives how many.

    The lines come last and at once, so a folder with lines is whole. What an interrupted call left is used again.

    Raises:
        BadInput: the folder holds demonstrations already, or anything else; or it is none.
        RunFailed: it cannot be written.
    """
    target, files = folder / LINES, PictureFiles(folder / PICTURES, flat=True)
    lines: list[str] = []
    try:
        if target.exists():
            raise BadInput(f"'{folder}' holds demonstrations already; say another folder, or remove it")
        if folder.exists() and not folder.is_dir():
            raise BadInput(f"'{folder}' is a file; say a folder that is new or empty")
        for place in (folder, folder / PICTURES):
            for file in place.iterdir() if place.is_dir() else ():
                name = file.relative_to(folder).as_posix()
                if not (name == PICTURES and file.is_dir()) and not (_OURS.fullmatch(name) and file.is_file()):
                    raise BadInput(f"'{folder}' holds other things ('{name}'); say a folder that is new or empty")
        # Before the folder is made: there may be no such game, or none that knows its best play.
        first = list(islice(demos := iter(demos), 1))
        (folder / PICTURES).mkdir(parents=True, exist_ok=True)
        for demo in chain(first, demos):
            document = vars(demo) | {"pictures": [files.add(picture.pixels) for picture in demo.pictures]}
            lines.append(json.dumps(document, ensure_ascii=False))
        write_atomically(target, "".join(f"{line}\n" for line in lines).encode())
    except (FileExistsError, NotADirectoryError) as error:
        raise BadInput(f"'{folder}' leads through a file; say a folder that is new or empty") from error
    except OSError as error:
        raise RunFailed(f"demonstrations cannot be written to '{folder}': {error.strerror or error}") from error
    return len(lines)


def read_demos(folder: Path) -> Iterator[Demo]:
    """Read demonstrations one by one. Equal pictures are held once.

    Args:
        folder: as `write_demos` writes it, or a JSON file in LLaVA's form.

    Raises:
        BadInput: there are none, a line is none, or a picture is missing or another.
    """
    if folder.suffix == ".json":
        yield from _read_conversations(folder)
        return
    file = folder / LINES
    if not file.is_file():
        raise BadInput(f"'{folder}' holds no demonstrations ({LINES}); 'sightline demos' writes some")
    files, known = PictureFiles(folder / PICTURES, flat=True), dict[str, Picture]()
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            yield _read_line(line, f"'{file}' line {number}", files, known)


def _read_conversations(file: Path) -> Iterator[Demo]:
    """Read demonstrations in the form of LLaVA (Liu et al., NeurIPS 2023), which RL4VLM's are in.

        [{"image": "cards/0.png", "conversations": [{"from": "human", "value": "<image>\\nYou play …"},
                                                    {"from": "gpt", "value": "{\\"action\\": …}"}]}, …]

    An image is a file below the JSON file's folder, or below its `images`; `image` may be a list, or missing.
    """
    try:
        document = json.loads(decoded(file.read_bytes()))
    except OSError as error:
        raise BadInput(f"'{file}' cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise BadInput(f"'{file}' is no JSON: {' '.join(str(error).split())[:100]}") from error
    if not isinstance(document, list):
        raise BadInput(f"'{file}' holds no list of conversations")
    known: dict[str, Picture] = {}
    for number, entry in enumerate(document):
        place = f"'{file}' entry {number + 1}"
        said = entry.get("conversations") if isinstance(entry, dict) else None
        if not isinstance(said, list) or not all(
            isinstance(one, dict) and isinstance(one.get("value"), str) for one in said
        ):
            raise BadInput(f"{place} has no 'conversations' with a 'value' each")
        if [one.get("from") for one in said] != ["human", "gpt"]:
            raise BadInput(f"{place} has {len(said)} messages; one of 'human' and one of 'gpt' are a turn")
        listed = entry.get("image") or []
        images = [str(image) for image in (listed if isinstance(listed, list) else [listed])]
        for image in images:
            if image not in known:
                known[image] = Picture(read_image(_beside(file, image, place)))
        pictures = tuple(known[image] for image in images)
        text = said[0]["value"].replace("<image>", "").strip()
        yield Demo(text, pictures, said[1]["value"], 0, number, {})


def _beside(file: Path, image: str, place: str) -> Path:
    """An image's file, below the list's folder or its `images`."""
    for name in (image, f"images/{image}"):
        if (found := file_within(file.parent, name)) is not None:
            return found
    raise BadInput(f"{place}: there is no picture '{image}' beside the file, or below 'images'")


def _read_line(line: bytes, place: str, files: PictureFiles, known: dict[str, Picture]) -> Demo:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{place} is broken: no JSON ({' '.join(str(error).split())[:100]})") from error
    if not isinstance(document, dict):
        raise BadInput(f"{place} is broken: no object")
    for name, kind in _KINDS.items():
        if type(document.get(name)) is not kind:
            raise BadInput(f"{place} is broken: '{name}' is missing or no {kind.__name__}")
    facts = document["facts"]
    if not all(isinstance(fact, str) for fact in facts.values()):
        raise BadInput(f"{place} is broken: a fact is no text")
    for name in document["pictures"]:
        if files.file(name, place).stem not in known:  # looked up as a file first: `name` may be anything
            known[name] = Picture(files.read(name, place))
    pictures = tuple(known[name] for name in document["pictures"])
    return Demo(document["text"], pictures, document["reply"], document["seed"], document["turn"], facts)
