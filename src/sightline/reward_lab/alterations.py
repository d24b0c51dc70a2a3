"""Alterations that should hardly change a reward: other words for its goal, another camera or look of its pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from sightline.config.loading import for_control, load_recipe
from sightline.control.resolving import env_maker
from sightline.errors import BadInput
from sightline.models.encoders import shared_encoders
from sightline.reward_lab.contenders import Contender
from sightline.reward_lab.measures.sensitivity import rank_agreement, relative_change, spread_of_variants
from sightline.reward_lab.measures.success_detection import auroc
from sightline.reward_lab.scoring import LabScores, ReadyReward, under_goal

Kind = Literal["paraphrases", "views"]


@dataclass(frozen=True)
class Alteration:
    """A reward once more, with something that should not matter changed.

    Attributes:
        of: name of the reward.
        kind: what is changed: its words, or how its pictures are drawn.
        label: such as the sentence, or the name of the view.
        reward: the altered one, by a name of its own.
    """

    of: str
    kind: Kind
    label: str
    reward: ReadyReward


def paraphrased(rewards: Sequence[ReadyReward], sentences: Sequence[str]) -> list[Alteration]:
    """Each reward in words, with each of these sentences as its goal."""
    altered = []
    with shared_encoders():
        for reward in rewards:
            for sentence in sentences:
                other = under_goal(reward, sentence, f"{reward.name} (words: {sentence})")
                if other is not None:
                    altered.append(Alteration(reward.name, "paraphrases", sentence, other))
    return altered


def seen_otherwise(rewards: Sequence[ReadyReward], views: Mapping[str, Sequence[str]]) -> list[Alteration]:
    """Each reward of pictures, with these drawn in each of the views.

    Args:
        views: name -> `key=value` of `env_options`, such as a camera.

    Raises:
        BadInput: an environment does not take an option.
    """
    altered = []
    for reward in rewards:
        if "frames" not in reward.model.needs:
            continue
        for view, options in views.items():
            recipe = reward.contender.recipe
            overrides = [f"env_options.{option.removeprefix('env_options.')}" for option in options]
            if not overrides:
                raise BadInput(f"--view '{view}': say NAME=key=value of env_options, such as --view side=camera=side")
            altered_recipe = for_control(load_recipe(recipe.model_dump(mode="json"), overrides, own=False))
            contender = Contender(f"{reward.name} (view: {view})", altered_recipe, reward.contender.model)
            make = env_maker(altered_recipe, reward.setup.frame_size)
            other = ReadyReward(contender, replace(reward.setup, warnings=()), make, has_variants=False)
            altered.append(Alteration(reward.name, "views", view, other))
    return altered


def sensitivity_to(kind: Kind, name: str, alterations: Sequence[Alteration], scores: LabScores) -> dict[str, Any]:
    """How much a reward changes by the alterations of a kind, as plain data; empty without any.

    Returns:
        `{"spread": …, "auroc": {"low", "high"}, "each": {label: {"change", "spearman", "auroc"}}}`: the spread of a
        frame's reward over the reward and its alterations; the lowest and the highest AUROC of these, None where it is
        not defined; and each of them.
    """
    mine = [alteration for alteration in alterations if alteration.of == name and alteration.kind == kind]
    if not mine:
        return {}
    frames = scores.of(name)
    each = {}
    areas = [auroc(frames, 0).value]
    for alteration in mine:
        changed = scores.rewards[alteration.reward.name]
        area = auroc(frames.with_rewards(changed), 0)
        areas.append(area.value)
        each[alteration.label] = {
            "change": relative_change(frames, changed).document(),
            "spearman": rank_agreement(frames, changed).document(),
            "auroc": area.document(),
        }
    defined = [area for area in areas if area is not None]
    spread = spread_of_variants(frames, [scores.rewards[alteration.reward.name] for alteration in mine])
    lowest_and_highest = {"low": min(defined, default=None), "high": max(defined, default=None)}
    return {"spread": spread.document(), "auroc": lowest_and_highest, "each": each}
