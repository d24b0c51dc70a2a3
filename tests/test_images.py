"""Digests and the store of PNG files; damage and bombs are in test_label_store.py, videos in test_reports.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sightline.errors import BadInput
from sightline.images import Picture, PictureFiles, pixel_digest
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
