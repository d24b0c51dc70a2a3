"""Connections to chat servers: proxies, certificates, headers and parameters, and the size of an answer."""

from __future__ import annotations

import gzip
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from fault_server import SHAPES, Fault, FaultServer, Handler, answers
from sightline.errors import BadInput
from sightline.models.chat.anthropic import Anthropic
from sightline.models.chat.calling import Attempt, Limits, RateLimitedClient
from sightline.models.chat.config import ChatModelConfig
from sightline.models.chat.connections import MOST_BYTES, connect, proxy_for
from sightline.models.chat.gemini import Gemini
from sightline.models.chat.hosted import HostedModel
from sightline.models.chat.messages import ChatRequest, NoReply, Transient
from sightline.models.chat.openai_compatible import OpenAICompatible
from sightline.models.chat.streaming import stream_async
from sightline.runs.trust import is_this_machine

PROVIDERS: dict[str, type[HostedModel]] = {"openai": OpenAICompatible, "gemini": Gemini, "anthropic": Anthropic}
VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR")
REQUEST = ChatRequest(("Which?",))


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("OWN_KEY", "right-key")


def model_at(server: FaultServer, provider: str, **settings: Any) -> HostedModel:
    url = server.url if provider == "openai" else server.root
    return PROVIDERS[provider]("m", url, "OWN_KEY", timeout=10, **settings)


def ask(model: HostedModel, retries: int = 0) -> Attempt:
    calls = RateLimitedClient(Limits(retries=retries, first_wait=0.0))
    ((_, attempts),) = stream_async(model.connected, calls.attempts, [REQUEST], at_once=1)
    return attempts[-1]


# -- proxies -----------------------------------------------------------------------------------------------------------


class _Listening(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.server.asked.append((self.path, dict(self.headers)))  # type: ignore[attr-defined]
        self.send_error(502)

    do_CONNECT = do_POST  # the names are the library's

    def log_message(self, *unused: Any) -> None:
        pass


@pytest.fixture
def proxy() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Listening)
    server.asked = []  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
def test_no_proxy_is_between_this_machine_and_itself(
    provider: str, variable: str, proxy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, f"http://127.0.0.1:{proxy.server_port}")
    with FaultServer(answers("first"), key="right-key") as server:
        attempt = ask(model_at(server, provider))
    assert attempt.error is None and len(server.asked) == 1
    assert proxy.asked == []


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_proxy_sees_no_key_and_no_question(provider: str, proxy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", f"127.0.0.1:{proxy.server_port}")
    attempt = ask(PROVIDERS[provider]("m", "https://models.example/v1", "OWN_KEY", timeout=10))
    assert isinstance(attempt.error, Transient)
    assert f"cannot be reached through the proxy http://127.0.0.1:{proxy.server_port}" in str(attempt.error)
    ((path, headers),) = proxy.asked
    assert path == "models.example:443" and "right-key" not in str(headers)


@pytest.mark.parametrize("url", ["http://localhost", "http://127.0.0.1", "http://127.8.9.1:8000", "http://[::1]:80/v1"])
def test_addresses_of_this_machine(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "http://proxy.example:3128")
    assert is_this_machine(url) and proxy_for(url) is None


def test_addresses_that_this_machine_has_in_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [SimpleNamespace(address="10.1.2.3"), SimpleNamespace(address="fe80::1%eth0")]
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"eth0": entries})
    own = ("10.1.2.3", "0.0.0.0", "[fe80::1]", "[::ffff:127.0.0.1]", "[::]")
    assert all(is_this_machine(f"http://{host}:8000/v1") for host in own)
    assert not any(is_this_machine(f"http://{host}") for host in ("10.1.2.4", "127.0.0.1.example", "[fe80::2]", "h:x"))


def test_hosts_and_networks_are_excluded_from_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", "inside.example, 10.0.0.0/8")
    assert proxy_for("https://inside.example/v1") is None and proxy_for("https://10.9.8.7:8443") is None
    assert proxy_for("https://outside.example") == "http://proxy.example:3128" == proxy_for("https://11.0.0.1")


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("socks://me:secret@h.example:1080", "names the proxy socks://h.example:1080, which cannot be used; set HTTPS"),
        ("socks4://h.example:1080", "names the proxy socks4://"),
        ("ftp://h.example", "names the proxy ftp://"),
        ("http://h.example:99999", "names the proxy http://h.example:99999"),
        ("http://", "names the proxy http://"),
    ],
)
def test_proxies_that_cannot_be_used(provider: str, address: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", address)
    with pytest.raises(BadInput, match=told) as error:
        ask(PROVIDERS[provider]("m", "https://models.example", "OWN_KEY"))
    assert "\n" not in str(error.value) and "secret" not in str(error.value)


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("kind", ["socks5", "socks5h"])
def test_a_missing_package_for_socks_is_named(provider: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "socksio", None)
    monkeypatch.setenv("ALL_PROXY", f"{kind}://h.example:1080")
    with pytest.raises(BadInput, match=r"names the proxy socks5h?://h.example:1080, .*pip install socksio$"):
        ask(PROVIDERS[provider]("m", "https://models.example", "OWN_KEY"))


# -- certificates ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "SSL_CERT_DIR"])
def test_missing_certificates_are_named(
    provider: str, variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, str(tmp_path / "none"))
    with pytest.raises(BadInput, match=rf"no certificates at '.*none'; correct the environment variable {variable}"):
        ask(PROVIDERS[provider]("m", "https://models.example", "OWN_KEY"))
    with FaultServer(answers("first")) as server:  # on this machine nobody has to prove who they are
        assert ask(model_at(server, provider)).error is None


def test_certificates_that_are_none_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "certificates.pem").write_text("none at all")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificates.pem"))
    with pytest.raises(BadInput, match="holds no certificates that can be read"):
        connect("https://models.example", 1.0)


