"""Dispatch of commands by the recipe's role: a policy on states, or an agent."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline import registry
from sightline.config.blocks import checked_block
from sightline.config.loading import for_control, leaves, load_game, load_recipe, with_values
from sightline.config.recipe import AgentRecipe, ControlRecipe, Recipe
from sightline.envs.naming import UnknownEnvironment
from sightline.envs.tasks import find_task
from sightline.errors import BadInput, RunFailed
from sightline.evaluation.episode_stats import describe as describe_episodes
from sightline.models.chat.config import ChatModelConfig
from sightline.runs.folder import (
    RunFolder,
    check_same_recipe,
    filled_keys,
    latest_runs,
    owned_run,
    place_keys,
    recipe_changes,
    stated_leaves,
)
from sightline.runs.lease import lease_id
from sightline.runs.progress import ProgressBar
from sightline.runs.state import restoring
from sightline.runs.stopping import GivenUp, Stopped

if TYPE_CHECKING:
    from sightline.agents.engines.engine import Engine
    from sightline.cluster.encoders import Cluster
    from sightline.models.vlm.model import VLM


def complete(recipe: Recipe) -> Recipe:
    """Fill in what the recipe leaves open."""
    if isinstance(recipe, AgentRecipe):
        from sightline.agents.resolving import resolve as complete_agent

        return complete_agent(recipe)
    from sightline.control.resolving import resolve as complete_control

    return complete_control(recipe)


def learns_in_processes(recipe: Recipe) -> bool:
    """Whether several processes can learn a run together: an agent's, unless another program samples its replies."""
    return isinstance(recipe, AgentRecipe) and recipe.policy.sampler == "transformers"


def run_to_resume(name: str, recipe: Recipe) -> RunFolder:
    """The newest run of a name under `runs/` with this recipe, but for its steps; else the newest of the name.

    Raises:
        BadInput: there is none of the name.
    """
    runs = latest_runs(name)
    if not recipe.goal:
        recipe = recipe.model_copy(update={"goal": find_task(recipe.env).goal})
    for run in runs:
        with contextlib.suppress(BadInput):  # damaged, or of a plug-in that is not installed
            # A key that the run lacks is of a learner or reward that was left open, and chosen when the run began.
            before = run.recipe()
            own_keys = leaves(before)
            keys = [key for key in filled_keys(recipe) if key in own_keys and key != "steps"]
            if not recipe_changes(before, recipe, keys):
                return run
    return runs[0]


def resumed_recipe(
    run: RunFolder, recipe: Recipe | None, stated_keys: Sequence[str], trust: bool, own: bool = False
) -> Recipe:
    """The recipe with which a run goes on: its own, with the user's steps if these are more.

    Args:
        recipe: the recipe that the user names; None for the run's.
        stated_keys: its keys that the user states; they must be those of the run, but for `steps`, which may grow, and
            for keys that only say where something is, which may be others.
        trust: whether code that the run's recipe names may be imported.
        own: whether `recipe` was read from the run folder itself, so that it says nothing in the user's name.

    Raises:
        BadInput: naming the first key that differs, or code of its own.
    """
    if recipe is None:
        return run.trusted_recipe(trust)
    more_steps = check_same_recipe(run, recipe, ["env", *stated_keys])
    new_places = [key for key in stated_leaves(recipe, stated_keys) if key in place_keys(recipe)]
    agreed: list[str] = []
    if not own:
        # Code that the user's own recipe names, too, is the user's.
        own_values = leaves(recipe)
        agreed = [key for key, value in leaves(run.recipe()).items() if key in own_values and own_values[key] == value]
    resumed = run.trusted_recipe(trust, [*stated_keys, *new_places, *agreed])
    if more_steps is not None:
        resumed = resumed.model_copy(update={"steps": more_steps})
    return with_values(resumed, {key: leaves(recipe)[key] for key in new_places})


def resumed_with_keys(
    run: RunFolder, overrides: Sequence[str] | Mapping[str, Any], stated_keys: Sequence[str], trust: bool
) -> Recipe:
    """The recipe with which a run goes on, where the user names no recipe: overrides are keys of the run's own.

    Args:
        overrides: see `load_recipe`.
        stated_keys: their keys.

    Raises:
        BadInput: as `resumed_recipe`; or a key is unknown.
    """
    run.trusted_recipe(trust, stated_keys)  # before anything that it names is imported
    recipe = load_recipe(run.document(), overrides, own=False)
    return resumed_recipe(run, recipe, stated_keys, trust, own=True)


