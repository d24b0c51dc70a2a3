"""A reward model in LeRobot's form: `compute_reward(batch) -> Tensor (B,)`. LeRobot itself is not needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sightline.errors import BadInput
from sightline.rewards.base import Clip, RewardModel


class LeRobotReward:
    """Rewards of batches as LeRobot's datasets and policies hold them.

    >>> reward = LeRobotReward(ZeroShotReward("the cube is in the box"), "observation.images.top")
    >>> reward.compute_reward(batch)  # float32[B]

    A batch with a time axis holds a window of each sample, and the reward is that of its last frame. `batch["task"]`, a
    sentence or one for each sample, is the instruction for models that read one.

    Args:
        model: the reward model.
        image_key: key of the images: float[B, C, H, W] or [B, T, C, H, W] from 0 to 1, or uint8 of the same shape.
        state_key: key of the states [B, D] or [B, T, D], for models that read them.
    """

    def __init__(
        self,
        model: RewardModel,
        image_key: str = "observation.images.top",
        state_key: str = "observation.state",
    ) -> None:
        self.model = model
        self.image_key = image_key
        self.state_key = state_key

    @torch.no_grad()
    def compute_reward(self, batch: Mapping[str, Any]) -> Tensor:
        """float32[B] rewards of a batch, on the device of its images.

        Raises:
            BadInput: a key is missing, the images are no images, or there are more or fewer tasks than samples.
        """
        frames = None
        states = None
        if "frames" in self.model.needs:
            frames = self._frames(batch)
        if "states" in self.model.needs:
            states = self._states(batch)
        inputs = states if frames is None else frames
        if inputs is None:
            raise BadInput(f"{type(self.model).__name__} reads neither frames nor states, which is all a batch holds")
        steps, count = inputs.shape[:2]
        if not steps:
            raise BadInput("the time axis of the batch is empty; a window has at least one step")
        if states is not None and states.shape[:2] != (steps, count):
            raise BadInput(
                f"the batch has images of {count} samples of {steps} steps, and states of {states.shape[1]} samples of "
                f"{states.shape[0]} steps; give both of the same"
            )
        tasks = batch.get("task")
        if tasks is None or isinstance(tasks, str):
            tasks = [tasks] * count
        else:
            tasks = list(tasks)
        if len(tasks) != count:
            raise BadInput(f"the batch has {count} samples and {len(tasks)} tasks; give one sentence, or one for each")
        first = np.zeros((steps, count), bool)
        first[0] = True
        rewards = torch.empty(count, dtype=torch.float32)
        # A clip has one instruction, so samples of different tasks are scored one task after the other.
        for task in dict.fromkeys(tasks):
            rows = [i for i, task_of_row in enumerate(tasks) if task_of_row == task]
            arrays = {}
            if frames is not None:
                arrays["frames"] = _as_array(frames[:, rows])
            if states is not None:
                arrays["states"] = _as_array(states[:, rows])
            clip = Clip(first[:, rows], **arrays, instruction=task)
            rewards[rows] = torch.from_numpy(self.model(clip)[-1])
        return rewards.to(inputs.device)

    def reset(self) -> None:
        """Do nothing: no state is kept from one batch to the next."""

    def _frames(self, batch: Mapping[str, Any]) -> Tensor:
        """Frames uint8[T, B, H, W, 3] of a batch."""
        images = self._of(batch, self.image_key)
        if images.ndim not in (4, 5) or images.shape[-3] != 3:
            raise BadInput(f"'{self.image_key}' must be [B, 3, H, W] or [B, T, 3, H, W], not {list(images.shape)}")
        if images.is_floating_point():
            # Resizing may go a little beyond. NaN is within no range.
            if not ((images >= -0.01) & (images <= 1.01)).all():
                raise BadInput(f"'{self.image_key}' holds floats that are not from 0 to 1; scale them, or give uint8")
            images = (images * 255).round().clamp(0, 255).to(torch.uint8)
        elif images.dtype != torch.uint8:
            raise BadInput(f"'{self.image_key}' must be uint8, or floats from 0 to 1, not {images.dtype}")
        if images.ndim == 4:
            images = images[:, None]
        return images.permute(1, 0, 3, 4, 2).contiguous()

    def _states(self, batch: Mapping[str, Any]) -> Tensor:
        """States [T, B, D] of a batch; those without a time axis are one step."""
        states = self._of(batch, self.state_key)
        if states.ndim < 2:
            raise BadInput(f"'{self.state_key}' must be [B, D] or [B, T, D], not {list(states.shape)}")
        if states.ndim == 2:
            return states[None]
        return states.transpose(0, 1)

    @staticmethod
    def _of(batch: Mapping[str, Any], key: str) -> Tensor:
        if key not in batch:
            raise BadInput(f"the batch has no '{key}'; it has: {', '.join(map(str, batch))}")
        return torch.as_tensor(batch[key])


def _as_array(values: Tensor) -> Any:
    # Not every reward model knows torch; a copy from another device is left to those that need it.
    return values.numpy() if values.device.type == "cpu" else values
