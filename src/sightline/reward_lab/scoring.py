"""Scoring: every reward on every frame of one set of episodes.

    sources ──► episodes, one at a time ──► features on disk, once for each encoder ──► rewards of every contender

Memory does not grow with the number of frames but by what is kept of each: a reward for every contender, the ground
truth, and whether it is a success.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sightline.config.recipe import ControlRecipe
from sightline.control.resolving import env_maker
from sightline.datasets.episode import Episode
from sightline.datasets.stored import StoredEpisode
from sightline.envs.frames import Size, rgb_frame
from sightline.envs.making import EnvMaker
from sightline.envs.stepping import Shrink, close_env
from sightline.errors import BadInput, RunFailed
from sightline.models.encoders import shared_encoders
from sightline.models.familiarity import SpreadPictures
from sightline.reward_lab.changes import CHANGES
from sightline.reward_lab.contenders import Contender
from sightline.reward_lab.features import FeatureStore
from sightline.reward_lab.frame_file import FrameFile
from sightline.reward_lab.measures.table import FAILED, HALF_DONE, SUCCESSFUL, UNJUDGED, ScoredFrames
from sightline.reward_lab.sources import Source
from sightline.rewards.arrays import to_numpy
from sightline.rewards.base import Clip, RewardModel, RewardStream, common_shrinker
from sightline.rewards.config import RewardContext, RewardSetup, build_reward, reward_config

VARIANTS = ("shuffled", "blank", *CHANGES)
"""Frames as they are not: in another order, black, and changed a little. A reward that is as good with the first two
does not look at its frames; one that changes much with the others is noise."""
CHANGED_EVERY = 16
"""Steps from one frame that is changed a little to the next: each has to be embedded, once for each change."""
FEW = 3
"""Episodes whose frames are changed for a reward that keeps no features: its answers may cost money."""
QUALITIES = {"failure": FAILED, "suboptimal": HALF_DONE, "successful": SUCCESSFUL}
"""Words of data sets for the quality of an episode, which are Robometer's."""
SHUFFLING = 1
"""First number of the seeds that frames are shuffled by."""


@dataclass(frozen=True)
class ReadyReward:
    """A reward model that was built, with the pictures that it reads.

    Attributes:
        make: makes the environment, with those pictures.
        has_variants: whether it is shown frames as they are not, too; a control is not.
    """

    contender: Contender
    setup: RewardSetup
    make: EnvMaker
    has_variants: bool = True

    @property
    def name(self) -> str:
        return self.contender.name

    @property
    def model(self) -> RewardModel:
        return self.setup.model

    @property
    def pictures(self) -> str:
        """Which pictures it reads, in words that are equal for equal ones."""
        return repr((self.make.options, self.make.frame_size))


@dataclass(frozen=True, eq=False)
class SeenTransitions:
    """K steps of which the state before, the action and the state after are known.

    Attributes:
        rows: int64[K], the frame of each, which shows the state after it; ascending.
        states, actions, next_states: [K, …].
    """

    rows: np.ndarray
    states: np.ndarray
    actions: np.ndarray
    next_states: np.ndarray


@dataclass(frozen=True, eq=False)
class LabScores:
    """Rewards of all frames.

    Attributes:
        frames: episodes, ground truth and success; its own rewards are none.
        rewards: name -> float64[N], NaN where the model gave no answer.
        changed: name -> variant -> float64[N], of frames as they are not; NaN where they were not scored.
        failures: name -> why a reward could not be had.
        warnings: one line each.
        transitions: where they were wanted and there are any.
    """

    frames: ScoredFrames
    rewards: dict[str, np.ndarray]
    changed: dict[str, dict[str, np.ndarray]]
    failures: dict[str, str]
    warnings: tuple[str, ...]
    transitions: SeenTransitions | None = None

    def of(self, name: str) -> ScoredFrames:
        """The frames with a reward's numbers."""
        return self.frames.with_rewards(self.rewards[name])


