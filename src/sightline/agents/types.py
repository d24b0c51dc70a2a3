"""The nouns of an agent's life: replies, turns, trajectories, groups, credit."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from sightline.models.vlm.types import ChatTurn, Prompt, Sample


class Failure(StrEnum):
    """Why no action could be taken from a reply."""

    EMPTY = "empty"
    """There is nothing but blanks."""
    CUT_OFF = "cut off"
    """The reply reached the limit of tokens before its action was complete."""
    MALFORMED = "malformed"
    """It is not in the format that was asked for."""
    NO_ACTION = "no action"
    """The format is right, the action is missing or empty."""
    UNKNOWN_ACTION = "unknown action"
    """What stands for the action is not the name of one."""
    AMBIGUOUS = "ambiguous"
    """Several different actions are named."""


@dataclass(frozen=True)
class Reply:
    """A reply, read.

    Attributes:
        action: name of the action as the game spells it; None if there is a failure.
        span: characters [start, end) of the action's value in the text, without quotes; None if there is none.
        stated: what it says of the picture: name -> text, for the facts that it states.
        thoughts: empty if there are none.
        failure: None if an action was read.
    """

    action: str | None
    span: tuple[int, int] | None
    stated: dict[str, str] = field(default_factory=dict)
    thoughts: str = ""
    failure: Failure | None = None


@dataclass(eq=False)
class Turn:
    """One look, one reply, one action.

    Attributes:
        exchange: what was shown, and the sampled reply.
        prompt: as the model read it, earlier turns of the window included; None if a sampler other than the policy
            replied (then there is nothing to learn from).
        sample: the reply as it was sampled.
        reply: the reply, read.
        played: the action that was taken; None if the episode was forfeited.
        credited: whether what came of it is put down to the reply; False for random moves in its place.
        legal: whether the named action was legal; False if none was named.
        reward: that of the game, less the penalty.
        penalty: for a reply that was unparsable or illegal, if the recipe asks for one.
        facts: what could be seen: name -> text.
        legal_actions: names.
        action_tokens: bool[n], which of the sampled tokens make up what stands for the action, known or not (any token
            that shares a character with it); none of them if nothing does.
        choice: index into the sampled tokens of the one by which legal actions differ first; None if none was read.
        choices: id of that token for each legal action.
        value: the policy's estimate of the discounted rewards to come, before it replied; 0 without a value head.
        reference: float32[n], log-probabilities of the sampled tokens under the model before RL; None if nobody asked.
    """

    exchange: ChatTurn
    prompt: Prompt | None
    sample: Sample
    reply: Reply
    played: str | None
    credited: bool
    legal: bool
    reward: float
    facts: dict[str, str]
    legal_actions: tuple[str, ...]
    action_tokens: np.ndarray
    choice: int | None = None
    choices: tuple[int, ...] = ()
    penalty: float = 0.0
    value: float = 0.0
    reference: np.ndarray | None = None

    @property
    def state(self) -> str:
        """By which turns in the same state are recognised: the words and the pictures' digests."""
        return "\n".join([self.exchange.text, *(picture.digest for picture in self.exchange.pictures)])

    @property
    def truths(self) -> tuple[int, int]:
        """How many of the facts that could be seen were stated as they are, and how many there were."""
        true = sum(same_text(self.reply.stated.get(name, ""), fact) for name, fact in self.facts.items())
        return true, len(self.facts)


def same_text(a: str, b: str) -> bool:
    """Whether two texts say the same but for blanks and capital letters."""
    return "".join(a.split()).casefold() == "".join(b.split()).casefold()


@dataclass(eq=False)
class Trajectory:
    """An episode.

    Attributes:
        seed: of the task.
        member: which of its group's episodes it is.
        turns: in order, at least one unless `error` is set.
        success: whether the game was won.
        truncated: whether it ended by a limit of time, so that more would have come.
        end: what the model would have read next after a truncated end; None otherwise.
        last_value: the policy's estimate of what would have come after a truncated end, else 0.
        kind: the game's name for this sort of task, by which results may be told apart; may be empty.
        mistakes: moves that the game itself counts as wrong, if it counts any.
        error: why the environment broke down, None if it did not; nothing is learned from such an episode.
    """

    seed: int
    member: int
    turns: list[Turn] = field(default_factory=list)
    success: bool = False
    truncated: bool = False
    end: Prompt | None = None
    last_value: float = 0.0
    kind: str = ""
    mistakes: int = 0
    error: str | None = None

    @property
    def rewards(self) -> np.ndarray:
        """float64[turns]."""
        return np.array([turn.reward for turn in self.turns], np.float64)


Group = list[Trajectory]
"""Episodes of the same task seed."""


@dataclass(frozen=True, eq=False)
class Advantages:
    """What an algorithm makes of one trajectory.

    Attributes:
        advantages: float64[turns], how much better each turn was than expected.
        returns: float64[turns], what the value before each turn should have been; None for algorithms without values.
    """

    advantages: np.ndarray
    returns: np.ndarray | None = None
