"""What a person sees while a run goes on: a bar with the time that is left, and a line now and then."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress


class Progress(Protocol):
    """Where a person sees how it goes."""

    def update(self, step: int, values: dict[str, float | None]) -> None:
        """Called after every piece of work, with what was measured."""

    def say(self, message: str) -> None:
        """Called with one line now and then."""


class ProgressBar:
    """A live bar on stderr; without a terminal only the lines are written.

    Args:
        total: transitions or turns of the whole run.
        label: name of the run.
        quiet: show nothing, because another process speaks for this one.
    """

    def __init__(self, total: int, label: str, quiet: bool = False) -> None:
        self._console = Console(file=sys.stderr, highlight=False, quiet=quiet)
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
        parts = []
        if "time/steps_per_second" in self._latest:
            parts.append(f"{self._latest['time/steps_per_second']:.0f} steps/s")
        if "rollout/reward" in self._latest:
            parts.append(f"reward {self._latest['rollout/reward']:.3f}")
        if "rollout/success" in self._latest:
            parts.append(f"success {100 * self._latest['rollout/success']:.0f} %")
        if "rollout/truthful" in self._latest:
            parts.append(f"true {100 * self._latest['rollout/truthful']:.0f} %")
        return "  ".join(parts)
