"""Demonstrations: prompts of a game, each with the reply that its own best play would give.

On disk they are a folder: `demos.jsonl` with one object a line (`text`, `pictures`, `reply`, `seed`, `turn`, `facts`),
and `pictures/`, each distinct picture once, as a PNG file named by its digest. Files in LLaVA's form are read, too.
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
from sightline.envs.stepping import close_env
from sightline.errors import BadInput, RunFailed
from sightline.images import Picture, PictureFiles, file_within, read_image
from sightline.runs.files import write_atomically

LINES = "demos.jsonl"
PICTURES = "pictures"
BARREN = 1_000
"""Episodes in a row without a demonstration after which the search for one is given up."""
_CHANCE_OF_TASKS = 1
_CHANCE_OF_MOVES = 2
_OURS = re.compile(r"(pictures/[0-9a-f]{16}\.png|(pictures/)?\.[\w.]+\.\d+-\d+\.writing)")
"""Files that an interrupted call may leave behind."""
_KINDS: dict[str, type] = {"text": str, "pictures": list, "reply": str, "seed": int, "turn": int, "facts": dict}


@dataclass(frozen=True, eq=False)
class Demo:
    """One turn, and how to reply.

    Attributes:
        text: all words of the prompt, with the reply instructions.
        pictures: those of the prompt.
        reply: the reply's text.
        seed: of the game that the turn is from.
        turn: its number in that game, from 0.
        facts: the visible facts: name -> text.
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
    """Play games, and write in every turn the reply of best play.

    Equal arguments give equal demonstrations; fewer samples give the first ones of them.

    Args:
        maker: makes a game that knows its best play.
        replies: the form of the replies.
        samples: number of turns.
        seed: of all chance.
        settings: how the game is played meanwhile (`explore`), and which of its turns and moves are demonstrated
            (`later_turns`, `mistakes`).

    Raises:
        BadInput: the game does not know how to play.
        RunFailed: best play is never known, as in games that cannot be won.
    """
    settings = settings or WarmStart()
    env = maker()
    try:
        if settings.mistakes < 1 and not has_oracle(env):
            kind = type(env.unwrapped).__name__
            raise BadInput(
                f"{kind} does not know its best play (oracle()), so nothing can be demonstrated; leave it out, or "
                "teach it only to see, by warm_start.mistakes=1"
            )
        chance = np.random.default_rng((seed, _CHANCE_OF_MOVES))
        count = 0
        barren = 0  # episodes since the last demonstration
        for episode in range(samples * BARREN):
            if count == samples:
                return
            task_seed = int(np.random.SeedSequence((seed, _CHANCE_OF_TASKS, episode)).generate_state(1)[0])
            barren += 1
            for demo in _play_episode(env, replies, task_seed, chance, settings):
                yield demo
                count += 1
                barren = 0
                if count == samples:
                    break
            if barren == BARREN:
                raise RunFailed(f"best play was not known in {BARREN} games in a row; are they winnable at all?")
    finally:
        close_env(env)


def _play_episode(
    env: gymnasium.Env[Any, Any], replies: Replies, seed: int, chance: np.random.Generator, settings: WarmStart
) -> Iterator[Demo]:
    """Play one game, until it is over or best play is not known, and demonstrate some of its turns."""
    queried_facts: Sequence[str] = env.get_wrapper_attr("asked")
    visible_facts = replies.asks(queried_facts) if replies.fields else queried_facts
    observation, info = env.reset(seed=seed)
    turn = 0
    over = False
    memory = ""

    def happens(share: float) -> bool:
        # The ends draw no number, so that recipes without mistakes or exploration keep their games.
        return share > 0 and (share >= 1 or chance.random() < share)

    while not over:
        facts = {name: str(info["facts"][name]) for name in visible_facts}
        legal_actions = info["legal_actions"]
        action_names = env.get_wrapper_attr("action_names") or legal_actions
        reasons = thoughts(env)
        action = random_action(env, legal_actions, chance) if happens(settings.mistakes) else oracle(env)
        if action is None:
            return
        text = prompt_text(observation.text, replies, queried_facts, action_names, memory)
        memory = reasons or thoughts_of(facts)
        if turn == 0 or happens(settings.later_turns):
            reply = demonstration(replies, facts, memory, action)
            # Copies: some environments draw on one canvas all the time.
            pictures = tuple(Picture(np.array(image)) for image in observation.images)
            yield Demo(text, pictures, reply, seed, turn, facts)
        # Some moves are random, so that later turns have mistakes to recover from.
        if happens(settings.explore):
            action = random_action(env, legal_actions, chance)
        observation, _, terminated, truncated, info = env.step(action)
        turn += 1
        over = bool(terminated or truncated)


def thoughts_of(facts: Mapping[str, str]) -> str:
    """Thoughts that repeat the facts in a plain true sentence, for games that cannot say why a move is best."""
    return ", ".join(f"{name} is {value}" for name, value in facts.items())


# -- files -------------------------------------------------------------------------------------------------------------


