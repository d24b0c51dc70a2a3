"""Success as people see it, in lines of a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sightline.errors import BadInput


def read_people(folder: Path) -> dict[str, Any]:
    """What people say of a data set, as plain data; see `HumanSuccess`.

    Raises:
        BadInput: nobody was asked.
    """
    from sightline.datasets.human_labels import read_human_labels
    from sightline.evaluation.human_success import human_success

    labels = read_human_labels(folder)
    if not labels:
        raise BadInput(f"nobody has labelled '{folder}': sightline label serve {folder} --ask success")
    return asdict(human_success(labels))


def people_in_words(people: dict[str, Any]) -> Iterator[str]:
    """What people say of a data set, and how far they agree.

    Args:
        people: a `HumanSuccess` as plain data.
    """
    success, again = people["success"], people["again"]
    yield (
        f"people: {success['count']} of {success['of']} are a success "
        f"[{100 * success['low']:.0f}, {100 * success['high']:.0f}] %, {people['unsure']} answers unsure; "
        f"{again['count']} of {again['of']} said the same again ({', '.join(people['raters'])})"
    )
    for pair in people["between"]:
        kappa = "" if pair["kappa"] is None else f", kappa {pair['kappa']:.2f}"
        yield f"  {pair['first']} and {pair['second']}: {pair['same']['count']} of {pair['same']['of']} the same{kappa}"
