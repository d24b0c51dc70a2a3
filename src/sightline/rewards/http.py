"""The reward of a server: any reward model that runs elsewhere, asked over HTTP.

    a chunk's frames ──► requests of `batch` frames ──► kept answers? ──► the server ──► values ──► rewards
                                                            ▲                  │
                                                            └── reward_answers.sqlite, in the run folder

What a run was answered once is never asked for again: a run that is resumed is told bit for bit what it was told then,
though the server may have died in between. Several servers share the requests; which one has answered shows nowhere,
and what one does not answer, another one is asked. A run whose servers are all silent ends in one line, saved; no
reward is ever made up. What an answer leaves out (null) is a value between those before and after it in its episode,
and is counted.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from sightline.config.basics import Address, addresses_of
from sightline.config.blocks import Reach, checked_block
from sightline.config.secrets import VARIABLE, refuse_secrets
from sightline.errors import BadInput, RunFailed, warn
from sightline.rewards.arrays import to_numpy
from sightline.rewards.base import Clip, Need, Unavailable
from sightline.rewards.config import RewardConfig, RewardContext, RewardSetup
from sightline.rewards.interpolation import Cells, Every, InterpolatedReward, episodes_of
from sightline.rewards.scopes import Scope
from sightline.rewards.servers.protocols import Output, Query, Request, RobometerProtocol, SightlineProtocol
from sightline.rewards.servers.wire import Malformed
from sightline.runs.trust import is_this_machine

if TYPE_CHECKING:
    from sightline.rewards.servers.client import ServerConnection
    from sightline.rewards.servers.protocols import RewardProtocol, ServerInfo


MOST_FRAMES = 16
"""Frames of an episode so far that are sent to a server which names no number."""


class HTTPConfig(RewardConfig):
    """The rewards of a server: a reward model that runs elsewhere (docs/reward-servers.md)."""

    kind: Literal["http"] = "http"
    url: Address | Annotated[list[Address], Field(min_length=1)]
    """Address of the server, such as http://localhost:8701; or of several with the same model, which share the frames.
    Other machines are asked by https:// only. A run that goes on may be given others."""
    protocol: Literal["sightline", "robometer"] = "sightline"
    """What the server speaks: `sightline` (`sightline serve-reward`), or `robometer` (Robometer's servers)."""
    camera: str = ""
    """Name that frames are given, for servers that tell cameras apart."""
    batch: PositiveInt = 128
    """Frames of a request, at most."""
    timeout: PositiveFloat = 60.0
    """Seconds for one request."""
    retries: int = Field(default=5, ge=0)
    """Further attempts after a failure that may pass."""
    frames: Annotated[int, Field(ge=2)] | None = None
    """Frames of an episode so far that are sent, at most: the reset frame, the present one, and others evenly between;
    null: as many as the server takes, or 16."""
    every: PositiveInt | Literal["end"] = 1
    """Steps from one that the server is asked about to the next; `end`: only the last step of each episode is asked
    about, and paid."""
    output: Output = "progress"
    """What is paid: the server's rewards (`progress`), their `difference` from one step to the next, or its probability
    of `success`."""
    key_env: str | None = None
    """Environment variable that holds the server's key or token; it is sent over https://, or on this machine."""
    headers: dict[str, str] = {}
    """Further headers of requests: `headers.x-token=$MY_TOKEN` sends what is in that environment variable."""
    insecure_http: bool = False
    """Send frames to another machine by http:// too, on a network that is trusted; a key never goes that way."""

    @model_validator(mode="after")
    def _fits_together(self) -> HTTPConfig:
        if self.every == "end" and self.output == "difference":
            raise ValueError("output=difference needs more than the last value of an episode; leave out every=end")
        addresses_of(self.url)
        return self

    @property
    def addresses(self) -> list[str]:
        """Address of each server."""
        return addresses_of(self.url)

    def places(self) -> Iterator[str]:
        yield "url"

    def reaches(self) -> Iterator[Reach]:
        for address in self.addresses:
            if not is_this_machine(address):
                yield "url", address, "a server that would be sent pictures"
        if self.key_env:
            yield "key_env", self.key_env, "a key that would be used"
        for name, value in self.headers.items():
            if VARIABLE.search(value):
                yield f"headers.{name}", value, "a key that would be used"

    def facts(self) -> dict[str, str]:
        return super().facts() | {"Reward server": f"{', '.join(self.addresses)} ({self.protocol})"}

    def build(self, context: RewardContext) -> RewardSetup:
        settings = self.model_dump(exclude={"kind"})
        model = HTTPReward(goal=context.goal, folder=context.folder, **settings)
        return RewardSetup(model, model.frame_size, frames="frames" in model.needs, warnings=model.warnings)


