"""The check of reward servers: ours passes, and each that is broken is told why."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from reward_servers import INFO, Brightness, served, telling
from sightline.cli.commands import app
from sightline.errors import BadInput, RunFailed
from sightline.rewards.servers.checking import check_server
from sightline.rewards.servers.client import RewardClient
from sightline.rewards.servers.wire import FormPart, array_of

Row = list[float | None]


def rows_of(parts: dict[str, FormPart]) -> list[Row]:
    """Brightness of what is asked for, as a server should answer; 400 where frames are missing."""
    request = json.loads(parts["request"].content)
    rows = []
    for clip in request["clips"]:
        values = array_of(parts[clip["frames"]].content, np.uint8, "it").mean(axis=(1, 2, 3)).tolist()
        rows.append(values if request["want"] == "frames" else values[-1:])
    return rows


def answering(
    change: Callable[[list[Row]], Any],
    success: Callable[[list[Row]], Any] | None = None,
    versions: tuple[int, ...] = (1,),
) -> Callable[[dict[str, FormPart], int], Any]:
    def answer(parts: dict[str, FormPart], number: int) -> Any:
        if json.loads(parts["request"].content)["version"] not in versions:
            return 400, {"error": {"code": "bad_request", "message": "another version"}}
        try:
            rows = rows_of(parts)
        except KeyError:
            return 400, {"error": {"code": "bad_request", "message": "no frames"}}
        document = {"version": 1, "model": "a model", "rewards": change(rows)}
        return document if success is None else document | {"success": success(rows)}

    return answer


def falling(rows: list[Row]) -> list[Row]:
    return [[(value or 0) + place for place, value in enumerate(row)] for row in rows]


BROKEN: dict[str, tuple[Callable[[list[Row]], Any], str]] = {
    "a row too few": (lambda rows: rows[:-1], "for 1 clips, and 2 were sent"),
    "a number too many": (lambda rows: [[*row, 0.0] for row in rows], "numbers for a clip"),
    "NaN": (lambda rows: [[float("nan")] * len(row) for row in rows], "NaN"),
    "words": (lambda rows: [["good"] * len(row) for row in rows], "str where a number or null is due"),
    "batches change it": (lambda rows: [[(value or 0) + len(rows) for value in row] for row in rows], "beside it"),
    "the first for the last": (
        lambda rows: [[7.0] if len(row) == 1 and len(rows) == 2 and len(rows[1]) == 1 else row for row in rows],
        "want=last",
    ),
    "order": (falling, "depend on the order"),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_broken_servers_are_told_why(broken: str) -> None:
    change, line = BROKEN[broken]
    with telling(answering(change)) as server:
        complaints = check_server(server.address, None)
    assert any(line in complaint for complaint in complaints)


def of_success(value: float | None) -> Callable[[list[Row]], Any]:
    return lambda rows: [[value] * len(row) for row in rows]


def test_rows_of_success_are_checked_where_there_are_any() -> None:
    for success in (of_success(0.5), of_success(None)):
        with telling(answering(lambda rows: rows, success)) as server:
            assert check_server(server.address, None) == []
    for success, line in (
        (of_success(1.5), "no probability"),
        (lambda rows: rows[:1], "its 'success': the answer is for 1"),
    ):
        with telling(answering(lambda rows: rows, success)) as server:
            (complaint,) = check_server(server.address, None)
        assert line in complaint


def test_another_version_is_not_to_be_answered() -> None:
    with telling(answering(lambda rows: rows, versions=(1, 99))) as server:
        assert check_server(server.address, None) == [
            "/score: version 99 of the protocol gets rewards; answer with status 400"
        ]


def test_a_clip_as_long_as_the_server_says_is_sent() -> None:
    def short(rows: list[Row]) -> list[Row]:
        return [row[:5] for row in rows]

    with telling(answering(short), {"/info": INFO | {"max_frames": 8}}) as server:
        assert "5 numbers for a clip, and 8 were asked for" in check_server(server.address, None)[0]


def test_a_server_that_heeds_no_token_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIGHTLINE_REWARD_TOKEN", "sesame-0123")
    with telling(answering(lambda rows: rows)) as server:
        assert "wrong token gets rewards" in check_server(server.address, "SIGHTLINE_REWARD_TOKEN")[0]


def test_servers_that_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    with telling(answering(lambda rows: rows)) as server:
        assert check_server(server.address, None) == []
    with telling(answering(lambda rows: [[None] * len(row) for row in rows])) as server:
        assert check_server(server.address, None) == []
    # Where rewards are drawn at random, they are not compared.
    with telling(answering(falling), {"/info": INFO | {"deterministic": False}}) as server:
        assert check_server(server.address, None) == []
    monkeypatch.setenv("SIGHTLINE_REWARD_TOKEN", "sesame-0123")
    with served(Brightness(), token="sesame-0123") as ours:
        done = CliRunner().invoke(app, ["serve-reward", "--check", ours.address])
    assert done.exit_code == 0 and "keeps to the protocol" in done.output


def test_the_command_tells_and_fails() -> None:
    def answer(parts: dict[str, FormPart], number: int) -> Any:
        rows = rows_of(parts) if "f0" in parts else [[0.5]]
        return {"version": 1, "model": "a model", "rewards": rows}

    with telling(answer) as server:
        done = CliRunner().invoke(app, ["serve-reward", "--check", server.address])
    assert done.exit_code == 1 and "not in the form gets rewards" in done.output


def test_servers_that_cannot_be_checked() -> None:
    right = answering(lambda rows: rows)
    with telling(right, {"/info": INFO | {"needs": ["states"]}}) as server, pytest.raises(BadInput, match="states"):
        check_server(server.address, None)
    with telling(right, {"/info": INFO | {"version": 2}}) as server:
        assert "version 2" in check_server(server.address, None)[0]
    with pytest.raises(RunFailed):
        check_server("http://127.0.0.1:9", None)


def test_the_check_says_how_it_gets_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SIGHTLINE_REWARD_TOKEN", raising=False)
    with served(Brightness(), token="sesame-0123") as ours, pytest.raises(BadInput) as caught:
        check_server(ours.address, None)
    assert str(caught.value).endswith("for this check the environment variable SIGHTLINE_REWARD_TOKEN holds the key")
    # Nothing but noise is sent, so another machine may be asked without TLS; but for a token.
    asked: list[str] = []
    monkeypatch.setattr(RewardClient, "get", lambda client, path: asked.append(path) or {})
    assert check_server("http://192.0.2.1:9", None)[0].startswith("/info: ") and asked == ["/info"]
    with pytest.raises(BadInput, match=r"would go to 192.0.2.1 in plain text; say https"):
        check_server("http://192.0.2.1:9", "SIGHTLINE_REWARD_TOKEN")
