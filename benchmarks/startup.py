"""Start-up times: `import sightline` and `sightline --help`, beside Python's own.

    python benchmarks/startup.py --rounds 15 --out benchmarks/results/startup.json

Each is started anew, in turn with the others, so that load on the machine falls on all of them; medians are reported.
Asked: less than 0.1 s and 0.5 s more than nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

COMMANDS = {
    "python": ["-c", "pass"],
    "import sightline": ["-c", "import sightline"],
    "sightline --help": ["-m", "sightline", "--help"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(arguments.rounds):
        for name, command in COMMANDS.items():
            began = time.perf_counter()
            subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)
            seconds[name].append(time.perf_counter() - began)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    result = {
        "command": " ".join(["python", "benchmarks/startup.py", *sys.argv[1:]]),
        "seconds": medians,
        "import sightline, beyond python": medians["import sightline"] - medians["python"],
        "met": medians["import sightline"] < 0.1 + medians["python"] and medians["sightline --help"] < 0.5,
    }
    print(json.dumps(result, indent=2))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
