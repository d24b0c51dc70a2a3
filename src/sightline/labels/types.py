"""Data types of labelling: segments, questions, answers, and the base class of teachers."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, Literal, Protocol, get_args

import numpy as np

from sightline.config.basics import check_words
from sightline.errors import BadInput, RunFailed, blamed
from sightline.images import pixel_digest

QuestionKind = Literal["compare", "rate", "score"]
"""Kind of question. `compare`: which of two segments is nearer to the goal; `rate`: the level of one segment, out of a
few; `score`: how near one segment is to the goal, from 0 to 1."""


class Outcome(StrEnum):
    """Outcome of a question. The first four give a label; the others say why there is none."""

    FIRST = "first"
    """The first segment of a pair is nearer to the goal."""
    SECOND = "second"
    EQUAL = "equal"
    """The two are equally near: a judgement, not a lack of one."""
    VALUE = "value"
    """A level or a score was given."""
    UNSURE = "unsure"
    """The teacher cannot tell, or contradicts itself when the order is swapped."""
    SKIPPED = "skipped"
    """The teacher chose not to answer."""
    REFUSED = "refused"
    """The model or its provider refused to answer."""
    UNPARSABLE = "unparsable"
    """A reply came that holds none of the allowed answers, or several."""
    FAILED = "failed"
    """No reply came: network, server, time. The only outcome after which the same question is asked again."""


PREFERENCES = {Outcome.FIRST: 0.0, Outcome.SECOND: 1.0, Outcome.EQUAL: 0.5}
"""Outcomes of a comparison that give a label, and its value."""
NO_LABEL = (Outcome.UNSURE, Outcome.SKIPPED, Outcome.REFUSED, Outcome.UNPARSABLE, Outcome.FAILED)
"""Outcomes that give no label."""
MIRRORED = {Outcome.FIRST: Outcome.SECOND, Outcome.SECOND: Outcome.FIRST}
"""Outcomes that change when the two segments of a comparison are swapped; the others stay."""


@dataclass(frozen=True, eq=False)
class Segment:
    """Segment: a few consecutive steps of an episode, as a teacher is shown them.

    Attributes:
        frames: uint8[L, H, W, 3], the states that the steps led to.
        true_rewards: float32[L], the environment's own; NaN where unknown. Only scripted teachers and statistics read
            them.
        states: float32[N, D], the states of its steps, with the actions behind them where a cache has both; None where
            they are unknown. N is more than L where only the last frame of a longer segment was kept.
    """

    frames: np.ndarray
    true_rewards: np.ndarray
    states: np.ndarray | None = None

    @classmethod
    def of_frames(cls, frames: Any) -> Segment:
        """Segment of frames uint8[L, H, W, 3], or of one frame uint8[H, W, 3]; its true rewards are unknown.

        Raises:
            ValueError: in one line, if they are anything else.
        """
        try:
            array = np.asarray(frames)
        except (TypeError, ValueError, RuntimeError):  # frames of several sizes, a tensor on a GPU
            array = np.zeros(0)
        if array.ndim == 3:  # one frame is a segment of one step
            array = array[None]
        if not _are_frames(array):
            raise ValueError(
                f"a segment must be uint8[L, H, W, 3], or a frame uint8[H, W, 3], not {_described(frames)}"
            )
        return cls(array, np.full(len(array), np.nan, np.float32))

    def check(self) -> None:
        """Refuse frames and rewards of another form than above.

        Raises:
            ValueError: in one line.
        """
        if not _are_frames(self.frames):
            raise ValueError(f"a segment's frames must be uint8[L, H, W, 3], not {_described(self.frames)}")
        rewards = np.asarray(self.true_rewards)
        if rewards.shape != (len(self.frames),) or rewards.dtype.kind not in "biuf":
            raise ValueError(
                f"a segment of {len(self.frames)} frames must have as many true rewards (NaN where unknown), not "
                f"{_described(rewards)}"
            )
        states = self.states
        if states is not None and not (
            isinstance(states, np.ndarray)
            and states.dtype == np.float32
            and states.ndim == 2
            and states.shape[0] >= len(self.frames)
            and states.shape[1] > 0
            and np.isfinite(states).all()
        ):
            raise ValueError(
                f"the states of a segment of {len(self.frames)} frames must be finite float32[{len(self.frames)}, D], "
                f"not {_described(states)}"
            )

    @cached_property
    def digest(self) -> str:
        """Hexadecimal SHA-256 of the frames' shape and pixels, and of the states where there are any: where a picture
        does not show all, two states that look alike are two segments."""
        pixels = pixel_digest(self.frames)
        if self.states is None:
            return pixels
        # The shape is hashed too: the same numbers may be few wide rows or many narrow ones.
        states = np.ascontiguousarray(self.states)
        return hashlib.sha256(f"{pixels} {states.shape}".encode() + states.tobytes()).hexdigest()

    def state(self) -> dict[str, np.ndarray]:
        """State for a checkpoint, as plain data."""
        state = {"frames": self.frames, "true_rewards": self.true_rewards}
        if self.states is not None:
            state["states"] = self.states
        return state

    @classmethod
    def of(cls, state: dict[str, np.ndarray]) -> Segment:
        """Restore the segment from its `state`."""
        return cls(state["frames"], state["true_rewards"], state.get("states"))

    @property
    def true_return(self) -> float:
        """Sum of the true rewards; NaN if unknown."""
        return float(self.true_rewards.sum())


@dataclass(frozen=True, eq=False)
class Question:
    """Question to a teacher about one or two segments.

    Attributes:
        kind: see `QuestionKind`.
        segments: two to compare, else one.
        goal: what the picture should show, in the words of the recipe; several sentences mean the same goal.
        levels: for `rate`, how many levels there are; 0 is the worst, `levels` - 1 the best.
    """

    kind: QuestionKind
    segments: tuple[Segment, ...]
    goal: tuple[str, ...]
    levels: int = 0

    @classmethod
    def of_frames(cls, kind: QuestionKind, segments: Any, goal: tuple[str, ...], levels: int = 0) -> Question:
        """Question about segments that are given by their frames; see `Segment.of_frames`.

        Raises:
            ValueError: in one line, if they are too few or too many, or no frames.
        """
        try:
            frames_of_segments = tuple(segments)
        except TypeError:
            frames_of_segments = ()
        _check_count(kind, frames_of_segments, segments)
        return cls(kind, tuple(map(Segment.of_frames, frames_of_segments)), goal, levels)

    def check(self) -> None:
        """Refuse a question of another form than above.

        Raises:
            ValueError: in one line.
        """
        kinds = get_args(QuestionKind)
        if self.kind not in kinds:
            raise ValueError(f"the kind of a question must be one of {', '.join(kinds)}, not {self.kind!r}")
        _check_count(self.kind, self.segments, self.segments)
        if not isinstance(self.goal, tuple | list) or not all(isinstance(sentence, str) for sentence in self.goal):
            raise ValueError(f"the goal of a question must be a tuple of sentences, not {self.goal!r}")
        if self.kind == "rate" and self.levels < 2:
            raise ValueError(f"a question of kind 'rate' must have two levels at least, not {self.levels}")
        for segment in self.segments:
            segment.check()

    def check_answer(self, answer: Answer) -> None:
        """Refuse an answer whose value does not fit its outcome, or does not fit this question; see `Answer`.

        Raises:
            ValueError: in one line.
        """
        outcome = answer.outcome
        value = answer.value
        if outcome not in (*PREFERENCES, Outcome.VALUE):
            # No label, so nothing that could be learned from by mistake.
            fits = value is None
        elif self.kind == "compare":
            fits = outcome in PREFERENCES and value == PREFERENCES[outcome]
        elif outcome is not Outcome.VALUE or value is None:
            fits = False
        elif self.kind == "rate":
            fits = 0 <= value < self.levels and value == int(value)
        else:
            fits = 0 <= value <= 1
        if not fits:
            question = f"'{self.kind}'"
            if self.kind == "rate":
                question = f"'rate' on {self.levels} levels"
            raise ValueError(f"outcome '{outcome}' with value {value} is no answer to {question}")

    def mirrored(self) -> Question:
        """Copy of the question with its two segments swapped."""
        return Question(self.kind, self.segments[::-1], self.goal, self.levels)

    def key(self, signature: str) -> str:
        """Hexadecimal SHA-256 of this question to the teacher with this signature: equal keys need no second answer."""
        # A NUL between the parts: no two questions run together to the same text.
        parts = [self.kind, str(self.levels), *self.goal, *(segment.digest for segment in self.segments), signature]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class ModelCall:
    """Record of one request to a model and its reply, with the cost.

    Attributes:
        stage: the stage of the prompt, such as `compare`, `describe` or `label`.
        swapped: whether the segments were shown in the opposite order.
        prompt: the text that was sent (the frames are in the store).
        reply: the raw text, empty if none came.
        input_tokens, output_tokens: as the server counts them, 0 if it does not say.
        seconds: from sending to the last byte.
        cost: in the currency of the teacher's prices.
        error: why there is no usable reply, in one line; empty if there is one.
        model: the version that answered, as the provider calls it; empty if it does not say.
        reused: whether it is the reply to an earlier request, made when the question was asked in vain; its cost was
            counted then, and is 0 here.
    """

    stage: str
    swapped: bool
    prompt: str
    reply: str
    input_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0
    cost: float = 0.0
    error: str = ""
    model: str = ""
    reused: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer of a teacher to a question.

    Attributes:
        outcome: see `Outcome`.
        value: to `compare`: 0.0 first, 1.0 second, 0.5 equal; to `rate`: the level; to `score`: 0 to 1 (a float, it may
            be an expectation). None where the outcome gives no label.
        confidence: the probability that the teacher gives its own answer, if it says one.
        reason: in one line why there is no value, or what qualifies it.
        exchanges: every request made for it, in order.
        seconds: how long the answer took.
    """

    outcome: Outcome
    value: float | None = None
    confidence: float | None = None
    reason: str = ""
    exchanges: tuple[ModelCall, ...] = field(default=())
    seconds: float = 0.0

    def mirrored(self) -> Answer:
        """Answer to the same comparison with its segments swapped."""
        exchanges = tuple(replace(exchange, swapped=not exchange.swapped) for exchange in self.exchanges)
        value = self.value
        if value is not None:
            value = 1.0 - value
        return replace(self, outcome=MIRRORED.get(self.outcome, self.outcome), value=value, exchanges=exchanges)

    @property
    def cost(self) -> float:
        return sum(exchange.cost for exchange in self.exchanges)

    @property
    def tokens(self) -> int:
        return sum(exchange.input_tokens + exchange.output_tokens for exchange in self.exchanges)