def build_rewards(contenders: Sequence[Contender], nonsense: str = "") -> list[ReadyReward]:
    """Build the reward models; each distinct encoder is loaded once.

    Args:
        nonsense: a goal that means nothing. Each reward in words is followed by a control with this one.

    Raises:
        BadInput, RunFailed: as their blocks say, with the reward's name.
    """
    ready = []
    seen: dict[str, np.ndarray] = {}
    with shared_encoders():
        for contender in contenders:
            recipe = contender.recipe
            if contender.model is not None:
                ready.append(_as_it_is(contender, contender.model))
                continue

            def first_seen(size: Size | None, states: bool, recipe: ControlRecipe = recipe) -> np.ndarray:
                key = repr((recipe.env_options, size, states))
                if key not in seen:
                    seen[key] = _first_seen(recipe, size, states)
                return seen[key]

            context = RewardContext(recipe.goal, recipe.baseline, recipe.seed, False, first_seen)
            try:
                setup = build_reward(reward_config(recipe.reward), context)
            except (BadInput, RunFailed) as error:
                raise type(error)(f"reward '{contender.name}': {error}") from error
            reward = ReadyReward(contender, setup, env_maker(recipe, setup.frame_size))
            ready.append(reward)
            control = under_goal(reward, nonsense, control_name(reward.name)) if nonsense else None
            if control is not None:
                ready.append(control)
    return ready


def _as_it_is(contender: Contender, model: RewardModel) -> ReadyReward:
    """A reward model that is there already; its frames are of the size that its encoder reads."""
    side = getattr(getattr(model, "encoder", None), "image_size", None)
    size = (side, side) if side else None
    return ReadyReward(contender, RewardSetup(model, size), env_maker(contender.recipe, size))


def under_goal(reward: ReadyReward, goal: str, name: str) -> ReadyReward | None:
    """The same reward with another goal, by a name of its own; None where words mean nothing to it."""
    recipe = reward.contender.recipe
    block = reward_config(recipe.reward)
    model = block.reworded([goal], recipe.baseline, block.words_alpha)
    if model is None:
        return None
    contender = Contender(name, recipe)
    return ReadyReward(contender, replace(reward.setup, model=model, warnings=()), reward.make, has_variants=False)


def control_name(name: str) -> str:
    """Name of the control of a reward, with a goal that means nothing."""
    return f"{name} (nonsense)"


def _first_seen(recipe: ControlRecipe, size: Size | None, states: bool) -> np.ndarray:
    env = env_maker(recipe, size)()
    try:
        state, _ = env.reset(seed=0)
        return np.asarray(state) if states else rgb_frame(env)
    finally:
        close_env(env)


def score(
    rewards: Sequence[ReadyReward],
    sources: Sequence[Source],
    store: FeatureStore,
    show: Callable[[str, int], None] = lambda source, frames: None,
    variants: bool = True,
    shown: FrameFile | None = None,
    transitions: bool = False,
) -> LabScores:
    """Score every frame of all sources by every reward.

    Args:
        variants: score frames as well as they are not; see `VARIANTS`.
        shown: is given all frames, as the first reward reads them, for those that will be shown.
        show: is told which source is read, and the number of frames so far.
        transitions: keep states and actions of all steps, too.

    Raises:
        BadInput: there are no frames; or an environment goes another way where its pictures differ.
        RunFailed: no reward could be had.
    """
    frames: ScoredFrames | None = None
    real: dict[str, np.ndarray] = {}
    changed: dict[str, dict[str, np.ndarray]] = {}
    failures: dict[str, str] = {}
    warnings: list[str] = []
    steps: SeenTransitions | None = None
    # Rewards that read the same pictures go together: the episodes are played once for each kind of picture.
    for group in _by_pictures(rewards):
        scorers = [_FrameScorer(reward, store, variants) for reward in group]
        # The frames of the first group are shown.
        is_first = frames is None
        facts = _Facts(transitions and is_first)
        warnings += _score_group(group, scorers, sources, facts, shown if is_first else None, show)
        table = facts.table()
        if frames is None:
            frames = table
            warnings += facts.warnings()
            steps = facts.transitions()
        elif not _are_alike(frames, table):
            raise BadInput(
                f"reward '{group[0].name}': the episodes go another way with its env_options; compare cameras and "
                "looks, and nothing that changes the states"
            )
        for scorer in scorers:
            real[scorer.name] = scorer.rewards()
            changed[scorer.name] = {name: scorer.rewards(name) for name in VARIANTS}
            if scorer.failure:
                failures[scorer.name] = scorer.failure
    if frames is None or not len(frames.rewards):
        raise BadInput("there are no frames to judge rewards by; say --episodes, --pictures or --video")
    if len(failures) == len(rewards):
        name, reason = next(iter(failures.items()))
        raise RunFailed(f"reward '{name}': {reason}")
    warnings += [line for reward in rewards for line in reward.setup.warnings]
    warnings += _doubts_of_stills(rewards, sources)
    # What a task's own picture gives cause to doubt does not concern files.
    if any(source.plays for source in sources):
        warnings += [line for reward in rewards for line in reward.setup.doubts]
    # In the order in which they were named.
    names = [reward.name for reward in rewards]
    ordered = {name: real[name] for name in names}
    return LabScores(frames, ordered, changed, failures, tuple(dict.fromkeys(warnings)), steps)


