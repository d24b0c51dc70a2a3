"""The command that writes episodes as a data set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

import typer

from sightline.cli.output import AsJson, Trust, in_home, print_json
from sightline.errors import BadInput
from sightline.reward_lab.collection import Collection, Layout, Player, meaning
from sightline.runs.stopping import GivenUp


def collect(
    source: Annotated[str, typer.Argument(metavar="RUN|TASK", help=meaning("source"))],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[key.sub=value]...", help="Of its recipe.")] = None,
    out: Annotated[Path | None, typer.Option(help=meaning("out"), callback=in_home)] = None,
    episodes: Annotated[int, typer.Option(min=1, help=meaning("episodes"))] = Collection.episodes,
    format: Annotated[str, typer.Option(help=meaning("format"))] = Collection.format,
    reward: Annotated[
        list[str] | None, typer.Option(metavar="NAME=key=value,…", help=f"Again and again: {meaning('rewards')}")
    ] = None,
    policy: Annotated[str | None, typer.Option(help=meaning("policy"))] = Collection.policy,
    seed: Annotated[int, typer.Option(min=0, help=meaning("seed"))] = Collection.seed,
    size: Annotated[int | None, typer.Option(min=2, help=meaning("size"))] = Collection.size,
    lossless: Annotated[bool, typer.Option("--lossless", help=meaning("lossless"))] = Collection.lossless,
    trust: Trust = Collection.trust,
    as_json: AsJson = False,
) -> None:
    """Play episodes and write them as a data set: sightline collect runs/mine --episodes 50 --out data/mine

    Each episode is written when it has ended: what was finished stays, whatever ends the command.
    """
    from sightline.reward_lab.collecting import collect as collect_episodes
    from sightline.reward_lab.contenders import parse_rewards
    from sightline.runs.progress import ProgressBar

    if out is None:
        raise BadInput("say where the data set goes: --out DIR, a new folder")
    collection = Collection(
        source,
        out,
        overrides or [],
        episodes,
        cast("Layout", format),
        parse_rewards(reward or []),
        cast("Player | None", policy),
        seed,
        size,
        lossless,
        trust,
    )
    with ProgressBar(episodes, "collecting") as progress:
        collected = collect_episodes(collection, lambda count: progress.update(count, {}))
    if as_json:
        print_json(collected.document())
    else:
        plural = "" if collected.episodes == 1 else "s"
        typer.echo(
            f"collected   {collected.episodes} episode{plural} of {collected.source}, {collected.steps} steps, in {out}"
        )
        for name in collected.rewards:
            typer.echo(f"reward      {name}")
        success = collected.success
        if success is not None:
            low, high = 100 * success["low"], 100 * success["high"]
            typer.echo(f"success     {success['count']} of {success['of']} [{low:.0f}, {high:.0f}] %")
    if collected.signal_number is not None:
        raise GivenUp(collected.signal_number)
