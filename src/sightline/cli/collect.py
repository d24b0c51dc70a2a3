"""The command that writes episodes as a data set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast, get_args

import typer

from sightline.cli.output import AsJson, Trust, check_new_folder, in_home, print_json
from sightline.errors import BadInput
from sightline.runs.stopping import GivenUp


def collect(
    source: Annotated[str, typer.Argument(metavar="RUN|TASK", help="A run folder, a task, a recipe, a Gymnasium id.")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[key.sub=value]...", help="Of its recipe.")] = None,
    out: Annotated[Path | None, typer.Option(help="New folder of the data set.", callback=in_home)] = None,
    episodes: Annotated[int, typer.Option(min=1, help="How many.")] = 10,
    format: Annotated[
        str, typer.Option(help="lerobot (LeRobotDataset v3.0) or pictures (PNG files and a table).")
    ] = "lerobot",
    reward: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=key=value,…",
            help="A reward that judges every state, again and again: the recipe with another goal, baseline or "
            "reward.…; NAME alone is the recipe's own, or the run's as it was learned.",
        ),
    ] = None,
    policy: Annotated[
        str | None, typer.Option(help="run, random or scripted; default: a run's policy, else random play.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the episodes.")] = 0,
    size: Annotated[
        int | None, typer.Option(min=2, help="Sides of the frames; default: what the rewards read, else as drawn.")
    ] = None,
    lossless: Annotated[bool, typer.Option("--lossless", help="PNGs in a LeRobotDataset, instead of films.")] = False,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Play episodes and write them as a data set: sightline collect runs/mine --episodes 50 --out data/mine

    Each episode is written when it has ended: what was finished stays, whatever ends the command.
    """
    from sightline.reward_lab.collecting import Collection, Layout, Player
    from sightline.reward_lab.collecting import collect as collect_episodes
    from sightline.reward_lab.contenders import parse_rewards
    from sightline.runs.progress import ProgressBar

    if out is None:
        raise BadInput("say where the data set goes: --out DIR, a new folder")
    check_new_folder(out, "--out")
    if format not in get_args(Layout):
        raise BadInput(f"--format '{format[:40]}': it is one of {', '.join(get_args(Layout))}")
    if policy is not None and policy not in get_args(Player):
        raise BadInput(f"--policy '{policy[:40]}': it is one of {', '.join(get_args(Player))}")
    collection = Collection(
        source,
        overrides or [],
        episodes,
        cast("Player | None", policy),
        parse_rewards(reward or []),
        seed,
        size,
        cast("Layout", format),
        lossless,
        trust,
    )
    with ProgressBar(episodes, "collecting") as progress:
        collected = collect_episodes(collection, out, lambda count: progress.update(count, {}))
    if as_json:
        numbers = {name: value for name, value in vars(collected).items() if name != "signal_number"}
        print_json(numbers | {"path": str(out)})
    else:
        typer.echo(
            f"collected   {collected.episodes} episodes of {collected.source}, {collected.steps} steps, in {out}"
        )
        for name in collected.rewards:
            typer.echo(f"reward      {name}")
        success = collected.success
        if success is not None:
            low, high = 100 * success["low"], 100 * success["high"]
            typer.echo(f"success     {success['count']} of {success['of']} [{low:.0f}, {high:.0f}] %")
    if collected.signal_number is not None:
        raise GivenUp(collected.signal_number)
