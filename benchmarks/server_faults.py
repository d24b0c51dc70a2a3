"""Questions to a chat model behind a server that does everything wrong: nothing lost, doubled or bought twice.

    python benchmarks/server_faults.py [--questions 500] [--kills 5] [--seed 0] [PART…]

`sightline label run` asks a server on this machine about pairs of pictures, in both orders. Its answers meet faults of
every kind in `tests/fault_kinds.py`, mixed with right ones, by a fixed seed. The parts: `faults`; `kills`: the same,
and the command is killed with SIGKILL at random points and started again; `keys`: the same with a server that honours
idempotency keys; `two`: two processes on one store; `fatal`: what no further question can be answered after, each by
itself. Results go to `benchmarks/results/server_faults.json`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from fault_kinds import FATAL, KEY, KINDS, PERSISTENT, Fate
from fault_server import Asked, Fault, FaultServer, brighter
from running import keep, sized
from sightline.labels.store import DATABASE, Context, LabelStore, StoredLabel
from sightline.labels.types import Outcome, Question, Segment, preference
from sightline.preferences.labelling import DEAD

KEY_ENV = "KEY_OF_THE_FAULT_SERVER"
READ, WROTE = 3.0, 15.0
"""Prices of a million tokens."""
GOAL = ("a bright picture",)
SHARE = 0.45
"""Faults for each request."""
IN_A_ROW = 3
"""Faults that one request meets at most; the command tries again five times."""
AT_ONCE = 16
"""Requests under way."""
TIMEOUT = sized(30, 10)
"""Seconds for one request."""
MIXED = list(KINDS)[:: sized(1, 12)]
"""Kinds that are mixed with right answers."""
FOR_GOOD = [*FATAL, *PERSISTENT][:: sized(1, 6)]
MOST_COMMANDS = 12
"""The same command, until it has nothing left to ask."""

Request = tuple[int, bool]
"""A question's number, and whether it is asked the other way round."""
LESS = {"400 of the context", "422"}
"""Kinds after which a server is asked for less, until the process ends."""
FATES = {
    Outcome.REFUSED: Fate.REFUSED,
    Outcome.UNPARSABLE: Fate.UNREADABLE,
    Outcome.UNSURE: Fate.UNSURE,
}


# -- questions ---------------------------------------------------------------------------------------------------------


class Judge:
    """Who has answered all questions before, so that they are in the store."""

    name = signature = "judge"


def picture(number: int, side: int, brightness: int) -> Segment:
    """A picture that says in its corner which one it is."""
    frame = np.full((1, 32, 32, 3), brightness, np.uint8)
    frame[0, 0, 0] = side, number // 256, number % 256
    return Segment(frame, np.array([brightness], np.float32))


def shown(frame: np.ndarray) -> Request:
    """Which question a pair is of that begins with this picture, and whether it is the other way round."""
    side, high, low = (int(value) for value in frame[0, 0])
    return 256 * high + low, side == 1


def truth(first: float, second: float) -> float:
    return float(second > first)


def fill(store: Path, count: int) -> None:
    """A store with so many questions, in each of which one of two pictures is brighter."""
    chance = random.Random(count)
    with LabelStore(store) as opened:
        for number in range(count):
            first, second = chance.sample(range(20, 240, 8), 2)
            question = Question("compare", (picture(number, 0, first), picture(number, 1, second)), GOAL)
            opened.record(question, Judge(), preference(truth(first, second)), Context("judge", "cartpole"))


# -- the plan of faults ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Met:
    """A request that came, the kind of fault that it met ("" for none), and the number of the command."""

    request: Request
    kind: str
    command: int


