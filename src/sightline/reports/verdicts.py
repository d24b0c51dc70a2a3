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

NEVER = {"pictures": "the pictures showed nothing that changed", "reward": "the reward was the same at every step"}
"""What a run found to be constant -> how that is told."""


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


def verdicts(recipe: Mapping[str, Any], result: Mapping[str, Any], metrics: plots.Metrics) -> list[Verdict]:
    """All verdicts that the run's files allow, the most important first."""
    found = [
        readable_verdict(result),
        _verdict_of_training(recipe, result),
        looking_verdict(result, bool(recipe.get("text_only"))),
        reward_verdict(metrics, result.get("chosen_step")),
    ]
    return [verdict for verdict in found if verdict is not None]


def next_steps(recipe: Mapping[str, Any], result: Mapping[str, Any], metrics: plots.Metrics) -> list[str]:
    """What to try next, a sentence each; what needs no mending needs no advice."""
    return list(_next_steps(recipe, result, metrics))


def _next_steps(recipe: Mapping[str, Any], result: Mapping[str, Any], metrics: plots.Metrics) -> Iterator[str]:
    if not result:
        return
    steps = recipe.get("steps")
    unread, learned = readable_verdict(result), _verdict_of_training(recipe, result)
    reward = reward_verdict(metrics, result.get("chosen_step"))
    if unread is not None and (result.get("unparsable") or 0.0) >= UNREADABLE:
        yield "Teach the model the form of its replies first (warm_start={}), or choose a model that can write it."
        return
    if unread is not None:
        yield "Let illegal actions cost something: raise replies.penalty."
    if reward is not None and not reward.good:
        yield (
            "The reward does not say what is wanted: say the goal in other words, more concretely, or add a baseline; "
            "the landscape below shows which states it likes."
            if recipe.get("goal")
            else "The reward does not say what is wanted: look at the videos, and try another one."
        )
    if "pictures" in _constant(result):
        yield "Look at the pictures, in the videos below: camera, display driver, or what render() draws has to change."
    elif "reward" in _constant(result):
        yield "Pay with something that varies: other words, a closer camera, a larger encoder, or another reward."
    elif learned is not None and not learned.good and isinstance(steps, int):
        yield f"Train longer: steps={2 * steps}, with --resume in the same folder."
    if steps == 0:
        yield "Let it learn by trying: policy.model=RUN/checkpoints/best-… with steps, and without warm_start."
    looks = looking_verdict(result, bool(recipe.get("text_only")))
    if looks is not None and not looks.good and looks.answer == "No":
        yield "Reward what needs eyes: raise update.kl_thoughts, so that what it says of the pictures stays true."
    if learned is not None and learned.good:
        first, second = [seed for seed in range(3) if seed != recipe.get("seed")][:2]
        yield f"Try other seeds (seed={first}, seed={second}): one run is an anecdote."


def _verdict_of_training(recipe: Mapping[str, Any], result: Mapping[str, Any]) -> Verdict | None:
    # With no steps there is a warm start alone, and the model before RL is the one that is tested.
    return None if recipe.get("steps") == 0 else learning_verdict(result)


def _constant(result: Mapping[str, Any]) -> list[str]:
    """What never varied in training, so that nothing could be learned from it."""
    names = result.get("constant")
    return [name for name in NEVER if name in names] if isinstance(names, list) else []


def readable_verdict(result: Mapping[str, Any]) -> Verdict | None:
    """Judge if an agent's replies name legal actions; None where they do, or nobody replied."""
    unparsable, illegal = (float(result.get(name) or 0.0) for name in ("unparsable", "illegal"))
    if max(unparsable, illegal) < UNREADABLE:
        return None
    faults = ((unparsable, "cannot be read"), (illegal, "name an action that is not legal"))
    said = " and ".join(f"{percent(share)} of its replies {what}" for share, what in faults if share)
    replaced = result.get("replaced")
    if replaced:
        said += f". Random moves were played in place of {percent(replaced)}, and part of the success is theirs"
    return Verdict("Can it be understood?", "No" if unparsable >= 0.5 else "Not always", f"{said}.", False)


