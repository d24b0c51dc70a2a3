"""The state of a run as files: a model as Hugging Face writes it, the optimiser, and where the run stands."""

from __future__ import annotations

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
"""Bests are removed by `AgentCheckpoints.save` alone, once no checkpoint speaks of them."""


@dataclass
class AgentTrainerState:
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
    """Checkpoints of an agent's run: those to go on from, the best by evaluation, and the model before RL.

    Args:
        run: whose they are.
        keep: how many to keep to go on from.
    """

    def __init__(self, run: RunFolder, keep: int) -> None:
        self._steps = CheckpointStore(run, "step", keep)
        self._best = CheckpointStore(run, "best", EVERY_BEST)
        self._warm = CheckpointStore(run, "warm", 1)

    def save(self, vlm: VLM, optimiser: OptimiserState, standing: AgentTrainerState) -> Checkpoint:
        """Write what the run goes on from; then remove bests that nobody needs any more."""

        def write(folder: Path) -> None:
            vlm.save(folder)
            write_state(folder / OPTIMISER, optimiser)
            write_document(folder / STATE, asdict(standing))

        saved = self._steps.save(standing.turns, write)
        needed = {_best_turns(step.path) for step in self._steps.all()}
        for best in self._best.all():
            if best.step not in needed:
                best.remove()
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

    def latest(self, warn: Callable[[str], None]) -> tuple[Path, AgentTrainerState] | None:
        """What to go on from."""
        found = self._steps.latest(warn)
        return None if found is None else (found.path, _standing(found.path))

    def best(self, turns: int) -> Path:
        """The chosen model.

        Raises:
            Damaged: it is not there, or damaged.
        """
        for found in self._best.all():
            if found.step == turns:
                if damage := found.damage():
                    raise Damaged(f"the chosen checkpoint '{found.path}' is damaged ({damage}); train again")
                return found.path
        raise Damaged(f"the chosen checkpoint of turn {turns} is gone; train again")


def load_optimiser(folder: Path) -> OptimiserState:
    """The optimiser's state as it was saved.

    Raises:
        Damaged: the file is none.
    """
    state: OptimiserState = read_state(folder / OPTIMISER)
    return state


def chosen_model(run: RunFolder) -> tuple[Path, int]:
    """The model that a run has chosen, and the turns before it.

    Raises:
        BadInput: nothing was chosen yet.
        Damaged: it is, or what says which it is.
    """
    snapshots = AgentCheckpoints(run, keep=1)
    result = run.read_json("result.json")
    latest = None if result else snapshots.latest(lambda message: None)
    turns = result.get("chosen_step") if result else latest[1].best_turns if latest else None
    if turns is None:
        raise BadInput(f"'{run.path}' has no chosen checkpoint yet; go on with --resume until its first evaluation")
    if not isinstance(turns, int):
        raise Damaged(f"'{run.path / 'result.json'}' is damaged: chosen_step is {str(turns)[:40]!r}")
    return snapshots.best(turns), turns


def _best_turns(path: Path) -> int | None:
    """Which best a checkpoint speaks of; None also if it is damaged."""
    try:
        return _standing(path).best_turns
    except (OSError, BadInput):
        return None


def _standing(path: Path) -> AgentTrainerState:
    document = read_document(path / STATE)
    try:
        return TypeAdapter(AgentTrainerState).validate_python(document)
    except ValidationError as error:
        raise Damaged(f"'{path / STATE}' is damaged: {error.errors()[0]['msg']}") from error
