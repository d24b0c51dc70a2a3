"""The form of replies that a model was taught, as its card states it: the README.md in its folder.

---
sightline:
  replies: {format: json, thoughts: false}
---
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sightline.config.agents import Replies
from sightline.config.yaml import read_yaml, write_yaml
from sightline.errors import BadInput
from sightline.models.vlm.loading import folder_of

CARD = "README.md"
FORM = ("format", "facts", "thoughts", "fields", "memory")
"""Settings of replies that a card can state: those that a model learns to keep to."""


def with_taught_form(replies: Replies, model_name: str) -> Replies:
    """Settings of replies whose form is what a model was taught, where they leave it open.

    Args:
        model_name: `bundled`, a folder, or a name on the hub, whose card is not read.

    Raises:
        BadInput: the card states a form that there is not.
    """
    form = _form_on_card(model_name)
    own = replies.model_fields_set
    if own & set(FORM):  # keys of another form would leave out what the settings ask for
        form = {name: value for name, value in form.items() if name not in ("fields", "memory")}
    changes = {name: value for name, value in form.items() if name not in own}
    if not changes:
        return replies
    try:
        return Replies.model_validate(replies.model_dump(exclude_unset=True) | changes)
    except ValidationError as error:
        reason = " ".join(error.errors()[0]["msg"].split())
        raise BadInput(f"the card of '{model_name}' states a form of replies that there is not: {reason}") from error


def write_form(folder: Path, replies: Replies) -> None:
    """Write the card of a model that has learned to reply in a form."""
    form = {name: value for name, value in replies.model_dump(mode="json").items() if name in FORM}
    header = write_yaml({"sightline": {"replies": form}})
    text = f"---\n{header}---\n\nA policy that Sightline has trained. It replies in the form that is stated above.\n"
    (folder / CARD).write_text(text, encoding="utf-8")


def _form_on_card(model_name: str) -> dict[str, Any]:
    """What the card of a model says of the form of replies; nothing without a card of ours."""
    folder = folder_of(model_name)
    if folder is None:
        return {}
    try:
        text = (folder / CARD).read_text(encoding="utf-8-sig")
        if not text.startswith("---\n"):
            return {}
        header = text[4:].partition("\n---")[0]
        document: Any = read_yaml(header, "the card")
    except (OSError, UnicodeDecodeError, BadInput):
        return {}  # it is somebody's README, and any text may stand there
    for key in ("sightline", "replies"):
        if not isinstance(document, dict):
            return {}
        document = document.get(key)
    if not isinstance(document, dict):
        return {}
    return {name: value for name, value in document.items() if name in FORM}
