"""The chat teacher: a vision-language model is shown the frames and asked in words.

Models prefer a place, first or second, to some degree. So each pair is asked in both orders, a question can be asked
several times, and doubtful answers are marked as unsure and not learned from.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import NonNegativeFloat, PositiveInt, model_validator

from sightline.config.blocks import Reach, checked_block
from sightline.errors import BadInput
from sightline.images import Picture
from sightline.labels.parsing import expectation, parse_choice, parse_number, probabilities
from sightline.labels.types import (
    MIRRORED,
    PREFERENCES,
    Answer,
    ModelCall,
    Outcome,
    Question,
    QuestionKind,
    Segment,
    Teacher,
)
from sightline.models.chat.calling import Attempt, RateLimitedClient, check
from sightline.models.chat.config import ChatModelConfig
from sightline.models.chat.messages import Ask, ChatReply, ChatRequest, Refused
from sightline.models.chat.retiring import retirement_of
from sightline.models.chat.streaming import CancelToken, stream_async
from sightline.models.prompt_files import PromptFile, PromptText
from sightline.teachers import prompts
from sightline.teachers.base import TeacherConfig, TeacherContext

_JUDGEMENTS = (Outcome.FIRST, Outcome.SECOND, Outcome.EQUAL, Outcome.VALUE)
_ALTERNATIVES = {"compare": 5, "rate": 20, "score": 20}
"""Number of alternative tokens with log-probabilities to request: enough to hold every answer."""
_LABEL = "label"
"""Stage that reads a report, and is shown no pictures."""
LONGEST_FAREWELL = 20.0
"""Maximum seconds to wait for pending replies when the teacher is given up."""


@dataclass(frozen=True)
class Opinion:
    """Opinion read from one reply, or combined from several.

    Attributes:
        value: of a `VALUE`, in the units of `Answer.value`.
        confidence: the probability that the model gives this answer, None if it does not say.
    """

    outcome: Outcome
    value: float | None = None
    confidence: float | None = None
    reason: str = ""


@dataclass
class _Interview:
    """State of a question while it is asked: all requests and replies so far.

    Attributes:
        pictures: those of each segment, in order of time.
        occasion: see `Teacher.occasion`.
        earlier_replies: replies to it that were paid for before and were not used yet.
        request_counts: how often each stage was requested, by whether the pictures were swapped.
    """

    question: Question
    pictures: tuple[tuple[Picture, ...], ...]
    occasion: str
    exchanges: list[ModelCall] = field(default_factory=list)
    earlier_replies: list[ModelCall] = field(default_factory=list)
    request_counts: Counter[tuple[str, bool]] = field(default_factory=Counter)


class PricedModelConfig(ChatModelConfig):
    """A chat model with what it costs."""

    input_price: NonNegativeFloat = 0.0
    """Price of a million tokens that the model reads; in any currency, the same as the budget's."""
    output_price: NonNegativeFloat = 0.0
    """Price of a million tokens that it writes."""

    @property
    def priced(self) -> bool:
        return bool(self.input_price or self.output_price)


