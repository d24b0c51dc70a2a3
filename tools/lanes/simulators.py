"""What people's simulators do with Sightline: each command of ours on one environment of each package, and the table.

`tools/lanes/simulators.sh` makes an environment of its own for each package and calls this in it. By hand:

    python tools/lanes/simulators.py list                        # names, and what pip installs for them
    python tools/lanes/simulators.py try panda-gym FOLDER         # in an environment that has the package
    python tools/lanes/simulators.py missing nle FOLDER 'reason'  # where the package cannot be installed
    python tools/lanes/simulators.py table FOLDER                 # rows -> docs/simulators.md, and a line that sums up
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "simulators.md"
BEGIN, END = "<!-- table -->", "<!-- end of table -->"
COMMAND_SECONDS = 900
FRAMES = 20

COLUMNS = {
    "check-env": "`check-env`",
    "train": "256 steps from words",
    "stop": "stopped and resumed",
    "evaluate": "`evaluate`",
    "wrap": "`sl.wrap`, PPO",
}
"""Commands that are tried, and what the table calls them."""

TINY = (
    *("steps=256", "envs=2", "episode_steps=40", "tensorboard=false", "checkpoints.every=32"),
    *("evaluation.every=128", "evaluation.episodes=2", "evaluation.test_episodes=2"),
    *("learner.chunk=16", "learner.batch_size=16"),
)
"""A run of 256 steps from words, with the bundled encoder: whether it runs, not whether it learns, is asked."""

OFF_POLICY = ("learner.learning_starts=64", "learner.gradient_steps=2")


@dataclass(frozen=True)
class Simulator:
    """A package of environments, and the one that is tried.

    Attributes:
        name: the package, as people call it.
        requirements: what pip installs, its own name first.
        env: what to say in `env=`.
        goal: a sentence.
        overrides: further keys that it needs, which its row of the table names; `{folder}` is a folder for files.
        agent: it is played in words; nothing is trained from states.
        prepare: commands of the package's that make what it needs.
    """

    name: str
    requirements: tuple[str, ...]
    env: str
    goal: str
    overrides: tuple[str, ...] = ()
    agent: bool = False
    prepare: tuple[tuple[str, ...], ...] = ()


SIMULATORS = (
    Simulator(
        "gymnasium-robotics", ("gymnasium-robotics", "mujoco<3.12"), "gymnasium_robotics:FetchReach-v4", "a robot arm"
    ),
    Simulator("panda-gym", ("panda-gym",), "panda_gym:PandaReach-v3", "a robot arm at the green ball"),
    Simulator("highway-env", ("highway-env",), "highway_env:highway-fast-v0", "a car on an empty road"),
    Simulator("ale-py", ("ale-py",), "ale_py:ALE/Breakout-v5", "a wall with a hole"),
    Simulator("gym-pusht", ("gym-pusht",), "gym_pusht:gym_pusht/PushT-v0", "a grey T on the green T"),
    Simulator(
        "gym-aloha",
        ("gym-aloha",),
        "gym_aloha:gym_aloha/AlohaTransferCube-v0",
        "a gripper holding a red cube",
        # Its camera gives 480x640 pixels, with which every update of a policy takes seconds; it reads the joints.
        ("env_options.obs_type=pixels_agent_pos", "observation_keys=[agent_pos]"),
    ),
    Simulator(
        "pybullet-envs-gymnasium",
        ("pybullet-envs-gymnasium",),
        "pybullet_envs_gymnasium:HopperBulletEnv-v0",
        "a leg that stands",
    ),
    Simulator(
        "flappy-bird-gymnasium",
        ("flappy-bird-gymnasium",),
        "flappy_bird_gymnasium:FlappyBird-v0",
        "a bird between pipes",
    ),
    Simulator("miniworld", ("miniworld",), "miniworld:MiniWorld-OneRoom-v0", "a red box"),
    Simulator("vizdoom", ("vizdoom",), "vizdoom.gymnasium_wrapper:VizdoomBasic-v1", "a monster in the centre"),
    Simulator(
        "stable-retro",
        ("stable-retro",),
        "stable_retro:RetroEnv",
        "a space ship that shoots",
        ("env_options.game=Airstriker-Genesis-v0", "learner.algorithm=PPO", "workers=processes"),
    ),
    Simulator("crafter", ("crafter",), "sightline.adapters:crafter", "a player beside a tree"),
    Simulator(
        "dm-control", ("shimmy[dm-control]", "mujoco<4"), "shimmy:dm_control/cartpole-balance-v0", "an upright pole"
    ),
    Simulator(
        "robosuite",
        ("robosuite", "h5py", "mujoco<3.10"),
        "sightline.adapters:robosuite",
        "a robot arm lifting a red cube",
    ),
    Simulator("nle", ("nle>=1.2",), "sightline.adapters:nethack", "an at sign beside a door"),
    Simulator(
        "textworld",
        ("textworld",),
        "sightline.adapters:textworld",
        "",
        ("env_options.game={folder}/games",),
        agent=True,
        prepare=tuple(
            ("tw-make", "custom", "--force", "--seed", str(seed), "--output", f"{{folder}}/games/{seed}.z8")
            for seed in range(1, 5)
        ),
    ),
)


@dataclass(frozen=True)
class Outcome:
    """What a command of ours did.

    Attributes:
        passed: it did what it should.
        refusal: it ended in one line of ours; otherwise a raw exception, a signal, or too long a time.
        line: what it said last.
        seconds: how long it took.
    """

    passed: bool
    refusal: bool
    line: str
    seconds: float


@dataclass
class Row:
    """What was found of one package.

    Attributes:
        name: of the package.
        versions: package -> version, of the package itself, Gymnasium and numpy.
        outcomes: command -> what it did.
        warnings: what the run said that it did, or that looks wrong.
        frame_seconds: how long one frame takes; None if none was drawn.
        problem: why the package was not tried; empty if it was.
    """

    name: str
    versions: dict[str, str] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    frame_seconds: float | None = None
    problem: str = ""


def attempt(arguments: list[str], expected: int = 0) -> Outcome:
    """One command of this Python's, with a time limit."""
    started = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, *arguments], capture_output=True, text=True, check=False, timeout=COMMAND_SECONDS
        )
    except subprocess.TimeoutExpired:
        return Outcome(False, False, f"not done after {COMMAND_SECONDS} s", COMMAND_SECONDS)
    return outcome(done.returncode, done.stdout, done.stderr, expected, time.monotonic() - started)


