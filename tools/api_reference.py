"""Write docs/api.md, the reference of the public names, from their signatures and docstrings.

python tools/api_reference.py
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import sightline

PAGE = Path(__file__).parents[1] / "docs" / "api.md"
GROUPS = {
    "Rewards": (
        *("ZeroShotReward", "ProgressReward", "LearnedReward", "wrap", "RecordFrame", "RewardModel", "Scope", "Clip"),
        *("HTTPReward", "LeRobotReward", "JudgeReward"),
    ),
    "Teachers and labels": (
        *("ChatTeacher", "EncoderTeacher", "ScriptedTeacher", "Teacher", "Answer", "LabelStore", "fit_reward"),
    ),
    "Games": ("text_game",),
    "Runs": ("lab", "collect", "train", "Run", "evaluate"),
    "Plug-ins": (*("register", "RewardConfig", "RewardSetup", "TeacherConfig", "FeedbackConfig", "AlgorithmConfig"),),
    "Errors": ("BadInput", "RunFailed"),
}
HEAD = """# Python API

Everything public is imported from `sightline` itself, when it is first used. This page is written by
`tools/api_reference.py` from the docstrings. Examples are in the [README](../README.md#from-python), in
[rewards_from_words.ipynb](../examples/rewards_from_words.ipynb) and in [Plug-ins](plugins.md).
"""
SECTIONS = ("Args", "Attributes", "Returns", "Yields", "Raises")


def page() -> str:
    """The text of docs/api.md."""
    parts = [HEAD]
    for group, names in GROUPS.items():
        parts.append(f"## {group}\n")
        parts += [entry(name, getattr(sightline, name)) for name in names]
    return "\n".join(parts)


def entry(name: str, thing: Any) -> str:
    """One public name: signature, docstring, and the public methods of a class."""
    lines = [f"### {name}\n"]
    parameters = "" if inspect.isclass(thing) and issubclass(thing, Exception) else signature(thing)
    if parameters:
        lines.append(f"```py\n{name}{parameters}\n```\n")  # not `python`: tests compile what is marked so
    lines.append(text(thing))
    methods = [f"- {member}" for member in members(thing)] if inspect.isclass(thing) else []
    if methods:
        lines.append("Methods and properties:\n\n" + "\n".join(methods) + "\n")
    return "\n".join(lines)


def signature(thing: Callable[..., Any]) -> str:
    """Parameters with types and defaults, on one line or one each; empty for a class without a constructor."""
    found = inspect.signature(thing)
    if inspect.isclass(thing) and set(found.parameters) <= {"args", "kwargs", "kind"}:
        return ""
    parameters: list[str] = []
    keyword_only = False
    for parameter in found.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            parameters.append("*")
        stars = "**" if parameter.kind is parameter.VAR_KEYWORD else ""
        part = f"{stars}{parameter.name}: {_type(parameter.annotation)}"
        parameters.append(part if parameter.default is parameter.empty else f"{part} = {_default(parameter.default)}")
    result = "" if inspect.isclass(thing) else f" -> {_type(found.return_annotation)}"
    line = f"({', '.join(parameters)}){result}"
    return line if len(line) < 100 else "(\n    " + ",\n    ".join(parameters) + f",\n){result}"


def _type(annotation: Any) -> str:
    return annotation.strip("'") if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _default(value: Any) -> str:
    if inspect.isclass(value):
        return f"numpy.{value.__name__}"
    return f'"{value}"' if isinstance(value, str) else repr(value)


def text(thing: Any) -> str:
    """A docstring as Markdown: paragraphs, code, and lists of arguments."""
    doc = inspect.getdoc(thing) or ""
    lines: list[str] = []
    in_code = in_section = False
    for line in doc.splitlines():
        bare = line.strip()
        is_code = line.startswith((">>> ", "... ")) or (line.startswith("    ") and not in_section)
        if is_code and not in_code:
            lines.append("```python")
        if in_code and not is_code:
            lines.insert(len(lines) - (1 if lines[-1] == "" else 0), "```")
        in_code = is_code
        if not bare:
            lines.append("")
        elif is_code:
            lines.append(line[4:])
        elif bare.rstrip(":") in SECTIONS and line == bare:
            in_section = True
            lines += [f"{bare}", ""]
        elif in_section and line.startswith("    ") and not line.startswith("      "):
            name, colon, rest = bare.partition(": ")
            lines.append(f"- `{name}`: {rest}" if colon and len(name) < 60 else f"- {bare}")
        elif in_section:
            lines.append(f"  {bare}")
        else:
            lines.append(line)
    if in_code:
        lines.append("```")
    return "\n".join(lines) + "\n"


def members(thing: type) -> Iterator[str]:
    """Public methods and properties that the class or one of its bases in this package defines, a line each."""
    seen: set[str] = set()
    for owner in thing.__mro__:
        if not owner.__module__.startswith("sightline"):
            continue
        for name, member in vars(owner).items():
            if name in seen or (name.startswith("_") and name != "__call__"):
                continue
            seen.add(name)
            kind = member.__func__ if isinstance(member, classmethod | staticmethod) else member
            if isinstance(kind, property):
                said = inspect.getdoc(kind)
                label = f"`.{name}`"
            elif inspect.isfunction(kind):
                said = _own_doc(thing, name)
                parameters = [p for p in inspect.signature(kind).parameters if p not in ("self", "cls")]
                label = f"`{'' if name == '__call__' else '.' + name}({', '.join(parameters)})`"
            else:
                continue
            if said:
                yield f"{label}: {' '.join(said.split(chr(10) * 2)[0].split())}"


def _own_doc(thing: type, name: str) -> str:
    """The docstring that the first class of this package gave a method; overriding ones may leave it out."""
    owners = (vars(owner).get(name) for owner in thing.__mro__ if owner.__module__.startswith("sightline"))
    return next((inspect.cleandoc(found.__doc__) for found in owners if found is not None and found.__doc__), "")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
