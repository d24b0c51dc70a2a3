"""A vision-language model that plays and learns."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sightline.config.agents import ModelConfig
from sightline.errors import BadInput, Damaged, RunFailed
from sightline.models.device import choose_device, fast_dtype
from sightline.models.vlm import parts
from sightline.models.vlm.batches import stack
from sightline.models.vlm.loading import load_pretrained, read_weights, without_notices
from sightline.models.vlm.prompts import PromptEncoder
from sightline.models.vlm.tokens import Tokens
from sightline.models.vlm.types import ChatTurn, Prompt, Sample, TokenSequence, TokenStats

if TYPE_CHECKING:
    import torch

    from sightline.models.vlm.scoring import Batch, PolicyWithValueHead

VALUE_HEAD = "value_head.safetensors"


def load_vlm(policy: ModelConfig, value_head: bool = False, device: str | torch.device = "auto", seed: int = 0) -> VLM:
    """Load a model and prepare it for learning as a recipe says.

    Args:
        policy: name, adapters, frozen parts, types.
        value_head: whether it shall judge states.
        device: see `choose_device`.
        seed: of the first weights of adapters and value head.

    Raises:
        BadInput: there is no such model, or it cannot be used in this way.
    """
    import torch

    from sightline.models.vlm.scoring import PolicyWithValueHead

    place = choose_device(str(device))
    weights, autocast = _arithmetic(policy, place)
    options = {"quantization_config": parts.quantised(policy, place)} if policy.four_bit else {}
    processor, model = load_pretrained(policy.model, weights, **options)
    if model.get_output_embeddings() is None:
        raise BadInput(f"'{policy.model}' has no output layer for tokens; take an image-text-to-text model")
    parts.without_dropout(model)
    _make_savable(model.generation_config)
    parts.freeze(model, policy.freeze)
    tokens = Tokens(processor, model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if policy.four_bit:
            import peft

            library: Any = peft
            model = library.prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
        if policy.lora is not None:
            with without_notices():
                model = parts.with_adapters(model, policy.lora, policy.freeze)
        scorer = PolicyWithValueHead(model, tokens.banned, value_head, autocast)
    if policy.gradient_checkpointing:
        with without_notices():
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if autocast is not None:
        _exact_output_layer(model.get_output_embeddings(), place)
    scorer.to(place)
    scorer.train(policy.gradient_checkpointing)  # only then are activations computed again; there is no dropout
    return VLM(policy, scorer, processor, tokens, weights)


class VLM:
    """A model, its processor and its vocabulary.

    Attributes:
        policy: what it was loaded by.
        scorer: everything that is trained, in one module. What wraps it is called with a batch from `collate` and a
            temperature, as `score` does.
        tokens: what may be said.
    """

    def __init__(
        self, policy: ModelConfig, scorer: PolicyWithValueHead, processor: Any, tokens: Tokens, weights: torch.dtype
    ) -> None:
        self.policy, self.scorer, self.tokens = policy, scorer, tokens
        self._processor, self._weights = processor, weights
        self._encoder = PromptEncoder(processor, tokens.stops)
        tokens.stop = self._encoder.usual_stop() or tokens.stop
        self._reference: dict[str, torch.Tensor] | None = None

    @property
    def model(self) -> Any:
        """The model of Hugging Face, with its adapters if it has any."""
        return self.scorer.model

    @property
    def device(self) -> torch.device:
        return self.scorer.banned.device

    # -- reading and writing -------------------------------------------------------------------------------------------

    def encode(self, exchanges: Sequence[ChatTurn]) -> Prompt:
        """What the model reads before it replies to the last of some exchanges; see `PromptEncoder`."""
        return self._encoder.encode(exchanges)

    def unexpanded(self, exchanges: Sequence[ChatTurn]) -> list[int]:
        """Ids of the same prompt with one placeholder for each picture; see `PromptEncoder`."""
        return self._encoder.unexpanded(exchanges)

    def generate(
        self,
        prompts: Sequence[Prompt],
        uniforms: np.ndarray | None,
        temperature: float = 1.0,
        max_tokens: int = 256,
    ) -> list[Sample]:
        """Reply to prompts, all at once.

        Args:
            uniforms: float64[N, max_tokens] in [0, 1), the chance behind each token; None: greedily.
            temperature: of sampling, and of the log-probabilities that are told.
            max_tokens: of a reply; longer ones are cut off.
        """
        from sightline.models.vlm.sampling import sample

        if not prompts:
            return []
        rows = [prompt.ids for prompt in prompts]
        inputs = stack(rows, prompts, self.tokens.pad, "left", self._encoder.nested)
        placed = {
            name: tensor.to(self.device, dtype=self._weights if tensor.is_floating_point() else None)
            for name, tensor in inputs.items()
        }
        learning = self.scorer.training
        self.scorer.eval()
        try:
            with self.scorer.arithmetic():
                return sample(self.model, placed, self.tokens, self.scorer.banned, uniforms, temperature, max_tokens)
        finally:
            self.scorer.train(learning)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of a reply."""
        return self.tokens.decode(ids)

    def offsets(self, ids: Sequence[int]) -> list[tuple[int, int]]:
        """Where each token stands in `decode(ids)`; see `Tokens.offsets`."""
        return self.tokens.offsets(ids)

    # -- scoring -------------------------------------------------------------------------------------------------------

    def collate(self, passages: Sequence[TokenSequence]) -> Batch:
        """Passages as the scorer takes them, on its device."""
        from sightline.models.vlm.scoring import collate

        batch = collate(passages, self.tokens.pad, self._encoder.nested)
        return batch.to(self.device, self._weights)

    def score(self, passages: Sequence[TokenSequence], temperature: float = 1.0) -> TokenStats:
        """Log-probabilities, entropies and values of what was replied; with gradient unless it is switched off."""
        scores: TokenStats = self.scorer(self.collate(passages), temperature)
        return scores

    def keep_reference(self) -> None:
        """Remember the model as it is now: what `reference_logprobs` means by the model before RL.

        Costs the memory of the weights that learn, once more. If these are kept in shards, gather them first, here and
        for `reference_logprobs`.
        """
        self._reference = {name: values.clone() for name, values in self._learning()}

    def reference_logprobs(self, passages: Sequence[TokenSequence], temperature: float = 1.0) -> torch.Tensor:
        """Log-probabilities float32[T] under the kept model; without one, under the one that has no adapters.

        Without gradient. Weights are swapped for the time of the call, so call it before the forward pass of learning
        or after the backward pass, not between.

        Raises:
            RunFailed: nothing was kept, and there are no adapters to leave out.
        """
        import torch

        if self._reference is None and self.policy.lora is None:
            raise RunFailed("the model before RL is not there any more; keep_reference has to be called before")
        instead = self._swapped() if self._reference is not None else self.model.disable_adapter()
        with torch.no_grad(), instead:
            return self.score(passages, temperature).logprobs

    @contextlib.contextmanager
    def _swapped(self) -> Iterator[None]:
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        assert self._reference is not None
        for name, values in self._learning():
            present = values.clone()
            values.copy_(self._reference[name])
            self._reference[name].copy_(present)

    def _learning(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Weights of the model that learn; writing into them is not seen by autograd."""
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad:
                yield name, parameter.data

    # -- files ---------------------------------------------------------------------------------------------------------

    def save(self, folder: Path | str) -> None:
        """Write the model (or its adapters), processor and value head, as Hugging Face and PEFT read them.

        A reference that was kept is not written.
        """
        from safetensors.torch import save_file

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        only_adapters = {"save_embedding_layers": False} if self.policy.lora is not None else {}
        self.model.save_pretrained(folder, **only_adapters)
        self._processor.save_pretrained(folder)
        if self.scorer.value_head is not None:
            save_file(self.scorer.value_head.state_dict(), folder / VALUE_HEAD)

    def load_weights(self, folder: Path | str) -> None:
        """Take over what `save` wrote, bit for bit.

        Raises:
            BadInput: the folder holds no such model.
        """
        from safetensors.torch import load_file

        folder = Path(folder)
        if self.policy.lora is not None:
            self._load_adapters(folder)
        else:
            _take_over(self.model, read_weights(self.model, folder, self._weights), folder)
        if self.scorer.value_head is not None:
            if not (folder / VALUE_HEAD).exists():
                raise BadInput(f"'{folder}' holds no value head ({VALUE_HEAD}); it was written by another algorithm")
            with _as_damage(folder / VALUE_HEAD):
                weights = load_file(folder / VALUE_HEAD)
            _take_over(self.scorer.value_head, weights, folder)

    def _load_adapters(self, folder: Path) -> None:
        import peft

        if not (folder / "adapter_model.safetensors").exists():
            raise BadInput(f"'{folder}' holds no adapters (adapter_model.safetensors); was it written without lora?")
        with _as_damage(folder / "adapter_model.safetensors"):
            saved = peft.load_peft_weights(str(folder), device="cpu")
        expected = peft.get_peft_model_state_dict(self.model)
        if {name: values.shape for name, values in saved.items()} != {n: v.shape for n, v in expected.items()}:
            raise BadInput(f"the adapters in '{folder}' do not fit this model; were policy.lora or freeze others?")
        peft.set_peft_model_state_dict(self.model, saved)

    def merge_and_save(self, folder: Path | str) -> None:
        """Write the model with its adapters built into the weights, and the processor; this model stays as it is."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        if self.policy.lora is None:
            self.save(folder)
            return
        import copy

        if self.policy.four_bit:
            raise BadInput("weights of 4 bits cannot be merged; load the model with four_bit=false and the adapters")
        copy.deepcopy(self.model).merge_and_unload().save_pretrained(folder)
        self._processor.save_pretrained(folder)


def _arithmetic(policy: ModelConfig, device: torch.device) -> tuple[torch.dtype, torch.dtype | None]:
    """Types of the weights and of matrix products; None: that of the weights."""
    import torch

    if policy.dtype != "auto":
        chosen: torch.dtype = getattr(torch, policy.dtype)
        return chosen, None
    if device.type != "cuda":
        return torch.float32, None
    fast = fast_dtype(device)
    if policy.four_bit:
        return fast, fast  # what is not in 4 bits is float32 then
    if policy.lora is not None:
        return fast, None
    return torch.float32, None if fast == torch.float32 else fast


def _exact_output_layer(head: torch.nn.Module, device: torch.device) -> None:
    """Compute logits in float32 within autocast: those of bfloat16 are rounded to steps as large as what is clipped.

    By hooks that hold nothing of the module, so that copies of it work.
    """
    import torch

    entered: list[Any] = []

    def enter(module: Any, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        entered.append(torch.autocast(device.type, enabled=False))
        entered[-1].__enter__()
        return (arguments[0].to(module.weight.dtype), *arguments[1:])

    def leave(*_: Any) -> None:
        if entered:
            entered.pop().__exit__(None, None, None)

    head.register_forward_pre_hook(enter)
    head.register_forward_hook(leave, always_call=True)


def _make_savable(settings: Any) -> None:
    """Some models come with settings of sampling but without sampling; the library reads but does not write them."""
    try:
        settings.validate(strict=True)
    except ValueError:
        settings.do_sample = True


@contextlib.contextmanager
def _as_damage(file: Path) -> Iterator[None]:
    """Say in one line that weights cannot be read."""
    from safetensors import SafetensorError

    try:
        yield
    except (SafetensorError, OSError, ValueError) as error:
        raise Damaged(f"'{file}' is damaged: {' '.join(str(error).split())[:150]}") from error


def _take_over(module: torch.nn.Module, saved: dict[str, torch.Tensor], folder: Path) -> None:
    try:
        module.load_state_dict(saved)
    except RuntimeError as error:
        said = " ".join(str(error).split())[:200]
        raise BadInput(f"the weights in '{folder}' do not fit this model: {said}") from error