class ChatTeacherConfig(TeacherConfig, PricedModelConfig):
    """Recipe block of the chat teacher, which asks a vision-language model."""

    kind: Literal["chat"] = "chat"
    stages: Literal[1, 2] = 1
    """Prompting stages: 1 asks for the answer at once; 2 asks for a description and comparison, then for the label."""
    reader: PricedModelConfig | None = None
    """Another model for the label of two stages; default: the same. It reads the report and is shown no picture, so a
    plain language model will do: reader.provider=local reader.model=FOLDER."""
    swap: bool = True
    """Ask every pair in both orders; answers that change with the order count as unsure."""
    votes: PositiveInt = 1
    """Number of votes, of which the majority counts; above 1 this needs a temperature."""
    frames: PositiveInt = 1
    """Number of frames shown of a segment: the last, and others evenly before it."""
    prompt: PromptText | None = None
    """A prompt file, whose words are sent in place of the teacher's own; a run's recipe holds its text."""

    lags: ClassVar[bool] = True
    shown_size: ClassVar[tuple[int, int] | None] = (224, 224)

    @model_validator(mode="after")
    def _votes_differ(self) -> ChatTeacherConfig:
        if self.votes > 1 and self.temperature == 0:
            raise ValueError(f"votes={self.votes} needs a temperature above 0, or all votes are the same")
        return self

    @model_validator(mode="after")
    def _reader_has_a_report(self) -> ChatTeacherConfig:
        if self.reader is not None and self.stages == 1:
            raise ValueError("reader: it reads the report of two stages, and there is one; say stages=2")
        return self

    @model_validator(mode="after")
    def _prompt_is_one(self) -> ChatTeacherConfig:
        self.prompt_file()
        return self

    def prompt_file(self, kind: QuestionKind | None = None) -> PromptFile | None:
        """The prompt file, for questions of a kind where that is known; None for the teacher's own words.

        Raises:
            ValueError: it is none, or not for such questions.
        """
        if self.prompt is None:
            return None
        return prompts.parse_file(self.prompt, kind, self.stages)

    def check(self, question: QuestionKind) -> None:
        self.prompt_file(question)

    def reaches(self) -> Iterator[Reach]:
        yield from ChatModelConfig.reaches(self)
        if self.reader is not None:
            for key, value, what in self.reader.reaches():
                yield f"reader.{key}", value, what

    def check_priced(self) -> None:
        if not self.priced and not (self.reader is not None and self.reader.priced):
            raise ValueError(
                "budget.money needs prices: say teacher.input_price and teacher.output_price, of a million tokens each"
            )

    def facts(self) -> str:
        if self.reader is not None:
            return f"chat, {self.model}, its reports read by {self.reader.model}"
        return f"chat, {self.model}"

    def shown_prompt(self, question: Question) -> str:
        return ChatTeacher(**self.model_dump(exclude={"kind"})).shown_prompt(question)

    def build(self, context: TeacherContext) -> ChatTeacher:
        for model in (self, self.reader or self):
            end = retirement_of(model.provider, model.model)
            if end is not None:
                context.warn(str(end))
        teacher = ChatTeacher(**self.model_dump(exclude={"kind"}))
        teacher.check()
        return teacher


class _Respondent:
    """A model that is asked, with its limits.

    Args:
        config: which model, and what it costs.
        key: of the recipe, under which its settings are.
        say: receives messages for people.
    """

    def __init__(self, config: PricedModelConfig, key: str, say: Callable[[str], None]) -> None:
        self.config = config
        self.model = config.open()
        self.limits = config.limits(self.model)
        self.calls = RateLimitedClient(self.limits, say)
        self._key = key

    def request(self, prompt: prompts.TeacherPrompt, question: Question) -> ChatRequest:
        """The request that sends a prompt; one for an answer asks for the alternatives to its tokens."""
        alternatives = 0
        if prompt.decides:
            alternatives = _ALTERNATIVES[question.kind]
        config = self.config
        return ChatRequest(
            prompt.parts, prompt.schema, config.temperature, config.max_tokens, alternatives, system=prompt.system
        )

    def check(self, prompt: prompts.TeacherPrompt, question: Question) -> None:
        """Check the connection with a request; see `ChatTeacher.check`."""
        reply = check(self.model, self.limits, self.request(prompt, question))
        if reply.cut_off and not reply.text.strip():
            raise BadInput(f"the chat model at {self.model.where} says nothing: {self.cut_off()}")

    def cost(self, input_tokens: int, output_tokens: int) -> float:
        """In the currency of the prices."""
        return (input_tokens * self.config.input_price + output_tokens * self.config.output_price) / 1e6

    def cut_off(self) -> str:
        """Why a reply is not whole, and what to do."""
        return f"it was cut off at the limit of {self.config.max_tokens} tokens; raise {self._key}.max_tokens"

    def settings(self) -> str:
        """What its answers depend on beside the words, for signatures. Not `max_tokens`: a reply that is cut off
        fails."""
        config = self.config
        return (
            f"provider={config.provider} where={config.place(self.model)} model={config.model} "
            f"structured={config.structured} temperature={config.temperature} "
            f"options={json.dumps(config.options, sort_keys=True, default=str)}"
        )


@dataclass(frozen=True)
class _Connections:
    """Connections to the model that is shown the pictures, and to the one that reads the report."""

    sees: Ask
    reads: Ask


