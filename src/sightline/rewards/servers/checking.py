"""A check of servers that somebody else has written: whether they keep to the protocol sightline v1."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from sightline.errors import BadInput
from sightline.rewards.base import Unavailable
from sightline.rewards.servers.client import RewardClient
from sightline.rewards.servers.protocols import VERSION, Query, Request, ServerInfo, SightlineProtocol
from sightline.rewards.servers.wire import JSON, FormPart, Malformed, form

WORDS = "a red ball lies on the floor"
LENGTHS = (1, 3)
"""Frames of the clips that are sent."""


def check_server(url: str, key_env: str | None) -> list[str]:
    """Ask a server that reads frames a few questions, with pictures of noise.

    Args:
        key_env: environment variable with the server's token; None for none.

    Returns:
        What it does against the protocol, one line each; nothing if it keeps to it.

    Raises:
        BadInput: it turns questions down, or reads states, whose shape nobody knows here.
        RunFailed: it does not answer.
    """
    client = RewardClient(
        url, key_env=key_env, headers={}, insecure_http=False, timeout=60.0, retries=0, spend=lambda costs: None
    )
    document = client.get("/info")
    try:
        info = SightlineProtocol().info(lambda path: document)
    except Malformed as error:
        return [f"/info: {error}"]
    if "states" in info.needs:
        raise BadInput("this server reads states; only those that read nothing but frames and words can be checked")
    try:
        complaints = _wrong_rewards(client, info, document.get("deterministic") is True)
    except Unavailable as error:
        return [f"/score: {error}"]
    if _accepts_nothing(client):
        complaints.append("/score: a clip whose frames are not in the form gets rewards; answer with status 400")
    return complaints


def _wrong_rewards(client: RewardClient, info: ServerInfo, is_deterministic: bool) -> list[str]:
    """What is wrong with rewards that can be read."""
    rng = np.random.default_rng(0)
    lengths = [min(length, info.max_frames or length) for length in LENGTHS]
    clips = [rng.integers(0, 256, (length, *(info.size or (64, 64)), 3), np.uint8) for length in lengths]
    together = _rewards(client, info, clips)
    # Rewards that are drawn at random cannot be compared.
    if not is_deterministic:
        return []
    complaints = []
    alone = [_rewards(client, info, [clip])[0] for clip in clips]
    if not _all_near(together, alone):
        complaints.append("/score: a clip gets other rewards with another clip beside it than alone")
    if not _all_near([values[-1:] for values in alone], _rewards(client, info, clips, only_last=True)):
        complaints.append("/score: want=last is answered with another reward than the last one of want=frames")
    if info.scope == "frame":
        backwards = _rewards(client, info, [clip[::-1] for clip in clips])
        if not _all_near([values[::-1] for values in backwards], alone):
            complaints.append("/score: rewards depend on the order of frames, and the scope is 'frame'")
    return complaints


def _rewards(
    client: RewardClient, info: ServerInfo, clips: Sequence[np.ndarray], only_last: bool = False
) -> list[np.ndarray]:
    """The rewards of clips, asked for in one request: float32[T], or float32[1] of the last frame.

    Raises:
        Unavailable: it is not answered, or not as the protocol says.
    """
    protocol = SightlineProtocol()
    queries = []
    for clip in clips:
        steps = None if info.scope == "frame" else np.arange(len(clip))
        frames = functools.partial(np.asarray, clip)
        queries.append(Query(len(clip), 1 if only_last else len(clip), frames, steps=steps))
    answers: list[list[np.ndarray]] = []
    client.post_all(
        1,
        lambda number: protocol.request(queries, WORDS if "instruction" in info.needs else None),
        lambda number, document: protocol.values(document, queries, info, False),
        lambda number, values: answers.append(values),
    )
    return answers[0]


def _accepts_nothing(client: RewardClient) -> bool:
    """Whether a request without frames is answered as if all were well."""
    clip = {"id": "0", "instruction": WORDS, "frames": "nowhere", "t": [0]}
    request: dict[str, Any] = {"version": VERSION, "clips": [clip], "want": "frames"}
    body, content_type = form([FormPart("request", json.dumps(request).encode(), kind=JSON)])
    try:
        client.post_all(
            1,
            lambda number: Request("/score", body, content_type),
            lambda number, document: True,
            lambda number, done: None,
        )
    except Unavailable:
        return False
    return True


def _all_near(some: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> bool:
    """Whether rewards are equal but for rounding, which changes with the size of a batch."""
    return all(
        np.allclose(one, other, rtol=1e-3, atol=1e-3, equal_nan=True) for one, other in zip(some, others, strict=True)
    )
