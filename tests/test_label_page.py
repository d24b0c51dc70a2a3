"""People as teachers: who may ask the label page for what, what becomes of an answer, the page in a browser."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import shutil
import signal
import socket
import sqlite3
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sightline.labels.store import Context, LabelStore, WaitingQuestion
from sightline.labels.types import Answer, Outcome, Question, QuestionKind, Segment, preference
from sightline.teachers import human, queue
from sightline.teachers.human import HumanTeacher, HumanTeacherConfig
from sightline.teachers.page import MAX_BODY, PageServer

TAB, OTHER_TAB = "tab-one-1", "tab-two-2"
CONTEXT = Context("some-run", "cartpole", 7)


def picture(shade: int, size: int = 24) -> np.ndarray:
    """uint8[size, size, 3]: a pole that leans more to the right the higher the shade."""
    frame = np.full((size, size, 3), 235, np.uint8)
    for row in range(size * 3 // 4):
        column = size // 2 + round((size * 3 // 4 - row) * (shade - 128) / 300)
        frame[row + size // 8, max(0, column - 1) : column + 2] = (20, 100, shade)
    frame[-size // 8 :] = 120
    return frame


def segment(*shades: int, size: int = 24) -> Segment:
    return Segment(np.stack([picture(shade, size) for shade in shades]), np.zeros(len(shades), np.float32))


def pairs(count: int, start: int = 0) -> list[Question]:
    shades = [(start + 2 * i, start + 2 * i + 1) for i in range(count)]
    return [Question("compare", (segment(a), segment(b)), ("a pole upright on the cart",)) for a, b in shades]


def one(kind: QuestionKind, levels: int = 0, shade: int = 9) -> Question:
    return Question(kind, (segment(shade),), ("a pole upright on the cart",), levels)


@dataclass
class Asker:
    """Puts questions up without waiting for the answers."""

    name: str = "human"
    signature: str = "human name=human"

    def answers(self, questions: Sequence[Question]) -> Iterator[tuple[int, Answer]]:
        raise NotImplementedError


ASKER = Asker()


@dataclass
class Page:
    """A served page and its store, and a client that behaves like the page unless it is told otherwise."""

    server: PageServer
    store: LabelStore

    def wait_for(self, *questions: Question) -> None:
        self.store.wait_for(questions, ASKER, CONTEXT)

    def request(self, method: str, path: str, body: bytes | None = None, **headers: str | None) -> tuple[int, Any, Any]:
        """(status, body, headers); underscores of header names stand for hyphens, None leaves a header out."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.server_port, timeout=20)
        sent = {"Host": f"127.0.0.1:{self.server.server_port}", "Cookie": f"{self.server.cookie}={self.server.key}"}
        if body is not None:
            sent |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
            sent |= {"X-Sightline-Token": self.server.token}
        everything = sent | {name.replace("_", "-"): value for name, value in headers.items()}
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in everything.items():
            if value is not None:
                connection.putheader(name, value)
        connection.endheaders(body)
        reply = connection.getresponse()
        content = reply.read()
        connection.close()
        if content and reply.headers.get_content_type() == "application/json":
            return reply.status, json.loads(content), reply.headers
        return reply.status, content, reply.headers

    def post(self, what: str, tab: str = TAB, **fields: Any) -> tuple[int, Any]:
        status, reply, _ = self.request("POST", f"/api/{what}", json.dumps({"tab": tab, **fields}).encode())
        return status, reply

    def shown(self, tab: str = TAB) -> str:
        """Key of the question that a tab is given."""
        status, reply = self.post("next", tab)
        assert status == 200
        return str(reply["question"]["key"])

    def answer(self, said: str, tab: str = TAB, **fields: Any) -> tuple[int, Any]:
        return self.post("answer", tab, **({"key": self.shown(tab), "said": said, "seconds": 1.5} | fields))


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    with LabelStore(tmp_path / "labels") as store, PageServer(store, "anna", 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield Page(server, store)
        server.shutdown()
        thread.join()


# -- who may ask -------------------------------------------------------------------------------------------------------


def test_page_and_its_headers(page: Page) -> None:
    status, content, headers = page.request("GET", "/")
    assert status == 200 and page.server.token in content.decode() and "{{" not in content.decode()
    policy = headers["Content-Security-Policy"]
    nonce = policy.split("script-src 'nonce-")[1].split("'")[0]
    assert f'<script nonce="{nonce}">' in content.decode() and "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy and "unsafe" not in policy
    assert headers["X-Frame-Options"] == "DENY" and headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin" and headers["X-Content-Type-Options"] == "nosniff"
    assert "Access-Control-Allow-Origin" not in headers and headers["Cache-Control"] == "no-store"
    assert page.server.server_address[0] == "127.0.0.1"
    assert page.request("GET", "/")[2]["Content-Security-Policy"] != policy  # a nonce is used once


def test_the_printed_address_lets_in_and_leaves_no_key_behind(page: Page) -> None:
    assert page.server.address == f"http://127.0.0.1:{page.server.server_port}/?key={page.server.key}"
    assert len(page.server.key) >= 32
    path = page.server.address.removeprefix(page.server.home.rstrip("/"))
    status, content, headers = page.request("GET", path, Cookie=None, Sec_Fetch_Site="none", Sec_Fetch_Mode="navigate")
    assert (status, content, headers["Location"]) == (303, b"", "/")
    cookie, *attributes = headers["Set-Cookie"].split("; ")
    assert cookie == f"sightline-{page.server.server_port}={page.server.key}"
    assert sorted(attributes) == ["HttpOnly", "Path=/", "SameSite=Strict"]
    assert headers["Referrer-Policy"] == "no-referrer" and headers["Cache-Control"] == "no-store"
    status, content, headers = page.request("GET", headers["Location"], Cookie=cookie)
    assert status == 200 and page.server.key not in content.decode() and "Set-Cookie" not in headers
    assert page.request("GET", "/", Cookie=f"a=b; {cookie}; c=d")[0] == 200


@pytest.mark.parametrize("cookie", [None, "", "{name}", "{name}=x", "{name}=é", "other={key}", "{key}", ";=;"])
def test_without_the_key_nothing_is_given_away(page: Page, cookie: str | None) -> None:
    """Whoever else works on this machine can reach the port, but not what the person's terminal shows."""
    page.wait_for(*pairs(1))
    frame = page.post("next")[1]["question"]["segments"][0][0]
    cookie = cookie and cookie.format(name=page.server.cookie, key=page.server.key)
    for path in ("/", "/?key=", "/?key=x", "/?key=" + "A" * len(page.server.key), f"/?key={page.server.key}&x", frame):
        status, content, headers = page.request("GET", path, Cookie=cookie)
        assert status == 403 and "Set-Cookie" not in headers
        said = content["error"] if path == frame else content.decode().strip()
        assert "\n" not in said and "printed" in said and page.server.token not in said
        if path != frame:
            assert headers.get_content_type() == "text/plain"
    for what in ("next", "hold", "undo", "answer"):
        assert page.request("POST", f"/api/{what}", json.dumps({"tab": TAB}).encode(), Cookie=cookie)[0] == 403
    assert not page.store.labels()


def test_every_server_has_its_own_key(page: Page) -> None:
    with PageServer(page.store, "ben", 0) as other:
        assert len({other.key, page.server.key, other.token, page.server.token}) == 4
        assert other.cookie != page.server.cookie


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "0.0.0.0:{port}"])
def test_other_hosts_are_refused(page: Page, host: str) -> None:
    page.wait_for(*pairs(1))
    host = host.format(port=page.server.server_port)
    assert page.request("GET", "/", Host=host)[0] == 403
    assert page.request("POST", "/api/next", b'{"tab": "tab-one-1"}', Host=host)[0] == 403