class ChatTeacher(Teacher):
    """Chat teacher: asks a vision-language model. Creating one needs neither key nor network; `check` and `answers` do.

    How replies become one answer:

    - **Order** (`swap`, comparisons only): the pair is asked again the other way round, but only if the first reply is
      a judgement. The same judgement twice counts. Different ones, also a preference and an `equal`, are UNSURE with
      the reason "changes with the order". If the second reply is no judgement, that is the outcome.
    - **Votes**: a comparison needs more than half of all votes for one outcome, and no more votes are asked for than
      that takes; otherwise it is UNSURE, or FAILED if a vote is missing that could have decided. Levels are answered by
      their median and scores by their mean, if more than half of the votes give one.
    - **Scores** are the mean over what the model might have said, where the server gives log-probabilities.

    Args:
        model: its name, as the provider calls it.
        options: further settings by the names of `ChatTeacherConfig`: `provider`, `url`, `swap`, `votes`, prices, …

    Attributes:
        name, signature: see `Teacher`.

    Raises:
        BadInput: a setting is wrong, or the address is none.
    """

    def __init__(self, model: str, **options: Any) -> None:
        config = checked_block(ChatTeacherConfig, {"model": model} | options)
        self.config = config
        self.name = f"chat {config.model}"
        self._sees = _Respondent(config, "reward.teacher", lambda line: self.say(line))
        self._reads = self._sees
        if config.reader is not None:
            self._reads = _Respondent(config.reader, "reward.teacher.reader", lambda line: self.say(line))
        self._cancel_token = CancelToken()
        self._prompt_file = config.prompt_file()
        words = prompts.PROMPT_VERSION
        if self._prompt_file is not None:
            words = f"file:{self._prompt_file.digest}"
        # Not of `max_tokens`: a reply that is cut off fails.
        depends_on = ("stages", "swap", "votes", "structured", "frames", "temperature")
        settings = " ".join(f"{key}={getattr(config, key)}" for key in depends_on)
        extra = json.dumps(config.options, sort_keys=True, default=str)
        where = config.place(self._sees.model)
        self.signature = (
            f"chat provider={config.provider} where={where} model={config.model} "
            f"prompts={words} {settings} options={extra}"
        )
        if self._reads is not self._sees:
            self.signature += f" reader: {self._reads.settings()}"

    def check(self) -> None:
        """Check the connection with a trivial request, with a picture and all options that questions will use.

        Raises:
            BadInput: package or key missing, key refused, model unknown, it cannot be asked so, or what it may write
                is not enough for an answer.
            RunFailed: the server does not answer.
        """
        square = Segment(np.full((1, 64, 64, 3), (200, 30, 30), np.uint8), np.zeros(1, np.float32))
        question = Question("rate", (square,), ("a red square",), levels=2)
        # By the teacher's own words, even where a prompt file may only be for pairs: the words are not on trial here.
        prompt = prompts.ask_at_once(question, [[Picture(square.frames[0])]], self.config.structured)
        self._sees.check(prompt, question)
        if self._reads is not self._sees:
            self._reads.check(
                prompts.label(question, "It shows a red square.", self._reads.config.structured), question
            )

    def shown_prompt(self, question: Question) -> str:
        """What the model is asked by a question, section by section, with marks for pictures."""
        self._check_kind(question)
        pictures = [list(map(Picture, pick_frames(segment, self.config.frames))) for segment in question.segments]
        prompt = self._first_prompt(question, pictures)
        shown = ""
        if prompt.system:
            shown = f"[system]\n{prompt.system}\n\n"
        shown += f"[user]\n{ChatRequest(prompt.parts).text}"
        if self.config.stages == 2:
            label = self._label_prompt(question, pictures, "[description]")
            shown += f"\n\n[label]\n{ChatRequest(label.parts).text}"
        return shown

    def _check_kind(self, question: Question) -> None:
        """Refuse a question that the prompt file is not for."""
        try:
            self.config.check(question.kind)
        except ValueError as error:
            raise BadInput(str(error)) from error

    def answers(self, questions: Iterable[Question]) -> Generator[tuple[int, Answer]]:
        """Yield (index, answer) as they come; see `Teacher`.

        At most `concurrency` questions are under way, each with one request at a time, and the next is begun when the
        caller comes back after an answer. One round at a time.

        Raises:
            BadInput: package or key missing, or a question of a kind that the prompt file is not for.
        """
        self._cancel_token = CancelToken()
        self._sees.calls.exhausted = self._reads.calls.exhausted = None
        return stream_async(self._connected, self._answer, questions, self.config.concurrency, self._cancel_token)

    @property
    def exhausted(self) -> str:
        for respondent in (self._sees, self._reads):
            quota = respondent.calls.exhausted
            if quota is not None:
                return f"{respondent.model.where} answers no more: {quota}"
        return ""

    def give_up(self) -> None:
        """Begin no further question, wait a little for those under way, and fail the rest of them.

        The wait is `timeout` seconds, at most `LONGEST_FAREWELL`. A question that is not answered by then is
        FAILED with the reason "given up", and carries its exchanges until then, so that their cost is counted.
        `answers` yields all of them before it ends; close the generator to skip them.
        """
        self._cancel_token.cancel(min(self.config.timeout, LONGEST_FAREWELL))

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[_Connections]:
        async with self._sees.model.connected() as sees:
            if self._reads is self._sees:
                yield _Connections(sees, sees)
                return
            async with self._reads.model.connected() as reads:
                yield _Connections(sees, reads)

    # -- one question --------------------------------------------------------------------------------------------

    async def _answer(self, connections: _Connections, question: Question) -> Answer:
        start = time.monotonic()
        self._check_kind(question)
        frames = [pick_frames(segment, self.config.frames) for segment in question.segments]
        # No money for what is known: the model would be shown the same pictures twice.
        if question.kind == "compare" and np.array_equal(frames[0], frames[-1]):
            return Answer(Outcome.EQUAL, 0.5, reason="the frames are identical")
        pictures = tuple(tuple(map(Picture, of_segment)) for of_segment in frames)
        interview = _Interview(question, pictures, self.occasion(question))
        interview.earlier_replies.extend(self.recall(question))
        try:
            opinion = await self._vote(connections, interview)
        except asyncio.CancelledError:
            # Given up: the exchanges until here cost money, so they go into the answer. Any other end is the caller's.
            if not self._cancel_token.cancelled:
                raise
            opinion = Opinion(Outcome.FAILED, reason="given up")
        return Answer(
            outcome=opinion.outcome,
            value=PREFERENCES.get(opinion.outcome, opinion.value),
            confidence=opinion.confidence,
            reason=opinion.reason,
            exchanges=tuple(interview.exchanges),
            seconds=time.monotonic() - start,
        )

    async def _vote(self, connections: _Connections, interview: _Interview) -> Opinion:
        opinions: list[Opinion] = []
        # One after the other: no vote is paid for that can change nothing any more.
        while len(opinions) < self.config.votes and not _decided(opinions, self.config.votes):
            opinions.append(await self._opinion(connections, interview))
        if self.config.votes == 1:
            return opinions[0]
        return count_votes(opinions, self.config.votes, interview.question.kind)

    async def _opinion(self, connections: _Connections, interview: _Interview) -> Opinion:
        opinion = await self._once(connections, interview, swapped=False)
        if interview.question.kind != "compare" or not self.config.swap or opinion.outcome not in _JUDGEMENTS:
            return opinion
        # Models prefer a place to some degree: only an opinion that survives the swap counts.
        opinion_when_swapped = await self._once(connections, interview, swapped=True)
        return both_orders(opinion, opinion_when_swapped)

    async def _once(self, connections: _Connections, interview: _Interview, swapped: bool) -> Opinion:
        """Ask for one reply, in one stage or two."""
        question = interview.question
        pictures = interview.pictures
        if swapped:
            pictures = pictures[::-1]
        if self.config.stages == 1:
            stage: str = question.kind
            prompt = self._first_prompt(question, pictures)
        else:
            # A description first, then the label from its text alone, as in RL-VLM-F.
            description = await self._say(
                connections, interview, self._first_prompt(question, pictures), "describe", swapped
            )
            if isinstance(description, Opinion):
                return description
            if not description.text.strip():
                return Opinion(Outcome.FAILED, reason=f"the description is empty: {self._sees.cut_off()}")
            stage = _LABEL
            prompt = self._label_prompt(question, pictures, description.text.strip())
        reply = await self._say(connections, interview, prompt, stage, swapped)
        if isinstance(reply, Opinion):
            return reply
        opinion = read_reply(question, reply)
        if opinion.outcome is Outcome.UNPARSABLE and reply.cut_off:
            # A failure: it is asked again when there is room for more.
            opinion = Opinion(Outcome.FAILED, reason=f"{opinion.reason}: {self._respondent(stage).cut_off()}")
        if swapped:
            # The first picture was the second segment.
            opinion = replace(opinion, outcome=MIRRORED.get(opinion.outcome, opinion.outcome))
        return opinion

    def _first_prompt(self, question: Question, pictures: prompts.SegmentPictures) -> prompts.TeacherPrompt:
        """Prompt that shows the pictures: for the answer, or in two stages for a description."""
        structured = self.config.structured
        if self._prompt_file is not None:
            return prompts.from_file(self._prompt_file, "user", question, pictures, structured)
        if self.config.stages == 2:
            return prompts.describe(question, pictures)
        return prompts.ask_at_once(question, pictures, structured)

    def _label_prompt(
        self, question: Question, pictures: prompts.SegmentPictures, description: str
    ) -> prompts.TeacherPrompt:
        """Prompt for the answer from a description."""
        structured = self._reads.config.structured
        if self._prompt_file is not None:
            return prompts.from_file(self._prompt_file, "label", question, pictures, structured, description)
        return prompts.label(question, description, structured)

    async def _say(
        self, connections: _Connections, interview: _Interview, prompt: prompts.TeacherPrompt, stage: str, swapped: bool
    ) -> ChatReply | Opinion:
        """Send a prompt and record every attempt; returns the reply, or a failed opinion if there is none."""
        respondent = self._respondent(stage)
        ask = connections.reads if stage == _LABEL else connections.sees
        request = respondent.request(prompt, interview.question)
        if interview.occasion:  # each vote is one of its own
            interview.request_counts[stage, swapped] += 1
            vote = interview.request_counts[stage, swapped]
            request = replace(request, occasion=f"{interview.occasion} {stage} {swapped} {vote}")
        earlier_reply = _take_earlier_reply(interview, request.text, stage, swapped, prompt.decides)
        if earlier_reply is not None:
            interview.exchanges.append(earlier_reply)
            return ChatReply(earlier_reply.reply)

        def record(attempt: Attempt[ChatReply]) -> None:
            """Add an attempt to the exchanges, with its cost: also one that failed has read the prompt."""
            input_tokens = 0
            output_tokens = 0
            response = attempt.reply or attempt.error
            if response:
                input_tokens = response.input_tokens
                output_tokens = response.output_tokens
            call = ModelCall(
                stage=stage,
                swapped=swapped,
                prompt=request.text,
                reply=attempt.reply.text if attempt.reply else "",
                input_tokens=input_tokens,
                output_tokens=output_tokens,
                seconds=attempt.seconds,
                cost=respondent.cost(input_tokens, output_tokens),
                error=str(attempt.error or ""),
                model=attempt.reply.model if attempt.reply else "",
            )
            interview.exchanges.append(call)

        attempts = await respondent.calls.attempts(ask, request, record)
        last = attempts[-1]
        if last.reply is not None:
            # On disk before the next request: a kill in between loses no money.
            if self._needs_several(interview.question):
                self.keep(interview.question, interview.exchanges[-1])
            return last.reply
        if isinstance(last.error, Refused):
            return Opinion(Outcome.REFUSED, reason=str(last.error))
        return Opinion(Outcome.FAILED, reason=str(last.error))

    def _respondent(self, stage: str) -> _Respondent:
        return self._reads if stage == _LABEL else self._sees

    def _needs_several(self, question: Question) -> bool:
        """Whether an answer to a question takes several replies."""
        config = self.config
        return config.votes > 1 or config.stages > 1 or (config.swap and question.kind == "compare")


