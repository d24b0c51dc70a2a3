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


class _PictureInDataSet(NamedTuple):
    """A picture in a data set, which decodes it when it is asked for: all of them may not fit into memory."""

    data: Any
    place: int
    column: str


class Row(NamedTuple):
    """A question: where its picture is (a file, or a place in a data set), the words, and all columns."""

    picture: Path | _PictureInDataSet
    question: str
    columns: dict[str, Any]


def exact(answer: str, row: Mapping[str, Any]) -> float:
    """Pay 1 for the answer in column `answer`, whatever its case and spaces, else 0."""
    right_answer = str(row["answer"])
    return float(" ".join(answer.split()).casefold() == " ".join(right_answer.split()).casefold())


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
        more_columns = []
        if kind:
            more_columns.append(kind)
        if not pay:
            more_columns.append("answer")
        rows = _rows(data, picture, question, split, more_columns)
        # Every fifth question, so that each part of a table is held out alike.
        self._rows = [row for number, row in enumerate(rows) if (number % HELD_OUT == HELD_OUT - 1) == held_out]
        if not self._rows:
            purpose = "held out" if held_out else "to ask"
            raise BadInput(f"'{data}' has {len(rows)} questions, none of them {purpose}")
        answers = {str(row.columns["answer"]) for row in self._rows if "answer" in row.columns}
        self.action_space = ActionText(examples=sorted(answers))
        self._kind = kind
        self._pay = pay or exact
        self._row = self._rows[0]
        self._over = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        self._row = self._rows[int(self.np_random.integers(len(self._rows)))]
        self._over = False
        return self._observation(), self._info_with_kind(False)

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        try:
            reward = float(self._pay(str(action), self._row.columns))
        except Exception as error:
            raise RunFailed(f"the reward of the answer {str(action)[:80]!r} failed: {error}") from error
        self._over = True
        return self._observation(), reward, True, False, self._info_with_kind(reward >= 1)

    def text(self) -> str:
        return self._row.question

    def draw(self) -> np.ndarray:
        source = self._row.picture
        if isinstance(source, Path):
            pixels = read_image(source)
        else:
            image = source.data[source.place][source.column]
            if not isinstance(image, Image.Image):
                raise RunFailed(
                    f"a picture of the data set is a {type(image).__name__}; cast the column to datasets.Image()"
                )
            try:
                pixels = as_rgb(image)
            except ValueError as error:
                raise RunFailed(f"picture {source.place + 1} of the data set cannot be shown: {error}") from error
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

    def _info_with_kind(self, success: bool) -> dict[str, Any]:
        info = self._info(success)
        if self._kind:
            info["kind"] = str(self._row.columns[self._kind])
        return info


def _rows(data: str, picture: str, question: str, split: str, more_columns: Sequence[str]) -> list[Row]:
    """All questions of a folder or data set.

    Args:
        picture, question: names of the columns.
        more_columns: names of others that must be there.
    """
    folder = Path(data)
    tables = sorted(folder.glob("*.csv")) if folder.is_dir() else []
    if len(tables) > 1:
        names = ", ".join(table.name for table in tables)
        raise BadInput(f"'{data}' has several tables ({names}); leave one of them")
    if tables:
        return _rows_of_table(tables[0], picture, question, more_columns)
    data_set = _data_set(data, split)
    if picture == "file_name":
        picture = "image"  # the name that data sets give it
    _check_columns(data_set.column_names, [picture, question, *more_columns], data)
    rows = []
    for place, columns in enumerate(data_set.remove_columns([picture])):
        rows.append(Row(_PictureInDataSet(data_set, place, picture), str(columns[question]), columns))
    return rows


def _rows_of_table(table: Path, picture: str, question: str, more_columns: Sequence[str]) -> list[Row]:
    """All questions of a CSV file, whose pictures lie beside it."""
    try:
        # Excel and Windows begin their files with a byte order mark.
        lines = list(csv.DictReader(io.StringIO(decoded(table.read_bytes()), newline="")))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"'{table}' cannot be read as a table: {error}") from error
    names = list(lines[0]) if lines else []
    # Before any row is read: one line for a wrong name, not one for each row.
    _check_columns(names, [picture, question, *more_columns], str(table))
    folder = table.parent
    rows = []
    for number, columns in enumerate(lines):
        if file_within(folder, columns[picture]) is None:
            raise BadInput(f"'{table}', row {number + 1}: there is no picture '{columns[picture]}' in its folder")
        rows.append(Row(folder / str(columns[picture]), str(columns[question]), dict(columns)))
    return rows


def _check_columns(names: Sequence[str], required: Sequence[str], where: str) -> None:
    for name in required:
        if name not in names:
            raise BadInput(f"'{where}' has no column '{name}'{nearest(name, names)}; it has {', '.join(names)}")


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
