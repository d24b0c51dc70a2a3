"""Prompt files: the words that a chat model is asked with, as plain data. One format for judges and teachers.

    What stands before the first section is a note, which no model reads.

    [system]
    You judge pictures of a simulator.

    [user]
    {pictures}
    Does the last picture show this: {goal}?

    [picture]
    Picture {number}:
    {picture}

A line that holds a word in square brackets and nothing else begins a section. `{name}` is a variable, replaced by
words or by pictures, once: what is put in is not searched again. `{{name}}` is `{name}` itself, and all other braces
are themselves, so that JSON can stand in a prompt as it is. Where there is a section `picture`, each picture of a
variable of several is shown by it, one after the other. Nothing is computed: a file of a stranger is no program.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator

from sightline.errors import nearest
from sightline.images import Picture
from sightline.models.chat.messages import Part

MOST_CHARACTERS = 100_000
"""Of a prompt file."""
_HEADING = re.compile(r"^\[(\w+)\][ \t]*\n?", re.MULTILINE)
_BRACES = re.compile(r"\{\{(\w+)\}\}|\{(\w+)\}")
EACH_PICTURE = "picture"
"""Section by which each picture of a variable is shown, and the variable in it that is the picture."""
NUMBER = "number"
"""Variable of that section: 1 for the first picture."""

Value = str | Picture | Sequence[Picture]
"""What takes the place of a variable."""


@dataclass(frozen=True)
class PromptFile:
    """A prompt file that was read.

    Attributes:
        sections: name -> text, in the order of the file, without blank lines at both ends.
    """

    sections: Mapping[str, str]

    @property
    def digest(self) -> str:
        """16 hexadecimal digits of the SHA-256 of all that a model reads: for signatures, by which answers to other
        words are told apart. Notes, blank lines between sections and the file's name have no part in it."""
        content = json.dumps(sorted(self.sections.items()), ensure_ascii=False)
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    def variables(self, section: str) -> set[str]:
        """Variables of a section; none of one that is not there."""
        found = _BRACES.finditer(self.sections.get(section, ""))
        return {match[2] for match in found if match[2]}

    def lines(self, section: str) -> tuple[str, ...]:
        """Lines of a section that are not blank, such as the choices that a reply is one of."""
        lines = self.sections.get(section, "").splitlines()
        return tuple(line.strip() for line in lines if line.strip())

    def fill(self, section: str, values: Mapping[str, Value]) -> tuple[Part, ...]:
        """A section with its variables replaced, as texts and pictures in turn; empty if it is not there.

        White space between a text and a picture is left out: models have their own way to part them.
        """
        pieces: list[Part] = []
        for text, variable in _split(self.sections.get(section, "")):
            pieces.append(text)
            if variable is None:
                continue
            value = values[variable]
            if isinstance(value, str | Picture):
                pieces.append(value)
            else:
                pieces += self._shown(value)
        return _joined(pieces)

    def _shown(self, pictures: Sequence[Picture]) -> list[Part]:
        if EACH_PICTURE not in self.sections:
            return list(pictures)
        shown: list[Part] = []
        for number, picture in enumerate(pictures, 1):
            for text, variable in _split(self.sections[EACH_PICTURE]):
                shown.append(text)
                if variable is not None:
                    shown.append(picture if variable == EACH_PICTURE else str(number))
            shown.append("\n")
        return shown


def parse_prompt(text: str, known: Mapping[str, Sequence[str]]) -> PromptFile:
    """Read a prompt file's text.

    Args:
        text: of the file.
        known: sections that will be read, and the variables that each may hold; the section `picture` goes without
            saying where a variable is one of pictures.

    Raises:
        ValueError: there is no section `user`, or one that is unknown, empty or there twice, or an unknown variable.
    """
    # A file from another system may have a mark at its beginning, and other ends of lines.
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n")
    if len(lines) > MOST_CHARACTERS:
        raise ValueError(f"a prompt has at most {MOST_CHARACTERS:,} characters, and this one has {len(lines):,}")
    known = {**known, EACH_PICTURE: (EACH_PICTURE, NUMBER)}
    _, *parts = _HEADING.split(lines)
    sections: dict[str, str] = {}
    for name, content in zip(parts[::2], parts[1::2], strict=True):
        if name not in known:
            raise ValueError(f"a prompt has no section [{name[:40]}] here{_listed(name, known)}")
        if name in sections:
            raise ValueError(f"the prompt has two sections [{name}]; put them together")
        if not content.strip():
            raise ValueError(f"the prompt's section [{name}] is empty; write something, or leave it out")
        sections[name] = content.strip("\n").rstrip()
    if "user" not in sections:
        raise ValueError("a prompt needs a section [user]: a line that holds [user] alone, and below it the words")
    prompt = PromptFile(sections)
    for name in sections:
        for variable in sorted(prompt.variables(name) - {*known[name]}):
            raise ValueError(
                f"the prompt's section [{name}] has no variable {{{variable[:40]}}} here"
                f"{_listed(variable, known[name])}; or write {{{{{variable[:40]}}}}} for the braces themselves"
            )
    if EACH_PICTURE in sections and EACH_PICTURE not in prompt.variables(EACH_PICTURE):
        raise ValueError("the prompt's section [picture] shows none; put {picture} where it shall stand")
    return prompt


def _listed(name: str, known: Mapping[str, Any] | Sequence[str]) -> str:
    """The known names behind a complaint about an unknown one."""
    names = ", ".join(known) or "none"
    hint = nearest(name, known)
    if hint.startswith("; known"):  # the list, which follows
        hint = ""
    return f"; known: {names}{hint}"


def _split(text: str) -> list[tuple[str, str | None]]:
    """A text as pieces, each with the variable behind it; None behind the last one."""
    pieces: list[tuple[str, str | None]] = []
    before = ""
    end = 0
    for match in _BRACES.finditer(text):
        before += text[end : match.start()]
        end = match.end()
        if match[1]:
            before += f"{{{match[1]}}}"
            continue
        pieces.append((before, match[2]))
        before = ""
    return [*pieces, (before + text[end:], None)]


def _joined(pieces: Sequence[Part]) -> tuple[Part, ...]:
    """Texts beside each other as one; those without words are left out."""
    parts: list[Part] = []
    for piece in pieces:
        if isinstance(piece, str) and parts and isinstance(parts[-1], str):
            parts[-1] += piece
        else:
            parts.append(piece)
    trimmed = [part.strip() if isinstance(part, str) else part for part in parts]
    return tuple(part for part in trimmed if part)


def _text_of_file(value: Any) -> Any:
    """The text of a prompt file that a recipe names; a text of several lines is one already."""
    if not isinstance(value, str) or "\n" in value.strip():
        return value
    path = Path(value).expanduser()
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(MOST_CHARACTERS + 1)
    except UnicodeDecodeError as error:
        raise ValueError(f"the prompt file '{value[:200]}' is no text (UTF-8)") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "that is no path"
        raise ValueError(f"the prompt file '{value[:200]}' cannot be read: {reason}") from error


PromptText = Annotated[str, BeforeValidator(_text_of_file)]
"""Field of a recipe that names a prompt file. The file is read at once and its text takes the place of its name: so a
run's recipe holds all of it, the run resumes anywhere, and a file that has changed since is noticed."""
