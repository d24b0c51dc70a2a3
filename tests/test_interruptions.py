"""Stops at any moment, and displays that are gone: what was paid for is kept, and the exit code says what happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from conftest import TESTS, TINY, Finished, result_of, start_sightline
from sightline.runs.stopping import GivenUp, Interruption, Stopped, StopRequests, awaited, stop_signals
from sightline.runs.streams import SteadyStream, steady

Sightline = Callable[..., Finished]
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
RUN = ("cartpole", *(one for one in TINY if not one.startswith("videos")), "videos=true", "env_options={}")
RUN += ("evaluation.episodes=1", "evaluation.test_episodes=1")
AGAIN = "go on with the same command and --resume"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Result of the run without any interruption."""
    from sightline.config.loading import load_recipe
    from sightline.roles import complete, train

    path = tmp_path_factory.mktemp("whole") / "run"
    train(complete(load_recipe(RUN[0], RUN[1:])), path, "whole", resume=False)
    return result_of(path)


@pytest.fixture
def hangups() -> Iterator[None]:
    """SIGHUP is not ignored, though the tests may run under `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def heeded(hangups: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Signals are handled as in a process of the command."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    monkeypatch.setattr(Interruption, "signal_number", None)
    Interruption.enable()
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


PLACES = {
    "loading": ("sightline.control.control_setup.build_setup", ""),
    "exploring": ("sightline.control.collection.CollectingVecEnv.take_chunk", "; saved at step 32; "),
    "validating": ("sightline.control.trainer.ControlTrainer.validate", "; saved at step 128; "),
    "testing": ("sightline.control.trainer.ControlTrainer.test", "; saved at step 256; "),
    "filming": ("sightline.control.trainer.play_one", "; saved at step 256; "),
    "reporting": ("sightline.reports.run_page.write_report", "; saved at step 256; "),
}
"""Where a signal comes -> the function that is about to be called, and what is said to be saved."""


CASES = [(place, signal.SIGTERM) for place in PLACES]
CASES += [(place, number) for place in ("loading", "testing") for number in (signal.SIGINT, signal.SIGHUP)]


@pytest.mark.parametrize(("place", "number"), CASES)
def test_a_stop_at_any_moment_is_told_and_gone_on_from(
    sightline: Sightline,
    whole: dict[str, Any],
    heeded: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    number: signal.Signals,
) -> None:
    target, saved = PLACES[place]
    owner, _, name = target.rpartition(".")
    original = _resolved(target)

    sent: list[int] = []

    def stopping(*arguments: Any, **named: Any) -> Any:
        if not sent:
            sent.append(number)
            os.kill(os.getpid(), number)
        return original(*arguments, **named)

    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(StopRequests, "overdue", lambda stop, seconds=0.0: stop.requested())
        patch.setattr(_resolved(owner), name, stopping)
        done = sightline("train", *RUN, "--run-dir", run)
    assert done.code == 128 + number, done.err
    assert "Traceback" not in done.err
    expected = f"sightline: stopped by {number.name}"
    assert done.lines[-1] == (f"{expected}{saved}{AGAIN}" if saved else expected)
    assert run.exists() == bool(saved), "a run that has not begun leaves nothing"
    done = sightline("train", *RUN, "--run-dir", run, "--resume-or-start")
    assert done.code == 0, done.err
    assert result_of(run) == whole
    assert {file.name for file in (run / "videos").iterdir()} == {"untrained.mp4", "chosen.mp4"}


def _resolved(path: str) -> Any:
    import pkgutil

    return pkgutil.resolve_name(path)


def test_a_hangup_is_heeded_unless_it_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGHUP)
    try:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        assert signal.SIGHUP in stop_signals()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        assert signal.SIGHUP not in stop_signals(), "nohup"
        with StopRequests() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.requested()
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hangups")
def test_a_terminal_and_its_shell_may_both_tell_of_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with StopRequests() as stop:
        monkeypatch.setattr(stop, "overdue", lambda seconds=0.0: True)
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGHUP)
        assert stop.signal_number == signal.SIGHUP
        with pytest.raises(GivenUp):
            os.kill(os.getpid(), signal.SIGTERM)


def test_what_a_thread_raises_is_not_taken_for_waiting() -> None:
    work: Future[int] = Future()
    work.set_exception(TimeoutError("its own"))
    with pytest.raises(TimeoutError, match="its own"):
        awaited(work)


def test_a_wait_for_a_thread_ends_when_a_stop_is_overdue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StopRequests, "overdue", lambda stop, seconds=0.0: stop.requested())
    with StopRequests():
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(GivenUp):
            awaited(Future())


# -- displays that are gone --------------------------------------------------------------------------------------------


def start(*arguments: Any, **streams: Any) -> subprocess.Popen[str]:
    paths = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "sightline", *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    return subprocess.Popen(command, env=environment, text=True, stdin=subprocess.DEVNULL, **streams)


@pytest.mark.parametrize("broken", ["nobody reads", "full disk", "closed"])
def test_a_run_goes_on_without_a_display(tmp_path: Path, broken: str) -> None:
    little = ("envs=2", "steps=128", "evaluation.every=64", "reward.kind=ground_truth")
    arguments = ("train", "cartpole", *TINY, *little, "--run-dir", tmp_path / "run")
    if broken == "nobody reads":
        process = start_sightline(*arguments, cwd=tmp_path)
        assert process.stderr is not None
        process.stderr.close()
    elif broken == "full disk":
        process = start_sightline(*arguments, cwd=tmp_path, STDERR="/dev/full")
    else:  # from its beginning
        process = start(*arguments, stdout=subprocess.PIPE, preexec_fn=lambda: os.close(2))
    out, _ = process.communicate(timeout=900)
    assert process.returncode == 0
    assert (tmp_path / "run" / "result.json").is_file()
    assert [line.split()[0] for line in out.splitlines()] == ["untrained", "trained", "report"]


@pytest.mark.parametrize(
    ("broken", "code", "said"),
    [
        ("full disk", 1, "sightline: the output could not be written: No space left on device\n"),
        ("nobody reads", 1, ""),
        ("closed", 0, ""),
    ],
)
def test_output_that_is_lost_is_told(broken: str, code: int, said: str) -> None:
    if broken == "full disk":
        with open("/dev/full", "w") as full:
            process = start("recipes", stdout=full, stderr=subprocess.PIPE)
    elif broken == "nobody reads":
        process = start("recipes", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.close()
        process.stdout = None
    else:
        process = start("recipes", stderr=subprocess.PIPE, preexec_fn=lambda: os.close(1))
    _, err = process.communicate(timeout=600)
    assert (process.returncode, err) == (code, said)


def test_errors_of_a_command_without_stderr_do_not_go_to_stdout() -> None:
    process = start("train", "nosuch", stdout=subprocess.PIPE, preexec_fn=lambda: os.close(2))
    out, _ = process.communicate(timeout=600)
    assert (process.returncode, out) == (2, "")


class _Failing:
    """Stream that fails in one way."""

    encoding = "ascii"

    def __init__(self, error: Exception | None) -> None:
        self.error, self.text = error, ""

    def write(self, text: str) -> int:
        if self.error is not None:
            raise self.error
        text.encode("ascii")
        self.text += text
        return len(text)

    def flush(self) -> None:
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), ValueError("I/O operation on closed file")])
def test_a_steady_stream_drops_what_it_cannot_write(error: Exception) -> None:
    stream = SteadyStream(_Failing(error))  # type: ignore[arg-type]
    assert print("text", file=stream, flush=True) is None  # type: ignore[func-returns-value]
    assert stream.failure is not None


def test_letters_that_a_stream_does_not_know_are_escaped() -> None:
    below = _Failing(None)
    print("run-\udcff → é", file=steady(below), end="")  # type: ignore[arg-type]
    assert below.text == "run-\\udcff \\u2192 \\xe9"


def test_a_stop_says_what_is_saved() -> None:
    assert Stopped(signal.SIGHUP, None).saved == "nothing was collected yet"


INTERRUPTED = """
import os, signal
try:
    os.kill(os.getpid(), signal.{signal})
    signal.pause()
except BaseException as error:
    raise {error}
"""
"""A library whose import a signal interrupts."""


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize(
    "error", ["error", "ImportError('initialization failed') from None"], ids=["as-it-is", "other"]
)
def test_a_signal_while_modules_are_imported_is_told_in_a_line(
    tmp_path: Path, hangups: None, number: signal.Signals, error: str
) -> None:
    """Until everything was imported, Ctrl-C printed a traceback of 50 lines."""
    (tmp_path / "typer.py").write_text(INTERRUPTED.format(signal=number.name, error=error))
    folders = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, "-P", "-m", "sightline", "recipes"],
        env=os.environ | {"PYTHONPATH": folders},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (done.returncode, done.stderr) == (128 + number, f"sightline: stopped by {number.name}\n")
