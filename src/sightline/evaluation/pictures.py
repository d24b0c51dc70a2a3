"""Score pictures from files: images, folders of images, or a video frame by frame."""

from __future__ import annotations

import csv
import io
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sightline.config.basics import Aspect
from sightline.errors import BadInput, RunFailed
from sightline.images import is_animated, read_image, read_video
from sightline.models.encoders import warn_of_cropping
from sightline.models.familiarity import warn_of_unfamiliar_pictures
from sightline.rewards.zero_shot import ZeroShotReward, warn_of_unknown_words

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm", ".tif", ".tiff")
VIDEO_SUFFIXES = (".mp4", ".avi", ".mov", ".mkv", ".webm", ".gif")
FRAMES_AT_ONCE = 64


@dataclass(frozen=True)
class Scores:
    """Scores of all pictures that could be read.

    Attributes:
        rows: in the order given.
        warnings: if the encoder does not know some of the words, does not see all of some pictures, or was taught other
            worlds than theirs.
        unreadable: one line for each file that is missing, broken, or no picture.
    """

    rows: list[ImageScore]
    warnings: list[str]
    unreadable: list[str]


@dataclass(frozen=True)
class ImageScore:
    """Reward of one picture; frames of a video are named `video.mp4#17`."""

    image: str
    reward: float


def score_files(
    paths: Sequence[Path],
    goal: Sequence[str],
    baseline: Sequence[str],
    alpha: float | None,
    model: str,
    aspect: Aspect = "crop",
) -> Scores:
    """Score every picture, in the order given (folders by name).

    Args:
        aspect: handling of pictures that are not square.

    Raises:
        BadInput: none of the pictures can be read, for the reason of the first; words that make no reward.
        RunFailed: the encoder gives something else than a finite number.
    """
    unreadable: list[str] = []
    files = [file for path in paths for file in _files(path, unreadable)]
    if not files:
        raise BadInput(unreadable[0])
    reward_model = ZeroShotReward(goal, baseline, alpha=alpha, encoder=model, aspect=aspect, warn=False)
    encoder = reward_model.encoder
    unknown = warn_of_unknown_words(encoder, (*reward_model.goal, *reward_model.baseline))
    warnings = [unknown] if unknown else []
    cropped: list[str] = []
    unfamiliar: list[str] = []
    rows: list[ImageScore] = []
    pictures = itertools.chain.from_iterable(_pictures(file, unreadable) for file in files)
    while batch := list(itertools.islice(pictures, FRAMES_AT_ONCE)):
        lines = (warn_of_cropping(encoder, frame.shape[0], frame.shape[1], "--aspect") for _, frame in batch)
        cropped += [line for line in lines if line]
        unfamiliar += [line for _, frame in batch if (line := warn_of_unfamiliar_pictures(encoder, frame[None]))]
        rows += [ImageScore(name, value) for name, value in zip(*_score(reward_model, batch), strict=True)]
        for row in rows[-len(batch) :]:
            if not math.isfinite(row.reward):
                raise RunFailed(
                    f"encoder '{encoder.name}' gives '{row.image}' the reward {row.reward}; its weights may "
                    "be damaged: fetch it again, or say another --model"
                )
    if not rows:
        raise BadInput(unreadable[0])
    if cropped:  # a folder may hold many sizes: only the first is told
        warnings.append(cropped[0] + (f" ({len(cropped)} of {len(rows)} pictures are cut)" if len(rows) > 1 else ""))
    if unfamiliar:
        warnings.append(unfamiliar[0] + (f" ({len(unfamiliar)} of {len(rows)} pictures)" if len(rows) > 1 else ""))
    return Scores(rows, warnings, unreadable)


def csv_table(rows: Sequence[ImageScore]) -> bytes:
    """Format scores as CSV, `image,reward`; names that are not UTF-8 keep their bytes."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["image", "reward"])
    writer.writerows([row.image, f"{row.reward:.6f}"] for row in rows)
    return text.getvalue().encode("utf-8", "surrogateescape")


def _score(reward_model: ZeroShotReward, batch: list[tuple[str, np.ndarray]]) -> tuple[list[str], list[float]]:
    """Score a batch size by size, since pictures of different sizes cannot share an array."""
    rewards = np.empty(len(batch), np.float32)
    sizes = {frame.shape for _, frame in batch}
    for size in sizes:
        members = [i for i, (_, frame) in enumerate(batch) if frame.shape == size]
        rewards[members] = reward_model.head(
            reward_model.encoder.embed_frames(np.stack([batch[i][1] for i in members]))
        )
    return [name for name, _ in batch], [float(reward) for reward in rewards]


def _files(path: Path, unreadable: list[str]) -> list[Path]:
    """The pictures that a path names; a line for a path that names none."""
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix.lower() in IMAGE_SUFFIXES)
        if not files:
            unreadable.append(f"folder '{path}' holds no images ({', '.join(IMAGE_SUFFIXES)})")
        return files
    if not path.is_file():
        unreadable.append(f"'{path}' is no regular file" if path.exists() else f"there is no file '{path}'")
        return []
    return [path]


def _pictures(file: Path, unreadable: list[str]) -> Iterator[tuple[str, np.ndarray]]:
    """Pictures of a file with their names, as far as it can be read; a line for what cannot."""
    try:
        if file.suffix.lower() in VIDEO_SUFFIXES or is_animated(file):
            for i, frame in enumerate(read_video(file)):
                yield f"{file}#{i}", frame
        else:
            yield str(file), read_image(file)
    except BadInput as error:
        unreadable.append(str(error))
