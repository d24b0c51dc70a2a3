"""A program for `test_labelling.py`: a slow teacher labels into a store, and writes down whatever it is asked.

python slow_teacher.py STORE ASKED SECONDS
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from sightline.labels.store import LabelStore
from sightline.labels.types import Answer, Question, Segment, Teacher, preference
from sightline.preferences.labelling import BackgroundLabeller, Budget

COUNT = 30


def questions(count: int = COUNT) -> list[Question]:
    """Pairs of which the second is preferred if its number is even."""

    def segment(number: int) -> Segment:
        return Segment(np.full((1, 4, 4, 3), number, np.uint8), np.full(1, number, np.float32))

    return [Question("compare", (segment(i), segment(i + 100)), ("goal",)) for i in range(count)]


class SlowTeacher(Teacher):
    """Takes its time over every question, and writes its number down first."""

    name, signature = "slow", "slow teacher"

    def __init__(self, asked: Path, seconds: float) -> None:
        self._asked, self._seconds = asked, seconds

    def answers(self, questions: Iterable[Question]) -> Iterator[tuple[int, Answer]]:
        for i, question in enumerate(questions):
            number = int(question.segments[0].frames[0, 0, 0, 0])
            with self._asked.open("a") as file:
                file.write(f"{number}\n")
            time.sleep(self._seconds)
            yield i, preference(float(number % 2 == 0))

    def give_up(self) -> None:
        """Nothing is under way in the background."""


if __name__ == "__main__":
    folder, asked_file, pause = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
    with LabelStore(folder) as store:
        labelling = BackgroundLabeller(SlowTeacher(asked_file, pause), store, Budget(), "run", "task")
        labelling.ask(questions(), step=0)
        result = labelling.collect()
        assert result is not None
        labelling.close()
        print(result.remembered, *(answer.value for answer in result.answers if answer is not None))