def _doubts_of_stills(rewards: Sequence[ReadyReward], sources: Sequence[Source]) -> Iterator[str]:
    """A line for each reward of several pictures that is shown single ones."""
    still = [source.name for source in sources if source.still]
    if not still:
        return
    for reward in rewards:
        if not reward.model.judges_stills:
            yield (
                f"reward '{reward.name}' is of several pictures in their order, and is shown those of "
                f"{', '.join(still)} one by one, as if nothing had come before; say --play random and scripted alone"
            )


def _score_group(
    group: Sequence[ReadyReward],
    scorers: Sequence[_FrameScorer],
    sources: Sequence[Source],
    facts: _Facts,
    shown: FrameFile | None,
    show: Callable[[str, int], None],
) -> list[str]:
    """Play the episodes once for rewards that read the same pictures, and have each of them scored; `facts` is told of
    all episodes.

    Returns:
        Why rewards of pictures of files may mean nothing, one line each.
    """
    shrink = common_shrinker([reward.model for reward in group])
    doubts: list[str] = []
    for source in sources:
        begins = True
        of_files = SpreadPictures()
        for episode in source.episodes(group[0].make, shrink):
            if not source.plays and episode.frames is not None:
                of_files.add(episode.frames)
            clip = _clip(episode, source, begins, shrink)
            features: dict[str, np.ndarray] = {}
            for scorer in scorers:
                scorer.add(clip, begins, features)
            if shown is not None and clip.frames is not None:
                shown.append(to_numpy(clip.frames)[:, 0])
            facts.add(episode, source, len(clip.first), begins)
            show(source.name, facts.count)
            begins = not source.joined
        # Of rewards with one encoder, one is asked.
        asked = {reward.contender.feature_source or reward.name: reward.model for reward in group}
        for frames in of_files.by_size():
            doubts += [f"{source.name}: {line}" for model in asked.values() for line in model.doubts(frames)]
    return doubts


def _by_pictures(rewards: Sequence[ReadyReward]) -> list[list[ReadyReward]]:
    groups: dict[str, list[ReadyReward]] = {}
    for reward in rewards:
        groups.setdefault(reward.pictures, []).append(reward)
    return list(groups.values())


def _clip(episode: Episode, source: Source, begins: bool, shrink: Shrink) -> Clip:
    """The clip [T, 1] of an episode, its frames as small as all its rewards allow."""
    clip = episode.clip()
    if not begins:
        clip = replace(clip, first=np.zeros_like(clip.first), past=None)
    if source.still:
        # Nothing goes before a frame, and nothing comes after it.
        alone = np.ones_like(clip.first)
        clip = replace(clip, first=alone, ended=alone, past=None)
    if source.plays:  # frames are made smaller as they are taken
        return clip
    return _with_frames(clip, shrink)


def _with_frames(clip: Clip, change: Callable[[np.ndarray], np.ndarray]) -> Clip:
    """The clip [T, 1] with all its frames changed, those before it too."""
    if clip.frames is not None:
        clip = replace(clip, frames=change(to_numpy(clip.frames)[:, 0])[:, None])
    if clip.past is not None:
        clip = replace(clip, past=replace(clip.past, frames=change(to_numpy(clip.past.frames))))
    return clip