def describe(recipe: Recipe) -> list[str]:
    """What a run comes to, in lines: what a policy on states reads and does, where it is not what its environment
    gives; estimated memory; disk space; and what evaluation takes."""
    if isinstance(recipe, AgentRecipe):
        from sightline.agents.sizes import space_of

        return space_of(recipe).splitlines()
    from sightline.control.resolving import describe as describe_control

    return describe_control(recipe)


def check(recipe: Recipe, goal_pictures: Path | None = None) -> dict[str, Any]:
    """Check a completed recipe's reward before training; see `sightline.reward_lab.gate.check_reward`.

    Raises:
        BadInput: it is refused, with the reason; or the recipe is for an agent.
    """
    from sightline.reward_lab.gate import REFUSED, check_reward

    verdict = check_reward(for_control(recipe), goal_pictures, warn=_print_warning)
    if verdict["verdict"] == REFUSED:
        # Of a run that begins, its training says them.
        for line in verdict["warnings"]:
            _print_warning(line)
        raise BadInput(f"the reward fails the check: {verdict['reason']}; to train all the same leave out --check")
    return verdict


def train(
    recipe: Recipe,
    path: Path,
    name: str,
    resume: bool,
    command: str | None = None,
    quiet: bool = False,
    check: dict[str, Any] | None = None,
    cluster: Cluster | None = None,
) -> tuple[RunFolder, dict[str, Any]]:
    """Carry out a recipe, with a progress bar and a report at the end.

    The folder is claimed before anything is loaded, and released at the end.

    Args:
        recipe: complete.
        path: the folder of the run.
        name: what the bar says.
        resume: go on with the run that is in the folder.
        command: what is recorded as the command; None for the command line.
        quiet: show no progress.
        check: what `check` has found, which the run keeps.
        cluster: where frames are embedded, of a policy on states; None for this machine. A run is the same either way.

    Raises:
        BadInput: torchrun has started several processes, and the recipe trains a policy on states.
    """
    from sightline.session import check_resumable

    if isinstance(recipe, ControlRecipe):
        _check_one_process(recipe)
    if resume:
        check_resumable(RunFolder(path))
    with _stopping_resumably(path), _naming_run(RunFolder(path) if resume else None):
        if isinstance(recipe, ControlRecipe):
            return _train_control(recipe, path, name, resume, command, quiet, check, cluster)
        if cluster is not None:
            raise BadInput(
                "--cluster embeds frames for policies on states; an agent is sampled by policy.sampler=server"
            )
        return _train_agent(recipe, path, name, resume, command, quiet)


