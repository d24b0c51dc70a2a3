"""A server that samples the policy's replies, by HTTP: requests, repeated where that may help, and its weights."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from sightline.agents.samplers.weight_check import WeightCheck
from sightline.config.agents import PolicyServer
from sightline.errors import BadInput, RunFailed, nearest
from sightline.models.chat.calling import seconds_to_wait
from sightline.models.chat.endpoints import filled_in, read_key, resolve_endpoint
from sightline.models.chat.messages import NoReply
from sightline.models.chat.openai_compatible import complaint
from sightline.models.chat.streaming import stream_async

ATTEMPTS = 4
"""Times that a request is sent if the server is busy or the connection breaks."""
PAUSE = 0.5
"""Seconds before the second attempt; four times as long before each further one."""
LONGEST_PAUSE = 30.0
"""Seconds before the next attempt, at most, where the server says how long to wait."""


class ServerLost(RunFailed):
    """Raised where a server does not answer, though it has been asked again; another one may."""


@dataclass(frozen=True)
class PolicyRequest:
    """A request.

    Attributes:
        path: within the interface, such as `chat/completions`, or from the server's root, such as `/collective_rpc`.
        body: JSON of a POST, to which the model's name is added within the interface; None for a GET.
        attempts: maximum number, if the server is busy, gone or too slow.
    """

    path: str
    body: dict[str, Any] | None = None
    attempts: int = ATTEMPTS


class PolicyCopy:
    """A copy of the policy on a server.

    Args:
        url: its address, up to and with `/v1`.
        settings: those of all servers.
        is_only: there is no other one to ask instead, so that time-outs are repeated, too.

    Attributes:
        where: its address, in words.
        model: name of the model to ask for.
        version: number of the weights that it has loaded; -1 before the first ones.
        lost: why it is not asked for replies; None while it answers.
        check: compares its weights with those of the policy.
        sampling_checked: whether its log-probabilities are known to be those of the distribution that it samples from.

    Raises:
        BadInput: the address is none, or there is no key.
    """

    def __init__(self, url: str, settings: PolicyServer, is_only: bool = True) -> None:
        endpoint = resolve_endpoint(url, settings.key_env, "", "", "/v1", insecure_http=settings.insecure_http)
        self._url = endpoint.url
        self._query = filled_in(endpoint.query)
        self._key: str | None = None
        if endpoint.key_env is not None:
            self._key = read_key(endpoint.key_env)
        self._timeout = settings.timeout
        self._is_only = is_only
        self.where = f"the server at {self._url}"
        self.model = ""
        self.version = -1
        self.lost: str | None = None
        self.check = WeightCheck()
        self.sampling_checked = False

    def find_model(self, name: str | None) -> None:
        """Ask which models it serves, and choose one.

        Args:
            name: of the one that is wanted; None for the only one.

        Raises:
            ServerLost: it does not answer.
            BadInput: it is no such server, or has no such model.
        """
        try:
            answer = self.ask(PolicyRequest("models", attempts=1))
            names = [str(model["id"]) for model in answer["data"]]
        except ServerLost:
            raise
        except (RunFailed, LookupError, TypeError) as error:
            raise BadInput(f"policy.sampler=server: there is no server of models at {self._url} ({error})") from error
        if name is None and len(names) != 1:
            raise BadInput(f"{self.where} serves {', '.join(names)}; say policy.server.model=")
        if name is not None and name not in names:
            raise BadInput(f"{self.where} does not serve '{name}'{nearest(name, names)}")
        self.model = name or names[0]

    def load(self, path: str, attempts: int = ATTEMPTS) -> None:
        """Have it load weights, and forget what it has computed with those before.

        Raises:
            ServerLost: it does not answer.
            RunFailed: it cannot.
        """
        reload = {"method": "reload_weights", "kwargs": {"weights_path": path}}
        self.ask(PolicyRequest("/collective_rpc", reload, attempts))
        # vLLM keeps what it computed of prompts and of pictures; both are out of date now.
        for cache in ("prefix", "encoder"):
            self.ask(PolicyRequest(f"/reset_{cache}_cache", {}, attempts))

    def ask(self, request: PolicyRequest) -> Any:
        """Send a single request and return the JSON of its answer."""
        ((_, answer),) = self.ask_all([request], 1).items()
        return answer

    def ask_all(self, requests: list[PolicyRequest], at_once: int) -> dict[int, Any]:
        """Send requests, some at a time, and return the answers by their numbers."""
        return dict(stream_async(self.connected, self.answer, requests, at_once))

    def connected(self) -> Any:
        """Context of a client for this server."""
        from sightline.models.chat.connections import connect

        headers: dict[str, str] = {}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        return connect(self._url, self._timeout, headers, self._query)

    async def answer(self, client: Any, request: PolicyRequest) -> Any:
        """Send a request, several times if need be, and return the JSON of its answer; None if that is empty.

        Raises:
            ServerLost: after all attempts.
            RunFailed: the request itself is refused.
        """
        import httpx2

        method = "GET" if request.body is None else "POST"
        from_root = request.path.startswith("/")
        url = self._url.removesuffix("/v1") + request.path if from_root else f"{self._url}/{request.path}"
        body = request.body
        if body is not None and not from_root:
            body = {"model": self.model, **body}
        trouble = ""
        pause = 0.0
        for attempt in range(request.attempts):
            await asyncio.sleep(pause)
            pause = PAUSE * 4**attempt
            try:
                # The client's own time limit is for a single read, and a server can stall between many.
                async with asyncio.timeout(self._timeout):
                    response = await client.request(method, url, json=body)
                text = response.content.decode("utf-8", errors="replace")
                if response.status_code == 200:
                    return response.json() if text.strip() else None
                trouble = f"status {response.status_code}: {complaint(text)}"
                seconds = seconds_to_wait(response.headers.get("retry-after"))
                if seconds is not None:
                    pause = min(seconds, LONGEST_PAUSE)
                # Time-outs, conflicts and full queues pass; other refusals stay as they are.
                if response.status_code < 500 and response.status_code not in (408, 409, 429):
                    raise RunFailed(f"{method} {url}: {trouble}")
            except (TimeoutError, httpx2.TimeoutException):
                trouble = f"no whole answer within {self._timeout:g} s (policy.server.timeout)"
                if not self._is_only:
                    break
            except httpx2.HTTPError as error:
                trouble = str(error) or "the connection breaks off"
            except NoReply as error:  # the connection has read enough
                trouble = str(error)
            except ValueError:
                trouble = "its answer is no JSON"
        raise ServerLost(f"{method} {url}: {trouble}")