def learning_verdict(result: Mapping[str, Any]) -> Verdict | None:
    """Judge if training has helped: if the interval of success, else of the return, lies above the untrained one's."""
    before, question = block(result, "untrained"), "Did it learn?"
    constant = _constant(result)
    if constant:
        because = " and ".join(NEVER[name] for name in constant)
        return Verdict(question, "It could not", f"In all of training {because}.", False)
    if before.get("ci_low") is not None and result.get("ci_low") is not None:
        said = f"It succeeds in {won(result)} of the test episodes; before training it was {won(before)}."
        low, high = result["ci_low"], before["ci_high"]
        better = result["success_rate"] > before["success_rate"]
        if not better and before["success_rate"] >= 0.9:
            return Verdict(question, "Nothing to learn", f"{said} The task is too easy to tell.", False)
    elif before.get("return_ci_low") is not None and result.get("return_ci_low") is not None:
        said = f"Its return is {_returned(result)}; before training it was {_returned(before)}."
        low, high, better = result["return_ci_low"], before["return_ci_high"], result["return"] > before["return"]
    else:
        return None
    if low > high:
        return Verdict(question, "Yes", said, True)
    if better:
        return Verdict(question, "Not shown", f"{said} The 95 % intervals overlap.", False)
    return Verdict(question, "No", said, False)


def looking_verdict(result: Mapping[str, Any], text_only: bool = False) -> Verdict | None:
    """Judge if the agent uses the pictures: yes if the interval of its success, or of its return where success is
    unknown, lies above those with blank and with other pictures.

    Args:
        result: a summary with `blank` and `shuffled`.
        text_only: True if it was given descriptions instead of the pictures.

    Returns:
        None if that was not measured.
    """
    if text_only:
        question = "Does it look?"
        return Verdict(
            question, "It cannot", "It is told in words what the pictures show and has nothing to see.", True
        )
    names = {"blank": "with blank pictures", "shuffled": "with pictures of other states"}
    blind = {name: block(result, name) for name in names}
    rate, prefix, show = "success_rate", "", won
    said = f"With the real pictures it wins {won(result)}" if result.get("ci_high") is not None else ""
    if not said and result.get("return") is not None:
        rate, prefix, show = "return", "return_", _returned
        said = f"With the real pictures its return is {_returned(result)}"
    if any(numbers.get(f"{prefix}ci_high") is None for numbers in [result, *blind.values()]):
        return None
    compared = [f"{names[name]} {show(numbers)}" for name, numbers in blind.items()]
    apart = {name: result[f"{prefix}ci_low"] > numbers[f"{prefix}ci_high"] for name, numbers in blind.items()}
    numbers_said = f"{said}; {' and '.join(compared)}."
    if all(apart.values()):
        return Verdict("Does it look?", "Yes", numbers_said, True)
    alike = " and ".join(names[name] for name, differs in apart.items() if not differs)
    if all(result[rate] <= numbers[rate] for numbers in blind.values()):
        return Verdict(
            "Does it look?",
            "No",
            f"{numbers_said} It plays no worse blind: the words alone decide.",
            False,
        )
    return Verdict(
        "Does it look?",
        "Not shown",
        f"{numbers_said} The intervals are not apart {alike}: more episodes, or an agent that looks, would tell.",
        False,
    )


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
    question, rewards = "Does the reward agree with it?", dict(plots.points(metrics, "evaluation/reward"))
    for name, key in (("success", "evaluation/success_rate"), ("the environment's own return", "evaluation/return")):
        wanted = dict(plots.points(metrics, key))
        steps = sorted(rewards.keys() & wanted.keys())
        pairs = np.array([(rewards[step], wanted[step]) for step in steps])
        if len(steps) < FEW or np.ptp(pairs, axis=0).min() == 0:
            continue
        agreement = spearman(pairs[:, 0], pairs[:, 1]) or 0.0
        said = f"Over {len(steps)} evaluations its rank correlation with {name} is {agreement:.2f}."
        if name == "success" and chosen in wanted:
            best = max(steps, key=lambda step: wanted[step])
            if wanted[chosen] >= wanted[best] - AS_GOOD:
                return Verdict(
                    question, "Yes", f"It chose a checkpoint that succeeds as often as the best. {said}", True
                )
            said += (
                f" It chose step {chosen} with {percent(wanted[chosen])}, while step {best:.0f} had "
                f"{percent(wanted[best])}."
            )
        answer = "Yes" if agreement >= 0.5 else "Hardly" if agreement > 0 else "No"
        return Verdict(question, answer, said, agreement >= 0.5)
    return None


def _returned(numbers: Mapping[str, Any]) -> str:
    return f"{decimal(numbers['return'])} [{decimal(numbers['return_ci_low'])}, {decimal(numbers['return_ci_high'])}]"