def _take_earlier_reply(
    interview: _Interview, prompt: str, stage: str, swapped: bool, decides: bool
) -> ModelCall | None:
    """Take a reply to the same prompt that was paid for when the question was asked before; None if there is none.

    One that decided nothing is not taken: it may have been cut off, which is why it was asked in vain. Nor are scores,
    which need the log-probabilities that are not kept.
    """
    if decides and interview.question.kind == "score":
        return None
    for reply in interview.earlier_replies:
        is_same = (reply.stage, reply.swapped, reply.prompt) == (stage, swapped, prompt)
        if not is_same or not reply.reply.strip():
            continue
        if decides and read_reply(interview.question, ChatReply(reply.reply)).outcome not in _JUDGEMENTS:
            continue
        interview.earlier_replies.remove(reply)
        return reply
    return None


def pick_frames(segment: Segment, count: int) -> np.ndarray:
    """Select the last frame and others evenly before it, back to the first, in order of time: uint8[F, H, W, 3]."""
    length = len(segment.frames)
    places = np.linspace(length - 1, 0, min(count, length)).round().astype(int)[::-1]
    return np.asarray(segment.frames[places])


def read_reply(question: Question, reply: ChatReply) -> Opinion:
    """Parse one reply to a question, with the pictures in the order in which they were shown."""
    chances = probabilities(reply.tokens, reply.text, prompts.allowed(question))
    if question.kind == "compare":
        choice = parse_choice(reply.text)
        return Opinion(choice.outcome, None, chances.get(choice.outcome.value), choice.reason)
    parsed = parse_number(reply.text, prompts.highest(question))
    if parsed.number is None:
        return Opinion(parsed.outcome, reason=parsed.reason)
    confidence = chances.get(str(parsed.number))
    if question.kind == "rate":
        return Opinion(Outcome.VALUE, float(parsed.number), confidence)
    # The mean over what it might have said is finer and steadier than the one score that it wrote.
    score = expectation(chances)
    if score is None:
        score = parsed.number
    return Opinion(Outcome.VALUE, score / prompts.HIGHEST_SCORE, confidence)


