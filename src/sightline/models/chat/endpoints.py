"""Endpoints: the server that requests go to, and the API key that may be sent there.

A key is worth money to whoever reads it. So a provider's usual key goes to that provider alone, any other server gets
only a key that the recipe names for it, and none travels over a network in plain text. Questions and their pictures do
so only where the recipe allows it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from urllib.parse import urlsplit

from sightline.errors import BadInput
from sightline.runs.trust import is_this_machine

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Endpoint:
    """A server and its key.

    Attributes:
        url: without a slash at its end.
        key_env: the environment variable whose key is sent there; None for no key.
        where: host, and port and path where they are not the usual ones: `localhost:8000`. Two servers never share it.
    """

    url: str
    key_env: str | None
    where: str


def resolve_endpoint(
    url: str | None,
    key_env: str | None,
    hosted: str,
    hosted_key: str,
    usual_path: str = "",
    needs_key: bool = False,
    insecure_http: bool = False,
) -> Endpoint:
    """Find the server that a recipe means, and the key that it gets.

    Args:
        url: what the recipe says; None for the provider's own service.
        key_env: what the recipe says; None for the provider's usual key, which no other server gets.
        hosted, hosted_key: address and variable of the provider's own service.
        usual_path: of addresses of this kind, which need not be told apart by it.
        needs_key: whether no request is answered without a key.
        insecure_http: whether another machine may be asked by http, without a key.

    Raises:
        BadInput: the address is none; a key would be sent in plain text, or pictures against the recipe's will; or a
            key is needed, the server is not the provider's, and the recipe names no key for it.
    """
    url = (url or hosted).rstrip("/")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = None
    if host is None or parts.scheme not in _PORTS:
        raise BadInput(f"url '{url}' is no address of a server; write it like http://localhost:8000{usual_path}")
    is_provider = parts.scheme == "https" and host == urlsplit(hosted).hostname
    key_env = key_env or (hosted_key if is_provider else None)
    if parts.scheme == "http" and not is_this_machine(url):
        if key_env:
            raise BadInput(f"the key in {key_env} would go to {host} in plain text; say https:// in url")
        if not insecure_http and not needs_key:  # where a key is needed, its lack is said below
            raise BadInput(
                f"questions and their pictures would go to {host} in plain text; say https:// in url, or allow it by "
                "insecure_http=true (evaluate: --insecure-http) if you trust the network between"
            )
    shown_port = f":{port}" if port not in (None, _PORTS[parts.scheme]) else ""
    shown_host = f"[{host}]" if ":" in host else host
    path = parts.path.rstrip("/")
    where = shown_host + shown_port + (path if path != usual_path else "")
    if key_env is None and needs_key:
        raise BadInput(
            f"the key in {hosted_key} is not sent to {where}; say by key_env which variable holds a key for it"
        )
    return Endpoint(url, key_env, where)


def read_key(variable: str) -> str:
    """Read the API key in an environment variable.

    Raises:
        BadInput: there is none, or it cannot be a key.
    """
    key = os.environ.get(variable, "").strip()
    if not key:
        raise BadInput(f"there is no key in the environment variable {variable}; set it, or name another in a recipe")
    if not key.isascii() or not key.isprintable() or " " in key:
        raise BadInput(f"the environment variable {variable} does not hold a key: it has blanks or strange characters")
    return key