# -- headers and parameters --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("provider", PROVIDERS)
def test_headers_and_parameters_are_sent(provider: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Azure, organisations and gateways ask for."""
    monkeypatch.setenv("GATEWAY_KEY", "of-the-gateway")
    headers = {"api-key": "$GATEWAY_KEY", "X-Organisation": "lab", "X-Auth": "Bearer ${GATEWAY_KEY}"}
    with FaultServer(answers("first")) as server:
        model = model_at(server, provider, headers=headers, query={"api-version": "2024-10-21"})
        assert ask(model).error is None
    (asked,) = server.asked
    assert asked.headers["api-key"] == "of-the-gateway" and asked.headers["x-organisation"] == "lab"
    assert asked.headers["x-auth"] == "Bearer of-the-gateway"
    assert "api-version=2024-10-21" in asked.path


def test_parameters_may_stand_in_the_address() -> None:
    with FaultServer(answers("first")) as server:
        model = OpenAICompatible("m", f"{server.root}/openai/deployments/d/?api-version=1&x=y")
        assert ask(model).error is None
    assert server.asked[0].path == "/openai/deployments/d/chat/completions?api-version=1&x=y"
    assert model.where.endswith("/openai/deployments/d?api-version=1&x=y")


def test_keys_in_headers_are_kept_as_keys_are(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = {"api-key": "$GATEWAY_KEY"}
    with pytest.raises(BadInput, match="the key in GATEWAY_KEY would go to gpu-box in plain text"):
        OpenAICompatible("m", "http://gpu-box/v1", insecure_http=True, headers=secret)
    with FaultServer() as server, pytest.raises(BadInput, match="no key in the environment variable GATEWAY_KEY"):
        ask(model_at(server, "openai", headers=secret))
    config = ChatModelConfig.model_validate({"model": "m", "url": "http://localhost/v1", "headers": secret})
    assert ("headers.api-key", "$GATEWAY_KEY", "a key that would be used") in list(config.reaches())


def test_headers_of_a_clients_own_environment_are_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_CUSTOM_HEADERS", "X-Gateway-Key: of-another\nX-Thing: 1")
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "of-another")
    with FaultServer(answers("first")) as server:
        assert ask(model_at(server, "anthropic", headers={"X-Thing": "2"})).error is None
    (asked,) = server.asked
    assert "of-another" not in str(asked.headers) and asked.headers["x-thing"] == "2"


def test_what_servers_repeat_of_keys_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_KEY", "of-the-gateway")

    def repeats(handler: Handler) -> None:
        handler.send(401, b'{"error": {"message": "wrong: right-key, of-the-gateway"}}')

    with FaultServer(faults=[repeats]) as server:
        attempt = ask(model_at(server, "openai", headers={"api-key": "$GATEWAY_KEY"}))
    assert "wrong: …, …" in str(attempt.error)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_nobody_is_sent_elsewhere(provider: str) -> None:
    with FaultServer(answers("first")) as other:

        def elsewhere(handler: Handler) -> None:
            handler.send(307, b"", Location=f"{other.root}/v1/chat/completions")

        with FaultServer(faults=[elsewhere]) as server:
            assert ask(model_at(server, provider)).reply is None
    assert other.asked == []


# -- sizes -------------------------------------------------------------------------------------------------------------


def packed(size: int, encoding: str = "gzip") -> Fault:
    body = gzip.compress(bytes(size), 9)
    return lambda handler: handler.send(200, body, Content_Encoding=encoding)


def endless(handler: Handler) -> None:
    """More than any reply, for as long as somebody reads."""
    handler.close_connection = True
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
    for _ in range(4 * MOST_BYTES // 2**20):
        handler.wfile.write(bytes(2**20))


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("fault", [packed(4 * MOST_BYTES), endless])
def test_no_more_is_read_than_a_reply_can_be(provider: str, fault: Fault) -> None:
    with FaultServer(answers("first"), faults=[fault]) as server:
        attempt = ask(model_at(server, provider), retries=3)
    assert type(attempt.error) is NoReply and "larger than 16 MB" in str(attempt.error)
    assert len(server.asked) == 1  # it is paid for, and would be as large again


@pytest.mark.parametrize("provider", PROVIDERS)
def test_packed_replies_are_read(provider: str) -> None:
    def pack(handler: Handler) -> None:
        body = json.dumps(SHAPES[provider](handler.server.asked[-1], "packed", None)).encode()
        handler.send(200, gzip.compress(body), Content_Encoding="gzip")

    with FaultServer(faults=[pack]) as server:
        attempt = ask(model_at(server, provider))
    assert attempt.reply is not None and attempt.reply.text == "packed"


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip"])
def test_replies_in_strange_packings_are_asked_for_again(provider: str, encoding: str) -> None:
    def strange(handler: Handler) -> None:
        handler.send(200, b"\x00\x01\x02", Content_Encoding=encoding)

    with FaultServer(answers("first"), faults=[strange]) as server:
        attempt = ask(model_at(server, provider), retries=1)
    assert attempt.reply is not None and len(server.asked) == 2