class _FrameScorer:
    """LabScores episode after episode by one reward. If the model fails, it is asked no more, and its rewards are NaN.

    Args:
        store: of the features.
        variants: whether frames are scored as well as they are not; see `VARIANTS`.
    """

    def __init__(self, reward: ReadyReward, store: FeatureStore, variants: bool) -> None:
        self.name = reward.name
        self.failure = ""
        self._model = reward.model
        self._features = reward.contender.feature_source
        self._store = store
        self._wants_variants = variants and reward.has_variants and "frames" in reward.model.needs
        self._episodes = 0
        self._stream = RewardStream(reward.model)
        self._rewards: dict[str, list[np.ndarray]] = {name: [] for name in ("real", *VARIANTS)}

    def add(self, clip: Clip, begins: bool, features: dict[str, np.ndarray]) -> None:
        """Score the clip of an episode, or the next part of one if that does not begin with it.

        Args:
            features: of the clip, by what they come from, as far as other rewards have asked for them.
        """
        if begins:
            self._stream = RewardStream(self._model)
            self._episodes += 1
        rewards = {name: np.full(len(clip.first), np.nan, np.float32) for name in self._rewards}
        if not self.failure:
            try:
                rewards["real"] = self._score(clip, self._stream, features)
                if self._wants_variants and begins:
                    rewards |= self._variants(clip, features)
            except (BadInput, RunFailed) as error:
                self.failure = str(error)
        for name, values in rewards.items():
            self._rewards[name].append(values)

    def rewards(self, variant: str = "real") -> np.ndarray:
        """float64[N] of all frames so far."""
        if variant == "shuffled" and self._wants_variants and self._judges_frames_alone:
            # Rewards of single frames are shuffled with them, over all episodes.
            real = self.rewards()
            return np.random.default_rng(SHUFFLING).permutation(real)
        return np.concatenate([np.zeros(0), *self._rewards[variant]])

    @property
    def _judges_frames_alone(self) -> bool:
        return self._model.window == 1 and not self._model.sees_past

    def _score(self, clip: Clip, stream: RewardStream, features: dict[str, np.ndarray]) -> np.ndarray:
        """float32[T] of a clip [T, 1], by features that are kept where they can be."""
        if self._features is None or clip.frames is None:
            return stream(clip)[:, 0]
        if self._features not in features:
            frames = to_numpy(clip.frames)[:, 0]
            features[self._features] = self._store.of(self._features, frames, lambda: stream.embed(clip))
        return stream.score(features[self._features], clip)[:, 0]

    def _variants(self, clip: Clip, features: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Rewards of the clip with other frames than its own; NaN where they were not asked for."""
        frames: Any = clip.frames
        steps = len(frames)
        if self._features is None:
            return self._paid_variants(clip)
        found = {}
        if self._model.window > 1:
            order = np.random.default_rng([SHUFFLING, self._episodes]).permutation(steps)
            shuffled = features[self._features][order]
            found["shuffled"] = RewardStream(self._model).score(shuffled, clip)[:, 0]
        blank = self._embedded(np.zeros_like(frames[:1]), clip[:1])
        found["blank"] = RewardStream(self._model).score(np.repeat(blank, steps, axis=0), clip)[:, 0]
        if self._model.window == 1:
            # Frames that are changed are new ones, which have to be embedded.
            some = np.arange(0, steps, CHANGED_EVERY)
            part = replace(Clip.of_arrays({name: array[some] for name, array in clip.arrays().items()}))
            for name, change in CHANGES.items():
                embedded = self._embedded(change(frames[some]), part)
                found[name] = np.full(steps, np.nan, np.float32)
                found[name][some] = RewardStream(self._model).score(embedded, part)[:, 0]
        return found

    def _paid_variants(self, clip: Clip) -> dict[str, np.ndarray]:
        """The same of a model that has no features to keep, each of whose answers may cost: of the first episodes."""
        if self._episodes > FEW:
            return {}
        frames: Any = clip.frames
        order = np.random.default_rng([SHUFFLING, self._episodes]).permutation(len(frames))
        clips = {"shuffled": replace(clip, frames=frames[order]), "blank": _with_frames(clip, np.zeros_like)}
        clips |= {name: _with_frames(clip, change) for name, change in CHANGES.items()}
        return {name: RewardStream(self._model)(changed)[:, 0] for name, changed in clips.items()}

    def _embedded(self, frames: np.ndarray, clip: Clip) -> np.ndarray:
        """Features of other frames [T, 1, …] than those of a clip."""
        assert self._features is not None, "a model that keeps features"
        changed = replace(clip, frames=frames)
        return self._store.of(self._features, frames[:, 0], lambda: RewardStream(self._model).embed(changed))


class _Facts:
    """What the episodes say of their frames, whatever reward is judged.

    Args:
        keeps_transitions: whether states and actions are kept.
    """

    def __init__(self, keeps_transitions: bool = False) -> None:
        self._keeps_transitions = keeps_transitions
        self._transitions: list[SeenTransitions] = []
        self.count = 0
        self.unpaid = 0
        """Episodes that were played, and whose own reward is unknown all the same."""
        self._sources: list[str] = []
        self._quality: list[int] = []
        """Of each episode, in a data set's own word."""
        self._episodes: list[np.ndarray] = []
        self._steps: list[np.ndarray] = []
        self._truth: list[np.ndarray] = []
        self._success: list[np.ndarray] = []
        self._stated: list[np.ndarray] = []

    def add(self, episode: Episode, source: Source, steps: int, begins: bool) -> None:
        """Take in an episode of T steps, or the next part of one."""
        if source.still:
            begun = len(self._sources)
            self._episodes.append(np.arange(begun, begun + steps))
            self._steps.append(np.zeros(steps, np.int64))
            self._sources += [source.name] * steps
            self._quality += [UNJUDGED] * steps
        else:
            if begins:
                self._sources.append(source.name)
                self._quality.append(_stated_quality(episode))
            before = 0 if begins else int(self._steps[-1][-1]) + 1
            self._episodes.append(np.full(steps, len(self._sources) - 1))
            self._steps.append(np.arange(before, before + steps))
        follows = not source.still and not source.joined
        if self._keeps_transitions and follows and episode.states is not None and episode.actions is not None:
            self._transitions.append(_transitions_of(episode, episode.states, episode.actions, self.count))
        truth = episode.env_reward
        if truth is None and source.plays:
            self.unpaid += 1
        elif truth is not None and source.plays and source.still:
            self.unpaid += int(np.count_nonzero(~np.isfinite(truth)))
        self._truth.append(np.full(steps, np.nan) if truth is None else truth.astype(np.float64))
        self._stated.append(np.full(steps, episode.success is not None))
        self._success.append(np.zeros(steps, bool) if episode.success is None else episode.success.astype(bool))
        self.count += steps

    def transitions(self) -> SeenTransitions | None:
        """All steps whose states and action are known; None without any."""
        if not self._transitions:
            return None
        names = ("rows", "states", "actions", "next_states")
        return SeenTransitions(
            **{name: np.concatenate([getattr(part, name) for part in self._transitions]) for name in names}
        )

    def warnings(self) -> list[str]:
        """What the user has to know of the episodes, in lines."""
        if not self.unpaid:
            return []
        return [
            f"episodes whose ground truth is unknown, since the environment paid something else than a finite "
            f"number at some step: {self.unpaid}"
        ]

    def table(self) -> ScoredFrames:
        """All frames, without rewards."""
        truth = np.concatenate([np.zeros(0), *self._truth])
        stated = np.concatenate([np.zeros(0, bool), *self._stated])
        table = ScoredFrames(
            rewards=np.full(self.count, np.nan),
            episode=np.concatenate([np.zeros(0, np.int64), *self._episodes]),
            step=np.concatenate([np.zeros(0, np.int64), *self._steps]),
            sources=self._sources,
            truth=truth if np.isfinite(truth).any() else None,
            success=np.concatenate([np.zeros(0, bool), *self._success]) if stated.any() else None,
            stated=None if stated.all() else stated,
        )
        quality = np.array(self._quality, np.int64)
        if (quality == UNJUDGED).all():
            return table
        # Episodes without such a word are told apart by success, where that is stated.
        return replace(table, quality=np.where(quality == UNJUDGED, table.quality_by_success, quality))


def _transitions_of(episode: Episode, states: np.ndarray, actions: np.ndarray, begin: int) -> SeenTransitions:
    """The steps of an episode whose first frame has the row `begin`; without the first where its state is not known."""
    rows = np.arange(begin, begin + len(states))
    if episode.reset_state is None:
        return SeenTransitions(rows[1:], states[:-1], actions[1:], states[1:])
    before = np.concatenate([episode.reset_state[None], states[:-1]])
    return SeenTransitions(rows, before, actions, states)


def _stated_quality(episode: Episode) -> int:
    """Quality of an episode by the word of its data set."""
    word = episode.quality if isinstance(episode, StoredEpisode) else None
    return UNJUDGED if word is None else QUALITIES.get(word, UNJUDGED)


def _are_alike(one: ScoredFrames, other: ScoredFrames) -> bool:
    """Whether the same episodes were played."""
    if not np.array_equal(one.episode, other.episode):
        return False
    if one.truth is None or other.truth is None:
        return one.truth is other.truth
    return np.array_equal(one.truth, other.truth, equal_nan=True)
