"""A stub of Robometer's evaluation server, with its defects: what it does not understand is dropped, or a 500."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np

from sightline.rewards.servers.wire import FormPart

INFO: dict[str, Any] = {
    "/health": {"status": "healthy"},
    "/model_info": {"model_path": "robometer/Robometer-4B", "num_bins": 10},
}


def robometer(
    progress: Callable[[np.ndarray], np.ndarray], baseline: bool = False
) -> Callable[[dict[str, FormPart], int], Any]:
    """The server's answer.

    Args:
        progress: uint8[T, H, W, 3] -> float[T], for each frame of a clip.
        baseline: whether it is the baseline server, which puts probabilities of success beside the progress.
    """

    def answer(parts: dict[str, FormPart], number: int) -> Any:
        # Files of any other ending are skipped, and then the sample's array is missing.
        files = {name: part.content for name, part in parts.items() if part.file_name.endswith(".npy")}
        assert parts["use_frame_steps"].content == b"false"
        rows: list[list[float]] = []
        sample = 0
        while f"sample_{sample}" in parts:  # a gap in the numbering drops what comes after it
            fields = json.loads(parts[f"sample_{sample}"].content)
            trajectory = fields["trajectory"]
            name = trajectory["frames"]["__numpy_file__"]
            if name not in files:
                return 500, b"Internal Server Error"
            frames = np.load(io.BytesIO(files[name]), allow_pickle=False)
            assert fields["sample_type"] == "progress" and trajectory["video_embeddings"] is None
            assert trajectory["frames_shape"] == list(frames.shape) and isinstance(trajectory["id"], str)
            assert trajectory["metadata"] == {"subsequence_length": len(frames)} and trajectory["task"] == "stand up"
            rows.append(progress(frames).astype(float).tolist())
            sample += 1
        if len({len(row) for row in rows}) > 1:
            return 500, b"stack expects each tensor to be equal size"
        success = [[value / 2 for value in row] for row in rows]
        if baseline:
            return {"outputs_progress": {"progress_pred": rows, "success_probs": success}, "outputs_success": None}
        return {
            "outputs_preference": None,
            "outputs_progress": {"progress_pred": rows},
            "outputs_success": {"success_probs": success},
        }

    return answer
