"""Verdicts of a run in words: can its replies be read, did it learn, does it look, does the reward agree with what was
wanted, and what to try next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sightline.evaluation.episode_stats import UNREADABLE
from sightline.evaluation.statistics import spearman
from sightline.reports import plots
from sightline.reports.pages import block, decimal, percent

AS_GOOD = 0.1
"""Difference of success rates on the validation seeds that means nothing."""
FEW = 4
"""Least number of evaluations from which the reward's agreement with the truth is judged."""

_CONSTANT = {"pictures": "the pictures showed nothing that changed", "reward": "the reward was the same at every step"}
"""What never varied in training -> a sentence about it."""


@dataclass(frozen=True)
class Verdict:
    """Verdict on a question about the run.

    Attributes:
        answer: the answer in a word or two.
        because: a sentence with the numbers behind it.
        good: whether it is what one hopes for.
    """

    question: str
    answer: str
    because: str
    good: bool


def verdicts(
    recipe: Mapping[str, Any], result: Mapping[str, Any], metrics: plots.Metrics, check: Mapping[str, Any] | None = None
) -> list[Verdict]:
    """All verdicts that the run's files allow, the most important first.

    Args:
        check: what the check before training has found (`check.json`); None without one.
    """
    candidates = [
        readable_verdict(result),
        _verdict_of_training(recipe, result),
        looking_verdict(result, bool(recipe.get("text_only"))),
        reward_verdict(metrics, result.get("chosen_step")),
        check_verdict(check or {}),
    ]
    return [verdict for verdict in candidates if verdict is not None]


def next_steps(
    recipe: Mapping[str, Any], result: Mapping[str, Any], metrics: plots.Metrics, has_landscape: bool = False
) -> list[str]:
    """What to try next, a sentence each; what needs no mending needs no advice.

    Args:
        has_landscape: whether the report draws the reward over states.
    """
    return list(_next_steps(recipe, result, metrics, has_landscape))


def _next_steps(
    recipe: Mapping[str, Any], result: Mapping[str, Any], metrics: plots.Metrics, has_landscape: bool
) -> Iterator[str]:
    if not result:
        return
    steps = recipe.get("steps")
    # While replies cannot be read, all other numbers say little, and no other advice helps.
    unreadable = readable_verdict(result)
    if unreadable is not None and (result.get("unparsable") or 0.0) >= UNREADABLE:
        yield "Teach the model the form of its replies first (warm_start={}), or choose a model that can write it."
        return
    if unreadable is not None:
        yield "Let illegal actions cost something: raise replies.penalty."
    reward = reward_verdict(metrics, result.get("chosen_step"))
    if reward is not None and not reward.good:
        if recipe.get("goal"):
            where = "the landscape below shows" if has_landscape else "the videos show"
            yield (
                "The reward does not say what is wanted: say the goal in other words, more concretely, or add a "
                f"baseline; {where} which states it likes."
            )
        else:
            yield "The reward does not say what is wanted: look at the videos, and try another one."
    learned = _verdict_of_training(recipe, result)
    constant = _constant(result)
    if "pictures" in constant:
        yield "Look at the pictures, in the videos below: camera, display driver, or what render() draws has to change."
    elif "reward" in constant:
        yield "Pay with something that varies: other words, a closer camera, a larger encoder, or another reward."
    elif learned is not None and not learned.good and isinstance(steps, int):
        # Nothing is learned before a learner's first gradient step.
        first = (recipe.get("learner") or {}).get("learning_starts") or 0
        yield f"Train longer: steps={2 * max(steps, first)}, with --resume in the same folder."
    if steps == 0:
        yield "Let it learn by trying: policy.model=RUN/checkpoints/best-… with steps, and without warm_start."
    looks = looking_verdict(result, bool(recipe.get("text_only")))
    if looks is not None and looks.answer == "No" and result.get("control") == "words":
        yield "Choose a game, or options of it, in which no rule without reading wins as often."
    elif looks is not None and not looks.good and looks.answer == "No":
        yield "Reward what needs eyes: raise update.kl_thoughts, so that the facts that it states stay true."
    if learned is not None and learned.good:
        first, second = [seed for seed in range(3) if seed != recipe.get("seed")][:2]
        yield f"Try other seeds (seed={first}, seed={second}): one run is an anecdote."


