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
from sightline.rewards.servers.serving import TOKEN_ENV
from sightline.rewards.servers.wire import JSON, NPY, FormPart, Malformed, form, npy

WORDS = "a red ball lies on the floor"
LENGTHS = (1, 3)
"""Frames of the clips that are sent; and as many as the server takes, if it says how many."""
MOST_FRAMES = 256
"""Frames of a clip that are sent at most, however many a server takes."""


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
    # Noise may go to another machine by http; a token may not.
    client = RewardClient(
        url, key_env=key_env, headers={}, insecure_http=not key_env, timeout=60.0, retries=0, spend=lambda costs: None
    )
    try:
        document = client.get("/info")
    except BadInput as error:
        if key_env is None:
            raise BadInput(f"{error}; for this check the environment variable {TOKEN_ENV} holds the key") from error
        raise
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
    if _is_answered(client, _request_of(VERSION, holds_frames=False)):
        complaints.append("/score: a clip whose frames are not in the form gets rewards; answer with status 400")
    if _is_answered(client, _request_of(VERSION + 98, holds_frames=True)):
        complaints.append(f"/score: version {VERSION + 98} of the protocol gets rewards; answer with status 400")
    if key_env is not None and _lets_in_anybody(url, info):
        complaints.append("/score: a request with a wrong token gets rewards; answer with status 401")
    return complaints


def _wrong_rewards(client: RewardClient, info: ServerInfo, is_deterministic: bool) -> list[str]:
    """What is wrong with rewards that can be read."""
    rng = np.random.default_rng(0)
    lengths = [min(length, info.max_frames or length) for length in LENGTHS]
    if info.max_frames is not None:
        lengths.append(min(info.max_frames, MOST_FRAMES))
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
        lambda number, document: _values(document, queries, info),
        lambda number, values: answers.append(values),
    )
    return answers[0]


def _values(document: Any, queries: Sequence[Query], info: ServerInfo) -> list[np.ndarray]:
    """The rewards in an answer, which may hold probabilities of success beside them.

    Raises:
        Malformed: one of the two is not as the protocol says.
    """
    protocol = SightlineProtocol()
    values = protocol.values(document, queries, info, False)
    if document.get("success") is None:
        return values
    try:
        rows = protocol.values(document, queries, info, True)
    except Malformed as error:
        raise Malformed(f"its 'success': {error}") from error
    # Where there is no answer, nothing is compared.
    chances = np.concatenate([np.zeros(1), *(row[~np.isnan(row)] for row in rows)])
    if chances.min() < 0 or chances.max() > 1:
        raise Malformed("its 'success' holds a number that is no probability from 0 to 1")
    return values


def _lets_in_anybody(url: str, info: ServerInfo) -> bool:
    """Whether a server that wants a token answers a request with another one."""
    stranger = RewardClient(
        url,
        key_env=None,
        headers={"Authorization": "Bearer this-is-not-the-token"},
        insecure_http=True,  # it is not the token
        timeout=60.0,
        retries=0,
        spend=lambda costs: None,
    )
    try:
        _rewards(stranger, info, [np.zeros((1, *(info.size or (64, 64)), 3), np.uint8)])
    except Unavailable:
        return False
    return True


def _request_of(version: int, holds_frames: bool) -> Request:
    """A request of some version for a clip of one black frame, which it holds or not."""
    clip = {"id": "0", "instruction": WORDS, "frames": "f0", "t": [0]}
    document: dict[str, Any] = {"version": version, "clips": [clip], "want": "frames"}
    parts = [FormPart("request", json.dumps(document).encode(), kind=JSON)]
    if holds_frames:
        parts.append(FormPart("f0", npy(np.zeros((1, 64, 64, 3), np.uint8)), "f0.npy", NPY))
    return Request("/score", *form(parts))


def _is_answered(client: RewardClient, request: Request) -> bool:
    """Whether a request is answered as if all were well."""
    try:
        client.post_all(1, lambda number: request, lambda number, document: True, lambda number, done: None)
    except Unavailable:
        return False
    return True


def _all_near(some: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> bool:
    """Whether rewards are equal but for rounding, which changes with the size of a batch."""
    return all(
        np.allclose(one, other, rtol=1e-3, atol=1e-3, equal_nan=True) for one, other in zip(some, others, strict=True)
    )
