"""Shared parts of all HTML pages: templates, files of a run as plain data, and numbers as text."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.config.secrets import masked
from sightline.errors import BadInput
from sightline.runs import files
from sightline.runs.files import read_document, write_atomically
from sightline.runs.folder import RunFolder
from sightline.runs.metrics import iterate_metrics

if TYPE_CHECKING:
    import jinja2

_DOCUMENTS = (
    "run.json",
    "result.json",
    "untrained.json",
    "check.json",
    "landscape.json",
    "warnings.json",
    "versions.json",
)
MOST_RECORDS = 40_000
"""Records of metrics that a page is made from, besides rare ones."""
_RARE = ("evaluation/", "labels/")
"""Beginnings of the names of metrics that are logged now and then."""
THIN_SPACE = "\u202f"
NO_BREAK = "\u00a0"
_IN_SCRIPTS = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}


@dataclass(frozen=True)
class Number:
    """Result number before and after training, as text.

    Attributes:
        interval: the 95 % interval of `after`; empty if unknown.
    """

    name: str
    before: str
    after: str
    interval: str = ""


def write_page(path: Path, template: str, **values: Any) -> Path:
    """Write a page from one of the package's templates; all values are escaped. Returns its path."""
    page = _templates().get_template(template).render(**values)
    write_atomically(path, page.encode("utf-8", "replace"))  # a model's reply may hold half of a surrogate pair
    return path


