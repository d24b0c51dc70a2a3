"""From a recipe to all that a run needs: the game, the model, the processes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.agents.demos import demonstrations, read_demos
from sightline.agents.engines.engine import Engine
from sightline.agents.prompting import BLANK, demonstration
from sightline.agents.rollouts import RolloutWorker
from sightline.agents.samplers import Sampler
from sightline.agents.samplers.policy import PolicySampler
from sightline.config.agents import PPO, WarmStart
from sightline.config.loading import for_agent, validate_recipe
from sightline.config.recipe import AgentRecipe
from sightline.envs.games.making import GameMaker
from sightline.errors import BadInput
from sightline.evaluation.seeds import EvalSeeds, make_panel, played
from sightline.models.vlm.model import VLM

if TYPE_CHECKING:
    from sightline.agents.samplers.vllm import VLLMSampler


def resolve(recipe: AgentRecipe) -> AgentRecipe:
    """Fill in what the recipe leaves open; the result says everything.

    Raises:
        BadInput: there is no such game, it does not take these options, it cannot be played from pictures, or there are
            no demonstrations of it.
        RunFailed: the game cannot be built on this machine.
    """
    for make in (game_maker(recipe), game_maker(recipe, practice=True)):
        game = make()
        try:
            game.reset(seed=0)
        finally:
            game.close()
    if recipe.warm_start is not None:
        _check_demonstrations(recipe, recipe.warm_start)
    document: dict[str, Any] = recipe.model_dump(mode="json")
    tenth = max(recipe.steps // 10, 1)
    document["evaluation"]["every"] = recipe.evaluation.every or tenth
    document["checkpoints"]["every"] = recipe.checkpoints.every or tenth
    return for_agent(validate_recipe(document))


def _check_demonstrations(recipe: AgentRecipe, settings: WarmStart) -> None:
    """Refuse a warm start that could not even begin."""
    if settings.demos is None:
        found = demonstrations(game_maker(recipe, practice=True), recipe.replies, 1, recipe.seed, settings.explore)
    else:
        found = read_demos(Path(settings.demos))
    next(found, None)


def game_maker(recipe: AgentRecipe, practice: bool = False) -> GameMaker:
    """How to make the recipe's game, as it is evaluated or as it is practised."""
    options = recipe.env_options | (recipe.rollouts.practice if practice else {})
    return GameMaker(recipe.env, options, recipe.prompt, recipe.actions, recipe.episode_steps, recipe.in_words)


def played_game(recipe: AgentRecipe) -> str:
    """What is played in evaluations: the game's name, and with it all that changes the game."""
    return played(
        recipe.env, env_options=recipe.env_options, episode_steps=recipe.episode_steps, in_words=recipe.in_words
    )


@dataclass(frozen=True)
class AgentSetup:
    """What a run needs.

    Attributes:
        recipe: complete.
        vlm: the model, with the weights that the recipe names.
        engine: the processes that it learns on.
        server: writes the replies with a copy of the weights; None if the model does so itself.
    """

    recipe: AgentRecipe
    vlm: VLM
    engine: Engine
    server: VLLMSampler | None = None

    def table(self, practice: bool = False) -> RolloutWorker:
        """Where episodes are played, in training or in evaluation."""
        recipe = self.recipe
        parallel = recipe.rollouts.parallel // self.engine.world if practice else recipe.evaluation.parallel
        make = game_maker(recipe, practice)
        return RolloutWorker(make, recipe.replies, recipe.rollouts.window, max(parallel, 1), self.vlm)

    def sampler(self, greedy: bool = False) -> Sampler:
        """The model as it replies in training, or greedily as in evaluation."""
        recipe = self.recipe
        temperature = 0.0 if greedy else recipe.rollouts.temperature
        if self.server is not None:
            return self.server.at(temperature)
        return PolicySampler(self.vlm, temperature, recipe.replies.max_tokens)

    def weights_changed(self) -> None:
        """Hand new weights to whoever writes the replies with a copy of them."""
        if self.server is not None:
            with self.engine.whole():
                self.server.take_over_weights()

    def panel(self, name: str, episodes: int, seed: int = 0) -> EvalSeeds:
        """A panel of the recipe's game; other options of the game make it another one."""
        return make_panel(name, played_game(self.recipe), episodes, seed)


def _check_length(recipe: AgentRecipe, vlm: VLM) -> None:
    """Refuse a limit of tokens that no whole reply can keep to.

    Raises:
        BadInput: naming the least.
    """
    game = game_maker(recipe)()
    names, asked = game.get_wrapper_attr("action_names"), game.get_wrapper_attr("asked")
    game.close()
    thoughts = BLANK * 8 if recipe.replies.thoughts else ""
    shortest = (demonstration(recipe.replies, dict.fromkeys(asked, BLANK), thoughts, name) for name in names)
    least = max(len(vlm.tokens.encode(reply)) for reply in shortest) + 1
    if least > recipe.replies.max_tokens:
        raise BadInput(
            f"replies.max_tokens={recipe.replies.max_tokens} is too few: even a short reply of this model has {least} "
            "tokens; raise it (256 is usual with thoughts)"
        )


def build(recipe: AgentRecipe) -> AgentSetup:
    """Load the model and join the processes.

    Raises:
        BadInput: there is no such model, it cannot be used as the recipe says, or processes were started otherwise than
            the engine needs.
    """
    import torch

    from sightline.agents.engines.starting import start_engine
    from sightline.models.vlm.model import load_vlm

    torch.set_num_threads(recipe.threads)
    engine = start_engine(recipe.engine, recipe.device)
    vlm = load_vlm(recipe.policy, isinstance(recipe.algorithm, PPO), recipe.device, recipe.seed)
    if not any(parameter.requires_grad for parameter in vlm.model.parameters()):
        raise BadInput("nothing is left to learn: policy.freeze names all parts; take one out")
    _check_length(recipe, vlm)
    server = None
    if recipe.policy.sampler == "vllm":
        from sightline.agents.samplers.vllm import VLLMSampler

        server = VLLMSampler(vlm, max_tokens=recipe.replies.max_tokens)
    return AgentSetup(recipe, vlm, engine, server)
