"""`sightline demos`: demonstrations by a game's own best play, for supervised learning."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from sightline.cli.output import AsJson, in_home, print_json


def demos(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE|GAME",
            help="An agent's recipe, whose replies are written; or a game or environment that knows its best play.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the demonstrations; new or empty.", callback=in_home)],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[key.sub=value]...",
            help="Recipe keys: env_options.max_position=9 replies.format=tags …",
        ),
    ] = None,
    turns: Annotated[int, typer.Option(min=1, help="How many turns to demonstrate.")] = 1000,
    seed: Annotated[int | None, typer.Option(min=0, help="Of all chance; default: the recipe's, 0.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write demonstrations of a game's best play: sightline demos numberline --turns 5000 --out demos

    Some moves are random, so that there are mistakes to recover from: warm_start.explore=0.3 says how many. The recipe
    learns from the folder by warm_start.demos=FOLDER, and so does another with the same game and the same replies.
    """
    from sightline.agents.demos import Demo, write_demos
    from sightline.agents.resolving import best_play
    from sightline.config.agents import WarmStart
    from sightline.config.bundled import bundled_recipes
    from sightline.config.loading import for_agent, load_recipe
    from sightline.runs.progress import ProgressBar

    keys = list(overrides or [])
    if seed is not None:
        keys.append(f"seed={seed}")
    if recipe in bundled_recipes() or Path(recipe).suffix in (".yaml", ".yml"):
        agent_recipe = for_agent(load_recipe(recipe, keys))
    else:
        agent_recipe = for_agent(load_recipe(None, ["role=agent", f"env={recipe}", *keys]))
    settings = agent_recipe.warm_start or WarmStart()
    demonstrations = best_play(agent_recipe, settings, turns)
    games: set[int] = set()
    pictures: set[str] = set()

    # Counted on the way to the disk: all demonstrations may not fit into memory.
    def counted(bar: ProgressBar) -> Iterator[Demo]:
        for number, demo in enumerate(demonstrations, 1):
            games.add(demo.seed)
            pictures.update(picture.digest for picture in demo.pictures)
            bar.update(number, {})
            yield demo

    with ProgressBar(turns, "demonstrating") as bar:
        count = write_demos(out, counted(bar))
    if as_json:
        print_json({"turns": count, "games": len(games), "pictures": len(pictures), "path": str(out)})
        return
    typer.echo(f"written     {count} turns of {len(games)} games, with {len(pictures)} different pictures, to {out}")