class HTTPReward(InterpolatedReward):
    """A reward model at the other end of a connection.

    >>> reward = HTTPReward("http://localhost:8701", goal="a pole standing upright on a cart")
    >>> reward(frames)  # uint8[N, H, W, 3] -> float32[N]

    Args:
        url: address of the server, or of several with the same model.
        goal: what a server is told that reads an instruction; several sentences are one text.
        folder: of the run, where answers are kept; None keeps none.
        settings: see `HTTPConfig`.

    Attributes:
        frame_size: height and width that the server reads frames at; None for any.
        warnings: one line each.

    Raises:
        BadInput: a server turns questions down, reads an instruction and there is no goal, is another one than the
            folder's answers are from, or than the other servers, or a setting is refused.
        RunFailed: none answers, or one says nothing that can be read.
        Unavailable: later, when none gives rewards any more.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        goal: str | Sequence[str] | None = None,
        *,
        folder: str | Path | None = None,
        **settings: Any,
    ) -> None:
        from sightline.rewards.servers.answers import FILE, KeptAnswers
        from sightline.rewards.servers.client import RewardClient

        addresses = url if isinstance(url, str) else list(url)
        block = checked_block(HTTPConfig, {"url": addresses, **settings})
        refuse_secrets({"headers": block.headers})
        self._answers = KeptAnswers(None if folder is None else Path(folder) / FILE)
        self._output = block.output
        self._batch = block.batch
        self._protocol = _protocol_of(block)
        self._client = RewardClient(
            block.addresses,
            key_env=block.key_env,
            headers=block.headers,
            insecure_http=block.insecure_http,
            timeout=block.timeout,
            retries=block.retries,
            spend=self._answers.add,
            probe=self._protocol.probe,
            differ=_warn_of_difference,
        )
        self.info, absent = self._asked_info(block.retries)
        super().__init__(_scope_of(self.info, block), _every(self.info, block), block.output == "difference")
        self._instruction = self._words(goal)
        self.warnings = absent
        self.needs: frozenset[Need] = frozenset(need for need in ("frames", "states") if need in self.info.needs)
        if "states" in self.needs and (self.scope.kind != "frame" or self.every != 1):
            raise BadInput(
                f"the reward server at {self._client.where} reads states, which are judged alone, and each of them: "
                "leave out every and output=difference, or ask a server that reads frames"
            )
        self.frame_size = self.info.size
        # All that an answer depends on, beside the frames.
        facts = [block.protocol, self.info.model, self._instruction, block.camera, block.output == "success"]
        self._signature = json.dumps(facts).encode()

    def _asked_info(self, retries: int) -> tuple[ServerInfo, tuple[str, ...]]:
        """What the servers say of themselves, which is the same; and a line for each that does not answer."""
        infos: dict[str, ServerInfo] = {}
        silent: list[RunFailed] = []
        for server in self._client.servers:
            try:
                infos[server.where] = self._protocol.info(functools.partial(server.get, retries=retries))
            except Malformed as error:
                raise BadInput(
                    f"{server.where} is no reward server that can be asked: {error}; correct url or protocol"
                ) from error
            except RunFailed as error:
                silent.append(error)
        if not infos:
            raise silent[0]
        where, info = next(iter(infos.items()))
        for second_where, second in infos.items():
            if second != info:
                raise BadInput(
                    f"the reward servers at {where} and {second_where} are not alike: '{info.model[:200]}' and "
                    f"'{second.model[:200]}'; name servers of one model, which are started with the same words"
                )
        before = self._answers.model()
        if before is not None and before != info.model:
            raise BadInput(
                f"the reward server at {where} is '{info.model[:200]}' now, and this run's rewards are of "
                f"'{before[:200]}'; start that one again, or train anew"
            )
        advice = "the other servers are asked, and this one again with each chunk"
        return info, tuple(f"{error}; {advice}" for error in silent)

    def _words(self, goal: str | Sequence[str] | None) -> str | None:
        """The instruction for the server, None if it reads none."""
        sentences = (goal,) if isinstance(goal, str) else tuple(goal or ())
        if "instruction" not in self.info.needs:
            return None
        if not any(sentence.strip() for sentence in sentences):
            raise BadInput(f"the reward server at {self._client.where} reads an instruction; say goal=…")
        return "; ".join(sentences)

    def ask(self, clip: Clip, steps: Cells, resets: Cells) -> tuple[np.ndarray, np.ndarray]:
        """What the server says of some steps, and of the reset frames before some.

        Raises:
            Unavailable: it does not answer.
        """
        of_resets: list[Query] = []
        if self.info.scope == "frame":
            queries = self._frame_queries(clip, steps)
            of_resets = self._frame_queries_of_resets(clip, resets)
            cells = steps
        else:
            stretches = [(self._query(clip, cell, self.scope, 1), [cell]) for cell in steps]
            if self.info.scope == "window" and self.every == 1:
                stretches = self._stretches(clip)
            queries = [query for query, _ in stretches]
            cells = [cell for _, of_query in stretches for cell in of_query]
            of_resets = [Query(1, 1, _resets_of(clip, [cell]), steps=np.zeros(1, np.int64)) for cell in resets]
        values = np.concatenate([np.zeros(0, np.float32), *self._values([*queries, *of_resets])])
        # Queries come environment by environment, and steps in order of time.
        places = {cell: place for place, cell in enumerate(cells)}
        in_order = np.array([places[cell] for cell in steps], np.int64)
        return values[in_order], values[len(cells) :]

    def stand_in(self, values: np.ndarray, steps: int) -> float:
        """Nothing is made up of an episode without an answer.

        Raises:
            Unavailable: always.
        """
        raise Unavailable(
            f"the reward server at {self._client.where} has no answer for any of {steps} steps of an episode (null), "
            "and no reward is made up; look at the server"
        )

    def costs(self) -> dict[str, float]:
        return self._answers.costs()

    # -- asking ----------------------------------------------------------------------------------------------------

    def _frame_queries(self, clip: Clip, steps: Cells) -> list[Query]:
        """Queries of frames, or states, that are judged alone and need not follow each other: `batch` in each."""
        rows, envs = np.array(steps, np.int64).reshape(-1, 2).T
        places = rows * clip.shape[1] + envs
        queries = []
        for some in self._batches(len(steps)):
            part = places[some]
            frames = functools.partial(_part, clip.frames, part) if "frames" in self.needs else None
            states = _part(np.asarray(clip.states, np.float32), part) if "states" in self.needs else None
            queries.append(Query(len(part), len(part), frames, states))
        return queries

    def _frame_queries_of_resets(self, clip: Clip, resets: Cells) -> list[Query]:
        """Queries of reset frames that are judged alone."""
        parts = [resets[some] for some in self._batches(len(resets))]
        return [Query(len(cells), len(cells), _resets_of(clip, cells)) for cells in parts]

    def _batches(self, count: int) -> list[slice]:
        """Slices of `count` frames that are judged alone, each no longer than a query may be."""
        size = min(self._batch, self.info.max_frames or self._batch)
        return [slice(start, start + size) for start in range(0, count, size)]

    def _stretches(self, clip: Clip) -> list[tuple[Query, Cells]]:
        """Queries of consecutive steps, each of which the server judges by its window, with the steps of each: so that
        a frame travels once, and not once with each window."""
        earlier = self.info.window - 1
        size = max(min(self._batch, self.info.max_frames or self._batch) - earlier, 1)
        stretches = []
        for env in range(clip.shape[1]):
            for begin, end in episodes_of(clip.first[:, env]):
                for start in range(begin, end, size):
                    rows = range(start, min(start + size, end))
                    scope = Scope("window", earlier + len(rows))
                    query = self._query(clip, (rows[-1], env), scope, len(rows))
                    stretches.append((query, [(row, env) for row in rows]))
        return stretches

    def _query(self, clip: Clip, cell: tuple[int, int], scope: Scope, wanted: int) -> Query:
        """The query with the frames that are shown for a step."""
        _, steps = clip.shown(*cell, scope)
        return Query(len(steps), wanted, lambda: to_numpy(clip.shown(*cell, scope)[0]), steps=steps)

    def _groups(self, queries: Sequence[Query]) -> list[list[int]]:
        """The numbers of queries that go into one request, in order."""
        open_groups: dict[int, list[int]] = {}
        groups: list[list[int]] = []
        for number, query in enumerate(queries):
            kind = query.length if self.info.equal_lengths else 0
            group = open_groups.get(kind)
            if group is None or sum(queries[other].length for other in group) + query.length > self._batch:
                group = open_groups[kind] = []
                groups.append(group)
            group.append(number)
        return groups

    def _values(self, queries: Sequence[Query]) -> list[np.ndarray]:
        """The server's answers, float32[wanted] for each query; what was answered before is not asked for again."""
        numbers_of_groups = self._groups(queries)
        groups = [[queries[number] for number in numbers] for numbers in numbers_of_groups]
        by_query: dict[int, np.ndarray] = {}
        keys = [b""] * len(groups)

        def answered(place: int, values: Sequence[np.ndarray]) -> None:
            by_query.update(zip(numbers_of_groups[place], values, strict=True))

        def request(place: int) -> Request | None:
            # The key is made when the turn of its group has come, while the server computes the groups before.
            keys[place] = self._key_of(groups[place])
            numbers = self._answers.find(keys[place])
            if numbers is None:
                return self._protocol.request(groups[place], self._instruction)
            answered(place, _cut(numbers, groups[place]))
            return None

        def read(place: int, document: Any) -> list[np.ndarray]:
            return self._protocol.values(document, groups[place], self.info, self._output == "success")

        def arrived(place: int, values: list[np.ndarray]) -> None:
            numbers = np.concatenate(values)
            frames = sum(query.length for query in groups[place])
            costs = {"frames": float(frames), "unanswered": float(np.isnan(numbers).sum())}
            # On disk before it is used, so that a kill loses nothing that is paid for.
            self._answers.keep({keys[place]: numbers}, costs)
            answered(place, values)

        if groups:
            self._answers.keep_model(self.info.model)
        self._client.post_all(len(groups), request, read, arrived)
        return [by_query[number] for number in range(len(queries))]

    def _key_of(self, group: Sequence[Query]) -> bytes:
        """The key of a request's answer: equal where all is equal that the answer depends on."""
        content = hashlib.sha256(self._signature)
        for query in group:
            content.update(query.digest())
        return content.digest()


