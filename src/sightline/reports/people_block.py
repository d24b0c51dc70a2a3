"""Block of a run's page about people's word for the success of its chosen policy, beside the environment's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sightline.datasets.human_labels import read_human_labels
from sightline.errors import Damaged
from sightline.evaluation.agreement import Agreement, Share
from sightline.evaluation.human_success import HumanSuccess, human_success
from sightline.reports.pages import percent
from sightline.runs.folder import RunFolder


@dataclass(frozen=True)
class PeopleRow:
    """A share of the episodes, as text: its rate, its 95 % interval, the counts, and Cohen's kappa."""

    name: str
    rate: str
    interval: str
    count: str
    kappa: str = ""


@dataclass(frozen=True)
class PeopleSection:
    """Section about what people say; `note` says who was asked, and what is not in the rows."""

    rows: tuple[PeopleRow, ...]
    note: str


def people_block(run: Path, result: Mapping[str, Any]) -> PeopleSection | None:
    """Section about people's answers; None where nobody was asked about the chosen step, or the table is damaged."""
    step = result.get("chosen_step")
    if not isinstance(step, int):
        return None
    try:
        labels = read_human_labels(RunFolder(run).people(step))
    except (Damaged, OSError):
        return None
    if not labels:
        return None
    people = human_success(labels)
    return PeopleSection(tuple(_rows(people)), _note(people))


def _rows(people: HumanSuccess) -> Iterator[PeopleRow]:
    """The rows: success first, then agreement."""
    yield _row("Success, people say", people.success)
    if people.by_environment.of:
        yield _row("Success, the environment says of the same", people.by_environment)
    if people.with_environment is not None:
        yield _agreement("People and the environment agree", people.with_environment)
    for pair in people.between:
        yield _agreement(f"{pair.first} and {pair.second} agree", pair)
    if people.again.of:
        yield _row("The same person says the same again", people.again)


def _agreement(name: str, pair: Agreement) -> PeopleRow:
    kappa = "" if pair.kappa is None else f"{pair.kappa:.2f}".replace("-", "−")
    return _row(name, pair.same, kappa)


def _row(name: str, share: Share, kappa: str = "") -> PeopleRow:
    bounds = f"{percent(share.low)} – {percent(share.high)}" if share.of else ""
    return PeopleRow(name, percent(share.rate), bounds, f"{share.count} of {share.of}", kappa)


def _note(people: HumanSuccess) -> str:
    sentences = [f"{', '.join(people.raters)} saw {people.units} of the chosen policy, and no reward."]
    if people.unsure:
        sentences.append(f"Answers that say neither: {people.unsure}.")
    if people.undecided:
        sentences.append(f"As many say yes as no of {people.undecided}, which count as no success.")
    return " ".join(sentences)
