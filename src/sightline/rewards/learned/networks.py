"""Ensembles of small reward networks, from features of a state to its reward."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sightline.errors import BadInput


class MLPEnsemble(nn.Module):
    """Members side by side in one batched product, each with its own weights."""

    def __init__(self, inputs: int, hidden: tuple[int, ...], members: int) -> None:
        super().__init__()
        widths = [inputs, *hidden, 1]
        pairs = list(itertools.pairwise(widths))
        self.weights = nn.ParameterList([nn.Parameter(_uniform(members, a, b, fan_in=a)) for a, b in pairs])
        self.biases = nn.ParameterList([nn.Parameter(torch.zeros(members, 1, b)) for _, b in pairs])

    def forward(self, features: Tensor) -> Tensor:
        """float[B, …] -> float[M, B]; pictures (uint8) are read as numbers from 0 to 1."""
        flat = features.flatten(1).float()
        x = (flat / 255 if features.dtype == torch.uint8 else flat).unsqueeze(0).expand(len(self.weights[0]), -1, -1)
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, x, weight)
            if i < len(self.weights) - 1:
                x = nn.functional.leaky_relu(x)
        return x.squeeze(-1)


class FrameEnsemble(nn.Module):
    """Members that read frames: one after the other while they learn, and side by side when they are only asked.

    Side by side, the first convolutions of all members are one convolution with as many maps, for all read the same
    picture; later ones are one convolution in groups. Each map is computed as before, so nothing changes to the bit.
    """

    def __init__(self, members: list[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        # Frames have their channels last; networks that have too need no copy of them.
        self.to(memory_format=torch.channels_last)

    def forward(self, features: Tensor) -> Tensor:
        """uint8[B, H, W, 3] -> float[M, B]."""
        place = features.device.type
        dtype = torch.get_autocast_dtype(place) if torch.is_autocast_enabled(place) else torch.float32
        pixels = features.permute(0, 3, 1, 2).to(dtype).div_(255)
        if torch.is_inference_mode_enabled() and all(isinstance(member, nn.Sequential) for member in self.members):
            return self._side_by_side(pixels).float()
        return torch.stack([member(pixels).squeeze(-1) for member in self.members]).float()

    def _side_by_side(self, pixels: Tensor) -> Tensor:
        """Members made by `cnn`, float[B, 3, H, W] -> float[M, B]."""
        stacks: list[Any] = list(self.members)
        layers = [[layer for layer in stack if isinstance(layer, nn.Conv2d)] for stack in stacks]
        x = pixels
        for depth, same in enumerate(zip(*layers, strict=True)):
            weight = torch.cat([conv.weight for conv in same]).to(memory_format=torch.channels_last)
            bias = torch.cat([conv.bias for conv in same if conv.bias is not None])
            groups = 1 if depth == 0 else len(same)
            x = nn.functional.relu(nn.functional.conv2d(x, weight, bias, same[0].stride, groups=groups))
        parts = x.chunk(len(stacks), dim=1)
        return torch.stack([stack[-1](part.flatten(1)).squeeze(-1) for stack, part in zip(stacks, parts, strict=True)])


def _uniform(*shape: int, fan_in: int) -> Tensor:
    bound = 1 / math.sqrt(fan_in)
    return torch.empty(*shape).uniform_(-bound, bound)


def cnn(frame: tuple[int, ...], channels: tuple[int, ...]) -> nn.Module:
    """Four convolutions of kernel 5, 3, 3, 3 and stride 3, 2, 2, 2 without padding (RL-VLM-F, appendix)."""
    layers: list[nn.Module] = []
    before, height, width = 3, frame[0], frame[1]
    for i, after in enumerate(channels):
        kernel, stride = (5, 3) if i == 0 else (3, 2)
        height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
        layers += [nn.Conv2d(before, after, kernel, stride), nn.ReLU()]
        before = after
    if height < 1 or width < 1:
        raise BadInput(
            f"frames of {frame[0]}x{frame[1]} are too small for {len(channels)} convolutions; raise "
            "reward.model.size or say fewer reward.model.channels"
        )
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(before * height * width, 1))


def resnet(frame: tuple[int, ...]) -> nn.Module:
    """A ResNet-18 with random weights and one output."""
    if max(frame[:2]) <= 32:  # its last map would be one number, of which a minibatch of one has no deviation
        raise BadInput(f"frames of {frame[0]}x{frame[1]} are too small for a ResNet-18; raise reward.model.size")
    from torchvision.models import resnet18

    network: nn.Module = resnet18(weights=None, num_classes=1)
    return network


def resize(frames: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """uint8[N, H, W, 3] -> uint8[N, *size, 3], anti-aliased."""
    if frames.shape[1:3] == tuple(size) or not len(frames):
        return frames.reshape(len(frames), *size, 3)
    # Torch warns of arrays that may not be written into; nothing here does.
    pixels = torch.from_numpy(np.require(frames, requirements="W")).permute(0, 3, 1, 2)
    smaller = torch.nn.functional.interpolate(pixels, size, mode="bilinear", antialias=True, align_corners=False)
    return np.ascontiguousarray(smaller.permute(0, 2, 3, 1).numpy())
