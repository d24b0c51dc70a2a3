"""`sightline label …`: ask for labels, import, inspect and export them."""

from __future__ import annotations

import contextlib
import gc
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sightline.cli.output import AsJson, Trust, check_new_folder, check_target, in_home, print_json
from sightline.errors import BadInput, RunFailed

if TYPE_CHECKING:
    from sightline.labels.types import ModelCall, Outcome
    from sightline.preferences.labelling import Answers

label = typer.Typer(
    help="Labels of a teacher: import, run, serve, show-prompt, stats, export.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

StorePath = Annotated[Path, typer.Argument(metavar="RUN_OR_STORE", help="A run folder, or a label store.")]
OfRun = Annotated[
    str | None, typer.Option("--run", help="Only the labels of one run: its folder, or the id in its run.json.")
]


@label.command("import")
def import_(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILES...", help="Pickles, folders of them, or Parquet files.")
    ],
    into: Annotated[Path, typer.Option(help="Folder of the label store; made if there is none.", callback=in_home)],
    goal: Annotated[list[str] | None, typer.Option(help="What pickled pairs were asked about.")] = None,
    task: Annotated[str | None, typer.Option(help="What pickled pairs are of; default: their folder's name.")] = None,
    as_json: AsJson = False,
) -> None:
    """Import labels: cached ones of RL-VLM-F (pickles), or an export of another store (Parquet)."""
    from sightline.config.loading import check_sentences
    from sightline.labels.importing import import_labels, store_to_fill

    check_sentences("--goal", goal or ())
    if task is not None and not task.strip():
        raise BadInput("--task is empty; leave it out, or name what the pairs are of")
    with store_to_fill(into) as store:
        imported = import_labels(files, store, goal or (), task)
    if as_json:
        print_json(vars(imported))
        return
    typer.echo(f"imported    {imported.pairs} labels from {imported.files} files")
    if imported.skipped:
        typer.echo(f"known       {imported.skipped} labels were there already")
    if imported.agreement is not None:
        typer.echo(f"agreement   {100 * imported.agreement:.0f} % of {imported.compared} with the environment's reward")