def preference(value: float) -> Answer:
    """Answer to a comparison from its value: 0.0 first, 1.0 second, 0.5 equal."""
    if value == 0.5:
        return Answer(Outcome.EQUAL, value)
    if value < 0.5:
        return Answer(Outcome.FIRST, value)
    return Answer(Outcome.SECOND, value)


class Signed(Protocol):
    """Protocol for the source of an answer: a name and a signature.

    Attributes:
        name: display name, such as `chat gemini-3.5-flash-lite` or `human`.
        signature: everything that its answers depend on (model, prompt version, parameters), in one line. The same
            question to the same signature is never asked twice.
    """

    @property
    def name(self) -> str: ...

    @property
    def signature(self) -> str: ...


@dataclass(frozen=True)
class RecordedTeacher:
    """Name and signature to record an answer under, where somebody else records it: an importer, or the label page."""

    name: str
    signature: str


Scale = tuple[float | None, tuple[float, float] | None]
"""Mean and range of segment returns, to which levels, scores and the errors of a scripted teacher are relative; None
where a teacher needs none."""


@dataclass(frozen=True)
class Lesson:
    """A label as a reward model learns it.

    Attributes:
        segments: digests of the one or two segments that it is about.
        features: of these segments, [L, …] each.
        value: the answer's.
        goal: that it was given for.
    """

    segments: tuple[str, ...]
    features: tuple[np.ndarray, ...]
    value: float
    goal: tuple[str, ...]