def _warn_of_difference(
    server: ServerConnection,
    values: Sequence[np.ndarray],
    second: ServerConnection,
    second_values: Sequence[np.ndarray],
) -> None:
    """Warn of two servers whose answers to one request are not equal bit for bit."""
    numbers, second_numbers = np.concatenate(values), np.concatenate(second_values)
    if np.array_equal(numbers, second_numbers, equal_nan=True):
        return
    difference = np.abs(numbers.astype(np.float64) - second_numbers)
    warn(
        f"the reward servers at {server.where} and {second.where} answer the same frames differently, by up to "
        f"{np.nanmax(difference, initial=0.0):.2g}: rewards depend on which of them is asked. A run goes on with what "
        "it was answered, but a second one need not be equal; start them on machines of one kind, with equal packages"
    )


def _scope_of(info: ServerInfo, block: HTTPConfig) -> Scope:
    """The frames that a server is sent for a step."""
    if info.scope in ("frame", "window"):
        if block.frames is not None:
            raise BadInput(f"frames={block.frames} is for servers that are shown an episode so far; leave it out")
        if info.scope == "frame":
            return Scope()
        return Scope("window", info.window)
    frames = block.frames or info.max_frames or MOST_FRAMES
    return Scope(info.scope, min(frames, info.max_frames or frames))


