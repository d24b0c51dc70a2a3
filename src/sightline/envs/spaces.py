"""Convert observations of any environment to arrays that a network of Stable-Baselines3 takes.

    numbers                           as they are, in floats
    a picture                         uint8[C, H, W] with bounds 0 and 255, which SB3 scales and convolves
    a dictionary or tuple             its parts, however deeply nested, one after the other in one vector
    one with pictures to convolve     a flat dictionary: pictures uint8[C, H, W], and vectors float32 of all else

Pictures are known by their spaces: two, three or four axes, and one range for all numbers, as colours have.
Convolutions need a height and width of 36 at least; what is smaller is read as plain numbers from 0 to 1. Parts that
are no fixed number of numbers, such as text, are left out, which `ObservedParts.describe` says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import RescaleObservation, TransformObservation

from sightline.envs.actions import adapted_actions
from sightline.envs.gymnasium_api import layers_of
from sightline.envs.observations import Misfit, misfit
from sightline.errors import BadInput

CONVOLVED = 36
"""Height and width of the smallest picture that the convolutions of SB3's `CnnPolicy` leave something of."""
COLOURS = ((0, 255), (0, 1), (-1, 1))
"""Ranges of the numbers of pictures."""
CHANNELS = 16
"""Channels of a picture in floats, at most: more is rather a table of numbers."""
LISTED = 8
"""Parts that are told one by one."""
ONE_HOT = 100_000
"""Numbers that one part becomes, at most."""


@dataclass(frozen=True)
class ObservedPart:
    """Part of an observation, and how it is read.

    Attributes:
        name: keys that lead to it, with dots between; empty for an observation of one part.
        path: these keys.
        own_space: of the environment's.
        space: of what is read.
        read: makes the one of the other.
        words: what it is, for people.
    """

    name: str
    path: tuple[Any, ...]
    own_space: spaces.Space[Any]
    space: spaces.Box
    read: Callable[[Any], np.ndarray]
    words: str

    def of(self, observation: Any) -> np.ndarray:
        """This part of a whole observation, as it is read.

        Raises:
            Misfit: it is missing, or does not fit its space.
        """
        for key in self.path:
            try:
                observation = observation[key]
            except (KeyError, IndexError, TypeError):
                raise Misfit(f"without '{self.name}', which its observation_space has") from None
        wrong = None
        if isinstance(self.own_space, spaces.Box):
            wrong = misfit(self.own_space, observation)
        if wrong is None:
            try:
                return self.read(observation)
            except Misfit as error:
                wrong = str(error)
        if self.name:
            wrong = f"whose part '{self.name}' is one {wrong}"
        raise Misfit(wrong)