@dataclass
class Plan:
    """Which faults each request meets before it is answered.

    Attributes:
        left: those that are still to come.
        met: what came, in order.
        command: number of the command that asks now.
        watch: told of every request; for kills.
    """

    left: dict[Request, list[str]]
    met: list[Met] = field(default_factory=list)
    command: int = 0
    watch: Callable[[], None] = lambda: None

    @classmethod
    def drawn(cls, questions: int, kinds: Sequence[str], seed: int, share: float = SHARE) -> Plan:
        """Each kind about equally often, at random requests."""
        chance = random.Random(seed)
        left: dict[Request, list[str]] = {
            (number, swapped): [] for number in range(questions) for swapped in (False, True)
        }
        rounds = math.ceil(share * len(left) / len(kinds))
        for kind in (kind for _ in range(rounds) for kind in chance.sample(list(kinds), len(kinds))):
            free = [request for request in left if len(left[request]) < IN_A_ROW]
            left[chance.choice(free)].append(kind)
        return cls(left)

    def choose(self, asked: Asked) -> Fault | None:
        """The fault that a request meets; none for the one by which a server is checked."""
        if len(asked.pictures) != 2:
            return None
        request = shown(asked.pictures[0])
        kind = self.left[request].pop(0) if self.left[request] else ""
        self.met.append(Met(request, kind, self.command))
        self.watch()
        return KINDS[kind].fault if kind else None


# -- the command -------------------------------------------------------------------------------------------------------


@dataclass
class Done:
    """A command that has ended: by itself, or killed."""

    code: int
    out: str
    err: str

    @property
    def last(self) -> str:
        lines = self.err.strip().splitlines()
        return lines[-1] if lines else ""

    @property
    def is_finished(self) -> bool:
        """Whether no question is left to ask."""
        return self.code == 0 and not json.loads(self.out)["outcomes"].get("failed")


Start = Callable[[Sequence[str]], Done]
"""Carries out `sightline` with arguments."""


def command(store: Path, server: FaultServer, questions: int, *more: str) -> list[str]:
    said = {"kind": "chat", "model": "m", "url": server.url, "key_env": KEY_ENV, "timeout": TIMEOUT}
    said |= {"input_price": READ, "output_price": WROTE, "concurrency": AT_ONCE}
    keys = [f"reward.teacher.{name}={value}" for name, value in said.items()]
    return ["label", "run", str(store), *keys, "reward.device=cpu", *more, "--questions", str(questions), "--json"]


