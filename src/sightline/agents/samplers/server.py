"""Sampler: the policy served by vLLM, or by another server with its interface, in a process or on a machine of its own.

    learner                                          server
      | POST /v1/chat/completions                      |   messages, seed, banned tokens
      | <- prompt ids, reply ids, log-probabilities    |   checked: the prompt is the learner's, id by id
      |                                                |
      | weights/3/model.safetensors, then 3/READY      |   a folder that both see; the mark comes last
      | POST /collective_rpc  reload_weights           |   returns when they are loaded
      | POST /reset_prefix_cache, /reset_encoder_cache |   both hold values that the weights before have computed
      | POST /v1/chat/completions, some probes         |   checked: the answers are those of the new weights

    VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --logprobs-mode processed_logprobs --generation-config vllm

`reload_weights` is vLLM's own, and so are the fields `return_token_ids`, `prompt_token_ids` and `token_ids`; a server
of another kind has to offer the same. Written against vLLM's documentation and tested with a small server of ours that
generates; it has not been run with vLLM on a GPU.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import math
import shutil
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sightline.agents.samplers import Completion, Conversation, Key
from sightline.agents.samplers.vllm_common import banned_biases, check_prompt, completion_of, seed_of
from sightline.agents.samplers.weight_check import FAR_OFF, PROBED, PROBES, WeightCheck, probes
from sightline.config.agents import PolicyServer
from sightline.errors import BadInput, RunFailed, nearest
from sightline.models.chat.calling import seconds_to_wait
from sightline.models.chat.endpoints import filled_in, read_key, resolve_endpoint
from sightline.models.chat.messages import NoReply
from sightline.models.chat.openai_compatible import complaint, message_part
from sightline.models.chat.streaming import stream_async
from sightline.models.vlm.types import Prompt, Sample, TokenSequence
from sightline.runs.temporary import TemporaryFolder

if TYPE_CHECKING:
    from sightline.models.vlm.model import VLM

READY = "READY"
"""File that says that a folder of weights is whole."""
ATTEMPTS = 4
"""Times that a request is sent if the server is busy or the connection breaks."""
PAUSE = 0.5
"""Seconds before the second attempt; four times as long before each further one."""
LONGEST_PAUSE = 30.0
"""Seconds before the next attempt, at most, where the server says how long to wait."""


class ServerSampler:
    """Samples replies on a server for a policy that is trained here.

    Args:
        vlm: the policy; it encodes prompts, decodes replies, and knows the banned tokens.
        settings: address, name and folder.
        temperature: of sampling; 0 is greedy.
        max_tokens: of a reply.

    Raises:
        BadInput: the server cannot be reached, serves another model, or cannot load weights.
    """

    def __init__(
        self, vlm: VLM, settings: PolicyServer | None = None, temperature: float = 1.0, max_tokens: int = 256
    ) -> None:
        settings = settings or PolicyServer()
        self._vlm = vlm
        self._settings = settings
        self._temperature = temperature
        self._max_tokens = max_tokens
        endpoint = resolve_endpoint(settings.url, settings.key_env, "", "", "/v1", insecure_http=settings.insecure_http)
        self._url = endpoint.url
        self._query = filled_in(endpoint.query)
        self._key: str | None = None
        if endpoint.key_env is not None:
            self._key = read_key(endpoint.key_env)
        if settings.weights:
            self._folder = Path(settings.weights)
        else:
            self._temporary = TemporaryFolder("weights")  # which is removed with this attribute
            self._folder = self._temporary.path
        self._banned = {str(token): bias for token, bias in banned_biases(vlm).items()}
        self._loaded = _Loaded()
        self._model = self._served_model()

    @property
    def version(self) -> int:
        """Number of the weights that the server has loaded; -1 before the first ones."""
        return self._loaded.version

    @contextlib.contextmanager
    def with_weights(self, version: int) -> Iterator[None]:
        """Hold the server for a rollout or an evaluation, with published weights of that number."""
        with self._loaded.lock:
            self.load(version)
            yield

    def at(self, temperature: float) -> ServerSampler:
        """The same server with another sampling temperature."""
        other = copy.copy(self)
        other._temperature = temperature  # noqa: SLF001  # of the same class
        return other

    # -- replies -------------------------------------------------------------------------------------------------------

    def generate(self, conversations: Sequence[Conversation], keys: Sequence[Key]) -> list[Completion]:
        """See `Sampler`.

        Raises:
            RunFailed: the server is gone or too slow, or its answer is not what the learner can learn from.
        """
        prompts = [self._vlm.encode(conversation) for conversation in conversations]
        requests = []
        for conversation, key in zip(conversations, keys, strict=True):
            requests.append(self._request(conversation, seed_of(key), self._temperature, self._max_tokens))
        # Answers come in any order.
        completions: dict[int, Completion] = {}
        for number, answer in stream_async(self._connected, self._answer, requests, self._settings.concurrency):
            completions[number] = self._completion(prompts[number], answer)
        return [completions[number] for number in range(len(prompts))]

    def _request(self, conversation: Conversation, seed: int, temperature: float, max_tokens: int) -> _Request:
        body = {
            "model": self._model,
            "messages": _messages(conversation),
            "max_tokens": max_tokens,
            "temperature": temperature,
            "top_p": 1.0,
            "seed": seed,
            "logprobs": True,
            "top_logprobs": 0,
            "return_token_ids": True,
            "stop_token_ids": sorted(self._vlm.tokens.stops),
            "logit_bias": self._banned,
        }
        return _Request(f"{self._url}/chat/completions", body)

    def _completion(self, prompt: Prompt, answer: Any) -> Completion:
        """Check an answer, and take over the reply.

        Raises:
            RunFailed: it is of another model or prompt, or holds no usable reply.
        """
        server = f"the server at {self._url}"
        try:
            model = answer["model"]
            prompt_ids = answer.get("prompt_token_ids")
            choice = answer["choices"][0]
            ids = choice.get("token_ids")
            content = (choice.get("logprobs") or {}).get("content") or ()
            logprobs = [float(token["logprob"]) for token in content]
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise RunFailed(f"{server} answers no chat completion: {str(answer)[:80]}") from error
        if model != self._model:
            raise RunFailed(f"{server} answers as '{model}' where '{self._model}' was asked")

        # Importance ratios need the very tokens, and their probability under the very prompt.
        if prompt_ids is None or ids is None:
            raise RunFailed(f"{server} does not say token ids; take a vLLM that knows return_token_ids")
        advice = "its model or chat template is another one (or rollouts.window shows replies that it spells otherwise)"
        check_prompt(prompt_ids, prompt, server, advice)
        if not all(map(self._may_be_sampled, ids)):
            raise RunFailed(f"{server} has sampled tokens that were banned, or that there are not")
        # A log-probability above 0 by more than rounding is none.
        if len(logprobs) != len(ids) or not all(math.isfinite(logprob) and logprob < 1e-3 for logprob in logprobs):
            raise RunFailed(
                f"{server} gives {len(logprobs)} log-probabilities for {len(ids)} tokens, or such as are none"
            )
        completion = completion_of(self._vlm, prompt, ids, logprobs, self.version)
        if choice.get("finish_reason") == "stop" and not completion.sample.finished:
            raise RunFailed(f"{server} leaves out the token that ends a reply, whose probability is part of it")
        return completion

    def _may_be_sampled(self, token: Any) -> bool:
        """Whether something is the id of a token that is not banned."""
        banned = self._vlm.tokens.banned
        return isinstance(token, int) and 0 <= token < len(banned) and not banned[token]

    # -- weights -------------------------------------------------------------------------------------------------------

    def publish(self, version: int, keep: int = 2) -> None:
        """Write the present weights of the policy, adapters merged, where the server can read them.

        Args:
            version: their number.
            keep: how many of the newest weights stay.

        Raises:
            RunFailed: they cannot be written.
        """
        folder = self._folder / str(version)
        shutil.rmtree(folder, ignore_errors=True)  # it may be of an earlier run, and incomplete
        try:
            self._vlm.merge_and_save(folder)
            (folder / READY).touch()
        except OSError as error:
            raise RunFailed(f"weights for the server cannot be written to '{folder}': {error.strerror}") from error
        self._loaded.published = version
        self._loaded.check.expect(version, self._probe_policy())
        for folder in self._folder.iterdir():
            is_weights = folder.name.isdecimal() and (folder / READY).exists()
            if is_weights and int(folder.name) <= version - keep:
                shutil.rmtree(folder, ignore_errors=True)
                self._loaded.check.forget(int(folder.name))

    def load(self, version: int) -> None:
        """Have the server load published weights, unless it has them.

        Raises:
            RunFailed: it cannot, or it has other weights afterwards.
        """
        if version == self.version:
            return
        root = self._url.removesuffix("/v1")
        path = str((self._folder / str(version)).resolve())
        reload = {"method": "reload_weights", "kwargs": {"weights_path": path}}
        self._ask(_Request(f"{root}/collective_rpc", reload))
        # vLLM keeps what it computed of prompts and of pictures; both are out of date now.
        for cache in ("prefix", "encoder"):
            self._ask(_Request(f"{root}/reset_{cache}_cache", {}))
        self._loaded.version = version
        answers = self._probe_server(0.0)
        self._loaded.check.compare(version, answers, f"the server at {self._url}")

    def take_over_weights(self, version: int | None = None) -> None:
        """Publish the present weights of the policy and have the server load them.

        Args:
            version: their number; by default the next one.
        """
        if version is None:
            version = self._loaded.published + 1
        self.publish(version)
        self._loaded.version = -1  # the server may have other weights of that number, from before a resumption
        self.load(version)
        if not self._loaded.sampling_checked:
            self._check_sampling()

    def _check_sampling(self) -> None:
        """Compare log-probabilities at a temperature with those of the policy, whose present weights the server has.

        Raises:
            RunFailed: they are far off: they are not of the distribution that is sampled from.
        """
        import torch

        # At 1 the raw log-probabilities of vLLM are those of the distribution that it samples from; elsewhere not.
        temperature = 2.0
        samples = self._probe_server(temperature)
        sequences = []
        for probe, sample in zip(probes(self._vlm.reads_pictures), samples, strict=True):
            sequences.append(TokenSequence.of_reply(self._vlm.encode(probe), sample.ids))
        with torch.no_grad():
            expected = self._vlm.score(sequences, temperature).logprobs.float().cpu().numpy()
        logprobs = np.concatenate([sample.logprobs for sample in samples])
        gap = float(np.abs(expected - logprobs).mean())
        if gap > FAR_OFF:
            raise RunFailed(
                f"the log-probabilities of the server at {self._url} are not those that it samples from: at "
                f"temperature {temperature:g} they are {gap:.1f} nats a token off; start vLLM with --logprobs-mode "
                "processed_logprobs"
            )
        self._loaded.sampling_checked = True

    def _probe_policy(self) -> list[Sample]:
        """The policy's greedy answers to the probes."""
        prompts = [self._vlm.encode(conversation) for conversation in probes(self._vlm.reads_pictures)]
        return self._vlm.generate(prompts, None, 1.0, min(PROBED, self._max_tokens))

    def _probe_server(self, temperature: float) -> list[Sample]:
        """The server's answers to the probes; at temperature 0 they are greedy."""
        max_tokens = min(PROBED, self._max_tokens)
        conversations = probes(self._vlm.reads_pictures)
        requests = [self._request(probe, 0, temperature, max_tokens) for probe in conversations]
        answers = dict(stream_async(self._connected, self._answer, requests, PROBES))
        samples = []
        for number, probe in enumerate(conversations):
            completion = self._completion(self._vlm.encode(probe), answers[number])
            samples.append(completion.sample)
        return samples

    # -- HTTP ----------------------------------------------------------------------------------------------------------

    def _connected(self) -> Any:
        from sightline.models.chat.connections import connect

        headers: dict[str, str] = {}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        return connect(self._url, self._settings.timeout, headers, self._query)

    def _served_model(self) -> str:
        """Name of the model to ask for."""
        try:
            answer = self._ask(_Request(f"{self._url}/models", attempts=1))
            names = [str(model["id"]) for model in answer["data"]]
        except (RunFailed, LookupError, TypeError) as error:
            raise BadInput(
                f"policy.sampler=server: there is no server at {self._url} ({error}); start one, such as 'vllm serve', "
                "and say policy.server.url="
            ) from error
        name = self._settings.model
        if name is None and len(names) != 1:
            raise BadInput(f"the server at {self._url} serves {', '.join(names)}; say policy.server.model=")
        if name is not None and name not in names:
            raise BadInput(f"the server at {self._url} does not serve '{name}'{nearest(name, names)}")
        return name or names[0]

    def _ask(self, request: _Request) -> Any:
        """Send a single request and return the JSON of its answer."""
        ((_, answer),) = stream_async(self._connected, self._answer, [request], 1)
        return answer

    async def _answer(self, client: Any, request: _Request) -> Any:
        """Send a request, several times if need be, and return the JSON of its answer; None if that is empty.

        Raises:
            RunFailed: after all attempts, or at once if the request itself is refused.
        """
        import httpx2

        method = "GET" if request.body is None else "POST"
        trouble = ""
        pause = 0.0
        for attempt in range(request.attempts):
            await asyncio.sleep(pause)
            pause = PAUSE * 4**attempt
            try:
                # The client's own time limit is for a single read, and a server can stall between many.
                async with asyncio.timeout(self._settings.timeout):
                    response = await client.request(method, request.url, json=request.body)
                text = response.content.decode("utf-8", errors="replace")
                if response.status_code == 200:
                    return response.json() if text.strip() else None
                trouble = f"status {response.status_code}: {complaint(text)}"
                seconds = seconds_to_wait(response.headers.get("retry-after"))
                if seconds is not None:
                    pause = min(seconds, LONGEST_PAUSE)
                # Time-outs, conflicts and full queues pass; other refusals stay as they are.
                if response.status_code < 500 and response.status_code not in (408, 409, 429):
                    break
            except (TimeoutError, httpx2.TimeoutException):
                trouble = f"no whole answer within {self._settings.timeout:g} s (policy.server.timeout)"
            except httpx2.HTTPError as error:
                trouble = str(error) or "the connection breaks off"
            except NoReply as error:  # the connection has read enough
                trouble = str(error)
            except ValueError:
                trouble = "its answer is no JSON"
        raise RunFailed(f"{method} {request.url}: {trouble}")


