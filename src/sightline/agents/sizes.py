"""Memory and disk space that training of an agent takes, told before any model is loaded; and how many episodes are
played at the same time, which follows from them."""

from __future__ import annotations

from sightline.config.recipe import AgentRecipe
from sightline.models.device import readable_size
from sightline.models.vlm.loading import folder_of

FEW_EPISODES, MANY_EPISODES = 64, 256
SMALL_MODEL_BYTES = 16 * 2**20
"""Bytes of weights of a model, at most, 256 of whose replies take little memory at the same time."""
SMALL_GAME = 4 * 2**20
"""Bytes of a game, at most, of which there can be 256."""


def episodes_at_once(recipe: AgentRecipe, game_bytes: int) -> int:
    """Episodes that are played at the same time where the recipe leaves that open.

    A batch of many replies takes less time for each. Neither how long anything took decides, nor how much memory is
    free. The memory of a game is measured, so that machines could differ about one of nearly `SMALL_GAME`; a run keeps
    the number in its recipe.

    Args:
        recipe: names the model.
        game_bytes: memory that one more game takes.
    """
    weights = _weight_bytes(recipe.policy.model)
    is_small = weights is not None and weights <= SMALL_MODEL_BYTES and game_bytes <= SMALL_GAME
    return MANY_EPISODES if is_small else FEW_EPISODES


def space_of(recipe: AgentRecipe) -> str:
    """Memory and disk space of a recipe, in two lines; sizes of weights are known where their files lie here."""
    model = "the model"
    size = _weight_bytes(recipe.policy.model)
    if size is not None:
        model += f" ({readable_size(size)} of weights in its files)"
    memory = (
        f"{model}; of the weights that learn a gradient and twice as much of the optimiser (float32); activations of "
        f"{recipe.update.micro_batch} replies at a time (update.micro_batch); each picture that was shown since the "
        "last update, once"
    )
    on_disk = (
        f"{recipe.checkpoints.keep} checkpoints of the weights that learn and twice as much of the optimiser "
        "(float32), the best model, and the model before RL"
    )
    return f"memory      {memory}\ndisk        {on_disk}"


def _weight_bytes(model: str) -> int | None:
    """Bytes of a model's weights as its files hold them; None if they are not here."""
    folder = folder_of(model)
    if folder is None:
        return None
    return sum(file.stat().st_size for file in folder.glob("*.safetensors")) or None
