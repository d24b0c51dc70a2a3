"""The command of the reward lab."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sightline.cli.output import AsJson, Trust, in_home, print_json


def lab(
    task: Annotated[str, typer.Argument(metavar="TASK", help="A task, a recipe, or any Gymnasium id.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[key.sub=value]...", help="Of all rewards; a list (a,b) makes several of each."),
    ] = None,
    reward: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=key=value,…",
            help="A reward to compare: the recipe with another goal, baseline, reward.… or env_options.…; again and "
            "again. Default: the recipe's own.",
        ),
    ] = None,
    sentences: Annotated[
        Path | None, typer.Option(help="A file with a goal on each line; each is tried, and they are ranked.")
    ] = None,
    episodes: Annotated[
        int | None, typer.Option(min=0, help="Episodes of each kind of play; default: 10, or none beside files.")
    ] = None,
    play: Annotated[
        list[str] | None,
        typer.Option(help="random, scripted (by the environment's own script) or states (its grid); default: all."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of all chance.")] = 0,
    run: Annotated[list[Path] | None, typer.Option(help="A run folder, whose policy plays too.")] = None,
    pictures: Annotated[
        Path | None,
        typer.Option(help="A folder of pictures with a CSV file: file, success (or truth), episode, step."),
    ] = None,
    goal_pictures: Annotated[Path | None, typer.Option(help="A folder of pictures that show the goal.")] = None,
    other_pictures: Annotated[
        Path | None, typer.Option(help="A folder of pictures that do not; default: those of play.")
    ] = None,
    video: Annotated[Path | None, typer.Option(help="A video, of which progress is the ground truth.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for lab.json and kept embeddings.", callback=in_home)] = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Judge rewards before training: sightline lab cartpole --reward own --reward "red=goal=a red car"

    A comma ends a value where key= comes next. Values that are lists make several rewards, with the quoting of
    'sightline sweep': --reward "a=reward.alpha=0,0.5,1".
    """
    from sightline.lab.contenders import parse_rewards
    from sightline.lab.running import PLAY, LabData, read_sentences, run_lab

    files = (pictures, goal_pictures, other_pictures, video)
    data = LabData(episodes, tuple(play or PLAY), seed, tuple(run or ()), *files, trust)
    goals = read_sentences(sentences) if sentences else ()
    document = run_lab(task, overrides or [], parse_rewards(reward or []), goals, data, out=out)
    for line in document["warnings"]:
        typer.echo(f"warning: {line}", err=True)
    if as_json:
        print_json(document)
        return
    for line in [*_table(document), *_ranking(document)]:
        typer.echo(line)


def _table(document: dict[str, Any]) -> list[str]:
    """The result as a table: a row for each reward."""
    names = ("spearman", "epic", "auroc")
    width = max(len(name) for name in document["rewards"])
    lines = [f"{'':<{width}}  " + "  ".join(f"{name:<20}" for name in names)]
    for name, reward in document["rewards"].items():
        cells = [f"{_cell(reward[measure]):<20}" for measure in names]
        lines.append(f"{name:<{width}}  " + "  ".join(cells))
    return lines


def _cell(measure: dict[str, Any]) -> str:
    if measure["value"] is None:
        return "undefined"
    if measure["low"] is None:
        return f"{measure['value']:.2f}"
    return f"{measure['value']:.2f} [{measure['low']:.2f}, {measure['high']:.2f}]"


def _ranking(document: dict[str, Any]) -> list[str]:
    """Rewards in the order of their AUROC on one half of the frames, with that on the other half."""
    lines = []
    for place, row in enumerate(document.get("ranking", ()), 1):
        lines.append(f"{place:>3}. held-out AUROC {_cell(row['held_out'])}  {row['reward']}")
    return lines
