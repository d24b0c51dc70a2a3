"""Connection to a Ray cluster, checked before anything depends on it."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
from collections.abc import Iterator
from typing import Any

from sightline.errors import BadInput

CONNECT_SECONDS = 5.0
"""Time in which an address has to accept a connection."""
MISSING = "--cluster needs Ray; pip install 'sightline[cluster]'"


@contextlib.contextmanager
def connected(address: str) -> Iterator[Any]:
    """Context in which this process is a driver of a cluster; gives the module `ray`.

    Args:
        address: `auto` for the cluster of this machine, `HOST:PORT` of a head node, or `ray://HOST:PORT`.

    Raises:
        BadInput: Ray is missing, nobody answers, another version of Ray or Python runs there, or it wants a token.
    """
    # Else Ray's own threads write to this terminal, a line a second while a token is refused.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "error")
    try:
        import ray
    except ImportError as error:
        raise BadInput(MISSING) from error
    _check_address(address)
    # Ray takes SIGTERM for itself, by which a run is asked to save.
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address, namespace="sightline", log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # a ConnectionError, a RuntimeError or one of Ray's own
        raise BadInput(_reason(address, error)) from error
    finally:
        with contextlib.suppress(ValueError):  # only the main thread may, and only there Ray has
            signal.signal(signal.SIGTERM, handler)
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_address(address: str) -> None:
    """Refuse an address that is none, or that accepts no connection, which Ray waits for in vain for minutes."""
    if address == "auto":
        return
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not host or not port.isdigit():
        raise BadInput(f"--cluster {address[:100]}: say auto, HOST:PORT (Ray's usual port is 6379) or ray://HOST:PORT")
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise BadInput(
            f"--cluster {address[:100]}: nobody answers there ({error}); start a cluster by 'ray start --head', or "
            "correct the address"
        ) from error


def _reason(address: str, error: Exception) -> str:
    """Why a cluster cannot be joined, in one line."""
    text = " ".join(str(error).split())[:300]
    if "Could not find any running Ray" in text:
        return (
            f"--cluster {address}: no Ray cluster runs on this machine; start one by 'ray start --head', or say where"
        )
    if "ersion mismatch" in text:
        return f"--cluster {address}: another version of Ray or Python runs there; install the same one here: {text}"
    settings = "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH, as on its nodes"
    if "uthentication" in text or "token" in text.lower():
        return f"--cluster {address}: it wants a token; {settings}: {text}"
    if "Failed to connect to Ray cluster" in text:  # what Ray says without a token
        return f"--cluster {address}: what answers there lets nobody in; if it wants a token, {settings}"
    return f"--cluster {address}: it cannot be joined: {text}"