@dataclass(frozen=True)
class _Request:
    """A request.

    Attributes:
        body: JSON of a POST; None for a GET.
        attempts: maximum number, if the server is busy, gone or too slow.
    """

    url: str
    body: dict[str, Any] | None = None
    attempts: int = ATTEMPTS


class _Loaded:
    """State of a server; shared by samplers of different temperatures.

    Attributes:
        version: number of the weights that it has loaded; -1 before the first ones.
        published: number of the newest weights that it could load.
        check: compares its weights with those of the policy.
        sampling_checked: whether its log-probabilities are known to be those of the distribution that it samples from.
        lock: held during a rollout or an evaluation, so that the weights do not change meanwhile.
    """

    def __init__(self) -> None:
        self.version = -1
        self.published = -1
        self.check = WeightCheck()
        self.sampling_checked = False
        self.lock = threading.Lock()


def _messages(conversation: Conversation) -> list[dict[str, Any]]:
    """Messages of a chat request: the earlier turns with their replies, and the present one."""
    messages: list[dict[str, Any]] = []
    for number, turn in enumerate(conversation):
        pictures = iter(turn.pictures)
        content = []
        for part in turn.layout:
            if part is None:  # the place of the next picture
                content.append(message_part(next(pictures)))
            else:
                content.append(message_part(part))
        messages.append({"role": "user", "content": content})
        if number < len(conversation) - 1:
            messages.append({"role": "assistant", "content": turn.reply_text})
    return messages