def test_missing_and_double_hosts_are_refused(page: Page) -> None:
    assert page.request("GET", "/", Host=None)[0] == 403
    port = page.server.server_port
    with socket.create_connection(("127.0.0.1", port)) as raw:
        raw.sendall(f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nHost: evil.example\r\n\r\n".encode())
        assert raw.recv(100).startswith(b"HTTP/1.1 403")


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "[::1]", "LOCALHOST"])
def test_names_of_this_machine_are_served(page: Page, name: str) -> None:
    assert page.request("GET", "/", Host=f"{name}:{page.server.server_port}")[0] == 200


FOREIGN: list[dict[str, str | None]] = [
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1:1"},
    {"Origin": "https://127.0.0.1:{port}"},
    {"Origin": "http://localhost:{port}"},  # another name than the one that was asked
    {"Sec_Fetch_Site": "cross-site"},
    {"Sec_Fetch_Site": "same-site"},  # a page on another port of this machine
    {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate"},
    {"X_Sightline_Token": None},
    {"X_Sightline_Token": "0" * 32},
    {"X_Sightline_Token": "é"},
]


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
def test_requests_of_other_sites_change_nothing(page: Page, headers: dict[str, str | None]) -> None:
    page.wait_for(*pairs(1))
    body = json.dumps({"tab": TAB, "key": page.shown(), "said": "left", "seconds": 1}).encode()
    headers = {name: value and value.format(port=page.server.server_port) for name, value in headers.items()}
    assert page.request("POST", "/api/answer", body, **headers)[0] == 403
    assert not page.store.labels()
    origin = f"http://127.0.0.1:{page.server.server_port}"
    assert page.request("POST", "/api/answer", body, Origin=origin, Sec_Fetch_Site="same-origin")[0] == 200
    assert len(page.store.labels()) == 1


def test_links_to_the_page_work_but_frames_cannot_be_embedded(page: Page) -> None:
    page.wait_for(*pairs(1))
    frame = page.post("next")[1]["question"]["segments"][0][0]
    assert page.request("GET", "/", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate")[0] == 200
    assert page.request("GET", "/", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="no-cors")[0] == 403
    assert page.request("GET", frame, Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="no-cors")[0] == 403
    assert page.request("GET", frame, Sec_Fetch_Site="same-site", Sec_Fetch_Mode="navigate")[0] == 403
    assert page.request("GET", frame, Sec_Fetch_Site="same-origin")[0] == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", None])
def test_only_json_is_read(page: Page, kind: str | None) -> None:
    assert page.request("POST", "/api/next", b'{"tab": "tab-one-1"}', Content_Type=kind)[0] == 415


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b" " * MAX_BODY + b"{}", {}, 413),
        (b"{}", {"Content_Length": "99999999999999"}, 413),
        (b"{}", {"Content_Length": "-1"}, 411),
        (b"{}", {"Content_Length": None}, 411),
        (b"0\r\n\r\n", {"Transfer_Encoding": "chunked"}, 411),
        (b"", {}, 400),
        (b"[1]", {}, 400),
        (b"[" * 4000, {}, 400),
        (b"\xff", {}, 400),
        (b"{}", {}, 400),
        (b'{"tab": "../../x"}', {}, 400),
        (b'{"tab": 5}', {}, 400),
    ],
)
def test_bad_bodies(page: Page, body: bytes, headers: dict[str, Any], status: int) -> None:
    found, reply, _ = page.request("POST", "/api/next", body, **headers)
    assert found == status and reply["error"]