class Teacher:
    """Base of all teachers: judges segments with respect to a goal.

    Attributes:
        name, signature: see `Signed`.
    """

    name: str
    signature: str
    records_itself: bool = False
    """True for a teacher whose answers are in the label store already when they arrive."""
    say: Callable[[str], None] = staticmethod(lambda line: None)
    """Tells the user one line; set by the code that prints lines."""
    recall: Callable[[Question], Sequence[ModelCall]] = staticmethod(lambda question: ())
    """Returns the replies that were paid for when a question was asked in vain; set by the owner of the label store."""
    occasion: Callable[[Question], str] = staticmethod(lambda question: "")
    """Names the occasion on which a question is asked: another one once it has a label, the same after a kill; set by
    the owner of the label store."""
    keep: Callable[[Question, ModelCall], None] = staticmethod(lambda question, reply: None)
    """Stores a reply to a question that needs further replies, in case the process ends before these come; set by the
    owner of the label store."""

    def compare(self, pairs: Iterable[tuple[np.ndarray, np.ndarray]], goal: str | Sequence[str]) -> list[Answer]:
        """Compare pairs: for each, which of the two is nearer to the goal.

        Args:
            pairs: frames uint8[H, W, 3], or segments uint8[L, H, W, 3] of L frames.
            goal: one sentence, or several that mean the same.

        Returns:
            An answer for each pair: `outcome` FIRST, SECOND, EQUAL, or why there is none, with its reason and cost.

        Raises:
            BadInput: a pair is not two arrays of frames, or there is no goal.
        """
        sentences = sentences_of(goal)
        try:
            check_words(sentences, (), None)
        except ValueError as error:
            raise BadInput(str(error)) from error
        if not isinstance(pairs, Iterable):
            raise BadInput(f"pairs must be a list of (first, second), not {_described(pairs)}")
        questions = []
        for number, pair in enumerate(pairs, 1):
            try:
                questions.append(Question.of_frames("compare", pair, sentences))
            except ValueError as error:
                raise BadInput(f"pair {number}: {error}") from error
        answers = dict(checked_answers(self, questions))
        if len(answers) < len(questions):
            raise RunFailed(unanswered(self, len(questions) - len(answers), len(questions)))
        return [answers[index] for index in range(len(questions))]

    def measure_scale(self, questions: Sequence[Question], returns: np.ndarray) -> Scale:
        """Compute the scale of a round of questions, from them and from the true returns of recent segments."""
        return None, None

    def check_frames(self, frame: np.ndarray, warn: Callable[[str], None]) -> None:
        """Warn, in one line each, of what this teacher does not judge well in frames such as this, uint8[H, W, 3]."""

    @property
    def exhausted(self) -> str:
        """Why no further question is answered for now, such as a quota of the day; empty while they are."""
        return ""

    def use_scale(self, scale: Scale) -> None:
        """Answer relative to this scale from now on."""

    def answers(self, questions: Iterable[Question]) -> Generator[tuple[int, Answer]]:
        """Yield (number of the question, answer) as they come, in any order, one for every question taken.

        A teacher whose answers cost something takes a question only when it begins with it: so the caller can end the
        questions when the budget is reached, and answers under way still come. Never raises for a question that cannot
        be answered: that is an outcome. The caller records each answer before it takes the next.
        """
        raise NotImplementedError

    def give_up(self) -> None:
        """Begin no further question and end `answers` soon; what is under way may still come. Called from another
        thread."""


