"""Protocols of reward servers, as a client speaks them: sightline v1, which is ours, and that of Robometer's servers.

A protocol says how a server is asked what it is (`info`), how questions are written (`request`), and what its answer
says (`values`). What travels in which form, `docs/reward-servers.md` says.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, get_args

import numpy as np

from sightline.rewards.scopes import ScopeKind
from sightline.rewards.servers.wire import JSON, NPY, FormPart, Malformed, field_of, form, npy

VERSION = 1
"""Of the protocol sightline."""
Output = Literal["progress", "success", "difference"]
FRAMES_OF_ROBOMETER = 8
"""Frames of a clip that Robometer was trained with."""
MOST = float(np.finfo(np.float32).max)
"""The largest number that a reward can be."""


class OtherModel(Exception):
    """Another model answers than at the start."""


@dataclass(frozen=True)
class ServerInfo:
    """What a reward server says of itself.

    Attributes:
        model: name of its model, with all that its rewards depend on.
        needs: what it reads: `frames`, `states` and `instruction`.
        scope: what a reward depends on: the `frame` alone, the last `window` frames, all since the reset (`prefix`), or
            a whole `episode`.
        window: frames, for that scope.
        max_frames: of a clip; None for any number.
        size: height and width at which frames are best sent; None for any.
        equal_lengths: whether all clips of a request must have as many frames.
    """

    model: str
    needs: frozenset[str] = frozenset({"frames"})
    scope: ScopeKind = "frame"
    window: int = 1
    max_frames: int | None = None
    size: tuple[int, int] | None = None
    equal_lengths: bool = False


@dataclass(frozen=True, eq=False)
class Query:
    """A question: T consecutive frames, or states, of one environment, of which the last ones are to be judged.

    Attributes:
        length: T.
        wanted: for how many of them, from the last one backwards, an answer is wanted.
        frames: gives uint8[T, H, W, 3] when they are needed, so that few are in memory; None if the server does not
            read them.
        states: float32[T, …]; None if it does not read them.
        steps: int[T], of the episode, when each was seen: 0 is the reset frame. None for frames that are judged alone.
    """

    length: int
    wanted: int
    frames: Callable[[], np.ndarray] | None = None
    states: np.ndarray | None = None
    steps: np.ndarray | None = None

    def digest(self) -> bytes:
        """The same for equal questions alone."""
        content = hashlib.sha256()
        frames = None if self.frames is None else self.frames()
        for array in (frames, self.states, self.steps):
            if array is not None:
                content.update(f"{array.dtype}{array.shape}{self.wanted}".encode())
                content.update(np.ascontiguousarray(array).data)
        return content.digest()


@dataclass(frozen=True)
class Request:
    """What is posted to a server."""

    path: str
    body: bytes
    content_type: str


class RewardProtocol(Protocol):
    """A protocol of reward servers."""

    probe: ClassVar[str]
    """Path by which a server is asked whether it is there."""

    def info(self, get: Callable[[str], Any]) -> ServerInfo:
        """What the server is.

        Args:
            get: fetches the JSON document at a path.

        Raises:
            Malformed: it does not say so.
        """
        ...

    def request(self, queries: Sequence[Query], instruction: str | None) -> Request:
        """The request that asks these questions."""
        ...

    def values(self, document: Any, queries: Sequence[Query], info: ServerInfo, success: bool) -> list[np.ndarray]:
        """The answers in a document, float32[wanted] for each question; NaN where there is no answer.

        Args:
            success: probabilities of success are wanted, and not rewards.

        Raises:
            Malformed: it holds something else, or another number of answers.
            OtherModel: it is from another model than that of `info`.
        """
        ...


class SightlineProtocol:
    """The protocol sightline v1.

    Args:
        camera: the name that frames are given; empty for none.
    """

    probe: ClassVar[str] = "/info"

    def __init__(self, camera: str = "") -> None:
        self._camera = camera

    def info(self, get: Callable[[str], Any]) -> ServerInfo:
        document = get("/info")
        version = field_of(document, "version", int, "its info")
        if version != VERSION:
            raise Malformed(f"it speaks version {version} of the protocol, and this is version {VERSION}")
        needs = frozenset(map(str, field_of(document, "needs", list, "its info")))
        if not needs <= {"frames", "states", "instruction"} or not needs & {"frames", "states"}:
            raise Malformed(f"it needs {', '.join(sorted(needs))[:80] or 'nothing'}, not frames, states, instruction")
        scope = field_of(document, "scope", str, "its info")
        if scope not in get_args(ScopeKind):
            raise Malformed(f"its scope is '{scope[:40]}', and only {', '.join(get_args(ScopeKind))} can be asked")
        model = field_of(document, "model", str, "its info")
        return ServerInfo(
            " ".join(model.split())[:500],
            needs,
            scope,
            _positive(document.get("window", 1), "window"),
            None if document.get("max_frames") is None else _positive(document["max_frames"], "max_frames"),
            _size(document.get("size")),
        )

    def request(self, queries: Sequence[Query], instruction: str | None) -> Request:
        clips = []
        arrays = []
        for number, query in enumerate(queries):
            clip: dict[str, Any] = {"id": str(number), "instruction": instruction}
            if query.frames is not None:
                name = f"f{number}"
                clip["frames"] = {self._camera: name} if self._camera else name
                arrays.append(FormPart(name, npy(query.frames()), f"{name}.npy", NPY))
            if query.states is not None:
                clip["states"] = f"s{number}"
                arrays.append(FormPart(f"s{number}", npy(query.states), f"s{number}.npy", NPY))
            if query.steps is not None:
                clip["t"] = query.steps.tolist()
            clips.append(clip)
        want = "frames" if any(query.wanted > 1 for query in queries) else "last"
        document = {"version": VERSION, "clips": clips, "want": want}
        body, content_type = form([FormPart("request", json.dumps(document).encode(), kind=JSON), *arrays])
        return Request("/score", body, content_type)

    def values(self, document: Any, queries: Sequence[Query], info: ServerInfo, success: bool) -> list[np.ndarray]:
        model = field_of(document, "model", str, "the answer")
        if " ".join(model.split())[:500] != info.model:
            raise OtherModel(f"it is of the model '{model[:80]}', and that of '{info.model[:80]}' was asked")
        name = "success" if success else "rewards"
        rows = field_of(document, name, list, "the answer")
        wants_all = any(query.wanted > 1 for query in queries)
        lengths = [query.length if wants_all else 1 for query in queries]
        return _wanted(rows, lengths, queries)


class RobometerProtocol:
    """The protocol of Robometer's evaluation server, and of the baseline server beside it.

    Each question is a clip of the whole episode so far, of which the last number counts. Failures are 500 there, and a
    sample that is not understood is dropped without a word, so that answers are counted.
    """

    probe: ClassVar[str] = "/health"

    def info(self, get: Callable[[str], Any]) -> ServerInfo:
        get("/health")
        facts = get("/model_info")
        if not isinstance(facts, dict):
            raise Malformed("its model_info is no JSON object")
        # Versions name their model by other keys; the whole tells two models apart in any case.
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]
        names = [str(facts[key]) for key in ("model_path", "model_name", "model") if isinstance(facts.get(key), str)]
        name = " ".join([*names[:1], digest])
        needs = frozenset({"frames", "instruction"})
        return ServerInfo(name, needs, "prefix", max_frames=FRAMES_OF_ROBOMETER, equal_lengths=True)

    def request(self, queries: Sequence[Query], instruction: str | None) -> Request:
        parts = []
        for number, query in enumerate(queries):
            assert query.frames is not None, "it reads frames"
            frames = query.frames()
            name = f"sample_{number}_trajectory_frames"
            trajectory = {
                "frames": {"__numpy_file__": name},
                "frames_shape": list(frames.shape),
                "task": instruction,
                "id": str(number),
                "metadata": {"subsequence_length": query.length},
                "video_embeddings": None,
            }
            sample = {"sample_type": "progress", "trajectory": trajectory}
            parts.append(FormPart(f"sample_{number}", json.dumps(sample).encode()))
            # The server skips files of any other ending.
            parts.append(FormPart(name, npy(frames), f"{name}.npy", NPY))
        # One pass over the frames that are sent, and not one over a clip of each.
        parts.append(FormPart("use_frame_steps", b"false"))
        body, content_type = form(parts)
        return Request("/evaluate_batch_npy", body, content_type)

    def values(self, document: Any, queries: Sequence[Query], info: ServerInfo, success: bool) -> list[np.ndarray]:
        progress = field_of(document, "outputs_progress", dict, "the answer")
        if success:
            # The baseline server puts them beside the progress.
            beside = document.get("outputs_success")
            rows = field_of(beside if isinstance(beside, dict) else progress, "success_probs", list, "the answer")
        else:
            rows = field_of(progress, "progress_pred", list, "the answer")
        return _wanted(rows, [query.length for query in queries], queries)


def _wanted(rows: Sequence[Any], lengths: Sequence[int], queries: Sequence[Query]) -> list[np.ndarray]:
    """The last numbers of each row, as many as are wanted of its question.

    Raises:
        Malformed: another number of rows, or of numbers in one of them, or something that is no number.
    """
    if len(rows) != len(queries):
        raise Malformed(f"the answer is for {len(rows)} clips, and {len(queries)} were sent")
    values = []
    for row, length, query in zip(rows, lengths, queries, strict=True):
        if not isinstance(row, list) or len(row) != length:
            count = len(row) if isinstance(row, list) else "no"
            raise Malformed(f"the answer has {count} numbers for a clip, and {length} were asked for")
        values.append(np.array([_number(value) for value in row[-query.wanted :]], np.float32))
    return values


def _number(value: Any) -> float:
    """A number of an answer; NaN for null."""
    if value is None:
        return float("nan")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Malformed(f"the answer has {type(value).__name__} where a number or null is due")
    # Compared like this, NaN is refused, too. Whole numbers in JSON may be of any length.
    if not abs(value) <= MOST:
        raise Malformed("the answer has a number that is NaN or infinite; null says that there is no answer")
    return float(value)


def _positive(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise Malformed(f"its info says {name}={str(value)[:40]}, and it must be a whole number from 1")
    return value


def _size(value: Any) -> tuple[int, int] | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2:
        raise Malformed("its info says a size that is not [height, width]")
    height, width = (_positive(side, "size") for side in value)
    return height, width
