"""Speed of a recipe on this machine: each stage alone, and the whole loop beside what its stages allow.

    a policy   simulate and draw ──► score ──► learn        scoring goes on in a thread beside the other two
    an agent   write replies     ──► learn                  one after the other

The loop is the one that trains: a run in a temporary folder, which neither evaluates nor saves and ends after a few
seconds. Stages that take long are measured on less work, with chunks or updates that are as much smaller.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from sightline import roles
from sightline.agents.agent_setup import build
from sightline.agents.learning import PolicyLearner
from sightline.agents.rollouts import EpisodeTask
from sightline.agents.training import AgentTrainer
from sightline.agents.types import Trajectory
from sightline.config.learners import OffPolicyLearner, OnPolicyLearner, nearest_divisor
from sightline.config.loading import load_recipe
from sightline.config.recipe import AgentRecipe, ControlRecipe, Recipe
from sightline.control.collection import CollectingVecEnv
from sightline.control.control_setup import build_setup
from sightline.control.trainer import training_envs
from sightline.control.training import trainer_of
from sightline.errors import BadInput
from sightline.rewards.base import Clip, RewardModel, RewardStream
from sightline.runs.folder import owned_run
from sightline.runs.progress import ProgressBar
from sightline.runs.stopping import StopRequests
from sightline.session import RunSession, Trainer

DEFAULT_RECIPES = ("cartpole", "numberline")
"""What is measured where no recipe is named: a policy and an agent, both with bundled models."""
SECONDS = 1.5
"""Time for which a rate is measured, after a first call that does not count."""
FIRST_TASKS = 4
"""Tasks of an agent that are played to find out how many fit into the time."""


@dataclass(frozen=True)
class Rate:
    """Rate of a stage alone: what it handles a second."""

    stage: str
    rate: float
    unit: str


@dataclass(frozen=True)
class Speed:
    """Speed of a recipe on this machine.

    Attributes:
        devices: what computes where, in words.
        whole: rate of the whole loop, in `unit`: environment steps, or an agent's tokens, a second.
        in_turn: rate that the stages allow one after the other.
        beside: rate that they allow if scoring costs the others no time; None where nothing goes on beside.
        share: size of the chunks, or updates, of the measurement, as a share of the recipe's.
    """

    recipe: str
    devices: str
    stages: tuple[Rate, ...]
    unit: str
    whole: float
    in_turn: float
    beside: float | None
    share: float


def measure_speed(recipe: str | None, overrides: Sequence[str] = (), device: str | None = None) -> Speed:
    """Measure a recipe; takes some ten seconds, and longer only where a single step of it does.

    Args:
        recipe: a name, a file or YAML text; None to start from the defaults.
        overrides: `key=value`.
        device: where the policy learns and frames are read; None leaves that to the recipe.

    Raises:
        BadInput: the recipe is not valid, or its rewards or labels are asked of somebody else.
    """
    loaded = load_recipe(recipe, overrides)
    if device is not None:
        keys = [f"device={device}"]
        # Rewards that need no model have no device.
        if hasattr(loaded.reward, "device"):
            keys.append(f"reward.device={device}")
        loaded = load_recipe(recipe, [*overrides, *keys])
    if loaded.reward.teaching is not None or any(loaded.reward.reaches()):
        raise BadInput(
            f"doctor --speed measures this machine, and reward.kind={loaded.reward.kind} asks a teacher or a server, "
            "which may cost money; add reward.kind=zero_shot"
        )
    name = recipe or loaded.env
    completed = _without_extras(roles.complete(loaded))
    if isinstance(completed, AgentRecipe):
        return _speed_of_agent(name, completed)
    return _speed_of_policy(name, completed)


def _without_extras(recipe: Recipe) -> Recipe:
    """The recipe without what is not measured: evaluations, demonstrations, logs elsewhere."""
    update: dict[str, Any] = {"tensorboard": False, "wandb": None}
    if isinstance(recipe, AgentRecipe):
        update["warm_start"] = None
        evaluation: dict[str, Any] = {"episodes": 1, "test_episodes": 1}
    else:
        evaluation = {"background": False}
    update["evaluation"] = recipe.evaluation.model_copy(update=evaluation)
    return recipe.model_copy(update=update)


def _seconds_of(work: Callable[[], Any]) -> float:
    """Seconds of a call, on average over `SECONDS`. The first one counts only if it is so long that nobody would wait
    for another."""
    began = time.perf_counter()
    work()
    first = time.perf_counter() - began
    if first > 2 * SECONDS:
        return first
    calls = 0
    began = time.perf_counter()
    while calls == 0 or time.perf_counter() - began < SECONDS:
        work()
        calls += 1
    return (time.perf_counter() - began) / calls


# -- the loop ----------------------------------------------------------------------------------------------------------


class _Enough(Exception):
    """Raised to end a loop that has been measured."""


class _LoopSession(RunSession):
    """Session that neither evaluates nor saves. It notes when each turn of the loop is done, and ends it after some
    turns."""

    def begin_choosing(self) -> None:
        self._turns: list[tuple[float, int]] = []

    def between_steps(self, last: bool = False) -> None:
        now = time.perf_counter()
        # The first turn loads libraries and fills caches: time begins when it is done.
        if self._trainer.step > 0:
            self._turns.append((now, self._trainer.step))
        if len(self._turns) > 1 and now - self._turns[0][0] >= 2 * SECONDS:
            raise _Enough

    def rate(self, trainer: Trainer) -> float:
        """Steps or turns a second of the whole loop, but for its first turn."""
        self._turns = []
        with suppress(_Enough):
            trainer.learn()
        began, first_step = self._turns[0]
        ended, last_step = self._turns[-1]
        return (last_step - first_step) / (ended - began)


@contextmanager
def _loop_session(recipe: Recipe) -> Iterator[_LoopSession]:
    """Context with a session in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="sightline-speed-") as folder:
        path = Path(folder) / "run"
        with owned_run(path, recipe, resume=False) as begin, ProgressBar(recipe.steps, "", quiet=True) as progress:
            # Requests to stop are not taken: there is nothing to save.
            yield _LoopSession(recipe, begin(), progress, StopRequests())


