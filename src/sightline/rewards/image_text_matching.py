"""The image-text matching reward: the probability, by a model that reads both together, that a sentence is true of a
frame.

Unlike an encoder's similarity it comes from cross-attention between the words and the picture, after BLIP (Li et al.,
ICML 2022) and BLIP-2 (Li et al., ICML 2023), and has to read every frame anew for every sentence. It is a baseline of
RL-VLM-F (Wang et al., ICML 2024).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import PositiveInt

from sightline.config.basics import check_words
from sightline.config.blocks import Dtype
from sightline.errors import BadInput
from sightline.models.device import choose_devices, dtype_for
from sightline.models.encoder_base import cannot_load
from sightline.models.hub import means_folder, quiet_hub
from sightline.models.hugging_face_encoder import image_processor_size, writeable
from sightline.models.memory import BatchSize, room_on
from sightline.models.sentences import check_length, token_limit
from sightline.models.sharing_out import shared_out
from sightline.models.shrinking import Shrinker, equal_inputs, resized_by, takes_tensors
from sightline.models.uploads import Uploads
from sightline.models.weights import count_weights
from sightline.rewards.arrays import to_numpy
from sightline.rewards.base import Clip, RewardModel
from sightline.rewards.config import RewardConfig, RewardContext, RewardSetup

if TYPE_CHECKING:
    import torch

    from sightline.config.recipe import AgentRecipe, ControlRecipe

MATCH = 1
"""Index of "yes" among the two answers of a matching head."""


class ImageTextMatchingConfig(RewardConfig):
    """The probability, in [0, 1], that a BLIP or BLIP-2 model gives to the goal's sentence being true of a frame."""

    kind: Literal["image_text_matching"] = "image_text_matching"
    model: str = "Salesforce/blip2-itm-vit-g"
    """`owner/name` on the Hugging Face hub, or a folder: BLIP or BLIP-2 with a matching head."""
    batch_size: PositiveInt = 32
    """Frames per forward pass."""
    device: str = "auto"
    """A device, or several among which the frames are shared out, as of `zero_shot`."""
    dtype: Dtype = "auto"

    @property
    def needs_words(self) -> bool:
        return True

    @property
    def judges_single_frames(self) -> bool:
        return True

    def check(self, recipe: ControlRecipe | AgentRecipe) -> None:
        check_words(recipe.goal, (), None, goal_required=False)

    def facts(self) -> dict[str, str]:
        return super().facts() | {"Matching model": self.model}

    def build(self, context: RewardContext) -> RewardSetup:
        reward = ImageTextMatchingReward(
            context.goal, self.model, device=self.device, dtype=self.dtype, batch_size=self.batch_size
        )
        return RewardSetup(reward, (reward.image_size, reward.image_size))


