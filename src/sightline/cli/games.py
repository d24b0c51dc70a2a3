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
            metavar="[key.sub=value]...",
            help="Recipe keys: env_options.size=8 prompt=… actions=[left,right] …",
        ),
    ] = None,
    episodes: Annotated[int, typer.Option(min=2, help="Played at random, and as many by a game's oracle.")] = 20,
    seed: Annotated[int | None, typer.Option(min=0, help="Of the first episode; default: the recipe's, 0.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check an environment by playing it: pictures, seeds, success, rewards, time; a game's words and actions, too."""
    from dataclasses import asdict

    from sightline.evaluation.statistics import wilson

    keys = list(overrides or [])
    if seed is not None:
        keys.append(f"seed={seed}")
    if _is_for_agents(env, keys):
        findings = _check_game(env, keys, episodes)
    else:
        findings = _check_control(env, keys, episodes)

    # Each finding as an object for JSON and as a line; those that count successes have a confidence interval.
    rows = []
    lines = []
    for finding in findings:
        interval = None
        line = f"{'ok ' if finding.passed else '-- '} {finding.name:<16} {finding.detail}"
        if finding.played and finding.won is not None:
            interval = wilson(finding.won, finding.played)
            low, high = (100 * bound for bound in interval)
            rate = 100 * finding.won / finding.played
            line += f" ({rate:.0f} %, 95 % interval {low:.0f} to {high:.0f} %)"
        rows.append(asdict(finding) | {"interval": interval})
        lines.append(line)
    passed = all(finding.passed for finding in findings)
    if as_json:
        print_json({"env": env, "passed": passed, "findings": rows})
    else:
        for line in lines:
            typer.echo(line)
    if not passed:
        raise typer.Exit(1)


def _is_for_agents(env: str, keys: Sequence[str]) -> bool:
    """Whether an environment is meant for an agent: by the key `role`, by any key that only agents have, or because it
    has words."""
    from sightline.config.recipe import AgentRecipe, ControlRecipe
    from sightline.envs.tasks import find_task

    # The user's keys decide first, then the task's description; making the environment is the last resort.
    values = dict(key.partition("=")[::2] for key in keys)
    if "role" in values:
        return values["role"] == "agent"
    agent_blocks = AgentRecipe.model_fields.keys() - ControlRecipe.model_fields.keys()
    if any(key.partition(".")[0] in agent_blocks for key in values):
        return True
    task = find_task(env)
    return task.is_game or task.prompt is not None or task.text_actions or _has_words(env, keys)


def _has_words(env: str, keys: Sequence[str]) -> bool:
    """Whether an environment has words of its own: a game, or one whose actions or observations are text."""
    from gymnasium import spaces

    from sightline.config.loading import for_control, load_recipe
    from sightline.control.resolving import env_maker
    from sightline.envs.games.contract import Game
    from sightline.envs.stepping import close_env

    recipe = for_control(load_recipe(None, [f"env={env}", *keys]))
    environment = env_maker(recipe, frame_size=None, render=False).as_it_is()
    try:
        return isinstance(environment.unwrapped, Game) or isinstance(environment.action_space, spaces.Text)
    finally:
        close_env(environment)


def _check_game(env: str, keys: Sequence[str], episodes: int) -> list[Finding]:
    import shlex

    from sightline.agents.resolving import game_maker
    from sightline.config.loading import for_agent, load_recipe
    from sightline.envs.games.checking import Finding, check_game

    keys = [key for key in keys if _name(key) != "role"]
    recipe = for_agent(load_recipe(None, ["role=agent", f"env={env}", *keys]))
    findings = check_game(game_maker(recipe), episodes, recipe.seed, _through_a_reply(recipe.replies))
    if not all(finding.passed for finding in findings):
        return findings
    arguments = ["role=agent", f"env={env}", *(key for key in keys if _name(key) != "seed")]
    return [*findings, Finding("train with", True, f"sightline train {shlex.join(arguments)}")]


def _name(key: str) -> str:
    """The name in `name=value`."""
    return key.partition("=")[0]


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

    # The command that trains in this environment, in spite of the failed checks where that is possible.
    failed = {finding.name for finding in findings if not finding.passed}
    arguments = [f"env={env}", *(key for key in keys if _name(key) not in ("seed", "role"))]
    if "copies" in failed:
        arguments.append("workers=processes")
    command = f"sightline train {shlex.join(arguments)}"
    has_goal = any(key.startswith("goal=") for key in keys) or bool(find_task(env).goal)
    if "pictures" in failed:
        if any(finding.name == "own reward" and UNLEARNABLE in finding.detail for finding in findings):
            return findings  # neither its pictures nor its reward can be learned from
        command += " reward.kind=ground_truth"
    elif not has_goal:
        command += ' goal="what the picture should show"'
    return [*findings, Finding("train with", True, command)]


def _through_a_reply(settings: Replies) -> RoundTrip:
    """Make the check's round trip: write an action into a reply of the recipe's format, and parse the reply."""
    from sightline.agents.parsing import read_reply
    from sightline.agents.prompting import demonstration

    def round_trip(action: str, names: tuple[str, ...]) -> str | None:
        thoughts = f"Of {', '.join(names)} I take one."
        return read_reply(demonstration(settings, {}, thoughts, action), settings, names).action

    return round_trip
