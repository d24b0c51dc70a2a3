"""What lies in the files of a run with a policy, put together without the code that restores it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from sightline.runs.state import read_state


def newest_checkpoint(run: Path) -> Path:
    return max((run / "checkpoints").glob("step-*"))


def session_of(run: Path, checkpoint: Path | None = None) -> dict[str, Any]:
    """Everything in a checkpoint but the learner's networks."""
    state: dict[str, Any] = read_state((checkpoint or newest_checkpoint(run)) / "collection.safetensors")
    return state


def rows_of(run: Path, kind: str, checkpoint: Path | None = None) -> dict[str, np.ndarray]:
    """All archived rows of one kind that a checkpoint names, oldest first."""
    parts = [read_state(run / "replay" / part["name"]) for part in session_of(run, checkpoint)["archives"][kind]]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if parts else {}


def replay_of(run: Path, checkpoint: Path | None = None) -> dict[str, np.ndarray]:
    """The replay buffer in order of time: [T, envs, …] each; `full` says whether the ring has come round."""
    session = session_of(run, checkpoint)
    replay, archived = session["replay"], rows_of(run, "transitions", checkpoint)
    kept = len(replay["rewards"])
    rows = {
        name: np.concatenate([archived[name], last] if archived else [last])[-kept:]
        for name, last in replay["waiting"].items()
    }
    return rows | {
        "rewards": replay["rewards"],
        "committed": replay["committed"],
        "full": np.array(replay["rows_added"] > kept),
    }
