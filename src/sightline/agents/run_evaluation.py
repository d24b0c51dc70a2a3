"""`sightline evaluate` of an agent: a run's best model, a recipe's model, or a chat model.

Each function here only says which model replies, and to which recipe. What is played with it is the same for all:
`evaluation.evaluate_policy` plays the test panel with real, blank and shuffled pictures, by random play and by the
environment's oracle, and `evaluation.summary` says what the numbers mean.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sightline.agents.agent_setup import AgentSetup, build_reward, check_senses, evaluation_worker, load_model
from sightline.agents.evaluation import evaluate_policy, progress_lines
from sightline.agents.prompting import reply_schema
from sightline.agents.resolving import played_game
from sightline.config.loading import for_agent
from sightline.config.recipe import AgentRecipe
from sightline.evaluation.seeds import make_panel
from sightline.models.chat.config import ChatModelConfig
from sightline.rewards.learned_state import load_reward
from sightline.runs.folder import RunFolder
from sightline.session import chosen_checkpoint

if TYPE_CHECKING:
    from sightline.models.vlm.model import VLM


def evaluate_run(
    run: RunFolder, episodes: int, seed: int, trust: bool = False, say: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """Evaluate a run's best model on test seeds, with real, blank and shuffled pictures.

    Args:
        run: a run of an agent with at least one evaluation.
        episodes: number of evaluation seeds.
        seed: which panel of that size.
        trust: allow to import code that the run's recipe names.
        say: receives lines about progress.

    Returns:
        See `evaluate_policy`; and `chosen_step`.

    Raises:
        BadInput: the run has no complete best checkpoint yet, or names code of its own.
    """
    recipe = for_agent(run.trusted_recipe(trust))
    checkpoint = chosen_checkpoint(run)
    setup = _setup(recipe)
    setup.vlm.load_weights(checkpoint.path)
    # A reward model that was learned during the run judges as it did when the checkpoint was saved.
    if setup.reward is not None:
        load_reward(checkpoint.path, setup.reward.model)
    return {"chosen_step": checkpoint.step} | _evaluate(setup, episodes, seed, say)


def load_chosen(run: RunFolder, trust: bool = False) -> VLM:
    """The vision-language model that a run of an agent has chosen.

    Raises:
        BadInput: the run has no complete best checkpoint yet, or names code of its own.
    """
    recipe = for_agent(run.trusted_recipe(trust))
    checkpoint = chosen_checkpoint(run)
    setup = _setup(recipe)
    setup.vlm.load_weights(checkpoint.path)
    return setup.vlm


def evaluate_model(
    recipe: AgentRecipe,
    episodes: int,
    seed: int,
    loaded: dict[str, VLM] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Evaluate the model that a recipe names, before any training.

    Args:
        loaded: models that other recipes have loaded, by how that was done; gets this one. None keeps none.
        say: receives lines about progress.
    """
    return _evaluate(_setup(recipe, loaded), episodes, seed, say)


def evaluate_chat(
    recipe: AgentRecipe,
    config: ChatModelConfig,
    episodes: int,
    seed: int,
    warn: Callable[[str], None],
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Evaluate a chat model, such as a hosted one, on the same seeds.

    Args:
        recipe: environment, reply format and window.
        config: provider, model, limits and sampling.
        warn: receives a line about missing replies.
        say: receives lines about progress.

    Returns:
        See `evaluate_policy`; and `model`, `missing` (failed replies), `input_tokens`, `output_tokens`.

    Raises:
        BadInput: package or key missing, key refused, model unknown.
        RunFailed: the server does not answer.
    """
    from sightline.agents.samplers.chat import ChatSampler

    worker = evaluation_worker(recipe)
    game = worker.games[0]
    action_names = game.get_wrapper_attr("action_names")
    queried_facts = game.get_wrapper_attr("asked")
    schema = reply_schema(recipe.replies, queried_facts, action_names)
    sampler = ChatSampler(config, schema, warn)
    sampler.check()
    seeds = make_panel("test", played_game(recipe), episodes, seed)
    numbers = evaluate_policy(worker, sampler, seeds, watch=progress_lines(say, episodes))
    numbers["model"] = sampler.name
    numbers["missing"] = sum(sampler.failures.values())
    numbers["input_tokens"] = sampler.input_tokens
    numbers["output_tokens"] = sampler.output_tokens
    return numbers


def _setup(recipe: AgentRecipe, loaded: dict[str, VLM] | None = None) -> AgentSetup:
    """Build a policy that is only evaluated, in one process."""
    import torch

    from sightline.agents.engines.engine import SingleProcess

    torch.set_num_threads(recipe.threads)
    how = f"{recipe.policy.model_dump_json()} {recipe.device}"
    vlm = (loaded or {}).get(how)
    if vlm is None:
        vlm = load_model(recipe)
    else:
        check_senses(recipe)
    if loaded is not None:
        loaded[how] = vlm
    reward = build_reward(recipe, asks=False)
    return AgentSetup(recipe, vlm, SingleProcess(), reward=reward)


def _evaluate(setup: AgentSetup, episodes: int, seed: int, say: Callable[[str], None]) -> dict[str, Any]:
    seeds = setup.eval_seeds("test", episodes, seed)
    return evaluate_policy(
        setup.rollout_worker(),
        setup.sampler(),
        seeds,
        rewards=setup.turn_rewards(),
        watch=progress_lines(say, episodes),
    )
