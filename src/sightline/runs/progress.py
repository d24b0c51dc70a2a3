"""Progress display of a run: a bar with the remaining time, and occasional messages."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from sightline.runs.streams import steady


class Progress(Protocol):
    """Progress display of a run."""

    def update(self, step: int, values: dict[str, float | None]) -> None:
        """Show the number of steps done and the latest metrics."""

    def say(self, message: str) -> None:
        """Show a one-line message."""


class ProgressBar:
    """Progress bar on stderr; if stderr is not a terminal, only messages are written. If it breaks, the run goes on
    without a display.

    Args:
        total: transitions or turns of the whole run.
        label: name of the run.
        quiet: show nothing, for processes other than the first.
    """

    def __init__(self, total: int, label: str, quiet: bool = False) -> None:
        self._console = Console(file=steady(sys.stderr), highlight=False, quiet=quiet)
        self._progress = RichProgress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[numbers]}"),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._progress.add_task(label, total=total, numbers="")
        self._latest: dict[str, float] = {}

    def __enter__(self) -> ProgressBar:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._progress.stop()

    def update(self, step: int, values: dict[str, float | None]) -> None:
        self._latest |= {name: value for name, value in values.items() if value is not None}
        self._progress.update(self._task, completed=step, numbers=self._numbers())

    def say(self, message: str) -> None:
        self._console.print(message, markup=False, soft_wrap=True)

    def _numbers(self) -> str:
        speed = self._latest.get("time/steps_per_second")
        reward = self._latest.get("rollout/reward")
        success = self._latest.get("rollout/success")
        accuracy = self._latest.get("rollout/truthful")
        parts = []
        if speed is not None:
            parts.append(f"{speed:.0f} steps/s")
        if reward is not None:
            parts.append(f"reward {reward:.3f}")
        if success is not None:
            parts.append(f"success {100 * success:.0f} %")
        if accuracy is not None:
            parts.append(f"true {100 * accuracy:.0f} %")
        return "  ".join(parts)