@label.command()
def run(
    path: Annotated[
        Path,
        typer.Argument(metavar="RUN_OR_STORE", help="A run folder, or a label store; with env=… a new one is made."),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[key.sub=value]...", help="Recipe keys: env=… reward.teacher.kind=chat …"),
    ] = None,
    questions: Annotated[
        int, typer.Option(min=1, help="The budget of this call, at most; reward.questions=… is another.")
    ] = 200,
    fresh: Annotated[bool, typer.Option("--fresh", help="Ask about random play, not about what was asked.")] = False,
    dataset: Annotated[
        Path | None, typer.Option(help="Ask about the frames of a data set; its sentence is the goal, unless goal=….")
    ] = None,
    camera: Annotated[str | None, typer.Option(help="Which of several cameras of --dataset.")] = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Ask a teacher outside of training: a second opinion on a run's pairs, or a first one on random play.

    Questions that were asked before are asked in the same words; --fresh asks new ones (seed=1 plays differently).

    The teacher and its budget are those of the run's own recipe, or, for a label store, the defaults for the task that
    its labels are of; keys on the command line change them. A store does not know how its pictures were made: with
    --fresh say env_options too, for example env_options.robot=hidden.
    """
    if camera is not None and dataset is None:
        raise BadInput("--camera chooses one of the cameras of --dataset, and no data set is named")
    from sightline.control.offline_labelling import label_offline
    from sightline.runs.progress import ProgressBar

    def show(count: int) -> ProgressBar:
        return ProgressBar(count, "asking")

    result = label_offline(path, overrides or [], questions, fresh, show, trust, dataset, camera)
    answers = result.answers
    outcomes = Counter(answer.outcome.value for answer in answers.answers if answer is not None)
    failures = Counter(answers.failures)
    if as_json:
        document = {
            "teacher": result.teacher,
            "questions": len(result.questions),
            "fresh": result.fresh,
            "remembered": answers.remembered,
            "outcomes": outcomes,
            "over_budget": answers.over_budget,
            "other_model": answers.other_model,
            "run": result.run,
            "failures": failures,
        }
        print_json(document)
        _fail_if_unanswered(answers)
        return
    origin = "of random play" if result.fresh else "asked before"
    if dataset is not None:
        origin = f"of {dataset}"
    counts = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
    typer.echo(f"teacher     {result.teacher}")
    typer.echo(
        f"questions   {len(result.questions)} {origin}, {answers.remembered} of them answered by this teacher already"
    )
    typer.echo(f"answers     {counts or 'none'}")
    for reason, count in failures.most_common(3):
        typer.echo(f"failed      {count}: {reason}")
    if answers.failures:
        typer.echo("            the same command asks these again")
    if answers.over_budget:
        typer.echo(f"budget      reached: {answers.over_budget}")
    if answers.other_model:
        typer.echo(f"warning     {answers.other_model}")
    typer.echo(f"next        sightline label stats {path}")
    _fail_if_unanswered(answers)


def _fail_if_unanswered(answers: Answers) -> None:
    """Fail if the teacher answers no more, though there are questions left."""
    reason = answers.exhausted or answers.failing
    if reason:
        raise RunFailed(f"{reason}; what was answered is kept, and the same command asks the rest later")


@label.command()
def stats(
    path: StorePath,
    run: OfRun = None,
    html: Annotated[
        Path | None, typer.Option(help="Where the page goes; default: labels.html there.", callback=in_home)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say how good each teacher is, and write a page with the pairs to look at."""
    from dataclasses import asdict

    from sightline.datasets.reading import LABELS, is_dataset
    from sightline.evaluation.agreement import disputes, statistics
    from sightline.labels.store import LabelStore, existing_store
    from sightline.reports.labels_page import table, write_labels_page

    # A page that cannot be written is refused before the labels are read, which may take minutes.
    page = html or path / "labels.html"
    if is_dataset(path) and not (path / LABELS).is_dir():
        raise BadInput(f"nobody has labelled '{path}': sightline label serve {path} --ask success")
    folder = existing_store(path)
    check_target(page, "--html")
    with _no_garbage_collection(), LabelStore(folder, read_only=True) as store:
        labels = store.labels(_run_id(run))
        if not labels:
            of_run = f" of run '{run}'" if run else ""
            raise BadInput(f"there are no labels in '{store.folder}'{of_run}")
        summary = statistics(labels, _read_choice)
        disputed = disputes(labels, read_reply=_read_choice)
        write_labels_page(page, path.resolve().name, summary, disputed, store)
    if as_json:
        print_json(asdict(summary) | {"page": str(page)})
        return

    # The page has a row for each teacher; here each teacher is a column.
    headings, rows = table(summary)
    for number, name in enumerate(headings):
        line = f"{name:<20}"
        for row in rows:
            cell = row[number]
            text = cell.text or "-"
            if cell.note:
                text = f"{cell.text} [{cell.note}]"
            line += f"{text:<28}  "
        typer.echo(line.rstrip())
    # Agreement of every pair of teachers.
    for pair in summary.between:
        line = f"{pair.first} and {pair.second}: {pair.same.count} of {pair.same.of} the same"
        if pair.kappa is not None:
            line += f", kappa {pair.kappa:.2f}"
        typer.echo(line)
    typer.echo(f"page                {page}")


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Do not look for garbage meanwhile: among millions of labels that would take half of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _run_id(run: str | None) -> str | None:
    """Id of a run that is named by its folder; anything else is an id."""
    from sightline.runs.folder import RunFolder

    if run and (Path(run) / "run.json").is_file():
        return RunFolder(Path(run)).id
    return run


def _read_choice(exchange: ModelCall) -> Outcome | None:
    """Preference in a model's reply, between the pictures in the order of the request; None if there is none, or the
    reply is a description."""
    if exchange.stage not in ("compare", "label"):
        return None
    return _choice_of(exchange.reply)


@cache
def _choice_of(reply: str) -> Outcome | None:
    """The same of the reply's text, which is read once for the statistics and again for the disputed pairs."""
    from sightline.labels.parsing import parse_choice
    from sightline.labels.types import Outcome

    outcome = parse_choice(reply).outcome
    if outcome not in (Outcome.FIRST, Outcome.SECOND, Outcome.EQUAL):
        return None
    return outcome


@label.command()
def fit(
    path: StorePath,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[key.sub=value]...", help="Recipe keys: goal=… reward.model.kind=cnn …"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="New folder for the fitted reward, for LearnedReward.load.", callback=in_home)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fit a reward to the labels of a store, without a simulator, and say how well it judges labels held out."""
    from dataclasses import asdict
    from math import isnan

    from sightline.config.loading import for_control, load_recipe
    from sightline.labels.store import existing_store
    from sightline.preferences.fit import fit_labels

    if out is not None:
        check_new_folder(out, "--out")
    store = existing_store(path)
    # Every recipe has an environment; this one is never made, because nothing is played.
    recipe = for_control(load_recipe(None, ["env=labels", "reward.kind=learned", *(overrides or [])]))
    config = recipe.reward.teaching
    if config is None:
        raise BadInput(f"reward.kind={recipe.reward.kind} is not learned from labels; leave it out")
    fitted = fit_labels(store, config, recipe.goal or None, recipe.seed)
    if out is not None:
        fitted.reward.save(out)
    if as_json:
        # JSON has no NaN, which a loss is where nothing was held out.
        document = asdict(fitted.fit) | {"held_out": fitted.held_out, "rank_correlation": fitted.rank_correlation}
        for name, value in document.items():
            if value is not None and isnan(value):
                document[name] = None
        print_json(document | {"interval": fitted.interval, "path": str(out) if out else None})
        return
    fit = fitted.fit
    typer.echo(f"labels      {fitted.labels}, of which {fitted.held_out} were held out")
    typer.echo(f"loss        {fit.loss:.3f}, held out {fit.held_out_loss:.3f}, {fit.epochs} epochs")
    if fitted.interval is not None:
        low, high = (100 * bound for bound in fitted.interval)
        accuracy = f"{100 * fit.accuracy:.0f} % of decided pairs, held out {100 * fit.held_out_accuracy:.0f} %"
        typer.echo(f"accuracy    {accuracy} [{low:.0f}, {high:.0f}]")
    if fitted.rank_correlation is not None:
        typer.echo(f"truth       rank correlation {fitted.rank_correlation:.2f} with true returns of segments held out")
    if out is not None:
        typer.echo(f"reward      {out}")


@label.command()
def export(
    path: StorePath,
    target: Annotated[Path, typer.Argument(help="A .parquet file, or a new folder for a data set with its card.")],
    run: OfRun = None,
    as_json: AsJson = False,
) -> None:
    """Export labels with their frames: to a Parquet file, or to a folder that Hugging Face's datasets loads."""
    from sightline.labels.exporting import export_labels
    from sightline.labels.store import LabelStore, existing_store

    folder = existing_store(path)
    with LabelStore(folder, read_only=True) as store:
        exported = export_labels(store, target, _run_id(run))
    if as_json:
        print_json(vars(exported) | {"path": str(exported.path)})
    else:
        typer.echo(f"exported    {exported.labels} labels ({exported.bytes / 2**20:.1f} MB) to {exported.path}")
    if exported.left_out:
        typer.echo(f"warning: {exported.left_out} labels stay behind: {exported.why}", err=True)


@label.command("show-prompt")
def show_prompt(
    recipe: Annotated[
        list[str],
        typer.Argument(
            metavar="[RECIPE_OR_RUN] [key.sub=value]...",
            help="As of 'sightline train', or a run folder.",
        ),
    ],
    trust: Trust = False,
) -> None:
    """Print what a recipe's teacher or judge is asked, with marks for pictures; nothing is sent."""
    from sightline.config.loading import for_control, load_recipe
    from sightline.envs.tasks import find_task
    from sightline.rewards.config import resolved_words, reward_config
    from sightline.runs.folder import RunFolder

    first, *rest = recipe
    if "=" in first:
        loaded = load_recipe(None, recipe)
    elif RunFolder(Path(first)).recipe_file.is_file():
        run = RunFolder(Path(first))
        run.trusted_recipe(trust, [override.partition("=")[0] for override in rest])
        loaded = load_recipe(run.document(), rest, own=False)
    else:
        loaded = load_recipe(first, rest)
    control = for_control(loaded)
    words = resolved_words(control, find_task(control.env))
    shown = reward_config(control.reward).shown_prompt(tuple(words["goal"]), tuple(words["baseline"]))
    if not shown:
        raise BadInput(
            f"no model is asked in words for reward.kind={control.reward.kind}; say reward.kind=judge, or "
            "reward.kind=learned with reward.teacher.kind=chat"
        )
    typer.echo(shown)


@label.command()
def serve(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="RUN_OR_STORE", help="A run folder, or a label store; with --ask success also a data set."
        ),
    ],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine; 0 takes a free one.")] = 8765,
    name: Annotated[str, typer.Option(help="Your name, recorded with your answers.")] = "human",
    ask: Annotated[
        str | None,
        typer.Option(help="success: whether the goal is reached, in a data set's frames or a run's episodes."),
    ] = None,
    questions: Annotated[int, typer.Option(min=1, help="With --ask: how many, besides those that come twice.")] = 100,
    episodes: Annotated[
        bool, typer.Option("--episodes", help="With --ask: whole episodes instead of frames, as always of a run.")
    ] = False,
    goal: Annotated[str | None, typer.Option(help="With --ask: the goal, instead of each episode's sentence.")] = None,
    camera: Annotated[str | None, typer.Option(help="With --ask: which of several cameras.")] = None,
    seed: Annotated[
        int, typer.Option(min=0, help="With --ask: of the choice and order of questions, and of a run's episodes.")
    ] = 0,
    trust: Trust = False,
) -> None:
    """Open the label page, where people answer a run's questions: sightline label serve runs/… --name anna

    With --ask success they say of frames or episodes of a data set (sightline collect) whether the goal is reached; or
    of episodes of a run's policy, which are played first, into its folder. They see no reward; a tenth comes twice;
    several people answer the same questions, each with --name.
    """
    from sightline.runs.folder import RunFolder
    from sightline.teachers.page import serve as serve_page
    from sightline.teachers.success import serve_success

    if ask is None:
        for option, value in (("--episodes", episodes), ("--goal", goal), ("--camera", camera)):
            if value:
                raise BadInput(f"{option} is for --ask success; the questions of a run are as its recipe says")
        serve_page(path, name, port, typer.echo)
        return
    if ask != "success":
        raise BadInput(f"--ask '{ask[:40]}': only success is asked; leave it out for the questions of a run")
    run = RunFolder(path)
    if run.recipe_file.is_file():
        from sightline.reward_lab.human_evaluation import serve_run

        if camera is not None:
            raise BadInput("--camera chooses one of a data set's cameras; the episodes of a run are drawn by one")
        serve_run(run, name, port, typer.echo, questions, goal, seed, trust)
        return
    serve_success(path, name, port, typer.echo, questions, episodes, goal, camera, seed)
