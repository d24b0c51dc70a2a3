"""Reward models: from clips of what environments did to rewards.

    Clip: T steps of N environments          features [T, N, …]              rewards float32[T, N]
    frames, states, first, …  ────embed────► kept in the replay buffer ────score────► committed, learned from
                               costly, once                             cheap, again whenever words or labels change

A reward model is a subclass of `RewardModel` that defines either

- `reward(clip)`: rewards at once, where nothing is worth keeping; or
- `embed(clip)` and `score(features, clip)`: so that stored transitions can be relabelled without one new frame.

A reward that depends on more than the state reached says so. One that compares numbers of steps says how many by
`window`; one that is shown several frames of an episode at once says which by `scope` (`rewards/scopes.py`). Clips that
follow each other, such as the chunks of a run, are scored through a `RewardStream`, which carries the last `window - 1`
steps, and the frames that later steps are shown, from one clip to the next:

    chunk 1                chunk 2
    ─────────────────┐     ┌───────────────────
     s1  s2  s3  s4  │     │  s5  s6  s7  s8          window = 3: the reward of s5 is that of (s3, s4, s5),
             └───┴───┼─────┼──┘                       whatever the size of the chunks
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from sightline.errors import BadInput, RunFailed, reason_and_place
from sightline.models.shrinking import Shrink, Shrinker
from sightline.rewards.arrays import concatenated, to_numpy
from sightline.rewards.scopes import Past, Scope

if TYPE_CHECKING:
    import torch

    from sightline.config.basics import Strict
    from sightline.models.encoder_base import Encoder
    from sightline.runs.archive import Archives

    Array = np.ndarray | torch.Tensor

Need = Literal["frames", "states"]


@dataclass(frozen=True, eq=False)
class Clip:
    """T consecutive steps of N environments, as a reward model sees them.

    Step t of environment n is a transition; `frames` and `states` are of the state that it led to, before any reset.

    Attributes:
        first: bool[T, N], whether the transition is the first of its episode.
        frames: uint8[T, N, H, W, 3], numpy or torch on any device; None unless the model needs them, and in `score`.
        states: [T, N, …], the environment's observations; None unless they are known.
        env_reward: float32[T, N], the environment's own reward; None where there is none.
        success: bool[T, N], whether the environment calls the state a success; None where it does not say.
        ended: bool[T, N], whether the episode ended with the transition; None where it is not known.
        terminated: bool[T, N], whether it ended because the state is terminal, and not by a time limit.
        instruction: the goal in words, for models that read one for each clip.
        past: frames that came before in the episodes: reset frames, and those of episodes that began before the clip;
            None unless the model's scope reaches back to them, or nothing is known of them.
    """

    first: np.ndarray
    frames: Array | None = None
    states: Array | None = None
    env_reward: np.ndarray | None = None
    success: np.ndarray | None = None
    ended: np.ndarray | None = None
    terminated: np.ndarray | None = None
    instruction: str | None = None
    past: Past | None = None

    @classmethod
    def of_states(cls, needs: frozenset[Need], array: Array) -> Clip:
        """A clip of N states that do not follow each other: frames uint8[N, H, W, 3], or states [N, …]."""
        # One step of N environments, each at the beginning of an episode of its own.
        first = np.ones((1, len(array)), bool)
        if needs == {"states"}:
            return cls(first, states=array[None])
        return cls(first, frames=array[None])

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, Any]) -> Clip:
        """The clip whose `arrays` these are."""
        return cls(**dict(arrays))

    @property
    def shape(self) -> tuple[int, int]:
        """T and N."""
        steps, envs = self.first.shape
        return steps, envs

    def arrays(self) -> dict[str, Any]:
        """All arrays of the clip, each with T and N as its first axes."""
        names = [field.name for field in fields(self) if field.name not in ("instruction", "past")]
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def __getitem__(self, steps: slice) -> Clip:
        """A clip of some of its steps, which follow each other."""
        arrays = {name: array[steps] for name, array in self.arrays().items()}
        part = replace(Clip.of_arrays(arrays), instruction=self.instruction)
        if self.past is None:
            return part
        start, stop, _ = steps.indices(len(self.first))
        return replace(part, past=self.past.of_rows(start, stop))

    def column(self, env: int) -> Clip:
        """The clip of one environment, [T, 1]."""
        arrays = {name: array[:, env : env + 1] for name, array in self.arrays().items()}
        column = replace(Clip.of_arrays(arrays), instruction=self.instruction)
        if self.past is None:
            return column
        return replace(column, past=self.past.of_env(env))

    def without_frames(self) -> Clip:
        """The clip without its frames and those before it."""
        return replace(self, frames=None, past=None)

    def state(self) -> dict[str, Any]:
        """All but the instruction, for a checkpoint."""
        state: dict[str, Any] = {name: to_numpy(array) for name, array in self.arrays().items()}
        if self.past is not None:
            state["past"] = self.past.arrays()
        return state

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> Clip:
        """The clip that `state` is of."""
        arrays = {name: array for name, array in state.items() if name != "past"}
        clip = cls.of_arrays(arrays)
        if "past" not in state:
            return clip
        return replace(clip, past=Past.of_arrays(state["past"]))

    def shown(self, step: int, env: int, scope: Scope) -> tuple[Array, np.ndarray]:
        """Frames that a model of a scope is shown for a step.

        An episode whose reset frame nobody knows begins with the frame of its first step.

        Args:
            step, env: the row and the column of the clip.

        Returns:
            uint8[F, H, W, 3] frames in order of time, and int[F], the step of each in its episode; 0 is the reset.
        """
        assert self.frames is not None, "a model that needs frames is given frames"
        begins = np.flatnonzero(self.first[: step + 1, env])
        start = int(begins[-1]) if len(begins) else 0
        earliest = 1
        before = 0  # the step that the row `start` follows on
        steps_before = np.zeros(0, np.int64)
        if self.past is not None:
            steps_before, frames_before = self.past.before(start, env)
            if len(steps_before):
                earliest, before = int(steps_before[0]), int(steps_before[-1])
        steps = scope.steps(before + 1 + step - start, earliest)
        frames = self.frames[start + steps[steps > before] - before - 1, env]
        if len(steps_before):
            frames = concatenated([frames_before[np.isin(steps_before, steps)], frames])
        return frames, steps

    def reset_frame(self, step: int, env: int) -> Array:
        """uint8[H, W, 3], the frame before the first step of an episode, which is known."""
        assert self.past is not None, "a clip with reset frames"
        _, frames = self.past.before(step, env)
        return frames[0]

    def past_of(self, row: int, scope: Scope) -> Past | None:
        """What a clip that begins with a row of this one, or follows on this one (row T), needs of it in front."""
        parts = []
        for env in range(self.shape[1]):
            begins_there = row < len(self.first) and self.first[row, env]
            if begins_there:
                continue
            if row > 0:
                frames, steps = self.shown(row - 1, env, scope)
            elif self.past is not None:
                steps, frames = self.past.before(0, env)
            else:
                continue
            parts.append(Past(np.zeros(len(steps), np.int64), np.full(len(steps), env), steps, frames))
        return Past.joined(parts)

    def following(self, past: Past | None) -> Clip:
        """The clip with what came before its first row, where its episodes go on."""
        if past is None:
            return self
        goes_on = np.flatnonzero(~self.first[0, past.envs])
        pasts = [past.picked(goes_on)]
        if self.past is not None:
            pasts.append(self.past)
        return replace(self, past=Past.joined(pasts))


class RewardModel:
    """Base of reward models, which judge clips; subclass it with `reward`, or with `embed` and `score`.

    Attributes:
        needs: what of a clip it reads, `frames`, `states`, both or neither. Frames are rendered only if needed.
        keeps_features: whether features are worth a place in the replay buffer, for relabelling.
        feature_dtype: of what is kept; None for that of the features.
        reads_tensors: whether frames that a vector of environments hands out as a tensor of torch are left that, on
            their device, and not copied to arrays of numpy.
        ready: False as long as its rewards mean nothing, because it has learned nothing yet.
        window: steps that a reward depends on, the present one included. With more than 1, `reward` and `score` are
            given up to `window - 1` earlier steps in front, and what they return for those is dropped.
        scope: frames of its episode that a step is judged by; but for a `frame`, reset frames are taken, and `reward`
            and `embed` ask the clip for them (`Clip.shown`).
    """

    needs: frozenset[Need] = frozenset({"frames"})
    window: int = 1
    scope: Scope = Scope()
    keeps_features: bool = False
    feature_dtype: Any = None
    reads_tensors: bool = False
    ready: bool = True

    @property
    def sees_past(self) -> bool:
        """Whether it is shown earlier frames of an episode, the reset frame among them."""
        return "frames" in self.needs and self.scope.kind != "frame"

    @property
    def judges_stills(self) -> bool:
        """Whether a frame of which nothing came before has its reward, so that single pictures can be judged by it."""
        return self.scope.frames == 1

    @classmethod
    def recipe_block(cls) -> type[Strict]:
        """The block of recipes that name this class, `reward.kind=my_module:MyReward reward.options.…`."""
        from sightline.rewards.config import block_of_model  # which needs this module

        return block_of_model(cls)

    def reward(self, clip: Clip) -> np.ndarray:
        """float32[T, N] rewards of a clip."""
        return self.score(self.embed(clip), clip)

    def embed(self, clip: Clip) -> np.ndarray:
        """Features [T, N, …]: all of a clip worth keeping. Runs in a background thread and must change nothing."""
        # Rewards that are given at once are all that is worth keeping of a clip; `score` passes them on.
        if _is_defined(self, "reward"):
            return self.reward(clip)
        return np.zeros((*clip.shape, 0), np.float32)

    def score(self, features: np.ndarray, clip: Clip) -> np.ndarray:
        """float32[T, N] rewards from what `embed` gave, [T, N, …], and the clip without its frames."""
        if not _is_defined(self, "reward"):
            raise BadInput(f"{type(self).__name__} must define reward(clip), or embed(clip) and score(features, clip)")
        return features

    def shrink_frames(self, frames: np.ndarray) -> np.ndarray:
        """Make frames smaller as soon as they are taken, in a way that changes no reward, not even in its last digit.

        A model that resizes frames before it reads them says so here; all others are given frames at full size. It is
        not asked of a class that reads clips (`reward`, `embed`, `capture`) in another way than the class that says it.

        Args:
            frames: uint8[N, H, W, 3].

        Returns:
            uint8[N, h, w, 3]; h and w depend on H and W alone.
        """
        return frames

    def __call__(self, seen: Clip | Array | Sequence[Array]) -> np.ndarray:
        """Rewards of a clip, float32[T, N], or of N frames (or states) that do not follow each other, float32[N].

        Raises:
            BadInput: it is none of these, or not what the model needs.
            RunFailed: the model failed, or returned another shape or dtype, or a number that is not finite.
        """
        # A stream of one clip, which checks what the model returns.
        stream = RewardStream(self)
        name = type(self).__name__
        if isinstance(seen, Clip):
            absent = sorted(self.needs - seen.arrays().keys())
            if absent:
                raise BadInput(f"{name} reads {' and '.join(absent)}, which this Clip does not hold")
            return stream(seen)
        # An array is either frames or states, by what the model reads.
        if self.needs == {"frames", "states"}:
            raise BadInput(f"{name} reads frames and states; give it a Clip, which holds both")
        array: Any = seen
        if isinstance(seen, list | tuple):
            array = _stacked(seen)
        if "frames" in self.needs:
            _check_frames(array, "N")
        elif not getattr(array, "shape", ()):
            raise BadInput(f"states must be an array [N, …], not {_described(array)}")
        # Models need not bear empty arrays.
        if not len(array):
            return np.zeros(0, np.float32)
        rewards: np.ndarray = stream(Clip.of_states(self.needs, array))[0]
        return rewards

    def doubts(self, frames: np.ndarray) -> list[str]:
        """Why its rewards of such pictures may mean nothing, one line each; empty where it cannot tell.

        Args:
            frames: uint8[N, H, W, 3], as they are drawn or stored.
        """
        return []

    def compute_elsewhere(self, elsewhere: Callable[[Encoder], Encoder]) -> bool:
        """Have other machines embed frames; rewards stay what they are.

        Args:
            elsewhere: an encoder -> the same one, which computes on other machines.

        Returns:
            Whether it has an encoder at all.
        """
        return False

    def costs(self) -> dict[str, float]:
        """What its rewards have cost so far, over all sessions of a run, by name; empty where nothing is counted."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Learned state of the reward model, as arrays and plain data; empty if nothing is ever learned."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave."""


@dataclass(frozen=True)
class RewardUpdate:
    """Outcome of a reward model's learning between two chunks.

    Attributes:
        metrics: how it went.
        relabel: whether stored transitions are to be given their new rewards.
        reset_critic: whether the values learned so far mean nothing under the new rewards.
        updates: of the policy, to be made at once.
    """

    metrics: dict[str, float | None]
    relabel: bool = False
    reset_critic: bool = False
    updates: int = 0


class OnlineRewardModel(RewardModel):
    """A reward model that goes on learning while a policy learns from it.

    The order of calls for each chunk: `capture` when it ends, `embed` in the background (of an on-policy learner, in
    parts, while the chunk is collected), then `collected` and `score`, one chunk later or at once. Between two chunks
    `learn` is called.

    Attributes:
        resets_critic: whether one of its updates will ask for that.
    """

    resets_critic: bool = False

    def capture(self, clip: Clip) -> dict[str, np.ndarray]:
        """Copies of what is wanted of a chunk's frames, before they are overwritten."""
        return {}

    def collected(self, features: np.ndarray, clip: Clip, captured: dict[str, np.ndarray]) -> None:
        """Take in a chunk: its features [T, N, …], the clip without frames, and what was captured of it."""

    def learn(self, step: int, should_stop: Callable[[], bool]) -> RewardUpdate | None:
        """Learn if it is time to; None if nothing was learned.

        Raises:
            Interrupted: `should_stop` said so while the model waited, say for answers.
        """
        return None

    def state(self, archives: Archives) -> dict[str, Any]:
        """State for a checkpoint; data that only grows is appended to an archive instead."""
        return {}

    def restore(self, state: dict[str, Any], archives: Archives) -> None:
        """Take over what `state` gave, and what was archived before it."""

    def close(self) -> None:
        """Release threads and files."""


