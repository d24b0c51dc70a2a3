"""Data types of rollouts: replies, turns, trajectories, groups of trajectories, advantages."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from sightline.models.vlm.types import ChatTurn, Prompt, Sample


class Failure(StrEnum):
    """Reason why a reply has no action."""

    EMPTY = "empty"
    """The reply is empty or whitespace."""
    CUT_OFF = "cut off"
    """The reply reached the limit of tokens before its action was complete."""
    MALFORMED = "malformed"
    """The reply is not in the requested format."""
    NO_ACTION = "no action"
    """The format is right, but the action is missing or empty."""
    UNKNOWN_ACTION = "unknown action"
    """The value of the action is not the name of an action."""
    AMBIGUOUS = "ambiguous"
    """Several different actions are named."""


@dataclass(frozen=True)
class Reply:
    """Parsed reply.

    Attributes:
        action: name of the action as the environment spells it; None if there is a failure.
        span: characters [start, end) of the action's value in the text, without quotes; None if there is none.
        stated: facts that the reply states about the picture: name -> text.
        thoughts: chain of thought; may be empty.
        failure: None if an action was parsed.
        memory: what it writes down for the next turn, if the recipe has a key for that (`replies.memory`).
    """

    action: str | None
    span: tuple[int, int] | None
    stated: dict[str, str] = field(default_factory=dict)
    thoughts: str = ""
    failure: Failure | None = None
    memory: str = ""


@dataclass(eq=False)
class Turn:
    """One step of an episode: an observation, the sampled reply, the action and its reward.

    Attributes:
        exchange: observation as a chat message, and the sampled reply.
        prompt: token ids that the reply was conditioned on, earlier turns of the window included; None if another
            sampler than the policy replied (such turns are not trained on).
        sample: sampled tokens with their log-probabilities.
        reply: parsed reply.
        played: action that was taken; None if the episode was forfeited.
        on_policy: False if a random action was played in place of the reply's: the policy did not choose it, so the
            turn has no policy loss.
        legal: the reply's action was legal; False if it named none.
        reward: what the policy learns from: the reward model's reward minus the penalty. Until the episode is scored,
            the environment's own reward minus the penalty.
        env_reward: the environment's own reward.
        success: whether the environment called the state that the turn led to a success; None if it did not say.
        frame: uint8[H, W, 3], newest picture of that state, kept until the episode is scored; None if no reward model
            looks at it, or the turn led nowhere.
        penalty: subtracted for an unparsable or illegal reply, if the recipe has one.
        facts: visible facts, the ground truth of perception: name -> text.
        legal_actions: names.
        action_tokens: bool[n], the sampled tokens of the action's value, known or not (any token that shares a
            character with it); all False if there is none.
        choice: index of the sampled token at which the legal actions first differ; None if no action was parsed.
        choices: id of that token for each legal action.
        value: the critic's estimate of the discounted return before the reply; 0 without a value head.
        old_logprobs: float32[n], log-probabilities of the sampled tokens as the learner computes them before the
            weights change; None if those of sampling are the same but for rounding in float32.
        ref_logprobs: float32[n], log-probabilities of the sampled tokens under the reference model (the model before
            RL); None if the loss does not need them.
        version: number of the weights that sampled it, where a server has copies of them; else None.
    """

    exchange: ChatTurn
    prompt: Prompt | None
    sample: Sample
    reply: Reply
    played: str | None
    on_policy: bool
    legal: bool
    reward: float
    facts: dict[str, str]
    legal_actions: tuple[str, ...]
    action_tokens: np.ndarray
    choice: int | None = None
    choices: tuple[int, ...] = ()
    penalty: float = 0.0
    env_reward: float = 0.0
    success: bool | None = None
    frame: np.ndarray | None = None
    value: float = 0.0
    old_logprobs: np.ndarray | None = None
    ref_logprobs: np.ndarray | None = None
    version: int | None = None

    @property
    def state(self) -> str:
        """Key of the observation: its words and the digests of its pictures. Equal states have equal keys."""
        return "\n".join([self.exchange.text, *(picture.digest for picture in self.exchange.pictures)])

    @property
    def perception(self) -> tuple[int, int]:
        """Perception accuracy as a fraction: (facts that the reply states correctly, visible facts)."""
        correct = sum(same_text(self.reply.stated.get(name, ""), fact) for name, fact in self.facts.items())
        return correct, len(self.facts)


def same_text(a: str, b: str) -> bool:
    """Compare two texts, ignoring whitespace and case."""
    return "".join(a.split()).casefold() == "".join(b.split()).casefold()


@dataclass(eq=False)
class Trajectory:
    """One episode.

    Attributes:
        seed: task seed.
        member: index of the episode within its group.
        turns: in order, at least one unless `error` is set.
        success: the environment reported success; None if it never said what success is.
        truncated: ended by a time limit, so the return is incomplete and the critic has to bootstrap.
        end: prompt of the state after a truncated end, for the bootstrap value; None otherwise.
        last_value: bootstrap value of that state, else 0.
        kind: the environment's category of the task, for results by category; may be empty.
        mistakes: moves that the environment itself counts as wrong.
        reset_frame: uint8[H, W, 3], picture of the state before the first turn, kept as the turns' frames are.
        restarts: times that the environment's process died, and the episode was repeated as far as it was.
        error: exception of the environment, None if there was none; such an episode is not trained on.
        elsewhere: another process has played it and learns from it; here its prompts are empty, and most of its
            pictures are references (`agents/sharing.py`).
    """

    seed: int
    member: int
    turns: list[Turn] = field(default_factory=list)
    success: bool | None = None
    truncated: bool = False
    end: Prompt | None = None
    last_value: float = 0.0
    kind: str = ""
    mistakes: int = 0
    reset_frame: np.ndarray | None = None
    restarts: int = 0
    error: str | None = None
    elsewhere: bool = False

    @property
    def rewards(self) -> np.ndarray:
        """float64[turns]: what the policy learns from."""
        return np.array([turn.reward for turn in self.turns], np.float64)

    @property
    def forfeited(self) -> bool:
        """Whether a reply ended the episode because no action could be taken from it."""
        return any(turn.played is None for turn in self.turns)

    @property
    def env_return(self) -> float:
        """Sum of the environment's own rewards, minus the penalties."""
        return float(sum(turn.env_reward - turn.penalty for turn in self.turns))


Group = list[Trajectory]
"""Episodes with the same task seed, compared with each other by GRPO, RLOO and GiGPO."""


@dataclass(frozen=True, eq=False)
class Advantages:
    """Advantages of one trajectory, and the targets of its values.

    Attributes:
        advantages: float64[turns].
        returns: float64[turns], regression targets of the value head; None for algorithms without a critic.
    """

    advantages: np.ndarray
    returns: np.ndarray | None = None