@pytest.mark.parametrize(
    "path",
    [
        *("/frames/../labels.sqlite", "/../labels.sqlite", "/frames/..%2f..%2flabels.sqlite", "/labels.sqlite"),
        *("/frames/" + "a" * 64 + ".png", "/frames/" + "A" * 64 + ".png", "/frames/" + "a" * 64 + ".png/../x"),
        *("/frames/" + "../" * 21 + "a.png", "//evil.example/", "http://evil.example/", "/api/next", "/favicon.ico"),
    ],
)
def test_nothing_else_is_served(page: Page, path: str) -> None:
    assert page.request("GET", path)[0] == 404


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE"])
def test_other_methods(page: Page, method: str) -> None:
    status, _, headers = page.request(method, "/")
    assert status == 405 and "Access-Control-Allow-Origin" not in headers


def test_frames_are_served_by_their_hash(page: Page) -> None:
    question = pairs(1)[0]
    page.wait_for(question)
    shown = page.post("next")[1]["question"]
    status, content, headers = page.request("GET", shown["segments"][0][0])
    assert status == 200 and content.startswith(b"\x89PNG") and headers["Content-Type"] == "image/png"
    assert "true" not in json.dumps(shown)  # the environment's reward would give the answer away


# -- what becomes of an answer -----------------------------------------------------------------------------------------


def test_sides_are_drawn_and_answers_mapped_back(page: Page) -> None:
    """Whatever is shown where: who always picks the picture of the first segment is recorded as saying so."""
    questions = pairs(24)
    page.wait_for(*questions)
    by_key = {question.key(ASKER.signature): question for question in questions}
    sides = []
    for _ in questions:
        shown = page.post("next")[1]["question"]
        question = by_key[shown["key"]]
        first = [f"/frames/{file.name}" for file in page.store.frame_files(question.segments[0].digest)]
        sides.append(shown["segments"].index(first))
        assert page.answer("left" if sides[-1] == 0 else "right")[0] == 200
        assert page.store.find(question, ASKER.signature) == Answer(Outcome.FIRST, 0.0, seconds=1.5)
    assert 4 <= sum(sides) <= 20
    stored = page.store.labels()
    assert [label.context.origin["shown"] == "swapped" for label in stored] == [side == 1 for side in sides]
    assert {label.context.origin["who"] for label in stored} == {"anna"}
    assert {(label.context.run, label.context.task, label.context.step) for label in stored} == {
        ("some-run", "cartpole", 7)
    }


