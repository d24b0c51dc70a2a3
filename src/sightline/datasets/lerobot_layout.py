"""Layout of a LeRobotDataset v3.0: names of its files, of its features and of its columns.

    meta/info.json                                   what is in it, and how it is laid out
    meta/stats.json                                  range, mean, spread and quantiles of each feature
    meta/tasks.parquet                               sentences, as the pandas index, and their numbers
    meta/episodes/chunk-000/file-000.parquet         a row for each episode
    data/chunk-000/file-000.parquet                  a row for each step, without its frames
    videos/KEY/chunk-000/file-000.mp4                the frames of a camera
    NAME_progress.parquet                            a reward as progress, by which LeRobot weights its training

A row is of the state *before* its action. So row t holds the frame and the state of step t - 1, or those of the reset,
and the action and rewards of step t. The state that the last step led to has no row: it stands with its episode, in
columns `final/…` of ours, which LeRobot passes over.
"""

from __future__ import annotations

from typing import Any

from sightline.errors import BadInput

VERSION = "v3.0"
INFO = "meta/info.json"
STATS = "meta/stats.json"
TASKS = "meta/tasks.parquet"
EPISODES = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
DATA = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEOS = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
FILES_PER_CHUNK = 1000
WRITING = ".writing"
"""Folder of the files that are being written."""

IMAGE = "observation.images."
STATE = "observation.state"
ACTION = "action"
TASK_INDEX = "task_index"
REWARD = "next.reward"
DONE = "next.done"
TRUNCATED = "next.truncated"
SUCCESS = "next.success"
FINAL = "final/"
"""Prefix of the columns of an episode for the state that its last step led to."""
PROGRESS = "_progress.parquet"
"""End of the name of a file with a reward as progress."""

DEFAULT_FEATURES: dict[str, dict[str, Any]] = {
    "timestamp": {"dtype": "float32", "shape": [1], "names": None},
    "frame_index": {"dtype": "int64", "shape": [1], "names": None},
    "episode_index": {"dtype": "int64", "shape": [1], "names": None},
    "index": {"dtype": "int64", "shape": [1], "names": None},
    "task_index": {"dtype": "int64", "shape": [1], "names": None},
}
"""Features of every data set of LeRobot."""


def arrow() -> Any:
    """The package pyarrow.

    Raises:
        BadInput: it is not installed.
    """
    try:
        import pyarrow
        import pyarrow.compute  # modules of their own, which are attributes from now on
        import pyarrow.parquet
    except ImportError as error:
        raise BadInput("LeRobot's data sets need pyarrow; pip install 'sightline[datasets]'") from error
    return pyarrow


def arrow_type(feature: dict[str, Any]) -> Any:
    """Type of a feature's column: a number, a list of as many as its shape says, or an image's bytes and path."""
    pyarrow = arrow()
    if feature["dtype"] == "image":
        return pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    element = pyarrow.type_for_alias(feature["dtype"])
    if feature["shape"] == [1]:
        return element
    return pyarrow.list_(element, feature["shape"][0])
