"""The chat teacher: a vision-language model is shown the frames and asked in words.

Models prefer a place, first or second, to some degree. So each pair is asked in both orders, a question can be asked
several times, and doubtful answers are marked as unsure and not learned from.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
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


class ChatTeacherConfig(TeacherConfig, ChatModelConfig):
    """Recipe block of the chat teacher, which asks a vision-language model."""

    kind: Literal["chat"] = "chat"
    stages: Literal[1, 2] = 1
    """Prompting stages: 1 asks for the answer at once; 2 asks for a description and comparison, then for the label."""
    swap: bool = True
    """Ask every pair in both orders; answers that change with the order count as unsure."""
    votes: PositiveInt = 1
    """Number of votes, of which the majority counts; above 1 this needs a temperature."""
    frames: PositiveInt = 1
    """Number of frames shown of a segment: the last, and others evenly before it."""
    prompt: PromptText | None = None
    """A prompt file, whose words are sent in place of the teacher's own; a run's recipe holds its text."""
    input_price: NonNegativeFloat = 0.0
    """Price of a million tokens that the model reads; in any currency, the same as the budget's."""
    output_price: NonNegativeFloat = 0.0
    """Price of a million tokens that it writes."""

    lags: ClassVar[bool] = True
    shown_size: ClassVar[tuple[int, int] | None] = (224, 224)

    @model_validator(mode="after")
    def _votes_differ(self) -> ChatTeacherConfig:
        if self.votes > 1 and self.temperature == 0:
            raise ValueError(f"votes={self.votes} needs a temperature above 0, or all votes are the same")
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
        return ChatModelConfig.reaches(self)

    def check_priced(self) -> None:
        if not self.input_price and not self.output_price:
            raise ValueError(
                "budget.money needs prices: say teacher.input_price and teacher.output_price, of a million tokens each"
            )

    def facts(self) -> str:
        return f"chat, {self.model}"

    def shown_prompt(self, question: Question) -> str:
        return ChatTeacher(**self.model_dump(exclude={"kind"})).shown_prompt(question)

    def build(self, context: TeacherContext) -> ChatTeacher:
        end = retirement_of(self.provider, self.model)
        if end is not None:
            context.warn(str(end))
        teacher = ChatTeacher(**self.model_dump(exclude={"kind"}))
        teacher.check()
        return teacher


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
        self._model = config.open()
        self._limits = config.limits(self._model)
        self._calls = RateLimitedClient(self._limits, lambda line: self.say(line))
        self._cancel_token = CancelToken()
        self._prompt_file = config.prompt_file()
        words = prompts.PROMPT_VERSION
        if self._prompt_file is not None:
            words = f"file:{self._prompt_file.digest}"
        # Not of `max_tokens`: a reply that is cut off fails.
        depends_on = ("stages", "swap", "votes", "structured", "frames", "temperature")
        settings = " ".join(f"{key}={getattr(config, key)}" for key in depends_on)
        extra = json.dumps(config.options, sort_keys=True, default=str)
        where = config.place(self._model)
        self.signature = (
            f"chat provider={config.provider} where={where} model={config.model} "
            f"prompts={words} {settings} options={extra}"
        )

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
        reply = check(self._model, self._limits, self._request(prompt, question))
        if reply.cut_off and not reply.text.strip():
            raise BadInput(f"the chat model at {self._model.where} says nothing: {self._cut_off()}")

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
        self._calls.exhausted = None
        return stream_async(self._model.connected, self._answer, questions, self.config.concurrency, self._cancel_token)

    @property
    def exhausted(self) -> str:
        quota = self._calls.exhausted
        if quota is None:
            return ""
        return f"{self._model.where} answers no more: {quota}"

    def give_up(self) -> None:
        """Begin no further question, wait a little for those under way, and fail the rest of them.

        The wait is `timeout` seconds, at most `LONGEST_FAREWELL`. A question that is not answered by then is
        FAILED with the reason "given up", and carries its exchanges until then, so that their cost is counted.
        `answers` yields all of them before it ends; close the generator to skip them.
        """
        self._cancel_token.cancel(min(self.config.timeout, LONGEST_FAREWELL))

    # -- one question --------------------------------------------------------------------------------------------

    async def _answer(self, ask: Ask, question: Question) -> Answer:
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
            opinion = await self._vote(ask, interview)
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

    async def _vote(self, ask: Ask, interview: _Interview) -> Opinion:
        opinions: list[Opinion] = []
        # One after the other: no vote is paid for that can change nothing any more.
        while len(opinions) < self.config.votes and not _decided(opinions, self.config.votes):
            opinions.append(await self._opinion(ask, interview))
        if self.config.votes == 1:
            return opinions[0]
        return count_votes(opinions, self.config.votes, interview.question.kind)

    async def _opinion(self, ask: Ask, interview: _Interview) -> Opinion:
        opinion = await self._once(ask, interview, swapped=False)
        if interview.question.kind != "compare" or not self.config.swap or opinion.outcome not in _JUDGEMENTS:
            return opinion
        # Models prefer a place to some degree: only an opinion that survives the swap counts.
        opinion_when_swapped = await self._once(ask, interview, swapped=True)
        return both_orders(opinion, opinion_when_swapped)

    async def _once(self, ask: Ask, interview: _Interview, swapped: bool) -> Opinion:
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
            description = await self._say(ask, interview, self._first_prompt(question, pictures), "describe", swapped)
            if isinstance(description, Opinion):
                return description
            if not description.text.strip():
                return Opinion(Outcome.FAILED, reason=f"the description is empty: {self._cut_off()}")
            stage = "label"
            prompt = self._label_prompt(question, pictures, description.text.strip())
        reply = await self._say(ask, interview, prompt, stage, swapped)
        if isinstance(reply, Opinion):
            return reply
        opinion = read_reply(question, reply)
        if opinion.outcome is Outcome.UNPARSABLE and reply.cut_off:
            # A failure: it is asked again when there is room for more.
            opinion = Opinion(Outcome.FAILED, reason=f"{opinion.reason}: {self._cut_off()}")
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
        structured = self.config.structured
        if self._prompt_file is not None:
            return prompts.from_file(self._prompt_file, "label", question, pictures, structured, description)
        return prompts.label(question, description, structured)

    async def _say(
        self, ask: Ask, interview: _Interview, prompt: prompts.TeacherPrompt, stage: str, swapped: bool
    ) -> ChatReply | Opinion:
        """Send a prompt and record every attempt; returns the reply, or a failed opinion if there is none."""
        request = self._request(prompt, interview.question)
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
            cost = (input_tokens * self.config.input_price + output_tokens * self.config.output_price) / 1e6
            call = ModelCall(
                stage=stage,
                swapped=swapped,
                prompt=request.text,
                reply=attempt.reply.text if attempt.reply else "",
                input_tokens=input_tokens,
                output_tokens=output_tokens,
                seconds=attempt.seconds,
                cost=cost,
                error=str(attempt.error or ""),
                model=attempt.reply.model if attempt.reply else "",
            )
            interview.exchanges.append(call)

        attempts = await self._calls.attempts(ask, request, record)
        last = attempts[-1]
        if last.reply is not None:
            # On disk before the next request: a kill in between loses no money.
            if self._needs_several(interview.question):
                self.keep(interview.question, interview.exchanges[-1])
            return last.reply
        if isinstance(last.error, Refused):
            return Opinion(Outcome.REFUSED, reason=str(last.error))
        return Opinion(Outcome.FAILED, reason=str(last.error))

    def _needs_several(self, question: Question) -> bool:
        """Whether an answer to a question takes several replies."""
        config = self.config
        return config.votes > 1 or config.stages > 1 or (config.swap and question.kind == "compare")

    def _cut_off(self) -> str:
        return f"it was cut off at the limit of {self.config.max_tokens} tokens; raise reward.teacher.max_tokens"

    def _request(self, prompt: prompts.TeacherPrompt, question: Question) -> ChatRequest:
        alternatives = 0
        if prompt.decides:
            alternatives = _ALTERNATIVES[question.kind]
        return ChatRequest(
            prompt.parts,
            prompt.schema,
            self.config.temperature,
            self.config.max_tokens,
            alternatives,
            system=prompt.system,
        )


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
