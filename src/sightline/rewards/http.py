"""The reward of a server: any reward model that runs elsewhere, asked over HTTP.

    a chunk's frames ──► requests of `batch` frames ──► kept answers? ──► the server ──► values ──► rewards
                                                            ▲                  │
                                                            └── reward_answers.sqlite, in the run folder

What a run was answered once is never asked for again: a run that is resumed is told bit for bit what it was told then,
though the server may have died in between. A server that does not answer ends a run in one line, saved; no reward is
ever made up. What an answer leaves out (null) is a value between those before and after it in its episode, and is
counted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field, PositiveFloat, PositiveInt

from sightline.config.blocks import Reach, checked_block
from sightline.config.secrets import VARIABLE, refuse_secrets
from sightline.errors import BadInput
from sightline.rewards.arrays import to_numpy
from sightline.rewards.base import Clip, Need, RewardModel, Unavailable
from sightline.rewards.config import RewardConfig, RewardContext, RewardSetup
from sightline.rewards.servers.protocols import Output, Query, Request, RobometerProtocol, SightlineProtocol
from sightline.rewards.servers.wire import Malformed
from sightline.runs.trust import is_this_machine

if TYPE_CHECKING:
    from sightline.rewards.servers.protocols import RewardProtocol, ServerInfo


class HTTPConfig(RewardConfig):
    """The rewards of a server: a reward model that runs elsewhere (docs/reward-servers.md)."""

    kind: Literal["http"] = "http"
    url: Annotated[str, Field(min_length=1)]
    """Address of the server, such as http://localhost:8701. Other machines are asked by https:// only."""
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
    output: Output = "progress"
    """What is paid: the server's rewards (`progress`), or its probability of `success`."""
    key_env: str | None = None
    """Environment variable that holds the server's key or token; it is sent over https://, or on this machine."""
    headers: dict[str, str] = {}
    """Further headers of requests: `headers.x-token=$MY_TOKEN` sends what is in that environment variable."""
    insecure_http: bool = False
    """Send frames to another machine by http:// too, on a network that is trusted; a key never goes that way."""

    def reaches(self) -> Iterator[Reach]:
        if not is_this_machine(self.url):
            yield "url", self.url, "a server that would be sent pictures"
        if self.key_env:
            yield "key_env", self.key_env, "a key that would be used"
        for name, value in self.headers.items():
            if VARIABLE.search(value):
                yield f"headers.{name}", value, "a key that would be used"

    def facts(self) -> dict[str, str]:
        return super().facts() | {"Reward server": f"{self.url} ({self.protocol})"}

    def build(self, context: RewardContext) -> RewardSetup:
        settings = self.model_dump(exclude={"kind"})
        model = HTTPReward(goal=context.goal, folder=context.folder, **settings)
        return RewardSetup(model, model.frame_size, frames="frames" in model.needs, warnings=model.warnings)


