"""What grows with the length of a run, the number of labels and the number of metrics, and must not grow too fast.

    python benchmarks/growth.py runs labels page metrics [--longest 160000]

- `runs`: the recipe cartpole, and states with their own reward, at 10 000, 40 000 and 160 000 steps (states: 640 000
  too) with a replay buffer of 2 000. While each runs, its processor time and its memory are read beside its step, and
  a fixed piece of work is timed: many machines are slower at one time than at another, and a step counts in units of
  that work. Asked: a step late in a run takes at most 1.15 times as long as one in its second quarter, and memory is at
  most 1.05 times as much late as half way; the same of the longest run beside the shortest.
- `labels`: `sightline label stats` of a store of 200 000 labels: half of a chat teacher that was asked in both orders,
  each of its replies another one, a quarter of people and a quarter of a script. Asked: 10 s of processor time.
- `page`: a request to the label page with 500, 5 000 and 50 000 questions waiting, by 20 tabs. Asked: with most at most
  1.5 times the processor time that it takes with fewest.
- `metrics`: a run with 300 000 metric rows. Asked: a report within 5 s of processor time; going on with it takes at
  most 5 s more than with a run of few rows. Told beside: the same for a checkpoint of an earlier version, which does
  not name the byte that metrics go on from, so that all rows are read for it.

Results go to benchmarks/results/growth.json.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import psutil

from running import LITTLE, at_size, keep, kept, sized
from sightline.labels.store import Context, LabelStore
from sightline.labels.types import Answer, ModelCall, Outcome, Question, RecordedTeacher, Segment, preference
from sightline.runs.checkpoints import MANIFEST, digest
from sightline.runs.files import read_document, write_document
from sightline.session import STATE
from sightline.teachers.queue import LabelQueue

FILE = "growth.json"
FIXED = (
    *("learner.learning_rate=1e-12", "learner.exploration_fraction=0.01"),
    *("learner.buffer_size=2000", "learner.learning_starts=500", "evaluation.background=false", "videos=false"),
    *("evaluation.every=2000", "evaluation.episodes=4", "evaluation.test_episodes=4", "checkpoints.every=2000"),
)
"""The same for runs of any length, so that nothing but their length differs; a policy that learned would play longer
episodes, which take longer to evaluate."""
RUNS = {
    "words": ("cartpole", *FIXED),
    "states": ("cartpole", "reward={kind: ground_truth}", *FIXED),
}
LENGTHS = {"words": (10_000, 40_000, 160_000), "states": (10_000, 40_000, 160_000, 640_000)}
EARLY, LATE = (0.25, 0.5), (0.7, 0.95)
"""Parts of a run that are compared: the buffer is full by then, and the last evaluation is still to come."""
MOST_TIME, MOST_MEMORY, MOST_REQUEST = 1.15, 1.05, 1.5
"""Ratios that are asked for."""
MOST_STATS, MOST_METRICS = 10.0, 5.0
"""Processor seconds that are asked for."""
GOAL = "pole vertically upright on top of the cart"
MEGABYTE = 2**20


def measured(*arguments: str) -> tuple[float, float]:
    """Processor seconds of a `sightline` command and the peak of its memory in MB."""
    process = subprocess.Popen([sys.executable, "-m", "sightline", *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"sightline {' '.join(arguments)} failed")
    return round(usage.ru_utime + usage.ru_stime, 2), round(usage.ru_maxrss / 1024)


# -- runs --------------------------------------------------------------------------------------------------------------


def fixed_work() -> float:
    """Processor seconds of a piece of work that is always the same: loops of Python and small products of numpy, which
    a step of a run is made of, too."""
    matrix = np.ones((64, 64), np.float32)
    began = time.thread_time()
    for _ in range(40):
        matrix = matrix @ matrix * 0.01
        sum(number * number for number in range(500))
    return time.thread_time() - began


def watched_run(arguments: tuple[str, ...], steps: int, folder: Path) -> Iterator[tuple[int, float, float, float]]:
    """Train, and read every now and then: the step, processor seconds so far, memory in MB, and `fixed_work`."""
    run = folder / f"run-{steps}"
    told = at_size(*arguments, f"steps={steps}")
    process = psutil.Popen(
        [sys.executable, "-m", "sightline", "train", *told, f"--run-dir={run}", "--json"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    metrics = run / "metrics.jsonl"
    read = 0
    while process.poll() is None:
        time.sleep(sized(0.25, 0.02))
        if not metrics.exists():
            continue
        with metrics.open("rb") as file, process.oneshot():
            file.seek(read)
            lines, line_end, _ = file.read().rpartition(b"\n")
            if line_end and process.status() != psutil.STATUS_ZOMBIE:
                read += len(lines) + 1
                step = json.loads(lines.splitlines()[-1]).get("step", 0)  # the first line has none
                used = process.cpu_times()
                yield step, used.user + used.system, process.memory_info().rss / MEGABYTE, fixed_work()
    if process.wait():
        raise SystemExit(f"{' '.join(told)} failed")


def growth_of(arguments: tuple[str, ...], steps: int, folder: Path) -> dict[str, Any]:
    """One run: what a step takes early and late in it, in milliseconds, and memory at these times in MB."""
    samples = np.array(list(watched_run(arguments, steps, folder)))
    last = samples[-1, 0]
    milliseconds, megabytes, works = [], [], []
    for start, end in (EARLY, LATE):
        at_start, at_end = np.interp([start * last, end * last], samples[:, 0], samples[:, 1]).tolist()
        milliseconds.append(1000 * (at_end - at_start) / ((end - start) * last))
        megabytes.append(float(np.interp(end * last, samples[:, 0], samples[:, 2])))
        meanwhile = (samples[:, 0] >= start * last) & (samples[:, 0] <= end * last)
        # A short run may have no sample in between.
        works.append(1000 * float(np.median(samples[meanwhile, 3] if meanwhile.any() else samples[:, 3])))
    early, late = np.divide(milliseconds, works).tolist()
    run = folder / f"run-{steps}"
    report_seconds, _ = measured("report", str(run))
    size = sum(file.stat().st_size for file in run.rglob("*") if file.is_file())
    shutil.rmtree(run)
    return {
        "steps": steps,
        "ms a step, early": round(milliseconds[0], 3),
        "ms a step, late": round(milliseconds[1], 3),
        "ms of the fixed work, early": round(works[0], 3),
        "ms of the fixed work, late": round(works[1], 3),
        "a step in fixed works, late": round(late, 3),
        "time, late / early": round(late / early, 3),
        "MB, half way": round(megabytes[0]),
        "MB, late": round(megabytes[1]),
        "memory, late / half way": round(megabytes[1] / megabytes[0], 3),
        "report, processor seconds": report_seconds,
        "run folder, MB": round(size / MEGABYTE, 1),
    }


def runs(folder: Path, longest: int) -> dict[str, Any]:
    rows: dict[str, Any] = kept(FILE, "runs").get("rows", {})
    lengths = [(steps, name) for name in RUNS for steps in sized(LENGTHS[name], (64, 128)) if steps <= longest]
    for steps, name in sorted(lengths):  # the longest last
        rows[f"{name}, {steps}"] = growth_of(RUNS[name], steps, folder)
        print(name, rows[f"{name}, {steps}"], flush=True)
        keep(FILE, "runs", {"command": "python benchmarks/growth.py runs", "rows": rows} | _ratios(rows))
    return {"rows": rows} | _ratios(rows)


def _ratios(rows: dict[str, Any]) -> dict[str, Any]:
    """Ratios within runs and between the longest and the shortest, and whether they are as asked."""
    ratios: dict[str, float] = {}
    for name in RUNS:
        by_length = sorted(
            (row for key, row in rows.items() if key.startswith(f"{name},")), key=lambda row: row["steps"]
        )
        for row in by_length:
            ratios[f"{name}, {row['steps']}, time"] = row["time, late / early"]
            ratios[f"{name}, {row['steps']}, memory"] = row["memory, late / half way"]
        for quantity, key in (("time", "a step in fixed works, late"), ("memory", "MB, late")):
            if len(by_length) > 1:
                ratio = by_length[-1][key] / by_length[0][key]
                ratios[f"{name}, longest / shortest, {quantity}"] = round(ratio, 3)
    met = all(ratio <= (MOST_TIME if key.endswith("time") else MOST_MEMORY) for key, ratio in ratios.items())
    return {"ratios": ratios, "met": met}


# -- labels ------------------------------------------------------------------------------------------------------------

CHAT = RecordedTeacher("chat a-model", "chat model=a-model")
OTHERS = (RecordedTeacher("human anna", "human name=anna"), RecordedTeacher("scripted", "scripted"))
SEGMENTS = sized(2000, 20)
HERE = Context("a-run", "cartpole")
PROMPT = f"The goal is that the picture shows this: {GOAL}.\n\n" + "Which one is nearer to the goal? " * 15
REPLY = '{{"reason": "In pair {number} the pole leans less in the {answer} picture.", "answer": "{answer}"}}'


def segments() -> list[Segment]:
    """Segments of one small frame each, with true rewards."""
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 255, (SEGMENTS, 1, 8, 8, 3), np.uint8)
    rewards = rng.normal(size=(SEGMENTS, 1)).astype(np.float32)
    return [Segment(frame, reward) for frame, reward in zip(frames, rewards, strict=True)]


def opinions(number: int, rng: np.random.Generator) -> Answer:
    """A chat teacher's answer to a pair that it was shown in both orders."""
    answers = rng.choice(["first", "second"], 2)
    calls = [
        ModelCall("compare", bool(swapped), PROMPT, REPLY.format(number=number, answer=answer), 900, 40, 1.0, 1e-4)
        for swapped, answer in enumerate(answers)
    ]
    outcome = Answer(Outcome.UNSURE, reason="changes with the order")
    if answers[0] != answers[1]:  # the same segment
        outcome = preference(float(answers[0] == "second"))
    return replace(outcome, exchanges=tuple(calls), seconds=2.0)