@pytest.mark.parametrize(
    ("question", "said", "value", "expected"),
    [
        (pairs(1)[0], "equal", None, preference(0.5)),
        (pairs(1)[0], "unsure", None, Answer(Outcome.UNSURE)),
        (pairs(1)[0], "skip", None, Answer(Outcome.SKIPPED)),
        (one("rate", 5), "value", 4, Answer(Outcome.VALUE, 4.0)),
        (one("rate", 5), "value", 0, Answer(Outcome.VALUE, 0.0)),
        (one("rate", 2), "unsure", None, Answer(Outcome.UNSURE)),
        (one("score"), "value", 0.37, Answer(Outcome.VALUE, 0.37)),
        (one("score"), "skip", None, Answer(Outcome.SKIPPED)),
    ],
)
def test_answers_of_every_kind(page: Page, question: Question, said: str, value: Any, expected: Answer) -> None:
    page.wait_for(question)
    status, reply = page.answer(said, value=value, seconds=0.0)
    assert status == 200 and reply["question"] is None and reply["done"] == 1
    assert page.store.find(question, ASKER.signature) == expected


@pytest.mark.parametrize(
    ("question", "said", "value"),
    [
        *((one("rate", 3), "value", bad) for bad in (3, -1, 1.5, "1", True, None, 10**400)),
        *((one("score"), "value", bad) for bad in (1.01, -0.1, float("nan"), float("inf"))),
        *((one("score"), said, None) for said in ("left", "equal", "value")),
        *((pairs(1)[0], "value", 0.5), (pairs(1)[0], "both", None), (pairs(1)[0], ["left"], None)),
    ],
)
def test_impossible_answers(page: Page, question: Question, said: Any, value: Any) -> None:
    page.wait_for(question)
    assert page.answer(said, value=value)[0] == 400
    assert not page.store.labels() and len(page.store.waiting()) == 1


def test_absurd_times_are_not_believed(page: Page) -> None:
    page.wait_for(*pairs(3))
    for seconds in (-5, 1e300, float("nan")):
        assert page.answer("left", seconds=seconds)[0] == 200
    assert [label.answer.seconds for label in page.store.labels()] == [0.0, queue.LONGEST, 0.0]


def test_second_answer_is_a_conflict(page: Page) -> None:
    page.wait_for(*pairs(1))
    key = page.shown(TAB)
    assert page.shown(OTHER_TAB) == key  # there is no other
    assert page.answer("left", TAB, key=key)[0] == 200
    status, reply = page.post("answer", OTHER_TAB, key=key, said="right", seconds=1.0)
    assert status == 409 and "answered elsewhere" in reply["error"]
    assert len(page.store.labels()) == 1