def _verdict_of_training(recipe: Mapping[str, Any], result: Mapping[str, Any]) -> Verdict | None:
    # With no steps there is a warm start alone, and the model before RL is the one that is tested.
    if recipe.get("steps") == 0:
        return None
    return learning_verdict(result)


def _constant(result: Mapping[str, Any]) -> list[str]:
    """What never varied in training, so that nothing could be learned from it."""
    names = result.get("constant")
    if not isinstance(names, list):
        return []
    return [name for name in _CONSTANT if name in names]


def readable_verdict(result: Mapping[str, Any]) -> Verdict | None:
    """Judge if an agent's replies name legal actions; None where they do, or nobody replied."""
    unparsable = float(result.get("unparsable") or 0.0)
    illegal = float(result.get("illegal") or 0.0)
    if max(unparsable, illegal) < UNREADABLE:
        return None
    faults = []
    if unparsable:
        faults.append(f"{percent(unparsable)} of its replies cannot be read")
    if illegal:
        faults.append(f"{percent(illegal)} of its replies name an action that is not legal")
    because = f"{' and '.join(faults)}."
    replaced = result.get("replaced")
    if replaced:
        because += f" Random moves were played in place of {percent(replaced)}, and part of the success is theirs."
    answer = "No" if unparsable >= 0.5 else "Not always"
    return Verdict("Can it be understood?", answer, because, False)


def learning_verdict(result: Mapping[str, Any]) -> Verdict | None:
    """Judge if training has helped: if the interval of success, else of the return, lies above the untrained one's."""
    question = "Did it learn?"
    constant = _constant(result)
    if constant:
        because = " and ".join(_CONSTANT[name] for name in constant)
        return Verdict(question, "It could not", f"In all of training {because}.", False)
    before = block(result, "untrained")
    if before.get("ci_low") is not None and result.get("ci_low") is not None:
        because = f"It succeeds in {won(result)} of the test episodes; before training it was {won(before)}."
        is_apart = result["ci_low"] > before["ci_high"]
        is_better = result["success_rate"] > before["success_rate"]
        if not is_better and before["success_rate"] >= 0.9:
            return Verdict(question, "Nothing to learn", f"{because} The task is too easy to tell.", False)
    elif before.get("return_ci_low") is not None and result.get("return_ci_low") is not None:
        because = f"Its return is {_returned(result)}; before training it was {_returned(before)}."
        is_apart = result["return_ci_low"] > before["return_ci_high"]
        is_better = result["return"] > before["return"]
    else:
        return None
    if is_apart:
        return Verdict(question, "Yes", because, True)
    if is_better:
        return Verdict(question, "Not shown", f"{because} The 95 % intervals overlap.", False)
    return Verdict(question, "No", because, False)


