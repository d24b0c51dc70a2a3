"""Connection to a Ray cluster, checked before anything depends on it."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import tempfile
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
    try:
        import ray
    except ImportError as error:
        raise BadInput(MISSING) from error
    _check_address(address)
    # Ray takes SIGTERM for itself, by which a run is asked to save.
    handler = signal.getsignal(signal.SIGTERM)
    said: list[str] = []
    try:
        with _apart_from_stderr(said):
            ray.init(address=address, namespace="sightline", log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # a ConnectionError, a RuntimeError or one of Ray's own
        raise BadInput(_reason(address, error, " ".join(said))) from error
    finally:
        with contextlib.suppress(ValueError):  # only the main thread may, and only there Ray has
            signal.signal(signal.SIGTERM, handler)
    try:
        yield ray
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _apart_from_stderr(said: list[str]) -> Iterator[None]:
    """Context in which what C code writes to stderr is kept: while it is refused, Ray says so once a second."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as file:
        try:
            stderr = os.dup(2)
        except OSError:  # it is closed
            yield
            return
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            file.seek(0)
            said.append(file.read().decode(errors="replace"))


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


def _reason(address: str, error: Exception, said: str = "") -> str:
    """Why a cluster cannot be joined, in one line.

    Args:
        said: what Ray wrote to stderr meanwhile, since its error does not name a token.
    """
    text = " ".join(str(error).split())[:300]
    if "Could not find any running Ray" in text:
        return (
            f"--cluster {address}: no Ray cluster runs on this machine; start one by 'ray start --head', or say where"
        )
    if "ersion mismatch" in text:
        return f"--cluster {address}: another version of Ray or Python runs there; install the same one here: {text}"
    if any(word in f"{text} {said}" for word in ("uthentica", "AuthToken", "token")):
        return (
            f"--cluster {address}: it wants a token; set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH, as on its nodes: "
            f"{text}"
        )
    return f"--cluster {address}: it cannot be joined: {text}"
