"""A vision-language model's replies to given moments of a game, as a recipe asks for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sightline.agents.parsing import read_reply
from sightline.agents.prompting import prompt_text
from sightline.agents.samplers import Conversation, Key
from sightline.agents.samplers.policy import PolicySampler
from sightline.agents.types import Reply
from sightline.config.recipe import AgentRecipe
from sightline.envs.games.contract import Observation
from sightline.images import Picture
from sightline.models.vlm.model import load_vlm
from sightline.models.vlm.types import ChatTurn

AT_ONCE = 64
"""Conversations that are sampled together."""


def asked(game: Any, observation: Observation, recipe: AgentRecipe) -> Conversation:
    """What a model is shown and told at the start of a game, or at any moment that is looked at for itself."""
    text = prompt_text(observation.text, recipe.replies, game.asked, game.action_names)
    return [ChatTurn(text, tuple(map(Picture, observation.images)))]


def replies(
    model: str,
    game: Any,
    conversations: Sequence[Conversation],
    keys: Sequence[Key],
    recipe: AgentRecipe,
    temperature: float,
) -> Iterator[tuple[Reply, bool]]:
    """For each conversation the model's reply, and whether it came to an end within `replies.max_tokens`."""
    sampler = PolicySampler(load_vlm(model, device="cpu"), temperature, recipe.replies.max_tokens)
    for start in range(0, len(conversations), AT_ONCE):
        some = slice(start, start + AT_ONCE)
        for completion in sampler.generate(conversations[some], keys[some]):
            text, ended = completion.sample.text, completion.sample.finished
            yield read_reply(text, recipe.replies, game.action_names, game.asked, ended), ended
