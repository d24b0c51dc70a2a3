"""Digests and the store of PNG files; damage and bombs are in test_label_store.py, videos in test_reports.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sightline.errors import BadInput
from sightline.images import Picture, PictureFiles, is_animated, pixel_digest, read_image, read_png, read_video
from sightline.labels.types import Segment

PIXELS = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
DIGEST = "d0be4c19f76cee5ed30288c51e8f1f5f5d0eadf1386610cbfdc3ec11bef7cbd1"


def test_digests_are_those_of_stores_that_exist() -> None:
    """Label stores, demonstrations and trajectories on disk are named by them."""
    assert pixel_digest(PIXELS) == DIGEST and Picture(PIXELS).digest == DIGEST[:16]
    assert pixel_digest(PIXELS.reshape(4, 2, 3)) != DIGEST
    assert pixel_digest(np.asfortranarray(PIXELS)) == DIGEST
    assert Segment(PIXELS[None], np.zeros(1)).digest == pixel_digest(PIXELS[None]) != DIGEST


@pytest.mark.parametrize(
    ("flat", "file"), [(False, f"{DIGEST[:2]}/{DIGEST}.png"), (True, f"{DIGEST[:16]}.png")], ids=["fanned", "flat"]
)
def test_a_picture_is_stored_once_by_its_digest(tmp_path: Path, flat: bool, file: str) -> None:
    files = PictureFiles(tmp_path, flat=flat)
    name = files.add(PIXELS)
    (tmp_path / file).touch()
    before = (tmp_path / file).stat().st_mtime_ns
    assert files.add(PIXELS.copy()) == name and (tmp_path / file).stat().st_mtime_ns == before
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.png")] == [file]
    np.testing.assert_array_equal(files.read(name), PIXELS)
    (tmp_path / file).write_bytes(Picture(PIXELS[:1]).png)
    with pytest.raises(BadInput, match=r"\(line 3\) is damaged: it is not the picture that was stored"):
        files.read(name, "line 3")


@pytest.mark.parametrize("name", ["../secret", "a" * 15, "a" * 64, "A" * 16, 3, None])
def test_names_lead_nowhere_else(tmp_path: Path, name: Any) -> None:
    with pytest.raises(BadInput, match=r"line 3 is damaged: .* is no name of a picture"):
        PictureFiles(tmp_path, flat=True).file(name, "line 3")


def test_links_are_followed_in_flat_folders_only(tmp_path: Path) -> None:
    """Caches of downloaded data sets are made of links; a label store is not downloaded."""
    for flat in (True, False):
        files = PictureFiles(tmp_path, flat=flat)
        name = files.add(PIXELS)
        files.file(name).rename(tmp_path / "elsewhere")
        files.file(name).symlink_to(tmp_path / "elsewhere")
        if flat:
            np.testing.assert_array_equal(files.read(name), PIXELS)
        else:
            with pytest.raises(BadInput, match="no regular file"):
                files.read(name)


# -- pictures that are stored lying down ------------------------------------------------------------------------------

UPRIGHT = np.arange(6 * 4 * 3, dtype=np.uint8).reshape(6, 4, 3) * 3
STORED = {
    1: UPRIGHT,
    2: UPRIGHT[:, ::-1],
    3: UPRIGHT[::-1, ::-1],
    4: UPRIGHT[::-1],
    5: UPRIGHT.transpose(1, 0, 2),
    6: np.rot90(UPRIGHT, 1),
    7: np.rot90(UPRIGHT, 2).transpose(1, 0, 2),
    8: np.rot90(UPRIGHT, -1),
}
"""EXIF's number of an orientation -> what a camera stores of the same scene."""


@pytest.mark.parametrize("orientation", STORED)
@pytest.mark.parametrize("suffix", ["png", "tiff", "webp"])
def test_pictures_are_read_upright(tmp_path: Path, orientation: int, suffix: str) -> None:
    """A telephone's upright photo was read lying down."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = tmp_path / f"photo.{suffix}"
    Image.fromarray(np.ascontiguousarray(STORED[orientation])).save(file, exif=exif, lossless=True)
    assert np.array_equal(read_image(file), UPRIGHT)
    if suffix == "png":
        assert np.array_equal(read_png(file), UPRIGHT)


def test_damaged_orientations_change_nothing(tmp_path: Path) -> None:
    file = tmp_path / "photo.png"
    for damage in (b"Exif\x00\x00II*\x00", b"\xff" * 40, b""):
        Image.fromarray(UPRIGHT).save(file, exif=damage)
        assert np.array_equal(read_image(file), UPRIGHT)


# -- pictures of other kinds than eight bits of red, green and blue ----------------------------------------------------

RAMP = np.arange(0, 256, 17, dtype=np.uint8).reshape(4, 4)
CLEAR = np.dstack([RAMP, np.full_like(RAMP, 0)])
"""Greyscale with an alpha channel that lets everything through."""


@pytest.mark.parametrize("read", [read_image, read_png])
def test_sixteen_bits_are_not_cut_off_at_eight(tmp_path: Path, read: Any) -> None:
    """All but the darkest pixels were white in labels that were imported."""
    Image.fromarray(RAMP.astype(np.uint16) * 257).save(tmp_path / "ramp.png")
    assert np.array_equal(read(tmp_path / "ramp.png"), np.repeat(RAMP[:, :, None], 3, axis=2))


@pytest.mark.parametrize("read", [read_image, read_png])
def test_transparency_is_laid_on_white(tmp_path: Path, read: Any) -> None:
    Image.fromarray(CLEAR, "LA").save(tmp_path / "clear.png")
    assert np.all(read(tmp_path / "clear.png") == 255)


@pytest.mark.parametrize("pixels", [RAMP / np.float32(255), RAMP.astype(np.int32) * 257], ids=["float", "int"])
def test_numbers_without_a_known_white_are_refused(tmp_path: Path, pixels: Any) -> None:
    """Pictures of floats from 0 to 1 were read as black, 32-bit ones as white."""
    Image.fromarray(pixels).save(tmp_path / "measured.tif")
    with pytest.raises(BadInput, match=r"measured.tif' cannot be read as a picture: its pixels have 32 bits.* 8 bits"):
        read_image(tmp_path / "measured.tif")


@pytest.mark.parametrize("suffix", ["gif", "webp", "png"])
def test_animated_pictures_are_films(tmp_path: Path, suffix: str) -> None:
    """Of films other than GIFs, only the first picture was scored, without a word."""
    file = tmp_path / f"film.{suffix}"
    first, *others = (Image.fromarray(np.full((8, 8, 3), grey, np.uint8)) for grey in (0, 128, 255))
    first.save(file, save_all=True, append_images=others, lossless=True)
    assert is_animated(file) and [int(frame[0, 0, 0]) for frame in read_video(file)] == [0, 128, 255]
    first.save(file)
    assert not is_animated(file)
