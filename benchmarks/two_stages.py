"""How often is a label right that a language model gives from reports, by how far the two pictures differ?

    python benchmarks/two_stages.py --model ./smollm2      # a folder, as tools/smollm2.py makes it; five minutes

Pairs of CartPole's pictures are asked for the goal of the recipe `cartpole-preferences`. The first stage is no model
here: a server on this machine answers it with the environment's own captions, which are right and say angles in
degrees. So what is wrong is the second stage's: the language model's, which reads them and gives the label, asked in
both orders. Beside it the bundled encoder, which is shown the pictures.

A pair's true difference is that of the poles' angles from the vertical. `right` counts labels among those given,
`given` is the share of pairs that have one: a reply that cannot be read is none, nor is an answer that changes with the
order. `outcomes` counts all.

Results go to benchmarks/results/two_stages.json and to stdout.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from fault_server import Asked, FaultServer
from running import keep, percent, sized
from sightline.evaluation.statistics import wilson
from sightline.labels.types import Outcome, Question, Segment, Teacher
from sightline.models.encoders import load_encoder
from sightline.rewards.zero_shot import from_words
from sightline.teachers.chat import ChatTeacher
from sightline.teachers.encoder import EncoderTeacher
from sightline_tasks.control.cartpole import CartPole

FILE = "two_stages.json"
GOAL, BASELINE = "pole vertically upright on top of the cart", "pole and cart"
EDGES = (0, 10, 30, 90, 180)
"""Bounds of the bins of true differences, in degrees."""
SIZE = (224, 224)


class Reports:
    """Draws states of CartPole, and tells what its pictures show.

    Attributes:
        captions: bytes of a picture -> its caption.
    """

    def __init__(self) -> None:
        self._env = CartPole("rgb_array", SIZE)
        self.captions: dict[bytes, str] = {}

    def draw(self, position: float, angle: float) -> Segment:
        """Draw a state in which nothing moves."""
        self._env.state = np.array([position, 0.0, angle, 0.0])
        self._env._last_angle = angle
        frame = self._env.render()
        self.captions[frame.tobytes()] = self._env.caption()
        return Segment(frame[None], np.zeros(1, np.float32))

    def reply(self, asked: Asked) -> str:
        """The report that a first stage would write."""
        first, second = (self.captions[picture.tobytes()] for picture in asked.pictures)
        return f"The first picture: {first}\nThe second picture: {second}"


def pairs(reports: Reports, count: int) -> tuple[list[Question], np.ndarray]:
    """Pairs whose true differences are spread evenly over the bins; float[count] by how much the second is better."""
    generator = np.random.default_rng(0)
    questions = []
    differences = []
    for number in range(count):
        low, high = EDGES[number % (len(EDGES) - 1) :][:2]
        difference = generator.uniform(low, high)
        better = generator.uniform(0, 180 - difference)
        angles = np.array([better + difference, better])
        if generator.random() < 0.5:
            angles = angles[::-1]
        differences.append(angles[0] - angles[1])
        # A pole leans to either side, wherever the cart is.
        sides = generator.choice([-1, 1], 2)
        positions = generator.uniform(-1, 1, 2)
        segments = tuple(
            reports.draw(float(position), math.radians(float(side * angle)))
            for position, side, angle in zip(positions, sides, angles, strict=True)
        )
        questions.append(Question("compare", segments, (GOAL,)))
    return questions, np.array(differences)


def asked(teacher: Teacher, questions: list[Question], differences: np.ndarray) -> dict[str, Any]:
    """Share of labels that are right, by bin, and of pairs that got one."""
    start = time.process_time()
    outcomes: dict[int, Outcome] = {}
    for index, answer in teacher.answers(questions):
        outcomes[index] = answer.outcome
    rows: dict[str, Any] = {}
    for low, high in itertools.pairwise(EDGES):
        is_within = (np.abs(differences) >= low) & (np.abs(differences) < high)
        rows[f"{low} to {high} degrees"] = _row(outcomes, differences, np.flatnonzero(is_within))
    rows["all"] = _row(outcomes, differences, np.arange(len(questions)))
    return {
        "bins": rows,
        "outcomes": Counter(outcome.value for outcome in outcomes.values()),
        "CPU seconds a pair": round((time.process_time() - start) / len(questions), 2),
    }


def _row(outcomes: dict[int, Outcome], differences: np.ndarray, chosen: np.ndarray) -> dict[str, Any]:
    """Labels of some pairs: right ones in per cent with an interval of 95 %, and the share that was given."""
    right = 0
    given = 0
    for index in chosen.tolist():
        if outcomes[index] not in (Outcome.FIRST, Outcome.SECOND):
            continue
        given += 1
        right += (outcomes[index] is Outcome.SECOND) == (differences[index] > 0)
    row: dict[str, Any] = {"pairs": len(chosen), "given": f"{100 * given / max(len(chosen), 1):.0f} %"}
    if given:
        low, high = wilson(right, given)
        row["right"] = percent([(right / given, low, high)])
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="bundled", help="a folder of a language model, or a name")
    parser.add_argument("--pairs", type=int, default=sized(80, 4))
    given = parser.parse_args()

    reports = Reports()
    questions, differences = pairs(reports, given.pairs)
    results: dict[str, Any] = {}
    reward, _ = from_words((GOAL,), (BASELINE,), load_encoder("bundled", "cpu"))
    results["bundled encoder, shown the pictures"] = asked(EncoderTeacher(reward), questions, differences)
    with FaultServer(reports.reply) as server:
        reader = {"provider": "local", "model": given.model, "max_tokens": 64}
        teacher = ChatTeacher("captions", url=server.url, stages=2, reader=reader, concurrency=16)
        results[f"{Path(given.model).name}, told the captions"] = asked(teacher, questions, differences)
    for name, result in results.items():
        print(f"{name}: {dict(result['outcomes'])}, {result['CPU seconds a pair']} CPU s a pair", flush=True)
        for bin_name, row in result["bins"].items():
            print(f"  {bin_name}: {row}", flush=True)
    keep(FILE, "labels", results)


if __name__ == "__main__":
    main()