def write_demos(folder: Path, demos: Iterable[Demo]) -> int:
    """Write demonstrations to a folder that holds nothing else, and return their number.

    The lines are written last and at once, so a folder with lines is whole. Files of an interrupted call are reused.

    Raises:
        BadInput: the folder holds demonstrations already, or anything else; or it is none.
        RunFailed: it cannot be written.
    """
    target = folder / LINES
    files = PictureFiles(folder / PICTURES, flat=True)
    lines: list[str] = []
    try:
        if target.exists():
            raise BadInput(f"'{folder}' holds demonstrations already; say another folder, or remove it")
        _check_only_ours(folder)
        # Before the folder is made: there may be no such game, or none that knows its best play.
        demos = iter(demos)
        first = list(islice(demos, 1))
        (folder / PICTURES).mkdir(parents=True, exist_ok=True)
        for demo in chain(first, demos):
            names = [files.add(picture.pixels) for picture in demo.pictures]
            document = vars(demo) | {"pictures": names}
            lines.append(json.dumps(document, ensure_ascii=False))
        write_atomically(target, "".join(f"{line}\n" for line in lines).encode())
    except (FileExistsError, NotADirectoryError) as error:
        raise BadInput(f"'{folder}' leads through a file; say a folder that is new or empty") from error
    except OSError as error:
        raise RunFailed(f"demonstrations cannot be written to '{folder}': {error.strerror or error}") from error
    return len(lines)


def _check_only_ours(folder: Path) -> None:
    """Refuse a folder with anything but the files that an interrupted call leaves behind.

    Raises:
        BadInput: it is a file, or holds other files.
    """
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"'{folder}' is a file; say a folder that is new or empty")
    for parent in (folder, folder / PICTURES):
        if not parent.is_dir():
            continue
        for file in parent.iterdir():
            name = file.relative_to(folder).as_posix()
            is_picture_folder = name == PICTURES and file.is_dir()
            is_ours = _OURS.fullmatch(name) and file.is_file()
            if not is_picture_folder and not is_ours:
                raise BadInput(f"'{folder}' holds other things ('{name}'); say a folder that is new or empty")


def read_demos(path: str | Path, image_folder: str | None = None) -> Iterator[Demo]:
    """Read demonstrations one by one. Equal pictures are held once.

    Args:
        path: a folder as `write_demos` writes it, or a JSON file in LLaVA's form.
        image_folder: where the pictures of a JSON file are; None: beside it, or below `images`.

    Raises:
        BadInput: there are none, a line is none, or a picture is missing or another.
    """
    folder = Path(path)
    if folder.suffix == ".json":
        places = [folder.parent, folder.parent / "images"]
        if image_folder is not None:
            places = [Path(image_folder)]
        yield from _read_conversations(folder, places)
        return
    if image_folder is not None:
        raise BadInput(
            f"warm_start.image_folder={image_folder} is for pictures of a JSON file, and '{folder}' holds its own; "
            "leave it out"
        )
    file = folder / LINES
    if not file.is_file():
        raise BadInput(f"'{folder}' holds no demonstrations ({LINES}); 'sightline demos' writes some")
    files = PictureFiles(folder / PICTURES, flat=True)
    pictures: dict[str, Picture] = {}
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            yield _read_line(line, f"'{file}' line {number}", files, pictures)


def _read_conversations(file: Path, places: Sequence[Path]) -> Iterator[Demo]:
    """Read demonstrations in the form of LLaVA (Liu et al., NeurIPS 2023), which RL4VLM uses, too.

        [{"image": "cards/0.png", "conversations": [{"from": "human", "value": "<image>\\nYou play …"},
                                                    {"from": "gpt", "value": "{\\"action\\": …}"}]}, …]

    An image is a file below one of the folders; `image` may be a list, or missing.
    """
    try:
        document = json.loads(decoded(file.read_bytes()))
    except OSError as error:
        raise BadInput(f"'{file}' cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise BadInput(f"'{file}' is no JSON: {' '.join(str(error).split())[:100]}") from error
    if not isinstance(document, list):
        raise BadInput(f"'{file}' holds no list of conversations")
    pictures: dict[str, Picture] = {}
    for number, entry in enumerate(document):
        place = f"'{file}' entry {number + 1}"
        messages = entry.get("conversations") if isinstance(entry, dict) else None
        if not isinstance(messages, list) or not all(map(_is_message, messages)):
            raise BadInput(f"{place} has no 'conversations' with a 'value' each")
        if [message.get("from") for message in messages] != ["human", "gpt"]:
            raise BadInput(f"{place} has {len(messages)} messages; one of 'human' and one of 'gpt' are a turn")
        images = entry.get("image") or []
        if not isinstance(images, list):
            images = [images]
        names = [str(image) for image in images]
        for name in names:
            if name not in pictures:
                pictures[name] = Picture(read_image(_image_file(name, places, place)))
        text = messages[0]["value"].replace("<image>", "").strip()
        reply = messages[1]["value"]
        yield Demo(text, tuple(pictures[name] for name in names), reply, 0, number, {})


def _is_message(entry: Any) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("value"), str)


def _image_file(image: str, places: Sequence[Path], entry: str) -> Path:
    """An image's file, below the first folder that has it."""
    for folder in places:
        path = file_within(folder, image)
        if path is not None:
            return path
    folders = " or ".join(f"'{folder}'" for folder in places)
    raise BadInput(f"{entry}: there is no picture '{image}' below {folders}; say where by warm_start.image_folder=DIR")


def _read_line(line: bytes, place: str, files: PictureFiles, pictures: dict[str, Picture]) -> Demo:
    """Read one demonstration, and its pictures unless they were read before."""
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
        if files.file(name, place).stem not in pictures:  # looked up as a file first: `name` may be anything
            pictures[name] = Picture(files.read(name, place))
    own_pictures = tuple(pictures[name] for name in document["pictures"])
    return Demo(document["text"], own_pictures, document["reply"], document["seed"], document["turn"], facts)
