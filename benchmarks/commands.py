"""Processor seconds of ten whole commands: of this code, and of an older checkout of it in the same run.

    git worktree add ../older 89e3d0e
    python benchmarks/commands.py --before ../older

Each command runs once, first as it was, then as it is, in a process of its own; processes that it starts are counted.
Long recipes are shortened, where a line says so. Results go to `benchmarks/results/commands.json` after each command,
so that a run that is stopped keeps what it measured; `--only` measures some again.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium
from PIL import Image

from running import at_size, keep, kept, sized

HERE = Path(__file__).resolve().parents[1]
ACROBOT = ("train", "env=Acrobot-v1", "steps=2000", "goal=a robot arm that stands straight up")
PENDULUM = ("train", "env=Pendulum-v1", "steps=2000", "goal=a rod that points straight up")
WORDS = ("--goal", "a pole vertically upright on top of the cart", "--baseline", "a pole and a cart")
COMMANDS: dict[str, tuple[str, ...]] = {
    "train cartpole": ("train", "cartpole"),
    "train cartpole-preferences": ("train", "cartpole-preferences"),
    "train numberline": ("train", "numberline"),
    "train humanoid-standing, 25 600 steps": ("train", "humanoid-standing", "steps=25600"),
    "train straighten-rope": ("train", "straighten-rope"),
    "train Acrobot-v1, 2 000 steps": ACROBOT,
    "train Pendulum-v1, 2 000 steps": PENDULUM,
    "sweep cartpole, 4 seeds, 3 000 steps": ("sweep", "cartpole", "seed=0..3", "steps=3000"),
    "evaluate a run of cartpole": ("evaluate", "RUN"),
    "score 1 000 pictures of 400x600": ("score", "PICTURES", *WORDS),
}
PICTURES = sized(1000, 4)


def seconds_of(code: Path, command: tuple[str, ...], folder: Path) -> dict[str, float]:
    """Processor and wall seconds of a command, children included.

    Args:
        code: checkout whose code runs.
        folder: working directory.
    """
    begins_run = command[0] in ("train", "sweep")
    told = at_size(*command[1:]) if begins_run else list(command[1:])
    if begins_run:
        told += ["--run-dir", command[0]]
    # Both checkouts are run by this environment's Python and packages.
    environment = os.environ | {"PYTHONPATH": str(code / "src")}
    started = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "sightline", command[0], *told],
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stderr.close()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: {errors.decode()[-500:]}")
    return {"processor": usage.ru_utime + usage.ru_stime, "wall": time.monotonic() - started}


def write_pictures(folder: Path) -> None:
    """Pictures of a pole at Gymnasium's own size."""
    folder.mkdir()
    env = gymnasium.make("CartPole-v1", render_mode="rgb_array")
    env.reset(seed=0)
    env.action_space.seed(0)
    for number in range(PICTURES):
        pixels: Any = env.render()
        Image.fromarray(pixels).save(folder / f"{number:04}.png")
        if env.step(env.action_space.sample())[2]:
            env.reset()
    env.close()


def measured(code: Path, command: tuple[str, ...], folder: Path) -> dict[str, float]:
    """Seconds of a command, with what it needs made first."""
    if "PICTURES" in command:
        write_pictures(folder / "PICTURES")
    if "RUN" in command:
        seconds_of(code, ("train", "cartpole", "steps=3000"), folder)
        shutil.move(folder / "train", folder / "RUN")
    return seconds_of(code, command, folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--before", type=Path, help="checkout of the code to compare with; without, only this code runs"
    )
    parser.add_argument("--only", choices=list(COMMANDS), nargs="+", default=list(COMMANDS), metavar="COMMAND")
    arguments = parser.parse_args()
    checkouts = {"after": HERE}
    if arguments.before is not None:
        checkouts = {"before": arguments.before.resolve(), **checkouts}
    rows = kept("commands.json", "commands")
    for name in arguments.only:
        row = dict(rows.get(name, {}))
        for moment, code in checkouts.items():
            with tempfile.TemporaryDirectory() as folder:
                row[moment] = measured(code, COMMANDS[name], Path(folder))
        rows[name] = row
        line = ", ".join(f"{moment} {seconds['processor']:.1f} s" for moment, seconds in row.items())
        print(f"{name:<40}{line}", flush=True)
        keep("commands.json", "commands", rows)


if __name__ == "__main__":
    main()