# -- a policy ----------------------------------------------------------------------------------------------------------


def _speed_of_policy(name: str, recipe: ControlRecipe) -> Speed:
    setup = build_setup(recipe)
    model = setup.reward_model
    learner = recipe.learner
    every = 1
    if isinstance(learner, OnPolicyLearner):
        every = min(learner.frames_every, learner.chunk)

    # Simulating and scoring alone; how long one step of them takes decides how many are a chunk here.
    with closing(CollectingVecEnv(training_envs(setup), learner.chunk, setup.make.render, every)) as envs:
        envs.action_space.seed(0)
        envs.reset()
        clip, drawing = _collect(envs, every)
        scoring = _seconds_of(partial(_rewards, model, clip))
        chunk = min(learner.chunk, every * max(1, int(SECONDS / (drawing + scoring))))
        clip, drawing = _collect(envs, chunk)
        scoring = _seconds_of(partial(_rewards, model, clip))

    # The whole loop, and with the learner and the transitions that it leaves, learning alone.
    small = _with_chunk(recipe, chunk)
    with _loop_session(small) as session:
        trainer = trainer_of(replace(setup, recipe=small), session)
        with session.begun(trainer):
            whole = session.rate(trainer)
            learning = _seconds_of(partial(_learn, trainer.model, small))
            devices = f"the policy learns on {trainer.model.device}"

    encoder = getattr(setup.reward.encoder, "where", None)
    if encoder is not None:
        devices += f"; frames are read on {encoder}"
    transitions = chunk * recipe.envs
    stages = (
        Rate("simulated and drawn" if setup.make.render else "simulated", transitions / drawing, "steps/s"),
        Rate("scored", clip.first.size / scoring, "frames/s" if setup.make.render else "steps/s"),
        Rate("learned", transitions / learning, "steps/s"),
    )
    in_turn = transitions / (drawing + scoring + learning)
    beside = transitions / max(scoring, drawing + learning)
    return Speed(name, devices, stages, "steps/s", whole, in_turn, beside, chunk / learner.chunk)


def _collect(envs: CollectingVecEnv, chunk: int) -> tuple[Clip, float]:
    """A chunk of random actions, as a reward model sees it, and the seconds that one takes."""
    clips: list[Clip] = []

    def collect() -> None:
        for _ in range(chunk):
            envs.collect(np.stack([envs.action_space.sample() for _ in range(envs.num_envs)]))
        clips[:] = [envs.take_chunk().clip]

    seconds = _seconds_of(collect)
    return clips[0], seconds


