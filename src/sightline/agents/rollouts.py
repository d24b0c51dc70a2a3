"""Episodes are played, many at a time.

Every episode has a task seed and a number within its group, and all its chance comes from these: the game's from the
seed, the sampler's and that of random moves from seed, number and turn. So an episode is the same whoever is played
beside it, in whatever order, on however many processes.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import gymnasium
import numpy as np

from sightline.agents.parsing import action_tokens, choice_tokens, read_reply
from sightline.agents.prompting import prompt_text
from sightline.agents.samplers import Completion, Key, Sampler
from sightline.agents.types import Reply, Trajectory, Turn
from sightline.config.agents import Replies
from sightline.envs.games.contract import Observation
from sightline.images import Picture
from sightline.models.vlm.model import VLM
from sightline.models.vlm.types import ChatTurn

MakeGame = Callable[[], gymnasium.Env[Any, Any]]
PictureFilter = Callable[[Picture, "EpisodeTask", int], Picture]
"""What is shown instead of a picture, in a turn of a task."""
CHANCE_OF_MOVES = 2
REMEMBERED = 4096
"""Prompts and replies of a table that are not worked out again."""


@dataclass(frozen=True)
class EpisodeTask:
    """One episode to be played: the seed of its game, and which episode with that seed it is."""

    seed: int
    member: int = 0


class RolloutWorker:
    """Games that are played at the same time by one sampler.

    Args:
        make: makes one game; as many are made as are played at once, and kept.
        replies: what is asked for, and what follows if it does not come.
        window: turns that the sampler is shown, the present one included.
        parallel: episodes played at the same time; the place of one that is over is taken by the next.
        vlm: the model whose tokens samples are made of; None if they are only text, of which nothing is learned.
    """

    def __init__(
        self, make: MakeGame, replies: Replies, window: int = 1, parallel: int = 64, vlm: VLM | None = None
    ) -> None:
        self._make, self._replies, self._window, self._parallel = make, replies, window, parallel
        self._vlm = vlm
        self._games: list[gymnasium.Env[Any, Any]] = []
        self._words = lru_cache(REMEMBERED)(self._word)
        self._readings = lru_cache(REMEMBERED)(self._make_out)

    def play(
        self,
        sampler: Sampler,
        tasks: Sequence[EpisodeTask],
        chance: Key = (),
        look: PictureFilter | None = None,
        after_turns: Callable[[int], None] | None = None,
    ) -> list[Trajectory]:
        """Play every task to its end.

        Args:
            chance: joined to the key of every turn, so that the same task can be played differently.
            look: changes what is shown, not what is played.
            after_turns: called with the number of turns that were just played.

        Returns:
            Trajectories in the order of the tasks. Where the environment broke down, one with `error`.
        """
        waiting = deque(enumerate(tasks))
        done: dict[int, Trajectory] = {}
        active: list[_Episode] = []
        free = list(range(self._parallel))
        while waiting or active:
            while waiting and free:
                place, task = waiting.popleft()
                active.append(_Episode(self, free.pop(0), place, task, chance, look))
            playing = [episode for episode in active if not episode.over]
            if playing:
                asked = sampler.ask(
                    [episode.conversation() for episode in playing], [episode.key() for episode in playing]
                )
                for episode, answer in zip(playing, asked, strict=True):
                    episode.take(answer)
                if after_turns is not None:
                    after_turns(len(playing))
            for episode in active:
                if episode.over:
                    done[episode.place] = episode.trajectory
                    free.append(episode.seat)
            active = [episode for episode in active if not episode.over]
        return [done[place] for place in range(len(tasks))]

    def game(self, seat: int) -> gymnasium.Env[Any, Any]:
        """The game at a seat."""
        while len(self._games) <= seat:
            self._games.append(self._make())
        return self._games[seat]

    def replace(self, seat: int) -> None:
        """Put a new game where one broke down."""
        with contextlib.suppress(Exception):
            self._games[seat].close()
        self._games[seat] = self._make()

    def close(self) -> None:
        for game in self._games:
            with contextlib.suppress(Exception):  # it would hide why play has ended
                game.close()
        self._games.clear()

    def _word(self, text: str, asked: tuple[str, ...], action_names: tuple[str, ...]) -> str:
        return prompt_text(text, self._replies, asked, action_names)

    def _make_out(
        self,
        ids: tuple[int, ...],
        text: str,
        finished: bool,
        asked: tuple[str, ...],
        action_names: tuple[str, ...],
        legal: tuple[str, ...],
    ) -> _Reading:
        reply = read_reply(text, self._replies, action_names, asked, finished)
        if self._vlm is None or not ids:
            return _Reading(reply, np.zeros(len(ids), bool))
        vlm = self._vlm
        tokens = action_tokens(reply.span, vlm.offsets(ids))
        choice, choices = choice_tokens(text, reply.span, legal, vlm.tokens.encode, vlm.tokens.offsets, ids)
        return _Reading(reply, tokens, choice, choices)


@dataclass(frozen=True, eq=False)
class _Reading:
    """A reply made out; see `Turn`. It may be that of several turns, so nobody changes it."""

    reply: Reply
    action_tokens: np.ndarray
    choice: int | None = None
    choices: tuple[int, ...] = ()


class _Episode:
    """One game that is being played at a table."""

    def __init__(
        self, table: RolloutWorker, seat: int, place: int, task: EpisodeTask, chance: Key, look: PictureFilter | None
    ) -> None:
        self._table, self.seat, self.place, self._task = table, seat, place, task
        self._chance, self._look = chance, look
        self.trajectory = Trajectory(task.seed, task.member)
        self.over = False
        self._exchanges: list[ChatTurn] = []
        self._info: dict[str, Any] = {}
        game = table.game(seat)
        self._action_names: tuple[str, ...] = game.get_wrapper_attr("action_names")
        self._asked: tuple[str, ...] = game.get_wrapper_attr("asked")
        try:
            observation, self._info = game.reset(seed=task.seed)
            self.trajectory.kind = str(self._info.get("kind", ""))
            self._show(observation)
        except Exception as error:
            self._break_down(error)

    def key(self) -> Key:
        return (*self._chance, self._task.seed, self._task.member, len(self.trajectory.turns))

    def conversation(self) -> list[ChatTurn]:
        """The turns of the window; the last waits for its reply."""
        return self._exchanges[-self._table._window :]

    def take(self, asked: Completion) -> None:
        """Play what was replied."""
        turn = self._read(asked)
        self.trajectory.turns.append(turn)
        self._exchanges[-1] = turn.exchange
        if turn.played is None:
            self.over = True
            return
        game = self._table.game(self.seat)
        try:
            observation, reward, terminated, truncated, self._info = game.step(
                np.int64(self._action_names.index(turn.played))
            )
            if not math.isfinite(reward):
                turns, seed = len(self.trajectory.turns), self._task.seed
                raise ValueError(f"the reward of turn {turns} is {reward} (episode with seed {seed})")
            turn.reward += float(reward)
            self.trajectory.success = bool(self._info.get("success", False))
            self.trajectory.mistakes = int(self._info.get("mistakes", 0))
            self._show(observation)
        except Exception as error:
            self._break_down(error)
            return
        self.over = bool(terminated or truncated)
        if truncated and not terminated:
            self.trajectory.truncated = True
            if self._table._vlm is not None and asked.prompt is not None:
                self.trajectory.end = self._table._vlm.encode(self.conversation())

    def _show(self, observation: Observation) -> None:
        pictures = tuple(Picture(image) for image in observation.images)
        if self._look is not None:
            turn = len(self.trajectory.turns)
            pictures = tuple(self._look(picture, self._task, turn) for picture in pictures)
        text = self._table._words(observation.text, self._asked, self._action_names)
        self._exchanges.append(ChatTurn(text, pictures))

    def _read(self, asked: Completion) -> Turn:
        """The turn that a reply makes, before it is played."""
        settings, sample = self._table._replies, asked.sample
        legal: tuple[str, ...] = tuple(self._info.get("legal_actions", self._action_names))
        ids = tuple(sample.ids.tolist())
        reading = self._table._readings(ids, sample.text, sample.finished, self._asked, self._action_names, legal)
        reply = reading.reply
        is_legal = reply.action in legal
        played = self._played(reply.action, is_legal, legal)
        penalty = settings.penalty if reply.action is None or not is_legal else 0.0
        return Turn(
            exchange=ChatTurn(self._exchanges[-1].text, self._exchanges[-1].pictures, ids, reply_text=sample.text),
            prompt=asked.prompt,
            sample=sample,
            reply=reply,
            played=played,
            credited=played is None or played == reply.action or settings.penalty > 0,
            legal=is_legal,
            reward=-penalty,
            penalty=penalty,
            facts=dict(self._info.get("facts", {})) if settings.facts else {},
            legal_actions=legal,
            action_tokens=reading.action_tokens,
            choice=reading.choice,
            choices=reading.choices,
        )

    def _played(self, action: str | None, is_legal: bool, legal: Iterable[str]) -> str | None:
        """The action that is taken for a reply, None if the episode is forfeited."""
        settings = self._table._replies
        if action is not None and (is_legal or settings.illegal == "play"):
            return action
        if (settings.unparsable if action is None else settings.illegal) == "forfeit":
            return None
        names = tuple(legal) or self._action_names
        return names[int(np.random.default_rng((CHANCE_OF_MOVES, *self.key())).integers(len(names)))]

    def _break_down(self, error: Exception) -> None:
        reason = " ".join(str(error).split()) or "no reason given"
        self.trajectory.error = f"{type(error).__name__}: {reason}"
        self.over = True
        self._table.replace(self.seat)
