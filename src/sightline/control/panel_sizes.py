"""Numbers of episodes that evaluation plays, where a recipe leaves them open: by the run's steps and the length of
episodes alone.

A panel of a hundred episodes of 500 steps is more work than a run of 2 000 steps. Evaluation takes at most as many
steps as training here, unless that leaves too few episodes to say anything. Pictures are made and rewarded of every
fourth step only, so that it is less than a third of a run's time. Nothing is measured: a recipe has the same panels on
every machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sightline.config.learners import OffPolicyLearner, OnPolicyLearner
from sightline.config.recipe import ControlRecipe, Evaluation

TEST, FEWEST_TEST = 100, 20
"""Episodes of the test panel, at most and at least."""
UNTRAINED = 20
"""Episodes of it that the untrained policy plays."""
VALIDATION, FEWEST_VALIDATION = 16, 5
"""Episodes of the validation panel, at most and at least."""
VALIDATIONS, FEWEST_VALIDATIONS = 10, 3
"""Validations of a run, at most and at least."""
SCORE_EVERY = 4
"""Steps from one whose picture is rewarded to the next, for rewards of single pictures."""


def resolved_evaluation(recipe: ControlRecipe, horizon: int) -> Evaluation:
    """The recipe's evaluation with all of its numbers.

    Args:
        horizon: steps of an episode, at most.
    """
    evaluation = recipe.evaluation
    # Half of the steps for the test panel, half for all validations together.
    affordable = recipe.steps / horizon / 2
    test_episodes = evaluation.test_episodes
    if test_episodes is None:
        # The untrained policy plays the first of them.
        test_episodes = max(_between(affordable, FEWEST_TEST, TEST), evaluation.untrained_episodes or 0)
    if evaluation.every is None:
        validations = VALIDATIONS
    else:
        validations = math.ceil(recipe.steps / evaluation.every)
    episodes = evaluation.episodes or _between(affordable / validations, FEWEST_VALIDATION, VALIDATION)
    every = evaluation.every
    if every is None:
        # Rounded up, so that no remainder is worth one more.
        every = math.ceil(recipe.steps / _between(affordable / episodes, FEWEST_VALIDATIONS, VALIDATIONS))
    score_every = evaluation.score_every
    if score_every is None:
        score_every = SCORE_EVERY if recipe.reward.judges_single_frames else 1
    return evaluation.model_copy(
        update={
            "every": every,
            "episodes": episodes,
            "test_episodes": test_episodes,
            "untrained_episodes": evaluation.untrained_episodes or min(UNTRAINED, test_episodes),
            "score_every": score_every,
        }
    )


def collected_steps(recipe: ControlRecipe) -> int:
    """Steps that a run trains for: whole chunks are collected, which may be more steps than the recipe says."""
    chunk = recipe.learner.chunk * recipe.envs
    return math.ceil(recipe.steps / chunk) * chunk


def learning_begins(recipe: ControlRecipe) -> int:
    """Step at which the learner's first gradient step comes."""
    if isinstance(recipe.learner, OffPolicyLearner):
        return recipe.learner.learning_starts
    return 0


def learns_nothing(recipe: ControlRecipe) -> bool:
    """Whether a run trains, and ends before its learner begins."""
    return 0 < collected_steps(recipe) <= learning_begins(recipe)


def _validations(recipe: ControlRecipe) -> int:
    """Number of validations: at the ends of chunks that pass a multiple of `evaluation.every`, and of the last one."""
    assert recipe.evaluation.every is not None
    chunk = recipe.learner.chunk * recipe.envs
    steps = collected_steps(recipe)
    if recipe.evaluation.every <= chunk:
        return steps // chunk
    passed = steps // recipe.evaluation.every
    before_the_last_chunk = max(steps - chunk, 0) // recipe.evaluation.every
    return passed if passed > before_the_last_chunk else passed + 1


def _between(number: float, lowest: int, highest: int) -> int:
    return min(max(int(number), lowest), highest)


@dataclass(frozen=True)
class EvaluationShare:
    """What evaluation takes of a run, beside training.

    Attributes:
        steps: of all panels together, if every episode lasts to its end.
        pictures: of these.
        of_steps, of_pictures: their shares of all steps and pictures of the run.
    """

    steps: int
    pictures: int
    of_steps: float
    of_pictures: float


def evaluation_share(recipe: ControlRecipe, horizon: int) -> EvaluationShare:
    """The share of a completed recipe's evaluation."""
    evaluation = recipe.evaluation
    assert evaluation.every is not None and evaluation.episodes is not None
    assert evaluation.test_episodes is not None and evaluation.untrained_episodes is not None
    trained_steps = collected_steps(recipe)
    played = _validations(recipe) * evaluation.episodes + evaluation.test_episodes + evaluation.untrained_episodes
    steps = played * horizon
    pictures = 0
    trained_pictures = 0
    if recipe.reward.needs_frames:
        pictures = played * math.ceil(horizon / (evaluation.score_every or 1))
        trained_pictures = trained_steps
        if isinstance(recipe.learner, OnPolicyLearner):
            trained_pictures = math.ceil(trained_steps / recipe.learner.frames_every)
    return EvaluationShare(
        steps,
        pictures,
        of_steps=steps / max(steps + trained_steps, 1),
        of_pictures=pictures / max(pictures + trained_pictures, 1),
    )
