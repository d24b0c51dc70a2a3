"""Parser of the replies of teachers and judges: a choice, a level or a score, and how probable each answer was.

No function here raises for any reply, and none guesses. A reply counts if it gives exactly one of the
answers that were offered: under the key `answer` of a closed JSON object (bare, in a code fence, or in prose; at any
depth), or on its first or its last line, alone or after an explicit `so:`. If no line is an answer, a choice may be a
sentence of these lines, with its reason behind it: `Second, because …`. What was only thought, between marks, is left
out, and so is an object without an answer before one that has some: it repeats the form. A reply that names none or
several is unparsable; so is a number where a choice was asked for (is 1 the first or the second?), a level that does
not exist, and a score outside its range.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from sightline.labels.types import Outcome
from sightline.models.chat.messages import Token
from sightline.replies import find_objects, normalise, without_thoughts

_THING = r"(?:picture|image|frame|photo|clip|video|segment|option)"
_FIRST = rf"(?:the )?(?:first|1st)(?: (?:{_THING}|one))?|(?:the )?{_THING} (?:1|one|a)"
_SECOND = rf"(?:the )?(?:second|2nd)(?: (?:{_THING}|one))?|(?:the )?{_THING} (?:2|two|b)"
_EQUAL = (
    r"equal|tie|tied|a tie|(?:they are |both are )?(?:the same|equal|equally (?:near|close|good))"
    r"|(?:there is )?no difference"
)
_UNSURE = (
    r"unsure|undecided|unknown|uncertain|unclear|(?:it is |it's )unclear|(?:i am |i'm )?(?:not sure|unsure|uncertain)"
    r"|(?:i |it )?(?:cannot|can not|can't) (?:tell|be told|say|decide)|(?:i )?(?:do not|don't) know"
)
_SPELLINGS = {
    Outcome.FIRST: re.compile(_FIRST),
    Outcome.SECOND: re.compile(_SECOND),
    Outcome.EQUAL: re.compile(_EQUAL),
    Outcome.UNSURE: re.compile(_UNSURE),
}
_NEARER = re.compile(
    rf"(?P<which>{_FIRST}|{_SECOND}) (?:is|looks|seems|appears|comes)(?: clearly| much| slightly| a bit)? "
    r"(?:nearer|closer|nearest|closest|better)(?: to the goal)?"
)
_LEAD = re.compile(
    r"(?:so |thus |therefore,? )?(?:(?:the|my) )?(?:(?:final|best) )?"
    r"(?:answer|choice|label|verdict|level|score|rating|i (?:choose|pick|prefer|say))(?: is)?\s*[:=]?\s*"
)
_CONCLUSION = re.compile(r"[,;.!–—-] *(?:so|thus|hence|therefore) *:", re.IGNORECASE)
"""Pattern of a conclusion before the answer, which then counts as if on a line of its own. A bare colon would not
do: `further away: first`."""
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_REASON = re.compile(r",?\s+(?:because|since|as)\b|\s*[—–]\s*|\s+-+\s+", re.IGNORECASE)
"""Pattern of what parts an answer from its reason. A comma alone would not do: `First, I look at the pole`."""
_AS_ASKED = re.compile(r'\s*\{"reason": ?"[^"\\]*", ?"answer": ?"(?P<answer>[^"\\]*)"\}\s*')
"""Pattern of one JSON object in the very form that prompts ask for, which is read without looking for others."""
_NUMBER = re.compile(r"[+-]?[0-9]{1,6}(?:\.[0-9]{1,6})?")
_DECLINED = re.compile(
    r"(?:i(?:'m| am) (?:very )?sorry|sorry|i apologi[sz]e|unfortunately)?,? ?(?:but )?"
    r"i(?: am|'m)? ?(?:cannot|can not|can't|won't|will not|unable to|not able to) "
    r"(?:assist|help|comply|fulfil|process|discuss|analy[sz]e|engage|view|provide)\b"
)


@dataclass(frozen=True)
class Parsed:
    """Result of parsing a reply.

    Attributes:
        outcome: FIRST, SECOND, EQUAL, VALUE, UNSURE, REFUSED or UNPARSABLE.
        number: with VALUE, the level or score as it was given.
        reason: why there is no answer, in one line.
    """

    outcome: Outcome
    number: int | None = None
    reason: str = ""


_NO_ANSWER = Parsed(Outcome.UNPARSABLE, reason="the reply gives none of the answers")


def parse_choice(text: str) -> Parsed:
    """Parse a comparison of two: FIRST, SECOND, EQUAL or UNSURE."""
    return _parse(text, _read_choice, _without_reasons)


@lru_cache(maxsize=1024)
def _read_choice(answer: str) -> Parsed | None:
    """Read an answer to a comparison; most are one of a few words."""
    plain = _without_lead(answer)
    nearer = _NEARER.fullmatch(plain)
    if nearer:
        plain = nearer["which"]
    for outcome, spelling in _SPELLINGS.items():
        if spelling.fullmatch(plain):
            return Parsed(outcome)
    return None


def parse_number(text: str, highest: int) -> Parsed:
    """Parse a level or a score: a whole number from 0 to `highest`, or UNSURE."""

    def read(answer: str) -> Parsed | None:
        plain = _without_lead(answer)
        if _SPELLINGS[Outcome.UNSURE].fullmatch(plain):
            return Parsed(Outcome.UNSURE)
        if not _NUMBER.fullmatch(plain):
            return None
        number = float(plain)
        if not number.is_integer() or not 0 <= number <= highest:
            return Parsed(Outcome.UNPARSABLE, reason=f"the reply gives {plain}, which is not one of 0 to {highest}")
        return Parsed(Outcome.VALUE, int(number))

    return _parse(text, read)


def _parse(
    text: str, read: Callable[[str], Parsed | None], looser: Callable[[str], list[str]] = lambda line: []
) -> Parsed:
    """Collect all candidate answers and read them.

    Args:
        read: returns None for a text that is no answer.
        looser: parts of a line that may be answers where no line is one.
    """
    # Nearly all replies are in the form that was asked for, and a store may hold hundreds of thousands.
    as_asked = _AS_ASKED.fullmatch(text)
    if as_asked:
        return read(as_asked["answer"]) or _NO_ANSWER
    text = without_thoughts(text)
    spoken = text.strip()
    if not spoken:
        return Parsed(Outcome.UNPARSABLE, reason="the reply is empty")
    candidates, has_answer_key = _answers_in_json(text, read)
    if not has_answer_key:
        candidates = _answers_in_lines(spoken, read, looser)
    if not candidates and _DECLINED.match(_plain(spoken)):
        return Parsed(Outcome.REFUSED, reason="the model declines in its reply")
    readings = {read(candidate) for candidate in candidates}
    if len(readings) > 1:
        return Parsed(Outcome.UNPARSABLE, reason="the reply gives several answers")
    # None where there is no candidate, and where the only one is no answer.
    reading = readings.pop() if readings else None
    return reading or _NO_ANSWER


def _answers_in_json(text: str, read: Callable[[str], Parsed | None]) -> tuple[list[str], bool]:
    """Texts under the key `answer` in the JSON objects of a reply, and whether any object has that key.

    An object that was not closed does not count, for the reply was cut off in it: but it has the key, so that no line
    is taken for an answer instead.
    """
    has_answer_key = False
    answers_by_object: list[list[str]] = []
    for objects in find_objects(text):
        outermost = objects[0]
        for each in objects:
            values = each.get("answer")
            if not values:
                continue
            has_answer_key = True
            if outermost.closed:
                # Lists and objects have no text, so they are no answer.
                answers_by_object.append([value.text for value in values])
    candidates: list[str] = []
    for answers in answers_by_object:
        # An object without an answer before one that has some repeats the form: {"reason": "…", "answer": "…"}.
        if answers is answers_by_object[-1] or any(map(read, answers)):
            candidates += answers
    return candidates, has_answer_key


def _answers_in_lines(
    spoken: str, read: Callable[[str], Parsed | None], looser: Callable[[str], list[str]]
) -> list[str]:
    """Answers on the first or last line: alone, after a conclusion, or else among what `looser` makes of the line."""
    lines = [line for line in spoken.splitlines() if line.strip()]
    parts = [*_CONCLUSION.split(lines[0]), *_CONCLUSION.split(lines[-1])]
    answers = [part for part in parts if read(part) is not None]
    if answers:
        return answers
    looser_parts = [*looser(lines[0]), *looser(lines[-1])]
    return [part for part in looser_parts if read(part) is not None]


def _without_reasons(line: str) -> list[str]:
    """Sentences of a line, each without the reason behind the answer: `Second` of `Second, because …`."""
    return [_REASON.split(sentence, maxsplit=1)[0] for sentence in _SENTENCE_END.split(line)]


def _without_lead(answer: str) -> str:
    """Normalise an answer: lower case, without decoration and without `The answer is`."""
    plain = _plain(answer)
    lead = _LEAD.match(plain)
    if lead is None:
        return plain
    return plain[lead.end() :]


def _plain(text: str) -> str:
    """Normalise a text: lower case, without quotes, brackets and Markdown, and without punctuation around it."""
    unmarked = re.sub(r"[*_`\"'“”‘’#>{}\[\]()]+", _without_mark, text)
    return normalise(unmarked).strip(" '.,;!:")


def _without_mark(match: re.Match[str]) -> str:
    """What stands for a mark: an apostrophe for itself, since it is part of a word (`can't`), else a space."""
    return "'" if match[0] in "'’" else " "


# -- log-probabilities -------------------------------------------------------------------------------------------------


def probabilities(tokens: Sequence[Token], text: str, answers: Sequence[str]) -> dict[str, float]:
    """Compute the probability of each answer that was offered, at the token where the reply gives its answer.

    Returns:
        Probabilities that add up to 1, of the answers that are among the most probable tokens at that place. Empty
        without log-probabilities, where that place is not found, or where the answers together are less probable than
        everything else.
    """
    mass: dict[str, float] = {}
    for token, log_probability in _alternatives(tokens, text):
        matching = _matching_answers(token, answers)
        # A token that fits several answers, such as the beginning of two, tells none of them.
        if len(matching) == 1 and not math.isnan(log_probability):
            (answer,) = matching
            mass[answer] = mass.get(answer, 0.0) + math.exp(min(log_probability, 0.0))
    total = sum(mass.values())
    if total < 0.5:
        return {}
    return {answer: share / total for answer, share in mass.items()}


def _matching_answers(token: str, answers: Sequence[str]) -> list[str]:
    """Answers that a token may stand for: it may be the beginning of a word, or hold more than the word."""
    start = token.strip().strip("\"'*`").lower()
    matching: list[str] = []
    for answer in answers:
        is_part = bool(start) and (answer.startswith(start) or start.startswith(answer))
        # Of a number it is the whole: 1 is not the beginning of 10.
        if start == answer or (is_part and not answer.isdigit()):
            matching.append(answer)
    return matching


def _alternatives(tokens: Sequence[Token], text: str) -> tuple[tuple[str, float], ...]:
    """Most probable tokens where the answer begins: after the last `"answer":`, or else at the last line."""
    reply = "".join(token.text for token in tokens)
    marks = list(re.finditer(r'"answer"\s*:\s*"?', reply, re.IGNORECASE))
    lines = [line for line in without_thoughts(text).splitlines() if line.strip()]
    if marks:
        place = marks[-1].end()
    elif lines:
        place = reply.rfind(lines[-1].strip())
    else:
        place = -1
    if place < 0:
        return ()
    # The token that covers this character.
    end = 0
    for token in tokens:
        end += len(token.text)
        if end > place:
            return token.alternatives
    return ()


def expectation(chances: dict[str, float]) -> float | None:
    """Compute the mean of the numbers among the answers, weighted by their probabilities; None if they are under half.

    A score that a model writes is one draw, or its most probable one; the mean over what it might have written is finer
    and steadier.
    """
    numbers = {answer: chance for answer, chance in chances.items() if answer.isascii() and answer.isdigit()}
    total = sum(numbers.values())
    if total < 0.5:
        return None
    return sum(int(answer) * chance for answer, chance in numbers.items()) / total
