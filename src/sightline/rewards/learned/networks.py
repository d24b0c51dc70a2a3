"""Ensembles of small reward networks, from features of a state to its reward."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor, nn

from sightline.errors import BadInput


class MLPEnsemble(nn.Module):
    """Members side by side in one batched product, each with its own weights."""

    def __init__(self, inputs: int, hidden: tuple[int, ...], members: int) -> None:
        super().__init__()
        weights = []
        biases = []
        for before, after in itertools.pairwise([inputs, *hidden, 1]):
            weights.append(nn.Parameter(_uniform(members, before, after, fan_in=before)))
            biases.append(nn.Parameter(torch.zeros(members, 1, after)))
        self.weights = nn.ParameterList(weights)
        self.biases = nn.ParameterList(biases)

    def forward(self, features: Tensor) -> Tensor:
        """float[B, …] -> float[M, B]; pictures (uint8) are read as numbers from 0 to 1."""
        inputs = features.flatten(1).float()
        if features.dtype == torch.uint8:
            inputs = inputs / 255
        # All members read the same inputs: [B, D] -> [M, B, D], without a copy.
        members = len(self.weights[0])
        x = inputs.unsqueeze(0).expand(members, -1, -1)
        last = len(self.weights) - 1
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            # [M, B, in] x [M, in, out] + [M, 1, out]
            x = torch.baddbmm(bias, x, weight)
            if layer < last:
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
        device_type = features.device.type
        dtype = torch.float32
        if torch.is_autocast_enabled(device_type):
            dtype = torch.get_autocast_dtype(device_type)
        # Channels come first by their names, and stay last in memory.
        pixels = features.permute(0, 3, 1, 2).to(dtype).div_(255)
        are_cnns = all(isinstance(member, nn.Sequential) for member in self.members)
        if torch.is_inference_mode_enabled() and are_cnns:
            return self._side_by_side(pixels).float()
        outputs = [member(pixels).squeeze(-1) for member in self.members]
        return torch.stack(outputs).float()

    def _side_by_side(self, pixels: Tensor) -> Tensor:
        """Members made by `cnn`, float[B, 3, H, W] -> float[M, B]."""
        members: list[Any] = list(self.members)
        x = pixels
        for depth, layers in enumerate(zip(*members, strict=True)):
            if not isinstance(layers[0], nn.Conv2d):
                continue
            # The maps of all members, one member's after the other's: [M * out, in, kernel, kernel].
            weight = torch.cat([layer.weight for layer in layers]).to(memory_format=torch.channels_last)
            bias = torch.cat([layer.bias for layer in layers])
            # The first convolution reads the pixels, later ones only the maps of their own member.
            groups = 1 if depth == 0 else len(members)
            x = nn.functional.conv2d(x, weight, bias, layers[0].stride, groups=groups)
            x = nn.functional.relu(x)
        # The linear layers are small, and each reads its member's maps alone.
        outputs = []
        for member, maps in zip(members, x.chunk(len(members), dim=1), strict=True):
            linear = member[-1]
            outputs.append(linear(maps.flatten(1)).squeeze(-1))
        return torch.stack(outputs)


def _uniform(*shape: int, fan_in: int) -> Tensor:
    bound = 1 / math.sqrt(fan_in)
    return torch.empty(*shape).uniform_(-bound, bound)


def cnn(frame: tuple[int, ...], channels: tuple[int, ...]) -> nn.Module:
    """Four convolutions of kernel 5, 3, 3, 3 and stride 3, 2, 2, 2 without padding (RL-VLM-F, appendix)."""
    layers: list[nn.Module] = []
    before = 3
    height, width = frame[:2]
    kernel = 5
    stride = 3
    for after in channels:
        layers += [nn.Conv2d(before, after, kernel, stride), nn.ReLU()]
        height = (height - kernel) // stride + 1
        width = (width - kernel) // stride + 1
        before = after
        kernel = 3
        stride = 2
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