def true_preference(first: Segment, second: Segment, equal_below: float = 0.0) -> float | None:
    """True preference of a pair, by the environment's own reward: 0.0, 1.0, or 0.5 where returns differ by no more than
    `equal_below`; None where it is unknown."""
    difference = second.true_return - first.true_return
    # NaN if a reward of either is unknown.
    if np.isnan(difference):
        return None
    if abs(difference) <= equal_below:
        return 0.5
    return float(difference > 0)


def sentences_of(goal: str | Sequence[str]) -> tuple[str, ...]:
    """Sentences of a goal, which is one or several.

    Raises:
        BadInput: it is neither.
    """
    sentences: tuple[Any, ...] = (goal,)
    if isinstance(goal, Iterable) and not isinstance(goal, str):
        sentences = tuple(goal)
    if not all(isinstance(sentence, str) for sentence in sentences):
        raise BadInput(f"goal must be a sentence, or a list of sentences, not {repr(goal)[:80]}")
    return sentences


def _check_count(kind: QuestionKind, segments: Sequence[Any], argument: Any) -> None:
    """Refuse another number of segments than this kind of question is about; `argument` is what the user passed."""
    count = 1
    expected = "one segment, (segment,)"
    if kind == "compare":
        count = 2
        expected = "two segments, (first, second)"
    if len(segments) != count:
        actual = str(len(segments))
        if not isinstance(argument, tuple | list):
            actual = _described(argument)
        raise ValueError(f"a question of kind '{kind}' must be about {expected}, not {actual}")