def outcome(code: int, out: str, err: str, expected: int, seconds: float) -> Outcome:
    """Judge a command by its exit code and by what it wrote."""
    lines = [line.strip() for line in [*out.splitlines(), *err.splitlines()] if line.strip()]
    ours = [line for line in lines if line.startswith("sightline:")]
    is_raw = "Traceback" in err or code < 0
    passed = code == expected and not is_raw
    refusal = not is_raw and code in (1, 2) and len(ours) == 1
    return Outcome(passed, not passed and refusal, (ours or lines or [""])[-1], round(seconds, 1))


def stopped(command: list[str], run: Path) -> Outcome:
    """Begin a run, and stop it by SIGTERM once it has saved a checkpoint: it must say so, and leave with 128 + 15."""
    started = time.monotonic()
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not list(run.glob("checkpoints/step-*")):
        if time.monotonic() - started > COMMAND_SECONDS:
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    try:
        out, err = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return Outcome(False, False, "SIGTERM does not end it", time.monotonic() - started)
    return outcome(process.returncode, out, err, 128 + signal.SIGTERM, time.monotonic() - started)


def try_one(simulator: Simulator, folder: Path) -> Row:
    """All commands on one package's environment, in this process's environment of packages."""
    overrides = [override.format(folder=folder) for override in simulator.overrides]
    target = [f"env={simulator.env}", f"goal={simulator.goal}", *overrides]
    package = re.split(r"[\[<>=]", simulator.requirements[0])[0]
    row = Row(simulator.name, {name: metadata.version(name) for name in (package, "gymnasium", "numpy")})
    for command in simulator.prepare:
        program, *arguments = (part.format(folder=folder) for part in command)
        subprocess.run([Path(sys.executable).parent / program, *arguments], check=True, capture_output=True)
    ours = ["-m", "sightline"]
    row.outcomes["check-env"] = attempt([*ours, "check-env", simulator.env, *overrides, "--episodes=2"])
    if simulator.agent:
        return row
    run = folder / f"run-{int(time.time())}"
    is_on_policy = "learner.algorithm=PPO" in overrides
    tiny = TINY if is_on_policy else (*TINY, *OFF_POLICY)
    train = [*ours, "train", *target, *tiny, "--run-dir", str(run)]
    row.outcomes["stop"] = stopped(train, run)
    resumes = row.outcomes["stop"].passed
    row.outcomes["train"] = attempt([*train, "--resume"]) if resumes else row.outcomes["stop"]
    if row.outcomes["train"].passed:
        row.outcomes["evaluate"] = attempt([*ours, "evaluate", str(run), "--episodes=2", "--trust"])
    if (run / "warnings.json").is_file():
        row.warnings = json.loads((run / "warnings.json").read_text())["warnings"]
    frame = folder / "frame.json"
    row.outcomes["wrap"] = attempt([__file__, "wrap", simulator.name, str(frame)])
    if frame.is_file():
        row.frame_seconds = json.loads(frame.read_text())["seconds"]
    return row