def _rewards(model: RewardModel, clip: Clip) -> np.ndarray:
    """float32[T, N]: rewards of a clip that follows no other."""
    return RewardStream(model)(clip)


def _with_chunk(recipe: ControlRecipe, chunk: int) -> ControlRecipe:
    """The recipe with chunks of another size, as many updates a step, and learning from the first chunk on."""
    learner = recipe.learner
    update: dict[str, Any] = {"chunk": chunk}
    if isinstance(learner, OffPolicyLearner):
        update["learning_starts"] = 0
        update["gradient_steps"] = max(1, round(learner.gradient_steps * chunk / learner.chunk))
    elif learner.batch_size is not None:
        update["batch_size"] = nearest_divisor(chunk * recipe.envs, learner.batch_size)
    # Enough steps to measure some turns of the loop.
    steps = max(recipe.steps, 4 * chunk * recipe.envs)
    return recipe.model_copy(update={"learner": learner.model_copy(update=update), "steps": steps})


def _learn(model: BaseAlgorithm, recipe: ControlRecipe) -> None:
    """Make the updates of one chunk."""
    if isinstance(model, OffPolicyAlgorithm) and isinstance(recipe.learner, OffPolicyLearner):
        model.train(gradient_steps=recipe.learner.gradient_steps, batch_size=model.batch_size)
    elif isinstance(model, OnPolicyAlgorithm):
        model.train()


# -- an agent ----------------------------------------------------------------------------------------------------------


def _speed_of_agent(name: str, recipe: AgentRecipe) -> Speed:
    setup = build(recipe)
    setup.engine.prepare(setup.vlm)
    if recipe.update.needs_reference:
        setup.vlm.keep_reference()
    sampler = setup.sampler(training=True)

    # Writing alone; how long a few tasks take decides how many are an update here.
    with closing(setup.rollout_worker(training=True)) as worker:
        few = _tasks(recipe, min(FIRST_TASKS, recipe.rollouts.tasks))
        seconds = _seconds_of(partial(worker.play, sampler, few, (0,)))
        fitting = int(2 * SECONDS * FIRST_TASKS / seconds)
        count = min(recipe.rollouts.tasks, max(1, fitting))
        began = time.perf_counter()
        episodes = worker.play(sampler, _tasks(recipe, count), (1,))
        writing = time.perf_counter() - began
    turns = [turn for episode in episodes for turn in episode.turns]
    tokens = sum(len(turn.sample.ids) for turn in turns)

    # Learning alone, from rewards that leave no group of equal ones, from which nothing is learned.
    chance = np.random.default_rng(0)
    for turn in turns:
        turn.reward = float(chance.random())
    learning = _seconds_of(partial(_update, setup.learner(lambda line: None), episodes))

    rollouts = recipe.rollouts.model_copy(update={"tasks": count})
    # Enough turns to measure some updates.
    steps = max(recipe.steps, 10 * len(turns))
    small = recipe.model_copy(update={"rollouts": rollouts, "steps": steps})
    with _loop_session(small) as session:
        trainer = AgentTrainer(replace(setup, recipe=small), session)
        with session.begun(trainer):
            whole = session.rate(trainer) * tokens / len(turns)
    stages = (
        Rate("written", tokens / writing, "tokens/s"),
        Rate("learned", tokens / learning, "tokens/s"),
    )
    devices = f"the model writes and learns on {setup.vlm.device}"
    in_turn = tokens / (writing + learning)
    return Speed(name, devices, stages, "tokens/s", whole, in_turn, None, count / recipe.rollouts.tasks)


def _tasks(recipe: AgentRecipe, count: int) -> list[EpisodeTask]:
    """So many tasks, each as often as the algorithm compares its episodes."""
    members = range(recipe.algorithm.episodes_per_task)
    return [EpisodeTask(seed, member) for seed in range(count) for member in members]


def _update(learner: PolicyLearner, episodes: Sequence[Trajectory]) -> None:
    """Learn from episodes as one update does."""
    learner.compute_values(episodes)
    learner.learn(episodes, learner.compute_advantages(episodes), 0, 0.0)