def _every(info: ServerInfo, block: HTTPConfig) -> Every:
    """The steps that a server is asked about: one that judges whole episodes, about the last ones."""
    if info.scope != "episode":
        return block.every
    if block.output == "difference":
        raise BadInput(
            "this server judges whole episodes, whose steps have no differences; leave out output=difference"
        )
    return "end"


def _protocol_of(block: HTTPConfig) -> RewardProtocol:
    if block.protocol == "robometer":
        return RobometerProtocol()
    return SightlineProtocol(block.camera)


def _cut(numbers: np.ndarray, group: Sequence[Query]) -> list[np.ndarray]:
    """The numbers of a request's answer, by query."""
    ends = np.cumsum([query.wanted for query in group])
    return np.split(numbers, ends[:-1])


def _part(array: Any, places: np.ndarray) -> np.ndarray:
    """[K, …], rows of an array [T, N, …] as T * N rows, by their places int[K], ascending."""
    flat = array.reshape(-1, *array.shape[2:])
    begin, end = int(places[0]), int(places[-1]) + 1
    # Those that follow each other, which is all of them where every step is asked about, are not copied.
    return to_numpy(flat[begin:end] if end - begin == len(places) else flat[places])


def _resets_of(clip: Clip, cells: Cells) -> Callable[[], np.ndarray]:
    """What gives the reset frames before some steps, uint8[K, H, W, 3]."""
    return lambda: np.stack([to_numpy(clip.reset_frame(*cell)) for cell in cells])
