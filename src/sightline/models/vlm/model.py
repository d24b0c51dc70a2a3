"""A trainable model, of vision and language or of language alone: load, generate, score, save."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sightline.config.agents import LoRA, TrainablePart, WeightType
from sightline.errors import BadInput, Damaged, RunFailed
from sightline.models.device import choose_device, fast_dtype
from sightline.models.sentences import LONGEST
from sightline.models.vlm import parts
from sightline.models.vlm.batches import stack
from sightline.models.vlm.loading import load_pretrained, read_weights, weights_known, without_future_warnings
from sightline.models.vlm.prompts import PromptEncoder
from sightline.models.vlm.shared_prompts import can_share, common_prefix, is_worth_sharing
from sightline.models.vlm.tokens import Tokens
from sightline.models.vlm.types import ChatTurn, Prompt, Sample, TokenSequence, TokenStats
from sightline.requirements import keep_llvms_apart

if TYPE_CHECKING:
    import torch

    from sightline.models.vlm.scoring import Batch, PolicyWithValueHead

VALUE_HEAD = "value_head.safetensors"


def load_vlm(
    model_name: str = "bundled",
    *,
    lora: LoRA | None = None,
    freeze: tuple[TrainablePart, ...] = (),
    dtype: WeightType = "auto",
    four_bit: bool = False,
    gradient_checkpointing: bool = False,
    value_head: bool = False,
    device: str | torch.device = "auto",
    seed: int = 0,
) -> VLM:
    """Load a model and prepare it for training.

    Args:
        model_name: `bundled`, `owner/name` on the Hugging Face hub, or a folder.
        lora: adapters to be trained instead of the weights.
        freeze: parts that do not learn: `vision`, `projector`, `language`.
        dtype: data type of the weights; `auto` chooses by device and adapters.
        four_bit: quantise the weights to 4 bits (NF4); needs a GPU and `lora`.
        gradient_checkpointing: recompute activations in the backward pass to save memory.
        value_head: add a value head, as PPO needs it.
        device: see `choose_device`.
        seed: seed of the initial weights of adapters and value head.

    Raises:
        BadInput: there is no such model, or it cannot be trained as configured.
    """
    keep_llvms_apart()  # an environment may have drawn before
    import torch

    from sightline.models.vlm.scoring import PolicyWithValueHead

    torch_device = choose_device(str(device), weights_known(model_name, four_bit))
    weights, autocast = _dtypes(dtype, torch_device, lora is not None, four_bit)
    options = {}
    if four_bit:
        options["quantization_config"] = parts.quantised(torch_device, lora is not None)
    processor, model = load_pretrained(model_name, weights, **options)
    if model.get_output_embeddings() is None:
        raise BadInput(f"'{model_name}' has no output layer for tokens; take one that writes replies")
    parts.without_dropout(model)
    try:
        model.generation_config.validate(strict=True)
    except ValueError:
        # Some models come with a temperature but without `do_sample`, which the library reads but refuses to write.
        model.generation_config.do_sample = True
    parts.freeze(model, freeze)
    tokens = Tokens(processor, model)
    # Adapters and value head start from the run's seed, without touching the process's own random state.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if four_bit:
            import peft

            library: Any = peft
            model = library.prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
        if lora is not None:
            with without_future_warnings():
                model = parts.with_adapters(model, lora, freeze)
        scorer = PolicyWithValueHead(model, tokens.banned, value_head, autocast)
    if gradient_checkpointing:
        with without_future_warnings():
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if autocast is not None:
        _float32_output_layer(model.get_output_embeddings(), torch_device)
    scorer.to(torch_device)
    # Transformers recomputes activations in training mode only; nothing else depends on the mode, as dropout is off.
    scorer.train(gradient_checkpointing)
    # Under gradient checkpointing Transformers has no cache of keys and values, which sharing needs.
    shares_prompts = can_share(model) and not gradient_checkpointing
    return VLM(
        scorer,
        processor,
        tokens,
        weights,
        lora=lora,
        freeze=freeze,
        four_bit=four_bit,
        shares_prompts=shares_prompts,
    )


class VLM:
    """A model with its processor, its vocabulary and, for PPO, a value head.

    Attributes:
        scorer: everything that is trained, in one module. Wrappers of it (DDP, FSDP) are called with a batch from
            `collate` and a temperature, as in `score`.
        tokens: the vocabulary: stop tokens and banned tokens.
        lora: adapters that are trained instead of the weights, if any.
        freeze: parts that do not learn.
        four_bit: whether the weights are quantised.
        shares_prompts: whether a prompt of several replies is read once when they are scored.
        shares_prefixes: whether what all prompts of a batch begin with is read once: by language models. Others count
            positions of pictures in ways of their own.
        merges_adapters: whether adapters are merged while replies are sampled: on a CPU. On a GPU a second copy of the
            weights may not fit.
        replies_at_once: number of replies that memory suffices for; None as long as it has not run out.
    """

    def __init__(
        self,
        scorer: PolicyWithValueHead,
        processor: Any,
        tokens: Tokens,
        weights: torch.dtype,
        *,
        lora: LoRA | None = None,
        freeze: tuple[TrainablePart, ...] = (),
        four_bit: bool = False,
        shares_prompts: bool = False,
    ) -> None:
        self.scorer = scorer
        self.tokens = tokens
        self.lora = lora
        self.freeze = freeze
        self.four_bit = four_bit
        self.shares_prompts = shares_prompts
        self.merges_adapters = lora is not None and not four_bit and scorer.banned.device.type == "cpu"
        self.replies_at_once: int | None = None
        self._processor = processor
        self._weights = weights
        self._positions = int(getattr(self.model.config.get_text_config(), "max_position_embeddings", None) or LONGEST)
        self._encoder = PromptEncoder(processor, tokens.stops)
        self.shares_prefixes = shares_prompts and not self._encoder.reads_pictures
        self._reference: dict[str, torch.Tensor] | None = None

    @property
    def model(self) -> Any:
        """The Hugging Face model, wrapped by PEFT if it has adapters."""
        return self.scorer.model

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.scorer.banned.device

    @property
    def exact(self) -> bool:
        """True if all is computed in float32, so that sampling and scoring agree on log-probabilities."""
        import torch

        return self.scorer.autocast is None and self._weights == torch.float32

    @property
    def reads_pictures(self) -> bool:
        """False for a language model."""
        return self._encoder.reads_pictures

    # -- prompts and sampling ------------------------------------------------------------------------------------------

    def encode(self, turns: Sequence[ChatTurn], system: str = "", beginning: Sequence[int] = ()) -> Prompt:
        """Build the prompt for a reply to the last of some turns; see `PromptEncoder`."""
        return self._encoder.encode(turns, system, beginning)

    def unexpanded(self, turns: Sequence[ChatTurn]) -> list[int]:
        """Token ids of the same prompt with one placeholder per picture; see `PromptEncoder`."""
        return self._encoder.unexpanded(turns)

    def generate(
        self,
        prompts: Sequence[Prompt],
        uniforms: np.ndarray | None,
        temperature: float = 1.0,
        max_tokens: int = 256,
        **further: Any,
    ) -> list[Sample]:
        """Sample a reply to each prompt, in one batch.

        Args:
            prompts: N prompts.
            uniforms: float64[N, max_tokens] in [0, 1), the random number behind each token; None decodes greedily.
            temperature: temperature of sampling and of the returned log-probabilities.
            max_tokens: token limit of a reply; longer replies are truncated.
            further: `alternatives`, `stop`, `options`, `truncation` and `of` of `sampling.sample`.

        Raises:
            BadInput: a prompt is longer than the model reads.
            RunFailed: the model's probabilities are not finite.
        """
        from sightline.models.vlm.merging import merged_adapters
        from sightline.models.vlm.sampling import sample

        if not prompts:
            return []
        self.check_prompts(prompts, max_tokens)
        rows = [prompt.ids for prompt in prompts]
        # Options may look at whole prompts, such as their n-grams, in which padding would be a gap.
        prefix = 0 if further.get("options") else self._prefix_to_share(prompts)
        inputs = stack(rows, prompts, self.tokens.pad, "left", self._encoder.nested, prefix)
        for name, tensor in inputs.items():
            dtype = self._weights if tensor.is_floating_point() else None
            inputs[name] = tensor.to(self.device, dtype=dtype)
        # In training mode with gradient checkpointing, Transformers would switch off the key-value cache.
        was_training = self.scorer.training
        self.scorer.eval()
        merged = merged_adapters(self.model) if self.merges_adapters else contextlib.nullcontext()
        try:
            with merged, self.scorer.arithmetic():
                return sample(
                    self.model,
                    inputs,
                    self.tokens,
                    self.scorer.banned,
                    uniforms,
                    temperature,
                    max_tokens,
                    prefix=prefix,
                    **further,
                )
        finally:
            self.scorer.train(was_training)

    def _prefix_to_share(self, prompts: Sequence[Prompt]) -> int:
        """Tokens with which all prompts begin; 0 if reading them once saves less than the further pass costs."""
        if not self.shares_prefixes:
            return 0
        prefix = common_prefix(prompts)
        tokens = sum(len(prompt.ids) for prompt in prompts)
        return prefix if is_worth_sharing(prefix, len(prompts), tokens, tokens) else 0

    def room_for_reply(self, prompts: Sequence[Prompt]) -> int:
        """Tokens that the model can read and write after the longest of the prompts, at least 1."""
        return max(self._positions - max(len(prompt.ids) for prompt in prompts), 1)

    def check_prompts(self, prompts: Sequence[Prompt], max_tokens: int) -> None:
        """Refuse prompts that leave no room for a reply of so many tokens, as some models have no further positions, or
        that hold a token which the model does not know.

        Raises:
            BadInput: with the tokens of the longest and those that the model reads; or the token.
        """
        largest = max(int(prompt.ids.max(initial=0)) for prompt in prompts)
        rows = len(self.scorer.banned)
        if largest >= rows and not self.reads_pictures:  # else it may be a picture's place, which is not looked up
            word = self._processor.tokenizer.decode([largest])
            raise BadInput(
                f"the tokenizer has a token for '{word}' (id {largest}), and the model knows {rows}: have it learn the "
                "others by its resize_token_embeddings(len(tokenizer)), and save it again"
            )
        longest = max(len(prompt.ids) for prompt in prompts)
        if longest + max_tokens > self._positions:
            raise BadInput(
                f"a prompt has {longest} tokens, pictures included, and its reply up to {max_tokens}; the model reads "
                f"{self._positions} in all: show it smaller or fewer pictures, less text, or fewer earlier turns "
                "(rollouts.window, rollouts.prompt_tokens), or lower replies.max_tokens"
            )

    def decode(self, ids: Sequence[int]) -> str:
        """Decode a reply's token ids to text, leaving out special and stop tokens."""
        return self.tokens.decode(ids)

    def offsets(self, ids: Sequence[int]) -> list[tuple[int, int]]:
        """Character span (start, end) of each token in `decode(ids)`; see `Tokens.offsets`."""
        return self.tokens.offsets(ids)

    # -- scoring -------------------------------------------------------------------------------------------------------

    def collate(self, sequences: Sequence[TokenSequence]) -> Batch:
        """Pad and batch sequences for the scorer, on its device."""
        from sightline.models.vlm.scoring import collate

        batch = collate(sequences, self.tokens.pad, self._encoder.nested, self.shares_prompts, self.shares_prefixes)
        return batch.to(self.device, self._weights)

    def score(self, sequences: Sequence[TokenSequence], temperature: float = 1.0) -> TokenStats:
        """Log-probabilities, entropies and values of the replies, in one forward pass; with gradient if enabled."""
        scores: TokenStats = self.scorer(self.collate(sequences), temperature)
        return scores

    def keep_reference(self) -> None:
        """Keep a copy of the trainable weights: the reference policy of `reference_logprobs`.

        Takes the memory of the trainable weights once more. Sharded weights (FSDP) have to be gathered first, here and
        for `reference_logprobs`.
        """
        self._reference = {name: parameter.data.clone() for name, parameter in self._trainable()}

    def reference_logprobs(self, sequences: Sequence[TokenSequence], temperature: float = 1.0) -> torch.Tensor:
        """Log-probabilities float32[T] under the reference policy, without gradient.

        The reference policy is the copy made by `keep_reference`, or else the model with its adapters disabled. Weights
        are swapped during the call, so call it before the forward pass of an update or after its backward pass, never
        in between.

        Raises:
            RunFailed: there is neither a copy nor an adapter to disable.
        """
        import torch

        if self._reference is None and self.lora is None:
            raise RunFailed("there is no reference policy; call keep_reference before training")
        with torch.no_grad(), self._as_reference():
            return self.score(sequences, temperature).logprobs

    @contextlib.contextmanager
    def _as_reference(self) -> Iterator[None]:
        """Within the context, the model is the reference policy."""
        if self._reference is None:
            with self.model.disable_adapter():
                yield
            return
        self._swap_with(self._reference)
        try:
            yield
        finally:
            self._swap_with(self._reference)

    def _swap_with(self, reference: dict[str, torch.Tensor]) -> None:
        # Nothing is copied, so it takes no memory, and cannot run out of it and leave a mixture of both.
        for name, parameter in self._trainable():
            own = parameter.data
            parameter.data = reference[name]
            reference[name] = own

    def _trainable(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Trainable parameters with their names."""
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad:
                yield name, parameter

    # -- files ---------------------------------------------------------------------------------------------------------

    def save(self, folder: Path | str) -> None:
        """Save the model (or its adapters), processor and value head in the formats of Hugging Face and PEFT.

        The reference policy is not saved.
        """
        from safetensors.torch import save_file

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        # PEFT would save the embeddings beside the adapters where it takes them for changed.
        options = {"save_embedding_layers": False} if self.lora is not None else {}
        self.model.save_pretrained(folder, **options)
        self._processor.save_pretrained(folder)
        if self.scorer.value_head is not None:
            save_file(self.scorer.value_head.state_dict(), folder / VALUE_HEAD)

    def load_weights(self, folder: Path | str) -> None:
        """Load weights that `save` wrote, bit for bit.

        Raises:
            BadInput: the folder holds another model, or no adapters or value head where this model has them.
            Damaged: the files cannot be read.
        """
        from safetensors.torch import load_file

        folder = Path(folder)
        if self.lora is not None:
            self._load_adapters(folder)
        else:
            _load_state(self.model, read_weights(self.model, folder, self._weights), folder)
        if self.scorer.value_head is not None:
            if not (folder / VALUE_HEAD).exists():
                raise BadInput(f"'{folder}' holds no value head ({VALUE_HEAD}); it was written by another algorithm")
            with _unreadable_as_damaged(folder / VALUE_HEAD):
                weights = load_file(folder / VALUE_HEAD)
            _load_state(self.scorer.value_head, weights, folder)

    def _load_adapters(self, folder: Path) -> None:
        import peft

        if not (folder / "adapter_model.safetensors").exists():
            raise BadInput(f"'{folder}' holds no adapters (adapter_model.safetensors); was it written without lora?")
        with _unreadable_as_damaged(folder / "adapter_model.safetensors"):
            saved = peft.load_peft_weights(str(folder), device="cpu")
        expected = peft.get_peft_model_state_dict(self.model)
        saved_shapes = {name: tensor.shape for name, tensor in saved.items()}
        expected_shapes = {name: tensor.shape for name, tensor in expected.items()}
        if saved_shapes != expected_shapes:
            raise BadInput(
                f"the adapters in '{folder}' do not fit this model; were they trained with another policy.lora or "
                "policy.freeze?"
            )
        peft.set_peft_model_state_dict(self.model, saved)

    def merge_and_save(self, folder: Path | str) -> None:
        """Save a copy of the model with its adapters merged into the weights, and the processor.

        The folder is for others, which read all weights in it as the model's: there is no value head among them.

        Raises:
            BadInput: the weights are quantised to 4 bits.
        """
        import copy

        if self.four_bit:
            raise BadInput(
                "adapters cannot be merged into 4-bit weights; load the model and the adapters with four_bit=false"
            )
        merged = self.model
        if self.lora is not None:
            # A copy on the CPU: a second model may not fit on the GPU beside the first. `deepcopy` takes what it copies
            # from its second argument where that has it already.
            tensors = (*self.model.parameters(), *self.model.buffers())
            copies = {id(tensor): _copied_to_cpu(tensor) for tensor in tensors}
            merged = copy.deepcopy(self.model, copies).merge_and_unload()
        merged.save_pretrained(Path(folder))
        self._processor.save_pretrained(Path(folder))


def _dtypes(
    dtype: WeightType, device: torch.device, has_adapters: bool, four_bit: bool
) -> tuple[torch.dtype, torch.dtype | None]:
    """Dtype of the weights, and dtype of autocast (None: no autocast).

    Weights of bfloat16 come with autocast, since the output layer is in float32 among them.
    """
    import torch

    fast: torch.dtype = torch.float32
    if dtype != "auto":
        fast = getattr(torch, dtype)
    elif device.type == "cuda":
        fast = fast_dtype(device)
    if fast == torch.float32:
        return fast, None
    # Where all weights are trained, in bfloat16 the steps of the usual learning rates would be rounded away. Of 4-bit
    # models PEFT casts the layers that are not quantised to float32.
    weights = fast if has_adapters or four_bit or dtype != "auto" else torch.float32
    return weights, fast


def _float32_output_layer(head: torch.nn.Module, device: torch.device) -> None:
    """Keep the output layer in float32, with embeddings that share its weight, and compute logits so within autocast.

    bfloat16 has 8 bits of precision: a logit near 16 is rounded to steps of 1/8, about the size of PPO's clip range.
    """
    import torch

    head.float()
    # The hooks refer to no part of the module, so that deep copies of the model work.
    contexts: list[Any] = []

    def enter(module: Any, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        context: Any = torch.autocast(device.type, enabled=False)
        contexts.append(context)
        context.__enter__()
        return (arguments[0].to(module.weight.dtype), *arguments[1:])

    def leave(*_: Any) -> None:
        if contexts:
            contexts.pop().__exit__(None, None, None)

    head.register_forward_pre_hook(enter)
    head.register_forward_hook(leave, always_call=True)


def _copied_to_cpu(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    values = tensor.detach().to("cpu", copy=True)
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(values, requires_grad=False)
    return values


@contextlib.contextmanager
def _unreadable_as_damaged(file: Path) -> Iterator[None]:
    """Raise `Damaged`, in one line, if the weights of a file cannot be read."""
    from safetensors import SafetensorError

    try:
        yield
    except (SafetensorError, OSError, ValueError) as error:
        raise Damaged(f"'{file}' is damaged: {' '.join(str(error).split())[:150]}") from error


def _load_state(module: torch.nn.Module, saved: dict[str, torch.Tensor], folder: Path) -> None:
    try:
        module.load_state_dict(saved)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise BadInput(f"the weights in '{folder}' do not fit this model: {reason}") from error
