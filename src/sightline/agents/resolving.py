"""Complete an agent's recipe, check that its environment exists, and say how its games are made."""

from __future__ import annotations

import contextlib
import tracemalloc
from collections.abc import Iterator, Mapping
from typing import Any

from sightline.agents.demos import Demo, demonstrations, read_demos
from sightline.agents.sizes import episodes_at_once
from sightline.config.agents import WarmStart
from sightline.config.loading import for_agent, validate_recipe
from sightline.config.recipe import AgentRecipe
from sightline.envs.games.checking import HOW_TO_STATE_SUCCESS, states_success
from sightline.envs.games.making import GameMaker
from sightline.envs.games.wrapping import begin_once
from sightline.envs.stepping import close_env
from sightline.envs.tasks import find_task
from sightline.errors import BadInput
from sightline.evaluation.seeds import describe_env
from sightline.models.device import SMALL_MODEL, choose_device, fast_dtype, memory_taken
from sightline.models.vlm.card import with_taught_form
from sightline.models.vlm.loading import weights_known
from sightline.rewards.config import resolved_words


def resolve(recipe: AgentRecipe) -> AgentRecipe:
    """Fill in what the recipe leaves open, and check that its environment and demonstrations exist.

    Raises:
        BadInput: there is no such environment, it does not take these options, it has no pictures, or there are no
            demonstrations of it.
        RunFailed: the environment cannot be built on this machine.
    """
    recipe = with_form_of_model(recipe)
    game_bytes = _try_games(recipe)
    if recipe.warm_start is not None:
        _check_demonstrations(recipe, recipe.warm_start)
    _check_success(recipe)

    document: dict[str, Any] = recipe.model_dump(mode="json")
    document |= resolved_words(recipe, find_task(recipe.env))
    document["policy"]["dtype"] = _dtype_of_weights(recipe)
    document["rollouts"]["parallel"] = recipe.rollouts.parallel or episodes_at_once(recipe, game_bytes)
    tenth = max(recipe.steps // 10, 1)
    document["evaluation"]["every"] = recipe.evaluation.every or tenth
    document["checkpoints"]["every"] = recipe.checkpoints.every or tenth
    return for_agent(validate_recipe(document))


def _dtype_of_weights(recipe: AgentRecipe) -> str:
    """The dtype of a recipe's weights: where it is left open, bfloat16 of a large model with adapters on a CPU that
    multiplies it fast (AMX, AVX512-BF16). It stands in the run's recipe, since it changes what is sampled."""
    policy = recipe.policy
    if policy.dtype != "auto" or policy.lora is None or policy.four_bit:
        return policy.dtype
    count = weights_known(policy.model)
    device = choose_device(recipe.device, count)
    is_small = count is not None and count < SMALL_MODEL
    if device.type != "cpu" or is_small or fast_dtype(device).itemsize != 2:
        return policy.dtype
    return "bfloat16"


def _try_games(recipe: AgentRecipe) -> int:
    """Make the game of evaluation and that of training, and begin them.

    Returns:
        Bytes that the second takes beside the first, in this process and in those that it has started. It is only told
        where the recipe asks for it by leaving `rollouts.parallel` open: of some games only one can be there.

    Raises:
        BadInput: see `resolve`.
        RunFailed: see `resolve`.
    """
    taken = 0
    is_open = recipe.rollouts.parallel is None
    with contextlib.ExitStack() as games, _allocations_traced() if is_open else contextlib.nullcontext():
        for make in (game_maker(recipe), game_maker(recipe, training=True)):
            memory = memory_taken()
            allocated, _ = tracemalloc.get_traced_memory()
            game = make()
            games.callback(close_env, game)
            begin_once(game, recipe.env)
            # A process that has run for long gives a game memory that it had already: then only allocations tell.
            taken = max(memory_taken() - memory, tracemalloc.get_traced_memory()[0] - allocated)
            if not is_open:
                games.close()
    return taken


@contextlib.contextmanager
def _allocations_traced() -> Iterator[None]:
    """Have Python count what it and numpy allocate."""
    was_tracing = tracemalloc.is_tracing()
    tracemalloc.start()
    try:
        yield
    finally:
        if not was_tracing:
            tracemalloc.stop()


def with_form_of_model(recipe: AgentRecipe) -> AgentRecipe:
    """The recipe with the form of replies that its model was taught, where it leaves the form open.

    Raises:
        BadInput: the model's card states a form that there is not.
    """
    return recipe.model_copy(update={"replies": with_taught_form(recipe.replies, recipe.policy.model)})


def _check_demonstrations(recipe: AgentRecipe, settings: WarmStart) -> None:
    """Make or read one demonstration: a warm start that cannot begin is refused before the model is loaded.

    Raises:
        BadInput: the environment does not know its best play, or the file holds no demonstrations.
        RunFailed: best play is never known, as in games that cannot be won.
    """
    if settings.demos is None:
        demos = best_play(recipe, settings, 1)
    else:
        demos = read_demos(settings.demos, settings.image_folder)
    next(demos, None)


def _check_success(recipe: AgentRecipe) -> None:
    """Refuse to learn from success, or to wait for it, where the environment does not state it.

    Raises:
        BadInput: in some random episodes no info says whether a state is a success.
    """
    stop_at = recipe.evaluation.stop_at
    if recipe.reward.reads_success:
        need = f"reward.kind={recipe.reward.kind} pays for success"
    elif stop_at is not None:
        need = f"evaluation.stop_at={stop_at:g} is a share of episodes with success"
    else:
        return

    game = game_maker(recipe)()
    try:
        has_success = states_success(game, recipe.seed)
    except BadInput:
        raise
    except Exception:
        return  # an environment that breaks down is reported where it is played
    finally:
        game.close()
    if not has_success:
        raise BadInput(f"{need}, and '{recipe.env}' does not state it; {HOW_TO_STATE_SUCCESS}")


# -- games -------------------------------------------------------------------------------------------------------------


def game_maker(recipe: AgentRecipe, training: bool = False, changed: Mapping[str, Any] | None = None) -> GameMaker:
    """Factory of the recipe's environment for evaluation, or with the changed options and time limit of training.

    Args:
        recipe: names the environment.
        training: whether its games are to be learned from.
        changed: options over all others, those of the demonstrated game.
    """
    options = recipe.env_options
    steps = recipe.episode_steps
    if training:
        options = options | recipe.rollouts.train_env_options
        steps = recipe.rollouts.episode_steps or steps
    options = options | dict(changed or {})
    return GameMaker(
        recipe.env,
        options,
        recipe.prompt,
        recipe.actions,
        steps,
        recipe.text_only,
        recipe.success_from,
        ignores_reward=not recipe.reward.reads_own_reward,
    )


def best_play(recipe: AgentRecipe, settings: WarmStart, samples: int) -> Iterator[Demo]:
    """Demonstrated turns of the recipe's training games, with the options that its warm start changes."""
    maker = game_maker(recipe, training=True, changed=settings.env_options)
    return demonstrations(maker, recipe.replies, samples, recipe.seed, settings)


def played_game(recipe: AgentRecipe) -> str:
    """Name of the evaluated environment with all options that change it, as evaluation seeds depend on it."""
    # Panels are drawn from this name: `in_words` was the key of `text_only`, and keeps their seeds what they were.
    return describe_env(
        recipe.env,
        env_options=recipe.env_options,
        episode_steps=recipe.episode_steps,
        in_words=recipe.text_only,
        success_from=recipe.success_from,
    )
