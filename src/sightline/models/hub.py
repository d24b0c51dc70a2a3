"""Names of models on the Hugging Face hub, and access to it without log output and without a minute of retries where
there is no network."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit


def means_folder(name: str) -> bool:
    """True if a model's name is that of a folder, there or not, and not `owner/name` on the hub."""
    return name.startswith(("/", ".", "~")) or name.count("/") > 1 or Path(name).exists()


@contextlib.contextmanager
def quiet_hub(offline: bool) -> Iterator[None]:
    """Silence the hub's client within the context, and restrict it to its cache if there is no network.

    Args:
        offline: restrict it to the cache in any case.
    """
    from huggingface_hub import constants

    # Without a network the client repeats each request for a minute; one attempt to connect tells beforehand.
    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before or offline or not _reachable(constants.ENDPOINT)
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        constants.HF_HUB_OFFLINE = before


def _reachable(endpoint: str, seconds: float = 3.0) -> bool:
    """True if the hub accepts connections; behind a proxy it is assumed to."""
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True
    parts = urlsplit(endpoint)
    usual_port = 80 if parts.scheme == "http" else 443
    port = parts.port or usual_port
    try:
        socket.create_connection((parts.hostname or "", port), timeout=seconds).close()
    except OSError:
        return False
    return True
