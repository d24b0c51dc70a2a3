"""`sightline label …`: labels are asked for, imported, looked at and given away."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sightline.cli.output import AsJson, print_json
from sightline.errors import BadInput

if TYPE_CHECKING:
    from sightline.config import Recipe
    from sightline.labels.types import Exchange, Outcome

label = typer.Typer(
    help="Labels of a teacher: import, run, serve, stats, export.", no_args_is_help=True, rich_markup_mode=None
)

StorePath = Annotated[Path, typer.Argument(metavar="RUN_OR_STORE", help="A run folder, or a label store.")]
OfRun = Annotated[str | None, typer.Option("--run", help="Only the labels of the run of this name.")]


@label.command("import")
def import_(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILES...", help="Pickles, folders of them, or Parquet files.")
    ],
    into: Annotated[Path, typer.Option(help="Folder of the label store; made if there is none.")],
    goal: Annotated[list[str] | None, typer.Option(help="What pickled pairs were asked about.")] = None,
    task: Annotated[str | None, typer.Option(help="What pickled pairs are of; default: their folder's name.")] = None,
    as_json: AsJson = False,
) -> None:
    """Import labels: cached ones of RL-VLM-F (pickles), or an export of another store (Parquet)."""
    from sightline.labels.importing import import_labels
    from sightline.labels.store import LabelStore

    with LabelStore(into) as store:
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
    path: Annotated[Path, typer.Argument(metavar="RUN_OR_STORE", help="A run folder, or a label store; made if new.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[key.sub=value]...", help="Recipe keys: env=… reward.teacher.kind=chat …"),
    ] = None,
    questions: Annotated[int, typer.Option(min=1, help="How many, at most.")] = 200,
    fresh: Annotated[bool, typer.Option("--fresh", help="Ask about random play, not about what was asked.")] = False,
    as_json: AsJson = False,
) -> None:
    """Ask a teacher outside of training: a second opinion on a run's pairs, or a first one on random play."""
    from sightline.control.surveying import fresh_questions, known_questions, survey
    from sightline.labels.store import LabelStore, existing_store
    from sightline.runs.progress import ProgressBar
    from sightline.tasks.completing import complete

    is_new = not path.exists()
    recipe = _recipe_to_ask_by(path, overrides or [], questions)
    with LabelStore(path if is_new else existing_store(path)) as store:
        recipe = complete(recipe)
        config = recipe.reward
        known = [] if fresh else known_questions(store, config.feedback.kind, questions)  # type: ignore[union-attr]
        asked = known or fresh_questions(recipe, config, questions)  # type: ignore[arg-type]
        with ProgressBar(len(asked), "asking") as progress:
            result = survey(recipe, asked, store, "label run", progress.say, lambda count: progress.update(count, {}))
    if result is None:
        raise KeyboardInterrupt
    outcomes = Counter(answer.outcome.value for answer in result.answers.answers if answer is not None)
    numbers = {"teacher": result.teacher, "questions": len(asked), "remembered": result.answers.remembered}
    if as_json:
        print_json(numbers | {"outcomes": outcomes, "over_budget": result.answers.over_budget})
        return
    typer.echo(f"teacher     {result.teacher}")
    typer.echo(f"questions   {len(asked)}, {result.answers.remembered} of them answered before")
    typer.echo("answers     " + ", ".join(f"{count} {name}" for name, count in outcomes.most_common()))
    if result.answers.over_budget:
        typer.echo(f"budget      reached: {result.answers.over_budget}")
    typer.echo(f"next        sightline label stats {path}")


def _recipe_to_ask_by(path: Path, overrides: list[str], questions: int) -> Recipe:
    """The run's own recipe, or one for the task that a store's labels are of, with what the command line says."""
    from sightline.config import load_recipe
    from sightline.labels.store import LabelStore
    from sightline.runs.folder import RunFolder

    run, budget = RunFolder(path), f"reward.budget.questions={questions}"
    if run.recipe_file.is_file():
        return load_recipe(str(run.recipe_file), [budget, *overrides])
    if path.exists() and not any(text.startswith("env=") for text in overrides):
        with LabelStore(path) as store:
            tasks = {label.context.task for label in store.labels()}
        if len(tasks) == 1:
            overrides = [f"env={tasks.pop()}", *overrides]
    return load_recipe(None, ["reward.kind=learned", budget, *overrides])


@label.command()
def stats(
    path: StorePath,
    run: OfRun = None,
    html: Annotated[Path | None, typer.Option(help="Where the page goes; default: labels.html there.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say how good each teacher is, and write a page with the pairs to look at."""
    from dataclasses import asdict

    from sightline.evaluation.agreement import disputes, statistics
    from sightline.labels.store import LabelStore, existing_store
    from sightline.reports.labels_page import table, write_labels_page

    page = html or path / "labels.html"
    with LabelStore(existing_store(path)) as store:
        labels = store.labels(run)
        if not labels:
            raise BadInput(f"there are no labels in '{store.folder}'" + (f" of run '{run}'" if run else ""))
        found, disputed = statistics(labels, _read_choice), disputes(labels, read_reply=_read_choice)
        write_labels_page(page, path.resolve().name, found, disputed, store)
    if as_json:
        print_json(asdict(found) | {"page": str(page)})
        return
    headings, rows = table(found)
    texts = [[f"{cell.text} [{cell.note}]" if cell.note else cell.text or "-" for cell in row] for row in rows]
    for name, cells in zip(headings, zip(*texts, strict=True), strict=True):
        typer.echo(f"{name:<20}" + "".join(f"{cell:<28}  " for cell in cells).rstrip())
    for pair in found.between:
        kappa = "" if pair.kappa is None else f", kappa {pair.kappa:.2f}"
        typer.echo(f"{pair.first} and {pair.second}: {pair.same.count} of {pair.same.of} the same{kappa}")
    typer.echo(f"page                {page}")


def _read_choice(exchange: Exchange) -> Outcome | None:
    """What a model's reply says of a pair as it was shown; None if it decides nothing, or is a description."""
    from sightline.labels.types import Outcome
    from sightline.teachers.parsing import parse_choice

    outcome = parse_choice(exchange.reply).outcome if exchange.stage in ("compare", "label") else None
    return outcome if outcome in (Outcome.FIRST, Outcome.SECOND, Outcome.EQUAL) else None


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

    with LabelStore(existing_store(path)) as store:
        exported = export_labels(store, target, run)
    if as_json:
        print_json(vars(exported) | {"path": str(exported.path)})
    else:
        typer.echo(f"exported    {exported.labels} labels ({exported.bytes / 2**20:.1f} MB) to {exported.path}")


@label.command()
def serve(
    path: Annotated[Path, typer.Argument(metavar="RUN_OR_STORE", help="A run folder, or a label store.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine; 0 takes a free one.")] = 8765,
    name: Annotated[str, typer.Option(help="Your name, recorded with your answers.")] = "human",
) -> None:
    """Open the label page, where people answer a run's questions: sightline label serve runs/… --name anna"""
    from sightline.teachers.page import serve as serve_page

    serve_page(path, name, port, typer.echo)
