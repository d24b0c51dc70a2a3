"""Examine what a run has chosen, or any other model, on a panel of a game."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sightline.agents.building import AgentSetup, game_maker, played_game
from sightline.agents.checkpoints import chosen_model
from sightline.agents.evaluation import evaluate_policy
from sightline.agents.prompting import reply_schema
from sightline.agents.rollouts import RolloutWorker
from sightline.config.loading import for_agent
from sightline.config.recipe import AgentRecipe
from sightline.evaluation.seeds import make_panel
from sightline.models.chat.config import ChatModelConfig
from sightline.runs.folder import RunFolder


def evaluate_run(run: RunFolder, episodes: int, seed: int, trust: bool = False) -> dict[str, Any]:
    """Play a test panel with the run's chosen model, with real, blank and shuffled pictures.

    Args:
        run: a run of an agent with at least one evaluation.
        episodes: size of the panel.
        seed: which panel of that size.
        trust: whether code that the run's recipe names may be imported.

    Returns:
        See `evaluate_policy`; and `chosen_step`.

    Raises:
        BadInput: the run has no whole checkpoint that was chosen yet, or names code of its own.
    """
    recipe = for_agent(run.trusted_recipe(trust))
    path, turns = chosen_model(run)
    setup = _setup(recipe)
    setup.vlm.load_weights(path)
    return {"chosen_step": turns} | _examine(setup, episodes, seed)


def evaluate_model(recipe: AgentRecipe, episodes: int, seed: int) -> dict[str, Any]:
    """The same of the model that a recipe names, as it is before any training."""
    return _examine(_setup(recipe), episodes, seed)


def evaluate_chat(
    recipe: AgentRecipe, config: ChatModelConfig, episodes: int, seed: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """The same of a model behind a chat interface, such as a hosted one, on the same panel.

    Args:
        recipe: game, form of replies and window.
        config: provider, model, limits and sampling.
        say: is told of replies that are missing.

    Returns:
        See `evaluate_policy`; and `model`, `missing` (replies that never came), `input_tokens`, `output_tokens`.

    Raises:
        BadInput: package or key missing, key refused, model unknown.
        RunFailed: the server does not answer.
    """
    from sightline.agents.samplers.chat import ChatSampler

    table = RolloutWorker(game_maker(recipe), recipe.replies, recipe.rollouts.window, recipe.evaluation.parallel)
    game = table.game(0)
    names, asked = game.get_wrapper_attr("action_names"), game.get_wrapper_attr("asked")
    sampler = ChatSampler(config, reply_schema(recipe.replies, asked, names), say)
    sampler.check()
    numbers = evaluate_policy(table, sampler, make_panel("test", played_game(recipe), episodes, seed))
    return numbers | {
        "model": sampler.name,
        "missing": sum(sampler.failures.values()),
        "input_tokens": sampler.input_tokens,
        "output_tokens": sampler.output_tokens,
    }


def _setup(recipe: AgentRecipe) -> AgentSetup:
    """One process, and a model that does not learn."""
    import torch

    from sightline.agents.engines.single import SingleProcess
    from sightline.models.vlm.model import load_vlm

    torch.set_num_threads(recipe.threads)
    has_values = recipe.algorithm.kind == "ppo"
    return AgentSetup(recipe, load_vlm(recipe.policy, has_values, recipe.device, recipe.seed), SingleProcess())


def _examine(setup: AgentSetup, episodes: int, seed: int) -> dict[str, Any]:
    return evaluate_policy(setup.table(), setup.sampler(greedy=True), setup.panel("test", episodes, seed))
