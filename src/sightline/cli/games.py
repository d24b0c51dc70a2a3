"""`sightline check-env`: check that an environment fits a policy on states, or an agent that looks and acts by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sightline.cli.output import AsJson, print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sightline.config.agents import Replies
    from sightline.envs.games.checking import Finding, RoundTrip


def check_env(
    env: Annotated[str, typer.Argument(metavar="ENV", help="A task, a Gymnasium id, or your module:attribute.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[key.sub=value]...", help="Recipe keys: env_options.size=8 prompt=… actions=[left,right] …"
        ),
    ] = None,
    episodes: Annotated[int, typer.Option(min=2, help="Played at random, and as many by a game's oracle.")] = 20,
    seed: Annotated[int | None, typer.Option(min=0, help="Of the first episode; default: the recipe's, 0.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check an environment by playing it: pictures, seeds, success, rewards, time; a game's words and actions, too."""
    from dataclasses import asdict

    from sightline.evaluation.statistics import wilson

    keys = [*(overrides or []), *([] if seed is None else [f"seed={seed}"])]
    findings = _check_game(env, keys, episodes) if _is_for_agents(env, keys) else _check_control(env, keys, episodes)
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


def _is_for_agents(env: str, keys: Sequence[str]) -> bool:
    """Whether an environment is meant for an agent: it was said so, a key of agents was given, or it has words."""
    from sightline.config.recipe import AgentRecipe, ControlRecipe
    from sightline.envs.tasks import find_task

    stated = dict(key.partition("=")[::2] for key in keys)
    if "role" in stated:
        return stated["role"] == "agent"
    of_agents = AgentRecipe.model_fields.keys() - ControlRecipe.model_fields.keys()
    if any(key.partition(".")[0] in of_agents for key in stated):
        return True
    task = find_task(env)
    return task.is_game or task.prompt is not None or task.text_actions or _has_words(env, keys)


def _has_words(env: str, keys: Sequence[str]) -> bool:
    """Whether an environment has words of its own: a game, or one whose actions or observations are text."""
    from gymnasium import spaces

    from sightline.config.loading import for_control, load_recipe
    from sightline.control.resolving import env_maker
    from sightline.envs.games.contract import Game
    from sightline.envs.vector import close_env

    maker = env_maker(for_control(load_recipe(None, [f"env={env}", *keys])), frame_size=None, render=False)
    made = maker.as_it_is()
    try:
        return isinstance(made.unwrapped, Game) or isinstance(made.action_space, spaces.Text)
    finally:
        close_env(made)


def _check_game(env: str, keys: Sequence[str], episodes: int) -> list[Finding]:
    import shlex

    from sightline.agents.resolving import game_maker
    from sightline.config.loading import for_agent, load_recipe
    from sightline.envs.games.checking import Finding, check_game

    roles = [key for key in keys if key.partition("=")[0] != "role"]
    recipe = for_agent(load_recipe(None, ["role=agent", f"env={env}", *roles]))
    findings = check_game(game_maker(recipe), episodes, recipe.seed, _through_a_reply(recipe.replies))
    if not all(finding.passed for finding in findings):
        return findings
    given = [key for key in roles if key.partition("=")[0] != "seed"]
    command = f"sightline train {shlex.join(['role=agent', f'env={env}', *given])}"
    return [*findings, Finding("train with", True, command)]


def _check_control(env: str, keys: Sequence[str], episodes: int) -> list[Finding]:
    import shlex

    from sightline.config.loading import for_control, load_recipe
    from sightline.control.resolving import env_maker
    from sightline.envs.checking import UNLEARNABLE, check_control
    from sightline.envs.games.checking import Finding
    from sightline.envs.tasks import find_task

    recipe = for_control(load_recipe(None, [f"env={env}", *keys]))
    maker = env_maker(recipe, frame_size=None)
    findings = check_control(maker, episodes, recipe.seed, recipe.workers == "processes")
    if findings[-1].name == "no exception":
        return findings
    wrong = {finding.name for finding in findings if not finding.passed}
    given = [key for key in keys if key.partition("=")[0] not in ("seed", "role")]
    given += ["workers=processes"] if "copies" in wrong else []
    has_goal = any(key.startswith("goal=") for key in given) or bool(find_task(env).goal)
    pays = "" if has_goal else ' goal="what the picture should show"'
    if "pictures" in wrong:
        pays = " reward.kind=ground_truth"
        if any(finding.name == "own reward" and UNLEARNABLE in finding.detail for finding in findings):
            return findings  # neither its pictures nor its reward can be learned from
    command = f"sightline train {shlex.join([f'env={env}', *given])}{pays}"
    return [*findings, Finding("train with", True, command)]


def _through_a_reply(settings: Replies) -> RoundTrip:
    """Make the check's round trip: write an action into a reply of the recipe's format, and parse the reply."""
    from sightline.agents.parsing import read_reply
    from sightline.agents.prompting import demonstration

    def round_trip(action: str, names: tuple[str, ...]) -> str | None:
        thoughts = f"Of {', '.join(names)} I take one."
        return read_reply(demonstration(settings, {}, thoughts, action), settings, names).action

    return round_trip