class Interrupted(Exception):
    """A reward model was told to stop while it waited, or the message says why it cannot go on for now; what it has so
    far is in its state."""


class Unavailable(RunFailed):
    """A reward model gives no rewards for now, such as one whose server is down; the message says why in one line. A
    run saves and stops, and goes on from there with --resume."""


READERS = ("reward", "embed", "capture")
"""Methods that read frames."""


def frame_shrinker(model: RewardModel | None) -> Shrink | None:
    """What makes frames smaller as soon as they are taken, without any change of the model's rewards; None if they are
    kept as they are."""
    if model is None or "frames" not in model.needs:
        return None
    # From the class itself towards the base: the first class that says anything about reading frames decides.
    for kind in type(model).__mro__:
        if kind is RewardModel:
            break
        if "shrink_frames" in vars(kind):
            return model.shrink_frames
        # A subclass that reads frames by itself may look at what its base class would have thrown away.
        if any(name in vars(kind) for name in READERS):
            break
    return None


def common_shrinker(models: Sequence[RewardModel]) -> Shrink:
    """What makes frames smaller for several reward models that read the same ones; it leaves them as they are unless
    all make them smaller in the same way."""
    shrinkers = [frame_shrinker(model) for model in models if "frames" in model.needs]
    common = [shrink for shrink in shrinkers if shrink is not None]
    # One model that reads frames at full size is enough to leave them as they are.
    if not common or len(common) < len(shrinkers):
        return lambda frames: frames
    return Shrinker(common[0], lambda full, small: all(np.array_equal(shrink(full), small) for shrink in common))


