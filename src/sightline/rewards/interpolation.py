"""Rewards whose model is asked about some steps only, since each answer costs time or money.

    steps of an episode     0    1    2    3    4    5    6    7    8     0 is the reset frame
    asked, every=3          ●         ●              ●              ●     the last, every third before it, and the reset
    value                  .0   .1   .2   .3   .4   .5   .6   .7   .8     between two that were asked: on their line
    output=value                .1   .2   .3   .4   .5   .6   .7   .8
    output=difference           .1   .1   .1   .1   .1   .1   .1   .1     adds up to the last value less the first

The last step of a clip is asked about, too, for what comes after it is not known yet. Where nobody knows the reset
frame, the first step takes its place, whose difference is 0. With `every=end` only the last step of an episode is asked
about, and paid.

A step without an answer lies on the line between its neighbours, as if it had not been asked.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from sightline.errors import BadInput
from sightline.rewards.base import Clip, RewardModel
from sightline.rewards.scopes import Scope

Every = int | Literal["end"]
Cells = list[tuple[int, int]]
"""Rows and columns of steps in a clip."""


class InterpolatedReward(RewardModel):
    """Base of such rewards; subclass it with `ask` and `stand_in`.

    Args:
        scope: frames that are shown for a step.
        every: steps from one that is asked about to the next; `end`: the last of each episode alone.
        differences: whether the difference from the step before is paid, and not the value.
    """

    def __init__(self, scope: Scope, every: Every, differences: bool) -> None:
        self.every = every
        self.differences = differences
        if every == "end" and scope.kind == "prefix":
            scope = Scope("episode", scope.frames)
        self._asks_resets = differences or every not in (1, "end")
        if self._asks_resets and scope.kind == "frame":
            scope = Scope("window", 1)  # by which reset frames are taken
        self.scope = scope
        # A line and a difference begin with the value of the step before.
        self.window = 2 if self._asks_resets else 1

    @property
    def judges_stills(self) -> bool:
        return super().judges_stills and not self.differences and self.every != "end"

    def ask(self, clip: Clip, steps: Cells, resets: Cells) -> tuple[np.ndarray, np.ndarray]:
        """Values of some steps, float[K], and of the reset frames before some steps, float[R]; NaN for no answer.

        Raises:
            Unavailable: the model cannot be asked.
        """
        raise NotImplementedError

    def stand_in(self, values: np.ndarray, steps: int) -> float:
        """The value of an episode of `steps` steps in a clip that has no answer at all.

        Args:
            values: float[…], the answers to all that was asked in the clip; NaN for none.

        Raises:
            Unavailable: no value can be made up.
        """
        raise NotImplementedError

    def embed(self, clip: Clip) -> np.ndarray:
        """float32[T, N, 2]: the values of steps that were asked about, and of the reset frames before them; else NaN.

        Raises:
            BadInput: `every="end"`, and nothing says where episodes end.
            Unavailable: the model cannot be asked.
        """
        resets = self._resets(clip)
        mask = self._steps_to_ask(clip, resets)
        steps = list(zip(*(places.tolist() for places in np.nonzero(mask)), strict=True))
        features = np.full((*clip.shape, 2), np.nan, np.float32)
        values, values_of_resets = self.ask(clip, steps, resets)
        features[(*_places(steps), 0)] = values
        features[(*_places(resets), 1)] = values_of_resets
        self._carry(features, clip)
        return features

    def score(self, features: np.ndarray, clip: Clip) -> np.ndarray:
        """float32[T, N] rewards from what `embed` gave.

        Raises:
            Unavailable: an episode has no answer, and none can be made up.
        """
        values = features[..., 0].astype(np.float64)
        resets = features[..., 1].astype(np.float64)
        if self.every == "end":
            return self._at_ends(values, clip)
        complete = np.empty_like(values)
        before = np.empty_like(values)
        for env in range(values.shape[1]):
            for begin, end in episodes_of(clip.first[:, env]):
                rows = slice(begin, end)
                line = self._line(values[rows, env], resets[begin, env], features)
                complete[rows, env] = line[1:]
                before[rows, env] = line[:-1]
        if self.differences:
            complete -= before
        return complete.astype(np.float32)

    def _carry(self, features: np.ndarray, clip: Clip) -> None:
        """Have the last steps of a clip, with which the next one goes on, the values that they are paid by."""
        if not self._asks_resets:
            return
        for env in np.flatnonzero(np.isnan(features[-1, :, 0])):
            begin, _ = episodes_of(clip.first[:, env])[-1]
            knots = np.append(features[begin, env, 1], features[begin:, env, 0])
            answers = knots[~np.isnan(knots)]
            if len(answers):
                features[-1, env, 0] = answers[-1]

    def _line(self, values: np.ndarray, reset: float, features: np.ndarray) -> np.ndarray:
        """float64[1 + T]: the value before an episode's first step, and those of its steps; none is NaN."""
        knots = np.append(reset, values)
        answered = np.flatnonzero(~np.isnan(knots))
        if not len(answered):
            return np.full(len(knots), self.stand_in(features[..., 0], len(values)))
        line: np.ndarray = np.interp(np.arange(len(knots)), answered, knots[answered])
        if np.isnan(reset):
            line[0] = line[1]
        return line

    def _resets(self, clip: Clip) -> Cells:
        """The steps whose reset frames are asked about."""
        if not self._asks_resets or clip.past is None:
            return []
        begins = clip.past.steps == 0
        places = zip(clip.past.rows[begins].tolist(), clip.past.envs[begins].tolist(), strict=True)
        return [(row, env) for row, env in places if clip.first[row, env]]

    def _steps_to_ask(self, clip: Clip, resets: Cells) -> np.ndarray:
        """bool[T, N]."""
        if self.every == "end":
            if clip.ended is None:
                raise BadInput("reward.every=end needs to know where episodes end, which this clip does not say")
            return np.asarray(clip.ended)
        mask = np.zeros(clip.shape, bool)
        for env in range(clip.shape[1]):
            for begin, end in episodes_of(clip.first[:, env]):
                # Backwards from the last step, so that chunks whose length is a multiple of `every` go on evenly.
                mask[np.arange(end - 1, begin - 1, -self.every), env] = True
                # A line begins with the reset frame; or, where nobody knows it, with the first step.
                if clip.first[begin, env] and (begin, env) not in resets:
                    mask[begin, env] = True
        return mask

    def _at_ends(self, values: np.ndarray, clip: Clip) -> np.ndarray:
        """float32[T, N]: the value at the last step of each episode, and otherwise 0."""
        ended = np.asarray(clip.ended)
        rewards = np.where(ended & ~np.isnan(values), values, 0.0)
        for row, env in zip(*np.nonzero(ended & np.isnan(values)), strict=True):
            rewards[row, env] = self.stand_in(values[ended], 1)
        return rewards.astype(np.float32)


def _places(cells: Cells) -> tuple[np.ndarray, np.ndarray]:
    """Cells as an index of arrays [T, N]."""
    rows, envs = np.array(cells, np.int64).reshape(-1, 2).T
    return rows, envs


def episodes_of(first: np.ndarray) -> list[tuple[int, int]]:
    """Half-open ranges of steps, one for each episode in bool[T]."""
    begins = sorted({0, *np.flatnonzero(first).tolist()})
    return list(zip(begins, [*begins[1:], len(first)], strict=True))