def _check_one_process(recipe: ControlRecipe) -> None:
    """Refuse several processes of torchrun, which would all train the same policy, each for itself."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if "RANK" in os.environ and processes > 1:
        raise BadInput(
            f"a policy on states (role={recipe.role}) learns in one process, and torchrun has started {processes}; "
            "start without torchrun, or train several seeds at a time: sightline sweep RECIPE "
            f"seed=0..{processes - 1} --processes {processes} --run-dir DIR"
        )


@contextlib.contextmanager
def _naming_run(run: RunFolder | None) -> Iterator[None]:
    """Say of which run an environment is that is not known here."""
    try:
        yield
    except UnknownEnvironment as error:
        if run is None:
            raise
        env = str(run.document().get("env"))
        package = run.origin("env", env) or "its package"
        raise BadInput(
            f"the run '{run.path}' is of the environment '{env}', which is not known here; install {package}, or "
            "register it first"
        ) from error


@contextlib.contextmanager
def _stopping_resumably(path: Path) -> Iterator[None]:
    """Say what is saved where a run is stopped outside of its session, such as while its models are loaded."""
    from sightline.session import last_saved_step

    try:
        yield
    except GivenUp as stop:
        run = RunFolder(path)
        if not run.recipe_file.is_file():  # it has not begun, and leaves nothing
            raise
        raise Stopped(stop.signal_number, last_saved_step(run)) from None


def _train_control(
    recipe: ControlRecipe,
    path: Path,
    name: str,
    resume: bool,
    command: str | None,
    quiet: bool,
    check: dict[str, Any] | None,
    cluster: Cluster | None,
) -> tuple[RunFolder, dict[str, Any]]:
    from sightline.control.control_setup import build_setup
    from sightline.control.precision import with_dtypes
    from sightline.control.training import train as train_control
    from sightline.models.encoder_files import model_card
    from sightline.reports.run_page import write_report

    if not resume:  # a run that goes on computes as it began
        recipe = with_dtypes(recipe)
    with owned_run(path, recipe, resume, command) as begin, contextlib.ExitStack() as stack:
        setup = build_setup(recipe, folder=path)
        where = None
        if cluster is not None:
            from sightline.cluster.encoders import embedding_on

            where = stack.enter_context(embedding_on(setup.reward_model, cluster))
        folder = begin()
        if check is not None:
            folder.write_json("check.json", check)
        encoder = setup.reward.encoder
        if encoder is not None and (card := model_card(encoder.name)):
            folder.write_text("model_card.md", card)
        with ProgressBar(recipe.steps, name, quiet) as progress:
            if where is not None:
                progress.say(where)
            result = train_control(setup, folder, progress, resume)
        with folder.writing():
            write_report(folder.path)
    return folder, result


def _train_agent(
    recipe: AgentRecipe, path: Path, name: str, resume: bool, command: str | None, quiet: bool
) -> tuple[RunFolder, dict[str, Any]]:
    from sightline.agents.agent_setup import build
    from sightline.agents.training import train as train_agent

    # Of several processes, which torchrun starts, the first owns the folder; the others write nothing.
    leads = os.environ.get("RANK", "0") == "0"
    with owned_run(path, recipe, resume, command) if leads else contextlib.nullcontext() as begin:
        setup = build(recipe)
        # The folder's name holds the time at which each process has begun: the first one's counts.
        path = Path(setup.engine.gather(str(path))[0])
        check_shared(setup.engine, path)
        folder = RunFolder(path) if begin is None else begin()
        setup.engine.largest(0)  # the others must not read before the first has begun
        with ProgressBar(recipe.steps, name, quiet=quiet or not leads) as progress:
            result = train_agent(setup, folder, progress, resume)
        if leads:
            with folder.writing():
                write_report(folder)
    return folder, result


def check_shared(engine: Engine, path: Path) -> None:
    """Refuse a run folder that a machine of the run does not share: it would be missed hours later.

    Args:
        engine: all processes of the run, of which the first holds the folder's lease.

    Raises:
        BadInput: in all processes.
    """
    # The lease is in the folder wherever that is shared.
    folders = engine.gather((platform.node(), lease_id(path)))
    first_host, first_lease = folders[0]
    for rank, (host, lease) in enumerate(folders):
        if lease != first_lease:
            raise BadInput(
                f"process {rank} on {host} does not see the run folder '{path}' of process 0 on {first_host}; all "
                "machines of a run share one folder, at the same place"
            )


def evaluate(
    run: RunFolder,
    episodes: int,
    seed: int,
    trust: bool,
    overrides: Sequence[str] = (),
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Play a panel with what a run has chosen; see `sightline.control.run_evaluation.evaluate_run`.

    Args:
        say: receives lines about progress; of agents, whose panels can take hours.
    """
    with _naming_run(run):
        return _evaluate(run, episodes, seed, trust, overrides, say)


def _evaluate(
    run: RunFolder, episodes: int, seed: int, trust: bool, overrides: Sequence[str], say: Callable[[str], None]
) -> dict[str, Any]:
    if isinstance(run.trusted_recipe(trust, asks=False), AgentRecipe):
        from sightline.agents.run_evaluation import evaluate_run as evaluate_agent

        if overrides:
            raise BadInput(f"an agent's run is evaluated as its recipe says; leave out {' '.join(overrides)}")
        return evaluate_agent(run, episodes, seed, trust, say)
    from sightline.control.run_evaluation import evaluate_run as evaluate_control

    return evaluate_control(run, episodes, seed, trust, overrides)


