"""Settings of a model that chats: where it is, how it is sampled, and how often it may be asked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PositiveFloat, PositiveInt

from sightline import registry
from sightline.config.basics import Strict
from sightline.config.blocks import NameOf, Reach
from sightline.config.secrets import VARIABLE, refuse_secrets
from sightline.errors import BadInput, blamed, nearest
from sightline.models.chat.calling import Limits
from sightline.models.chat.messages import ChatModel
from sightline.runs.trust import is_this_machine


def _provider_name(provider: str) -> str:
    names = registry.names("provider")
    if provider not in names:
        raise ValueError(f"there is no provider '{provider[:80]}'{nearest(provider, names)}")
    return provider


def find_provider(name: str) -> Any:
    """The class of a provider's chat models.

    Raises:
        BadInput: there is none of that name, its package cannot be imported, or it is something else.
    """
    provider = registry.find("provider", name)
    if not callable(getattr(provider, "of", None)):
        raise BadInput(
            f"the provider '{name}' is not a class with of(config), as sightline.models.chat.messages.ChatModel has"
        )
    return provider


class ChatModelConfig(Strict):
    """A model that chats, at a provider."""

    provider: Annotated[str, AfterValidator(_provider_name), NameOf("provider")] = "openai"
    """`openai`: any OpenAI-compatible server; `gemini`, `anthropic`: their own clients (extras); `local`: a model of
    Hugging Face in this process."""
    model: Annotated[str, Field(min_length=1)]
    """The model's name, as its provider calls it; for `local` a folder or `owner/name`."""
    url: str | None = None
    """Address of an OpenAI-compatible server, such as http://localhost:8000/v1; default: the hosted service. Other
    machines are asked by https:// only."""
    insecure_http: bool = False
    """Ask a server on another machine by http:// too, on a network that is trusted; a key never goes that way."""
    key_env: str | None = None
    """Environment variable that holds the key; default: the provider's usual one, for the provider's own address."""
    headers: dict[str, str] = {}
    """Further headers of requests, as gateways ask for: `headers.api-key=$AZURE_KEY` sends the key in that environment
    variable."""
    query: dict[str, str] = {}
    """Parameters of the address, such as `query.api-version=2024-10-21`; `$NAME` as in headers."""
    structured: bool = True
    """Ask for JSON by schema where the server offers it; plain text is understood in any case."""
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
    quota: Literal["stop", "wait"] = "stop"
    """What to do when a quota of the day or the account is used up: `stop`, to be resumed later, or `wait` for it."""
    options: dict[str, Any] = {}
    """Further fields of the request's body."""

    def open(self) -> ChatModel:
        """The model, not yet connected to.

        Raises:
            BadInput: the address is none, a package is missing, or a key stands where only its variable may.
        """
        # Options and headers become part of signatures, which are stored with the answers.
        refuse_secrets({"options": self.options, "headers": self.headers, "query": self.query})
        provider = find_provider(self.provider)
        with blamed(provider, "of"):
            model: ChatModel = provider.of(self)
        return model

    def place(self, model: ChatModel) -> str:
        """Where answers are from, for signatures: a server on this machine is known by its model, not by its port."""
        if not self.url or not is_this_machine(self.url):
            return model.where
        host = model.where.partition("?")[0].partition("/")[0]
        return "this machine" + model.where.removeprefix(host)

    def limits(self, model: ChatModel) -> Limits:
        """How often the model may be asked; one that answers in batches takes its own time."""
        timeout = None if model.batched else self.timeout
        return Limits(
            requests_per_minute=self.requests_per_minute,
            tokens_per_minute=self.tokens_per_minute,
            timeout=timeout,
            retries=self.retries,
            waits_for_quota=self.quota == "wait",
        )

    def reaches(self) -> Iterator[Reach]:
        """What lies outside of this machine."""
        # What a stranger's recipe may not do unseen: ask servers, cost money, use keys.
        if self.url and not is_this_machine(self.url):
            yield "url", self.url, "a server that would be asked"
        elif not self.url and getattr(find_provider(self.provider), "hosted", True):
            yield "provider", self.provider, "a service that would be asked, and paid"
        if self.key_env:
            yield "key_env", self.key_env, "a key that would be used"
        for block, values in (("headers", self.headers), ("query", self.query)):
            for name, value in values.items():
                if VARIABLE.search(value):
                    yield f"{block}.{name}", value, "a key that would be used"
