"""Endpoints: the server that requests go to, and the API key that may be sent there.

A key is worth money to whoever reads it. So a provider's usual key goes to that provider alone, any other server gets
only a key that the recipe names for it, and none travels over a network in plain text. Questions and their pictures do
so only where the recipe allows it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlencode, urlsplit

from sightline.config.secrets import VARIABLE, masked, refuse_secrets_in_url
from sightline.errors import BadInput
from sightline.runs.trust import is_this_machine

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Endpoint:
    """A server and its key.

    Attributes:
        url: without a slash at its end, and without parameters.
        key_env: the environment variable whose key is sent there; None for no key.
        where: host, and port, path and parameters where they are not the usual ones: `localhost:8000`. Two servers
            never share it.
        query: parameters that every request has.
    """

    url: str
    key_env: str | None
    where: str
    query: Mapping[str, str] = field(default_factory=dict)


def resolve_endpoint(
    url: str | None,
    key_env: str | None,
    hosted: str,
    hosted_key: str,
    usual_path: str = "",
    needs_key: bool = False,
    insecure_http: bool = False,
    headers: Mapping[str, str] | None = None,
    query: Mapping[str, str] | None = None,
) -> Endpoint:
    """Find the server that a recipe means, and the key that it gets.

    Args:
        url: what the recipe says; None for the provider's own service.
        key_env: what the recipe says; None for the provider's usual key, which no other server gets.
        hosted, hosted_key: address and variable of the provider's own service.
        usual_path: of addresses of this kind, which need not be told apart by it.
        needs_key: whether no request is answered without a key.
        insecure_http: whether another machine may be asked by http, without a key.
        headers, query: what the recipe says; `$NAME` in a value stands for an environment variable, which holds a key.

    Raises:
        BadInput: the address is none, or holds a password; a key would be sent in plain text, or pictures against the
            recipe's will; or a key is needed, the server is not the provider's, and the recipe names no key for it.
    """
    url = url or hosted
    refuse_secrets_in_url(url)
    if key_env is not None and not re.fullmatch(r"[A-Za-z_]\w*", key_env):
        raise BadInput("key_env must be the name of an environment variable, such as MY_KEY, and not the key itself")
    host: str | None = None
    try:
        parts = urlsplit(url)
        port = parts.port  # which raises where it is no number
        host = parts.hostname
    except ValueError:
        pass
    if host is None or parts.scheme not in _PORTS:
        raise BadInput(
            f"url '{masked(url)}' is no address of a server; write it like http://localhost:8000{usual_path}"
        )
    if parts.fragment:
        raise BadInput(f"url '{masked(url)}' has a part after a #, which no server is sent; leave it out")
    parameters = dict(parse_qsl(parts.query, keep_blank_values=True)) | dict(query or {})
    key_variables = [*variables(headers), *variables(parameters)]
    # The provider's usual key is for the provider alone.
    is_provider = parts.scheme == "https" and host == urlsplit(hosted).hostname
    if not key_env:
        key_env = hosted_key if is_provider else None
    # Whoever is on the way can read what goes by http.
    if parts.scheme == "http" and not is_this_machine(url):
        if key_env or key_variables:
            variable = key_env or key_variables[0]
            raise BadInput(f"the key in {variable} would go to {host} in plain text; say https:// in url")
        if not insecure_http and not needs_key:  # where a key is needed, its lack is said below
            raise BadInput(
                f"questions and their pictures would go to {host} in plain text; say https:// in url, or allow it by "
                "insecure_http=true beside the url (evaluate: --insecure-http) if you trust the network between"
            )
    # The address in short: what is as usual is left out.
    where = f"[{host}]" if ":" in host else host  # brackets around IPv6
    if port not in (None, _PORTS[parts.scheme]):
        where += f":{port}"
    path = parts.path.rstrip("/")
    if path != usual_path:
        where += path
    if parameters:
        where += f"?{urlencode(sorted(parameters.items()), safe='$')}"
    if key_env is None and needs_key:
        raise BadInput(
            f"the key in {hosted_key} is not sent to {where}; say by key_env which variable holds a key for it"
        )
    return Endpoint(f"{parts.scheme}://{parts.netloc}{path}", key_env, where, parameters)


def variables(values: Mapping[str, str] | None) -> list[str]:
    """Environment variables that values name."""
    names = []
    for value in (values or {}).values():
        names += [name or braced_name for name, braced_name in VARIABLE.findall(value)]
    return names


def filled_in(values: Mapping[str, str]) -> dict[str, str]:
    """Values with the keys in place of the environment variables that they name.

    Raises:
        BadInput: a variable holds no key, or a name or value cannot be sent.
    """
    filled = {}
    for name, value in values.items():
        filled[name] = VARIABLE.sub(lambda match: read_key(match[1] or match[2]), value)
        if not (name + filled[name]).isascii() or not (name + filled[name]).isprintable():
            raise BadInput(f"'{name}' cannot be sent with a request: it has strange characters")
    return filled


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
