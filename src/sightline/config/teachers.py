"""What a recipe may say about who judges pictures, and what that may cost."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, PositiveFloat, PositiveInt, Tag, model_validator

from sightline.config.basics import Strict, tag_of


class EncoderTeacherConfig(Strict):
    """Prefers the frame whose zero-shot reward is higher: no key, no network, no cost."""

    kind: Literal["encoder"] = "encoder"
    encoder: str = "bundled"
    alpha: float | None = Field(default=None, ge=0, le=1)
    """Strength of goal-baseline regularisation; default 0.5 with a baseline."""
    equal_below: float = Field(default=0.0, ge=0)
    """Rewards that differ by less than this count as equal."""


class ScriptedTeacherConfig(Strict):
    """Answers from the environment's own reward, with the human failings of B-Pref (Lee et al., NeurIPS 2021)."""

    kind: Literal["scripted"]
    beta: float | None = Field(default=None, gt=0)
    """Rationality of a Boltzmann choice; None always prefers the larger return."""
    gamma: float = Field(default=1.0, gt=0, le=1)
    """Below 1 the teacher is myopic: later steps of a segment count more."""
    skip: float = Field(default=0.0, ge=0)
    """Skips pairs in which neither return exceeds this fraction of the average return of such a segment."""
    equal: float = Field(default=0.0, ge=0)
    """Calls pairs equal whose returns differ by less than this fraction of the average return."""
    mistake: float = Field(default=0.0, ge=0, le=1)
    """Probability of the opposite answer."""


class ChatTeacherConfig(Strict):
    """Asks a vision-language model that chats."""

    kind: Literal["chat"]
    provider: Literal["openai", "gemini", "anthropic", "local"] = "openai"
    """`openai`: any OpenAI-compatible server; `gemini`, `anthropic`: their own clients (extras); `local`: a model of
    Hugging Face in this process."""
    model: str
    """The model's name, as its provider calls it; for `local` a folder or `owner/name`."""
    url: str | None = None
    """Address of an OpenAI-compatible server, such as http://localhost:8000/v1; default: the hosted service. Keys go
    to other machines by https:// only."""
    key_env: str | None = None
    """Environment variable that holds the key; default: the provider's usual one, for the provider's own address."""
    stages: Literal[1, 2] = 1
    """1 asks for the answer at once; 2 lets the model describe and compare first, and asks for the label then."""
    swap: bool = True
    """Ask every pair in both orders; answers that change with the order count as unsure."""
    votes: PositiveInt = 1
    """Ask that often and go by the majority; above 1 this needs a temperature."""
    structured: bool = True
    """Ask for JSON by schema where the server offers it; plain text is understood in any case."""
    frames: PositiveInt = 1
    """Frames of a segment that are shown: the last, and others evenly before it."""
    temperature: float = Field(default=0.0, ge=0, le=2)
    max_tokens: PositiveInt = 2048
    """Of one reply, thinking included where a model thinks."""
    concurrency: PositiveInt = 32
    """Requests in flight at once."""
    requests_per_minute: PositiveFloat | None = None
    tokens_per_minute: PositiveFloat | None = None
    timeout: PositiveFloat = 60.0
    """Seconds for one request."""
    retries: int = Field(default=5, ge=0)
    """Further attempts after a failure that may pass."""
    input_price: float = Field(default=0.0, ge=0)
    """Price of a million tokens that the model reads; in any currency, the same as the budget's."""
    output_price: float = Field(default=0.0, ge=0)
    """Price of a million tokens that it writes."""
    options: dict[str, Any] = {}
    """Further fields of the request's body."""

    @model_validator(mode="after")
    def _votes_differ(self) -> ChatTeacherConfig:
        if self.votes > 1 and self.temperature == 0:
            raise ValueError(f"votes={self.votes} needs a temperature above 0, or all votes are the same")
        return self


class HumanTeacherConfig(Strict):
    """Waits for people at the label page: `sightline label serve RUN`."""

    kind: Literal["human"]
    name: str = "human"
    patience: PositiveFloat = 3600.0
    """Seconds to wait for a round of answers; then training goes on with those that came."""


TeacherConfig = Annotated[
    Annotated[EncoderTeacherConfig, Tag("encoder")]
    | Annotated[ScriptedTeacherConfig, Tag("scripted")]
    | Annotated[ChatTeacherConfig, Tag("chat")]
    | Annotated[HumanTeacherConfig, Tag("human")],
    Discriminator(lambda value: tag_of(value, "kind", "encoder")),
]


class Budget(Strict):
    """What may be spent: no question is begun that would break it if it cost as much as others did, and training goes
    on with the labels that there are. (What a question costs is known after the first, which is asked alone.)"""

    questions: PositiveInt = 600
    """Questions over the whole run that a reply came to, whatever it said."""
    requests: PositiveInt | None = None
    tokens: PositiveInt | None = None
    money: PositiveFloat | None = None
    """In the currency of the teacher's prices."""
