"""The state of a run as files: a model as Hugging Face writes it, the optimiser, and where the run stands."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sightline.errors import BadInput
from sightline.models.vlm.model import VLM
from sightline.runs.checkpoints import Checkpoint, CheckpointStore
from sightline.runs.folder import RunFolder

STATE, OPTIMISER = "state.json", "optimiser.pt"
EVERY_BEST = 10**6
"""Bests are removed by `Snapshots.save` alone, once no checkpoint speaks of them."""


@dataclass
class Standing:
    """Where a run stands between two updates. Nothing else is drawn on: all chance comes from these numbers.

    Attributes:
        turns: played so far.
        update: number of the next update.
        best_turns, best_update, best_score: of the chosen checkpoint; None before the first evaluation.
        seconds: spent so far, over all sessions.
        alarms: their state.
        warnings: said so far.
        finished: whether the score at which the run ends was reached.
    """

    turns: int = 0
    update: int = 0
    best_turns: int | None = None
    best_update: int | None = None
    best_score: float | None = None
    seconds: float = 0.0
    alarms: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    finished: bool = False


class Snapshots:
    """Checkpoints of an agent's run: those to go on from, the best by evaluation, and the model before RL.

    Args:
        run: whose they are.
        keep: how many to keep to go on from.
    """

    def __init__(self, run: RunFolder, keep: int) -> None:
        self._steps = CheckpointStore(run.checkpoints, "step", keep)
        self._best = CheckpointStore(run.checkpoints, "best", EVERY_BEST)
        self._warm = CheckpointStore(run.checkpoints, "warm", 1)
        self._folder = run.checkpoints

    def save(self, vlm: VLM, optimiser: dict[str, Any], standing: Standing) -> Checkpoint:
        """Write what the run goes on from; then remove bests that nobody needs any more."""
        import torch

        def write(folder: Path) -> None:
            vlm.save(folder)
            torch.save(optimiser, folder / OPTIMISER)
            (folder / STATE).write_text(json.dumps(asdict(standing)))

        saved = self._steps.save(standing.turns, write)
        needed = {_best_turns(path) for path in self._folder.glob("step-*")}
        for path in self._folder.glob("best-*"):
            if int(path.name.rpartition("-")[2]) not in needed:
                Checkpoint(path, 0).remove()
        return saved

    def save_best(self, vlm: VLM, turns: int) -> None:
        """Keep the model as the best so far."""
        self._best.save(turns, lambda folder: vlm.save(folder))

    def save_warm(self, vlm: VLM) -> None:
        """Keep the model as it is before RL."""
        self._warm.save(0, lambda folder: vlm.save(folder))

    def warm(self) -> Path | None:
        """The model before RL, if it was kept."""
        found = self._warm.latest()
        return found.path if found else None

    def latest(self, warn: Callable[[str], None]) -> tuple[Path, Standing] | None:
        """What to go on from."""
        found = self._steps.latest(warn)
        return None if found is None else (found.path, _standing(found.path))

    def best(self, turns: int) -> Path | None:
        """The chosen model, None if it is not there or damaged."""
        found = Checkpoint(self._folder / f"best-{turns:012d}", turns)
        return None if found.damage() else found.path


def load_optimiser(folder: Path) -> dict[str, Any]:
    """The optimiser's state as it was saved."""
    import torch

    state: dict[str, Any] = torch.load(folder / OPTIMISER, map_location="cpu", weights_only=True)
    return state


def chosen_model(run: RunFolder) -> tuple[Path, int]:
    """The model that a run has chosen, and the turns before it.

    Raises:
        BadInput: nothing was chosen yet, or it is damaged.
    """
    snapshots = Snapshots(run, keep=1)
    result = run.read_json("result.json")
    latest = snapshots.latest(lambda message: None)
    turns = result["chosen_step"] if result else latest[1].best_turns if latest else None
    path = None if turns is None else snapshots.best(turns)
    if turns is None or path is None:
        raise BadInput(f"'{run.path}' has no whole checkpoint that was chosen yet; go on with --resume")
    return path, turns


def _best_turns(path: Path) -> int | None:
    """Which best a checkpoint speaks of; None also if it is damaged."""
    try:
        return _standing(path).best_turns
    except (OSError, ValueError, TypeError):
        return None


def _standing(path: Path) -> Standing:
    return Standing(**json.loads((path / STATE).read_text()))
