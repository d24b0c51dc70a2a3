"""Sampler: the policy served by vLLM, or by other servers with its interface, in processes or on machines of their own.

    learner                                          each server
      | POST /v1/chat/completions                      |   messages, seed, banned tokens
      | <- prompt ids, reply ids, log-probabilities    |   checked: the prompt is the learner's, id by id
      |                                                |
      | weights/3/model.safetensors, then 3/READY      |   a folder that all see; the mark comes last
      | POST /collective_rpc  reload_weights           |   returns when they are loaded
      | POST /reset_prefix_cache, /reset_encoder_cache |   both hold values that the weights before have computed
      | POST /v1/chat/completions, some probes         |   checked: the answers are those of the new weights

    VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --logprobs-mode processed_logprobs --generation-config vllm

Several servers share the replies: each takes the next request when it has room. Seeds belong to requests, so who has
answered shows nowhere, up to rounding. What a lost server leaves is asked of the others; it is tried again with the
next weights, which it has to load first.

`reload_weights` is vLLM's own, and so are the fields `return_token_ids`, `prompt_token_ids` and `token_ids`; a server
of another kind has to offer the same. Written against vLLM's documentation and tested with a small server of ours that
generates; it has not been run with vLLM on a GPU.
"""

from __future__ import annotations

import contextlib
import copy
import math
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sightline.agents.samplers import Completion, Conversation, Key
from sightline.agents.samplers.policy_copy import ATTEMPTS, PolicyCopy, PolicyRequest, ServerLost
from sightline.agents.samplers.vllm_common import banned_biases, check_prompt, completion_of, seed_of
from sightline.agents.samplers.weight_check import FAR_OFF, PROBED, PROBES, probes
from sightline.config.agents import PolicyServer
from sightline.errors import BadInput, RunFailed, warn
from sightline.models.chat.openai_compatible import message_part
from sightline.models.vlm.types import Prompt, Sample, TokenSequence
from sightline.models.worker_pool import LoopThread, NoResult, WorkerPool
from sightline.rewards.base import Unavailable
from sightline.runs.temporary import TemporaryFolder

if TYPE_CHECKING:
    from sightline.models.vlm.model import VLM

READY = "READY"
"""File that says that a folder of weights is whole."""