def fill_store(folder: Path, count: int) -> None:
    """Record labels; half of a chat teacher, and a quarter each of a person and of a script."""
    rng = np.random.default_rng(1)
    shown = segments()
    with LabelStore(folder) as store:
        # Each label waits for the disk otherwise, which is not what is measured.
        store._database.execute("PRAGMA synchronous=OFF")
        for number in range(count):
            first, second = rng.choice(SEGMENTS, 2, replace=False)
            question = Question("compare", (shown[first], shown[second]), (GOAL,))
            if number % 2:
                store.record(question, CHAT, opinions(number, rng), HERE)
            else:
                answer = replace(preference(float(rng.random() < 0.5)), seconds=1.5)
                store.record(question, OTHERS[number // 2 % 2], answer, HERE)


def labels(folder: Path) -> dict[str, Any]:
    count = sized(200_000, 200)
    fill_store(folder / "labels", count)
    seconds, megabytes = measured("label", "stats", str(folder / "labels"), "--json")
    return {"labels": count, "stats, processor seconds": seconds, "MB": megabytes, "met": seconds <= MOST_STATS}


# -- the label page ----------------------------------------------------------------------------------------------------


def request_milliseconds(store: LabelStore) -> dict[str, float]:
    """Processor time of a request of each kind by one of 20 tabs, in milliseconds."""
    queue = LabelQueue(store, "anna")
    tabs = [f"tab-{number:04}" for number in range(20)]
    shown = {tab: queue.next(tab)["question"]["key"] for tab in tabs}
    rounds = range(sized(20, 1))
    milliseconds = {}
    for kind in ("next", "hold", "answer"):
        began = time.process_time()
        for _ in rounds:
            for tab in tabs:
                if kind == "next":
                    queue.next(tab)
                elif kind == "hold":
                    queue.hold(tab, shown[tab])
                else:
                    shown[tab] = queue.answer(tab, shown[tab], "equal", None, 1.0)["question"]["key"]
        milliseconds[kind] = 1000 * (time.process_time() - began) / (len(rounds) * len(tabs))
    return milliseconds


def page(folder: Path) -> dict[str, Any]:
    shown = segments()
    found = {}
    for waiting in sized((500, 5_000, 50_000), (40, 60)):
        rng = np.random.default_rng(2)
        pairs = (rng.choice(SEGMENTS, 2, replace=False) for _ in range(waiting))
        questions = [Question("compare", (shown[first], shown[second]), (GOAL,)) for first, second in pairs]
        with LabelStore(folder / f"{waiting}") as store:
            store._database.execute("PRAGMA synchronous=OFF")
            store.wait_for(questions, RecordedTeacher("human", "human name=human"), HERE)
            found[f"{waiting} waiting"] = request_milliseconds(store)
        print(waiting, found[f"{waiting} waiting"], flush=True)
    few, *_, many = found.values()
    ratios = {kind: round(many[kind] / few[kind], 3) for kind in few}
    return {"ms a request": found, "most / fewest": ratios, "met": max(ratios.values()) <= MOST_REQUEST}


# -- metrics -----------------------------------------------------------------------------------------------------------


def lengthen(run: Path, rows: int, is_earlier: bool) -> None:
    """Put rows of step 0 before those of a run, and a hundred of later steps behind.

    Args:
        is_earlier: write the checkpoint as earlier versions did, without the size of the metrics.
    """
    rng = np.random.default_rng(3)
    names = [f"rollout/{name}" for name in ("reward", "return", "length", "success")]
    names += [f"train/{name}" for name in ("loss", "learning_rate", "ent_coef", "n_updates")] + [
        "time/steps_per_second"
    ]

    def row(step: int) -> str:
        return json.dumps({"step": step} | dict(zip(names, rng.random(len(names)).tolist(), strict=True))) + "\n"

    metrics = run / "metrics.jsonl"
    first_line, own_rows = metrics.read_text().split("\n", 1)
    with metrics.open("w") as file:
        file.write(f"{first_line}\n")
        file.writelines(row(0) for _ in range(rows))
        file.write(own_rows)
        size = file.tell()
        file.writelines(row(10**6) for _ in range(100))
    for checkpoint in (run / "checkpoints").glob("step-*"):
        state = read_document(checkpoint / STATE)
        write_document(checkpoint / STATE, state | {"metrics_size": None if is_earlier else size})
        manifest = read_document(checkpoint / MANIFEST)
        manifest["files"][STATE] = digest(checkpoint / STATE)
        write_document(checkpoint / MANIFEST, manifest)


def metrics(folder: Path) -> dict[str, Any]:
    count = sized(300_000, 300)
    run = folder / "run"
    little = [f"{key}={json.dumps(value)}" for key, value in LITTLE.items()]
    measured("train", "cartpole", "reward={kind: ground_truth}", *little, f"--run-dir={run}")
    found: dict[str, Any] = {"rows": count}
    for name, rows, is_earlier in (("few", 10, False), ("many", count, False), ("many, earlier", count, True)):
        copy = folder / name
        shutil.copytree(run, copy)
        lengthen(copy, rows, is_earlier)
        report, megabytes = measured("report", str(copy))
        resumed, _ = measured("train", "steps=128", "--resume", f"--run-dir={copy}")
        found[name] = {"report": report, "report, MB": megabytes, "resume": resumed}
        print(name, found[name], flush=True)
    more = {name: round(found[name]["resume"] - found["few"]["resume"], 2) for name in ("many", "many, earlier")}
    found["resume, more than with few"] = more
    return found | {"met": max(found["many"]["report"], more["many"]) <= MOST_METRICS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=["runs", "labels", "page", "metrics"])
    parser.add_argument("--longest", type=int, default=10**6, help="longest run, in steps; longer ones of before stay")
    given = parser.parse_args()
    for part in given.parts:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            if part == "runs":
                found = runs(folder, given.longest)
            else:
                found = {"labels": labels, "page": page, "metrics": metrics}[part](folder)
        print(json.dumps(found, indent=1), flush=True)
        keep(FILE, part, {"command": f"python benchmarks/growth.py {part}"} | found)


if __name__ == "__main__":
    main()