def _are_frames(frames: Any) -> bool:
    """True for uint8[L, H, W, 3] with a pixel at least."""
    if not isinstance(frames, np.ndarray) or frames.dtype != np.uint8:
        return False
    return frames.ndim == 4 and frames.shape[3] == 3 and frames.size > 0


def _described(value: Any) -> str:
    """Dtype and shape of an array, or the type of anything else, for error messages."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{value.dtype}{list(value.shape)}"
    return type(value).__name__


def checked_answers(teacher: Teacher, questions: Iterable[Question]) -> Generator[tuple[int, Answer]]:
    """A teacher's answers as they come; see `Teacher.answers`.

    Raises:
        RunFailed: the teacher raises, or yields anything else, or an answer to no question.
    """
    taken = 0
    own_errors: list[Exception] = []

    def asked() -> Iterator[Question]:
        nonlocal taken
        try:
            for question in questions:
                taken += 1
                yield question
        except Exception as error:  # of the code that asks, through the teacher's
            own_errors.append(error)
            raise

    name = f"{type(teacher).__name__}.answers"
    with contextlib.ExitStack() as closing:
        with blamed(teacher, "answers"):
            answers = iter(teacher.answers(asked()))
        if isinstance(answers, Generator):
            closing.callback(answers.close)
        while True:
            try:
                with blamed(teacher, "answers"):
                    item = next(answers, None)
            except RunFailed as error:
                if error.__cause__ in own_errors:
                    raise own_errors[0] from None
                raise
            if item is None:
                return
            if not (isinstance(item, tuple) and len(item) == 2 and isinstance(item[1], Answer)):
                raise RunFailed(f"{name} must yield (number of the question, Answer), not {item!r:.80}")
            number, answer = item
            if number not in range(taken):
                raise RunFailed(f"{name} answered the question {number!r:.20}, and has taken {taken} (the first is 0)")
            yield number, answer


def unanswered(teacher: Teacher, missing: int, count: int) -> str:
    """The line that says that a teacher has left questions without an answer."""
    return (
        f"{type(teacher).__name__}.answers left {missing} of {count} questions without an answer; one that it cannot "
        "answer gets Answer(Outcome.FAILED, reason=…)"
    )
