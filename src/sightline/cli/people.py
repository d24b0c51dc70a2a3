"""Success as people see it, in lines of a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.errors import BadInput

if TYPE_CHECKING:
    from sightline.runs.folder import RunFolder


def read_people(folder: Path) -> dict[str, Any]:
    """What people say of a data set, as plain data; see `HumanSuccess`.

    Raises:
        BadInput: nobody was asked.
    """
    people = _summed_up(folder)
    if people is None:
        raise BadInput(f"nobody has labelled '{folder}': sightline label serve {folder} --ask success")
    return people


def people_of_run(run: RunFolder) -> dict[str, Any] | None:
    """What people say of a run's chosen policy, as `read_people`; None where nobody was asked."""
    from sightline.session import chosen_checkpoint

    if not run.people(0).parent.is_dir():
        return None
    return _summed_up(run.people(chosen_checkpoint(run).step))


def _summed_up(folder: Path) -> dict[str, Any] | None:
    from sightline.datasets.human_labels import read_human_labels
    from sightline.evaluation.human_success import human_success

    labels = read_human_labels(folder)
    return asdict(human_success(labels)) if labels else None


def people_in_words(people: Mapping[str, Any]) -> Iterator[str]:
    """What people say of a data set, what its environment says of the same, and how far all agree.

    Args:
        people: a `HumanSuccess` as plain data.
    """
    again, environment = people["again"], people["by_environment"]
    yield (
        f"people: {_share(people['success'], people['units'])} are a success, {people['unsure']} answers unsure; "
        f"{again['count']} of {again['of']} said the same again ({', '.join(people['raters'])})"
    )
    if environment["of"]:
        yield f"  the environment calls {_share(environment)} of the same a success"
    pairs = list(people["between"])
    if people["with_environment"]:
        pairs.append(people["with_environment"])
    for pair in pairs:
        kappa = "" if pair["kappa"] is None else f", kappa {pair['kappa']:.2f}"
        yield f"  {pair['first']} and {pair['second']}: {_share(pair['same'])} the same{kappa}"


def _share(share: Mapping[str, Any], units: str = "") -> str:
    """A share of some units with its 95 % interval."""
    count = f"{share['count']} of {share['of']} {units}".rstrip()
    return f"{count} ([{100 * share['low']:.0f}, {100 * share['high']:.0f}] %)"