class ServerSampler:
    """Samples replies on servers for a policy that is trained here.

    Args:
        vlm: the policy; it encodes prompts, decodes replies, and knows the banned tokens.
        settings: addresses, name and folder.
        temperature: of sampling; 0 is greedy.
        max_tokens: of a reply.

    Raises:
        BadInput: no server can be reached, or one serves another model, or cannot load weights.
    """

    def __init__(
        self, vlm: VLM, settings: PolicyServer | None = None, temperature: float = 1.0, max_tokens: int = 256
    ) -> None:
        settings = settings or PolicyServer()
        self._vlm = vlm
        self._settings = settings
        self._temperature = temperature
        self._max_tokens = max_tokens
        if settings.weights:
            self._folder = Path(settings.weights)
        else:
            self._temporary = TemporaryFolder("weights")  # which is removed with this attribute
            self._folder = self._temporary.path
        self._banned = {str(token): bias for token, bias in banned_biases(vlm).items()}
        self._loaded = _Loaded()
        self._thread = LoopThread()
        urls = settings.addresses
        self._servers = [PolicyCopy(url, settings, is_only=len(urls) == 1) for url in urls]
        self._find_models()

    def _find_models(self) -> None:
        """Ask each server which model it serves; one that does not answer is lost for now.

        Raises:
            BadInput: none answers, or one has no such model.
        """
        for server in self._servers:
            try:
                server.find_model(self._settings.model)
            except ServerLost as error:
                server.lost = str(error)
        if not self._live():
            raise BadInput(
                f"policy.sampler=server: there is no server at {', '.join(self._settings.addresses)} "
                f"({self._servers[0].lost}); start one, such as 'vllm serve', and say policy.server.url="
            )
        for server in self._servers:
            if server.lost is not None:
                warn(f"{server.lost}; the other servers begin without it")

    def _live(self) -> list[PolicyCopy]:
        """The servers that are not lost."""
        return [server for server in self._servers if server.lost is None]

    @property
    def version(self) -> int:
        """Number of the weights that the servers have loaded; -1 before the first ones."""
        return self._loaded.version

    @contextlib.contextmanager
    def with_weights(self, version: int) -> Iterator[None]:
        """Hold the servers for a rollout or an evaluation, with published weights of that number."""
        with self._loaded.lock:
            self.load(version)
            yield

    def at(self, temperature: float) -> ServerSampler:
        """The same servers with another sampling temperature."""
        other = copy.copy(self)
        other._temperature = temperature  # noqa: SLF001  # of the same class
        return other

    # -- replies -------------------------------------------------------------------------------------------------------

    def generate(self, conversations: Sequence[Conversation], keys: Sequence[Key]) -> list[Completion]:
        """See `Sampler`.

        Raises:
            Unavailable: no server is left.
            RunFailed: an answer is not what the learner can learn from.
        """
        if not conversations:
            return []
        prompts = [self._vlm.encode(conversation) for conversation in conversations]
        requests = []
        for conversation, key in zip(conversations, keys, strict=True):
            requests.append(self._request(conversation, seed_of(key), self._temperature, self._max_tokens))
        # Answers come in any order.
        answers = self._answers(requests)
        completions = []
        for number, prompt in enumerate(prompts):
            server, answer = answers[number]
            completions.append(self._completion(server, prompt, answer))
        return completions

    def _answers(self, requests: Sequence[PolicyRequest]) -> dict[int, tuple[PolicyCopy, Any]]:
        """Have the servers answer requests, each as many at a time as it may; by the requests' numbers.

        Raises:
            Unavailable: no server is left.
        """
        answers: dict[int, tuple[PolicyCopy, Any]] = {}
        servers = self._live()

        async def never_again(server: PolicyCopy) -> None:
            """What has failed in all attempts is not asked again before the next weights."""
            raise NoResult(server.lost, is_final=True)

        async def share() -> None:
            async with contextlib.AsyncExitStack() as stack:
                clients = {server: await stack.enter_async_context(server.connected()) for server in servers}

                async def work(server: PolicyCopy, number: int) -> None:
                    try:
                        answers[number] = server, await server.answer(clients[server], requests[number])
                    except ServerLost as error:
                        server.lost = server.lost or str(error)
                        raise NoResult(error, is_final=True) from error

                at_once = self._settings.concurrency
                pool = WorkerPool(servers, never_again, at_once=at_once, retries=0, first_wait=0.0)
                await pool.carry_out(len(requests), work)

        if servers:
            with contextlib.suppress(NoResult):
                self._thread.result(share())
        self._say_lost(servers)
        return answers

    def _say_lost(self, before: Sequence[PolicyCopy]) -> None:
        """Say which servers are newly lost.

        Raises:
            Unavailable: no server is left.
        """
        lost = [server for server in before if server.lost is not None]
        if not self._live():
            reason = lost[-1].lost if lost else self._servers[-1].lost
            if len(self._servers) == 1:
                raise Unavailable(str(reason))
            raise Unavailable(f"none of {len(self._servers)} servers samples replies any more: {reason}")
        for server in lost:
            warn(f"{server.lost}; the other servers go on, and it is tried again with the next weights")

    def _request(self, conversation: Conversation, seed: int, temperature: float, max_tokens: int) -> PolicyRequest:
        body = {
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
        return PolicyRequest("chat/completions", body)

    def _completion(self, server: PolicyCopy, prompt: Prompt, answer: Any) -> Completion:
        """Check an answer, and take over the reply.

        Raises:
            RunFailed: it is of another model or prompt, or holds no usable reply.
        """
        try:
            model = answer["model"]
            prompt_ids = answer.get("prompt_token_ids")
            choice = answer["choices"][0]
            ids = choice.get("token_ids")
            content = (choice.get("logprobs") or {}).get("content") or ()
            logprobs = [float(token["logprob"]) for token in content]
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise RunFailed(f"{server.where} answers no chat completion: {str(answer)[:80]}") from error
        if model != server.model:
            raise RunFailed(f"{server.where} answers as '{model}' where '{server.model}' was asked")

        # Importance ratios need the very tokens, and their probability under the very prompt.
        if prompt_ids is None or ids is None:
            raise RunFailed(f"{server.where} does not say token ids; take a vLLM that knows return_token_ids")
        advice = "its model or chat template is another one (or rollouts.window shows replies that it spells otherwise)"
        check_prompt(prompt_ids, prompt, server.where, advice)
        if not all(map(self._may_be_sampled, ids)):
            raise RunFailed(f"{server.where} has sampled tokens that were banned, or that there are not")
        # A log-probability above 0 by more than rounding is none.
        if len(logprobs) != len(ids) or not all(math.isfinite(logprob) and logprob < 1e-3 for logprob in logprobs):
            raise RunFailed(
                f"{server.where} gives {len(logprobs)} log-probabilities for {len(ids)} tokens, or such as are none"
            )
        completion = completion_of(self._vlm, prompt, ids, logprobs, server.version)
        if choice.get("finish_reason") == "stop" and not completion.sample.finished:
            raise RunFailed(f"{server.where} leaves out the token that ends a reply, whose probability is part of it")
        return completion

    def _may_be_sampled(self, token: Any) -> bool:
        """Whether something is the id of a token that is not banned."""
        banned = self._vlm.tokens.banned
        return isinstance(token, int) and 0 <= token < len(banned) and not banned[token]

    # -- weights -------------------------------------------------------------------------------------------------------

    def publish(self, version: int, keep: int = 2) -> None:
        """Write the present weights of the policy, adapters merged, where the servers can read them.

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
        expected = self._probe_policy()
        for server in self._servers:
            server.check.expect(version, expected)
        for folder in self._folder.iterdir():
            is_weights = folder.name.isdecimal() and (folder / READY).exists()
            if is_weights and int(folder.name) <= version - keep:
                shutil.rmtree(folder, ignore_errors=True)
                for server in self._servers:
                    server.check.forget(int(folder.name))

    def load(self, version: int) -> None:
        """Have each server load published weights, unless it has them; a lost one, too, if it is there again.

        Raises:
            Unavailable: no server is left.
            RunFailed: a server cannot, or has other weights afterwards.
        """
        if version != self.version:
            # How the others sample has not been compared with the policy.
            self._load([server for server in self._servers if server.sampling_checked], version)

    def _load(self, servers: Sequence[PolicyCopy], version: int) -> None:
        """Have servers load weights, all at the same time; one that does not answer is lost, one that does is not.

        Raises:
            Unavailable: no server is left.
            RunFailed: a server cannot, or has other weights afterwards.
        """
        before = self._live()
        path = str((self._folder / str(version)).resolve())
        requests = self._probe_requests(0.0)

        def attempt(server: PolicyCopy) -> dict[int, Any]:
            """Answers to the probes with the new weights; none of a server that is lost."""
            try:
                if not server.model:  # it has never answered
                    server.find_model(self._settings.model)
                # Nobody waits long for a server that was lost before.
                server.load(path, 1 if server.lost is not None else ATTEMPTS)
                answers = server.ask_all(requests, PROBES)
            except ServerLost as error:
                server.lost = str(error)
                return {}
            server.version = version
            server.lost = None
            return answers

        with ThreadPoolExecutor(len(self._servers), thread_name_prefix="servers") as threads:
            answers_of_all = list(threads.map(attempt, servers))
        self._say_lost(before)
        self._loaded.version = version
        for server, answers in zip(servers, answers_of_all, strict=True):
            if answers:
                server.check.compare(version, self._probe_samples(server, answers), server.where)

    def take_over_weights(self, version: int | None = None) -> None:
        """Publish the present weights of the policy and have the servers load them.

        Args:
            version: their number; by default the next one.
        """
        if version is None:
            version = self._loaded.published + 1
        self.publish(version)
        # The servers may have other weights of that number, from before a resumption.
        self._load(self._servers, version)
        servers = self._live()
        for server in servers:
            if server.sampling_checked:
                continue
            try:
                self._check_sampling(server)
            except ServerLost as error:
                server.lost = str(error)
        self._say_lost(servers)

    def _check_sampling(self, server: PolicyCopy) -> None:
        """Compare log-probabilities at a temperature with those of the policy, whose present weights the server has.

        Raises:
            ServerLost: it does not answer.
            RunFailed: they are far off: they are not of the distribution that is sampled from.
        """
        import torch

        # At 1 the raw log-probabilities of vLLM are those of the distribution that it samples from; elsewhere not.
        temperature = 2.0
        samples = self._probe_samples(server, server.ask_all(self._probe_requests(temperature), PROBES))
        sequences = []
        for probe, sample in zip(probes(self._vlm.reads_pictures), samples, strict=True):
            sequences.append(TokenSequence.of_reply(self._vlm.encode(probe), sample.ids))
        with torch.no_grad():
            expected = self._vlm.score(sequences, temperature).logprobs.float().cpu().numpy()
        logprobs = np.concatenate([sample.logprobs for sample in samples])
        gap = float(np.abs(expected - logprobs).mean())
        if gap > FAR_OFF:
            raise RunFailed(
                f"the log-probabilities of {server.where} are not those that it samples from: at temperature "
                f"{temperature:g} they are {gap:.1f} nats a token off; start vLLM with --logprobs-mode "
                "processed_logprobs"
            )
        server.sampling_checked = True

    def _probe_policy(self) -> list[Sample]:
        """The policy's greedy answers to the probes."""
        prompts = [self._vlm.encode(conversation) for conversation in probes(self._vlm.reads_pictures)]
        return self._vlm.generate(prompts, None, 1.0, min(PROBED, self._max_tokens))

    def _probe_requests(self, temperature: float) -> list[PolicyRequest]:
        """Requests of the probes; at temperature 0 the answers are greedy."""
        max_tokens = min(PROBED, self._max_tokens)
        return [self._request(probe, 0, temperature, max_tokens) for probe in probes(self._vlm.reads_pictures)]

    def _probe_samples(self, server: PolicyCopy, answers: Mapping[int, Any]) -> list[Sample]:
        """A server's replies to the probes, checked."""
        samples = []
        for number, probe in enumerate(probes(self._vlm.reads_pictures)):
            samples.append(self._completion(server, self._vlm.encode(probe), answers[number]).sample)
        return samples


class _Loaded:
    """Weights of the servers; shared by samplers of different temperatures.

    Attributes:
        version: number of the weights that they have loaded; -1 before the first ones.
        published: number of the newest weights that they could load.
        lock: held during a rollout or an evaluation, so that the weights do not change meanwhile.
    """

    def __init__(self) -> None:
        self.version = -1
        self.published = -1
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
