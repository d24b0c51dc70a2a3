"""The commands on runs and models. Each reads its arguments, calls one function, and prints the result."""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer

from sightline.cli.collect import collect
from sightline.cli.demos import demos
from sightline.cli.exit_codes import errors_in_one_line, warnings_in_one_line
from sightline.cli.games import check_env
from sightline.cli.lab import lab
from sightline.cli.label import label
from sightline.cli.output import AsJson, Trust, check_target, in_home, print_json, print_rows, write_target
from sightline.cli.people import people_in_words, people_of_run, read_people
from sightline.cli.serve_reward import serve_reward
from sightline.errors import BadInput, RunFailed
from sightline.requirements import check_versions, keep_llvms_apart
from sightline.runs.stopping import GivenUp, Interruption, exit_now
from sightline.runs.streams import failure_of_stdout

if TYPE_CHECKING:
    from sightline.cluster.encoders import Cluster
    from sightline.config.recipe import Recipe
    from sightline.jobs.manifests import Work
    from sightline.runs.folder import RunFolder
    from sightline.sweep import CellStatus, Plan

OnCluster = Annotated[
    str | None,
    typer.Option("--cluster", metavar="ADDRESS", help="Use a Ray cluster: auto, HOST:PORT or ray://HOST:PORT."),
]
app = typer.Typer(
    help="Reinforcement learning guided by vision-language models: say what you want to see.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


WriteJob = Annotated[
    tuple[str, Path] | None,
    typer.Option(
        metavar="k8s|slurm|sky|ray DIR", help="Write a job for a scheduler into DIR instead, and say how to submit it."
    ),
]
JobKeys = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUE", help="With --write-job: image, data, cores, memory, gpus, parallel, grace, …"),
]
GRACE_SECONDS = 0.5
"""Time that threads have to end after the command."""


def _print_version(is_set: bool) -> None:
    if is_set:
        from sightline import __version__

        typer.echo(f"sightline {__version__}")
        raise typer.Exit


app.add_typer(label, name="label")
app.command("check-env")(check_env)
app.command()(demos)
app.command()(collect)
app.command()(lab)
app.command("serve-reward")(serve_reward)


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback when something fails.")] = False,
) -> None:
    """Options of all commands."""
    if debug:
        os.environ["SIGHTLINE_DEBUG"] = "1"
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
    elif context.invoked_subcommand != "doctor":  # which looks at all of them
        check_versions()


