"""Tables of measured numbers: each a function from files of benchmarks/results/ to Markdown.

`TABLES` at the end names all of them with the files that they read; `tables.py` writes them. What is told in words,
such as a row's command or what its runs had in common, stands here; every measured number is of a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, median
from typing import Any

from sightline.evaluation.statistics import wilson

Document = Mapping[str, Any]
"""A results file: part -> date, machine and result."""
Run = Mapping[str, Any]
Runs = Sequence[Run]

NONE = "–"

# -- formats -----------------------------------------------------------------------------------------------------------


def rounded(value: float, digits: int = 0) -> str:
    """A number with so many decimals; halves are rounded away from zero, also those that floats miss by a bit."""
    nudged = value + (1e-9 if value >= 0 else -1e-9)
    # No minus before a zero.
    return f"{round(nudged, digits) + 0.0:.{digits}f}"


def significant(value: float) -> str:
    """A number with three digits, and two decimals at most."""
    if value >= 100:
        return rounded(value)
    return rounded(value, 1 if value >= 10 else 2)


def percent(share: float, digits: int = 0) -> str:
    """A share as a percentage, without the sign."""
    return rounded(100 * share, digits)


def interval(low: float, high: float, digits: int = 0) -> str:
    """An interval of shares."""
    return f"[{percent(low, digits)}, {percent(high, digits)}]"


def with_interval(run: Run, digits: int = 0) -> str:
    """The success of one run with its interval."""
    return f"{percent(run['success_rate'], digits)} {interval(run['ci_low'], run['ci_high'], digits)}"


def widest(runs: Runs, digits: int = 0) -> str:
    """The lowest and the highest bound of all runs."""
    return interval(min(run["ci_low"] for run in runs), max(run["ci_high"] for run in runs), digits)


def shares(runs: Runs, key: str = "success_rate", digits: int = 0) -> str:
    """A share of each run."""
    return " ".join(percent(run[key], digits) for run in runs)


def successes(runs: Runs, digits: int = 0) -> str:
    """The success of each run, with the widest bounds."""
    return f"{shares(runs, digits=digits)} {widest(runs, digits)}"


def span(values: Iterable[float]) -> str:
    """The least and the most of some numbers, or one number if they are equal."""
    known = sorted(values)
    least, most = rounded(known[0]), rounded(known[-1])
    return least if least == most else f"{least}–{most}"


def bold(text: str, is_bold: bool = True) -> str:
    return f"**{text}**" if is_bold else text


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table, each line with its end.

    Raises:
        ValueError: a row has another number of cells than there are heads.
    """
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for row in rows:
        if len(row) != len(heads):
            raise ValueError(f"a row has {len(row)} cells and the table {len(heads)} columns: {row}")
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


def result(document: Document, part: str) -> Any:
    """What was measured of a part of a file."""
    return document[part]["result"]


# -- the words are the reward ------------------------------------------------------------------------------------------


def main_job(document: Document) -> str:
    """Success of every row of the main job; Pendulum, which states none, by its returns."""
    rows = document["rows"]

    def row(label: str, *names: str, success: Callable[[Runs], str] = successes) -> tuple[str, ...]:
        runs = [run for name in names for run in rows[name]]
        return label, success(runs), span(run["wall_seconds"] for run in runs)

    nonsense = [name for name in rows if name.startswith("control: nonsense")]
    pendulum = '`sightline train env=Pendulum-v1 goal="a rod standing upright" baseline="a rod"`'
    heads = ("run", "success of each training seed, %", "seconds, whole command")
    table = [
        row("`sightline train cartpole` (29 November, 12 000 steps; without films)", "cartpole"),
        row(
            "the same, as it was until then (40 000 steps), with an encoder of another training seed",
            "cartpole, encoder of seed 1",
        ),
        row("`sightline train mountain-car`", "mountain-car"),
        row("`sightline train mountain-car env=mountain-car-textured`", "mountain-car, textured"),
        row(pendulum, "Gymnasium's Pendulum-v1 from words alone", success=returns_with_worst),
        row(
            f"controls on `cartpole`: {len(nonsense)} nonsense goals, three seeds each (29 November)",
            *nonsense,
            success=counted,
        ),
        row("control: the baseline sentence as the goal (29 November)", "control: baseline words as goal"),
        row("control: an untrained encoder (29 November)", "control: untrained encoder"),
        row('`goal="the cart at the right edge"` (29 November)', "other words: cart at the right edge", success=ends),
    ]
    return markdown(heads, table)


def counted(runs: Runs) -> str:
    """Success of many runs: how many have which, and the widest bounds."""
    values = [percent(run["success_rate"]) for run in runs]
    times = ", ".join(f"{value} ({values.count(value)} times)" for value in dict.fromkeys(values))
    return f"{times} {widest(runs)}"


def returns_with_worst(runs: Runs) -> str:
    """The return of each run, with the lowest bounds before and after."""
    returns = " ".join(rounded(run["return"]) for run in runs)
    untrained = rounded(min(run["untrained"]["return"] for run in runs))
    worst = min(runs, key=lambda run: float(run["return"]))
    bounds = f"[{rounded(worst['return_ci_low'])}, {rounded(worst['return_ci_high'])}]"
    return f"returns {returns} (lowest untrained {untrained}; interval of the lowest {bounds})"


def ends(runs: Runs) -> str:
    """Where the cart ends in each run."""
    positions = " ".join(f"{run['final_position']:+.2f}" for run in runs)
    return f"the cart ends at {positions} m of 2.40"


