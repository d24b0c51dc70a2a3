"""`sightline check-env`: check that an environment fits an agent that looks and acts by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sightline.cli.output import AsJson, print_json

if TYPE_CHECKING:
    from sightline.config.agents import Replies
    from sightline.envs.games.checking import RoundTrip


def check_env(
    env: Annotated[str, typer.Argument(metavar="ENV", help="A game, a Gymnasium id, or your module:attribute.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[key.sub=value]...", help="Recipe keys: env_options.size=8 prompt=… actions=[left,right] …"
        ),
    ] = None,
    episodes: Annotated[int, typer.Option(min=2, help="Played at random, and as many by the oracle.")] = 20,
    seed: Annotated[int | None, typer.Option(min=0, help="Of the first episode; default: the recipe's, 0.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check a game for agents: seeds, pictures, prompts that give things away, replies, random and best play."""
    from dataclasses import asdict

    from sightline.agents.building import game_maker
    from sightline.config.loading import for_agent, load_recipe
    from sightline.envs.games.checking import check_game
    from sightline.evaluation.statistics import wilson

    stated = [*(overrides or []), *([] if seed is None else [f"seed={seed}"])]
    recipe = for_agent(load_recipe(None, ["role=agent", f"env={env}", *stated]))
    maker = game_maker(recipe)
    findings = check_game(maker, episodes, recipe.seed, _through_a_reply(recipe.replies))
    intervals = [wilson(f.won, f.played) if f.played and f.won is not None else None for f in findings]
    passed = all(finding.passed for finding in findings)
    if as_json:
        rows = [asdict(f) | {"interval": interval} for f, interval in zip(findings, intervals, strict=True)]
        print_json({"env": env, "passed": passed, "findings": rows})
    else:
        for finding, interval in zip(findings, intervals, strict=True):
            rate = ""
            if interval and finding.played and finding.won is not None:
                low, high = (100 * bound for bound in interval)
                rate = f" ({100 * finding.won / finding.played:.0f} %, 95 % interval {low:.0f} to {high:.0f} %)"
            typer.echo(f"{'ok ' if finding.passed else '-- '} {finding.name:<16} {finding.detail}{rate}")
    if not passed:
        raise typer.Exit(1)


def _through_a_reply(settings: Replies) -> RoundTrip:
    """Make the check's round trip: write an action into a reply of the recipe's format, and parse the reply."""
    from sightline.agents.parsing import read_reply
    from sightline.agents.prompting import demonstration

    def round_trip(action: str, names: tuple[str, ...]) -> str | None:
        thoughts = f"Of {', '.join(names)} I take one."
        return read_reply(demonstration(settings, {}, thoughts, action), settings, names).action

    return round_trip
