"""Questions about pictures as games of one turn: a vision-language model learns from them without any simulator.

questions/                       the same columns may come from a data set of Hugging Face
  table.csv                      file_name,question,answer
  cat.png …                      cat.png,How many cats are there?,2
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageOps

from sightline.config.decoding import decoded
from sightline.envs.frames import Size
from sightline.envs.games.contract import ActionText, Game, Observation
from sightline.envs.tasks import Task
from sightline.errors import BadInput, RunFailed, nearest
from sightline.images import as_rgb, file_within, read_image

Pay = Callable[[str, Mapping[str, Any]], float]
"""(what was answered, the row of the table) -> reward; 1 and more counts as success."""
HELD_OUT = 5
"""Every fifth question is held out."""
BORDER = (128, 128, 128)


class _Stored(NamedTuple):
    """A picture in a data set, which decodes it when it is asked for: all of them may not fit into memory."""

    data: Any
    place: int
    column: str


class Row(NamedTuple):
    """A question: where its picture is (a file, or a place in a data set), the words, and all columns."""

    picture: Path | _Stored
    question: str
    columns: dict[str, Any]


def exact(answer: str, row: Mapping[str, Any]) -> float:
    """Pay 1 for the answer in column `answer`, whatever its case and spaces, else 0."""
    return float(" ".join(answer.split()).casefold() == " ".join(str(row["answer"]).split()).casefold())


class Questions(Game):
    """Questions about pictures, drawn from a table; any answer ends the episode.

    The action is the answer, in any words. For another reward than an exact answer, write a function and an environment
    that has it, and name that in the recipe:

        def closeness(answer: str, row: Mapping[str, Any]) -> float:
            return 1 - abs(int(answer) - int(row["answer"])) / 10 if answer.isdigit() else -1

        def counting() -> gymnasium.Env:
            return Questions("photos", pay=closeness)

    Args:
        data: a folder with pictures and one CSV file; a folder as `datasets` saves it; or the name of a data set that
            `datasets` loads.
        picture, question: names of the columns.
        kind: name of the column by which results are reported; empty for none.
        split: of a data set that has several.
        held_out: ask every fifth question, which are not asked otherwise.
        pay: the reward of an answer; None pays exact ones, and needs a column `answer`.
        render_size: height and width of the pictures, which are fitted into it.
        render_mode: `rgb_array` or None.

    Raises:
        BadInput: no such data, table, column or file.
    """

    action_names = ()

    def __init__(
        self,
        data: str = "",
        picture: str = "file_name",
        question: str = "question",
        kind: str = "",
        split: str = "train",
        held_out: bool = False,
        pay: Pay | None = None,
        render_size: Size = (224, 224),
        render_mode: str | None = "rgb_array",
    ) -> None:
        super().__init__(render_size, render_mode)
        if not data:
            raise BadInput("say where the questions are: env_options.data=FOLDER, or the name of a data set")
        rows = _rows(data, picture, question, split, [name for name in (kind, "" if pay else "answer") if name])
        self._rows = [row for number, row in enumerate(rows) if (number % HELD_OUT == HELD_OUT - 1) == held_out]
        if not self._rows:
            raise BadInput(f"'{data}' has {len(rows)} questions, none of them {'held out' if held_out else 'to ask'}")
        answers = {str(row.columns["answer"]) for row in self._rows if "answer" in row.columns}
        self.action_space = ActionText(examples=sorted(answers))
        self._kind, self._pay = kind, pay or exact
        self._row, self._over = self._rows[0], False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        self._row, self._over = self._rows[int(self.np_random.integers(len(self._rows)))], False
        return self._observation(), self._known(False)

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        try:
            reward = float(self._pay(str(action), self._row.columns))
        except Exception as error:
            raise RunFailed(f"the reward of the answer {str(action)[:80]!r} failed: {error}") from error
        self._over = True
        return self._observation(), reward, True, False, self._known(reward >= 1)

    def text(self) -> str:
        return self._row.question

    def draw(self) -> np.ndarray:
        stored = self._row.picture
        if isinstance(stored, Path):
            pixels = read_image(stored)
        else:
            found = stored.data[stored.place][stored.column]
            if not isinstance(found, Image.Image):
                raise RunFailed(
                    f"a picture of the data set is a {type(found).__name__}; cast the column to datasets.Image()"
                )
            try:
                pixels = as_rgb(found)
            except ValueError as error:
                raise RunFailed(f"picture {stored.place + 1} of the data set cannot be shown: {error}") from error
        size = (self.render_size[1], self.render_size[0])
        return np.asarray(ImageOps.pad(Image.fromarray(pixels), size, Image.Resampling.BICUBIC, color=BORDER))

    def facts(self) -> dict[str, str]:
        return {}

    def legal_actions(self) -> tuple[str, ...]:
        return ()

    def oracle(self) -> str | None:
        """The answer of the table, if it has one."""
        answer = self._row.columns.get("answer")
        return None if self._over or answer is None else str(answer)

    def caption(self) -> str:
        return "A picture that cannot be told in words."

    def _known(self, success: bool) -> dict[str, Any]:
        kind = {"kind": str(self._row.columns[self._kind])} if self._kind else {}
        return self._info(success) | kind


def _rows(data: str, picture: str, question: str, split: str, others: Sequence[str]) -> list[Row]:
    """All questions of a folder or data set."""
    folder = Path(data)
    tables = sorted(folder.glob("*.csv")) if folder.is_dir() else []
    if tables:
        if len(tables) > 1:
            names = ", ".join(table.name for table in tables)
            raise BadInput(f"'{data}' has several tables ({names}); leave one of them")
        try:
            # Excel and Windows begin their files with a byte order mark.
            columns = list(csv.DictReader(io.StringIO(decoded(tables[0].read_bytes()), newline="")))
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise BadInput(f"'{tables[0]}' cannot be read as a table: {error}") from error
        _check_columns(columns[0] if columns else {}, [picture, question, *others], str(tables[0]))
        for number, row in enumerate(columns):
            if file_within(folder, row[picture]) is None:
                raise BadInput(f"'{tables[0]}', row {number + 1}: there is no picture '{row[picture]}' in its folder")
        return [Row(folder / str(row[picture]), str(row[question]), dict(row)) for row in columns]
    loaded = _data_set(data, split)
    picture = "image" if picture == "file_name" else picture  # the name that data sets give it
    _check_columns(dict.fromkeys(loaded.column_names), [picture, question, *others], data)
    columns = loaded.remove_columns([picture])
    return [Row(_Stored(loaded, place, picture), str(row[question]), row) for place, row in enumerate(columns)]


def _check_columns(known: Mapping[str, Any], wanted: Sequence[str], where: str) -> None:
    for name in wanted:
        if name not in known:
            raise BadInput(f"'{where}' has no column '{name}'{nearest(name, list(known))}; it has {', '.join(known)}")


def _data_set(data: str, split: str) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise BadInput(f"'{data}' is no folder with a CSV file; data sets need: pip install datasets") from error
    try:
        if (Path(data) / "dataset_info.json").exists():
            return datasets.load_from_disk(data)
        if Path(data).exists():
            raise BadInput(f"'{data}' holds neither a CSV file nor a data set that `datasets` has saved")
        return datasets.load_dataset(data, split=split)
    except BadInput:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise BadInput(f"the data set '{data}' cannot be loaded: {reason}") from error


TASK = Task(
    name="questions",
    env="sightline/Questions-v0",
    goal=("the question is answered",),
    baseline=("a picture",),
    success="end",
    is_game=True,
    text_actions=True,
    summary="Questions about your pictures, one a game: a folder with a CSV file, or a data set.",
)
