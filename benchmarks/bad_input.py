"""Bad command lines, hundreds of them over every command: each must end in one line that says what is wrong.

    PYTHONPATH=tools python benchmarks/bad_input.py [--show] [--alone 20] [WORD…]

The lines are those of `tests/bad_lines.py`. They are carried out in this process, and some once more in processes of
their own; with WORD… only those that contain one. `--show` prints every message. Results go to
`benchmarks/results/bad_input.json`.
"""

from __future__ import annotations

import argparse
import dataclasses
import platform
import sys
import tempfile
from collections import Counter
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

import bad_lines
from running import keep, sized

KINDS = ("refused rightly", "failed rightly", "valid after all", "accepted", "hangs", "traceback", "raw name", "other")


def kind_of(ended: bad_lines.Ended) -> str:
    """What a line counts as."""
    if not ended.wrong:
        return ("valid after all", "failed rightly", "refused rightly")[ended.code]
    return next((kind for kind in KINDS if kind in ended.wrong), "other")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--alone", type=int, default=sized(20, 2))
    parser.add_argument("words", nargs="*")
    arguments = parser.parse_args()
    words = arguments.words
    lines = [each for each in bad_lines.all_lines() if not words or any(word in str(each) for word in words)]
    lines = lines[:: sized(1, 20)]
    again = lines[:: max(len(lines) // arguments.alone, 1)] if arguments.alone else []
    lines += [dataclasses.replace(each, alone=True) for each in again if not each.alone]
    counts: dict[str, Counter[str]] = {}
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        world = Path(folder) / "world"
        bad_lines.build(world)
        for each in lines:
            ended = bad_lines.carry_out(each, world)
            counts.setdefault(each.command, Counter())[kind_of(ended)] += 1
            if ended.wrong:
                failures.append({"line": str(each), "code": ended.code, "said": ended.err[-400:], "wrong": ended.wrong})
            if ended.wrong or arguments.show:
                print(f"{each}\n    {ended.code} {', '.join(ended.wrong)}\n    {ended.err.strip()[-1000:]}", flush=True)
    print(f"{'command':<14}{'lines':>7}" + "".join(f"{kind:>17}" for kind in KINDS))
    for command, count in counts.items():
        print(f"{command or '-':<14}{count.total():>7}" + "".join(f"{count[kind]:>17}" for kind in KINDS))
    if not arguments.words:
        content = {
            "command": f"PYTHONPATH=tools python benchmarks/bad_input.py --alone {arguments.alone}",
            "versions": {"python": platform.python_version()}
            | {name: version(name) for name in ("sightline", "typer", "pydantic")},
            "lines": len(lines),
            "counts": {command or "-": {"lines": count.total(), **count} for command, count in counts.items()},
            "failures": failures,
        }
        keep("bad_input.json", "bad command lines", content)
    if failures:
        raise SystemExit(f"{len(failures)} of {len(lines)} lines do not end as they should")


if __name__ == "__main__":
    main()
