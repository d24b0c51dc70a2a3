"""A replay buffer that begins with the episodes of a data set, under the run's own reward.

    data set                  columns of the buffer, one for each environment
    ────────────────────      ─────────────────────────────────────────────
    e0 e0 e0 e1 e1 e2 e2      column 0   e0 e0 e0 e1      An episode that the end of a column cuts in two is
                              column 1   e1 e2 e2 …       truncated there, and terminated where it really ends.

A transition needs the state before its action and the one after. So an episode lacks its first one where the state of
its reset is not known, and its last one where the state that the last action led to is not.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from sightline.config.learners import OffPolicyLearner
from sightline.config.recipe import ControlRecipe, ReplayDataset
from sightline.datasets.reading import dataset_digest, read_dataset
from sightline.datasets.stored import StoredEpisode
from sightline.errors import BadInput, SightlineWarning
from sightline.models.familiarity import SpreadPictures
from sightline.rewards.base import OnlineRewardModel, RewardModel, RewardStream

if TYPE_CHECKING:
    from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

    from sightline.control.replay import CommittedReplayBuffer
    from sightline.models.shrinking import Shrink

TOLERANCE = 1e-4
"""Share of a range by which numbers that were stored as float32 may lie outside of it."""
MOST_OUTSIDE = 0.5
"""Share of states outside of the environment's bounds beyond which they are taken for those of another scale."""


def completed_dataset(recipe: ControlRecipe, states: spaces.Space[Any], actions: spaces.Space[Any]) -> ReplayDataset:
    """The recipe's data set with its digest and the number of its transitions, checked against the environment.

    Args:
        recipe: complete, but for its data set.
        states, actions: the spaces that the policy reads and acts in.

    Raises:
        BadInput: the data set does not fit the environment or the reward, has changed, or is too large for the buffer.
    """
    dataset = recipe.dataset
    assert dataset is not None, "there is one"
    folder = Path(dataset.path).expanduser()
    where = f"dataset: '{dataset.path}'"
    checks = _Checks(where, recipe, states, actions)
    if recipe.reward.needs_frames:
        # One episode with its pictures tells whether there are any.
        for episode in read_dataset(folder, dataset.camera):
            checks.see_frames(episode)
            break
    transitions = 0
    for episode in read_dataset(folder, dataset.camera, frames=False):
        checks.see(episode)
        transitions += len(range(*kept_steps(episode).indices(episode.steps)))
    checks.finish()
    _check_room(where, recipe, transitions)
    digest = dataset_digest(folder)
    if dataset.digest is not None and dataset.digest != digest:
        raise BadInput(
            f"{where} is another data set than that of dataset.digest={dataset.digest[:12]}…: its files have "
            f"{digest[:12]}…"
        )
    return dataset.model_copy(update={"digest": digest, "transitions": transitions})


def kept_steps(episode: StoredEpisode) -> slice:
    """The steps of an episode whose states before and after are known."""
    begin = int(episode.reset_state is None)
    end = episode.steps - int(not episode.knows_last_state)
    return slice(begin, max(begin, end))


def _check_room(where: str, recipe: ControlRecipe, transitions: int) -> None:
    """Refuse a data set that does not fill a row of the buffer, or leaves no room for what is collected."""
    learner = recipe.learner
    assert isinstance(learner, OffPolicyLearner), "the recipe was checked"
    if transitions < recipe.envs:
        raise BadInput(f"{where} holds {transitions} whole transitions, and envs={recipe.envs} need one each")
    # Two chunks of new transitions may wait for their rewards.
    needed = transitions + 2 * learner.chunk * recipe.envs
    if learner.buffer_size < needed:
        raise BadInput(
            f"{where} holds {transitions:,} transitions, and learner.buffer_size={learner.buffer_size:,} would soon "
            f"overwrite them; say at least {needed:,}"
        )


