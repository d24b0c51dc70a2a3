"""What a command does depends on the recipe's role: a policy on states, or an agent. Here the two meet."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sightline.config import AgentRecipe, ChatTeacherConfig, Recipe, for_agent, load_recipe
from sightline.errors import BadInput, nearest
from sightline.runs.folder import RunFolder, create_run
from sightline.runs.progress import ProgressBar


def complete(recipe: Recipe) -> Recipe:
    """Fill in what the recipe leaves open."""
    if isinstance(recipe, AgentRecipe):
        from sightline.agents.preparing import complete as complete_agent

        return complete_agent(recipe)
    from sightline.tasks.completing import complete as complete_control

    return complete_control(recipe)


def train(recipe: Recipe, run: RunFolder | Path, name: str) -> tuple[RunFolder, dict[str, Any]]:
    """Carry out a recipe, with a progress bar and a report at the end.

    Args:
        recipe: complete.
        run: the run to resume, or the folder of a new one, which is made once everything is prepared.
        name: what the bar says.
    """
    if isinstance(recipe, AgentRecipe):
        return _train_agent(recipe, run, name)
    from sightline.control.preparing import prepare
    from sightline.control.training import train as train_control
    from sightline.models.encoders import model_card
    from sightline.reports.html import write_report

    setup = prepare(recipe)
    folder = run if isinstance(run, RunFolder) else create_run(run, recipe)
    card = model_card(setup.encoder.name) if setup.encoder else None
    if card:
        folder.write_text("model_card.md", card)
    with ProgressBar(recipe.steps, name) as progress:
        result = train_control(setup, folder, progress, resume=isinstance(run, RunFolder))
    write_report(folder.path)
    return folder, result


def _train_agent(recipe: AgentRecipe, run: RunFolder | Path, name: str) -> tuple[RunFolder, dict[str, Any]]:
    from sightline.agents.preparing import prepare
    from sightline.agents.training import train as train_agent

    setup = prepare(recipe)
    leads = setup.engine.rank == 0
    if isinstance(run, RunFolder):
        folder = run
    elif leads:
        folder = create_run(run, recipe)
    path = setup.engine.gather(str(folder.path) if leads else "")[0]
    folder = RunFolder(Path(path))
    with ProgressBar(recipe.steps, name, quiet=not leads) as progress:
        result = train_agent(setup, folder, progress, resume=isinstance(run, RunFolder))
    if leads:
        write_report(folder)
    return folder, result


def describe(recipe: Recipe, numbers: dict[str, Any]) -> str:
    """A summary of episodes in one line."""
    if isinstance(recipe, AgentRecipe):
        from sightline.agents.evaluating import describe_agent

        return describe_agent(numbers)
    from sightline.evaluation.episodes import describe as describe_control

    return describe_control(numbers)


def evaluate(run: RunFolder, episodes: int, seed: int) -> dict[str, Any]:
    """Play a panel with what a run has chosen."""
    if isinstance(run.recipe(), AgentRecipe):
        from sightline.agents.examining import evaluate_run as evaluate_agent

        return evaluate_agent(run, episodes, seed)
    from sightline.control.evaluating import evaluate_run as evaluate_control

    return evaluate_control(run, episodes, seed)


def evaluate_model(
    recipe: str,
    overrides: Sequence[str],
    model: str | None,
    provider: str | None,
    url: str | None,
    episodes: int,
    seed: int,
) -> tuple[AgentRecipe, dict[str, Any]]:
    """Play a game's panel with any model: one that is loaded here, or one that is hosted by a provider or at an
    address."""
    from sightline.agents.examining import evaluate_chat
    from sightline.agents.examining import evaluate_model as evaluate_loaded

    wanted = for_agent(load_recipe(recipe, overrides))
    if provider is None and url is None:
        chosen = wanted.policy.model_copy(update={"model": model or wanted.policy.model})
        wanted = wanted.model_copy(update={"policy": chosen})
        return wanted, evaluate_loaded(wanted, episodes, seed)
    config = chat_config(model, provider, url, wanted.replies.max_tokens)
    return wanted, evaluate_chat(
        wanted, config, episodes, seed, lambda line: print(f"warning: {line}", file=sys.stderr)
    )


def chat_config(model: str | None, provider: str | None, url: str | None, max_tokens: int) -> ChatTeacherConfig:
    """How a hosted model is asked."""
    providers = ("openai", "gemini", "anthropic", "local")
    if provider not in (None, *providers):
        raise BadInput(f"there is no provider '{provider}'{nearest(provider or '', providers)}")
    if model is None:
        raise BadInput("say which model: --model NAME")
    # Hosted models may think before they reply, and think in tokens.
    said = {"kind": "chat", "model": model, "provider": provider or "openai", "url": url}
    return ChatTeacherConfig.model_validate(said | {"max_tokens": max(max_tokens, 2048)})


def write_report(run: RunFolder) -> Path:
    """Write a run's report anew."""
    if isinstance(run.recipe(), AgentRecipe):
        from sightline.reports.agent_page import write_agent_report
        from sightline.reports.trajectories_page import write_trajectories

        write_trajectories(run.path)
        return write_agent_report(run.path)
    from sightline.reports.html import write_report as write_control_report

    return write_control_report(run.path)
