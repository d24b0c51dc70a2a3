"""Prompts of the chat teacher.

A comparison in one stage, with `structured=False` (replies are read by `labels/parsing.py`):

    The first picture:
    <picture>
    The second picture:
    <picture>
    The goal is that the picture shows this: pole upright.

    Which one is nearer to the goal, the first or the second? If both are equally near, the answer is equal. If it
    cannot be told, the answer is unsure. The order in which they come means nothing.

    Give your reason in one short sentence. Then end with a line that holds the answer alone: first, second, equal or
    unsure.

The pictures of a comparison are called the first and the second and nothing else; a reply by number is not offered,
because 1 may mean the first or the second. The outline (describe and compare, then label from the text alone) follows
RL-VLM-F, Wang et al., ICML 2024; levels follow ERL-VLM, Luu et al., ICML 2025; the words are our own.

A prompt file (`models/prompt_files.py`) takes the place of all these words: `from_file`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sightline.images import Picture
from sightline.labels.types import Question, QuestionKind
from sightline.models.chat.messages import Part
from sightline.models.prompt_files import PromptFile, Value, parse_prompt

PROMPT_VERSION = "1"
"""Version of the prompts, part of a teacher's signature: raise it whenever a word below changes, or old answers pass
for new ones."""

CHOICES = ("first", "second", "equal", "unsure")
HIGHEST_SCORE = 9
"""Highest score that is asked for: one digit, 0 to 9, which is one token, so that its probabilities are a distribution
over scores; `Answer.value` is the digit divided by 9."""

SegmentPictures = Sequence[Sequence[Picture]]
"""Pictures shown for each segment of the question, in order of time."""


@dataclass(frozen=True)
class TeacherPrompt:
    """Prompt to a model.

    Attributes:
        parts: texts and pictures.
        schema: JSON schema of the reply; None for free text.
        decides: whether the reply is to give one of the answers.
        system: what the model is told before; empty for nothing.
    """

    parts: tuple[Part, ...]
    schema: dict[str, Any] | None
    decides: bool = True
    system: str = ""


def ask_at_once(question: Question, pictures: SegmentPictures, structured: bool) -> TeacherPrompt:
    """Prompt for one stage: pictures, goal and the form of the reply in one request."""
    text = f"{_goal(question)}\n\n{_task(question)}\n\n{_form(question, structured)}"
    schema = _schema(question) if structured else None
    return TeacherPrompt((*_picture_parts(question, pictures), text), schema)


def describe(question: Question, pictures: SegmentPictures) -> TeacherPrompt:
    """Prompt for the first of two stages: a free description of what matters in the pictures."""
    if question.kind == "compare":
        instruction = (
            "Describe what the first shows, then what the second shows, as far as it matters for the goal. Then "
            "compare them: which one is nearer to the goal, and by how much? If there is no difference, or if it "
            "cannot be seen, say so."
        )
    else:
        instruction = (
            "Describe what is shown, as far as it matters for the goal. Then judge how near it is to the goal, and "
            "what is still missing. If that cannot be seen, say so."
        )
    text = f"{_goal(question)}\n\n{instruction}"
    return TeacherPrompt((*_picture_parts(question, pictures), text), None, decides=False)


def label(question: Question, description: str, structured: bool) -> TeacherPrompt:
    """Prompt for the second of two stages: the label from the description alone, without the pictures."""
    subject = "a picture"
    if question.kind == "compare":
        subject = "two pictures, the first and the second"
    text = (
        f"Somebody has looked at {subject}, with a goal in mind.\n\n{_goal(question)}\n\nThis is the report, between "
        f"the lines of dashes:\n-----\n{description}\n-----\n\nGo by the report alone. {_task(question)}\n\n"
        f"{_form(question, structured)}"
    )
    schema = _schema(question) if structured else None
    return TeacherPrompt((text,), schema)


def allowed(question: Question) -> tuple[str, ...]:
    """Allowed answers of a reply, as they are spelt."""
    if question.kind == "compare":
        return CHOICES
    return (*map(str, range(highest(question) + 1)), "unsure")


def highest(question: Question) -> int:
    """Highest level, or highest score before it is divided."""
    if question.kind == "rate":
        return question.levels - 1
    return HIGHEST_SCORE


def _picture_parts(question: Question, pictures: SegmentPictures) -> list[Part]:
    parts: list[Part] = []
    names: tuple[str, ...] = ("This",)
    if question.kind == "compare":
        names = ("The first", "The second")
    for name, of_segment in zip(names, pictures, strict=True):
        medium = "picture"
        if len(of_segment) > 1:
            medium = f"clip, {len(of_segment)} pictures in order of time"
        parts += [f"{name} {medium}:", *of_segment]
    return parts


def parse_file(text: str, kind: QuestionKind | None, stages: int) -> PromptFile:
    """Read a teacher's prompt file.

    Args:
        text: of the file.
        kind: of the questions that it is for; None where that is not known yet.
        stages: 1, or 2 where the section `label` asks for the answer and `user` for a description.

    Raises:
        ValueError: a section or a variable is unknown, or something is missing.
    """
    pictures = {"compare": ["first", "second"], "rate": ["pictures"], "score": ["pictures"]}
    shown = ["first", "second", "pictures"] if kind is None else pictures[kind]
    words = ["goal", "answers", "highest", "form"]
    known = {"system": words, "user": [*shown, *words]}
    if stages == 2:
        known["label"] = ["description", *words]
    prompt = parse_prompt(text, known)
    variables = prompt.variables("user")
    unseen = [name for name in shown if name not in variables]
    if kind is not None and unseen:
        raise ValueError(f"the prompt's section [user] shows no {{{unseen[0]}}}; put it where the picture shall stand")
    if stages == 2 and "description" not in prompt.variables("label"):
        raise ValueError("teacher.stages=2 needs a section [label] in the prompt, with {description}: the first reply")
    return prompt


def from_file(
    prompt: PromptFile,
    section: str,
    question: Question,
    pictures: SegmentPictures,
    structured: bool,
    description: str = "",
) -> TeacherPrompt:
    """Prompt by a section of a prompt file: `user` or `label`."""
    answers = allowed(question)
    values: dict[str, Value] = {
        "goal": "; ".join(sentence.rstrip(".") for sentence in question.goal),
        "answers": _listed(answers),
        "highest": answers[-2],
        "form": _form(question, structured),
        "description": description,
    }
    names = ("first", "second") if question.kind == "compare" else ("pictures",)
    values |= dict(zip(names, pictures, strict=True))
    # In two stages the first reply describes, and only the second one is read.
    decides = section == "label" or "label" not in prompt.sections
    schema = _schema(question) if structured and decides else None
    system = "".join(part for part in prompt.fill("system", values) if isinstance(part, str))
    return TeacherPrompt(prompt.fill(section, values), schema, decides, system)


def _goal(question: Question) -> str:
    if len(question.goal) == 1:
        return f"The goal is that the picture shows this: {question.goal[0].rstrip('.')}."
    sentences = "\n".join(f"- {sentence}" for sentence in question.goal)
    return f"The goal is that the picture shows this (several ways to say the same):\n{sentences}"


def _task(question: Question) -> str:
    if question.kind == "compare":
        return (
            "Which one is nearer to the goal, the first or the second? If both are equally near, the answer is equal. "
            "If it cannot be told, the answer is unsure. The order in which they come means nothing."
        )
    if question.kind == "rate":
        return (
            f"How near to the goal is it, on levels from 0 to {highest(question)}? 0 means that nothing of the goal is "
            f"there, {highest(question)} that the goal is reached. If it cannot be told, the answer is unsure."
        )
    return (
        f"How near to the goal is it, as a whole number from 0 to {HIGHEST_SCORE}? 0 means as far from it as can be, "
        f"{HIGHEST_SCORE} that the goal is reached, and what lies between is in proportion. If it cannot be told, the "
        "answer is unsure."
    )


def _form(question: Question, structured: bool) -> str:
    # The answer comes last in either form: the model has written its reason by then.
    listed = _listed(allowed(question))
    if structured:
        return (
            'Reply with one JSON object and nothing else: "reason" is one short sentence, "answer" is one of '
            f'{listed}. So it looks like this: {{"reason": "…", "answer": "…"}}'
        )
    return f"Give your reason in one short sentence. Then end with a line that holds the answer alone: {listed}."


def _listed(answers: Sequence[str]) -> str:
    return ", ".join(answers[:-1]) + f" or {answers[-1]}"


def _schema(question: Question) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "reason": {"type": "string"},
            "answer": {"type": "string", "enum": list(allowed(question))},
        },
        "required": ["reason", "answer"],
        "additionalProperties": False,
    }