WAYS = {
    "ours": "`sightline train cartpole`, with films and report",
    "sb3_loop": "a loop of 40 lines on Stable-Baselines3, our picture, scored after each rollout",
    "sb3_wrapper": "a wrapper that scores each step, our picture",
    "published_small": "the published design with our picture (64x64)",
    "published": "the published design with its own picture (400x600)",
}
"""Ways of benchmarks/peers.py to the main job's result, the nearest first."""


def peers(document: Document) -> str:
    """Processor and wall seconds of each way, medians, and what ours takes of them within a seed."""
    ways = result(document, "peers")
    heads = (
        *("way", "to the first success: processor s", "wall s", "whole command: processor s", "wall s"),
        *("success, %", "ours / its processor s: to the first success", "whole"),
    )
    rows = []
    for name, label in WAYS.items():
        runs = ways[name]
        seconds = [middle(run[key] for run in runs) for key in ("first_success_cpu", "first_success_wall")]
        seconds += [middle(run[key] for run in runs) for key in ("cpu", "wall")]
        ratios = [ratio_to(ways["ours"], runs, key) for key in ("first_success_cpu", "cpu")]
        rows.append((label, *seconds, shares(runs), *(("1", "1") if name == "ours" else ratios)))
    return f"{of_peers(document)}\n\n{markdown(heads, rows)}"


def peers_in_short(document: Document) -> str:
    """Seconds alone, for the README."""
    ways = result(document, "peers")
    keys = ("first_success_cpu", "first_success_wall", "cpu", "wall")
    labels = {
        "ours": "Sightline",
        "sb3_loop": "Stable-Baselines3 loop",
        "sb3_wrapper": "stepwise wrapper",
        "published_small": "published design, our picture",
        "published": "published design",
    }
    rows = [(labels[name], *(middle(run[key] for run in ways[name]) for key in keys)) for name in WAYS]
    heads = ("processor and wall seconds", "first success", "wall", "tested policy", "wall")
    told = "Beside what you would write instead, with equal settings (ours also makes films and a report):"
    return f"{told}\n\n{markdown(heads, rows)}"


def of_peers(document: Document) -> str:
    """When, where and how often the ways were measured, and what they have in common."""
    part = document["peers"]
    seeds = len(part["result"]["ours"])
    return (
        "Beside what a user would write instead (`PYTHONPATH=tools python benchmarks/main_job.py peers`, "
        f"{part['date']}, {part['machine']}): medians of {seeds} seeds, all ways in turn; ratios are taken within a "
        "seed [least, most].\nAll ways have the sentence, encoder, learner, steps and panels of `cartpole`, on one "
        "thread; the first success is that of all 16 fresh episodes of a validation panel.\nRatios hold for the tiny "
        "bundled encoder alone."
    )


def middle(values: Iterable[float | None]) -> str:
    """The median of those that are known, and how many are not."""
    everything = list(values)
    known = [value for value in everything if value is not None]
    if not known:
        return NONE
    missing = len(everything) - len(known)
    return rounded(median(known)) + (f" ({missing} never)" if missing else "")


def ratio_to(ours: Runs, its: Runs, key: str) -> str:
    """The median of ours / its over the seeds in which both are known, with the least and the most."""
    pairs = [(own[key], other[key]) for own, other in zip(ours, its, strict=True)]
    ratios = [own / other for own, other in pairs if own is not None and other is not None]
    if not ratios:
        return NONE
    return f"{rounded(median(ratios), 2)} [{rounded(min(ratios), 2)}, {rounded(max(ratios), 2)}]"


# -- the humanoid ------------------------------------------------------------------------------------------------------

POSES = ("standing", "arms-raised", "hands-on-hips", "arms-crossed", "one-leg", "kneeling", "splits", "lotus")


def pose_name(pose: str) -> str:
    return pose.replace("-", " ")


def held(cell: Run, after: str = "") -> Run:
    """A humanoid's cell with the keys of other runs."""
    low, high = cell[f"interval{after}"]
    return {"success_rate": cell[f"held{after}"], "ci_low": low, "ci_high": high}


def humanoid_constants(document: Document) -> str:
    """How often a pose is held without learning, from 50 % in bold; 0 goes without its interval."""
    measured = result(document, "constants")

    def cell(pose: str, control: str, who: str) -> str:
        found = measured[f"{pose}, {control}"][who]
        share = found["held"]
        if share == 0:
            return "0"
        return bold(f"{percent(share)} {interval(found['ci_low'], found['ci_high'])}", share >= 0.5)

    heads = ["pose"]
    columns = []
    for control, name in (("torque", "torques"), ("position", "target angles")):
        heads += [f"{name}: nothing, 1.5 s", "best constant, 1.5 s", "5 s"]
        columns += [(control, who) for who in ("nothing, 50 steps", "constant, 50 steps", "constant, 167 steps")]
    return markdown(heads, [(pose_name(pose), *(cell(pose, *column) for column in columns)) for pose in POSES])


def humanoid_poses(part: str, labels: Mapping[str, str]) -> Callable[[Document, Document], str]:
    """A table of learned poses: those that the labels name, in their order."""

    def table(document: Document, without_learning: Document) -> str:
        measured = result(document, part)
        unlearned = result(without_learning, "constants")
        rows = []
        for name, label in labels.items():
            cells = list(measured[name].values())
            control = "position" if "target angles" in name else "torque"
            without = unlearned[f"{name.split(',')[0]}, {control}"]
            shown = [without[f"{who}, 50 steps"]["held"] for who in ("nothing", "constant")]
            rows.append(
                (
                    label,
                    successes([held(cell) for cell in cells]),
                    *(bold(percent(share), share >= 0.5) for share in shown),
                    successes([held(cell, " after 5 s") for cell in cells]),
                    span(cell["seconds"] / 60 for cell in cells),
                )
            )
        heads = ("pose", "held after 1.5 s, %", "nothing", "best constant", "after 5 s, %", "minutes")
        return markdown(heads, rows)

    return table


