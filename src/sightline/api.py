"""Python interface to whole runs: train, load, evaluate, relabel and report them.

What a command does, a function here does; both call `sightline.roles`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sightline import roles
from sightline.config.loading import for_control, load_recipe, recipe_name
from sightline.config.recipe import ControlRecipe, Recipe
from sightline.errors import BadInput
from sightline.rewards.base import RewardModel
from sightline.runs.folder import RunFolder, default_run_path, open_run
from sightline.runs.metrics import read_metrics


def train(
    recipe: str | Path | Mapping[str, Any],
    *,
    run_dir: str | Path | None = None,
    resume: bool = False,
    progress: bool = True,
    **overrides: Any,
) -> Run:
    """Carry out a recipe.

    >>> run = train("cartpole", steps=20_000, seed=1)
    >>> run = train({"env": "Pendulum-v1", "goal": "a rod standing upright"}, **{"reward.encoder": "bundled"})

    Args:
        recipe: a bundled name, a path, YAML text, or the recipe as a mapping.
        run_dir: folder of the run; default: `runs/<recipe>-<time>`.
        resume: go on with the run in `run_dir`; the recipe must be the same, but for `steps`, which may grow.
        progress: show a progress bar.
        overrides: recipe keys; nested ones with dots in their names, `**{"reward.alpha": 0.3}`, or as mappings.

    Raises:
        BadInput, RunFailed: in one line.
    """
    wanted = load_recipe(dict(recipe) if isinstance(recipe, Mapping) else str(recipe), overrides)
    name = recipe_name(None if isinstance(recipe, Mapping) else str(recipe), wanted)
    if resume and run_dir is None:
        raise BadInput("say which run to resume: run_dir=…")
    said = ", ".join([repr(recipe), *(f"{key}={value!r}" for key, value in overrides.items())])
    command = f"sightline.train({said})"
    path = Path(run_dir) if run_dir is not None else default_run_path(name)
    folder, _ = roles.train(roles.complete(wanted), path, name, resume, command, quiet=not progress)
    return Run(folder.path)


def evaluate(
    policy: Any, env: str | Callable[[], Any], *, episodes: int = 100, seed: int = 0, reward: RewardModel | None = None
) -> dict[str, Any]:
    """Play a fixed panel of seeds with a policy.

    Args:
        policy: states [N, …] -> actions [N, …], or anything with SB3's `predict`.
        env: a task or environment by name, or a function that makes one.
        episodes: of the panel.
        seed: of the panel; panels with equal hashes compare.
        reward: a reward model to score the episodes with as well.

    Returns:
        Success rate, return and reward with 95 % intervals; `panel` names the episodes.

    Raises:
        BadInput, RunFailed: in one line.
    """
    from sightline.control.resolving import env_maker
    from sightline.envs.tasks import find_task
    from sightline.evaluation.episodes import play_panel
    from sightline.evaluation.seeds import make_panel, played

    name = env if isinstance(env, str) else getattr(env, "__qualname__", type(env).__qualname__)
    task = find_task(name)
    size = getattr(getattr(reward, "encoder", None), "image_size", None)
    frames = reward is not None and "frames" in reward.needs
    make: Any = env
    if isinstance(env, str):
        recipe = for_control(load_recipe(None, {"env": env}))
        make = env_maker(recipe, (size, size) if size else None, render=frames)

    def act(states: np.ndarray) -> np.ndarray:
        if not hasattr(policy, "predict"):
            return np.asarray(policy(states))
        actions, _ = policy.predict(states, deterministic=True)
        return np.asarray(actions)

    panel = make_panel("test", played(name, env_options=task.env_options, episode_steps=None), episodes, seed)
    done = play_panel(act, make, task, panel, reward if reward is not None and reward.needs else None)
    assert done is not None, "nobody stops it"
    return done.summary()


class Run:
    """A run folder: what a recipe has produced.

    Args:
        path: the folder.
        trust: whether code that the folder's recipe names may be imported; a stranger's folder is data otherwise.

    Raises:
        BadInput: there is no run.
    """

    def __init__(self, path: str | Path, *, trust: bool = False) -> None:
        self._folder = open_run(Path(path))
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

    def policy(self) -> Any:
        """The chosen policy: a learner of SB3 with `predict`, or the vision-language model of an agent.

        Raises:
            BadInput: nothing was chosen yet, or the recipe names code of its own.
        """
        if isinstance(self.recipe, ControlRecipe):
            from sightline.control.checkpoints import chosen_policy

            return chosen_policy(self._folder, self._trust)
        from sightline.agents.run_evaluation import load_chosen

        return load_chosen(self._folder, self._trust)

    def reward(self) -> RewardModel:
        """The reward model that the chosen checkpoint was chosen by.

        Raises:
            BadInput: nothing was chosen yet, the run is an agent's, or the recipe names code of its own.
        """
        from sightline.control.run_evaluation import chosen_setup

        return chosen_setup(self._folder, self._trust)[0].reward_model

    def evaluate(self, episodes: int = 100, seed: int = 0) -> dict[str, Any]:
        """Play a test panel with what the run has chosen; see `sightline evaluate`."""
        return roles.evaluate(self._folder, episodes, seed, self._trust)

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
            return relabelled(self._folder, goal, baseline, alpha, self._trust)
        recipe = relabelled_recipe(self._folder, goal, baseline, alpha)
        return globals()["train"](recipe, run_dir=run_dir, progress=progress, **overrides)  # type: ignore[no-any-return]

    def stored_rewards(self) -> np.ndarray:
        """float32[T, N]: the rewards of the stored transitions in order of time, as they are in the run.

        Raises:
            BadInput: the run has no checkpoint, is an agent's, or its recipe names code of its own.
        """
        from sightline.control.checkpoints import buffer_of, latest_learner

        buffer = buffer_of(latest_learner(self._folder, self._trust))
        return np.asarray(buffer.rewards[buffer.filled_rows()])

    def report(self) -> Path:
        """Write the run's report.html from its files; gives its path."""
        with RunFolder(self.path).writing():
            return roles.write_report(self._folder)