def wrap(simulator: Simulator, frame: Path) -> None:
    """PPO of Stable-Baselines3, 128 steps on the reward of the sentence; and how long a frame takes."""
    from gymnasium import spaces
    from stable_baselines3 import PPO

    import sightline as sl
    from sightline.config.loading import for_control, load_recipe
    from sightline.control.resolving import env_maker

    recipe = for_control(load_recipe(None, [f"env={simulator.env}", f"goal={simulator.goal}", *simulator.overrides]))
    env = env_maker(recipe, None, render=True)()
    env.reset(seed=0)
    started = time.monotonic()
    for _ in range(FRAMES):
        env.render()
    frame.write_text(json.dumps({"seconds": (time.monotonic() - started) / FRAMES}))
    wrapped = sl.wrap(env, simulator.goal)
    policy = "MultiInputPolicy" if isinstance(wrapped.observation_space, spaces.Dict) else "MlpPolicy"
    PPO(policy, wrapped, n_steps=64, batch_size=32, n_epochs=2).learn(128)
    wrapped.close()


def table(rows: list[Row]) -> list[str]:
    """The table of the page, as lines of Markdown, and below it what was said where something did not work."""
    heads = ("package", "say", *COLUMNS.values(), "seconds a frame")
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    remarks = []
    for row in rows:
        simulator = named(row.name)
        requirements = " ".join(f"'{one}'" if re.search(r"[\[<>]", one) else one for one in simulator.requirements)
        version = next(iter(row.versions.values()), "")
        overrides = " ".join(override.format(folder="…") for override in simulator.overrides)
        marks = [_mark(row.outcomes.get(command)) for command in COLUMNS]
        frame = "" if row.frame_seconds is None else f"{row.frame_seconds:.3f}"
        said = " ".join(part for part in (f"env={simulator.env}", overrides) if part)
        lines.append(f"| `{requirements}` {version} | `{said}` | {' | '.join(marks)} | {frame} |")
        wrong = {one.line.removeprefix("sightline: ") for one in row.outcomes.values() if not one.passed}
        remarks += [f"- **{row.name}**: {line}" for line in [row.problem, *sorted(wrong), *row.warnings] if line]
    return [*lines, "", "What was said:", "", *remarks] if remarks else lines


def _mark(done: Outcome | None) -> str:
    if done is None:
        return ""
    if done.passed:
        return "yes"
    return "a line" if done.refusal else "**no**"


def summary(rows: list[Row]) -> str:
    """How many packages were learned from, in a line."""
    learned = [row for row in rows if row.outcomes and all(one.passed for one in row.outcomes.values())]
    rest = [row for row in rows if row not in learned]
    refused = [row for row in rest if row.outcomes and all(one.passed or one.refusal for one in row.outcomes.values())]
    parts = [f"{len(learned)} of {len(rows)} packages learned from"]
    if refused:
        parts.append(f"{len(refused)} refused in a line ({', '.join(row.name for row in refused)})")
    failed = [row.name for row in rest if row not in refused]
    if failed:
        parts.append(f"{len(failed)} failed ({', '.join(failed)})")
    return f"simulators: {'; '.join(parts)}"


def write_page(folder: Path) -> None:
    """Put the rows that lie in a folder into the page, and print the line that sums them up."""
    rows = []
    for simulator in SIMULATORS:
        file = folder / simulator.name / "row.json"
        if file.is_file():
            document = json.loads(file.read_text())
            document["outcomes"] = {name: Outcome(**one) for name, one in document["outcomes"].items()}
            rows.append(Row(**document))
    processor = platform.processor() or platform.machine()
    made = f"{time.strftime('%Y-%m-%d')}, Python {platform.python_version()}, {processor}, {os.cpu_count()} cores"
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    content = [BEGIN, "", f"Tried on {made}; OpenGL in software.", "", *table(rows), "", f"`{summary(rows)}`", "", END]
    PAGE.write_text(before + "\n".join(content) + after)
    print(summary(rows))


def named(name: str) -> Simulator:
    """The simulator of a name."""
    return next(one for one in SIMULATORS if one.name == name)


def save(row: Row, folder: Path) -> None:
    """Keep a row in a folder, and print it."""
    (folder / "row.json").write_text(json.dumps(asdict(row), indent=1) + "\n")
    if row.problem:
        print(f"--  {row.name:24} {row.problem}", flush=True)
    for command, done in row.outcomes.items():
        mark = "ok " if done.passed else "-- "
        print(f"{mark} {row.name:24} {command:10} {done.seconds:5.0f} s  {done.line}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("list", "try", "wrap", "missing", "table"))
    parser.add_argument("arguments", nargs="*")
    said = parser.parse_args()
    match said.action, said.arguments:
        case "list", []:
            for simulator in SIMULATORS:
                print(simulator.name, *simulator.requirements)
        case "try", [name, folder]:
            target = Path(folder).resolve()
            target.mkdir(parents=True, exist_ok=True)
            save(try_one(named(name), target), target)
        case "wrap", [name, frame]:
            wrap(named(name), Path(frame))
        case "missing", [name, folder, reason]:
            target = Path(folder)
            target.mkdir(parents=True, exist_ok=True)
            save(Row(name, problem=f"cannot be installed: {reason}"), target)
        case "table", [folder]:
            write_page(Path(folder))
        case _:
            parser.error("see above which arguments an action takes")


if __name__ == "__main__":
    main()