humanoid_words = humanoid_poses(
    "words",
    {
        "kneeling": "kneeling",
        "kneeling, target angles": "kneeling, target angles",
        "standing": "standing",
        "arms-raised": "arms raised",
        "splits": "splits",
        "arms-crossed": "arms crossed",
        "hands-on-hips": "hands on hips",
        "lotus": "lotus, one seed (stopped for 12 of its minutes)",
        "one-leg": "one leg, one seed",
    },
)
humanoid_truth = humanoid_poses(
    "truth",
    {
        "splits, ground truth": "splits",
        "lotus, ground truth": "lotus",
        "hands-on-hips, ground truth": "hands on hips (as the recipe was, with independent noise)",
    },
)


def humanoid_checks(document: Document) -> str:
    """Each learned pose judged by the checks of all poses, means over its seeds."""
    measured = result(document, "words")
    learned = {
        "kneeling, both controls": ("kneeling", "kneeling, target angles"),
        **{pose_name(pose): (pose,) for pose in ("standing", "arms-raised", "splits", "arms-crossed")},
        **{pose_name(pose): (pose,) for pose in ("hands-on-hips", "lotus", "one-leg")},
    }
    rows = []
    for label, names in learned.items():
        cells = [cell for name in names for cell in measured[name].values()]
        rows.append((label, *(percent(fmean(cell["checks"][pose] for cell in cells)) for pose in POSES)))
    return markdown(("learned", *map(pose_name, POSES)), rows)


def humanoid_ablation(document: Document) -> str:
    """Kneeling by scene, encoder and camera."""
    cells = result(document, "ablation")["kneeling"]
    rows = []
    for encoder, label in (("bundled", "bundled"), ("half", "smaller")):
        for scene in ("original", "textured"):
            names = [
                f"env_options.scene={scene},env_options.camera={camera},reward.encoder={encoder}"
                for camera in ("front", "close", "track")
            ]
            rows.append((scene, label, *(with_interval(held(cells[name])) for name in names)))
    return markdown(("scene", "encoder", "`front`, static", "`close`", "`track`"), rows)


def humanoid_frames(document: Document) -> str:
    """Frames per second of rendering and scoring, beside the published design."""
    measured = result(document, "frames")
    medians, stages = measured["medians"], measured["stages_ms"]
    published = medians["published design"]
    rows: list[tuple[str, ...]] = [("published design", "", "", significant(published["frames_per_second"]), "1", "")]
    ways = {
        "drawn, 64 pixels": "`look=drawn`, 64 pixels",
        "GL, 64 pixels": "`look=gl`, 64 pixels",
        "GL, 224 pixels": "`look=gl`, 224 pixels",
        "GL, the very same picture": "the published picture: 480 pixels with shadows, reflections, multisampling",
    }
    for name, label in ways.items():
        inline, processes = medians[f"{name}, inline"], medians[f"{name}, processes"]
        numbers = [one[key] for one in (inline, processes) for key in ("frames_per_second", "ratio")]
        milliseconds = [stages[name][stage] for stage in ("simulate", "render", "score")]
        rows.append((label, *map(significant, numbers), " ".join(map(significant, milliseconds))))
    heads = ("way", "frames/s, in one process", "times the published", "in worker processes", "times")
    return markdown((*heads, "simulate, render, score (ms a frame)"), rows)


def humanoid_choices(document: Document) -> str:
    """What cheaper pictures do to the reward, in both scenes."""
    measured = result(document, "choices")["rows"]
    pictures = {
        "480 pixels, all (Gymnasium's)": "480 pixels with all",
        "480 pixels, no shadows": "no shadows",
        "480 pixels, no shadows, no reflections": "and no reflections",
        "480 pixels, and no multisampling": "and no multisampling",
        "224 pixels, none of the three": "and 224 pixels",
        "224 pixels, 8 slices": "and 8 slices",
        "64 pixels, 8 slices": "and 64 pixels",
        "64 pixels, drawn": "drawn, 64 pixels",
    }
    rows = []
    for name, label in pictures.items():
        cells = [label]
        for scene in ("original", "textured"):
            found = measured[f"{scene}, {name}"]
            quality = (rounded(found[key], 2) for key in ("correlation", "auc"))
            cells += [rounded(found["frames_per_second"]), *quality]
        rows.append(cells)
    heads = ("picture", "original: frames/s", "correlation", "AUC", "textured: frames/s", "correlation", "AUC")
    return markdown(heads, rows)


# -- cloth, rope, water and a drawer -----------------------------------------------------------------------------------


def taught(document: Document) -> str:
    """Tasks learned from labels, and the same learner on the true reward."""
    labels = {
        "straighten-rope": ("`sightline train straighten-rope`, taught by pictures", "pictures"),
        "pass-water": ("`sightline train pass-water`, taught by pictures", "pictures"),
        "fold-cloth": ("`sightline train fold-cloth-scripted`, labels of a script", "a script"),
        "drawer-open": ("`sightline train drawer-open`, labels of a script", "a script"),
    }
    rows = []
    for task, (label, teacher) in labels.items():
        reward = "Meta-World's reward" if task == "drawer-open" else "the ground-truth reward"
        both = (
            (label, result(document, "taught")[f"{task}, taught by {teacher}"]),
            (f"the same learner on {reward}", result(document, "truth")[f"{task}, ground truth"]),
        )
        rows += [(name, successes(runs), span(run["seconds"] for run in runs)) for name, runs in both]
    return markdown(("run", "success, %", "seconds"), rows)