def both_orders(first: Opinion, second: Opinion) -> Opinion:
    """Combine the opinions from both orders of a pair; `second` is already swapped back."""
    if second.outcome not in _JUDGEMENTS:
        return second
    if first.outcome is not second.outcome:
        return Opinion(Outcome.UNSURE, reason="changes with the order")
    confidences = [value for value in (first.confidence, second.confidence) if value is not None]
    if not confidences:
        return first
    return replace(first, confidence=statistics.fmean(confidences))


def count_votes(opinions: Sequence[Opinion], votes: int, kind: QuestionKind) -> Opinion:
    """Majority vote; see `ChatTeacher`. Its confidence is its share of the votes that were cast.

    Args:
        votes: number of votes planned; fewer are cast where those already decide.
    """
    counts = Counter(opinion.outcome for opinion in opinions)
    outcome, most = counts.most_common(1)[0]
    tally = ", ".join(f"{count} {which.value}" for which, count in counts.most_common())
    if 2 * most <= votes:
        # A vote that failed might have decided: the question is asked again, which after UNSURE it is not.
        undecided = Outcome.FAILED if counts[Outcome.FAILED] else Outcome.UNSURE
        return Opinion(undecided, reason=f"no majority: {tally}")
    if outcome is Outcome.VALUE:
        values = [opinion.value for opinion in opinions if opinion.value is not None]
        if kind == "score":
            return Opinion(Outcome.VALUE, statistics.fmean(values))
        # Levels are an order, not distances: their middle is the median, one that was given.
        level = float(statistics.median_low(values))
        return Opinion(Outcome.VALUE, level, values.count(level) / len(values))
    share = most / len(opinions) if outcome in _JUDGEMENTS else None
    reason = next(opinion.reason for opinion in opinions if opinion.outcome is outcome)
    return Opinion(outcome, None, share, reason)


def _decided(opinions: Sequence[Opinion], votes: int) -> bool:
    """True once further votes cannot change the result; levels and scores always get all of theirs."""
    counts = Counter(opinion.outcome for opinion in opinions if opinion.outcome is not Outcome.VALUE)
    return any(2 * count > votes for count in counts.values())
