"""What it takes to start: processor seconds of whole commands, beside Python's own and beside `import torch`.

    PYTHONPATH=tools python benchmarks/startup.py [--rounds 15]

Each is started anew, in turn with the others, so that load on the machine falls on all of them; medians are reported.
Asked: `import sightline` and `sightline --help` take less than 0.1 s and 0.5 s more than nothing; of `import torch`,
`recipes` and `models` take 0.3 at most, a dry run 0.4, and the bundled encoder, imported and loaded, 1.5.
`train cartpole` is stopped when its first line appears; asked is 2. Results go to `benchmarks/results/startup.json`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile

from running import keep, sized

SIGHTLINE = ("-m", "sightline")
LOAD = "from sightline.models.encoders import load_encoder; load_encoder('bundled', device='cpu')"
COMMANDS = {
    "python": ("-c", "pass"),
    "import torch": ("-c", "import torch"),
    "import sightline": ("-c", "import sightline"),
    "sightline --help": (*SIGHTLINE, "--help"),
    "sightline recipes": (*SIGHTLINE, "recipes"),
    "sightline models": (*SIGHTLINE, "models"),
    "sightline train cartpole --dry-run": (*SIGHTLINE, "train", "cartpole", "--dry-run"),
    "the bundled encoder, imported and loaded": ("-c", LOAD),
    "sightline train cartpole, to its first line": (*SIGHTLINE, "train", "cartpole"),
}
TO_FIRST_LINE = "sightline train cartpole, to its first line"
MORE_THAN_NOTHING = {"import sightline": 0.1, "sightline --help": 0.5}
"""Command -> processor seconds that it may take beyond Python's own."""
OF_TORCH = {
    "sightline recipes": 0.3,
    "sightline models": 0.3,
    "sightline train cartpole --dry-run": 0.4,
    "the bundled encoder, imported and loaded": 1.5,
    TO_FIRST_LINE: 2.0,
}
"""Command -> its processor seconds, as a multiple of those of `import torch`, at most."""


def processor_seconds(command: tuple[str, ...], folder: str, first_line: bool) -> float:
    """Processor seconds of a process and its children, to its end or to the first line that it prints."""
    process = subprocess.Popen(
        [sys.executable, *command], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    if first_line:
        process.stdout.readline()
        process.kill()
    else:
        process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stdout.close()
    if process.returncode and not first_line:
        raise SystemExit(f"{' '.join(command)} failed")
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=sized(15, 1))
    rounds = parser.parse_args().rounds
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            for name, command in COMMANDS.items():
                seconds[name].append(processor_seconds(command, folder, name == TO_FIRST_LINE))

    medians = {name: statistics.median(values) for name, values in seconds.items()}
    beyond = {name: medians[name] - medians["python"] for name in MORE_THAN_NOTHING}
    ratios = {name: medians[name] / medians["import torch"] for name in OF_TORCH}
    met = {name: beyond[name] <= limit for name, limit in MORE_THAN_NOTHING.items()}
    met |= {name: ratios[name] <= limit for name, limit in OF_TORCH.items()}
    for name, median in medians.items():
        ratio = f"{ratios[name]:6.2f} of import torch, asked {OF_TORCH[name]}" if name in ratios else ""
        print(f"{name:<45}{median:7.2f} s{ratio}")
    print("met" if all(met.values()) else f"not met: {', '.join(name for name in met if not met[name])}")
    keep(
        "startup.json",
        "startup",
        {
            "command": f"PYTHONPATH=tools python benchmarks/startup.py --rounds {rounds}",
            "processor seconds": medians,
            "beyond python": beyond,
            "of import torch": ratios,
            "met": met,
        },
    )


if __name__ == "__main__":
    main()