def common_scope(models: Sequence[RewardModel]) -> Scope:
    """The scope of several reward models that read the same clips.

    Raises:
        BadInput: they look back in different ways.
    """
    scopes = {model.scope for model in models if model.sees_past}
    if len(scopes) > 1:
        kinds = " and ".join(sorted(f"{scope.kind} of {scope.frames} frames" for scope in scopes))
        raise BadInput(f"rewards that are combined must be shown the same frames, and these are shown a {kinds}")
    return next(iter(scopes), Scope())


def added_costs(models: Sequence[RewardModel]) -> dict[str, float]:
    """What several reward models have cost together."""
    total: dict[str, float] = {}
    for model in models:
        for name, amount in model.costs().items():
            total[name] = total.get(name, 0.0) + amount
    return total


class RewardStream:
    """Scorer of clips that follow each other; windows reach back across their borders and stop at episode starts.

    `embed` may run in a thread of its own, one clip after the other; `score` follows in the same order.

    Raises:
        BadInput: the model defines both `reward` and `score`, and nothing says which of them counts; or its `needs`,
            its `window` or its `scope` is not valid.
    """

    def __init__(self, model: RewardModel) -> None:
        # Checked before anything is collected, rather than with the first chunk.
        name = type(model).__name__
        if _is_defined(model, "reward") and _is_defined(model, "score"):
            raise BadInput(f"{name} defines both reward(clip) and score(features, clip); keep one of them")
        if not isinstance(model.needs, Set) or not model.needs <= set(get_args(Need)):
            raise BadInput(f"{name}.needs must be a set of 'frames' and 'states', or empty, not {model.needs!r:.80}")
        if not isinstance(model.window, int | np.integer) or model.window < 1:
            raise BadInput(f"{name}.window must be a whole number of steps from 1, not {model.window!r:.80}")
        if not isinstance(model.scope, Scope):
            raise BadInput(f"{name}.scope must be a sl.Scope, not {model.scope!r:.80}")
        self.model = model
        # Frames that came before the next clip, or before the earlier one.
        self._past: Past | None = None
        # A model that defines `reward` needs earlier frames when it embeds, one that defines `score` only earlier
        # features when it scores. So one of these two stays empty.
        self._earlier_clip: Clip | None = None
        self._earlier_features: tuple[np.ndarray, Clip] | None = None

    def __call__(self, clip: Clip) -> np.ndarray:
        """float32[T, N] rewards of the next clip."""
        return self.score(self.embed(clip), clip)

    def embed(self, clip: Clip) -> np.ndarray:
        """[T, N, …] features of the next clip.

        Raises:
            BadInput: the clip's arrays are not of the shape that its `first` says.
            RunFailed: the model failed, or returned features, or rewards, in another shape.
        """
        _check_clip(clip)
        if not _is_defined(self.model, "reward"):
            whole = self._with_past(clip)
            features = _array_of(self.model, _called(self.model, "embed", whole), "features")
            if features.shape[:2] != clip.shape:
                steps, envs = clip.shape
                raise RunFailed(
                    f"{type(self.model).__name__} returned features of shape {list(features.shape)}; this clip needs "
                    f"[{steps}, {envs}, …]"
                )
            self._keep_past(whole, len(clip.first))
            return features
        # What the model rewards at once is its features: `score` returns them as they are.
        whole = clip
        if self._earlier_clip is not None:
            whole = _joined(self._earlier_clip, clip)
        whole = self._with_past(whole)
        rewards = checked(self.model, _called(self.model, "reward", whole), whole.shape)
        earlier = max(len(whole.first) - (self.model.window - 1), 0)
        if self.model.window > 1:
            # Copied, because a later chunk overwrites the frames.
            self._earlier_clip = _copied(whole[earlier:])
        self._keep_past(whole, earlier)
        # Those of the earlier steps were given with the clip before.
        return rewards[len(rewards) - len(clip.first) :]

    def _with_past(self, clip: Clip) -> Clip:
        """The clip with the frames that came before it, for a model that is shown them."""
        if not self.model.sees_past:
            return clip
        return clip.following(self._past)

    def _keep_past(self, clip: Clip, row: int) -> None:
        """Keep what came before a row of the clip, with which the next one begins."""
        if self.model.sees_past:
            self._past = clip.past_of(row, self.model.scope)

    def score(self, features: np.ndarray, clip: Clip) -> np.ndarray:
        """float32[T, N] rewards of the next clip, from its features.

        Raises:
            RunFailed: the model failed, or returned another shape or dtype, or a number that is not finite.
        """
        # Without frames, as in relabelling: a score that needed them could not be computed again.
        clip = clip.without_frames()
        if self.model.window == 1 or _is_defined(self.model, "reward"):
            return checked(self.model, _called(self.model, "score", features, clip), clip.shape)
        # In front, the steps that the windows of the first ones of this clip reach back to.
        whole = clip
        if self._earlier_features is not None:
            earlier_features, earlier_clip = self._earlier_features
            features = np.concatenate([earlier_features, features])
            whole = _joined(earlier_clip, clip)
        rewards = checked(self.model, _called(self.model, "score", features, whole), whole.shape)
        last_steps = slice(-(self.model.window - 1), None)
        self._earlier_features = (features[last_steps].copy(), _copied(whole[last_steps]))
        # Those of the earlier steps were given with the clip before.
        return rewards[len(rewards) - len(clip.first) :]

    def state(self) -> dict[str, Any]:
        """The steps and frames that the next clip's rewards reach back to, for a checkpoint."""
        state: dict[str, Any] = {"seen": None, "scored": None, "past": None}
        if self._earlier_clip is not None:
            state["seen"] = self._earlier_clip.state()
        if self._past is not None:
            state["past"] = self._past.arrays()
        if self._earlier_features is not None:
            features, clip = self._earlier_features
            state["scored"] = {"features": features, "clip": clip.state()}
        return state

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` gave."""
        self._earlier_clip = None
        self._earlier_features = None
        self._past = None
        if state["seen"] is not None:
            self._earlier_clip = Clip.of_state(state["seen"])
        if state["scored"] is not None:
            self._earlier_features = (state["scored"]["features"], Clip.of_state(state["scored"]["clip"]))
        # Checkpoints of earlier versions have none.
        if state.get("past") is not None:
            self._past = Past.of_arrays(state["past"])


def check_score_every(model: RewardModel | type[RewardModel], score_every: int) -> None:
    """Refuse to leave out steps that a reward compares, or is shown.

    Args:
        score_every: steps from one that is scored to the next.

    Raises:
        BadInput: it looks at several steps that follow each other.
    """
    if score_every == 1:
        return
    steps = max(model.window, model.scope.frames)
    if steps > 1:
        raise BadInput(
            f"score_every={score_every} leaves out pictures, and this reward compares {steps} steps that follow each "
            "other; leave it out"
        )


def windows(values: np.ndarray, first: np.ndarray, size: int) -> np.ndarray:
    """Sliding windows of steps that stop at episode starts.

    Args:
        values: [T, N, …].
        first: bool[T, N], the first step of each episode.
        size: steps in a window.

    Returns:
        [T, N, size, …]: for each step the values of the `size` steps that end with it, in order of time. Steps before
        the episode's first (or before the first given) are replaced by that one.
    """
    steps, envs = first.shape
    step = np.arange(steps)[:, None]
    # int[T, N]: the first step of the episode that each step belongs to.
    episode_start = np.maximum.accumulate(np.where(first, step, 0), axis=0)
    # int[T, N, size]: the steps of each window, none of them before the episode's first.
    window = step[..., None] + np.arange(1 - size, 1)
    window = np.maximum(window, episode_start[..., None])
    return np.asarray(values[window, np.arange(envs)[:, None]])


def checked(model: RewardModel, rewards: Any, shape: tuple[int, int]) -> np.ndarray:
    """Rewards as float32 of the shape that was asked for.

    Raises:
        RunFailed: they are not; the line names the model's class.
    """
    name = type(model).__name__
    expected = f"float32{list(shape)}"
    array = _array_of(model, rewards, "rewards")
    if array.dtype.kind != "f":
        raise RunFailed(f"{name} returned rewards of dtype {array.dtype}; a reward model returns {expected}")
    if array.shape != shape:
        raise RunFailed(f"{name} returned rewards of shape {list(array.shape)}; this clip needs {expected}")
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused as that
        array = array.astype(np.float32, copy=False)
    if not np.isfinite(array).all():
        count = array.size - np.isfinite(array).sum()
        if getattr(model, "encoder", None) is None:
            advice = "look at what it returns (float32 holds numbers up to 3e38), or use another model"
        else:
            advice = "look at its frames with 'sightline score', try reward.dtype=float32, or use another model"
        raise RunFailed(
            f"{name}: {count} of {array.size} rewards are not finite numbers, and no result can rest on that; {advice}"
        )
    return array


def _is_defined(model: RewardModel, method: str) -> bool:
    return getattr(type(model), method) is not getattr(RewardModel, method)


def _called(model: RewardModel, method: str, *arguments: Any) -> Any:
    """Result of a method of a model; its exceptions become one line that names them."""
    try:
        return getattr(model, method)(*arguments)
    except (BadInput, RunFailed):
        raise
    # SystemExit as well: a library that exits would end a run without a word.
    except (Exception, SystemExit) as error:
        raise RunFailed(f"{type(model).__name__}.{method} failed: {reason_and_place(error)}") from error


def _array_of(model: RewardModel, returned: Any, what: str) -> np.ndarray:
    """What a model returned as an array."""
    try:
        return to_numpy(returned)
    except (RuntimeError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise RunFailed(f"{type(model).__name__} returned {what} that are no array: {reason}") from error


def _stacked(arrays: Sequence[Any]) -> np.ndarray:
    try:
        return np.asarray(arrays)
    except (TypeError, ValueError) as error:
        raise BadInput("the frames or states of a list must be arrays of one shape") from error


def _described(array: Any) -> str:
    if hasattr(array, "shape"):
        return f"{array.dtype}{list(array.shape)}"
    return type(array).__name__


def _check_frames(frames: Any, *axes: str) -> None:
    shape: tuple[int, ...] = getattr(frames, "shape", ())
    if len(shape) != len(axes) + 3 or shape[-1] != 3 or "uint8" not in str(frames.dtype):
        raise BadInput(f"frames must be uint8[{', '.join(axes)}, H, W, 3], not {_described(frames)}")
    if 0 in shape[-3:]:
        raise BadInput(f"frames must have pixels, and these are {_described(frames)}")


def _check_clip(clip: Clip) -> None:
    """Refuse a clip whose arrays are not of T steps of N environments each."""
    if len(getattr(clip.first, "shape", ())) != 2:
        raise BadInput(f"Clip.first must be bool[T, N], not {_described(clip.first)}")
    for name, array in clip.arrays().items():
        shape = np.shape(array)
        if tuple(shape[:2]) != clip.shape:
            steps, envs = clip.shape
            raise BadInput(f"Clip.{name} is of shape {list(shape)}, and Clip.first says [{steps}, {envs}, …]")
    if clip.frames is not None:
        _check_frames(clip.frames, "T", "N")
    if clip.past is not None:
        _check_frames(clip.past.frames, "K")


def _joined(before: Clip, after: Clip) -> Clip:
    """Two clips, one after the other, with the arrays that both have."""
    # What one of them lacks is unknown for the whole.
    earlier = before.arrays()
    later = after.arrays()
    joined = {name: concatenated([earlier[name], later[name]]) for name in earlier if name in later}
    pasts = []
    if before.past is not None:
        pasts.append(before.past)
    if after.past is not None:
        pasts.append(after.past.moved(after.past.rows + len(before.first)))
    return replace(Clip.of_arrays(joined), instruction=after.instruction, past=Past.joined(pasts))


def _copied(clip: Clip) -> Clip:
    copies = {}
    for name, array in clip.arrays().items():
        copies[name] = array.copy() if isinstance(array, np.ndarray) else array.clone()
    return replace(Clip.of_arrays(copies), past=clip.past)
