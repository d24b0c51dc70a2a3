"""A judge is asked: a model in this process, or one at a provider; what was answered before is not asked again."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sightline.images import Picture
from sightline.models.chat.calling import Attempt, RateLimitedClient
from sightline.models.chat.messages import Ask, ChatModel, ChatReply, ChatRequest, Rejected, Transient
from sightline.models.chat.streaming import CancelToken, stream_async
from sightline.rewards.base import Unavailable
from sightline.rewards.judging.forms import ALTERNATIVES, Form, Reading
from sightline.rewards.servers.answers import KeptAnswers

if TYPE_CHECKING:
    from sightline.models.chat.config import ChatModelConfig

Pictures = tuple[Picture, ...]
LONGEST_FAREWELL = 20.0
"""Seconds at most to wait for replies under way when the model cannot be asked any more."""
ENOUGH = 50
"""Questions from which on the share of those without an answer is judged."""


@dataclass(frozen=True)
class Asking:
    """How a judge is asked, beside the settings of the model.

    Attributes:
        orders: random orders of which the mean counts, in forms that shuffle.
        missing: share of questions that may have no answer.
        input_price, output_price: of a million tokens.
    """

    orders: int
    missing: float
    input_price: float
    output_price: float


class Judge:
    """A model that is asked about pictures, in one form.

    Args:
        model: it.
        config: its settings.
        form: what is asked, and how replies are read.
        asking: how often, for how much.
        signature: all that an answer depends on, beside the pictures.
        answers: those that are kept, and the costs.
    """

    def __init__(
        self,
        model: ChatModel,
        config: ChatModelConfig,
        form: Form,
        asking: Asking,
        signature: str,
        answers: KeptAnswers,
    ) -> None:
        self._model = model
        self._config = config
        self._form = form
        self._asking = asking
        self._signature = signature.encode()
        self._answers = answers
        self._client = RateLimitedClient(config.limits(model))
        self._reasons: Counter[str] = Counter()
        self._lock = threading.Lock()

    def values(self, questions: Sequence[Pictures]) -> np.ndarray:
        """float64[M], the number for the last of the pictures of each question; NaN where there is no answer.

        Raises:
            Unavailable: the model cannot be asked, or too many questions have had no answer.
        """
        # One call at a time: training and evaluation may ask side by side.
        with self._lock:
            return self._values(questions)

    def _values(self, questions: Sequence[Pictures]) -> np.ndarray:
        keys = [self._key(pictures) for pictures in questions]
        values: dict[bytes, float] = {}
        unanswered: dict[bytes, Pictures] = {}
        for key, pictures in zip(keys, questions, strict=True):
            value = self._earlier_value(key, pictures)
            if value is not None:
                values[key] = value
            else:
                unanswered[key] = pictures
        if unanswered:
            values |= self._ask(unanswered)
        return np.array([values[key] for key in keys], np.float64)

    def costs(self) -> dict[str, float]:
        """What has been spent and counted so far."""
        return self._answers.costs()

    def _earlier_value(self, key: bytes, pictures: Pictures) -> float | None:
        if len(pictures) < self._form.fewest_pictures:
            return 0.0
        kept = self._answers.find(key)
        return None if kept is None else float(kept[0])

    def _key(self, pictures: Pictures) -> bytes:
        content = hashlib.sha256(self._signature)
        for picture in pictures:
            content.update(str(picture.digest).encode())
        return content.digest()

    def _ask(self, questions: Mapping[bytes, Pictures]) -> dict[bytes, float]:
        """Numbers of questions that were not answered before."""
        if self._model.batched:
            readings = self._ask_here(questions)
            # All at once: had a kill left half of them, the rest would be computed in other batches when the run goes
            # on, and might differ in the last digit.
            self._keep({key: reading.value for key, reading in readings.items()})
        else:
            readings = self._ask_elsewhere(questions)
        values: dict[bytes, float] = {}
        for key, reading in readings.items():
            values[key] = np.nan if reading.value is None else float(np.float32(reading.value))
            if reading.value is None:
                self._reasons[reading.reason] += 1
        self._refuse_too_many()
        return values

    def _keep(self, values: Mapping[bytes, float | None]) -> None:
        numbers: dict[bytes, np.ndarray] = {}
        for key, value in values.items():
            numbers[key] = np.array([np.nan if value is None else value], np.float32)
        missing = sum(value is None for value in values.values())
        self._answers.keep(numbers, {"asked": float(len(values)), "unanswered": float(missing)})

    def _refuse_too_many(self) -> None:
        costs = self._answers.costs()
        total = costs.get("asked", 0.0)
        unanswered = costs.get("unanswered", 0.0)
        if total < ENOUGH or unanswered <= self._asking.missing * total:
            return
        reason = ""
        if self._reasons:
            reason = f", most often because {self._reasons.most_common(1)[0][0]}"
        raise Unavailable(
            f"the judge has given no answer to {unanswered:.0f} of {total:.0f} questions{reason}; look at 'sightline "
            "label show-prompt', ask another model, or allow more by reward.missing"
        )

    # -- in this process -----------------------------------------------------------------------------------------------

    def _ask_here(self, questions: Mapping[bytes, Pictures]) -> dict[bytes, Reading]:
        model: Any = self._model
        if not self._form.choices:
            return self._read_here(questions)
        requests = [self._request(key, pictures, 0)[0] for key, pictures in questions.items()]
        logprobs = model.choice_logprobs(requests, self._form.choices)
        unlikely = np.exp(logprobs).sum(axis=1) < 0.5
        self._answers.add({"unlikely": float(unlikely.sum())})
        return {key: Reading(self._form.value_of(row)) for key, row in zip(questions, logprobs, strict=True)}

    def _read_here(self, questions: Mapping[bytes, Pictures]) -> dict[bytes, Reading]:
        """Numbers that are read in replies; what gives none is asked once more, in another order."""
        model: Any = self._model
        of_orders: dict[bytes, list[Reading]] = {key: [] for key in questions}
        for order in range(self._orders):
            left = dict(questions)
            for attempt in range(self._attempts):
                made = [self._request(key, left[key], order * self._attempts + attempt) for key in left]
                replies = model.replies([request for request, _ in made])
                again: dict[bytes, Pictures] = {}
                for key, (_, last), reply in zip(left, made, replies, strict=True):
                    reading = self._form.read(reply, last, len(left[key]) - 1)
                    if reading.value is None and attempt + 1 < self._attempts:
                        again[key] = left[key]
                    else:
                        of_orders[key].append(reading)
                left = again
        return {key: _mean(readings) for key, readings in of_orders.items()}

    # -- at a provider -------------------------------------------------------------------------------------------------

    def _ask_elsewhere(self, questions: Mapping[bytes, Pictures]) -> dict[bytes, Reading]:
        keys = list(questions)
        failures: list[Unavailable] = []
        cancel_token = CancelToken()

        async def answer(ask: Ask, key: bytes) -> Reading | Unavailable:
            try:
                return await self._interview(ask, key, questions[key])
            except Unavailable as failure:
                return failure

        readings: dict[bytes, Reading] = {}
        self._client.exhausted = None
        at_once = self._config.concurrency
        for place, reading in stream_async(self._model.connected, answer, keys, at_once, cancel_token):
            if isinstance(reading, Unavailable):
                # Nothing new is begun; what is under way is paid for, and waited for.
                failures.append(reading)
                cancel_token.cancel(min(self._config.timeout, LONGEST_FAREWELL))
                continue
            # On disk before it is used, so that a kill loses nothing that is paid for.
            self._keep({keys[place]: reading.value})
            readings[keys[place]] = reading
        if failures:
            raise failures[0]
        return {key: readings[key] for key in keys}

    async def _interview(self, ask: Ask, key: bytes, pictures: Pictures) -> Reading:
        readings: list[Reading] = []
        for order in range(self._orders):
            reading = Reading(None)
            for attempt in range(self._attempts):
                request, last = self._request(key, pictures, order * self._attempts + attempt)
                reply = await self._reply(ask, request)
                if isinstance(reply, Reading):
                    return reply
                reading = self._form.read(reply, last, len(pictures) - 1)
                if reading.value is not None:
                    break
            if reading.value is None:
                return reading
            readings.append(reading)
        return _mean(readings)

    async def _reply(self, ask: Ask, request: ChatRequest) -> ChatReply | Reading:
        """The reply to a request, or no answer where the model declines or says nothing.

        Raises:
            Unavailable: it cannot be asked.
        """
        attempts = await self._client.attempts(ask, request, self._record)
        last = attempts[-1]
        if last.reply is not None:
            return last.reply
        if isinstance(last.error, Transient | Rejected):
            raise Unavailable(f"the judge at {self._model.where} cannot be asked: {last.error}")
        return Reading(None, str(last.error))

    def _record(self, attempt: Attempt[ChatReply]) -> None:
        """Count what an attempt has cost; also one that failed may have read the prompt."""
        spent = {"requests": 1.0}
        response = attempt.reply or attempt.error
        if response is not None:
            cost = response.input_tokens * self._asking.input_price + response.output_tokens * self._asking.output_price
            spent |= {
                "input_tokens": float(response.input_tokens),
                "output_tokens": float(response.output_tokens),
                "money": cost / 1e6,
            }
        self._answers.add(spent)

    # -- requests ------------------------------------------------------------------------------------------------------

    @property
    def _orders(self) -> int:
        return self._asking.orders if self._form.shuffles else 1

    @property
    def _attempts(self) -> int:
        """Another order is another request; the same one would have the same reply."""
        return 2 if self._form.shuffles else 1

    def _request(self, key: bytes, pictures: Pictures, variant: int) -> tuple[ChatRequest, int]:
        """A request, and the number of the last picture in it; each variant shows the pictures in another order."""
        request, last = self._form.request(pictures, int.from_bytes(key[:8], "big"), variant)
        request = replace(
            request,
            schema=request.schema if self._config.structured else None,
            temperature=self._config.temperature,
            max_tokens=self._form.shortest or self._config.max_tokens,
            alternatives=ALTERNATIVES if self._form.choices else 0,
            # A request that is sent again after a kill is the same one, and not to be paid for twice.
            occasion=f"judge {key.hex()} {variant}",
        )
        return request, last


def _mean(readings: Sequence[Reading]) -> Reading:
    """The mean over several orders; no answer where one of them has none."""
    values = [reading.value for reading in readings if reading.value is not None]
    if len(values) < len(readings):
        return next(reading for reading in readings if reading.value is None)
    return Reading(float(np.mean(values)))