def test_many_at_once_are_recorded_once(page: Page) -> None:
    page.wait_for(*pairs(1))
    key = page.shown()
    found: list[int] = []

    def answer(i: int) -> None:
        found.append(page.post("answer", f"thread-{i:02d}", key=key, said="left", seconds=1.0)[0])

    threads = [threading.Thread(target=answer, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [200, *[409] * 7]
    assert len(page.store.labels()) == 1


def test_withdrawn_questions_are_a_conflict(page: Page) -> None:
    question = pairs(1)[0]
    page.wait_for(question)
    key = page.shown()
    assert page.post("hold", key=key)[1]["held"]
    page.store.withdraw([question], ASKER.signature)
    assert not page.post("hold", key=key)[1]["held"]
    assert page.post("answer", key=key, said="left", seconds=1.0)[0] == 409


def test_tabs_get_different_questions_and_keep_them(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    page.wait_for(*pairs(2))
    first, second = page.shown(TAB), page.shown(OTHER_TAB)
    assert first != second
    assert page.shown(TAB) == first and page.shown(OTHER_TAB) == second  # loaded again
    now = time.monotonic()
    monkeypatch.setattr("sightline.teachers.queue.time.monotonic", lambda: now + queue.LEASE - 1)
    assert page.post("hold", TAB, key=first)[1]["held"]
    monkeypatch.setattr("sightline.teachers.queue.time.monotonic", lambda: now + queue.LEASE + 1)
    assert page.shown("tab-three") == second  # its tab is gone; the first was renewed


def test_undo_takes_the_last_answer_back(page: Page) -> None:
    questions = pairs(3)
    page.wait_for(*questions)
    keys = [question.key(ASKER.signature) for question in questions]
    sides = [page.post("next")[1]["question"]["segments"]]
    page.answer("left")
    page.answer("right")
    status, reply = page.post("undo")
    assert status == 200 and reply["undone"] and reply["question"]["key"] == keys[1] and reply["done"] == 1
    assert page.store.find(questions[1], ASKER.signature) is None
    status, reply = page.post("undo")
    assert reply["question"]["key"] == keys[0] and reply["question"]["segments"] == sides[0]
    assert not page.store.labels() and len(page.store.waiting()) == 3
    assert page.post("undo")[1]["undone"] is False
    assert page.answer("equal")[0] == 200
    assert page.store.find(questions[0], ASKER.signature) == Answer(Outcome.EQUAL, 0.5, seconds=1.5)
    assert page.post("undo", OTHER_TAB)[1]["undone"] is False  # the answers of others are not ours to take back
    waiting = {w.key: w for w in page.store.waiting()}
    assert waiting[keys[1]].context == CONTEXT and waiting[keys[1]].teacher == "human"


def test_progress(page: Page) -> None:
    page.wait_for(*pairs(3))
    begun = {"done": 0, "waiting": 3, "total": 0, "seconds": None, "who": "anna"}
    reply = page.post("next")[1]
    assert {name: reply[name] for name in begun} == begun
    page.answer("left", seconds=1.0)
    page.answer("skip", seconds=4.0)
    page.answer("left", OTHER_TAB, seconds=100.0)
    reply = page.post("next")[1]
    assert (reply["done"], reply["waiting"], reply["total"], reply["seconds"]) == (2, 0, 3, 2.5)
    assert page.server.queue.answered == 3


# -- the teacher -------------------------------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(human, "POLL", 0.02)
    monkeypatch.setattr(human, "SECOND_THOUGHTS", 0.0)


def teacher(page: Page, timeout: float = 60.0, said: list[str] | None = None) -> HumanTeacher:
    config = HumanTeacherConfig(kind="human", timeout=timeout)
    return HumanTeacher(
        page.store,
        lambda: CONTEXT,
        print if said is None else said.append,
        **config.model_dump(exclude={"kind"}),
    )


@pytest.mark.usefixtures("quick")
def test_teacher_yields_what_people_say(page: Page) -> None:
    said: list[str] = []
    asked = teacher(page, said=said)
    questions = [*pairs(4), one("rate", 3), one("score", shade=11)]
    keys = {question.key(asked.signature): question for question in questions}

    def people() -> None:
        while len(page.store.labels()) < len(questions):
            shown = page.post("next")[1]["question"]
            if shown is None:
                time.sleep(0.01)
                continue
            kind = keys[shown["key"]].kind
            swapped = queue.is_shown_swapped(WaitingQuestion(shown["key"], "", "", CONTEXT, kind, (), 0, ("a", "b")))
            said = ("right" if swapped else "left") if kind == "compare" else "value"
            page.answer(said, value=1, key=shown["key"])

    thread = threading.Thread(target=people)
    thread.start()
    answers = dict(asked.answers(questions))
    thread.join()
    assert sorted(answers) == [0, 1, 2, 3, 4, 5]
    assert [answers[i].value for i in range(6)] == [0.0, 0.0, 0.0, 0.0, 1.0, 1.0]
    assert not page.store.waiting() and len(page.store.labels()) == 6
    assert said == [f"6 questions wait for people; in another terminal: sightline label serve {page.store.folder}"]
    assert dict(asked.answers(questions)) == answers and len(said) == 1  # known: nobody is asked again


@pytest.mark.usefixtures("quick")
def test_a_round_times_out(page: Page) -> None:
    asked = teacher(page, timeout=0.3)
    questions = pairs(3)
    answers = asked.answers(questions)
    page.store.wait_for(questions, asked, CONTEXT)
    assert page.answer("unsure")[0] == 200
    found = dict(answers)
    assert [found[i].outcome for i in range(3)] == [Outcome.UNSURE, Outcome.FAILED, Outcome.FAILED]
    assert found[1].reason == "nobody answered within 0.3 s" and found[1].value is None
    assert not page.store.waiting()
    assert len(page.store.labels()) == 3  # also that nobody answered is kept, but it is asked again
    assert page.store.find(questions[1], asked.signature) is None


def test_an_answer_taken_back_in_time_is_not_handed_on(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 0.0
    script = [("answer", "left"), ("undo", ""), ("answer", "equal"), *[("", "")] * 3]
    monkeypatch.setattr("sightline.teachers.human.time.monotonic", lambda: clock)

    class Scripted(HumanTeacher):
        def _wait(self, seconds: float) -> None:
            nonlocal clock
            clock += 0.6 * human.SECOND_THOUGHTS
            what, said = script.pop(0)
            if what == "answer":
                assert page.answer(said)[0] == 200
            elif what == "undo":
                assert page.post("undo")[1]["undone"]

    asked = Scripted(page.store, CONTEXT, print)
    assert [answer.outcome for _, answer in asked.answers(pairs(1))] == [Outcome.EQUAL]


@pytest.mark.usefixtures("quick")
def test_people_may_answer_what_was_given_up(page: Page) -> None:
    """Overnight, say, while nothing runs; whoever asks again finds their answers."""
    asked = teacher(page)
    threading.Timer(0.1, asked.give_up).start()
    assert list(asked.answers(pairs(2))) == []
    assert len(page.store.waiting()) == 2 and not page.store.labels()
    page.answer("left")
    page.answer("left")
    assert sorted(index for index, _ in teacher(page).answers(pairs(2))) == [0, 1]
    assert not page.store.waiting() and len(page.store.labels()) == 2


@pytest.mark.usefixtures("quick")
def test_who_stops_early_leaves_nothing_waiting(page: Page) -> None:
    asked = teacher(page)
    questions = pairs(3)
    page.store.wait_for(questions, asked, CONTEXT)
    page.answer("left")
    answers = asked.answers(questions)
    assert next(answers)[0] == 0
    assert len(page.store.waiting()) == 2
    answers.close()  # type: ignore[attr-defined]
    assert not page.store.waiting()


def test_names(page: Page) -> None:
    plain, anna = (HumanTeacherConfig(kind="human", name=name) for name in ("human", "anna"))
    teachers = [
        HumanTeacher(page.store, CONTEXT, print, **config.model_dump(exclude={"kind"})) for config in (plain, anna)
    ]
    assert [t.name for t in teachers] == ["human", "human anna"]
    assert teachers[0].signature == ASKER.signature != teachers[1].signature


# -- the command -------------------------------------------------------------------------------------------------------


def test_port_in_use(page: Page, sightline: Callable[..., Any], tmp_path: Path) -> None:
    port = page.server.server_port
    result = sightline("label", "serve", page.store.folder, "--port", port)
    assert result.code == 2
    assert result.lines == [f"sightline: port {port} is in use; name another, such as --port {port + 1}"]
    missing = sightline("label", "serve", tmp_path / "nowhere")
    assert missing.code == 2 and "neither a run nor a label store" in missing.err
    assert not (tmp_path / "nowhere").exists()


def test_served_beside_a_process_that_asks(tmp_path: Path, sightline_process: Callable[..., Any]) -> None:
    """The page is served by another process than the one that asks, as beside a training run; Ctrl-C ends it."""
    with LabelStore(tmp_path / "labels") as store:
        process = sightline_process("label", "serve", store.folder, "--port", 0, "--name", "bob", PYTHONUNBUFFERED="1")
        address = process.stdout.readline().split()[2]
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        token = browser.open(address).read().decode().split('TOKEN = "')[1].split('"')[0]
        home = address.partition("?")[0]
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(home)

        def post(what: str, **fields: Any) -> Any:
            headers = {"Content-Type": "application/json", "X-Sightline-Token": token}
            body = json.dumps({"tab": TAB, **fields}).encode()
            return json.load(browser.open(urllib.request.Request(f"{home}api/{what}", body, headers)))

        assert post("next")["question"] is None
        store.wait_for(pairs(1), ASKER, CONTEXT)
        key = post("next")["question"]["key"]
        assert post("answer", key=key, said="equal", seconds=2)["done"] == 1
        found = store.find(pairs(1)[0], ASKER.signature)
        assert found is not None and found.outcome is Outcome.EQUAL
        assert store.labels()[0].context.origin["who"] == "bob"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 0 and err == ""
    assert out.splitlines() == ["label page closed; 1 answer recorded"]


# -- the page in a browser ---------------------------------------------------------------------------------------------

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
)
KEYS = {"left": "\ue012", "right": "\ue014", "down": "\ue015", "space": " ", "backspace": "\ue003", "enter": "\ue007"}


@dataclass
class Browser:
    """Headless Chromium by the WebDriver protocol, which is plain HTTP and JSON."""

    driver: str
    session: str = ""
    flags: tuple[str, ...] = field(default=())

    def start(self) -> None:
        options = {"binary": CHROMIUM, "args": [*FLAGS, *self.flags]}
        wanted = {
            "capabilities": {"alwaysMatch": {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}}
        }
        self.session = self._send("POST", "/session", wanted)["sessionId"]

    def command(self, method: str, path: str, body: Any = None) -> Any:
        return self._send(method, f"/session/{self.session}{path}", body)

    def _send(self, method: str, path: str, body: Any = None) -> Any:
        data = json.dumps({} if body is None else body).encode() if method == "POST" else None
        request = urllib.request.Request(self.driver + path, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=120) as reply:
            return json.load(reply)["value"]

    def open(self, address: str) -> None:
        self.command("POST", "/url", {"url": address})
        self.settle()

    def run(self, script: str) -> Any:
        return self.command("POST", "/execute/sync", {"script": script, "args": []})

    def settle(self, state: str = "") -> None:
        """Wait until the page is not busy (and in this state)."""
        until = time.monotonic() + 30
        while time.monotonic() < until:
            found = self.run("return document.body.dataset.state ?? 'busy'")
            if found != "busy" and state in ("", found):
                return
            time.sleep(0.02)
        raise AssertionError(f"the page stays {found}; {self.log()}")

    def press(self, key: str) -> None:
        value = KEYS.get(key, key)
        actions = [{"type": "keyDown", "value": value}, {"type": "keyUp", "value": value}]
        self.command("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})
        time.sleep(0.05)
        self.settle()

    def click(self, selector: str) -> None:
        found = self.command("POST", "/element", {"using": "css selector", "value": selector})
        self.command("POST", f"/element/{next(iter(found.values()))}/click")
        time.sleep(0.05)
        self.settle()

    def text(self, selector: str) -> str:
        return str(self.run(f"return document.querySelector({selector!r}).textContent"))

    def key(self) -> str | None:
        found = self.run("return question && question.key")
        return None if found is None else str(found)

    def new_tab(self, address: str) -> str:
        """Opens the address in a tab of its own, and goes there; gives its handle."""
        handle = str(self.command("POST", "/window/new", {"type": "tab"})["handle"])
        self.go_to(handle)
        self.open(address)
        return handle

    def go_to(self, handle: str) -> None:
        self.command("POST", "/window", {"handle": handle})

    def log(self) -> list[str]:
        """What the console says, violations of the content security policy included."""
        return [entry["message"] for entry in self.command("POST", "/se/log", {"type": "browser"})]

    def screenshot(self, file: Path) -> None:
        file.write_bytes(base64.b64decode(self.command("GET", "/screenshot")))


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    if not (CHROMIUM and DRIVER):
        pytest.skip("needs Chromium and ChromeDriver (Debian: chromium, chromium-driver)")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    driver = subprocess.Popen([DRIVER, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    browser = Browser(f"http://127.0.0.1:{port}", flags=(f"--user-data-dir={tmp_path / 'browser'}",))
    try:
        until = time.monotonic() + 30
        while not browser.session:
            try:
                browser.start()
            except urllib.error.URLError:
                if driver.poll() is not None or time.monotonic() > until:
                    raise
                time.sleep(0.1)
        browser.command("POST", "/window/rect", {"width": 1180, "height": 860})
        yield browser
        browser.command("DELETE", "")
    finally:
        driver.terminate()
        driver.wait()


def test_labelling_in_a_browser(page: Page, browser: Browser, tmp_path: Path) -> None:
    questions = pairs(8)
    page.wait_for(*questions)
    keys = [question.key(ASKER.signature) for question in questions]
    browser.command("POST", "/url", {"url": page.server.home})  # somebody else on this machine
    assert "address" in browser.text("body") and page.server.token not in browser.run("return document.body.innerHTML")
    browser.open(page.server.address)
    assert browser.run("return location.href") == page.server.home  # the key does not stay where others see it
    assert browser.run("return document.cookie") == ""
    assert browser.text("#goal") == "a pole upright on the cart"
    assert browser.key() == keys[0] and browser.text("#of") == "8"

    expected: list[tuple[str, Outcome]] = []
    for pressed, outcome in (
        ("left", None),
        ("2", None),
        ("e", Outcome.EQUAL),
        ("space", Outcome.UNSURE),
        ("s", Outcome.SKIPPED),
    ):
        key = str(browser.key())
        first_is_left = int(key[-1], 16) % 2 == 0
        expected.append((key, outcome or (Outcome.FIRST if (pressed == "left") == first_is_left else Outcome.SECOND)))
        browser.press(pressed)
    recorded = [(label_key(page, label.id), label.answer.outcome) for label in page.store.labels()]
    assert recorded == expected
    assert browser.text("#done") == "5" and browser.text("#total") == "5" and browser.text("#who") == "anna"
    assert all(0 < label.answer.seconds < 30 for label in page.store.labels())

    browser.press("z")  # by key: the skipped question is back
    assert browser.key() == expected[-1][0] and browser.text("#note") == "Taken back; here it is again."
    browser.click(".undo")  # and by button
    assert browser.key() == expected[-2][0] and browser.text("#done") == "3"
    assert len(page.store.labels()) == 3

    browser.command("POST", "/refresh")  # loaded again: same question, same count, undo still possible
    browser.settle("asking")
    assert browser.key() == expected[-2][0] and browser.text("#done") == "3"
    browser.press("backspace")
    assert browser.key() == expected[2][0] and browser.text("#done") == "2"
    browser.screenshot(tmp_path / "pair.png")
    assert (tmp_path / "pair.png").stat().st_size > 5_000

    for selector in ("#left", "#right", "#equal", "#unsure", "#skip", "#panel1 canvas"):
        before = browser.key()
        browser.click(selector)
        assert before is not None and browser.key() != before
    browser.settle("empty")
    assert browser.text(".empty h1") == "Nothing to label now"
    assert len(page.store.labels()) == 8 and not page.store.waiting()

    page.wait_for(*pairs(1, start=40))  # found without anybody doing anything
    browser.settle("asking")
    browser.press("down")
    assert page.store.labels()[-1].answer.outcome is Outcome.EQUAL
    assert [line for line in browser.log() if "403 (Forbidden)" not in line] == []


def label_key(page: Page, label: int) -> str:
    stored = next(stored for stored in page.store.labels() if stored.id == label)
    segments = tuple(page.store.segment(digest) for digest in stored.segments)
    return Question(stored.kind, segments, stored.goal, stored.levels).key(stored.signature)


def test_ratings_scores_and_films_in_a_browser(page: Page, browser: Browser, tmp_path: Path) -> None:
    film = Question("compare", (segment(0, 60, 120, 180), segment(200, 100)), ("a pole upright", "an upright pole"))
    page.wait_for(one("rate", 4), one("score", shade=80), film)
    browser.open(page.server.address)
    browser.press("5")  # there are four levels
    assert page.store.labels() == []
    browser.press("3")
    assert page.store.labels()[-1].answer.value == 2.0
    assert browser.run("return document.getElementById('save').disabled")
    browser.press("enter")  # nothing was chosen yet
    assert len(page.store.labels()) == 1
    for _ in range(7):
        browser.press("right")
    browser.press("enter")
    assert page.store.labels()[-1].answer.value == 0.57

    browser.press("p")
    assert browser.text("#pause") == "Play"
    browser.run("draw(0)")
    browser.press(".")
    assert browser.text("#at") == "2 / 4" and browser.key() is not None
    pixels = "return document.querySelector('#panel%d canvas').toDataURL()"
    second = browser.run(pixels % 0)
    browser.press(".")
    assert browser.run(pixels % 0) != second or browser.run("return films[0].length") == 2
    assert browser.text("#also") == "or, in other words: an upright pole"
    browser.screenshot(tmp_path / "film.png")
    browser.press("1")
    assert page.store.labels()[-1].answer.outcome in (Outcome.FIRST, Outcome.SECOND)
    assert browser.log() == []


def test_two_tabs_in_a_browser(page: Page, browser: Browser) -> None:
    page.wait_for(*pairs(3))
    first = str(browser.command("GET", "/window"))
    browser.open(page.server.address)
    of_first = browser.key()
    browser.new_tab(page.server.address)
    assert browser.key() not in (None, of_first)
    for _ in range(3):  # the second tab answers all, at last also what the first one shows
        browser.press("left")
    browser.settle("empty")
    assert len(page.store.labels()) == 3
    browser.go_to(first)
    assert browser.key() == of_first
    browser.press("right")  # too late
    browser.settle("empty")
    assert "answered elsewhere" in browser.text("#note")
    assert len(page.store.labels()) == 3 and not page.store.waiting()


def test_another_site_cannot_answer_in_a_browser(page: Page, browser: Browser) -> None:
    """A page of another origin, in the same browser, knows the key and the token, and still can do nothing."""
    page.wait_for(*pairs(1))
    body = json.dumps({"tab": TAB, "key": page.shown(), "said": "left", "seconds": 1})
    browser.open(page.server.address)
    browser.command("POST", "/url", {"url": "data:text/html,<body data-state=asking>evil</body>"})
    attack = f"""
        const done = arguments[0], address = {page.server.home!r} + "api/answer", body = {json.dumps(body)};
        const plain = fetch(address, {{method: "POST", mode: "no-cors", body}}).then(() => "sent", () => "refused");
        const full = fetch(address, {{method: "POST", body, headers: {{
            "Content-Type": "application/json", "X-Sightline-Token": {page.server.token!r}}}}})
            .then(reply => reply.status, () => "refused");
        Promise.all([plain, full]).then(done)"""
    found = browser.command("POST", "/execute/async", {"script": attack, "args": []})
    assert found[1] == "refused" and not page.store.labels()


# -- long queues -------------------------------------------------------------------------------------------------------


def test_a_request_costs_the_same_however_many_questions_wait(tmp_path: Path) -> None:
    """Counted in instructions of the database's own machine, which are the same on every computer."""
    count = 0

    def step() -> None:
        nonlocal count
        count += 1

    costs = []
    for waiting in (10, 3000):
        with LabelStore(tmp_path / str(waiting)) as store:
            with contextlib.closing(sqlite3.connect(store.folder / "labels.sqlite")) as database, database:
                rows = [
                    (f"{i:04x}", i, "human", "human", "r", "t", None, "rate", "[]", 3, "[]") for i in range(waiting)
                ]
                database.executemany("INSERT INTO waiting VALUES (?,?,?,?,?,?,?,?,?,?,?)", rows)
            tabs = queue.LabelQueue(store, "anna")
            store._database.set_progress_handler(step, 1)
            count = 0
            shown = [tabs.next(tab) for tab in ("one", "two", "one")]
            assert tabs.hold("two", "0001")["held"]
            costs.append(count)
        assert [one["question"]["key"] for one in shown] == ["0000", "0001", "0000"]
        assert shown[0]["waiting"] == waiting
    assert costs[0] > 0 and costs[1] == pytest.approx(costs[0], abs=20)