def evaluate_model(
    recipe: str,
    overrides: Sequence[str],
    model: str | None,
    provider: str | None,
    url: str | None,
    episodes: int,
    seed: int,
    insecure_http: bool = False,
    loaded: dict[str, VLM] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> tuple[AgentRecipe, dict[str, Any]]:
    """Play a game's panel with any model: one that is loaded here, or one that is hosted by a provider or at an
    address.

    Args:
        loaded: see `sightline.agents.run_evaluation.evaluate_model`.
        say: receives lines about progress.
    """
    from sightline.agents.resolving import with_form_of_model
    from sightline.agents.run_evaluation import evaluate_chat
    from sightline.agents.run_evaluation import evaluate_model as evaluate_loaded

    agent = load_game(recipe, overrides)
    if model:
        # Nothing learns, and this model may lack the parts that the recipe's would not have learned with.
        policy = agent.policy.model_copy(update={"model": model, "freeze": ()})
        agent = agent.model_copy(update={"policy": policy})
    if url is None:  # hosted models have no card on this machine
        agent = with_form_of_model(agent)
    if provider is None and url is None:
        return agent, evaluate_loaded(agent, episodes, seed, loaded, say)
    config = chat_config(model, provider, url, agent.replies.max_tokens, insecure_http)
    return agent, evaluate_chat(agent, config, episodes, seed, _print_warning, say)


def evaluate_games(
    games: str,
    overrides: Sequence[str],
    model: str | None,
    provider: str | None,
    url: str | None,
    episodes: int,
    seed: int,
    insecure_http: bool,
    say: Callable[[str], None],
) -> dict[str, dict[str, Any]]:
    """Play the panels of several games with one model, as `evaluate_model` plays each.

    Args:
        games: their names or recipes with commas between them; `all`: those of all games that are installed.
        say: receives lines about progress, and one when a game is done.

    Returns:
        Game -> its numbers; or `not_played`, why there are none, such as a simulator that is not here.

    Raises:
        BadInput, RunFailed: none of them could be played; as the first says.
    """
    names = [name.strip() for name in games.split(",") if name.strip()]
    if names == ["all"]:
        names = list(filter(_is_game, sorted(registry.names("env"))))
    if not names:
        raise BadInput("--games is empty; name some with commas between them, or say all")
    numbers: dict[str, dict[str, Any]] = {}
    failures: list[BadInput | RunFailed] = []
    loaded: dict[str, VLM] = {}
    for name in names:
        try:
            _, numbers[name] = evaluate_model(
                name,
                overrides,
                model,
                provider,
                url,
                episodes,
                seed,
                insecure_http,
                loaded,
                partial(_say_of, say, name),
            )
            say(f"{name}: {describe_episodes(numbers[name])}")
        except (BadInput, RunFailed) as error:
            failures.append(error)
            numbers[name] = {"not_played": str(error)}
            say(f"{name}: not played: {error}")
    if len(failures) == len(names):
        raise failures[0]
    return numbers


def _say_of(say: Callable[[str], None], game: str, line: str) -> None:
    say(f"{game}: {line}")


def _is_game(name: str) -> bool:
    """Whether a task is a game; a task whose package cannot be imported may be one, and says so when it is played."""
    try:
        return find_task(name).is_game
    except BadInput:
        return True


def _print_warning(line: str) -> None:
    print(f"warning: {line}", file=sys.stderr)


def chat_config(
    model: str | None, provider: str | None, url: str | None, max_tokens: int, insecure_http: bool = False
) -> ChatModelConfig:
    """Settings of a hosted model."""
    if model is None:
        raise BadInput("say which model: --model NAME")
    settings: dict[str, Any] = {"model": model, "url": url, "insecure_http": insecure_http}
    # Hosted models may think before they reply, and think in tokens.
    settings["max_tokens"] = max(max_tokens, 2048)
    if provider is not None:
        settings["provider"] = provider
    return checked_block(ChatModelConfig, settings)


def write_report(run: RunFolder, target: Path | None = None) -> Path:
    """Write a run's report again.

    Args:
        target: where the page goes; then nothing is written into the folder. Default: the folder's `report.html`.

    Raises:
        Damaged: its files are readable, and do not hold what Sightline writes there.
    """
    with restoring(run.path):
        return _write_report(run, target)


def _write_report(run: RunFolder, target: Path | None) -> Path:
    from sightline.reports.run_page import write_report
    from sightline.reports.trajectories_page import write_trajectories

    # Not `recipe()`: a report needs no plug-in that the run had.
    if target is None and run.document().get("role") == "agent":
        write_trajectories(run.path)
    return write_report(run.path, target)
