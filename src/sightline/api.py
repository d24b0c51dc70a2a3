"""Python interface to whole runs: train, load, evaluate, relabel and report them.

What a command does, a function here does; both call `sightline.roles`.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import operator
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec

import numpy as np

from sightline import roles
from sightline.config.basics import MAX_SEED
from sightline.config.loading import for_control, load_recipe, recipe_name
from sightline.config.named_code import stop_importing
from sightline.config.recipe import ControlRecipe, Recipe
from sightline.envs.workers import leave_unguarded_script
from sightline.errors import BadInput
from sightline.models.device import random_states_kept
from sightline.reward_lab.collection import Collection
from sightline.reward_lab.contenders import as_overrides
from sightline.rewards.base import RewardModel
from sightline.runs.folder import RunFolder, default_run_path, open_run
from sightline.runs.metrics import read_metrics
from sightline.runs.stopping import Stopped


@contextlib.contextmanager
def _process_unchanged() -> Iterator[None]:
    """Restore what a run sets for all: states of random numbers, torch's threads, the level of Gymnasium's logger."""
    import gymnasium
    import torch

    threads = torch.get_num_threads()
    level = gymnasium.logger.min_level
    try:
        with random_states_kept():
            yield
    finally:
        torch.set_num_threads(threads)
        gymnasium.logger.min_level = level


@_process_unchanged()
def train(
    recipe: str | Path | Mapping[str, Any] | None = None,
    *,
    run_dir: str | Path | None = None,
    resume: bool = False,
    progress: bool = True,
    check: bool = False,
    goal_pictures: str | Path | None = None,
    trust: bool = False,
    **overrides: Any,
) -> Run:
    """Carry out a recipe.

    >>> run = train("cartpole", steps=20_000, seed=1)
    >>> run = train({"env": "Pendulum-v1", "goal": "a rod standing upright"}, **{"reward.encoder": "bundled"})
    >>> run = train(env=MyEnv, goal="a red square in the top left corner", episode_steps=100)
    >>> run = train(run_dir="runs/mine", resume=True, steps=40_000)

    Ctrl-C, SIGTERM and SIGHUP save the run, and then raise KeyboardInterrupt.

    Args:
        recipe: a bundled name, a path, YAML text, or the recipe as a mapping; to resume, it may be left out.
        run_dir: folder of the run; default: `runs/<recipe>-<time>`.
        resume: go on with the run in `run_dir`. What is stated must be as before, but for `steps`, which may grow.
        progress: show a progress bar.
        check: judge the reward first; one that is useless is refused, see `sightline train --check`.
        goal_pictures: folder of pictures of the goal, for the check; None has the task draw them, if it can.
        trust: when resuming, whether code that only the run folder's recipe names may be imported.
        overrides: recipe keys; nested ones with dots in their names, `**{"reward.alpha": 0.3}`, or as mappings. `env`,
            and the `kind` of a block, may be a class or a function of a file or module: the recipe says its name.

    Raises:
        BadInput, RunFailed: in one line.
        KeyboardInterrupt: the run was stopped and saved; its message says at which step.
    """
    # A worker that imports the script that called this, for want of a main guard, ends here.
    leave_unguarded_script()
    stop_importing()
    if resume:
        if run_dir is None:
            raise BadInput("say which run to resume: run_dir=…")
        run = open_run(_folder(run_dir, "run_dir"))
        if recipe is None and "env" not in overrides:  # keys of the run's own recipe
            completed = roles.resumed_with_keys(run, overrides, list(overrides), trust)
        else:
            stated_keys = list(overrides)
            if isinstance(recipe, Mapping):
                stated_keys += recipe
            completed = roles.resumed_recipe(run, load_recipe(_plain_recipe(recipe), overrides), stated_keys, trust)
        path = run.path
        name = path.name
    else:
        plain_recipe = _plain_recipe(recipe)
        loaded = load_recipe(plain_recipe, overrides)
        name = recipe_name(plain_recipe if isinstance(plain_recipe, str) else None, loaded)
        path = default_run_path(name) if run_dir is None else _folder(run_dir, "run_dir")
        path = path.absolute()  # some simulators change the working folder while they are built
        completed = roles.complete(loaded)
    arguments = ", ".join([repr(recipe), *(f"{key}={value!r}" for key, value in overrides.items())])
    try:
        verdict = None
        if check and not resume:
            pictures = None if goal_pictures is None else _folder(goal_pictures, "goal_pictures")
            verdict = roles.check(completed, pictures)
        command = f"sightline.train({arguments})"
        folder, _ = roles.train(completed, path, name, resume, command, quiet=not progress, check=verdict)
    except Stopped as stop:
        raise KeyboardInterrupt(f"{stop}; {stop.saved}; go on with train(run_dir={str(path)!r}, resume=True)") from stop
    return Run(folder.path, trust=True)


def _plain_recipe(recipe: str | Path | Mapping[str, Any] | None) -> str | dict[str, Any] | None:
    """The recipe argument of `train` as `load_recipe` takes it."""
    if recipe is None:
        return None
    if isinstance(recipe, Mapping):
        return dict(recipe)
    if isinstance(recipe, str | Path):
        return str(recipe)
    kind = type(recipe).__name__
    if isinstance(recipe, type):  # perhaps an environment's
        kind = recipe.__name__
    raise BadInput(f"the recipe must be a name, a path or a mapping, not {kind}; an environment is given by env=…")


def _folder(path: Any, name: str) -> Path:
    """A folder that was given as a text or as a path."""
    if not isinstance(path, str | Path):
        raise BadInput(f"{name} must be the path of a folder, not {type(path).__name__}")
    return Path(os.path.expanduser(path))


@_process_unchanged()
def evaluate(
    policy: Any,
    env: str | Callable[[], Any],
    *,
    episodes: int = 100,
    seed: int = 0,
    reward: RewardModel | None = None,
    score_every: int = 1,
) -> dict[str, Any]:
    """Play a fixed panel of seeds with a policy.

    Args:
        policy: states [N, …] -> actions [N, …], or anything with SB3's `predict`.
        env: a task or environment by name, or a function that makes one; the function's name is part of the panel's, so
            give it one.
        episodes: of the panel.
        seed: of the panel; panels with equal hashes compare.
        reward: a reward model to score the episodes with as well.
        score_every: steps of an episode from one that is scored to the next, as a recipe's `evaluation.score_every`; 4
            in most runs.

    Returns:
        Success rate and return with 95 % intervals, and the mean reward; `panel` names the episodes.

    Raises:
        BadInput, RunFailed: in one line.
    """
    from sightline.control.resolving import env_maker
    from sightline.envs.making import EnvMaker
    from sightline.envs.observations import Observations, count
    from sightline.envs.tasks import Task, find_task
    from sightline.evaluation.episodes import play_panel, task_panel

    episodes = _whole("episodes", episodes, 1)
    seed = _whole("seed", seed, 0)
    score_every = _whole("score_every", score_every, 1)
    if reward is not None and not isinstance(reward, RewardModel):
        raise BadInput(f"the reward must be a RewardModel, not {type(reward).__name__}; make one, as ZeroShotReward(…)")
    if isinstance(policy, Run):
        raise BadInput("give the policy of the run, run.policy(), or say run.evaluate(…)")
    act = getattr(policy, "predict", policy)
    if not callable(act):
        kind = type(policy).__name__
        raise BadInput(f"the policy must be a function of states, or have a method predict, not {kind}")
    # Frames are rendered as the reward's encoder reads them.
    size = getattr(getattr(reward, "encoder", None), "image_size", None)
    frame_size: tuple[int, int] | None = None
    if size:
        frame_size = (size, size)
    frames = reward is not None and "frames" in reward.needs
    if isinstance(env, str):
        task = find_task(env)
        recipe = for_control(load_recipe(None, {"env": env}))
        make = env_maker(recipe, frame_size, render=frames)
    elif callable(env):
        name, function, options = _named_function(env)
        task = Task(name, name)
        make = EnvMaker(name, options, None, frame_size, frames, build=function)
    else:
        raise BadInput(f"the environment must be a name or a function that makes one, not {type(env).__name__}")

    def choose(states: Observations) -> np.ndarray:
        # SB3's `predict` also gives the state of recurrent policies.
        actions = act(states) if act is policy else act(states, deterministic=True)[0]
        actions = np.asarray(actions)
        if actions.shape[:1] != (count(states),):
            raise BadInput(f"the policy gave actions of shape {list(actions.shape)} for {count(states)} states")
        return actions

    panel = task_panel(task, make, "test", episodes, seed)
    episodes_played = play_panel(choose, make, task, panel, reward, score_every=score_every)
    assert episodes_played is not None, "nothing stops it"
    return episodes_played.summary()


@_process_unchanged()
def lab(
    task: str,
    rewards: Mapping[str, Mapping[str, Any] | RewardModel] | None = None,
    *,
    sentences: Sequence[str] = (),
    episodes: int | None = None,
    play: Sequence[str] | None = None,
    seed: int = 0,
    runs: Sequence[str | Path] = (),
    pictures: str | Path | None = None,
    goal_pictures: str | Path | None = None,
    other_pictures: str | Path | None = None,
    video: str | Path | None = None,
    labels: str | Path | None = None,
    dataset: str | Path | None = None,
    camera: str | None = None,
    states: str | Path | None = None,
    paraphrases: Sequence[str] = (),
    views: Mapping[str, Mapping[str, Any]] | None = None,
    true_reward: str | Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray] | None = None,
    out: str | Path | None = None,
    trust: bool = False,
    **overrides: Any,
) -> dict[str, Any]:
    """Judge rewards side by side on one set of episodes, before any is trained on; see `sightline lab`.

    >>> found = lab("cartpole", {"own": {}, "red": {"goal": "a red car"}, "mine": MyReward()})
    >>> found["rewards"]["red"]["auroc"]["value"]

    Args:
        task: a task, a recipe, or a Gymnasium id.
        rewards: name -> keys of the recipe that differ (`goal`, `baseline`, `reward.…`, `env_options.…`), or a reward
            model; None: the recipe's own.
        sentences: goals that each reward in words is tried with, and that are ranked.
        episodes: of each kind of play; None: ten, or none where there are files.
        play: `random`, `scripted` (by the environment's own script), `states` (its task's grid), `goal` (states that
            show the task's goal); None: all.
        seed: of all chance.
        runs: run folders, whose policies play too, and once more with half of their actions drawn at random.
        pictures: folder of pictures with a CSV file of the columns `file`, `success` or `truth`, `episode`, `step`.
        goal_pictures, other_pictures: folders of pictures that show the goal, and that do not.
        video: a file, whose ground truth is progress.
        labels: a label store, or a run that has one, whose judged pairs a reward should prefer alike.
        dataset: a data set of episodes: of `sightline collect`, LeRobot, Minari or vlmrm.
        camera: which of several cameras of the data set.
        states: a file of `numpy.save` with states in rows, which the environment is put into.
        paraphrases: other words for the goal, by which the rewards in words should hardly change.
        views: name -> env_options, such as `{"side": {"camera": "side"}}`, by which rewards should hardly change.
        true_reward: the ground truth of any transition, as a function, or where it is (`module:function`): from states
            [K, …], actions [K, …] and next states [K, …] to float[K]; for `epic_of_transitions`.
        out: folder that keeps `lab.json`, the page, and the embeddings for the next call.
        trust: whether code that the runs' recipes name may be imported.
        overrides: recipe keys of all rewards.

    Returns:
        The content of `lab.json`.

    Raises:
        BadInput, RunFailed: in one line.
    """
    from sightline.reward_lab.running import PLAY, LabData, run_lab

    models: dict[str, RewardModel] = {}
    differing: dict[str, list[str]] = {}
    for name, reward in (rewards or {}).items():
        if isinstance(reward, RewardModel):
            models[name] = reward
        elif isinstance(reward, Mapping):
            differing[name] = as_overrides(reward)
        else:
            raise BadInput(
                f"reward '{name}' must be a mapping of recipe keys, or a RewardModel, not {type(reward).__name__}"
            )
    paths = {
        "pictures": pictures,
        "goal_pictures": goal_pictures,
        "other_pictures": other_pictures,
        "video": video,
        "labels": labels,
        "dataset": dataset,
        "states": states,
    }
    data = LabData(
        None if episodes is None else _whole("episodes", episodes, 0),
        PLAY if play is None else tuple(play),
        _whole("seed", seed, 0),
        tuple(_folder(run, "runs") for run in runs),
        **{name: None if path is None else _folder(path, name) for name, path in paths.items()},
        camera=camera,
        trust=trust,
    )
    folder = None if out is None else _folder(out, "out")
    return run_lab(
        task,
        as_overrides(overrides),
        differing,
        _texts(sentences),
        data,
        models,
        folder,
        paraphrases=_texts(paraphrases),
        views={name: as_overrides(options) for name, options in (views or {}).items()},
        true_reward=true_reward,
    )


def _texts(texts: str | Sequence[str]) -> tuple[str, ...]:
    """Sentences; a text is one, where Python would take it for its letters."""
    return (texts,) if isinstance(texts, str) else tuple(texts)


P = ParamSpec("P")


def _called_as(kind: Callable[P, Collection]) -> Callable[[Callable[[Collection], Any]], Callable[P, dict[str, Any]]]:
    """A function of a description that is called with what describes it, and documented by it."""

    def of_description(function: Callable[[Collection], Any]) -> Callable[P, dict[str, Any]]:
        def call(*args: P.args, **kwargs: P.kwargs) -> dict[str, Any]:
            found: dict[str, Any] = function(kind(*args, **kwargs))
            return found

        functools.update_wrapper(call, function)
        parameters = inspect.signature(kind).parameters.values()
        call.__signature__ = inspect.Signature(list(parameters), return_annotation="dict[str, Any]")  # type: ignore[attr-defined]
        arguments = (inspect.getdoc(kind) or "").partition("Args:")[2].partition("Raises:")[0]
        own, _, rest = (inspect.getdoc(function) or "").partition("Returns:")
        call.__doc__ = f"{own}Args:{arguments}Returns:{rest}"
        del call.__wrapped__  # type: ignore[attr-defined]
        return call

    return of_description


@_called_as(Collection)
@_process_unchanged()
def collect(collection: Collection) -> dict[str, Any]:
    """Play episodes and write them as a data set, each as soon as it has ended; see `sightline collect`.

    >>> collect("cartpole", "data/expert", episodes=20, policy="scripted", rewards={"red": {"goal": "a red car"}})

    Returns:
        The document of `sightline collect --json`, which holds the numbers of episodes and steps, who played, the
        rewards' names, and how many episodes are a success.

    Raises:
        BadInput, RunFailed: in one line.
        KeyboardInterrupt: a signal ended it; the episodes that were whole are in the folder.
    """
    from sightline.reward_lab.collecting import collect as collect_episodes

    collected = collect_episodes(collection)
    if collected.signal_number is not None:
        raise KeyboardInterrupt(f"{collected.episodes} episodes are in '{collected.path}'")
    return collected.document()


def _named_function(env: Callable[[], Any]) -> tuple[str, Callable[..., Any], dict[str, Any]]:
    """Name of a function that makes an environment, as `module:function`; the function, and its keyword arguments.

    Raises:
        BadInput: it has no name of its own, by which the panel could go.
    """
    partial = env if isinstance(env, functools.partial) else functools.partial(env)
    function = partial.func
    name = getattr(function, "__qualname__", "<lambda>")
    if "<lambda>" in name or partial.args:
        raise BadInput(
            "panels go by the environment's name: give a name, or a function that has one (no lambda, and in a "
            "partial keyword arguments only)"
        )
    return f"{function.__module__}:{name}", function, dict(partial.keywords)


def _whole(name: str, value: Any, least: int) -> int:
    """A whole number of Python's, or of NumPy's."""
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if isinstance(value, bool):  # which Python counts as 0 or 1
        number = -1
    if not least <= number <= MAX_SEED:
        raise BadInput(f"{name}={value!r}: say a whole number, at least {least}")
    return number


class Run:
    """A run folder: what a recipe has produced.

    Args:
        path: the folder.
        trust: whether code that the folder's recipe names may be imported; a stranger's folder is data otherwise.

    Raises:
        BadInput: there is no run.
    """

    def __init__(self, path: str | Path, *, trust: bool = False) -> None:
        self._folder = open_run(_folder(path, "path"))
        self._trust = trust

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @property
    def path(self) -> Path:
        """The run folder."""
        return self._folder.path

    @property
    def recipe(self) -> Recipe:
        """The resolved recipe."""
        if self._trust:
            return self._folder.trusted_recipe(True)
        return self._folder.recipe()

    @property
    def result(self) -> dict[str, Any]:
        """The chosen checkpoint and the untrained policy on the test panel.

        Raises:
            BadInput: the run has not ended yet.
        """
        result = self._folder.read_json("result.json")
        if result is None:
            raise BadInput(f"'{self.path}' has no result yet; let it train to its end")
        return result

    def metrics(self) -> list[dict[str, Any]]:
        """The records of `metrics.jsonl`: `step`, and values by names such as `evaluation/reward`."""
        return read_metrics(self.path / "metrics.jsonl")

    @_process_unchanged()
    def policy(self) -> Any:
        """The chosen policy: a learner of SB3 with `predict`, or the vision-language model of an agent.

        Raises:
            BadInput: nothing was chosen yet, or the recipe names code of its own.
        """
        if isinstance(self.recipe, ControlRecipe):
            from sightline.control.state import chosen_policy

            return chosen_policy(self._folder, self._trust)
        from sightline.agents.run_evaluation import load_chosen

        return load_chosen(self._folder, self._trust)

    @_process_unchanged()
    def reward(self) -> RewardModel:
        """The reward model that the chosen checkpoint was chosen by.

        Raises:
            BadInput: nothing was chosen yet, the run is an agent's, or the recipe names code of its own.
        """
        from sightline.control.run_evaluation import chosen_setup

        setup, _, _ = chosen_setup(self._folder, self._trust)
        return setup.reward_model

    @_process_unchanged()
    def evaluate(self, episodes: int = 100, seed: int = 0) -> dict[str, Any]:
        """Play a test panel with what the run has chosen; see `sightline evaluate`."""
        episodes = _whole("episodes", episodes, 1)
        seed = _whole("seed", seed, 0)
        return roles.evaluate(self._folder, episodes, seed, self._trust)

    @_process_unchanged()
    def relabel(
        self,
        goal: str | Sequence[str],
        baseline: str | Sequence[str] = (),
        *,
        alpha: float | None = None,
        train: bool = False,
        run_dir: str | Path | None = None,
        progress: bool = True,
        **overrides: Any,
    ) -> np.ndarray | Run:
        """Give every stored transition the reward of other words, without one new frame.

        The run must have kept its embeddings (`reward.keep_embeddings=true`).

        Args:
            goal, baseline, alpha: see `ZeroShotReward`; the encoder is the run's.
            train: learn a policy from the stored transitions under the new rewards, in a new run that collects nothing;
                only its evaluations step the environment.
            run_dir: folder of that run.
            progress: show a progress bar.
            overrides: further recipe keys of that run, such as `steps`.

        Returns:
            float32[T, N]: the new rewards in order of time, of T vector steps of N environments; with `train` the run.

        Raises:
            BadInput: no embeddings were kept, the words make no reward, or the recipe names code of its own.
        """
        from sightline.control.relabelling import relabelled, relabelled_recipe

        if not train:
            names = list(overrides)
            if run_dir is not None:
                names.insert(0, "run_dir")
            if names:
                listed = ", ".join(names)
                raise BadInput(f"{listed}: these are for the run that learns from the new rewards; add train=True")
            return relabelled(self._folder, goal, baseline, alpha, self._trust)
        recipe = relabelled_recipe(self._folder, goal, baseline, alpha, self._trust)
        return globals()["train"](recipe, run_dir=run_dir, progress=progress, **overrides)  # type: ignore[no-any-return]

    @_process_unchanged()
    def stored_rewards(self) -> np.ndarray:
        """float32[T, N]: the rewards of the stored transitions in order of time, as they are in the run.

        Raises:
            BadInput: the run has no checkpoint, is an agent's, or its recipe names code of its own.
        """
        from sightline.control.state import buffer_of, latest_learner

        buffer = buffer_of(latest_learner(self._folder, self._trust))
        return np.asarray(buffer.rewards[buffer.filled_rows()])

    def report(self) -> Path:
        """Write the run's report.html from its files; gives its path."""
        with RunFolder(self.path).writing():
            return roles.write_report(self._folder)
