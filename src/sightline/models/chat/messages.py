"""Requests to a model that chats, its replies, and the three errors in place of one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from sightline.images import Picture

Part = str | Picture


@dataclass(frozen=True)
class ChatRequest:
    """One turn of a person, to which the model replies once.

    Attributes:
        parts: texts and pictures, in the order in which they are shown.
        schema: JSON schema that the reply should keep to, if the provider can enforce one.
        temperature: 0 for the most probable reply.
        max_tokens: tokens of the reply, at most.
        alternatives: for so many of the most probable tokens at each place the log-probability is wanted; 0 for none.
        occasion: the same for two requests of which one answer serves both, such as one that is sent again after a
            time-out or a kill; empty if every request is to have an answer of its own.
        system: what the model is told before the turn (a system message); empty for nothing.
        beginning: the first words of the reply, which the model goes on from; empty for none. Models without
            `begins_replies` cannot be sent any.
    """

    parts: tuple[Part, ...]
    schema: dict[str, Any] | None = None
    temperature: float = 0.0
    max_tokens: int = 512
    alternatives: int = 0
    occasion: str = ""
    system: str = ""
    beginning: str = ""

    @property
    def text(self) -> str:
        """All of it as text, with a mark where a picture stands."""
        turn = [part if isinstance(part, str) else "[picture]" for part in self.parts]
        return "\n".join(text for text in (self.system, *turn, self.beginning) if text)


@dataclass(frozen=True)
class Token:
    """A token of a reply.

    Attributes:
        text: as it stands in the reply.
        alternatives: (text, natural logarithm of its probability) of the most probable tokens at this place.
    """

    text: str
    alternatives: tuple[tuple[str, float], ...]


MOST_TOKENS = 10**8
"""What a provider may count for one reply, ten times the longest context; more is nonsense."""


@dataclass(frozen=True)
class ChatReply:
    """A reply, as the provider sent it.

    Attributes:
        text: all of the reply; half characters (surrogates), which no file can hold, are replaced by "?".
        input_tokens, output_tokens: as the provider counts them, 0 if it says nothing or nonsense.
        cut_off: whether the reply ended because `max_tokens` were written.
        tokens: the reply token by token, where log-probabilities were asked for and given.
        model: the version that answered, as the provider calls it, in one line; empty if it does not say. Names of
            models stay while what answers to them changes.
    """

    text: str
    input_tokens: int = 0
    output_tokens: int = 0
    cut_off: bool = False
    tokens: tuple[Token, ...] = ()
    model: str = ""

    def __post_init__(self) -> None:
        # Clients build replies from what servers send; here, once, it is made such that any file can hold it.
        object.__setattr__(self, "text", _whole(self.text))
        object.__setattr__(self, "model", _whole(" ".join(self.model.split())[:200]))
        object.__setattr__(self, "input_tokens", token_count(self.input_tokens))
        object.__setattr__(self, "output_tokens", token_count(self.output_tokens))


def _whole(text: str) -> str:
    """Replace half characters."""
    return text.encode("utf-8", "replace").decode()


def silence(thoughts: str = "", tool: str = "", ended: str = "") -> str:
    """Why a reply has no text, in words.

    Args:
        thoughts: the field with the model's thoughts, which are all there is; empty if there are none.
        tool: name of the tool that is called instead; empty if none is.
        ended: the provider's word for why the reply ended, where it is not an ordinary end.
    """
    if tool:
        return f"the model calls a tool ('{tool[:40]}') in place of a reply; turn tools off at the server"
    if thoughts:
        return (
            f"the reply holds only thoughts ({thoughts}) and no answer; turn thinking off by options, or the server's "
            "reasoning parser"
        )
    if ended:
        return f"the reply is empty ({ended})"
    return "the reply is empty"


def token_count(value: object) -> int:
    """Number of tokens that a provider reports; 0 if that is no number that can be.

    A reply is paid for and read, whatever is said of its length.
    """
    # Some servers report numbers as words.
    if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit():
        value = float(value)
    # For Python, true is the number 1.
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    if 0 <= value <= MOST_TOKENS:
        return int(value)
    return 0


class NoReply(Exception):
    """There is no usable reply; the message says why in one line."""

    def __init__(self, message: str, input_tokens: int = 0, output_tokens: int = 0) -> None:
        super().__init__(_whole(" ".join(message.split())[:500]))
        self.input_tokens = token_count(input_tokens)
        self.output_tokens = token_count(output_tokens)


class Refused(NoReply):
    """The model or its provider declines to answer; asking again would not help."""


class Rejected(NoReply):
    """The request is turned down for good: malformed, too large, or none is answered at all (`NoAccess`).

    Attributes:
        malformed: the server does not understand the request; it may if less is asked of it.
    """

    def __init__(self, message: str, malformed: bool = False) -> None:
        super().__init__(message)
        self.malformed = malformed


class NoAccess(Rejected):
    """No request will be answered until somebody does something: the key is refused, or the model is unknown."""


class QuotaReached(NoAccess):
    """A quota of the day, the month or the account is used up: no request will be answered for now.

    Attributes:
        retry_after: seconds after which the server wants to be asked again, if it says so.
    """

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Transient(NoReply):
    """It did not work this time: network, server, limits, time.

    Attributes:
        retry_after: seconds after which the server wants to be asked again, if it says so.
    """

    def __init__(
        self, message: str, retry_after: float | None = None, input_tokens: int = 0, output_tokens: int = 0
    ) -> None:
        super().__init__(message, input_tokens, output_tokens)
        self.retry_after = retry_after


Ask = Callable[[ChatRequest], Awaitable[ChatReply]]
"""Sends one request, once. Raises Refused, Rejected or Transient."""


class ChatModel(Protocol):
    """A model at a provider.

    Attributes:
        where: who answers, for messages and signatures: a host name, or `this machine`.
        hosted: whether it is a service elsewhere unless an address is given.
        key_env: environment variable with the key of that service; empty if none is needed.
        package: module of the client that it needs; empty if there is none.
        extra: of Sightline, by which that client is installed; empty if it is none of ours.
        batched: whether it answers requests together as they come, so that time-outs for one make no sense.
        begins_replies: whether a request may hold the beginning of its reply.
    """

    hosted: ClassVar[bool]
    key_env: ClassVar[str] = ""
    package: ClassVar[str] = ""
    extra: ClassVar[str] = ""
    begins_replies: ClassVar[bool] = False
    where: str
    batched: bool

    @classmethod
    def of(cls, config: Any) -> ChatModel:
        """The model that a `sightline.models.chat.config.ChatModelConfig` names."""
        ...

    def connected(self) -> AbstractAsyncContextManager[Ask]:
        """A connection for as long as the context is entered, in the event loop that entered it.

        Raises:
            BadInput: the client's package or the key is missing.
        """
        ...