def taught_others(document: Document) -> str:
    """Tasks learned from other rewards."""
    measured = result(document, "others")
    rewards = ("sparse", "words alone, alpha 0", "words alone, alpha 0.5", "words alone, alpha 1")
    rows = []
    for task in ("straighten-rope", "pass-water", "fold-cloth"):
        runs = [measured[f"{task}, {reward}"][0] for reward in rewards]
        rows.append((f"`{task}`", *map(with_interval, runs)))
    return markdown(("task", "sparse", "goal sentence, alpha 0", "alpha .5", "alpha 1"), rows)


def deformables_players(document: Document) -> str:
    """Success and mean return of players that learn nothing."""
    measured = result(document, "players")["rows"]
    players = ("script", "random", "nothing")

    def cell(task: str, player: str) -> str:
        found = measured[f"{task}, {player}"]
        return f"{percent(found['success'])} {interval(*found['interval'])} ({rounded(found['return'], 2)})"

    tasks = ("fold-cloth", "fold-cloth, steps", "straighten-rope", "pass-water")
    return markdown(("task", *players), [(task, *(cell(task, player) for player in players)) for task in tasks])


# -- from Python -------------------------------------------------------------------------------------------------------


def startup(document: Document) -> str:
    """Processor seconds until a command can be used, and their share of importing torch."""
    seconds = result(document, "startup")["processor seconds"]
    torch = seconds["import torch"]
    rows = []
    for name, taken in seconds.items():
        if name in ("python", "import torch"):
            continue
        # Names are commands, perhaps with what they are timed to.
        command, comma, rest = name.partition(",")
        label = f"`{command}`{comma}{rest}" if "sightline" in command else name
        rows.append((label, rounded(taken, 2), rounded(taken / torch, 2)))
    return markdown(("command", "seconds", "of `import torch`"), rows)


def commands(document: Document) -> str:
    """Processor seconds of whole commands as they were and as they are."""
    rows = []
    for name, row in result(document, "commands").items():
        before = row["before"]["processor"]
        after = row["after"]["processor"]
        rows.append((name, rounded(before, 1), rounded(after, 1), rounded(after / before, 2)))
    return markdown(("command", "before", "after", "ratio"), rows)


# -- a teacher compares frames -----------------------------------------------------------------------------------------


def preferences_main(document: Document) -> str:
    """The teacher's run and the learner on the true reward: returns, success, and the share of the way between."""
    measured = result(document, "main")
    truth = fmean(run["return"] for run in measured["ground-truth reward"])
    labels = {
        "encoder teacher": "`sightline train cartpole-preferences`",
        "ground-truth reward": "the same learner on the ground-truth reward",
    }
    rows = []
    for name, label in labels.items():
        runs = measured[name]
        returns = ", ".join(
            f"{rounded(run['return'])} [{rounded(run['return_ci_low'])}, {rounded(run['return_ci_high'])}]"
            for run in runs
        )
        ways = [(run["return"] - run["untrained_return"]) / (truth - run["untrained_return"]) for run in runs]
        rows.append(
            (
                label,
                returns,
                successes(runs),
                " ".join(rounded(way, 3) for way in ways),
                span(run["wall_seconds"] for run in runs),
            )
        )
    heads = ("run", "returns of seeds 0, 1, 2", "success, %")
    return markdown((*heads, "share of the way from the untrained policy to ground truth's", "seconds"), rows)


def preferences_efficiency(document: Document) -> str:
    """Success of each seed and the mean return, by feedback and number of labels."""
    measured = result(document, "efficiency")
    kinds = {
        "pairs, uniform": "pairs, uniform (the default)",
        "pairs, disagreement": "pairs, disagreement",
        "ratings, 3 levels": "ratings, 3 levels",
        "ladder": "ladder",
    }
    counts = (4, 8, 16, 32)
    rows = []
    for name, label in kinds.items():
        cells = []
        for count in counts:
            runs = measured[f"{name}, {count} labels"]
            cells.append(f"{shares(runs)} ({rounded(fmean(run['return'] for run in runs))})")
        rows.append((label, *cells))
    return markdown(("feedback", "4 labels", *map(str, counts[1:])), rows)


# -- the model is the agent --------------------------------------------------------------------------------------------


def agents(games: Document, cartpole: Document) -> str:
    """The games' runs by won games without mistakes, and CartPole's, where success is the same."""
    rows = [
        agents_row("`sightline train numberline`, 200 games", games, "numberline"),
        agents_row("`sightline train ezpoints`, 400 games", games, "ezpoints"),
    ]
    runs = list(result(cartpole, "balance").values())
    rows.append(
        (
            "`sightline train cartpole-agent`, 50 episodes of 100 turns",
            with_interval(runs[0]["untrained"]),
            successes(runs),
            shares(runs, "truthful_replies"),
            shares([run["blank"] for run in runs]),
            shares([run["shuffled"] for run in runs]),
            NONE,
            span(run["seconds"] for run in runs),
        )
    )
    heads = (
        *("run", "won without mistakes before RL, %", "after, each seed, %", "true replies after, %"),
        *("blank pictures, %", "pictures of other states, %", "best without looking, %", "seconds"),
    )
    return markdown(heads, rows)


