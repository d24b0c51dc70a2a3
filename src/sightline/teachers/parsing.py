"""From the text of a reply to an outcome. Nothing here ever raises, and nothing is guessed.

A reply counts if it gives exactly one of the answers that were offered: as JSON (bare, within a code fence, or within
prose), or on its first or its last line, alone or after an explicit `so:`. A reply that names none or several is
unparsable; so is a number where a choice was asked for (is 1 the first or the second?), a level that does not exist,
and a score outside its range.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sightline.labels.types import Outcome
from sightline.models.chat.messages import Token

_LONGEST = 100_000
"""Characters; of a longer reply only the end is read."""

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
"""What follows is the answer, as if on a line of its own. A bare colon would not do: `further away: first`."""
_NUMBER = re.compile(r"[+-]?[0-9]{1,6}(?:\.[0-9]{1,6})?")
_THINKING = re.compile(r"\A.*</think(?:ing)?>", re.DOTALL | re.IGNORECASE)
"""What a model thought aloud before its reply; some servers send the end mark alone."""
_DECLINED = re.compile(
    r"(?:i(?:'m| am) (?:very )?sorry|sorry|i apologi[sz]e|unfortunately)?,? ?(?:but )?"
    r"i(?: am|'m)? ?(?:cannot|can not|can't|won't|will not|unable to|not able to) "
    r"(?:assist|help|comply|fulfil|process|discuss|analy[sz]e|engage|view|provide)\b"
)


@dataclass(frozen=True)
class Parsed:
    """What a reply says.

    Attributes:
        outcome: FIRST, SECOND, EQUAL, VALUE, UNSURE, REFUSED or UNPARSABLE.
        number: with VALUE, the level or score as it was given.
        reason: why there is nothing, in one line.
    """

    outcome: Outcome
    number: int | None = None
    reason: str = ""


def parse_choice(text: str) -> Parsed:
    """Which of two is nearer."""
    return _parse(text, _choice)


def parse_number(text: str, highest: int) -> Parsed:
    """A level or a score: a whole number from 0 to `highest`."""
    return _parse(text, lambda said: _number(said, highest))


def probabilities(tokens: Sequence[Token], text: str, answers: Sequence[str]) -> dict[str, float]:
    """The probability of each answer that was offered, at the place of the reply where it gives its answer.

    Returns:
        Probabilities that add up to 1, of the answers that are among the most probable tokens at that place. Empty
        without log-probabilities, where that place is not found, or where the answers together are less probable than
        everything else.
    """
    mass: dict[str, float] = {}
    for shown, log_probability in _alternatives(tokens, text):
        begun = shown.strip().strip("\"'*`").lower()
        meant = [answer for answer in answers if begun and _one_begins_the_other(begun, answer)]
        if len(meant) == 1 and not math.isnan(log_probability):
            mass[meant[0]] = mass.get(meant[0], 0.0) + math.exp(min(log_probability, 0.0))
    total = sum(mass.values())
    return {answer: share / total for answer, share in mass.items()} if total >= 0.5 else {}


def expectation(chances: dict[str, float]) -> float | None:
    """The mean of the numbers among the answers, weighted by their probabilities; None if they are less than half.

    Idea: a score that a model writes is one draw, or its most probable one; the mean over what it might have written
    is finer and steadier.
    """
    numbers = {answer: chance for answer, chance in chances.items() if answer.isascii() and answer.isdigit()}
    total = sum(numbers.values())
    return sum(int(answer) * chance for answer, chance in numbers.items()) / total if total >= 0.5 else None


def _parse(text: str, read: Callable[[Any], Parsed | None]) -> Parsed:
    spoken = _THINKING.sub("", text[-_LONGEST:]).strip()
    if not spoken:
        return Parsed(Outcome.UNPARSABLE, reason="the reply is empty")
    said = _json_answers(spoken)
    if not said:
        lines = [line for line in spoken.splitlines() if line.strip()]
        said = [part for line in (lines[0], lines[-1]) for part in _CONCLUSION.split(line) if read(part) is not None]
    if not said:
        if _DECLINED.match(_plain(spoken)):
            return Parsed(Outcome.REFUSED, reason="the model declines in its reply")
        return Parsed(Outcome.UNPARSABLE, reason="the reply gives none of the answers")
    found = {read(answer) for answer in said}
    if len(found) > 1:
        return Parsed(Outcome.UNPARSABLE, reason="the reply gives several answers")
    return found.pop() or Parsed(Outcome.UNPARSABLE, reason="the reply gives none of the answers")


def _choice(said: Any) -> Parsed | None:
    plain = _without_lead(said)
    if plain is None:
        return None
    nearer = _NEARER.fullmatch(plain)
    plain = nearer["which"] if nearer else plain
    for outcome, spelling in _SPELLINGS.items():
        if spelling.fullmatch(plain):
            return Parsed(outcome)
    return None


def _number(said: Any, highest: int) -> Parsed | None:
    plain = _without_lead(said)
    if plain is None:
        return None
    if _SPELLINGS[Outcome.UNSURE].fullmatch(plain):
        return Parsed(Outcome.UNSURE)
    if not _NUMBER.fullmatch(plain):
        return None
    number = float(plain)
    if not number.is_integer() or not 0 <= number <= highest:
        return Parsed(Outcome.UNPARSABLE, reason=f"the reply gives {plain}, which is not one of 0 to {highest}")
    return Parsed(Outcome.VALUE, int(number))


def _without_lead(said: Any) -> str | None:
    """An answer in lower case, without decoration and without `The answer is`; None for what is no answer at all."""
    if isinstance(said, bool) or not isinstance(said, str | int | float):
        return None
    plain = _plain(str(said))
    return plain[match.end() :] if (match := _LEAD.match(plain)) else plain


def _plain(text: str) -> str:
    kept = re.sub(r"[*_`\"'“”‘’#>{}\[\]()]+", lambda mark: "'" if mark[0] in "'’" else " ", text.lower())
    return re.sub(r"\s+", " ", kept).strip(" '.,;!:")


def _json_answers(text: str) -> list[Any]:
    """Everything that is given for the key `answer` in the JSON of a text, at any depth; repeated keys count."""
    found: list[Any] = []

    def collect(pairs: list[tuple[str, Any]]) -> None:
        found.extend(value for key, value in pairs if key.strip().lower() == "answer")

    whole = text[text.find("{") : text.rfind("}") + 1]
    for candidate in (whole, *re.findall(r"\{[^{}]*\}", text)):
        try:
            json.loads(candidate, object_pairs_hook=collect)
        except (ValueError, RecursionError):
            continue
        if found and candidate is whole:
            break
    return found


def _alternatives(tokens: Sequence[Token], text: str) -> tuple[tuple[str, float], ...]:
    """The most probable tokens where the answer begins: after the last `"answer":`, or at the last line."""
    written = "".join(token.text for token in tokens)
    marks = list(re.finditer(r'"answer"\s*:\s*"?', written, re.IGNORECASE))
    if marks:
        place = marks[-1].end()
    else:
        lines = [line for line in text.splitlines() if line.strip()]
        place = written.rfind(lines[-1].strip()) if lines else -1
    if place < 0:
        return ()
    end = 0
    for token in tokens:
        end += len(token.text)
        if end > place:
            return token.alternatives
    return ()


def _one_begins_the_other(begun: str, answer: str) -> bool:
    if answer.isdigit():
        return begun == answer
    return answer.startswith(begun) or begun.startswith(answer)