def looking_verdict(result: Mapping[str, Any], text_only: bool = False) -> Verdict | None:
    """Judge if the agent uses the pictures, or reads the words: yes if the interval of its success, or of its return
    where success is unknown, lies above those with blank and with other pictures or words.

    Args:
        result: a summary with `blank` and `shuffled`; its `control` says whether they are of pictures or words.
        text_only: True if it was given descriptions instead of the pictures; older results have no control of words.

    Returns:
        None if that was not measured.
    """
    question = "Does it look?"
    medium = str(result.get("control") or "pictures")
    reads = medium == "words"
    if reads:
        question = "Does it read?"
    elif text_only:
        because = "It is told in words what the pictures show and has nothing to see."
        return Verdict(question, "It cannot", because, True)
    # The measure: success where it is known, else the return.
    measure = "success_rate"
    prefix = ""
    show = won
    with_real = f"With the real {medium} it wins"
    if result.get("ci_high") is None and result.get("return") is not None:
        measure = "return"
        prefix = "return_"
        show = _returned
        with_real = f"With the real {medium} its return is"
    controls = {
        "without words of the state" if reads else "with blank pictures": block(result, "blank"),
        f"with {medium} of other states": block(result, "shuffled"),
    }
    if any(numbers.get(f"{prefix}ci_high") is None for numbers in [result, *controls.values()]):
        return None
    comparisons = []
    overlapping = []
    for name, numbers in controls.items():
        comparisons.append(f"{name} {show(numbers)}")
        if not result[f"{prefix}ci_low"] > numbers[f"{prefix}ci_high"]:
            overlapping.append(name)
    because = f"{with_real} {show(result)}; {' and '.join(comparisons)}."
    if not overlapping:
        return Verdict(question, "Yes", because, True)
    if measure == "success_rate" and result[measure] == 0:
        return Verdict(question, "Not shown", f"{because} An agent that wins nothing cannot show it.", False)
    if all(result[measure] <= numbers[measure] for numbers in controls.values()):
        blind = "without reading" if reads else "blind: the words alone decide"
        return Verdict(question, "No", f"{because} It plays no worse {blind}.", False)
    apart = " and ".join(overlapping)
    verb = "reads" if reads else "looks"
    advice = f"The intervals are not apart {apart}: more episodes, or an agent that {verb}, would tell."
    return Verdict(question, "Not shown", f"{because} {advice}", False)


def won(numbers: Mapping[str, Any]) -> str:
    """Format a success rate, such as "93 % [86, 97]"."""
    return f"{percent(numbers['success_rate'])} [{100 * numbers['ci_low']:.0f}, {100 * numbers['ci_high']:.0f}]"


def reward_verdict(metrics: plots.Metrics, chosen: Any = None) -> Verdict | None:
    """Judge if the reward wants what was wanted, over the evaluations of the run.

    It does if it has chosen a checkpoint that succeeds about as often as the best one; else if it rises and falls with
    success, or where that is unknown with the environment's own return (rank correlation).

    Args:
        chosen: step of the chosen checkpoint.

    Returns:
        None with too few evaluations, where nothing changes, and where there is no other reward.
    """
    question = "Does the reward agree with it?"
    rewards = dict(plots.points(metrics, "evaluation/reward"))
    for name, key in (("success", "evaluation/success_rate"), ("the environment's own return", "evaluation/return")):
        truth = dict(plots.points(metrics, key))
        steps = sorted(rewards.keys() & truth.keys())
        # float[N, 2], a row of reward and truth for each evaluation.
        pairs = np.array([(rewards[step], truth[step]) for step in steps])
        if len(steps) < FEW or np.ptp(pairs, axis=0).min() == 0:
            continue
        agreement = spearman(pairs[:, 0], pairs[:, 1]) or 0.0
        because = f"Over {len(steps)} evaluations its rank correlation with {name} is {agreement:.2f}."
        # What a reward is for is to choose a checkpoint: one that chose a good one has done so, whatever its ranks.
        if name == "success" and chosen in truth:
            best = max(steps, key=lambda step: truth[step])
            if truth[chosen] >= truth[best] - AS_GOOD:
                because = f"It chose a checkpoint that succeeds as often as the best. {because}"
                return Verdict(question, "Yes", because, True)
            because += (
                f" It chose step {chosen} with {percent(truth[chosen])}, while step {best:.0f} had "
                f"{percent(truth[best])}."
            )
        if agreement >= 0.5:
            return Verdict(question, "Yes", because, True)
        answer = "Hardly" if agreement > 0 else "No"
        return Verdict(question, answer, because, False)
    return None


def check_verdict(check: Mapping[str, Any]) -> Verdict | None:
    """What the check of the reward before training has said; None where there was none."""
    answer = str(check.get("verdict") or "")
    if not answer:
        return None
    because = str(check.get("reason") or "")
    is_good = answer == "passed"
    return Verdict(
        "Did the reward pass its check?", answer.capitalize(), f"{because[:1].upper()}{because[1:]}.", is_good
    )


def _returned(numbers: Mapping[str, Any]) -> str:
    return f"{decimal(numbers['return'])} [{decimal(numbers['return_ci_low'])}, {decimal(numbers['return_ci_high'])}]"
