"""Sampler: the policy served by vLLM, or by another server with its interface, in a process or on a machine of its own.

    learner                                          server
      | POST /v1/chat/completions                      |   messages, seed, banned tokens
      | <- prompt ids, reply ids, log-probabilities    |   checked: the prompt is the learner's, id by id
      |                                                |
      | weights/3/model.safetensors, then 3/READY      |   a folder that both see; the mark comes last
      | POST /collective_rpc  reload_weights           |   returns when they are loaded
      | POST /reset_prefix_cache, /reset_encoder_cache |   what was computed with the ones before is forgotten

    VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --logprobs-mode processed_logprobs --generation-config vllm

`reload_weights` is vLLM's own, and so are the fields `return_token_ids`, `prompt_token_ids` and `token_ids`; a server
of another kind has to offer the same. Written against vLLM's documentation and tested with a small server of ours that
generates; it has not been run with vLLM on a GPU.
"""

from __future__ import annotations

import contextlib
import copy
import math
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as Late
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sightline.agents.samplers import Completion, Conversation, Key
from sightline.agents.samplers.served import banned_biases, check_prompt, completion_of, seed_of
from sightline.config.agents import PolicyServer
from sightline.errors import BadInput, RunFailed, nearest
from sightline.models.chat.calling import seconds_to_wait
from sightline.models.chat.endpoints import read_key, resolve_endpoint
from sightline.models.chat.openai_compatible import complaint, message_part
from sightline.models.vlm.types import Prompt, Sample, TokenSequence, TurnSpan

if TYPE_CHECKING:
    from sightline.models.vlm.model import VLM

