"""Connections to chat servers: through which proxy, by which certificates, and how much of an answer is read.

All clients go through the one here, whichever library speaks over it. A library would send what is meant for this
machine to a proxy, would end in exceptions of its own where the environment is wrong, and would unpack 1 MB to 4 GB.
"""

from __future__ import annotations

import ipaddress
import os
import ssl
import zlib
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx2

from sightline.errors import BadInput
from sightline.models.chat.messages import NoReply, Transient
from sightline.runs.trust import is_this_machine

MOST_BYTES = 16 * 2**20
"""Bytes of an answer, unpacked: some 7000 tokens with 20 alternatives each. Nothing larger is a reply."""
_PROXIES = ("http", "https", "socks5", "socks5h")
_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS
_DEFLATE = -zlib.MAX_WBITS
"""Forms of packing, as zlib counts them. In HTTP `deflate` means zlib's form; many servers send it without a head."""


def connect(
    url: str, timeout: float, headers: Mapping[str, str] | None = None, query: Mapping[str, str] | None = None
) -> httpx2.AsyncClient:
    """Make a client for one server; it keeps as many connections as it is asked for.

    Args:
        url: any address of the server.
        timeout: seconds for each read and write.
        headers, query: sent with every request.

    Raises:
        BadInput: the proxy or the certificates that the environment names cannot be used.
    """
    proxy = proxy_for(url)
    is_encrypted = "https" in (urlsplit(url).scheme, urlsplit(proxy or "").scheme)
    if is_encrypted:
        certificates = _certificates()
    else:
        certificates = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # empty, as none are looked at
    limits = httpx2.Limits(max_connections=None)  # `calling` bounds them
    try:
        through = None if proxy is None else httpx2.Proxy(proxy)
        transport = httpx2.AsyncHTTPTransport(verify=certificates, limits=limits, proxy=through)
    except ImportError as error:
        raise BadInput(
            f"the environment names the proxy {_without_password(proxy or '')}, which needs a package: "
            "pip install socksio"
        ) from error
    except (ValueError, httpx2.InvalidURL) as error:
        raise BadInput(_no_proxy(proxy or "")) from error
    # Redirects are not followed: a key would go wherever an answer says.
    return httpx2.AsyncClient(
        transport=_Bounded(transport),
        timeout=timeout,
        headers={"Accept-Encoding": "identity"} | dict(headers or {}),
        params=dict(query or {}),
        trust_env=False,
        follow_redirects=False,
    )


def proxy_for(url: str) -> str | None:
    """Address of the proxy that the environment names for a server; None to ask it directly, as always on this machine.

    Raises:
        BadInput: it is of a kind that cannot be used.
    """
    parts = urlsplit(url)
    if is_this_machine(url) or proxy_bypass(parts.netloc) or _is_excluded(parts.hostname or ""):
        return None
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy:
        return None
    if "://" not in proxy:
        proxy = f"http://{proxy}"
    try:
        address = urlsplit(proxy)
        is_usable = address.scheme in _PROXIES and bool(address.hostname) and address.port != 0
    except ValueError:
        is_usable = False
    if not is_usable:
        raise BadInput(_no_proxy(proxy))
    return proxy


def _is_excluded(host: str) -> bool:
    """Whether NO_PROXY names a network, such as 10.0.0.0/8, that an address is in; Python compares names only."""
    for entry in getproxies().get("no", "").split(","):
        try:
            if "/" in entry and ipaddress.ip_address(host) in ipaddress.ip_network(entry.strip(), strict=False):
                return True
        except ValueError:
            continue
    return False


def _no_proxy(proxy: str) -> str:
    forms = ", ".join(f"{kind}://host:port" for kind in _PROXIES[:3])
    return (
        f"the environment names the proxy {_without_password(proxy)}, which cannot be used; set HTTPS_PROXY (or "
        f"ALL_PROXY) to {forms}, or unset it"
    )


def _without_password(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"[:200]


def _certificates() -> ssl.SSLContext:
    """The certificates by which servers prove who they are: the system's, or those that the environment names.

    Raises:
        BadInput: there are none where the environment says.
    """
    for variable, is_there in (("SSL_CERT_FILE", Path.is_file), ("SSL_CERT_DIR", Path.is_dir)):
        path = os.environ.get(variable)
        if not path:
            continue
        advice = f"correct the environment variable {variable}, or unset it for the system's own"
        if not is_there(Path(path)):
            raise BadInput(f"there are no certificates at '{path}'; {advice}")
        try:
            return httpx2.create_ssl_context()
        except (OSError, ValueError) as error:  # errors of `ssl` are of the first class
            raise BadInput(f"'{path}' holds no certificates that can be read; {advice}") from error
    return httpx2.create_ssl_context()


class _Bounded(httpx2.AsyncBaseTransport):
    """Reads an answer whole, but never more than `MOST_BYTES` of it, packed or unpacked."""

    def __init__(self, inner: httpx2.AsyncBaseTransport) -> None:
        self._inner = inner

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await self._inner.handle_async_request(request)
        try:
            body = _unpacked(await _body(response), response.headers.get("content-encoding", ""))
        finally:
            await response.aclose()
        # What it said of its form is no longer true.
        headers = [
            (name, value)
            for name, value in response.headers.multi_items()
            if name not in ("content-encoding", "content-length", "transfer-encoding")
        ]
        return httpx2.Response(response.status_code, headers=headers, content=body, extensions=response.extensions)

    async def aclose(self) -> None:
        await self._inner.aclose()


async def _body(response: httpx2.Response) -> bytes:
    """The body of an answer, as it was sent.

    Raises:
        NoReply: it is too large. It is paid for, and most likely would be as large again.
    """
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    body = bytearray()
    async for part in response.stream:
        body += part
        _refuse_too_large(body)
    return bytes(body)


def _unpacked(body: bytes, packing: str) -> bytes:
    """A body as it was before a server or a gateway packed it, which nobody asked for.

    Raises:
        NoReply: it is too large.
        Transient: it is packed in a way that cannot be undone here, or ends in the middle.
    """
    packing = packing.strip().lower()
    if packing in ("", "identity"):
        return body
    if packing not in ("gzip", "x-gzip", "deflate"):
        raise Transient(f"the answer is packed as '{packing[:40]}', which was not asked for")
    if body.lstrip()[:1] in (b"{", b"["):
        return body  # a gateway has unpacked it, and left the header
    for form in (_GZIP_OR_ZLIB, _DEFLATE):
        unpacker = zlib.decompressobj(form)
        try:
            content = unpacker.decompress(body, MOST_BYTES + 1)
        except zlib.error:
            continue
        _refuse_too_large(content)
        if not unpacker.eof:
            raise Transient("the answer is packed, and ends in the middle")
        return content
    raise Transient("the answer is packed, and cannot be unpacked")


def _refuse_too_large(body: bytes | bytearray) -> None:
    if len(body) > MOST_BYTES:
        raise NoReply(f"the answer is larger than {MOST_BYTES // 2**20} MB; no reply is")
