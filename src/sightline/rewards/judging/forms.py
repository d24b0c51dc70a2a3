"""Forms of asking a judge: what is asked about some pictures, and which number its replies mean.

    yes_no         log P(yes) - log(P(yes) + P(no)), in nats, at most 0            TOPReward, arXiv 2602.19313
    probability    P(yes) / (P(yes) + P(no)), from 0 to 1
    scale          sum_v v P(v) / sum_v P(v) / highest, from 0 to 1: the mean over what the model might have said
    shuffled       percentage of the last picture among shuffled ones, / 100       GVL, Ma et al., ICLR 2025

Each number is of the pictures alone that were shown, up to the present: none is set against the rest of an episode, for
then the worst failure would have a frame that is paid like success, and the past would be paid by what came later.

A reply that gives no number is no answer, with a reason; it is never a number. Of log-probabilities only those count
that a server states: what is not among its most probable tokens is unknown, and servers' stand-ins for it (-9999 in
vLLM, -20 elsewhere) are no measurements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from sightline.images import Picture
from sightline.labels.parsing import parse_number
from sightline.models.chat.messages import ChatReply, ChatRequest
from sightline.models.prompt_files import PromptFile, Value, parse_prompt
from sightline.replies import find_objects, without_thoughts

ALTERNATIVES = 20
"""Most probable tokens that are asked for; no service gives more."""
STAND_IN = -1000.0
"""Log-probabilities below are stand-ins for unknown ones. float32 cannot tell any below -104 from zero."""
WORDS = ("goal", "baseline")
PROMPTS = Path(__file__).parent / "prompts"


@dataclass(frozen=True)
class Reading:
    """Number that a reply means.

    Attributes:
        value: None for no answer.
        reason: why there is none.
    """

    value: float | None
    reason: str = ""


@cache
def bundled_prompt(form: str) -> str:
    """Text of the prompt file that a form has where a recipe names none."""
    name = "yes_no" if form == "probability" else form
    return (PROMPTS / f"{name}.txt").read_text("utf-8")


class Form:
    """Base of the forms.

    Attributes:
        prompt: what is asked.
        choices: words of which the reply's first token is one, whose probabilities count; empty where it is read.
        shortest: tokens that a reply needs; None for as many as the recipe allows.
        fewest_pictures: pictures that it needs; of fewer the number is 0 by definition, and nothing is asked.
        shuffles: whether another variant is another request.
    """

    choices: tuple[str, ...] = ()
    shortest: int | None = None
    fewest_pictures: ClassVar[int] = 1
    shuffles: ClassVar[bool] = False

    def __init__(self, prompt: PromptFile, goal: Sequence[str], baseline: Sequence[str]) -> None:
        self.prompt = prompt
        self._values: dict[str, Value] = {"goal": _sentences(goal), "baseline": _sentences(baseline)}

    def request(self, pictures: Sequence[Picture], seed: int, variant: int = 0) -> tuple[ChatRequest, int]:
        """The request about pictures in order of time, and the number that stands for the last of them.

        Args:
            seed: of a random order.
            variant: another one is another order, as long as there are fewer variants than pictures.
        """
        return self._request({"pictures": pictures}, ()), 1

    def read(self, reply: ChatReply, last: int, count: int) -> Reading:
        """The number that a reply means.

        Args:
            last: number of the last picture in the request.
            count: numbered pictures.
        """
        raise NotImplementedError

    def value_of(self, logprobs: np.ndarray) -> float:
        """The number that log-probabilities float64[C] of the choices mean."""
        raise NotImplementedError

    def _request(self, values: dict[str, Value], answers: Sequence[str]) -> ChatRequest:
        values = self._values | values
        schema = _schema(answers) if answers else None
        return ChatRequest(
            self.prompt.fill("user", values),
            schema,
            system=self._text("system", values),
            beginning=self._text("reply", values),
        )

    def _text(self, section: str, values: dict[str, Value]) -> str:
        return "".join(part for part in self.prompt.fill(section, values) if isinstance(part, str))


class YesNo(Form):
    """The log-probability of one word, yes, among itself and the others, of which each means no."""

    shortest = 1

    def __init__(self, prompt: PromptFile, goal: Sequence[str], baseline: Sequence[str]) -> None:
        super().__init__(prompt, goal, baseline)
        self.choices = prompt.lines("choices")

    @staticmethod
    def parse(text: str) -> PromptFile:
        names = {"system": WORDS, "user": ("pictures", *WORDS), "reply": WORDS, "choices": ()}
        prompt = _with_pictures(parse_prompt(text, names))
        if len(prompt.lines("choices")) < 2:
            raise ValueError(
                "this form needs a section [choices] in the prompt: the word for yes, and below it each word for no"
            )
        return prompt

    def read(self, reply: ChatReply, last: int, count: int) -> Reading:
        if not reply.tokens:
            return Reading(None, "the server gives no log-probabilities")
        by_word = _logprobs_by_word(reply.tokens[0].alternatives)
        logprobs = [by_word.get(choice, -math.inf) for choice in self.choices]
        for choice, logprob in zip(self.choices, logprobs, strict=True):
            if logprob == -math.inf:
                return Reading(
                    None, f"'{choice}' is not among the {len(by_word)} most probable tokens that the server states"
                )
        return Reading(self.value_of(np.array(logprobs)))

    def value_of(self, logprobs: np.ndarray) -> float:
        return float(logprobs[0] - np.logaddexp.reduce(logprobs))


class Probability(YesNo):
    """The same as a probability: all that is surely wrong is paid alike, however sure the model is."""

    def value_of(self, logprobs: np.ndarray) -> float:
        return float(np.exp(super().value_of(logprobs)))


class Scale(Form):
    """How near the model thinks the goal, from 0 to `highest`, as a share of that."""

    def __init__(self, prompt: PromptFile, goal: Sequence[str], baseline: Sequence[str], highest: int) -> None:
        super().__init__(prompt, goal, baseline)
        self._highest = highest
        self._values["highest"] = str(highest)
        # One digit is one token; the probability of a 1 is not that of a 10.
        if highest <= 9:
            self.choices = tuple(map(str, range(highest + 1)))

    @staticmethod
    def parse(text: str) -> PromptFile:
        words = (*WORDS, "highest")
        names = {"system": words, "user": ("pictures", *words), "reply": words}
        return _with_pictures(parse_prompt(text, names))

    def read(self, reply: ChatReply, last: int, count: int) -> Reading:
        if self.choices and reply.tokens:
            by_word = _logprobs_by_word(reply.tokens[0].alternatives)
            logprobs = np.array([by_word.get(choice, -math.inf) for choice in self.choices])
            # A digit that is not given is less probable than all that are. Where the digits have most of the
            # probability, it could change the mean by next to nothing.
            if np.exp(logprobs).sum() >= 0.5:
                return Reading(self.value_of(logprobs))
        answer = parse_number(reply.text, self._highest)
        if answer.number is None:
            return Reading(None, answer.reason or f"the reply is {answer.outcome.value}")
        return Reading(answer.number / self._highest)

    def value_of(self, logprobs: np.ndarray) -> float:
        chances = np.exp(logprobs - logprobs.max())
        return float((chances * np.arange(len(chances))).sum() / chances.sum() / self._highest)


class Shuffled(Form):
    """How much of the task the model thinks done in the last picture, among others in a random order."""

    fewest_pictures = 2
    shuffles = True

    @staticmethod
    def parse(text: str) -> PromptFile:
        names = {"system": WORDS, "user": ("first", "pictures", "form", *WORDS), "reply": WORDS}
        prompt = _with_pictures(parse_prompt(text, names))
        if "number" not in prompt.variables("picture"):
            raise ValueError("form=shuffled needs a section [picture] in the prompt, with {picture} and its {number}")
        return prompt

    def request(self, pictures: Sequence[Picture], seed: int, variant: int = 0) -> tuple[ChatRequest, int]:
        first, *later = pictures
        order = np.roll(np.random.default_rng(seed).permutation(len(later)), variant)
        answers = [str(number) for number in range(1, len(later) + 1)]
        form = ", ".join(f'"{answer}": …' for answer in answers)
        values: dict[str, Value] = {
            "first": first,
            "pictures": [later[place] for place in order],
            "form": f"{{{form}}}",
        }
        return self._request(values, answers), int(np.flatnonzero(order == len(later) - 1)[0]) + 1

    def read(self, reply: ChatReply, last: int, count: int) -> Reading:
        percents = read_percents(reply.text, count)
        if isinstance(percents, str):
            return Reading(None, percents)
        return Reading(percents[last - 1] / 100)


def read_percents(text: str, count: int) -> list[float] | str:
    """Percentages of the pictures 1 … `count`, in this order; or why there are none.

    All must be there, each once: of a list with a gap nobody knows where the rest belongs.
    """
    for objects in find_objects(without_thoughts(text)):
        outermost = objects[0]
        if not outermost.closed:
            continue
        percents: list[float] = []
        for number in range(1, count + 1):
            values = outermost.get(str(number))
            if len(values) != 1:
                return f"the reply has {len(values) or 'no'} percentages for picture {number} of {count}"
            try:
                percent = float(values[0].text.strip().removesuffix("%"))
            except ValueError:
                percent = math.nan
            if not 0 <= percent <= 100:
                return f"the reply gives picture {number} no percentage from 0 to 100"
            percents.append(percent)
        return percents
    return "the reply holds no JSON object with percentages"


def _with_pictures(prompt: PromptFile) -> PromptFile:
    if "pictures" not in prompt.variables("user"):
        raise ValueError("the prompt's section [user] shows no {pictures}; put it where they shall stand")
    return prompt


def _sentences(sentences: Sequence[str]) -> str:
    return "; ".join(sentence.rstrip(".") for sentence in sentences)


def _logprobs_by_word(alternatives: Sequence[tuple[str, float]]) -> dict[str, float]:
    """Log-probability of each word among the most probable tokens; with or without a space before it is one word."""
    by_word: dict[str, float] = {}
    for token, logprob in alternatives:
        if not math.isfinite(logprob) or logprob <= STAND_IN:
            continue
        word = token.strip()
        by_word[word] = float(np.logaddexp(by_word.get(word, -math.inf), min(logprob, 0.0)))
    return by_word


def _schema(answers: Sequence[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {answer: {"type": "number"} for answer in answers},
        "required": list(answers),
        "additionalProperties": False,
    }