class HTTPReward(RewardModel):
    """A reward model at the other end of a connection.

    >>> reward = HTTPReward("http://localhost:8701", goal="a pole standing upright on a cart")
    >>> reward(frames)  # uint8[N, H, W, 3] -> float32[N]

    Args:
        url: address of the server.
        goal: what a server is told that reads an instruction; several sentences are one text.
        folder: of the run, where answers are kept; None keeps none.
        settings: see `HTTPConfig`.

    Attributes:
        frame_size: height and width that the server reads frames at; None for any.
        warnings: one line each.

    Raises:
        BadInput: the server turns questions down, reads an instruction and there is no goal, is another one than the
            folder's answers are from, or a setting is refused.
        RunFailed: it does not answer, or says nothing that can be read.
        Unavailable: later, when it gives no rewards.
    """

    def __init__(
        self, url: str, goal: str | Sequence[str] | None = None, *, folder: str | Path | None = None, **settings: Any
    ) -> None:
        from sightline.rewards.servers.answers import FILE, KeptAnswers
        from sightline.rewards.servers.client import RewardClient

        block = checked_block(HTTPConfig, {"url": url, **settings})
        refuse_secrets({"headers": block.headers})
        self._answers = KeptAnswers(None if folder is None else Path(folder) / FILE)
        self._output = block.output
        self._batch = block.batch
        self._protocol = _protocol_of(block)
        self._client = RewardClient(
            block.url,
            key_env=block.key_env,
            headers=block.headers,
            insecure_http=block.insecure_http,
            timeout=block.timeout,
            retries=block.retries,
            spend=self._answers.add,
        )
        self.info = self._asked_info()
        self._instruction, self.warnings = self._words(goal)
        self.needs: frozenset[Need] = frozenset(need for need in ("frames", "states") if need in self.info.needs)
        self.frame_size = self.info.size
        # All that an answer depends on, beside the frames.
        facts = [block.protocol, self.info.model, self._instruction, block.camera, block.output]
        self._signature = json.dumps(facts).encode()

    def _asked_info(self) -> ServerInfo:
        """What the server says of itself."""
        where = self._client.where
        try:
            info = self._protocol.info(self._client.get)
        except Malformed as error:
            raise BadInput(
                f"{where} is no reward server that can be asked: {error}; correct url or protocol"
            ) from error
        before = self._answers.model()
        if before is not None and before != info.model:
            raise BadInput(
                f"the reward server at {where} is '{info.model[:200]}' now, and this run's rewards are of "
                f"'{before[:200]}'; start that one again, or train anew"
            )
        if self._output == "difference":
            raise BadInput("output=difference compares steps, and servers are asked about single frames; say progress")
        if info.scope != "frame":
            raise BadInput(f"the reward server at {where} judges several frames at once ({info.scope})")
        return info

    def _words(self, goal: str | Sequence[str] | None) -> tuple[str | None, tuple[str, ...]]:
        """The instruction for the server, None if it reads none; and warnings."""
        sentences = (goal,) if isinstance(goal, str) else tuple(goal or ())
        if "instruction" not in self.info.needs:
            return None, ()
        if not any(sentence.strip() for sentence in sentences):
            raise BadInput(f"the reward server at {self._client.where} reads an instruction; say goal=…")
        return "; ".join(sentences), ()

    def embed(self, clip: Clip) -> np.ndarray:
        """float32[T, N, 1], what the server says of each state; NaN where it has no answer.

        Raises:
            Unavailable: it does not answer.
        """
        frames = to_numpy(clip.frames) if "frames" in self.needs else None
        states = np.asarray(clip.states, np.float32) if "states" in self.needs else None
        steps, envs = clip.shape
        # [T, N, …] -> [T * N, …]: frames that are judged alone need not follow each other.
        if frames is not None:
            frames = frames.reshape(steps * envs, *frames.shape[2:])
        if states is not None:
            states = states.reshape(steps * envs, *states.shape[2:])
        values = self._values(self._single_queries(frames, states, steps * envs))
        return np.concatenate([np.zeros(0, np.float32), *values]).reshape(steps, envs, 1)

    def score(self, features: np.ndarray, clip: Clip) -> np.ndarray:
        """float32[T, N] rewards from what `embed` gave; what is missing lies between its neighbours in time.

        Raises:
            Unavailable: nothing is answered of any state of an episode in the clip.
        """
        values = np.asarray(features[..., 0], np.float32)
        if not np.isnan(values).any():
            return values
        return self._filled(values, clip.first)

    def costs(self) -> dict[str, float]:
        return self._answers.costs()

    # -- asking ----------------------------------------------------------------------------------------------------

    def _single_queries(self, frames: np.ndarray | None, states: np.ndarray | None, count: int) -> list[Query]:
        """Queries of frames, or states, that are judged alone: `batch` of them in each."""
        size = min(self._batch, self.info.max_frames or self._batch)
        queries = []
        for start in range(0, count, size):
            rows = slice(start, min(start + size, count))
            of_frames = None if frames is None else frames[rows]
            of_states = None if states is None else states[rows]
            queries.append(Query(of_frames, of_states, None, rows.stop - rows.start))
        return queries

    def _values(self, queries: Sequence[Query]) -> list[np.ndarray]:
        """The server's answers, float32[wanted] for each query; what was answered before is not asked for again."""
        groups = self._groups(queries)
        by_group: list[list[np.ndarray]] = [[] for _ in groups]
        keys = [b""] * len(groups)

        def request(number: int) -> Request | None:
            # The key is made when the turn of its group has come, while the server computes the groups before.
            keys[number] = self._key_of(groups[number])
            numbers = self._answers.find(keys[number])
            if numbers is None:
                return self._protocol.request(groups[number], self._instruction)
            by_group[number] = _cut(numbers, groups[number])
            return None

        def read(number: int, document: Any) -> list[np.ndarray]:
            return self._protocol.values(document, groups[number], self.info, self._output == "success")

        def arrived(number: int, values: list[np.ndarray]) -> None:
            numbers = np.concatenate(values)
            frames = sum(query.length for query in groups[number])
            costs = {"frames": float(frames), "unanswered": float(np.isnan(numbers).sum())}
            # On disk before it is used, so that a kill loses nothing that is paid for.
            self._answers.keep({keys[number]: numbers}, costs)
            by_group[number] = values

        if groups:
            self._answers.keep_model(self.info.model)
        self._client.post_all(len(groups), request, read, arrived)
        return [values for of_group in by_group for values in of_group]

    def _groups(self, queries: Sequence[Query]) -> list[list[Query]]:
        """Queries by request."""
        return [[query] for query in queries]

    def _key_of(self, group: Sequence[Query]) -> bytes:
        """The key of a request's answer: equal where all is equal that the answer depends on."""
        content = hashlib.sha256(self._signature)
        for query in group:
            content.update(query.digest())
        return content.digest()

    def _filled(self, values: np.ndarray, first: np.ndarray) -> np.ndarray:
        """Values [T, N] with those that are missing filled in between their neighbours in the same episode."""
        filled = values.copy()
        for env in range(values.shape[1]):
            begins = np.flatnonzero(first[:, env])
            for rows in np.split(np.arange(len(values)), begins[begins > 0]):
                answered = rows[~np.isnan(values[rows, env])]
                if not len(answered):
                    raise Unavailable(
                        f"the reward server at {self._client.where} has no answer for any of {len(rows)} steps of an "
                        "episode (null), and no reward is made up; look at the server"
                    )
                filled[rows, env] = np.interp(rows, answered, values[answered, env])
        return filled


def _protocol_of(block: HTTPConfig) -> RewardProtocol:
    if block.protocol == "robometer":
        return RobometerProtocol()
    return SightlineProtocol(block.camera)


def _cut(numbers: np.ndarray, group: Sequence[Query]) -> list[np.ndarray]:
    """The numbers of a request's answer, by query."""
    ends = np.cumsum([query.wanted for query in group])
    return np.split(numbers, ends[:-1])