class ImageTextMatchingReward(RewardModel):
    """The probability that a sentence is true of frames, from a frozen model with a matching head.

    Args:
        goal: a sentence, or several whose probabilities are averaged.
        model: `owner/name` on the Hugging Face hub, or a folder: BLIP or BLIP-2 with a matching head.
        device, dtype, batch_size: see `ImageTextMatchingConfig`.

    Attributes:
        image_size: side of the square picture that the model reads, in pixels.

    Raises:
        BadInput: no goal, one that is longer than the model reads, or a model without a matching head.
        RunFailed: the model cannot be downloaded, or its files are damaged.
    """

    def __init__(
        self,
        goal: str | Sequence[str],
        model: str = "Salesforce/blip2-itm-vit-g",
        *,
        device: str = "auto",
        dtype: str = "auto",
        batch_size: int = 32,
    ) -> None:
        self.goal = (goal,) if isinstance(goal, str) else tuple(goal)
        try:
            check_words(self.goal, (), None)
        except ValueError as error:
            raise BadInput(str(error)) from error
        weights = count_weights(Path(model).expanduser()) if means_folder(model) else None
        first, *others = choose_devices(device, weights)
        self._batch_size = BatchSize(batch_size, f"the matching model '{model}'")
        self._dtype = dtype_for(dtype, first)
        with quiet_hub(offline=means_folder(model)):
            loaded, self._processor = _loaded(model, self._dtype)
        self._copies = [(loaded.eval().requires_grad_(False), self._processor)]
        with room_on(device, f"the matching model '{model}'"):
            loaded.to(first)
            # Each with a processor of its own: tokenizers do not bear two threads at once.
            for other in others:
                self._copies.append((copy.deepcopy(loaded).to(other), copy.deepcopy(self._processor)))
        tokenizer = self._processor.tokenizer
        config = loaded.config
        text_config = config.text_config if config.model_type == "blip" else config.qformer_config
        limit = token_limit(tokenizer, getattr(text_config, "max_position_embeddings", None))
        check_length(
            self.goal,
            lambda sentence: len(tokenizer(sentence, verbose=False)["input_ids"]) <= limit,
            limit,
            f"the matching model '{model}'",
        )
        self.image_size = image_processor_size(self._processor.image_processor) or 224
        # A subclass that reads frames in a way of its own may expect numpy's.
        is_ours = type(self).reward is ImageTextMatchingReward.reward
        self.reads_tensors = is_ours and takes_tensors(self._processor.image_processor)

    def reward(self, clip: Clip) -> np.ndarray:
        """float32[T, N], probabilities in [0, 1], the mean over the goal's sentences."""
        assert clip.frames is not None, "a model that needs frames is given frames"
        frames: Any = clip.frames
        if not self.reads_tensors:
            frames = to_numpy(frames)
        frames = frames.reshape(-1, *frames.shape[-3:])
        probabilities = self._batch_size.fitting(lambda size: self._probabilities_of(frames, size))
        return probabilities.reshape(clip.shape)

    def _probabilities_of(self, frames: Any, size: int) -> np.ndarray:
        """float32[N] of frames in batches of a size."""
        import torch

        batches = [frames[start : start + size] for start in range(0, len(frames), size)]
        workers = [(model, processor, Uploads(model.device)) for model, processor in self._copies]
        probabilities = shared_out(self._probabilities, workers, batches)
        # One copy to the host, when all are there.
        first = self._copies[0][0].device
        return to_numpy(torch.cat([torch.zeros(0, device=first), *(batch.to(first) for batch in probabilities)]))

    def shrink_frames(self, frames: Any) -> Any:
        """Frames as small as the processor makes them."""
        return self._shrinker(frames)

    @cached_property
    def _shrinker(self) -> Shrinker:
        images = self._processor.image_processor

        def read(frames: np.ndarray) -> dict[str, Any]:
            return dict(images(images=list(frames), return_tensors="pt"))

        return Shrinker(
            lambda frames: resized_by(images, writeable(frames) if isinstance(frames, np.ndarray) else frames),
            lambda full, small: equal_inputs(read(full), read(small)),
        )

    def _probabilities(self, worker: tuple[Any, Any, Uploads], frames: Any) -> torch.Tensor:
        """float32[N] on the worker's device, the mean over the goal's sentences."""
        import torch

        model, processor, uploads = worker
        with torch.inference_mode():
            if self.reads_tensors:
                frames = uploads.upload(frames)
            if isinstance(frames, np.ndarray):
                frames = writeable(frames)
            of_sentences = [self._match_probabilities(model, processor, list(frames), text) for text in self.goal]
            uploads.computed()
            return torch.stack(of_sentences).mean(dim=0)

    def _match_probabilities(self, model: Any, processor: Any, pictures: list[Any], sentence: str) -> torch.Tensor:
        """float32[N], how probable it is that a sentence is true of each picture."""
        sentences = [sentence] * len(pictures)
        inputs = processor(images=pictures, text=sentences, return_tensors="pt", truncation=True)
        inputs = {name: value.to(model.device) for name, value in inputs.items()}
        # One layout in memory, whatever the processor had to do: convolutions round by it.
        inputs["pixel_values"] = inputs["pixel_values"].to(self._dtype).contiguous()
        if model.config.model_type == "blip-2":
            logits = model(**inputs, use_image_text_matching_head=True).logits_per_image
        else:
            logits = model(**inputs, use_itm_head=True).itm_score
        probabilities: torch.Tensor = logits.float().softmax(dim=1)[:, MATCH]
        return probabilities


def _loaded(name: str, dtype: Any) -> tuple[Any, Any]:
    """A model with a matching head, and its processor."""
    from transformers import AutoConfig, AutoProcessor, Blip2ForImageTextRetrieval, BlipForImageTextRetrieval

    families: dict[str, Any] = {"blip": BlipForImageTextRetrieval, "blip-2": Blip2ForImageTextRetrieval}
    try:
        config = AutoConfig.from_pretrained(name, trust_remote_code=False)
        if config.model_type in families:
            # What the files lack would be left random: a head for chatting says nothing of matches.
            family = families[config.model_type]
            model, loading = family.from_pretrained(name, dtype=dtype, output_loading_info=True)
            processor = AutoProcessor.from_pretrained(name, trust_remote_code=False)  # type: ignore[no-untyped-call]
    except Exception as error:
        raise cannot_load(f"hf:{name}", error) from error
    if config.model_type not in families or any(key.startswith("itm_head") for key in loading["missing_keys"]):
        raise BadInput(
            f"'{name}' ({config.model_type}) has no image-text matching head; use a BLIP or BLIP-2 model that has one, "
            "such as Salesforce/blip2-itm-vit-g"
        )
    return model, processor