READY = "READY"
"""File that says that a folder of weights is whole."""
ATTEMPTS, PAUSE, LONGEST_PAUSE = 4, 0.5, 30.0
"""Times that a request is sent if the server is busy or the connection breaks; seconds before the second time, four
times as long before each further one; and at most, if the server says how long to wait."""
CHECKED = 8
"""Replies whose log-probabilities are compared with the policy's own after new weights were loaded."""
FAR_OFF = 0.5
"""Mean difference, in nats, between the server's and the learner's log-probabilities of the same tokens from which on
the server is said to serve something else; rounding makes some thousandths."""


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
        self._url, self._key = place.url, None if place.key_env is None else read_key(place.key_env)
        self._temporary = None if self._settings.weights else tempfile.TemporaryDirectory(prefix="sightline-weights-")
        self._folder = Path(self._settings.weights or self._temporary.name)  # type: ignore[union-attr]
        self._banned = {str(token): bias for token, bias in banned_biases(vlm).items()}
        self._loaded = _Loaded()
        self._client = self._connected()
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
        other._temperature = temperature
        return other

    # -- replies -------------------------------------------------------------------------------------------------------

    def generate(self, conversations: Sequence[Conversation], keys: Sequence[Key]) -> list[Completion]:
        """See `Sampler`.

        Raises:
            RunFailed: the server is gone or too slow, or its answer is not what the learner can learn from.
        """
        if not conversations:
            return []
        prompts = [self._vlm.encode(conversation) for conversation in conversations]
        with ThreadPoolExecutor(min(self._settings.concurrency, len(prompts))) as pool:
            waiting = [
                pool.submit(self._reply, conversation, prompt, key)
                for conversation, prompt, key in zip(conversations, prompts, keys, strict=True)
            ]
            try:
                return [future.result() for future in waiting]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _reply(self, conversation: Conversation, prompt: Prompt, key: Key) -> Completion:
        body = {
            "model": self._model,
            "messages": _messages(conversation),
            "max_tokens": self._max_tokens,
            "temperature": self._temperature,
            "top_p": 1.0,
            "seed": seed_of(key),
            "logprobs": True,
            "top_logprobs": 0,
            "return_token_ids": True,
            "stop_token_ids": sorted(self._vlm.tokens.stops),
            "logit_bias": self._banned,
        }
        return self._completion(prompt, self._answer(f"{self._url}/chat/completions", body))

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
        return completion_of(self._vlm, prompt, ids, logprobs, self.version)

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
            self._loaded.published = version
        except OSError as error:
            raise RunFailed(f"weights for the server cannot be written to '{folder}': {error.strerror}") from error
        for old in self._folder.iterdir():
            if old.name.isdecimal() and (old / READY).exists() and int(old.name) <= version - keep:
                shutil.rmtree(old, ignore_errors=True)

    def load(self, version: int) -> None:
        """Have the server load published weights, unless it has them.

        Raises:
            RunFailed: it cannot.
        """
        if version == self.version:
            return
        root = self._url.removesuffix("/v1")
        path = str((self._folder / str(version)).resolve())
        self._answer(f"{root}/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": path}})
        for cache in ("prefix", "encoder"):  # of prompts, and of pictures
            self._answer(f"{root}/reset_{cache}_cache", {})
        self._loaded.version, self._loaded.checked = version, False

    def take_over_weights(self, version: int | None = None) -> None:
        """Publish the present weights of the policy and have the server load them.

        Args:
            version: their number; by default the next one.
        """
        version = self._loaded.published + 1 if version is None else version
        self.publish(version)
        self._loaded.version = -1  # equal numbers may be other weights: of a run that was resumed
        self.load(version)

    def check_weights(self, replies: Sequence[tuple[Prompt, Sample]]) -> None:
        """Compare some replies' log-probabilities with the policy's own, once after each loading.

        Args:
            replies: sampled with the present weights of the policy, at the temperature of this sampler.

        Raises:
            RunFailed: they are far off: the server serves other weights, or another model.
        """
        import torch

        if self._loaded.checked or not replies or not self._temperature:
            return
        sequences = []
        for prompt, sample in replies[:CHECKED]:
            start = len(prompt.ids)
            sequences.append(TokenSequence(prompt, sample.ids, (TurnSpan(start, start + len(sample.ids)),)))
        with torch.no_grad():
            own = self._vlm.score(sequences, self._temperature).logprobs.float().cpu().numpy()
        gap = float(np.abs(own - np.concatenate([sample.logprobs for _, sample in replies[:CHECKED]])).mean())
        if gap > FAR_OFF:
            raise RunFailed(
                f"the server at {self._url} finds its replies {gap:.1f} nats a token more or less probable than the "
                "policy does: it serves older weights or another model, or its log-probabilities are not those that it "
                "samples from (vLLM: --logprobs-mode processed_logprobs)"
            )
        self._loaded.checked = True

    # -- HTTP ----------------------------------------------------------------------------------------------------------

    def _connected(self) -> Any:
        import httpx2

        headers = {} if self._key is None else {"Authorization": f"Bearer {self._key}"}
        limits = httpx2.Limits(max_connections=None)
        return httpx2.Client(headers=headers, timeout=self._settings.timeout, limits=limits)

    def _served_model(self) -> str:
        """Name of the model to ask for."""
        try:
            listed = self._answer(f"{self._url}/models", attempts=1)
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

    def _answer(self, url: str, body: dict[str, Any] | None = None, attempts: int = ATTEMPTS) -> Any:
        """The JSON that a request is answered with; None if the answer is empty.

        Args:
            body: to be posted; without one, the address is read.
            attempts: until a server that is busy, gone or too slow is given up.

        Raises:
            RunFailed: after all attempts, or at once if the request itself is refused.
        """
        import httpx2

        method, trouble, pause = "GET" if body is None else "POST", "", 0.0
        for attempt in range(attempts):
            time.sleep(pause)
            pause = PAUSE * 4**attempt
            # A thread of its own: the client's time limit is for a single read, and a server can stall between many.
            pool = ThreadPoolExecutor(1)
            try:
                request = pool.submit(self._client.request, method, url, json=body)
                response = request.result(timeout=self._settings.timeout)
                text = response.content.decode("utf-8", errors="replace")
                if response.status_code == 200:
                    return response.json() if text.strip() else None
                trouble = f"status {response.status_code}: {complaint(text)}"
                wanted = seconds_to_wait(response.headers.get("retry-after"))
                pause = pause if wanted is None else min(wanted, LONGEST_PAUSE)
                if response.status_code < 500 and response.status_code not in (408, 409, 429):
                    break
            except Late:
                trouble = f"no whole answer within {self._settings.timeout:g} s (policy.server.timeout)"
            except httpx2.HTTPError as error:
                trouble = f"{type(error).__name__}: {error}"
            except ValueError:
                trouble = "its answer is no JSON"
            finally:
                pool.shutdown(wait=False)
        raise RunFailed(f"{method} {url}: {trouble}")


class _Loaded:
    """What a server has loaded; shared by samplers of different temperatures.

    Attributes:
        version: number of the weights; -1 before the first.
        published: number of the newest weights that it could load.
        checked: whether their log-probabilities were compared with the policy's.
        lock: held by whoever samples, so that weights do not change below a rollout or an evaluation.
    """

    def __init__(self) -> None:
        self.version = self.published = -1
        self.checked = False
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