class _Checks:
    """What does not fit between a data set and a run, said in one line as soon as it is certain."""

    def __init__(
        self, where: str, recipe: ControlRecipe, states: spaces.Space[Any], actions: spaces.Space[Any]
    ) -> None:
        self._where = where
        self._recipe = recipe
        self._states = states
        self._actions = actions
        self._episodes = 0
        self._steps = 0
        self._outside = 0
        """States outside of the environment's bounds."""
        self._refused = 0
        """Actions that the environment does not take."""
        self._first_missing = 0
        self._last_missing = 0

    def see_frames(self, episode: StoredEpisode) -> None:
        if episode.frames is None:
            raise BadInput(f"{self._where} holds no pictures, and this reward looks at them")

    def see(self, episode: StoredEpisode) -> None:
        """Take in an episode.

        Raises:
            BadInput: it does not hold what a transition needs, or in another form.
        """
        if isinstance(self._states, spaces.Dict):
            raise BadInput(
                f"{self._where} holds states as one array, and this environment's are of several parts; choose one by "
                "observation_keys=[…]"
            )
        absent = [name for name in ("states", "actions") if getattr(episode, name) is None]
        if self._recipe.reward.reads_own_reward and episode.env_reward is None:
            absent.append("rewards of the environment")
        if self._recipe.reward.reads_success and episode.success is None:
            absent.append("success of steps")
        if absent:
            raise BadInput(f"{self._where}: episode {episode.index} holds no {' and no '.join(absent)}")
        states = np.asarray(episode.states)
        if episode.reset_state is not None:
            states = np.concatenate([np.asarray(episode.reset_state)[None].reshape(1, *states.shape[1:]), states])
        self._see_states(_in_form(states, self._states, f"{self._where}: states of episode {episode.index}"))
        self._see_actions(
            _in_form(episode.actions, self._actions, f"{self._where}: actions of episode {episode.index}")
        )
        self._episodes += 1
        self._first_missing += episode.reset_state is None
        self._last_missing += not episode.knows_last_state

    def _see_states(self, states: np.ndarray) -> None:
        self._steps += len(states)
        if isinstance(self._states, spaces.Box):
            self._outside += int(_outside(states, self._states).sum())

    def _see_actions(self, actions: np.ndarray) -> None:
        if isinstance(self._actions, spaces.Box):
            self._refused += int(_outside(actions, self._actions).sum())
        elif isinstance(self._actions, spaces.Discrete):
            self._refused += int(((actions < 0) | (actions >= self._actions.n)).sum())

    def finish(self) -> None:
        """Refuse, or warn of, what was counted over all episodes."""
        if self._refused:
            raise BadInput(
                f"{self._where}: {self._refused} actions are none of this environment's, {_described(self._actions)}; "
                "another data set, or another action space, is meant"
            )
        if self._outside > MOST_OUTSIDE * self._steps:
            raise BadInput(
                f"{self._where}: {self._outside} of {self._steps} states lie outside of the bounds of what the policy "
                "reads; are they of another scale (rescale_observations)?"
            )
        lacks = {
            f"{self._outside} of {self._steps} states lie outside of the environment's bounds": self._outside,
            f"{self._first_missing} of {self._episodes} episodes do not say where they began, and begin one step later":
                self._first_missing,
            f"{self._last_missing} of {self._episodes} episodes do not hold the state that their last action led to, "
            "and end, cut off, one step earlier": self._last_missing,
        }  # fmt: skip
        for line, count in lacks.items():
            if count:
                warnings.warn(f"{self._where}: {line}", SightlineWarning, stacklevel=2)


def _in_form(array: Any, space: spaces.Space[Any], what: str) -> np.ndarray:
    """[T, …] of a data set in the shape and dtype of a space.

    Raises:
        BadInput: they are of another shape, not finite, or no whole numbers where the space has such.
    """
    array = np.asarray(array)
    shape = tuple(space.shape or ())
    # Tables hold a single number without an axis of its own.
    if array.shape[1:] in ((), (1,)) and shape in ((), (1,)):
        array = array.reshape(len(array), *shape)
    if array.shape[1:] != shape:
        raise BadInput(f"{what} are {list(array.shape[1:])}, and this environment's are {_described(space)}")
    if not np.isfinite(array).all():
        count = int((~np.isfinite(array.reshape(len(array), -1))).any(axis=1).sum())
        raise BadInput(f"{what} are not finite in {count} of {len(array)} steps")
    converted: np.ndarray = array.astype(space.dtype)
    is_whole = converted.dtype.kind not in "fc"
    if is_whole and not np.array_equal(converted, array):
        raise BadInput(f"{what} are {array.dtype}, and this environment's are {_described(space)}")
    return converted