@app.command()
def train(
    recipe: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RECIPE] [key.sub=value]...",
            help="A bundled name, a YAML file, - for stdin, or YAML itself; then overrides.",
        ),
    ] = None,
    run_dir: Annotated[
        Path | None, typer.Option(help="Folder of the run; default: runs/<recipe>-<time>.", callback=in_home)
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run; steps=… makes it longer.")] = False,
    resume_or_start: Annotated[
        bool, typer.Option("--resume-or-start", help="Go on with the run in --run-dir, or begin it: for schedulers.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the resolved recipe and stop.")] = False,
    check: Annotated[
        bool,
        typer.Option("--check", help="Judge the reward first, in a minute or two; one that is useless is refused."),
    ] = False,
    goal_pictures: Annotated[
        Path | None, typer.Option(help="With --check: a folder of pictures of the goal.", callback=in_home)
    ] = None,
    write_job: WriteJob = None,
    job: JobKeys = None,
    cluster: OnCluster = None,
    cluster_workers: Annotated[
        int | None, typer.Option(min=1, help="With --cluster: copies of the encoder; default: one on each node.")
    ] = None,
    cluster_gpus: Annotated[
        float, typer.Option(min=0, help="With --cluster: GPUs of each copy, which may be a fraction.")
    ] = 0.0,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Train a policy from words: sightline train cartpole, or env=Pendulum-v1 goal="a rod standing upright"."""
    from sightline import roles
    from sightline.config.yaml import write_yaml
    from sightline.runs.folder import RunFolder, default_run_path

    arguments = recipe or []
    if resume_or_start:
        if run_dir is None:
            raise BadInput("--resume-or-start: say which folder, --run-dir DIR; it is the same in every attempt")
        resume = resume or RunFolder(run_dir).recipe_file.is_file()
    if not dry_run:
        keep_llvms_apart()  # training will use torch, and the environment is drawn before
    working_folder = Path.cwd()  # some simulators change it while they are built
    if resume:
        run, name, completed = _run_to_resume(arguments, run_dir, trust)
        path = run.path
    else:
        name, incomplete = _recipe(arguments)
        path = run_dir or default_run_path(name)
        completed = roles.complete(incomplete)

    if write_job is not None:
        if run_dir is None:
            raise BadInput("--write-job: say which folder the job trains in, --run-dir DIR")
        from sightline.jobs.manifests import Work

        work = Work(*_split(arguments), run_dir, None, completed.threads, roles.learns_in_processes(completed))
        _write_job(write_job, job, work, as_json)
        return
    if job:
        raise BadInput("--job is for --write-job; leave it out, or add that")
    if goal_pictures is not None and not check:
        raise BadInput("--goal-pictures are looked at by --check; add it")
    verdict = None
    if check and not resume:  # a run that goes on was checked as it began
        verdict = roles.check(completed, goal_pictures)
        typer.echo(f"check       {verdict['verdict']}: {verdict['reason']}", err=True)
    if dry_run:
        document = completed.model_dump(mode="json")
        if as_json:
            print_json(document)
        else:
            typer.echo(write_yaml(document, ascii_only=True), nl=False)
        for line in roles.describe(completed):
            typer.echo(line, err=True)
        return

    elsewhere = _cluster(cluster, cluster_workers, cluster_gpus)
    _, result = roles.train(completed, working_folder / path, name, resume, check=verdict, cluster=elsewhere)
    if _another_process_prints():
        return
    if as_json:
        print_json(result | {"run": str(path)})
        return
    from sightline.evaluation.episode_stats import describe
    from sightline.reports.costs import reward_costs
    from sightline.reports.pages import read_records

    for name, numbers in (("untrained", result["untrained"]), ("trained", result)):
        typer.echo(f"{name:<11} {describe(numbers)} ({numbers['episodes']} episodes of the test panel)")
    for name in ("blank", "shuffled"):
        if result.get(name):
            typer.echo(f"  {_control_label(name, result):<11} {describe(result[name])}")
    if costs := reward_costs(read_records(path)):
        typer.echo(f"rewards     {costs}")
    typer.echo(f"report      {RunFolder(path).report_file}")


def _write_job(where: tuple[str, Path], settings: list[str] | None, work: Work, as_json: bool) -> None:
    """Write what a scheduler starts, and say how it is handed over."""
    from sightline.jobs.manifests import write_job

    scheduler, folder = where
    file, submission = write_job(scheduler, folder.expanduser(), work, settings or [])
    if as_json:
        print_json({"job": str(file), "submit": submission})
    else:
        typer.echo(submission)


def _cluster(address: str | None, workers: int | None, gpus: float) -> Cluster | None:
    """Where frames are embedded; None for here."""
    if address is None:
        if workers is not None or gpus:
            raise BadInput("--cluster-workers and --cluster-gpus are of --cluster ADDRESS; say which cluster")
        return None
    from sightline.cluster.encoders import Cluster

    return Cluster(address, workers, gpus)


def _another_process_prints() -> bool:
    """True in all processes of torchrun but the first."""
    return os.environ.get("RANK", "0") != "0"


def _recipe(arguments: list[str], own: bool = True) -> tuple[str, Recipe]:
    """Split `[RECIPE] key=value…`; gives the run's name and its recipe, which is the user's own or a run folder's."""
    from sightline.config.loading import is_stream, is_yaml_text, load_recipe, recipe_name

    source, overrides = _split(arguments)
    recipe = load_recipe(source, overrides, own)
    # Only the name of a file or of a bundled recipe can name the run.
    is_text = source is None or source == "-" or is_yaml_text(source) or is_stream(source)
    return recipe_name(None if is_text else source, recipe), recipe


def _split(arguments: list[str]) -> tuple[str | None, list[str]]:
    """Split `[RECIPE] key=value…` into the recipe, None if there is none, and its overrides."""
    from sightline.config.loading import is_yaml_text

    if not arguments:
        raise BadInput("say what to train: a recipe (see 'sightline recipes') or env=… goal=…")
    first, *rest = arguments
    # A Path would raise if this is a long sentence.
    is_recipe = first == "-" or is_yaml_text(first) or "=" not in first or os.path.isfile(first)
    if is_recipe:
        return first, rest
    return None, arguments


def _run_to_resume(arguments: list[str], path: Path | None, trust: bool) -> tuple[RunFolder, str, Recipe]:
    """Find the run to resume: the one in `--run-dir`, or the newest one of the recipe.

    Returns:
        Its folder, its name, and its recipe with the keys of the command line, which must agree with the run's; only
        `steps` may grow.
    """
    from sightline import roles
    from sightline.runs.folder import open_run

    # The folder alone.
    if not arguments:
        if path is None:
            raise BadInput("say which run to resume: the same command as before, or --run-dir")
        run = open_run(path)
        return run, path.name, roles.resumed_recipe(run, None, (), trust)

    # The folder, and keys of its own recipe.
    keys = [text.partition("=")[0] for text in arguments if "=" in text]
    if path is not None and _split(arguments)[0] is None and "env" not in keys:
        run = open_run(path)
        return run, path.name, roles.resumed_with_keys(run, arguments, keys, trust)

    # A recipe. The code that it names is trusted if the user names the recipe, but not if it is the run folder's.
    is_of_run = path is not None and os.path.realpath(arguments[0]) == os.path.realpath(path / "recipe.yaml")
    if is_of_run and path is not None:
        open_run(path).trusted_recipe(trust)
    name, recipe = _recipe(arguments, own=not is_of_run)
    if path is not None:
        run = open_run(path)
    else:
        run = roles.run_to_resume(name, recipe)
    return run, name, roles.resumed_recipe(run, recipe, keys, trust, is_of_run)


@app.command()
def convert(
    config: Annotated[str, typer.Argument(help="A configuration of vlmrm: a YAML or JSON file, or - for stdin.")],
) -> None:
    """Print a configuration of vlmrm as a recipe of ours: sightline convert theirs.yaml > ours.yaml."""
    from sightline.config.loading import read_document, validate_recipe
    from sightline.config.vlmrm import convert, is_vlmrm
    from sightline.config.yaml import write_yaml

    document = read_document(config)
    if not is_vlmrm(document):
        name = "the text on stdin" if config == "-" else f"'{config}'"
        raise BadInput(f"{name} is no configuration of vlmrm: those have env_name, reward, rl and logging")
    recipe, notes = convert(document)
    validate_recipe(recipe)
    for note in notes:
        typer.echo(f"note: {note}", err=True)
    typer.echo(write_yaml(recipe, ascii_only=True), nl=False)


@app.command()
def evaluate(
    run: Annotated[
        str | None, typer.Argument(metavar="RUN", help="A run folder; or a game or its recipe, with --model.")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[key.sub=value]...",
            help="Of a recipe; of a policy's run, episode_steps and env_options.",
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Instead of a run's: a folder, a name, or a hosted one.")] = None,
    provider: Annotated[
        str | None, typer.Option(help="Who hosts it, such as openai (or alike), gemini or anthropic.")
    ] = None,
    url: Annotated[str | None, typer.Option(help="Address of an OpenAI-compatible server.")] = None,
    games: Annotated[
        str | None,
        typer.Option(help="A table of several games in place of RUN: all, or names such as numberline,ezpoints."),
    ] = None,
    insecure_http: Annotated[
        bool, typer.Option("--insecure-http", help="Ask a server on another machine by plain http.")
    ] = False,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes of the panel.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="Which panel.")] = 0,
    people: Annotated[
        Path | None,
        typer.Option(help="A data set that people labelled (label serve --ask success); default: the run's own."),
    ] = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Play a panel of episodes with a run's chosen checkpoint, or a game's with any model.

    An agent also with blank and shuffled pictures (without words, and with words of other states, where it is shown no
    pictures), beside random and best play. --games all: one table of all games before RL, for any model.
    """
    from sightline import roles
    from sightline.config.basics import MAX_EPISODES, MAX_SEED
    from sightline.runs.folder import RunFolder, check_name

    if seed > MAX_SEED:
        raise BadInput(f"--seed {seed} is too large; at most {MAX_SEED}")
    if episodes > MAX_EPISODES:
        raise BadInput(f"--episodes {episodes} is too large; at most {MAX_EPISODES}")
    if games is not None and people is not None:
        raise BadInput("--people have judged one run's data set; leave out --games, or --people")
    opinions = read_people(people) if people is not None else None
    if model is not None and not model.strip():
        raise BadInput("--model is empty; name a model, or leave it out for that of a run")
    if games is not None:
        # All that is named is a key: the games are in the option.
        keys = [*([] if run is None else [run]), *(overrides or [])]
        _check_games(keys, model, provider)
        table = roles.evaluate_games(games, keys, model, provider, url, episodes, seed, insecure_http, _say)
        if as_json:
            print_json(table)
        else:
            _print_games(table)
        return
    if run is None:
        raise BadInput("say which run: its folder, a game with --model NAME, or --games all with --model NAME")
    # A run has a model of its own; anything else is a recipe, whose game is played with the model that --model names.
    folder = RunFolder(Path(run))
    if model is None and folder.recipe_file.is_file():
        check_name(folder.path)
        for option, value in {"--provider": provider, "--url": url, "--insecure-http": insecure_http}.items():
            if value:
                raise BadInput(
                    f"{option} is for a model that --model names, and the run '{run}' has its own; leave it out"
                )
        opinions = opinions or people_of_run(folder)
        numbers = roles.evaluate(folder, episodes, seed, trust, overrides or [], _say)
    elif model is None and provider is None:
        raise BadInput(f"'{run}' is not a run folder: it has no recipe.yaml; to evaluate a model on a game say --model")
    else:
        _, numbers = roles.evaluate_model(
            run, overrides or [], model, provider, url, episodes, seed, insecure_http, say=_say
        )
    if as_json:
        print_json(numbers if opinions is None else numbers | {"people": opinions})
        return
    from sightline.evaluation.episode_stats import describe, describe_kind

    typer.echo(f"{describe(numbers)} ({numbers['episodes']} episodes, panel {numbers['panel']})")
    kinds = numbers.get("kinds") or {}
    # One kind alone is the line above.
    for kind, of_kind in kinds.items() if len(kinds) > 1 else ():
        typer.echo(f"  kind {kind or 'other'}: {describe_kind(of_kind)}")
    for line in people_in_words(opinions) if opinions is not None else ():
        typer.echo(line)
    # The controls of an agent (see `agents.evaluation.evaluate_policy`); a policy on states has none.
    for name in ("blank", "shuffled", "random", "oracle"):
        control = numbers.get(name)
        if not control:
            continue
        line = f"  {_control_label(name, numbers):<11} {describe(control)}"
        count = control["episodes"] + control["errors"]
        total = numbers["episodes"] + numbers["errors"]
        if count < total:
            line += f" (in {count} of {total} episodes; it knows no move in the others)"
        typer.echo(line)
    if numbers.get("missing"):
        typer.echo(f"  missing     {numbers['missing']} replies never came and count as empty")


def _check_games(keys: Sequence[str], model: str | None, provider: str | None) -> None:
    """Refuse --games beside a run or a recipe, or without a model."""
    names = [key for key in keys if "=" not in key]
    if names:
        raise BadInput(f"--games says what is played; leave out '{names[0]}'")
    if model is None and provider is None:
        raise BadInput("--games are played with any model; say which, --model NAME")


def _print_games(games: Mapping[str, Mapping[str, Any]]) -> None:
    """A table of several games, a row each: shares of episodes in percent."""
    from sightline.reports.pages import block

    def percent(numbers: Mapping[str, Any], name: str) -> str:
        share = numbers.get(name)
        return "-" if share is None else f"{100 * share:.0f}"

    heads = ("game", "won [95 %]", "clean", "true", "unread", "blank", "other", "random", "best")
    rows: list[tuple[str, ...]] = [heads]
    for name, numbers in games.items():
        if "not_played" in numbers:
            continue
        won = percent(numbers, "success_rate")
        if won != "-":
            won += f" [{percent(numbers, 'ci_low')}, {percent(numbers, 'ci_high')}]"
        shares = [percent(numbers, share) for share in ("clean", "truthful_replies", "unparsable")]
        controls = [percent(block(numbers, look), "success_rate") for look in ("blank", "shuffled", "random", "oracle")]
        rows.append((name, won, *shares, *controls))
    print_rows(rows, heads, as_json=False)
    # Words of a column's head, short enough for a terminal of 80 columns.
    typer.echo("% of games: won; clean: won without mistakes; blank, other: won with blank")
    typer.echo("pictures or no words of the state, with those of other states; random and")
    typer.echo("best play. % of replies: true in what they state; unread: without an action")
    for name, numbers in games.items():
        if "not_played" in numbers:
            typer.echo(f"{name} was not played: {numbers['not_played']}")


def _control_label(name: str, numbers: Mapping[str, Any]) -> str:
    """Name of a control for people, by what was taken away: pictures, or words where there are none."""
    if numbers.get("control") != "words":
        return name
    return {"blank": "no words", "shuffled": "other words"}.get(name, name)


@app.command()
def sweep(
    recipe: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RECIPE] [key.sub=value]...",
            help="A bundled name, a YAML file, or YAML itself; then overrides, one of them or more a list (a,b) or a "
            "range (0..4).",
        ),
    ] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(help="Folder of the sweep; given again, its unfinished cells go on.", callback=in_home),
    ] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Cells at a time; default: cores, divided by those that a run needs.")
    ] = None,
    per_run: Annotated[
        int, typer.Option(min=1, help="Processes of a run, started by torchrun; several are for agents alone.")
    ] = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the cells and stop.")] = False,
    plan_only: Annotated[
        bool, typer.Option("--plan", help="Write the plan and stop: 'sweep-cell' trains its cells, on any machine.")
    ] = False,
    cluster: OnCluster = None,
    cluster_gpus: Annotated[
        float, typer.Option(min=0, help="With --cluster: GPUs of each cell, which may be a fraction.")
    ] = 0.0,
    status: Annotated[
        Path | None, typer.Option(help="Show the cells of this sweep, whichever machine trains them.", callback=in_home)
    ] = None,
    write_job: WriteJob = None,
    job: JobKeys = None,
    as_json: AsJson = False,
) -> None:
    """Train a grid of runs: sightline sweep cartpole seed=0..4 reward.alpha=0,0.5 --run-dir sweeps/alpha

    0..4 is every whole number from 0 to 4. Commas separate words and numbers, and values in quotes, brackets or
    braces: reward.frame_size=[64,64],[96,96] are two. A value with spaces between its commas is one value, a sentence.
    goal, baseline, description and prompt are lists only if every value is in quotes or brackets:
    goal='"a pole, upright","a pole"'. To keep a comma, quote the value within the quotes: key="'a,b'".

    Each cell is an ordinary run, in a folder of its own. The same command continues a sweep: cells with a result are
    skipped, those cut off are resumed. Values may be added to keys that vary.
    """
    from sightline.reports.comparison import compare, comparison_document, text_table, write_comparison
    from sightline.sweep import carry_out, cell_statuses, plan_sweep, trainer, write_plan

    if status is not None:
        if recipe or run_dir is not None:
            raise BadInput("--status DIR shows a sweep that is there; leave out the rest")
        _print_statuses(cell_statuses(status), as_json)
        return
    if run_dir is None:
        raise BadInput("say where the cells go: --run-dir DIR; the same folder continues a sweep")
    plan = plan_sweep(*_split(recipe or []), run_dir)
    roles = {cell.recipe.role for cell in plan.cells}
    if per_run > 1 and roles != {"agent"}:
        raise BadInput(
            f"--per-run {per_run}: only role=agent learns in several processes, not {', '.join(sorted(roles))}"
        )
    rows = [(cell.name, cell.state) for cell in plan.cells]
    if dry_run:
        print_rows(rows, ("cell", "state"), as_json)
        return
    if write_job is not None:
        from sightline.jobs.manifests import Work

        threads = max(cell.recipe.threads for cell in plan.cells)
        _write_job(write_job, job, Work(*_split(recipe or []), run_dir, len(plan.cells), threads), as_json)
        return
    if job:
        raise BadInput("--job is for --write-job; leave it out, or add that")
    if plan_only:
        write_plan(plan)
        _print_statuses(cell_statuses(run_dir), as_json)
        return
    if cluster is None:
        at_a_time = processes or plan.default_processes(per_run)
        failures = carry_out(plan, at_a_time, _say, trainer(per_run))
    else:
        failures = _on_cluster(plan, cluster, processes or len(plan.cells), cluster_gpus, per_run)

    # There is nothing to compare if no cell has begun.
    comparison = page = None
    if any(cell.started for cell in plan.cells):
        comparison = compare([run_dir])
        page = write_comparison(run_dir / "report.html", comparison, run_dir.resolve().name)
    if as_json:
        cells = []
        for cell in plan.cells:
            failure = failures.get(cell.name)
            cells.append({"cell": cell.name, "run": str(cell.path), "state": cell.state, "failure": failure})
        document = {"sweep": str(run_dir), "report": page and str(page), "cells": cells}
        if comparison is not None:
            document |= comparison_document(comparison)
        print_json(document)
    elif comparison is not None:
        typer.echo(text_table(comparison))
        typer.echo(f"report      {page}")
    if failures:
        for name, reason in failures.items():
            typer.echo(f"{name}: {reason}", err=True)
        raise RunFailed(f"{len(failures)} of {len(plan.cells)} cells failed; the same command tries them again")


def _print_statuses(statuses: Sequence[CellStatus], as_json: bool) -> None:
    """Print the cells of a sweep with their numbers, and how many are in each state."""
    if as_json:
        print_json([asdict(status) for status in statuses])
        return
    rows = []
    for status in statuses:
        done = ""
        if status.step is not None and status.state != "finished":
            done = f"{status.step} of {status.steps} steps saved"
        rows.append((str(status.number), status.name, status.state, done, status.owner))
    print_rows(rows, ("number", "cell", "state", "done", "owner"), as_json=False)
    counts = Counter(status.state for status in statuses)
    typer.echo(", ".join(f"{count} {state}" for state, count in counts.items()))


def _on_cluster(plan: Plan, address: str, at_a_time: int, gpus: float, per_run: int) -> dict[str, str]:
    """Train the cells of a sweep on a cluster, as many at a time as there is room for; why some have no result."""
    from sightline.cluster.cells import CellStarter
    from sightline.cluster.connecting import connected
    from sightline.sweep import carry_out

    if per_run > 1:
        raise BadInput("--per-run starts several processes on one machine; leave it out with --cluster")
    with connected(address) as ray:
        return carry_out(plan, at_a_time, _say, start_elsewhere=CellStarter(ray, gpus))


def _say(line: str) -> None:
    typer.echo(line, err=True)


@app.command("sweep-cell")
def sweep_cell(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a sweep.", callback=in_home)],
    number: Annotated[int, typer.Argument(metavar="NUMBER", help="Which cell, from 0: see 'sweep --status DIR'.")],
    as_json: AsJson = False,
) -> None:
    """Train one cell of a sweep: what a job of a scheduler does, again after each restart.

    It begins the cell, goes on with it, or prints its result if it is finished. Exit code 75 says that another process
    is still writing the cell, so that the job has to be started again later.
    """
    from sightline.sweep import planned_cell

    cell = planned_cell(folder, number)
    train(list(cell.arguments), run_dir=cell.path, resume_or_start=True, as_json=as_json)


@app.command()
def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="A run folder; several, or that of a sweep, to compare.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="File of the page; default: report.html of a run or a sweep, else comparison.html here.",
            callback=in_home,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a run's report.html again, or a page that compares runs."""
    from sightline.reports.comparison import is_sweep

    if len(runs) > 1 or is_sweep(runs[0]):
        _report_comparison(runs, out, as_json)
    else:
        _report_run(runs[0], out, as_json)


def _report_comparison(runs: list[Path], out: Path | None, as_json: bool) -> None:
    from sightline.reports.comparison import compare, comparison_document, is_sweep, text_table, write_comparison

    of_sweep = len(runs) == 1 and is_sweep(runs[0])
    # A sweep's page lies in its folder; runs from several folders are compared in the working folder.
    default = runs[0] / "report.html" if of_sweep else Path("comparison.html")
    target = out or default
    check_target(target, "--out")
    comparison = compare(runs)
    count = sum(len(combination.runs) for combination in comparison.combinations)
    title = runs[0].resolve().name if of_sweep else f"{count} runs compared"
    page = write_comparison(target, comparison, title)
    if as_json:
        print_json({"report": str(page)} | comparison_document(comparison))
    else:
        typer.echo(text_table(comparison))
        typer.echo(page)
    if comparison.damage:
        raise RunFailed(f"the page shows what can be read: {'; '.join(comparison.damage)}")


def _report_run(run: Path, out: Path | None, as_json: bool) -> None:
    from sightline import roles
    from sightline.reports.pages import damage, read_mapping, read_warnings
    from sightline.runs.folder import check_plain, open_run

    folder = open_run(run)
    check_plain(folder.path)
    check_target(out or folder.report_file, "--out")
    page = roles.write_report(folder, out)
    damages = damage(folder.path)
    if as_json:
        result = read_mapping(folder.path / "result.json") or None  # none before the end, or if it is damaged
        warnings = read_warnings(folder.path)
        print_json({"report": str(page), "result": result, "warnings": warnings, "damage": damages})
    else:
        typer.echo(page)
    if damages:
        raise RunFailed(f"the page shows what can be read: {'; '.join(damages)}")


@app.command()
def relabel(
    run: Annotated[
        Path, typer.Argument(help="Folder of a run that kept its embeddings (reward.keep_embeddings=true).")
    ],
    goal: Annotated[list[str], typer.Option(help="What the picture should show; may be given several times.")],
    baseline: Annotated[list[str] | None, typer.Option(help="What it shows anyway.")] = None,
    alpha: Annotated[float | None, typer.Option(help="Strength of the regularisation, 0 to 1.")] = None,
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[key.sub=value]...", help="With --train.")] = None,
    train: Annotated[bool, typer.Option("--train", help="Learn a policy from them, in a new run.")] = False,
    run_dir: Annotated[Path | None, typer.Option(help="Folder of the new run.", callback=in_home)] = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Give stored transitions the reward of other words: sightline relabel runs/mine --goal "the cart on the right"."""
    import numpy as np

    from sightline.api import Run
    from sightline.config.loading import check_sentences, parse_override
    from sightline.evaluation.statistics import spearman

    check_sentences("--goal", goal)
    check_sentences("--baseline", baseline or ())
    old = Run(run, trust=trust)
    if overrides and not train:
        raise BadInput("recipe keys are for the new run; add --train")
    words: Any = (list(goal), list(baseline or ()))
    if train:
        keys = dict(map(parse_override, overrides or []))
        new: Any = old.relabel(*words, alpha=alpha, train=True, run_dir=run_dir, **keys)
        if as_json:
            print_json(new.result | {"run": str(new.path)})
        else:
            from sightline.evaluation.episode_stats import describe

            typer.echo(f"trained     {describe(new.result)}")
            typer.echo(f"report      {new.path / 'report.html'}")
        return
    rewards = np.asarray(old.relabel(*words, alpha=alpha))
    before = old.stored_rewards()
    numbers = {
        "transitions": int(rewards.size),
        "mean": float(rewards.mean()),
        "low": float(rewards.min()),
        "high": float(rewards.max()),
        "spearman_before": spearman(rewards.ravel(), before.ravel()),
    }
    if as_json:
        print_json(numbers | {"rewards": rewards.tolist()})
        return
    typer.echo(
        f"{numbers['transitions']} transitions: reward {numbers['mean']:.4f} on average, from {numbers['low']:.4f} to "
        f"{numbers['high']:.4f}"
    )
    if numbers["spearman_before"] is not None:
        typer.echo(f"rank correlation with the rewards before: {numbers['spearman_before']:.2f}")


@app.command()
def score(
    images: Annotated[
        list[Path], typer.Argument(metavar="IMAGES...", help="Images, folders of images, a data set, or one video.")
    ],
    goal: Annotated[list[str], typer.Option(help="What the picture should show; may be given several times.")],
    goal2: Annotated[str | None, typer.Option(help="A second sentence for the same goal.")] = None,
    baseline: Annotated[list[str] | None, typer.Option(help="What it shows anyway.")] = None,
    alpha: Annotated[float | None, typer.Option(help="Strength of the regularisation, 0 to 1.")] = None,
    model: Annotated[str, typer.Option(help="Encoder; see 'sightline models'.")] = "bundled",
    aspect: Annotated[
        str, typer.Option(help="Of pictures that are not square: crop (as the model does), pad (black bars) or squash.")
    ] = "crop",
    camera: Annotated[str | None, typer.Option(help="Which of several cameras of a data set.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Write image,reward rows to this file.", callback=in_home)] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Write the curve to this PNG (default: beside a video).", callback=in_home)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say how well pictures match words: sightline score photos/ --goal "a red car"."""
    import numpy as np

    from sightline.config.basics import Aspect
    from sightline.config.loading import check_sentences
    from sightline.evaluation.pictures import IMAGE_SUFFIXES, csv_table, score_files

    if aspect not in get_args(Aspect):
        raise BadInput(f"--aspect cannot be '{aspect[:80]}', only {', '.join(get_args(Aspect))}")
    goals = tuple(goal)
    if goal2 is not None:
        goals += (goal2,)
    check_sentences("--goal", goals)
    check_sentences("--baseline", baseline or ())

    # No output may overwrite a picture that is scored, named by itself or in a folder.
    sources = {os.path.realpath(image) for image in images}
    for option, file in (("--csv", csv), ("--plot", plot)):
        if not file:
            continue
        check_target(file, option)
        path = os.path.realpath(file)
        is_in_folder = os.path.dirname(path) in sources and path.lower().endswith(IMAGE_SUFFIXES)
        if path in sources or (is_in_folder and os.path.exists(path)):
            raise BadInput(f"{option}: '{file}' is one of the pictures; name another file")
    if csv and plot and os.path.realpath(csv) == os.path.realpath(plot):
        raise BadInput(f"--csv and --plot are both '{csv}'; name two files")

    scores = score_files(images, goals, baseline or (), alpha, model, cast(Aspect, aspect), camera)
    rows = scores.rows
    for warning in scores.warnings:
        typer.echo(f"warning: {warning}", err=True)
    # The rewards are printed first: they are not lost if a file cannot be written.
    if as_json:
        print_json([{"image": row.image, "reward": row.reward} for row in rows])
    else:
        width = max(len(row.image) for row in rows)
        for row in rows:
            typer.echo(f"{row.image:<{width}}  {row.reward:+.4f}")
    if csv:
        write_target(csv, csv_table(rows))
    # Several rows of a single file are the frames of a video: their curve is of use without being asked for.
    is_video = len(images) == 1 and len(rows) > 1 and images[0].is_file()
    if plot or (is_video and not as_json):
        from sightline.reports.plots import score_curve

        target = plot or images[0].with_suffix(".reward.png")
        write_target(target, score_curve(np.array([row.reward for row in rows]), title="; ".join(goals)))
        typer.echo(f"plot: {target}", err=True)
    # Unreadable pictures fail the command, but only after the others have their rewards.
    if scores.unreadable:
        *others, last = scores.unreadable
        for line in others:
            typer.echo(line, err=True)
        raise BadInput(f"{last} ({len(scores.unreadable)} could not be scored; the other {len(rows)} pictures were)")


@app.command()
def recipes(as_json: AsJson = False) -> None:
    """List the bundled recipes."""
    from sightline.config.bundled import bundled_recipes, recipe_description

    rows = []
    for name in bundled_recipes():
        try:
            rows.append((name, recipe_description(name)))
        except BadInput as error:  # a package's recipe that cannot be read does not hide those of others
            rows.append((name, str(error)))
    print_rows(rows, ("recipe", "description"), as_json)


@app.command()
def tasks(as_json: AsJson = False) -> None:
    """List the tasks, and who can act in them; any Gymnasium id works as well."""
    from sightline import registry
    from sightline.adapters import ADAPTERS
    from sightline.envs.tasks import find_task

    rows = []
    for name in sorted(registry.names("env")):
        try:
            task = find_task(name)
        except BadInput as error:  # a package that cannot be imported does not hide the tasks of others
            rows.append((name, "", str(error)))
            continue
        rows.append((name, ", ".join(task.roles), task.summary))
    rows += [(env, ", ".join(roles), summary) for env, (roles, summary) in ADAPTERS.items()]
    print_rows(rows, ("task", "roles", "description"), as_json)


@app.command()
def models(
    family: Annotated[str | None, typer.Argument(help="List only open_clip names that contain this.")] = None,
    fetch: Annotated[str | None, typer.Option(help="Load this encoder once, so that it is in the cache.")] = None,
    as_json: AsJson = False,
) -> None:
    """List encoders by name, or fetch one into the cache."""
    if fetch is not None:
        from sightline.models.encoders import load_encoder

        encoder = load_encoder(fetch)
        typer.echo(f"{encoder.name}: ready, reads {encoder.image_size}x{encoder.image_size} pictures")
        return
    from sightline.models.listing import list_encoders

    print_rows(list_encoders(family), ("model", "description"), as_json)


@app.command()
def doctor(
    recipe: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RECIPE] [key.sub=value]...", help="With --speed; default: cartpole and numberline."),
    ] = None,
    speed: Annotated[
        bool, typer.Option("--speed", help="Measure how fast this machine trains, in less than a minute.")
    ] = False,
    device: Annotated[
        str | None, typer.Option(help="With --speed: where the policy learns and frames are read; cpu, cuda, …")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what works on this machine, and how to fix what does not; with --speed, how fast it trains."""
    from sightline.doctor import examine

    if speed:
        _print_speeds(recipe or [], device, as_json)
        return
    if recipe or device is not None:
        raise BadInput("a recipe and --device are for measuring; add --speed")

    # This takes half a minute on a busy machine. A terminal shows one line, which is overwritten and then erased.
    if sys.stderr.isatty():
        erase = "\r\033[K"
        ending = ""
    else:
        erase = ""
        ending = "\n"

    def say(what: str) -> None:
        print(f"{erase}looking at {what} …", end=ending, file=sys.stderr, flush=True)

    findings = examine(say)
    print(erase, end="", file=sys.stderr, flush=True)
    if as_json:
        # `mend` is the name of the key since the first version; scripts read it.
        print_json([{"name": f.name, "works": f.works, "detail": f.detail, "mend": f.fix} for f in findings])
        return
    for finding in findings:
        mark = "ok " if finding.works else "-- "
        typer.echo(f"{mark} {finding.name:<22} {finding.detail}")
        if not finding.works:
            typer.echo(f"{'':26} {finding.fix}")


def _print_speeds(arguments: list[str], device: str | None, as_json: bool) -> None:
    """Measure a recipe, or those that stand for all, and print what each stage allows beside the whole loop."""
    from sightline.speed import DEFAULT_RECIPES, measure_speed

    measured: list[tuple[str | None, list[str]]] = [(name, []) for name in DEFAULT_RECIPES]
    if arguments:
        measured = [_split(arguments)]
    speeds = []
    for name, overrides in measured:
        speed = measure_speed(name, overrides, device)
        speeds.append(asdict(speed))
        if as_json:
            continue
        typer.echo(f"{speed.recipe}: {speed.devices}")
        for stage in speed.stages:
            typer.echo(f"  {stage.stage:<20} {stage.rate:>10,.0f} {stage.unit}")
        allowed = f"its stages allow {speed.in_turn:,.0f} one after the other"
        if speed.beside is not None:
            allowed += f", {speed.beside:,.0f} with scoring beside the rest"
        typer.echo(f"  {'the whole loop':<20} {speed.whole:>10,.0f} {speed.unit} ({allowed})")
        if speed.share < 1:
            typer.echo(f"  measured in parts of {speed.share:.0%} of the recipe's size, to take less than a minute")
    if as_json:
        print_json(speeds)


def _check_threads() -> None:
    """Check that libraries will be able to start their threads, by starting as many ourselves, all at a time.

    Libraries do not raise if a thread cannot be started: some send SIGINT to their own process, some end it.

    Raises:
        RuntimeError: Python's own, if one cannot be started.
    """
    count = os.cpu_count() or 1
    limit = os.environ.get("OMP_NUM_THREADS", "")
    if limit.isdecimal():
        count = int(limit)
    end = threading.Event()
    try:
        for _ in range(min(count, 64)):
            threading.Thread(target=end.wait, name="limits", daemon=True).start()
    finally:
        end.set()


def _report_lost_output(exit_request: SystemExit) -> None:
    """Let a command fail whose output was lost. A closed pipe needs no message: whoever closed it knows."""
    failure = failure_of_stdout()
    if failure is None or exit_request.code:
        return
    if failure.errno != errno.EPIPE:
        print(f"sightline: the output could not be written: {failure.strerror or failure}", file=sys.stderr)
    exit_request.code = 1


def main() -> None:
    """Carry out the `sightline` command of this process's command line.

    Raises:
        SystemExit: always, with its exit code.
    """
    try:
        os.getcwd()
    except FileNotFoundError:
        print("sightline: the working folder has been removed; change to another one first", file=sys.stderr)
        sys.exit(2)
    if not os.environ.get("SIGHTLINE_DEBUG"):
        # Renderers that failed to start complain once more when they are collected.
        sys.unraisablehook = lambda unraisable: None
    with errors_in_one_line(), warnings_in_one_line():
        _check_threads()
        code = app(prog_name="sightline", standalone_mode=False)
        if code == 130:  # Typer's code for Ctrl-C
            if Interruption.signal_number is None:
                raise KeyboardInterrupt
            raise GivenUp(Interruption.signal_number)
    sys.exit(code or 0)


def carry_out() -> None:
    """Carry out the command and end the process with it: a simulator's threads may go on for ever."""
    try:
        try:
            main()
        except SystemExit as exit_request:
            _report_lost_output(exit_request)
            raise
    except SystemExit as exit_request:
        deadline = time.monotonic() + GRACE_SECONDS
        this_thread = threading.current_thread()
        threads = [thread for thread in threading.enumerate() if thread is not this_thread and not thread.daemon]
        for thread in threads:
            thread.join(max(deadline - time.monotonic(), 0))
        if any(thread.is_alive() for thread in threads):
            # Python's own exit would wait for them.
            exit_now(exit_request.code if isinstance(exit_request.code, int) else 1)
        raise