def agents_row(label: str, games: Document, game: str) -> tuple[str, ...]:
    """A game's runs; the model before RL is the same in all."""
    runs = result(games, game)["runs"]
    looks = {look: [faultless(run[look]) for run in runs] for look in ("before", "after", "blank", "shuffled")}
    return (
        label,
        with_interval(looks["before"][0]),
        successes(looks["after"]),
        shares([run["after"] for run in runs], "truthful_replies"),
        shares(looks["blank"]),
        shares(looks["shuffled"]),
        percent(WITHOUT_LOOKING[game](result(games, "baselines")[game])),
        span(run["wall_seconds"] for run in runs),
    )


WITHOUT_LOOKING: dict[str, Callable[[Any], float]] = {
    "numberline": lambda found: max(found["played"][rule]["clean"] for rule in ("always +", "always -")),
    "ezpoints": lambda found: found["exact"]["blind, no rejected number: wins"],
}
"""Game -> the share that can be won without a mistake and without looking: on the test panel, or exactly."""


def faultless(run: Run) -> Run:
    """Games won without a mistake, with their interval, instead of all that were won."""
    low, high = wilson(round(run["clean"] * run["episodes"]), run["episodes"])
    return {"success_rate": run["clean"], "ci_low": low, "ci_high": high}


def blackjack(games: Document, exactly: Document) -> str:
    """Blackjack, won games in percent; exactly: over all hands, by the model's greedy replies."""
    models = result(exactly, "model").values()
    exact = " ".join(percent(model["wins"], 1) for model in models)
    before, after, *others = card_game(result(games, "blackjack")["runs"])
    heads = ("`sightline train blackjack`, 10 000 games", "won before RL, %", "after, each seed, %", "exactly, %")
    return markdown((*heads, *WITHOUT_PICTURES), [("`bundled-cards`", before, after, exact, *others)])


def points24(games: Document) -> str:
    """Points24, solved deals in percent."""
    heads = (
        *("`sightline train points24`, 300 games", "solved after 40 000 demonstrations, %"),
        "after RL, with the checkpoint that validation chose, %",
    )
    row = ("`bundled-cards`", *card_game(result(games, "points24")["runs"]))
    return markdown((*heads, *WITHOUT_PICTURES), [row])


WITHOUT_PICTURES = ("blank pictures, %", "pictures of other states, %", "at random, %", "seconds")


def card_game(runs: Runs) -> tuple[str, ...]:
    """Before RL, after it with the mean, without the right pictures, at random, and seconds."""
    looks = {look: [run[look] for run in runs] for look in ("before", "after", "blank", "shuffled", "random")}
    each = ", ".join(with_interval(run, 1) for run in looks["after"])
    return (
        successes(looks["before"], 1),
        f"{each}; mean {percent(fmean(run['success_rate'] for run in looks['after']), 1)}",
        shares(looks["blank"], digits=1),
        shares(looks["shuffled"], digits=1),
        percent(looks["random"][0]["success_rate"], 1),
        span(run["wall_seconds"] for run in runs),
    )


def points24_limits(document: Document) -> str:
    """What the plans of each seed are like, before and after all of RL."""
    models = {name: one for name, one in result(document, "limits").items() if name.startswith("runs/")}
    before = [one for name, one in models.items() if "/warm-" in name]
    after = [last_of_seed(models, seed) for seed in range(len(before))]

    def row(of: str, what: str, key: str, total: str, has_interval: bool = False) -> tuple[str, str, str]:
        bounds = [wilson(one[key], one[total]) for one in after]
        told = f" {interval(min(low for low, _ in bounds), max(high for _, high in bounds))}" if has_interval else ""
        first, last = (" ".join(percent(one[key] / one[total]) for one in side) for side in (before, after))
        return of, what, f"{first} → {last}{told}"

    rows = [
        row("deals", "cards are read correctly", "read", "deals"),
        row("attempts", "without a mistake", "faultless", "attempts"),
        row("attempts", "make 24", "makes 24", "attempts"),
        row("deals", "24 is found", "found", "deals", has_interval=True),
        row("plans that found it", "end with the right formula", "formula", "found", has_interval=True),
        row("deals", "the reply ends within 400 tokens", "ended", "deals"),
    ]
    return markdown(("of", "", "%"), rows)


def last_of_seed(models: Mapping[str, Run], seed: int) -> Run:
    """The model after all turns of a seed: its name ends with the most steps."""
    names = [name for name in models if name.startswith(f"runs/learn/points24/{seed}/")]
    return models[max(names, key=lambda name: int(name.rpartition("-")[2]))]


def cnn(document: Document, games: Document) -> str:
    """Games that a CNN learned, beside the agents of the games' recipes and random play."""
    labels = {"numberline": "NumberLine", "ezpoints": "EZPoints", "points24": "Points24", "blackjack": "Blackjack"}
    measured = result(document, "cnn")
    rows = []
    for game, label in labels.items():
        if game not in measured:
            rows.append((label, *([NONE] * 4)))
            continue
        runs = measured[game]["rows"]["CNN"]
        agents_of_game = result(games, game)["runs"]
        random = agents_of_game[0]["random"]
        turns = span(run["turns_played"] for run in agents_of_game)
        rows.append(
            (
                label,
                successes(runs),
                shares(runs, "clean") if "clean" in runs[0] else NONE,
                f"{percent(random['success_rate'])}, {percent(random['clean'])}",
                f"{shares([run['after'] for run in agents_of_game])} after {turns} turns",
            )
        )
    heads = (
        "game",
        "CNN after 4 096 steps, won, %",
        "without mistakes, %",
        "random legal moves: won, without mistakes, %",
    )
    return markdown((*heads, "the recipe's agent, won, %"), rows)