class ObservedParts(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Wrapper that gives the observation as learners read it.

    Args:
        env: the environment.
        parts: what is read of its observations.
        left_out: name of what is not read -> why.
        tells: whether there is something to tell.
    """

    def __init__(
        self, env: gymnasium.Env[Any, Any], parts: Sequence[ObservedPart], left_out: dict[str, str], tells: bool
    ) -> None:
        super().__init__(env)
        self._parts = parts
        self._left_out = left_out
        self._tells = tells
        # Vectors are joined into one; pictures stay apart from them.
        self._joins = len(parts) > 1 and not any(is_picture(part.space) for part in parts)
        if self._joins:
            low = np.concatenate([part.space.low for part in parts])
            high = np.concatenate([part.space.high for part in parts])
            self.observation_space = spaces.Box(low, high, dtype=np.float32)
        elif len(parts) > 1:
            self.observation_space = spaces.Dict({part.name: part.space for part in parts})
        else:
            self.observation_space = parts[0].space

    def observation(self, observation: Any) -> Any:
        """What is read of an observation."""
        arrays = [part.of(observation) for part in self._parts]
        if self._joins:
            return np.concatenate(arrays)
        if len(arrays) == 1:
            return arrays[0]
        return {part.name: array for part, array in zip(self._parts, arrays, strict=True)}

    def describe(self, convolves: bool) -> str | None:
        """What is read, in one line; None where that is nothing special.

        Args:
            convolves: whether the policy has convolutions.
        """
        if not self._tells:
            return None
        read = []
        for part in self._parts:
            words = part.words
            if is_picture(part.space):
                goes_through_convolutions = convolves and is_convolved(part.space)
                words += ", convolutions" if goes_through_convolutions else " as plain numbers"
            read.append(f"{part.name} ({words})" if part.name else f"a {words}")
        line = f"the policy reads {_listed(read)}"
        if not self._left_out:
            return line
        left_out = []
        for name, why in self._left_out.items():
            left_out.append(f"{name} ({why})" if why else name)
        return f"{line}; left out: {_listed(left_out)}"


def _listed(words: Sequence[str]) -> str:
    """Words with commas and an "and"; at most `LISTED` of them, and the number of the rest."""
    if len(words) > LISTED:
        words = [*words[:LISTED], f"{len(words) - LISTED} more"]
    if len(words) == 1:
        return words[0]
    return f"{', '.join(words[:-1])} and {words[-1]}"


def describe_observations(env: gymnasium.Env[Any, Any], convolves: bool) -> str | None:
    """What a policy reads of an adapted environment's observations, in one line; None where that is nothing special.

    Args:
        convolves: whether the policy has convolutions.
    """
    for layer in layers_of(env):
        if isinstance(layer, ObservedParts):
            return layer.describe(convolves)
    return None


def adapted_to_learners(
    env: gymnasium.Env[Any, Any], env_id: str, rescale: bool, keys: Sequence[str] = (), enumerates: bool = False
) -> gymnasium.Env[Any, Any]:
    """Wrap an environment so that its observation and action spaces are those that learners support.

    Args:
        rescale: scale numbers to [-1, 1] by their bounds.
        keys: parts of a dictionary that are read; none: all.
        enumerates: whether several choices become one `Discrete` choice among all combinations.

    Raises:
        BadInput: they cannot be converted.
    """
    # Actions first, since no wrapper of observations depends on them.
    env = adapted_actions(env, env_id, enumerates)
    space: Any = env.observation_space
    # Of a game a policy on states sees the newest picture only.
    if _is_words_and_pictures(space) and not keys:
        env = TransformObservation(env, lambda observation: observation[1][-1], space[1][-1])
        space = env.observation_space
    if not _is_plain(space) or keys:
        env = _in_parts(env, env_id, rescale, keys)
    if not rescale or isinstance(env.observation_space, spaces.Dict):
        return env
    if is_picture(env.observation_space):
        raise BadInput(
            f"observations of '{env_id}' are pictures, which networks rescale themselves; leave out "
            "rescale_observations"
        )
    _check_bounds(env.observation_space, f"observations of '{env_id}'")
    return RescaleObservation(env, np.float32(-1), np.float32(1))


def is_picture(space: spaces.Space[Any]) -> bool:
    """True if observations are pictures by Stable-Baselines3's rule: uint8 with three axes and bounds 0 and 255."""
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8 or len(space.shape) != 3:
        return False
    return bool((space.low == 0).all() and (space.high == 255).all())


def is_convolved(space: spaces.Space[Any]) -> bool:
    """True if observations are pictures [C, H, W] of which convolutions leave something."""
    return is_picture(space) and space.shape is not None and min(space.shape[1:]) >= CONVOLVED


def _is_words_and_pictures(space: spaces.Space[Any]) -> bool:
    """True for observations of games, (text, pictures): a policy is shown the newest picture alone."""
    if not isinstance(space, spaces.Tuple) or len(space) != 2 or not isinstance(space[0], spaces.Text):
        return False
    return isinstance(space[1], spaces.Tuple) and len(space[1]) > 0


def _is_plain(space: spaces.Space[Any]) -> bool:
    """True for numbers that networks read as they are."""
    if not isinstance(space, spaces.Box) or not space.shape or not math.prod(space.shape):
        return False
    return _picture(space) is None and space.dtype in (np.float32, np.float64, np.uint8)


def _in_parts(env: gymnasium.Env[Any, Any], env_id: str, rescale: bool, keys: Sequence[str]) -> gymnasium.Env[Any, Any]:
    """Read the parts of an environment's observations one by one."""
    whole = env.observation_space
    leaves: dict[str, tuple[tuple[Any, ...], spaces.Space[Any]]] = {}
    for path, leaf in _leaves(whole):
        name = ".".join(map(str, path))
        if name in leaves:
            raise BadInput(
                f"two parts of the observations of '{env_id}' have one name once dots join their keys; rename one"
            )
        leaves[name] = (path, leaf)
    readable = {}
    unreadable = {}
    for name in _selected_names(list(leaves), keys, env_id):
        why = _unreadable(leaves[name][1])
        if why is None:
            readable[name] = leaves[name]
        else:
            unreadable[name] = why
    if not readable:
        kinds = " and ".join(sorted(set(unreadable.values()))) or "empty"
        raise BadInput(
            f"observations of '{env_id}' are {kinds}; a policy on states needs a fixed number of numbers: Box, "
            "Discrete, or a dictionary of these"
        )
    if keys and unreadable:
        name, why = next(iter(unreadable.items()))
        raise BadInput(f"observation_keys: '{name}' of '{env_id}' is {why}, which a policy on states cannot read")
    parts = [_part(name, path, leaf, len(readable) == 1) for name, (path, leaf) in readable.items()]
    has_pictures = any(is_picture(part.space) for part in parts)
    # Vectors beside pictures are rescaled part by part; a vector alone is rescaled as a whole afterwards.
    if rescale and has_pictures and len(parts) > 1:
        for i, part in enumerate(parts):
            if not is_picture(part.space):
                parts[i] = _rescaled(part, env_id)
    left_out = {name: unreadable.get(name, "") for name in leaves if name not in readable}
    # Nothing is to be told of numbers, nor of a picture that SB3 takes for one.
    changes = not is_picture(whole) and any(_picture(part.own_space) for part in parts)
    return ObservedParts(env, parts, left_out, bool(left_out) or changes)


def _leaves(
    space: spaces.Space[Any], path: tuple[Any, ...] = ()
) -> Iterator[tuple[tuple[Any, ...], spaces.Space[Any]]]:
    """The parts of a space that are no dictionaries or tuples, with the keys that lead to them."""
    parts: Any = ()
    if isinstance(space, spaces.Dict):
        parts = space.items()
    elif isinstance(space, spaces.Tuple):
        parts = enumerate(space)
    else:
        yield path, space
    for key, part in parts:
        yield from _leaves(part, (*path, key))


def _selected_names(names: Sequence[str], keys: Sequence[str], env_id: str) -> list[str]:
    """The names of the parts that are wanted, in the order of the space.

    Raises:
        BadInput: there is no such part.
    """
    if keys and list(names) == [""]:
        raise BadInput(f"observations of '{env_id}' are no dictionary; leave out observation_keys")
    for key in keys:
        if not any(_is_within(name, [key]) for name in names):
            raise BadInput(
                f"observation_keys: observations of '{env_id}' have no part '{key}'; their parts are {_listed(names)}"
            )
    return [name for name in names if not keys or _is_within(name, keys)]


def _is_within(name: str, keys: Sequence[str]) -> bool:
    """Whether a part is one of those that keys name, or part of one."""
    return any(name == key or name.startswith(f"{key}.") for key in keys)


def _unreadable(space: spaces.Space[Any]) -> str | None:
    """Why a part is no fixed number of numbers; None if it is."""
    if _holds_text(space):
        return "text"
    try:
        size = spaces.flatdim(space)
        if size > ONE_HOT and not isinstance(space, spaces.Box):
            return f"one of {size:,} choices"
        flat = spaces.flatten_space(space)
    except (NotImplementedError, ValueError, TypeError):
        flat = None
    if not isinstance(flat, spaces.Box):
        return f"of the kind {type(space).__name__}"
    if not math.prod(flat.shape):
        return "empty"
    return None


def _holds_text(space: spaces.Space[Any]) -> bool:
    if isinstance(space, spaces.OneOf):
        return any(_holds_text(part) for part in space.spaces)
    # Some make spaces of their own for text, as MiniGrid for its missions.
    return isinstance(space, spaces.Text) or (space.dtype is not None and np.dtype(space.dtype).kind == "U")


def _part(name: str, path: tuple[Any, ...], leaf: spaces.Space[Any], is_alone: bool) -> ObservedPart:
    """How a part is read."""
    picture = _picture(leaf)
    if picture is not None and (picture.is_convolved or (is_alone and leaf.dtype == np.uint8)):
        bytes_space = spaces.Box(0, 255, picture.shape, np.uint8)
        return ObservedPart(name, path, leaf, bytes_space, picture.read, picture.words)
    if picture is not None:
        size = math.prod(leaf.shape or ())
        words = f"{picture.size} picture as {size} numbers from 0 to 1"
        fractions_space = spaces.Box(0, 1, (size,), np.float32)
        return ObservedPart(name, path, leaf, fractions_space, picture.fractions, words)
    flat: Any = spaces.flatten_space(leaf)
    # Bounds beyond float32 become infinite, which is what they mean.
    with np.errstate(over="ignore"):
        space = spaces.Box(flat.low.astype(np.float32), flat.high.astype(np.float32), dtype=np.float32)
    size = len(space.low)
    words = "1 number" if size == 1 else f"{size} numbers"
    return ObservedPart(name, path, leaf, space, _reader(leaf), words)


def _reader(leaf: spaces.Space[Any]) -> Callable[[Any], np.ndarray]:
    """Function from a value of a space to a vector, float32[D]."""

    def numbers(value: Any) -> np.ndarray:
        return np.array(value, np.float32).reshape(-1)

    def flat(value: Any) -> np.ndarray:
        if isinstance(leaf, spaces.Discrete):
            array = np.asarray(value)
            if array.size == 1 and array.dtype.kind in "iu":
                value = int(array.item())
        if not leaf.contains(value):
            raise Misfit(f"that its observation_space does not hold: {value!r:.60}")
        return np.asarray(spaces.flatten(leaf, value), np.float32).reshape(-1)

    if isinstance(leaf, spaces.Box):
        return numbers
    return flat


def _rescaled(part: ObservedPart, env_id: str) -> ObservedPart:
    """A part scaled to [-1, 1] by its bounds.

    Raises:
        BadInput: they say nothing.
    """
    _check_bounds(part.space, f"'{part.name}' in the observations of '{env_id}'")
    low = part.space.low
    span = part.space.high - low

    def read(value: Any) -> np.ndarray:
        return np.asarray(2 * (part.read(value) - low) / span - 1, np.float32)

    space = spaces.Box(-1, 1, part.space.shape, np.float32)
    return replace(part, space=space, read=read)


def _check_bounds(space: spaces.Space[Any], what: str) -> None:
    """Refuse to rescale by bounds that are infinite, or equal.

    Raises:
        BadInput: naming them.
    """
    assert isinstance(space, spaces.Box)
    if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
        raise BadInput(f"{what} have no finite bounds; leave out rescale_observations")
    if (space.low == space.high).any():
        raise BadInput(f"{what} have bounds with low = high somewhere; leave out rescale_observations")


@dataclass(frozen=True)
class _Picture:
    """How a picture is read.

    Attributes:
        axes: its own axes, those of the channels first.
        shape: of the result, [C, H, W].
        size: its height and width, for people.
        low, high: range of its numbers.
        rounds: whether numbers are lost on the way to uint8.
    """

    axes: tuple[int, ...]
    shape: tuple[int, int, int]
    size: str
    low: int
    high: int
    rounds: bool

    @property
    def is_convolved(self) -> bool:
        # SB3 takes the shortest axis for the channels.
        return min(self.shape[1:]) >= CONVOLVED and self.shape[0] <= min(self.shape[1:])

    @property
    def words(self) -> str:
        words = f"{self.size} picture"
        if self.shape[0] not in (1, 3):
            words += f" of {self.shape[0]} channels"
        if self.rounds:
            words += ", rounded to 256 levels"
        return words

    def read(self, value: Any) -> np.ndarray:
        """uint8[C, H, W]."""
        array = np.asarray(value)
        if (self.low, self.high) != (0, 255) or array.dtype != np.uint8:
            array = np.rint(self.fractions(array).reshape(array.shape) * 255)
        return array.astype(np.uint8).transpose(self.axes).reshape(self.shape)

    def fractions(self, value: Any) -> np.ndarray:
        """float32[D], from 0 to 1.

        Raises:
            Misfit: it is of another range than its space says.
        """
        array = np.asarray(value, np.float32).reshape(-1)
        fractions = (array - self.low) / (self.high - self.low)
        # Renderers round a little; more than that is another range than the space promises.
        if fractions.min() < -0.01 or fractions.max() > 1.01:
            raise Misfit(
                f"with numbers from {array.min():g} to {array.max():g} where its observation_space says {self.low} to "
                f"{self.high}"
            )
        return np.asarray(fractions.clip(0, 1), np.float32)


def _picture(space: spaces.Space[Any]) -> _Picture | None:
    """How observations of a space are read as pictures; None if they are none.

    The channels are the shortest axis, as Stable-Baselines3 takes it; the two shortest ones of stacked pictures with
    four axes, such as [K, H, W, 3] or [H, W, 3, K].
    """
    if not isinstance(space, spaces.Box) or len(space.shape) not in (2, 3, 4) or not math.prod(space.shape):
        return None
    low = float(space.low.flat[0])
    high = float(space.high.flat[0])
    if (low, high) not in COLOURS or not ((space.low == low).all() and (space.high == high).all()):
        return None
    # Axes of the channels: none of [H, W], one of [H, W, C], two of [K, H, W, C].
    count = len(space.shape) - 2
    channel_axes = tuple(sorted(np.argsort(space.shape, kind="stable")[:count].tolist()))
    side_axes = tuple(axis for axis in range(len(space.shape)) if axis not in channel_axes)
    height, width = (space.shape[axis] for axis in side_axes)
    channels = math.prod(space.shape[axis] for axis in channel_axes)
    picture = _Picture(
        axes=(*channel_axes, *side_axes),
        shape=(channels, height, width),
        size=f"{height}x{width}",
        low=int(low),
        high=int(high),
        rounds=np.dtype(space.dtype).kind == "f",
    )
    is_bytes = space.dtype == np.uint8 and (low, high) == (0, 255)
    if is_bytes and not picture.is_convolved and (channels > min(height, width) or count == 2):
        # What SB3 would take for a picture, and could not convolve, is laid out as a single row.
        return replace(picture, shape=(1, 1, math.prod(space.shape)))
    if is_bytes or (high == 255 and count > 0):
        return picture
    is_table = channels > CHANNELS or not picture.is_convolved or (count == 0 and low < 0)
    if is_table:
        return None
    return picture
