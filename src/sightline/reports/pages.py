"""What the pages of a run share: reading its files, numbers as text, and templates."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.errors import BadInput
from sightline.runs import files
from sightline.runs.files import read_document
from sightline.runs.folder import RunFolder
from sightline.runs.metrics import read_metrics

if TYPE_CHECKING:
    import jinja2

_DOCUMENTS = ("run.json", "result.json", "untrained.json", "landscape.json", "warnings.json", "versions.json")
THIN_SPACE = "\u202f"
_IN_SCRIPTS = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}


@dataclass(frozen=True)
class Number:
    """A result before and after training, as text.

    Attributes:
        interval: the 95 % interval of `after`; empty if unknown.
    """

    name: str
    before: str
    after: str
    interval: str = ""


def render(name: str, **values: Any) -> str:
    """A page from one of our templates; whatever is put in is escaped."""
    return _templates().get_template(name).render(**values)


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
    """JSON that can stand in a `script` element of a page, whatever its texts say; not to be escaped again."""
    import markupsafe

    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return markupsafe.Markup(text.translate(_IN_SCRIPTS))


def data_url(file: Path) -> str | None:
    """A picture as text; None if it cannot be read."""
    try:
        return "data:image/png;base64," + base64.b64encode(files.read_bytes(file, files.MAX_PICTURE)).decode()
    except (OSError, BadInput):
        return None


def read_recipe(run: Path) -> dict[str, Any]:
    """The recipe of a run as plain data; empty if it cannot be read."""
    try:
        return RunFolder(run).document()
    except BadInput:
        return {}


def read_mapping(path: Path) -> dict[str, Any]:
    """A JSON object of a run without its format number; empty if it is missing or damaged (`damage` says)."""
    try:
        return read_document(path)
    except (OSError, BadInput):
        return {}


def read_text(path: Path) -> str:
    """The file's text; empty if there is none."""
    try:
        return files.read_text(path)
    except (OSError, BadInput):
        return ""


def read_warnings(run: Path) -> list[str]:
    """What the run has warned of, and what is damaged in its folder."""
    said = read_mapping(run / "warnings.json").get("warnings")
    return [*(map(str, said) if isinstance(said, list) else ()), *damage(run)]


def damage(run: Path) -> list[str]:
    """What is wrong with the files that pages are made from, a line each; files that are not there are not wrong."""
    readers: list[Callable[[], object]] = [
        *([RunFolder(run).document] if (run / "recipe.yaml").exists() else []),
        lambda: read_metrics(run / "metrics.jsonl"),
        *(partial(RunFolder(run).read_json, name) for name in _DOCUMENTS),
    ]
    found = []
    for read in readers:
        try:
            read()
        except BadInput as error:
            found.append(str(error))
    return found


def read_records(run: Path) -> list[dict[str, Any]]:
    """The metrics of a run; empty if they are missing or damaged (`damage` says)."""
    try:
        return read_metrics(run / "metrics.jsonl")
    except BadInput:
        return []


def percent(rate: float | None) -> str:
    return "" if rate is None else f"{100 * rate:.0f}{THIN_SPACE}%"


def decimal(value: float | None) -> str:
    """Three significant digits: 0.912, 47.3, 1 830."""
    if value is None:
        return ""
    digits = 3 if abs(value) < 1 else 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:,.{digits}f}".replace(",", THIN_SPACE).replace("-", "−")


def whole(value: int | None) -> str:
    return "" if value is None else f"{value:,}".replace(",", THIN_SPACE)


def duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    minutes, hours = round(seconds / 60), seconds / 3600
    return f"{seconds:.0f} s" if seconds < 90 else f"{minutes} min" if minutes < 90 else f"{hours:.1f} h"


def panel_sentence(result: Mapping[str, Any]) -> str:
    """On what the numbers were measured, such as "100 episodes, panel cartpole-test 3f9a"."""
    episodes = f"{result['episodes']} episodes" if result.get("episodes") else ""
    panel = f"panel {result['panel']}" if result.get("panel") else ""
    return ", ".join(part for part in (episodes, panel) if part)


def block(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A part of a recipe that has parts itself; empty if there is none."""
    block = values.get(name)
    return block if isinstance(block, dict) else {}