def language_models(document: Document) -> str:
    """What RL makes of a pretrained language model that plays NumberLine in words, and of its controls."""
    labels = {
        "before RL": "after the warm start, before RL",
        "after RL": "after RL",
        "words of other states": "the same model, told the words of other states",
        "no words": "the same, told no words",
        "random play": "random legal moves",
    }
    part = "learn numberline on a {}, rewards: {}"
    columns: dict[str, dict[str, Any]] = {}
    for processor in ("CPU", "GPU"):
        if part.format(processor, "own") not in document:
            continue
        for seed, row in result(document, part.format(processor, "own")).items():
            columns[f"{processor}, {seed}"] = row
    rows = [(label, *(row[name] for row in columns.values())) for name, label in labels.items()]
    # The control: everything is the same, but the rewards are another game's.
    control = []
    for column in columns:
        processor, seed = column.split(", ")
        others = document.get(part.format(processor, "others"), {}).get("result", {})
        control.append(others.get(seed, {}).get("after RL", NONE))
    rows.append(("control: after RL by the rewards of another game", *control))
    return markdown(("won without a mistake", *columns), rows)


def language_models_games(document: Document) -> str:
    """The same language model in the other games, one seed each."""
    looks = ("before RL", "after RL", "words of other states", "no words", "random play")
    rows = []
    for game, name in {"blackjack": "Blackjack", "ezpoints": "EZPoints", "frozenlake": "FrozenLake"}.items():
        row = result(document, f"learn {game} on a CPU, rewards: own")["seed 0"]
        rows.append((name, *(row[look] for look in looks), str(row["chosen step"])))
    return markdown(("game", *looks, "tested after, turns"), rows)


def thought_weights(document: Document) -> str:
    """Games by the weight of the tokens that are not the action."""
    return _varied(document, "weights", "`update.thought_weight`")


def thoughts(document: Document) -> str:
    """Games with thoughts before the action, and without."""
    return _varied(document, "thoughts", "`replies.thoughts`")


def _varied(document: Document, part: str, key: str) -> str:
    """Agents of each game by the value of one key: a row for each value, in it a number for each seed."""
    rows = []
    for game, measured in result(document, part).items():
        for value, runs in measured["rows"].items():
            looks = [shares(runs, look) for look in ("blank", "shuffled")]
            rows.append((game, value, successes(runs), shares(runs, "clean"), shares(runs, "truthful_replies"), *looks))
    heads = ("game", key, "won, %", "without mistakes, %", "true replies, %")
    return markdown((*heads, "blank pictures: without mistakes, %", "pictures of other states, %"), rows)


def algorithms(document: Document) -> str:
    """Turns until each algorithm has learned the two games, and the share that is won in the end."""
    labels = {
        "ppo": "`ppo`",
        "reinforce": "`reinforce`",
        "reinforce_plus_plus": "`reinforce_plus_plus`",
        "rloo": "`rloo`",
        "grpo": "`grpo`",
        "grpo, deviation none": "`grpo`, `deviation=none`",
        "grpo, ratio sequence (GSPO)": "`grpo`, ratio of replies (GSPO)",
        "grpo, dynamic sampling, higher clip (DAPO)": (
            "`grpo`, other tasks for groups that end alike, higher clip (DAPO)"
        ),
        "gigpo": "`gigpo`",
        "turn_grpo": "`turn_grpo`",
    }
    rows = []
    for name, label in labels.items():
        cells = [label]
        for game in ("numberline", "ezpoints"):
            runs = result(document, game)[name]
            cells += [" ".join(str(run["turns"] or NONE) for run in runs), successes(runs)]
        rows.append((*cells, span(run["seconds"] for run in result(document, "ezpoints")[name])))
    heads = ("`algorithm.kind`", "NumberLine: turns until learned", "won in the end, %")
    return markdown((*heads, "EZPoints: turns until learned", "won in the end, %", "its seconds"), rows)


def parallel(document: Document) -> str:
    """Processor time of a turn by how many episodes are played at once, and how much more memory that takes."""
    measured = result(document, "parallel")
    games = {"numberline": "NumberLine", "ezpoints": "EZPoints", "blackjack": "Blackjack", "household": "household"}
    sizes = [size for size in measured["numberline"] if int(size) >= 64]
    rows = []
    for game, label in games.items():
        of_game = measured[game]
        times = [of_game[size]["ms/turn"] for size in sizes]
        told = [f"{rounded(one['median'], 2)} [{rounded(one['least'], 2)}, {rounded(one['most'], 2)}]" for one in times]
        grown = [of_game[size]["peak, MiB"] - of_game["64"]["peak, MiB"] for size in ("256", "512")]
        rows.append((label, *told, *(rounded(max(one, 0)) for one in grown)))
    heads = ("milliseconds of processor time a turn", *(f"{size} at once" for size in sizes))
    return markdown((*heads, "256: MiB more than 64", "512"), rows)


# -- household and grids -----------------------------------------------------------------------------------------------


def household(document: Document) -> str:
    """The household's tasks, won after SFT and after RL, and by others."""
    learned = result(document, "learned")["household, SFT and RL"]
    minutes = span(run["seconds"] / 60 for run in learned)
    rows = [
        *warm_starts(document, "household", "the expert"),
        room_row(f"**then GiGPO, 18 000 turns** ({minutes} minutes in all)", learned, is_bold=True),
        *without_pictures(learned, "the expert"),
    ]
    return markdown(ROOM_HEADS, rows)


