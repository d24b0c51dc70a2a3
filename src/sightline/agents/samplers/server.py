"""Sampler: the policy served by vLLM, or by another server with its interface, in a process or on a machine of its own.

    learner                                          server
      | POST /v1/chat/completions                      |   messages, seed, banned tokens
      | <- prompt ids, reply ids, log-probabilities    |   checked: the prompt is the learner's, id by id
      |                                                |
      | weights/3/model.safetensors, then 3/READY      |   a folder that both see; the mark comes last
      | POST /collective_rpc  reload_weights           |   returns when they are loaded
      | POST /reset_prefix_cache, /reset_encoder_cache |   what was computed with the ones before is forgotten
      | POST /v1/chat/completions, some probes         |   checked: they are answered by these weights

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
ATTEMPTS, PAUSE, LONGEST_PAUSE = 4, 0.5, 30.0
"""Times that a request is sent if the server is busy or the connection breaks; seconds before the second time, four
times as long before each further one; and at most, if the server says how long to wait."""


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
        self._vlm, self._settings = vlm, settings or PolicyServer()
        self._temperature, self._max_tokens = temperature, max_tokens
        place = resolve_endpoint(
            self._settings.url, self._settings.key_env, "", "", "/v1", insecure_http=self._settings.insecure_http
        )
        self._url, self._query = place.url, filled_in(place.query)
        self._key = None if place.key_env is None else read_key(place.key_env)
        self._temporary = None if self._settings.weights else TemporaryFolder("weights")
        self._folder = Path(self._settings.weights or self._temporary.path)  # type: ignore[union-attr]
        self._banned = {str(token): bias for token, bias in banned_biases(vlm).items()}
        self._loaded = _Loaded()
        self._model = self._served_model()

    @property
    def version(self) -> int:
        """Number of the weights that the server has loaded; -1 before the first."""
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
        asked = [
            self._request(conversation, seed_of(key), self._temperature, self._max_tokens)
            for conversation, key in zip(conversations, keys, strict=True)
        ]
        completions: dict[int, Completion] = {}
        for place, answer in stream_async(self._connected, self._answer, asked, self._settings.concurrency):
            completions[place] = self._completion(prompts[place], answer)
        return [completions[place] for place in range(len(prompts))]

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
        try:
            model, read = answer["model"], answer.get("prompt_token_ids")
            choice = answer["choices"][0]
            ids = choice.get("token_ids")
            logprobs = [float(one["logprob"]) for one in (choice.get("logprobs") or {}).get("content") or ()]
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise RunFailed(f"the server at {self._url} answers no chat completion: {str(answer)[:80]}") from error
        if model != self._model:
            raise RunFailed(f"the server at {self._url} answers as '{model}' where '{self._model}' was asked")
        if read is None or ids is None:
            raise RunFailed(
                f"the server at {self._url} does not say token ids; take a vLLM that knows return_token_ids"
            )
        check_prompt(
            *(read, prompt, f"the server at {self._url}"),
            "its model or chat template is another one (or rollouts.window shows replies that it spells otherwise)",
        )
        banned = self._vlm.tokens.banned
        if not all(isinstance(token, int) and 0 <= token < len(banned) and not banned[token] for token in ids):
            raise RunFailed(f"the server at {self._url} has sampled tokens that were banned, or that there are not")
        if len(logprobs) != len(ids) or not all(math.isfinite(one) and one < 1e-3 for one in logprobs):
            raise RunFailed(
                f"the server at {self._url} gives {len(logprobs)} log-probabilities for {len(ids)} tokens, or such as "
                "are none"
            )
        completion = completion_of(self._vlm, prompt, ids, logprobs, self.version)
        if choice.get("finish_reason") == "stop" and not completion.sample.finished:
            raise RunFailed(
                f"the server at {self._url} leaves out the token that ends a reply, whose probability is part of it"
            )
        return completion

    # -- weights -------------------------------------------------------------------------------------------------------

    def publish(self, version: int, keep: int = 2) -> None:
        """Write the present weights of the policy, adapters merged, where the server can read them.

        Args:
            version: their number.
            keep: the newest ones that stay.
        """
        folder = self._folder / str(version)
        shutil.rmtree(folder, ignore_errors=True)  # of an earlier run, perhaps half
        try:
            self._vlm.merge_and_save(folder)
            (folder / READY).touch()
        except OSError as error:
            raise RunFailed(f"weights for the server cannot be written to '{folder}': {error.strerror}") from error
        self._loaded.published = version
        self._loaded.check.expect(version, self._probed_here())
        for old in self._folder.iterdir():
            if old.name.isdecimal() and (old / READY).exists() and int(old.name) <= version - keep:
                shutil.rmtree(old, ignore_errors=True)
                self._loaded.check.forget(int(old.name))

    def load(self, version: int) -> None:
        """Have the server load published weights, unless it has them.

        Raises:
            RunFailed: it cannot, or has others afterwards.
        """
        if version == self.version:
            return
        root = self._url.removesuffix("/v1")
        path = str((self._folder / str(version)).resolve())
        reload = {"method": "reload_weights", "kwargs": {"weights_path": path}}
        self._ask(_Request(f"{root}/collective_rpc", reload))
        for cache in ("prefix", "encoder"):  # of prompts, and of pictures
            self._ask(_Request(f"{root}/reset_{cache}_cache", {}))
        self._loaded.version = version
        self._loaded.check.compare(version, self._probed_there(0.0), f"the server at {self._url}")

    def take_over_weights(self, version: int | None = None) -> None:
        """Publish the present weights of the policy and have the server load them.

        Args:
            version: their number; by default the next one.
        """
        version = self._loaded.published + 1 if version is None else version
        self.publish(version)
        self._loaded.version = -1  # equal numbers may be other weights: of a run that was resumed
        self.load(version)
        if not self._loaded.sampling_checked:
            self._check_sampling()

    def _check_sampling(self) -> None:
        """Compare log-probabilities at a temperature with those of the policy, whose present weights the server has.

        Raises:
            RunFailed: they are far off: they are not of the distribution that is sampled from.
        """
        import torch

        temperature = 2.0  # any but 1
        said = self._probed_there(temperature)
        prompts = [self._vlm.encode(probe) for probe in probes()]
        sequences = [TokenSequence.of_reply(prompt, one.ids) for prompt, one in zip(prompts, said, strict=True)]
        with torch.no_grad():
            own = self._vlm.score(sequences, temperature).logprobs.float().cpu().numpy()
        gap = float(np.abs(own - np.concatenate([sample.logprobs for sample in said])).mean())
        if gap > FAR_OFF:
            raise RunFailed(
                f"the log-probabilities of the server at {self._url} are not those that it samples from: at "
                f"temperature {temperature:g} they are {gap:.1f} nats a token off; start vLLM with --logprobs-mode "
                "processed_logprobs"
            )
        self._loaded.sampling_checked = True

    def _probed_here(self) -> list[Sample]:
        prompts = [self._vlm.encode(conversation) for conversation in probes()]
        return self._vlm.generate(prompts, None, 1.0, min(PROBED, self._max_tokens))

    def _probed_there(self, temperature: float) -> list[Sample]:
        tokens, shown = min(PROBED, self._max_tokens), probes()
        asked = [self._request(conversation, 0, temperature, tokens) for conversation in shown]
        answers = dict(stream_async(self._connected, self._answer, asked, PROBES))
        return [self._completion(self._vlm.encode(probe), answers[place]).sample for place, probe in enumerate(shown)]

    # -- HTTP ----------------------------------------------------------------------------------------------------------

    def _connected(self) -> Any:
        from sightline.models.chat.connections import connect

        headers = {} if self._key is None else {"Authorization": f"Bearer {self._key}"}
        return connect(self._url, self._settings.timeout, headers, self._query)

    def _served_model(self) -> str:
        """Name of the model to ask for."""
        try:
            listed = self._ask(_Request(f"{self._url}/models", attempts=1))
            names = [str(one["id"]) for one in listed["data"]]
        except (RunFailed, LookupError, TypeError) as error:
            raise BadInput(
                f"policy.sampler=server: there is no server at {self._url} ({error}); start one, such as 'vllm serve', "
                "and say policy.server.url="
            ) from error
        wanted = self._settings.model
        if wanted is None and len(names) != 1:
            raise BadInput(f"the server at {self._url} serves {', '.join(names)}; say policy.server.model=")
        if wanted is not None and wanted not in names:
            raise BadInput(f"the server at {self._url} does not serve '{wanted}'{nearest(wanted, names)}")
        return wanted or names[0]

    def _ask(self, request: _Request) -> Any:
        """What a single request is answered with."""
        ((_, answer),) = stream_async(self._connected, self._answer, [request], 1)
        return answer

    async def _answer(self, client: Any, request: _Request) -> Any:
        """The JSON that a request is answered with; None if the answer is empty.

        Raises:
            RunFailed: after all attempts, or at once if the request itself is refused.
        """
        import httpx2

        method, trouble, pause = "GET" if request.body is None else "POST", "", 0.0
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
                wanted = seconds_to_wait(response.headers.get("retry-after"))
                pause = pause if wanted is None else min(wanted, LONGEST_PAUSE)
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
        body: to be posted; without one, the address is read.
        attempts: until a server that is busy, gone or too slow is given up.
    """

    url: str
    body: dict[str, Any] | None = None
    attempts: int = ATTEMPTS


class _Loaded:
    """What a server has loaded; shared by samplers of different temperatures.

    Attributes:
        version: number of the weights; -1 before the first.
        published: number of the newest weights that it could load.
        check: tells whether these are its weights.
        sampling_checked: whether its log-probabilities are known to be of what it samples from.
        lock: held by whoever samples, so that weights do not change below a rollout or an evaluation.
    """

    def __init__(self) -> None:
        self.version = self.published = -1
        self.check, self.sampling_checked = WeightCheck(), False
        self.lock = threading.Lock()


def _messages(conversation: Conversation) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for number, turn in enumerate(conversation):
        pictures = iter(turn.pictures)
        parts = [message_part(next(pictures) if part is None else part) for part in turn.layout]
        messages.append({"role": "user", "content": parts})
        if number < len(conversation) - 1:
            messages.append({"role": "assistant", "content": turn.reply_text})
    return messages
