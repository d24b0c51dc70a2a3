"""What lines about other people's code say: the exception's class, its place, and the advice that fits it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from sightline.envs.rendering import drawing_advice
from sightline.errors import place_of, reason_and_place, reason_of, why_unreadable


def raised_by(file: Path, program: str) -> Exception:
    """The exception that a user's file raises when it is imported."""
    file.write_text(program)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    try:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def test_the_users_own_line_is_named_however_deep_the_library_raised_it(tmp_path: Path) -> None:
    error = raised_by(tmp_path / "reacher.py", "import numpy as np\n\nnp.stack([])\n")
    assert place_of(error) == "reacher.py:3"
    assert reason_and_place(error) == "ValueError: need at least one array to stack (reacher.py:3)"


def test_an_exception_of_our_own_has_no_place_in_other_peoples_code() -> None:
    assert place_of(ValueError("never raised")) == ""
    assert reason_of(ValueError("over\n two  lines")) == "ValueError: over two lines"
    assert reason_of(AssertionError()) == "AssertionError"


def test_without_a_line_of_the_users_the_librarys_is_named() -> None:
    with pytest.raises(ValueError) as caught:
        np.stack([])
    traceback = caught.value.__traceback__
    assert traceback is not None
    caught.value.__traceback__ = traceback.tb_next  # without the line of this file, as if a command had called
    assert place_of(caught.value).startswith("_core/") or place_of(caught.value).startswith("core/")


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (RuntimeError("Cannot initialize a EGL device display"), "MUJOCO_GL=egl"),
        (RuntimeError("an OpenGL platform library has not been loaded"), "MUJOCO_GL=egl"),
        (type("NoSuchDisplayException", (Exception,), {})('Cannot connect to "None"'), "PYGLET_HEADLESS=1"),
        (type("error", (Exception,), {})("No available video device"), "SDL_VIDEODRIVER=offscreen"),
        (ValueError("a negligible angle"), ""),
        (KeyError("map"), ""),
    ],
)
def test_only_trouble_with_displays_is_advised_on_as_such(error: Exception, advice: str) -> None:
    given = drawing_advice(error)
    assert advice in given
    assert bool(advice) == bool(given)


def test_the_cause_behind_an_exception_is_read_as_well() -> None:
    error = ValueError("no renderer")
    error.__cause__ = RuntimeError("eglQueryDevicesEXT: EGL is missing")
    assert "MUJOCO_GL" in drawing_advice(error)


def test_why_a_file_cannot_be_read() -> None:
    with pytest.raises(OSError) as caught:
        Path("/nowhere").read_text()
    assert why_unreadable(caught.value) == "No such file or directory"
    assert why_unreadable(OSError("odd")) == "OSError: odd" and why_unreadable(ValueError("odd")) == "ValueError: odd"