def report_values(run: Path, recipe: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
    """Template values of `report_base.html`, which the reports of all roles share, as far as the files hold them."""
    return {
        "title": recipe.get("description") or recipe.get("env") or run.resolve().name,
        "run_name": run.resolve().name,
        "warnings": [*read_warnings(run), *damage(run)],
        "panel": _panel_sentence(result),
        "unreadable": not result and (run / "result.json").exists(),
        "chosen_step": whole(result.get("chosen_step")),
        "recipe_text": masked(read_text(run / "recipe.yaml")),
        "versions": read_mapping(run / "versions.json"),
        "model_card": read_text(run / "model_card.md"),
        "command": read_text(run / "command.txt").strip(),
    }


@cache
def _templates() -> jinja2.Environment:
    import jinja2

    def text(name: str) -> str:
        return (resources.files("sightline.reports") / "templates" / name).read_text("utf-8")

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(text), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["whole"] = whole
    return environment


def json_for_script(document: Any) -> str:
    """Encode JSON safely for a `script` element of a page, whatever its texts hold; not to be escaped again."""
    import markupsafe

    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return markupsafe.Markup(text.translate(_IN_SCRIPTS))


def data_url(content: bytes, media_type: str = "image/png") -> str:
    """Encode a picture or video as a data URL."""
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


def png_url(file: Path) -> str | None:
    """Encode a PNG file as a data URL; None if it cannot be read."""
    try:
        return data_url(files.read_bytes(file, files.MAX_PICTURE))
    except (OSError, BadInput):
        return None


def read_recipe(run: Path) -> dict[str, Any]:
    """Read the recipe of a run as plain data; empty if it cannot be read."""
    try:
        return RunFolder(run).document()
    except BadInput:
        return {}


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a JSON object of a run without its format number; empty if missing or damaged (see `damage`)."""
    try:
        return read_document(path)
    except (OSError, BadInput):
        return {}


def read_text(path: Path) -> str:
    """Read a text file; empty if there is none."""
    try:
        return files.read_text(path)
    except (OSError, BadInput):
        return ""


def read_warnings(run: Path) -> list[str]:
    """Read the warnings of a run; empty if they are missing or damaged (see `damage`)."""
    warnings = read_mapping(run / "warnings.json").get("warnings")
    if not isinstance(warnings, list):
        return []
    return [str(warning) for warning in warnings]


def damage(run: Path) -> list[str]:
    """List damaged files among those that pages are made from, a line each; missing files do not count."""
    folder = RunFolder(run)
    # Each is read as pages read it, and what it raises is the line.
    readers: list[Callable[[], object]] = []
    if (run / "recipe.yaml").exists():
        readers.append(folder.document)
    readers.append(partial(_metrics, run))
    readers += [partial(folder.read_json, name) for name in _DOCUMENTS]
    lines = []
    for read in readers:
        try:
            read()
        except BadInput as error:
            lines.append(str(error))
    return lines


def read_records(run: Path) -> Sequence[dict[str, Any]]:
    """Read the metrics of a run; empty if they are missing or damaged (see `damage`).

    Of a very long run's records every second, fourth, … is left out, but for those of evaluations and labels, which are
    few, and the last one.
    """
    try:
        return _metrics(run)
    except BadInput:
        return ()


def _metrics(run: Path) -> Sequence[dict[str, Any]]:
    """Metrics of a run as pages show them; see `read_records`.

    Raises:
        BadInput: they are damaged.
    """
    file = run / "metrics.jsonl"
    try:
        status = file.lstat()
    except OSError:  # there is none
        return []
    return _metrics_of(file, (status.st_ino, status.st_size, status.st_mtime_ns))


@lru_cache(maxsize=1)
def _metrics_of(file: Path, version: object) -> Sequence[dict[str, Any]]:
    """Metrics of a file, which one page asks for several times, and which may take seconds to read.

    Args:
        version: another one whenever the file has changed.
    """
    # Records by their line number, from which the order of the file is made again.
    rare: dict[int, dict[str, Any]] = {}
    frequent: dict[int, dict[str, Any]] = {}
    last: dict[int, dict[str, Any]] = {}  # the curve must reach the run's end
    every = 1
    for line_number, record in enumerate(iterate_metrics(file)):
        if any(key.startswith(_RARE) for key in record):
            rare[line_number] = record
            continue
        last = {line_number: record}
        if line_number % every == 0:
            frequent |= last
        # Too many: halve those that are kept, and keep half as many from now on.
        if len(frequent) > MOST_RECORDS:
            frequent = dict(list(frequent.items())[::2])
            every *= 2
    records = rare | frequent | last
    return [records[line_number] for line_number in sorted(records)]


def percent(rate: float | None) -> str:
    """Format a rate: 93 %; empty if it is unknown, as all of these functions."""
    return "" if rate is None else f"{100 * rate:.0f}{THIN_SPACE}%"


def decimal(value: float | None) -> str:
    """Format a number with three significant digits: 0.912, 47.3, 1 830."""
    if value is None:
        return ""
    magnitude = abs(value)
    if magnitude < 1:
        digits = 3
    elif magnitude < 10:
        digits = 2
    elif magnitude < 100:
        digits = 1
    else:
        digits = 0
    return f"{value:,.{digits}f}".replace(",", THIN_SPACE).replace("-", "−")


def whole(value: int | None) -> str:
    return "" if value is None else f"{value:,}".replace(",", THIN_SPACE)


def duration(seconds: float | None) -> str:
    """Format a duration with two or three significant digits: 250 ms, 7.5 s, 42 s, 12 min, 1.7 h."""
    if seconds is None:
        return ""
    if 0 < seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    return f"{seconds / 3600:.1f} h"


def money(amount: float | None) -> str:
    """Format an amount of money, in the currency of the teacher's prices."""
    if amount is None:
        return ""
    if not amount:
        return "0"
    if amount < 1:
        return f"{amount:.2g}"
    return f"{amount:,.2f}"


def interval(numbers: Mapping[str, Any], prefix: str = "", show: Callable[[float], str] = percent) -> str:
    """Format the 95 % interval in a result's `<prefix>ci_low` and `<prefix>ci_high`; empty if they are unknown."""
    low = numbers.get(f"{prefix}ci_low")
    high = numbers.get(f"{prefix}ci_high")
    if low is None or high is None:
        return ""
    return f"{show(low)} – {show(high)}"


def number(
    result: Mapping[str, Any], name: str, key: str, show: Callable[[float | None], str], prefix: str | None = None
) -> Number | None:
    """Build a result number, after and before training; None if it is unknown.

    Args:
        prefix: prefix of the keys of its interval; None if it has none.
    """
    if result.get(key) is None:
        return None
    before = show(block(result, "untrained").get(key))
    after = show(result[key])
    if prefix is None:
        return Number(name, before, after)
    return Number(name, before, after, interval(result, prefix, show))


def known_facts(facts: Mapping[str, Any]) -> dict[str, str]:
    """Facts that are known, as text."""
    return {name: str(value) for name, value in facts.items() if value not in (None, "")}


def _panel_sentence(result: Mapping[str, Any]) -> str:
    """Describe the panel of an evaluation, such as "100 episodes, panel cartpole-test 3f9a"."""
    parts = []
    if result.get("episodes"):
        parts.append(f"{result['episodes']} episodes")
    if result.get("panel"):
        parts.append(f"panel {result['panel']}")
    return ", ".join(parts)


def block(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Block of a recipe, as a mapping; empty if there is none."""
    block = values.get(name)
    if not isinstance(block, dict):
        return {}
    return block


def by_text(lines: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Lines on rewards, each text once, with the names of all that it is true of."""
    names: dict[str, list[str]] = {}
    for name, text in lines:
        names.setdefault(text, []).append(name)
    for text, of in names.items():
        yield f"{', '.join(of)}: {text}"
