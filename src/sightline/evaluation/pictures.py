"""Score pictures from files: images, folders of images, or a video or a data set of episodes frame by frame."""

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
from sightline.datasets.reading import is_dataset, read_dataset
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
    """Reward of one picture; frames of a video are named `video.mp4#17`, those of a data set `folder#episode.step`."""

    image: str
    reward: float


def score_files(
    paths: Sequence[Path],
    goal: Sequence[str],
    baseline: Sequence[str],
    alpha: float | None,
    model: str,
    aspect: Aspect = "crop",
    camera: str | None = None,
) -> Scores:
    """Score every picture, in the order given (folders by name).

    Args:
        aspect: handling of pictures that are not square.
        camera: which of several cameras of the data sets.

    Raises:
        BadInput: a camera is named, and no data set; none of the pictures can be read, for the reason of the first; or
            the words make no reward.
        RunFailed: the encoder gives something else than a finite number.
    """
    unreadable: list[str] = []
    files: list[Path] = []
    for path in paths:
        files += _files(path, unreadable)
    if not files:
        raise BadInput(unreadable[0])
    if camera is not None and not any(file.is_dir() for file in files):
        raise BadInput("--camera chooses one of the cameras of a data set, and no data set is named")
    reward_model = ZeroShotReward(goal, baseline, alpha=alpha, encoder=model, aspect=aspect, warn=False)
    encoder = reward_model.encoder
    cropped: list[str] = []  # warnings, one for each picture that the encoder does not see all of
    unfamiliar: list[str] = []  # likewise, of worlds that it was not taught
    rows: list[ImageScore] = []
    pictures = itertools.chain.from_iterable(_pictures(file, camera, unreadable) for file in files)
    # In batches, since a video's frames would not fit into memory together.
    while batch := list(itertools.islice(pictures, FRAMES_AT_ONCE)):
        for _, frame in batch:
            height, width = frame.shape[:2]
            cropped.append(warn_of_cropping(encoder, height, width, "--aspect") or "")
            unfamiliar.append(warn_of_unfamiliar_pictures(encoder, frame[None]) or "")
        for (name, _), reward in zip(batch, _score(reward_model, batch), strict=True):
            rows.append(ImageScore(name, reward))
            if not math.isfinite(reward):
                raise RunFailed(
                    f"encoder '{encoder.name}' gives '{name}' the reward {reward}; its weights may "
                    "be damaged: fetch it again, or say another --model"
                )
    if not rows:
        raise BadInput(unreadable[0])
    candidates = [
        warn_of_unknown_words(encoder, (*reward_model.goal, *reward_model.baseline)),
        _one_warning(cropped, "pictures are cut"),
        _one_warning(unfamiliar, "pictures"),
    ]
    return Scores(rows, [warning for warning in candidates if warning], unreadable)


def _one_warning(warnings: Sequence[str], of_all: str) -> str:
    """The first of the warnings about pictures, with the number of pictures that have one.

    A folder may hold many sizes: a line for each would hide the rest.

    Args:
        warnings: one for each picture, empty where there is nothing to warn of.
    """
    texts = [warning for warning in warnings if warning]
    if not texts:
        return ""
    if len(warnings) == 1:
        return texts[0]
    return f"{texts[0]} ({len(texts)} of {len(warnings)} {of_all})"


def csv_table(rows: Sequence[ImageScore]) -> bytes:
    """Format scores as CSV, `image,reward`; names that are not UTF-8 keep their bytes."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["image", "reward"])
    writer.writerows([row.image, f"{row.reward:.6f}"] for row in rows)
    return text.getvalue().encode("utf-8", "surrogateescape")


def _score(reward_model: ZeroShotReward, batch: Sequence[tuple[str, np.ndarray]]) -> list[float]:
    """Score a batch size by size, since pictures of different sizes cannot share an array."""
    frames = [frame for _, frame in batch]
    rewards = np.empty(len(frames), np.float32)
    for size in {frame.shape for frame in frames}:
        members = [index for index, frame in enumerate(frames) if frame.shape == size]
        same_size = np.stack([frames[index] for index in members])
        rewards[members] = reward_model.head(reward_model.encoder.embed_frames(same_size))
    return [float(reward) for reward in rewards]


def _files(path: Path, unreadable: list[str]) -> list[Path]:
    """The pictures that a path names; a line for a path that names none."""
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix.lower() in IMAGE_SUFFIXES)
        if not files and is_dataset(path):
            return [path]
        if not files:
            unreadable.append(f"folder '{path}' holds no images ({', '.join(IMAGE_SUFFIXES)})")
        return files
    if not path.exists():
        unreadable.append(f"there is no file '{path}'")
        return []
    if not path.is_file():
        unreadable.append(f"'{path}' is no regular file")
        return []
    return [path]


def _pictures(file: Path, camera: str | None, unreadable: list[str]) -> Iterator[tuple[str, np.ndarray]]:
    """Pictures of a file with their names, as far as it can be read; a line for what cannot."""
    try:
        if file.is_dir():
            for episode in read_dataset(file, camera):
                for step in range(episode.steps):
                    assert episode.frames is not None, "frames are read"
                    yield f"{file}#{episode.index}.{step}", episode.frames[step]
        elif file.suffix.lower() in VIDEO_SUFFIXES or is_animated(file):
            for index, frame in enumerate(read_video(file)):
                yield f"{file}#{index}", frame
        else:
            yield str(file), read_image(file)
    except BadInput as error:
        unreadable.append(str(error))
