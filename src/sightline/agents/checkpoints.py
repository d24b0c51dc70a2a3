"""Checkpoints of an agent's run: weights in Hugging Face's format, optimiser state, and trainer state."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from sightline.agents.engines.optimisers import OptimiserState
from sightline.errors import BadInput, Damaged
from sightline.models.vlm.model import VLM
from sightline.runs.checkpoints import Checkpoint, CheckpointStore
from sightline.runs.files import read_document, write_document
from sightline.runs.folder import RunFolder
from sightline.runs.state import read_state, write_state

STATE, OPTIMISER = "state.json", "optimiser.safetensors"
EVERY_BEST = 10**6
"""Number of best checkpoints to keep, never reached: `AgentCheckpoints.save` removes those that no state refers to."""


@dataclass
class AgentTrainerState:
    """Trainer state between two updates. All randomness of the rest of the run is derived from it and the recipe.

    Attributes:
        turns: played so far.
        update: number of the next update.
        best_turns, best_update, best_score: of the best checkpoint; None before the first evaluation.
        seconds: wall-clock time so far, over all sessions.
        alarms: state of `Alarms`.
        warnings: issued so far.
        finished: the score of `evaluation.stop_at` was reached.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    turns: int = 0
    update: int = 0
    best_turns: int | None = None
    best_update: int | None = None
    best_score: float | None = None
    seconds: float = 0.0
    alarms: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    finished: bool = False


class AgentCheckpoints:
    """Store of a run's checkpoints: those to resume from, the best by evaluation, and the model before RL.

    Args:
        run: their run folder.
        keep: number of checkpoints to resume from.
    """

    def __init__(self, run: RunFolder, keep: int) -> None:
        self._steps = CheckpointStore(run, "step", keep)
        self._best = CheckpointStore(run, "best", EVERY_BEST)
        self._warm = CheckpointStore(run, "warm", 1)

    def save(self, vlm: VLM, optimiser: OptimiserState, state: AgentTrainerState) -> Checkpoint:
        """Write a checkpoint to resume from; then remove best ones that no kept state refers to."""

        def write(folder: Path) -> None:
            vlm.save(folder)
            write_state(folder / OPTIMISER, optimiser)
            write_document(folder / STATE, asdict(state))

        saved = self._steps.save(state.turns, write)
        # A run that is resumed from an older checkpoint needs the best of that time.
        needed = set()
        for step in self._steps.all():
            with contextlib.suppress(OSError, BadInput):  # damaged: it cannot be resumed from
                needed.add(_trainer_state(step.path).best_turns)
        for best in self._best.all():
            if best.step not in needed:
                best.remove()
        return saved

    def save_best(self, vlm: VLM, turns: int) -> None:
        """Save the model as the best so far."""
        self._best.save(turns, lambda folder: vlm.save(folder))

    def save_warm(self, vlm: VLM) -> None:
        """Save the model after its warm start: the reference model."""
        self._warm.save(0, lambda folder: vlm.save(folder))

    def warm(self) -> Path | None:
        """Folder of the model after its warm start, if it was saved."""
        found = self._warm.latest()
        return found.path if found else None

    def latest(self, warn: Callable[[str], None]) -> tuple[Path, AgentTrainerState] | None:
        """Newest complete checkpoint to resume from, with its trainer state."""
        found = self._steps.latest(warn)
        return None if found is None else (found.path, _trainer_state(found.path))

    def best(self, turns: int) -> Path:
        """Folder of the best model.

        Raises:
            Damaged: it is missing or damaged.
        """
        for found in self._best.all():
            if found.step == turns:
                if damage := found.damage():
                    raise Damaged(f"the chosen checkpoint '{found.path}' is damaged ({damage}); train again")
                return found.path
        raise Damaged(f"the chosen checkpoint of turn {turns} is gone; train again")


def read_optimiser_state(folder: Path) -> OptimiserState:
    """Read the optimiser state of a checkpoint.

    Raises:
        Damaged: the file is not one.
    """
    state: OptimiserState = read_state(folder / OPTIMISER)
    return state


def chosen_model(run: RunFolder) -> tuple[Path, int]:
    """Folder of a run's best model, and the turns played before it.

    Raises:
        BadInput: the run has no evaluation yet.
        Damaged: the model, or the file that names it.
    """
    checkpoints = AgentCheckpoints(run, keep=1)
    result = run.read_json("result.json")
    latest = None if result else checkpoints.latest(lambda message: None)
    turns = result.get("chosen_step") if result else latest[1].best_turns if latest else None
    if turns is None:
        raise BadInput(f"'{run.path}' has no chosen checkpoint yet; go on with --resume until its first evaluation")
    if not isinstance(turns, int):
        raise Damaged(f"'{run.path / 'result.json'}' is damaged: chosen_step is {str(turns)[:40]!r}")
    return checkpoints.best(turns), turns


def _trainer_state(path: Path) -> AgentTrainerState:
    document = read_document(path / STATE)
    try:
        return TypeAdapter(AgentTrainerState).validate_python(document)
    except ValidationError as error:
        raise Damaged(f"'{path / STATE}' is damaged: {error.errors()[0]['msg']}") from error