def babyai(document: Document) -> str:
    """BabyAI's missions likewise, and by the shortest way."""
    learned = result(document, "learned")["babyai, SFT and RL"]
    minutes = span(run["seconds"] / 60 for run in learned)
    rows = [
        *warm_starts(document, "babyai", "BabyAI's bot"),
        room_row(f"**then GiGPO, 45 000 turns** ({minutes} minutes in all)", learned, is_bold=True),
        *without_pictures(learned, "BabyAI's bot"),
        room_row("the shortest way, with the whole room known", [result(document, "shortest")]),
    ]
    return markdown(ROOM_HEADS, rows)


ROOM_HEADS = ("", "won, % (three seeds)", "lowest and highest bound")


def warm_starts(document: Document, game: str, expert: str) -> list[tuple[str, ...]]:
    """Rows of supervised learning from few, more and all demonstrations; the last is the model before RL."""
    rows = []
    for turns, label in ((1000, f"1 000 turns of {expert}"), (5000, "5 000 turns")):
        rows.append(room_row(f"SFT on {label}", result(document, "warm")[f"{game}, SFT on {turns} turns"]))
    learned = result(document, "learned")[f"{game}, SFT and RL"]
    return [*rows, room_row("SFT on 20 000 turns", [run["untrained"] for run in learned])]


def without_pictures(learned: Runs, expert: str) -> list[tuple[str, ...]]:
    """Rows of the learned model with other pictures, of random play and of best play."""
    labels = {
        "blank": "– blank pictures",
        "shuffled": "– pictures of other states",
        "random": "random play",
        "oracle": expert,
    }
    return [room_row(label, [run[look] for run in learned]) for look, label in labels.items()]


def room_row(label: str, runs: Runs, is_bold: bool = False) -> tuple[str, ...]:
    won = ", ".join(percent(run["success_rate"]) for run in runs)
    return label, bold(won, is_bold), widest(runs).strip("[]").replace(", ", "–")


# -- a model judges ----------------------------------------------------------------------------------------------------


def judge_lab(document: Document) -> str:
    """AUROC and correlation of each reward of a judge on each task, with the AUROC of its controls."""
    if "lab" not in document:
        return ""
    heads = ("task", "reward", "Spearman with the truth", "AUROC of success", "shuffled", "blank", "nonsense goal")
    rows = []
    for task, judged in result(document, "lab").items():
        for name, reward in judged["rewards"].items():
            controls = reward.get("controls", {})
            of_controls = (measured(controls.get(part, {}).get("auroc")) for part in ("shuffled", "blank", "nonsense"))
            rows.append((task, name, measured(reward.get("spearman")), measured(reward.get("auroc")), *of_controls))
    return markdown(heads, rows)


def measured(measure: Mapping[str, Any] | None) -> str:
    """A measure of the lab with its interval, where it has one."""
    if measure is None or measure.get("value") is None:
        return NONE
    value = rounded(measure["value"], 2)
    if measure.get("low") is None:
        return value
    return f"{value} [{rounded(measure['low'], 2)}, {rounded(measure['high'], 2)}]"


def judge_learn(document: Document) -> str:
    """Success and return of each run on rewards of a judge."""
    if "learn" not in document:
        return ""
    heads = ("reward", "success of each training seed, %", "return, of 200", "untrained", "seconds, whole command")
    rows = []
    for name, runs in runs_by_name(document).items():
        returns = (" ".join(rounded(run["return"]) for run in of) for of in (runs, [one["untrained"] for one in runs]))
        rows.append((name, successes(runs), *returns, span(run["wall_seconds"] for run in runs)))
    return markdown(heads, rows)


def runs_by_name(document: Document) -> dict[str, list[Run]]:
    """Runs of a part `learn` whose keys are a name and a seed, "name, seed"; those of a name in order of the seeds."""
    seeds: dict[str, dict[int, Run]] = {}
    for key, run in result(document, "learn")["runs"].items():
        name, _, seed = key.rpartition(", ")
        seeds.setdefault(name, {})[int(seed)] = run
    return {name: [runs[seed] for seed in sorted(runs)] for name, runs in seeds.items()}


def http_learn(document: Document) -> str:
    """Success and return of each run on rewards of a server."""
    rows = []
    for name, runs in runs_by_name(document).items():
        returns = " ".join(rounded(run["return"]) for run in runs)
        rows.append((name, successes(runs), returns, span(run["wall_seconds"] for run in runs)))
    return markdown(("the server serves", "success of each seed, %", "return, of 200", "seconds, whole command"), rows)


def prefixes(document: Document) -> str:
    """What a turn of a language model costs, by whether the beginning of all prompts is read once."""
    games = {"numberline": "NumberLine", "frozenlake": "FrozenLake"}
    rows = []
    for name, row in result(document, "prefixes")["rows"].items():
        game, way = name.split(", ")
        seconds = [rounded(row[f"{what}, CPU s a turn"], 2) for what in ("sampled", "learned")]
        rows.append((games[game], way, *seconds))
    return markdown(("game", "what all prompts begin with is", "sampled, s a turn", "learned, s a turn"), rows)