def _outside(rows: np.ndarray, space: spaces.Box) -> np.ndarray:
    """bool[T]: rows with a number outside of a box, by more than rounding."""
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        slack = np.where(np.isfinite(high - low), (high - low) * TOLERANCE, TOLERANCE)
    beyond = (rows < low - slack) | (rows > high + slack)
    return np.asarray(beyond.reshape(len(rows), -1).any(axis=1))


def _described(space: spaces.Space[Any]) -> str:
    if isinstance(space, spaces.Box):
        return f"{space.dtype}{list(space.shape)} between {float(space.low.min()):g} and {float(space.high.max()):g}"
    return str(space)


# -- filling -----------------------------------------------------------------------------------------------------------


def fill_from_dataset(
    model: OffPolicyAlgorithm,
    buffer: CommittedReplayBuffer,
    dataset: ReplayDataset,
    reward: RewardModel,
    shrink: Shrink | None,
    frame_shape: tuple[int, ...],
) -> str:
    """Fill an empty replay buffer with a data set's transitions, rewarded; memory holds one episode at a time.

    An online reward model is shown its frames, too, so that its first questions may be about them.

    Args:
        model: whose policy scales actions as they are stored.
        dataset: complete.
        reward: of the run.
        shrink: makes the frames smaller that the reward model reads; None where it does not.
        frame_shape: (H, W, 3) of the run's own frames; () where none are drawn.

    Returns:
        What the buffer holds now, in one line.

    Raises:
        BadInput: the data set has changed, or its pictures are not of the run's size.
        RunFailed: as the reward model.
    """
    assert dataset.transitions is not None, "the recipe is complete"
    folder = Path(dataset.path).expanduser()
    if dataset_digest(folder) != dataset.digest:
        raise BadInput(f"dataset: '{dataset.path}' has changed since this run was begun; bring back what it was")
    rows = dataset.transitions // buffer.n_envs
    capacity = rows * buffer.n_envs
    is_online = isinstance(reward, OnlineRewardModel)
    some = SpreadPictures()
    episodes = 0
    filled = 0
    for episode in _episodes(folder, dataset, reward, shrink, frame_shape):
        rewards, features = _rewarded(reward, episode, dataset, buffer, frame_shape)
        if episode.frames is not None:
            some.add(episode.frames)
        kept = kept_steps(episode)
        places = filled + np.arange(kept.stop - kept.start)
        places = places[places < capacity]  # the last few do not fill a row
        episodes += 1
        if not len(places):
            continue
        kept = slice(kept.start, kept.start + len(places))
        filled += len(places)
        # Column by column: the places of an episode follow each other in time.
        columns, cells_rows = np.divmod(places, rows)
        _write(buffer, (cells_rows, columns), episode, kept, model, rewards, features)
    buffer.begin_with(rows)
    for frames in some.by_size():
        for line in reward.doubts(frames):
            warnings.warn(f"dataset '{dataset.path}': {line}", SightlineWarning, stacklevel=2)
    if is_online:
        from sightline.control.relabelling import relabel

        # Before its first fit such a reward compares states with all that are stored.
        relabel(buffer, reward)
    mean = float(buffer.rewards[:rows].mean())
    line = f"the replay buffer begins with {capacity:,} transitions of {episodes} episodes of '{dataset.path}'"
    if rest := dataset.transitions - capacity:
        line += f" ({rest} more do not fill a row of envs={buffer.n_envs})"
    return f"{line}, of mean reward {mean:.3g}"


def _episodes(
    folder: Path, dataset: ReplayDataset, reward: RewardModel, shrink: Shrink | None, frame_shape: tuple[int, ...]
) -> Iterator[StoredEpisode]:
    """The episodes as the run's reward would have seen them: under its own words, in frames of the run's size."""
    for episode in read_dataset(folder, dataset.camera, frames="frames" in reward.needs):
        frames, reset_frame = episode.frames, episode.reset_frame
        if frames is not None:
            frames = _of_size(frames, shrink, frame_shape)
        if reset_frame is not None:
            reset_frame = _of_size(reset_frame[None], shrink, frame_shape)[0]
        yield replace(episode, frames=frames, reset_frame=reset_frame, instruction=None)


