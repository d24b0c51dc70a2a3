"""Sampler: the policy served by vLLM in this process, for large models on a GPU.

Written against the documentation and sources of vLLM 0.14 and later, and tested with a fake of its package only: it has
not been run on a GPU.
"""

from __future__ import annotations

import copy
import importlib
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from sightline.agents.samplers import Completion, Conversation, Key
from sightline.agents.samplers.vllm_common import banned_biases, check_prompt, completion_of, seed_of
from sightline.config.agents import VLLM
from sightline.errors import BadInput, RunFailed
from sightline.models.vlm.types import Prompt
from sightline.runs.temporary import TemporaryFolder

if TYPE_CHECKING:
    import torch

    from sightline.models.vlm.model import VLM


class VLLMSampler:
    """Samples replies with vLLM for a policy that is trained in this process.

    vLLM expands the placeholders of pictures by itself, so it gets prompts with one placeholder for each picture;
    expanded ones would be expanded twice. Its prompt must equal the trainer's id by id, or the run ends:
    log-probabilities under another prompt make wrong importance ratios.

    Log-probabilities come from the distribution that was sampled from (`processed_logprobs`): at the temperature, and
    without the banned tokens. They differ from the trainer's by rounding, see `losses.sampler_mismatch`.

    Args:
        vlm: the policy; it encodes prompts, decodes replies, and knows the banned tokens.
        temperature: of sampling; 0 is greedy.
        max_tokens: of a reply.
        settings: how vLLM shares the GPU with the learner.

    Raises:
        BadInput: vLLM is missing or too old.
    """

    def __init__(
        self,
        vlm: VLM,
        temperature: float = 1.0,
        max_tokens: int = 256,
        settings: VLLM | None = None,
    ) -> None:
        self._vlm = vlm
        self._vllm = _import_vllm()
        self._folder = TemporaryFolder("vllm")
        vlm.merge_and_save(self._folder.path)
        settings = settings or VLLM()
        self._llm: Any = self._vllm.LLM(
            model=str(self._folder.path),
            logprobs_mode="processed_logprobs",
            generation_config="vllm",
            seed=0,
            gpu_memory_utilization=settings.memory_share,
            max_model_len=settings.max_length,
            enforce_eager=not settings.compiled,
        )
        if not hasattr(self._llm.llm_engine, "reset_encoder_cache"):
            raise BadInput("this vLLM cannot clear what it cached with earlier weights; pip install --upgrade vllm")
        self._sampling: dict[str, Any] = {
            "temperature": temperature,
            "top_p": 1.0,
            "top_k": 0,
            "max_tokens": max_tokens,
            "logprobs": 0,  # of the sampled token alone
            "stop_token_ids": sorted(vlm.tokens.stops),
            "logit_bias": banned_biases(vlm),
        }

    def generate(self, conversations: Sequence[Conversation], keys: Sequence[Key]) -> list[Completion]:
        """See `Sampler`.

        Raises:
            RunFailed: vLLM's prompt is not the trainer's.
        """
        if not conversations:
            return []
        prompts = [self._vlm.encode(conversation) for conversation in conversations]
        inputs = [self._input(conversation) for conversation in conversations]
        sampling = [self._vllm.SamplingParams(seed=seed_of(key), **self._sampling) for key in keys]
        outputs = self._llm.generate(inputs, sampling, use_tqdm=False)
        return [self._completion(prompt, output) for prompt, output in zip(prompts, outputs, strict=True)]

    def at(self, temperature: float) -> VLLMSampler:
        """The same server with another sampling temperature."""
        other = copy.copy(self)
        other._sampling = self._sampling | {"temperature": temperature}  # noqa: SLF001  # of the same class
        return other

    def take_over_weights(self, version: int | None = None) -> None:
        """Load the present weights of the policy, adapters merged, into vLLM; see `sync`. They need no number here."""
        from safetensors.torch import load_file

        # By way of files, because the names of weights in a checkpoint are those that vLLM knows.
        self._vlm.merge_and_save(self._folder.path)
        for file in sorted(self._folder.path.glob("*.safetensors")):
            self.sync(load_file(file).items())

    def sync(self, named_parameters: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Load weights, and clear the caches, which hold values that were computed with the weights before.

        Args:
            named_parameters: (name, values) as in the model's checkpoint, adapters merged.

        Raises:
            BadInput: some of the weights are adapters.
            RunFailed: vLLM cannot clear its cache, because it is still generating.
        """
        weights = [(name, values.detach()) for name, values in named_parameters]
        if any("lora_" in name for name, _ in weights):
            raise BadInput("vLLM takes over whole weights only; merge the adapters into them before")

        def load(model: Any) -> None:
            model.load_weights(weights)

        self._llm.apply_model(load)
        if self._llm.reset_prefix_cache() is False:
            raise RunFailed("vLLM still writes replies; new weights can be taken over between rollouts only")
        self._llm.llm_engine.reset_encoder_cache()

    def _input(self, conversation: Conversation) -> dict[str, Any]:
        from PIL import Image

        images: list[Any] = []
        for turn in conversation:
            images += [Image.fromarray(picture.pixels) for picture in turn.pictures]
        prompt: dict[str, Any] = {"prompt_token_ids": self._vlm.unexpanded(conversation)}
        if images:
            prompt["multi_modal_data"] = {"image": images}
        return prompt

    def _completion(self, prompt: Prompt, output: Any) -> Completion:
        """Check vLLM's prompt, and take over the reply with its log-probabilities."""
        check_prompt(output.prompt_token_ids, prompt, "vLLM", "take policy.sampler=transformers")
        reply = output.outputs[0]
        ids = [int(token) for token in reply.token_ids]
        logprobs = [float(reply.logprobs[position][token].logprob) for position, token in enumerate(ids)]
        return completion_of(self._vlm, prompt, ids, logprobs)


def _import_vllm() -> Any:
    # In this process, or handing over weights would copy all of them between processes.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    try:
        return importlib.import_module("vllm")
    except ImportError as error:
        raise BadInput(
            f"policy.sampler=vllm needs vLLM and a GPU ({error}); pip install 'sightline[vllm]', or take transformers"
        ) from error