def trl_in_words(document: Document) -> str:
    """Processor seconds of a GRPO update of a language model, by what is learned and the limit of a reply."""
    rows = []
    for name, row in result(document, "words")["rows"].items():
        learned, tokens = name.rsplit(", ", 1)
        seconds = [significant(row[f"{whose}, s"]["median"]) for whose in ("TRL", "ours")]
        written = rounded((row["tokens of a reply, TRL"] + row["tokens of a reply, ours"]) / 2)
        rows.append((learned, tokens.removesuffix(" tokens"), written, *seconds, rounded(row["ratio"]["median"], 1)))
    head = (
        "what is learned",
        "limit of a reply, tokens",
        "tokens of a reply",
        "TRL, s",
        "Sightline, s",
        "times as long",
    )
    return markdown(head, rows)


# -- a Ray cluster -----------------------------------------------------------------------------------------------------


def cluster_speed(document: Document) -> str:
    """Frames a second of one reward in this process and from a second one."""
    measured = result(document, "speed")
    rows = []
    for name, rate in measured["frames per second"].items():
        ratio = measured["ratio"].get(name)
        rows.append((name, str(rate), NONE if ratio is None else f"{ratio:.2f}"))
    return markdown(("the encoder is", "frames a second", "of those in this process"), rows)


def cluster_travel(document: Document) -> str:
    """What it costs to send a frame, or its embedding."""
    measured = result(document, "travel")
    rows = [(name, str(way["bytes"]), str(way["sent"]), str(way["embedded"])) for name, way in measured["ways"].items()]
    return markdown(("what is sent", "bytes a frame", "sent alone, frames a second", "with embedding"), rows)


def cluster_cells(document: Document) -> str:
    """Seconds of eight cells, one and two at a time."""
    measured = result(document, "cells")
    rows = []
    for where, speedup in measured["speedup"].items():
        seconds = [rounded(measured["seconds"][f"{count} at a time, {where}"]) for count in (1, 2)]
        rows.append((where, *seconds, f"{speedup:.2f}"))
    return markdown(("cells are", "one at a time, s", "two at a time, s", "times as fast"), rows)


def cluster_recovery(document: Document) -> str:
    """Seconds from a death until the work goes on."""
    rows = [
        (*name.split("; "), " ".join(rounded(one, 1) for one in seconds))
        for name, seconds in result(document, "recovery")["seconds"].items()
    ]
    return markdown(("killed", "what goes on", "seconds, each time"), rows)


# -- data sets ---------------------------------------------------------------------------------------------------------


def data_set_memory(document: Document) -> str:
    """Peak of memory of what is done with data sets of few and of many frames."""
    measured = result(document, "memory")
    rows = []
    for name, peaks in measured["peak, MB"].items():
        what, layout = name.split(", ")
        rows.append((what, layout, *map(rounded, peaks.values()), f"{measured['ratios'][name]:.2f}"))
    sizes = [f"{int(frames):,} frames, MB".replace(",", " ", 1) for frames in peaks]
    return markdown(("", "layout", *sizes, "ratio"), rows)


# -- all tables --------------------------------------------------------------------------------------------------------

TABLES: dict[str, tuple[tuple[str, ...], Callable[..., str]]] = {
    "main_job": (("main_job.json",), main_job),
    "peers": (("peers.json",), peers),
    "peers_in_short": (("peers.json",), peers_in_short),
    "humanoid_constants": (("humanoid.json",), humanoid_constants),
    "humanoid_words": (("humanoid_poses.json", "humanoid.json"), humanoid_words),
    "humanoid_checks": (("humanoid_poses.json",), humanoid_checks),
    "humanoid_ablation": (("humanoid_poses.json",), humanoid_ablation),
    "humanoid_truth": (("humanoid_poses.json", "humanoid.json"), humanoid_truth),
    "humanoid_frames": (("humanoid_frames.json",), humanoid_frames),
    "humanoid_choices": (("humanoid_frames.json",), humanoid_choices),
    "taught": (("taught.json",), taught),
    "taught_others": (("taught.json",), taught_others),
    "deformables_players": (("deformables.json",), deformables_players),
    "startup": (("startup.json",), startup),
    "commands": (("commands.json",), commands),
    "preferences_main": (("preferences.json",), preferences_main),
    "preferences_efficiency": (("preferences.json",), preferences_efficiency),
    "judge_lab": (("judge.json",), judge_lab),
    "judge_learn": (("judge.json",), judge_learn),
    "http_learn": (("http_reward.json",), http_learn),
    "prefixes": (("language_models.json",), prefixes),
    "trl_in_words": (("trl_grpo.json",), trl_in_words),
    "cluster_speed": (("cluster.json",), cluster_speed),
    "cluster_travel": (("cluster.json",), cluster_travel),
    "cluster_cells": (("cluster.json",), cluster_cells),
    "cluster_recovery": (("cluster.json",), cluster_recovery),
    "agents": (("agents.json", "cartpole_agent.json"), agents),
    "blackjack": (("agents.json", "blackjack.json"), blackjack),
    "points24": (("agents.json",), points24),
    "parallel": (("agents.json",), parallel),
    "language_models": (("language_models.json",), language_models),
    "language_models_games": (("language_models.json",), language_models_games),
    "cnn": (("rl4vlm.json", "agents.json"), cnn),
    "thought_weights": (("rl4vlm.json",), thought_weights),
    "thoughts": (("rl4vlm.json",), thoughts),
    "points24_limits": (("points24.json",), points24_limits),
    "algorithms": (("algorithms.json",), algorithms),
    "household": (("rooms.json",), household),
    "babyai": (("rooms.json",), babyai),
    "data_set_memory": (("data_sets.json",), data_set_memory),
}
"""Name -> the files of a table, and what makes it of them."""