def begin(arguments: Sequence[str]) -> subprocess.Popen[str]:
    line = [sys.executable, "-m", "sightline", *arguments]
    environment = os.environ | {KEY_ENV: KEY, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> Done:
    out, err = process.communicate()
    return Done(process.returncode, out, err)


def carry_out(arguments: Sequence[str]) -> Done:
    return ended(begin(arguments))


def until_finished(plan: Plan, arguments: Sequence[str], start: Start) -> list[Done]:
    """The same command, as a user would give it until no question is left."""
    commands: list[Done] = []
    while len(commands) < MOST_COMMANDS and not (commands and commands[-1].is_finished):
        plan.command += 1
        commands.append(start(arguments))
    return commands


def killed(plan: Plan, arguments: Sequence[str], requests: int) -> Done:
    """The command, killed when so many requests have come."""
    plan.command += 1
    until = len(plan.met) + requests
    process = begin(arguments)

    def watch() -> None:
        if len(plan.met) >= until:
            process.kill()

    plan.watch = watch
    done = ended(process)
    plan.watch = lambda: None
    return done


def both(arguments: Sequence[str], others: Sequence[str]) -> tuple[Done, Done]:
    """Two commands at once."""
    first, second = begin(arguments), begin(others)
    return ended(first), ended(second)


# -- the books afterwards ----------------------------------------------------------------------------------------------


@dataclass
class Books:
    """What a store says at the end, of the chat teacher.

    Attributes:
        labels: number of a question -> its labels; failures are none.
        cost: all that is recorded as spent.
        lines: request -> what is said about each attempt at it.
        left: replies that wait for a label.
    """

    labels: dict[int, list[StoredLabel]]
    cost: float
    lines: dict[Request, list[str]]
    left: int

    @classmethod
    def read(cls, store: Path) -> Books:
        labels: dict[int, list[StoredLabel]] = defaultdict(list)
        lines: dict[Request, list[str]] = defaultdict(list)
        cost = 0.0
        with LabelStore(store) as opened:
            for label in opened.labels():
                number, _ = shown(opened.segment(label.segments[0]).frames[0])
                if label.teacher == Judge.name:
                    continue
                cost += label.answer.cost
                for call in label.answer.exchanges:
                    if not call.reused:
                        lines[number, call.swapped].append(call.error or label.answer.reason)
                if label.answer.outcome is not Outcome.FAILED:
                    labels[number].append(label)
        with contextlib.closing(sqlite3.connect(store / DATABASE)) as database:
            (left,) = database.execute("SELECT COUNT(*) FROM replies").fetchone()
        return cls(labels, cost, lines, int(left))


def fate(met: Sequence[Met], place: int, labels: Sequence[StoredLabel]) -> tuple[Fate | None, int]:
    """What became of a request after the fault that it met, and by which command it was asked next (0: by none)."""
    one = met[place]
    number, swapped = one.request
    later = next((other.command for other in met[place + 1 :] if other.request == one.request), 0)
    if later:
        return (Fate.AGAIN if later == one.command else Fate.LATER), later
    if not swapped and any(other.request == (number, True) for other in met[place + 1 :]):
        return Fate.TAKEN, 0  # only a judgement is asked for again the other way round
    if len(labels) != 1:
        return None, 0
    return FATES.get(labels[0].answer.outcome, Fate.TAKEN), 0


def examine(
    store: Path, server: FaultServer, plan: Plan, commands: Sequence[Done], allowed: Sequence[tuple[Fate, Fate]] = ()
) -> dict[str, Any]:
    """Compare the store with what the server sold, and what became of each fault with what should have.

    Args:
        allowed: (fate of a kind, what else may become of it here).
    """
    books, questions = Books.read(store), len(plan.left) // 2
    stops = {number for number, done in enumerate(commands, 1) if done.code == -9}
    kinds: dict[str, dict[str, Any]] = {}
    wrong: list[str] = []
    for place, one in enumerate(plan.met):
        if not one.kind:
            continue
        row = kinds.setdefault(one.kind, {"met": 0, "became": Counter(), "says": "", "wrong": 0})
        became, later = fate(plan.met, place, books.labels[one.request[0]])
        row["met"] += 1
        fates = KINDS[one.kind].fates
        expected = {*fates, *(other for given, other in allowed if given in fates)}
        is_cut_off = one.command in stops and later > one.command
        row["became"]["cut off by a kill" if is_cut_off else became.value if became else "lost"] += 1
        if not is_cut_off and became not in expected:
            row["wrong"] += 1
            wrong.append(f"'{one.kind}' at {one.request}: {became}")
        is_first = not any(other.request == one.request for other in plan.met[:place])
        said = books.lines[one.request]
        is_told = is_first and bool(said) and not is_cut_off and became is not Fate.TAKEN
        if is_told and len(said[0]) > len(row["says"]):
            row["says"] = said[0]
    # Each question has one label, and the right one wherever the model judged.
    for number in range(questions):
        labels = books.labels[number]
        if len(labels) != 1:
            wrong.append(f"question {number} has {len(labels)} labels")
        mistaken = [one.answer.value for one in labels if one.answer.value not in (None, truth(*one.true_returns))]
        wrong += [f"question {number} has the wrong label {value}" for value in mistaken]
    # What was sold is there, once. Only what was under way when a process was killed cannot be known.
    sold = Counter(shown(sale.asked.pictures[0]) for sale in server.sales if len(sale.asked.pictures) == 2)
    right = Counter(
        shown(sale.asked.pictures[0]) for sale in server.sales if sale.is_right and len(sale.asked.pictures) == 2
    )
    twice = sum(right.values()) - len(right)
    if twice > len(stops) * AT_ONCE:
        wrong.append(f"{twice} right answers were bought twice")
    charged = sum(
        (READ * sale.read + WROTE * sale.wrote) / 1e6 for sale in server.sales if len(sale.asked.pictures) == 2
    )
    if not stops and not math.isclose(charged, books.cost, rel_tol=1e-9):
        wrong.append(f"the server charged {charged:.6f}, the store says {books.cost:.6f}")
    if stops and books.cost > charged + 1e-9:
        wrong.append(f"the server charged {charged:.6f} only, the store says {books.cost:.6f}")
    if books.left:
        wrong.append(f"{books.left} replies wait for labels that are there")
    wrong += [*_of_commands(commands), *_keys_in(store)]
    return {
        "questions": questions,
        "requests": len(plan.met),
        "faults": sum(bool(one.kind) for one in plan.met),
        "kinds met": len(kinds),
        "commands": len(commands),
        "kills": len(stops),
        "right answers sold": sum(right.values()),
        "answers sold": sum(sold.values()),
        "bought twice": twice,
        "charged": round(charged, 6),
        "recorded": round(books.cost, 6),
        "wrong": wrong,
        "kinds": {kind: row | {"became": dict(row["became"])} for kind, row in sorted(kinds.items())},
    }


def _of_commands(commands: Sequence[Done]) -> Iterator[str]:
    """What is wrong with how commands ended."""
    if not commands[-1].is_finished:
        yield f"the last command ended with {commands[-1].code}: {commands[-1].last}"
    for done in commands:
        if "Traceback" in done.err or done.code not in (0, 1, -9):
            yield f"a command ended with {done.code}: {done.last}"
        if KEY in done.out + done.err:
            yield "the key is in what a command says"


def _keys_in(store: Path) -> Iterator[str]:
    for file in store.rglob("*"):
        if file.is_file() and KEY.encode() in file.read_bytes():
            yield f"the key is in {file.name}"


# -- the parts ---------------------------------------------------------------------------------------------------------


def one_process(folder: Path, questions: int, seed: int, start: Start = carry_out) -> dict[str, Any]:
    """All kinds of faults, mixed with right answers."""
    store, plan = folder / "faults", Plan.drawn(questions, MIXED, seed)
    fill(store, questions)
    with FaultServer(brighter, plan.choose, key=KEY) as server:
        commands = until_finished(plan, command(store, server, questions), start)
    return examine(store, server, plan, commands)


def with_kills(
    folder: Path,
    questions: int,
    seed: int,
    kills: int,
    honours_keys: bool = False,
    kinds: Sequence[str] = MIXED,
) -> dict[str, Any]:
    """The same, and the command is killed and started again."""
    store, plan = folder / f"kills-{honours_keys}", Plan.drawn(questions, kinds, seed)
    fill(store, questions)
    chance = random.Random(seed)
    with FaultServer(brighter, plan.choose, latency=0.02, key=KEY, honours_keys=honours_keys) as server:
        line = command(store, server, questions)
        at_most = max(2 * questions // (kills + 1), 2)
        commands = [killed(plan, line, chance.randint(1, at_most)) for _ in range(kills)]
        commands += until_finished(plan, line, carry_out)
    result = examine(store, server, plan, commands)
    if honours_keys and result["bought twice"]:
        result["wrong"].append("something was bought twice, though the server honours keys")
    return result


def two_processes(folder: Path, questions: int, seed: int) -> dict[str, Any]:
    """The same, by two processes on one store at once."""
    store, plan = folder / "two", Plan.drawn(questions, MIXED, seed)
    fill(store, questions)
    commands: list[Done] = []
    with FaultServer(brighter, plan.choose, latency=0.02, key=KEY) as server:
        line = command(store, server, questions)
        while len(commands) < 2 * MOST_COMMANDS and not (commands and all(done.is_finished for done in commands[-2:])):
            plan.command += 1
            commands += both(line, line)
    # What fails in one is asked again by the other, which waits for it.
    return examine(store, server, plan, commands, allowed=[(Fate.LATER, Fate.AGAIN)])


def for_good(folder: Path, kind: str, start: Start = carry_out) -> dict[str, Any]:
    """From some request on, every one meets the same fault; then the server is mended, and the same command goes on."""
    is_known = kind in FATAL
    fault, line = FATAL[kind] if is_known else PERSISTENT[kind]
    store, questions, answered = folder / kind.replace(" ", "-"), 2 * DEAD + 4, 9
    fill(store, questions)
    hit = 0
    is_broken = True

    def choose(asked: Asked) -> Fault | None:
        nonlocal hit
        if not is_broken or len(server.sales) < answered:
            return None
        hit += 1
        return fault

    server = FaultServer(brighter, choose, key=KEY)
    with server:
        arguments = command(store, server, questions, "reward.teacher.concurrency=2", "reward.teacher.retries=0")
        stopped = start(arguments)
        is_broken = False
        finished = start(arguments)
    books, wrong = Books.read(store), [*_of_commands([stopped, finished]), *_keys_in(store)]
    right = Counter(shown(sale.asked.pictures[0]) for sale in server.sales if len(sale.asked.pictures) == 2)
    if stopped.code != 1 or line not in stopped.last or "same command" not in stopped.last:
        wrong.append(f"it ended with {stopped.code}: {stopped.last}")
    if sum(one.startswith("sightline:") for one in stopped.err.splitlines()) != 1:
        wrong.append("it said more than a line")
    if hit > (2 if is_known else DEAD + 2):
        wrong.append(f"{hit} requests met it")
    if [len(books.labels[number]) for number in range(questions)] != [1] * questions:
        wrong.append("not every question has one label")
    if set(right.values()) != {1} or len(right) != 2 * questions:
        wrong.append(f"{sum(right.values()) - len(right)} answers were bought twice")
    return {"code": stopped.code, "requests that met it": hit, "says": stopped.last, "wrong": wrong}


# -- the table ---------------------------------------------------------------------------------------------------------


def show(name: str, result: dict[str, Any]) -> None:
    """Print a part as a table."""
    numbers = {key: value for key, value in result.items() if key not in ("kinds", "wrong")}
    print(f"\n{name}: " + ", ".join(f"{value} {key}" for key, value in numbers.items()), flush=True)
    for kind, row in result.get("kinds", {}).items():
        became = "; ".join(f"{count}x {what}" for what, count in row["became"].items())
        print(f"  {kind:<28} {row['met']:>3} {row['wrong']:>2} wrong  {became:<60} {row['says'][:110]}")
    for line in result["wrong"]:
        print(f"  WRONG: {line}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=sized(500, 20))
    parser.add_argument("--kills", type=int, default=sized(5, 1))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("parts", nargs="*", metavar="PART")
    given = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder, count, seed = Path(temporary), given.questions, given.seed
        parts: dict[str, Callable[[], dict[str, Any]]] = {
            "faults": lambda: one_process(folder, count, seed),
            "kills": lambda: with_kills(folder, count, seed, given.kills),
            # A process that has learned to ask for less sends other bodies, which must have other keys.
            "keys": lambda: with_kills(folder, count, seed, given.kills, True, sorted(set(MIXED) - LESS)),
            "two": lambda: two_processes(folder, count, seed),
        }
        parts |= {kind: lambda kind=kind: for_good(folder, kind) for kind in FOR_GOOD}  # type: ignore[misc]
        for name, part in parts.items():
            group = "fatal" if name in FOR_GOOD else name
            if given.parts and group not in given.parts and name not in given.parts:
                continue
            result = part()
            show(name, result)
            command_line = f"python benchmarks/server_faults.py --questions {count} --kills {given.kills} --seed {seed}"
            keep("server_faults.json", name, {"command": f"{command_line} '{name}'"} | result)
            wrong += len(result["wrong"])
    if wrong:
        raise SystemExit(f"{wrong} things are wrong")


if __name__ == "__main__":
    main()