def _of_size(frames: np.ndarray, shrink: Shrink | None, frame_shape: tuple[int, ...]) -> np.ndarray:
    """Frames shrunk and scaled to those of the run, where they are of the same proportions; others are only shrunk."""
    if shrink is not None:
        frames = shrink(frames)
    height, width = frames.shape[1:3]
    if frames.shape[1:] == frame_shape or height * frame_shape[1] != width * frame_shape[0]:
        return frames
    from PIL import Image

    from sightline.models.resizing import resized_by_pillow

    scaled: np.ndarray = resized_by_pillow(frames, (frame_shape[0], frame_shape[1]), Image.Resampling.BILINEAR)
    return scaled


def _rewarded(
    reward: RewardModel,
    episode: StoredEpisode,
    dataset: ReplayDataset,
    buffer: CommittedReplayBuffer,
    frame_shape: tuple[int, ...],
) -> tuple[np.ndarray, np.ndarray | None]:
    """float32[T] rewards of an episode, and the features [T, …] that the buffer keeps."""
    clip = episode.clip()
    if clip.env_reward is None:
        # Not known, which no number says; who reads it has refused the data set.
        clip = replace(clip, env_reward=np.full(clip.shape, np.nan, np.float32))
    seen = frame_shape
    if episode.frames is not None:
        seen = episode.frames.shape[1:]
    stream = RewardStream(reward)
    if isinstance(reward, OnlineRewardModel):
        if seen != frame_shape:
            raise _other_size(dataset, seen, frame_shape)
        captured = reward.capture(clip)
        features = stream.embed(clip)
        reward.collected(features, clip.without_frames(), captured)
        rewards = np.zeros(episode.steps, np.float32)  # until all states are there
    else:
        features = stream.embed(clip)
        rewards = stream.score(features, clip)[:, 0]
    if buffer.features is None:
        return rewards, None
    if features.shape[2:] != buffer.features.shape[2:]:
        raise _other_size(dataset, seen, frame_shape)
    return rewards, features[:, 0]


def _other_size(dataset: ReplayDataset, theirs: tuple[int, ...], ours: tuple[int, ...]) -> BadInput:
    sizes = [f"{width}x{height}" for height, width, _ in (theirs, ours)]
    return BadInput(
        f"dataset: the pictures of '{dataset.path}' are {sizes[0]}, and this run's {sizes[1]}, of other "
        "proportions; say reward.frame_size, or draw them alike by env_options"
    )


def _write(
    buffer: CommittedReplayBuffer,
    cells: tuple[np.ndarray, np.ndarray],
    episode: StoredEpisode,
    kept: slice,
    model: OffPolicyAlgorithm,
    rewards: np.ndarray,
    features: np.ndarray | None,
) -> None:
    """Write the kept steps of an episode to cells of the buffer."""
    states = _in_form(episode.states, model.observation_space, "states")
    actions = _in_form(episode.actions, model.action_space, "actions")
    if isinstance(model.action_space, spaces.Box):
        actions = np.clip(model.policy.scale_action(actions), -1, 1)
    before = np.empty_like(states)
    before[1:] = states[:-1]
    if episode.reset_state is not None:
        before[0] = np.asarray(episode.reset_state).reshape(states.shape[1:])
    # An episode ends with its last transition; only that one may be terminal.
    is_last = np.arange(episode.steps) == kept.stop - 1
    terminal = episode.terminated & is_last & (kept.stop == episode.steps)
    own = np.full(episode.steps, np.nan)
    if episode.env_reward is not None:
        own = episode.env_reward
    if features is not None:
        features = features[kept]
    buffer.write(
        cells,
        {
            "observations": before[kept],
            "next_observations": states[kept],
            "actions": actions.reshape(episode.steps, -1)[kept],
            "dones": is_last[kept],
            "timeouts": (is_last & ~terminal)[kept],
            "true_rewards": own[kept],
            "rewards": rewards[kept],
        },
        features,
    )
