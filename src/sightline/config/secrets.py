"""Secrets: API keys and passwords, told from what else a recipe says.

A recipe is written into its run folder, the report and Weights & Biases, and people publish these. So it names the
environment variable that holds a key, never the key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from sightline.errors import BadInput

_NAME = (
    r"(?:[\w-]*[_-])?(?:api|access|subscription|private|secret|account|master)[_-]?keys?"
    r"|(?:[\w-]*[_-])?(?:access|auth|api|bearer|refresh|session|id|hf|security)[_-]?tokens?"
    r"|(?:[\w-]*[_-])?(?:secrets?|passwords?|passwd|passphrase|credentials?)|(?:proxy-)?authorization"
)
_SECRET_NAME = re.compile(_NAME, re.IGNORECASE)
"""Names of keys of recipes, headers and options whose values are secret."""
_SECRET_PARAMETER = re.compile(rf"{_NAME}|(?:[\w-]*[_-])?(?:key|token|sig|signature|code|auth|pwd)", re.IGNORECASE)
"""Names of an address's parameters whose values are secret."""
_KEY = re.compile(
    r"\b(?:sk|pk|rk)-(?=[\w-]*\d)[\w-]{16,}|\bAIza[\w-]{30,}|\bya29\.[\w-]{20,}|\b(?:hf|gsk|r8|fw)_[a-zA-Z0-9]{20,}"
    r"|\b(?:nvapi|pplx|xai|tgp)-[\w-]{20,}|\bgh[opsru]_\w{20,}|\bgithub_pat_\w{20,}|\bxox[abprs]-[\w-]{10,}"
    r"|\bAKIA[0-9A-Z]{16}\b|\beyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{5,}"
)
"""What keys of known services look like."""
_USER = re.compile(r"(?<=://)[^/\s@'\"]+@")
_PARAMETER = re.compile(rf"(?<=[?&])({_SECRET_PARAMETER.pattern})=[^&\s'\"#]+", re.IGNORECASE)
_ASSIGNMENT = re.compile(
    rf"(?<![\w-])({_NAME})(['\"]?\s*[=:]\s*)(?!['\"]?\$)(?:(?:Bearer|Basic|Token)\s+)?(?:'[^']*'|\"[^\"]*\"|[^\s'\",}}&]+)",
    re.IGNORECASE,
)
VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
"""How a value names an environment variable: `$NAME` or `${NAME}`."""
_WITHOUT_SECRETS = ("env_options", "training_options", "goal", "baseline", "description", "prompt")
"""Parts of a recipe whose names are an environment's own, or that are sentences: only what looks like a key counts."""
_ADVICE = "put it into an environment variable"


def masked(text: str) -> str:
    """A text with `…` in place of everything that looks like a secret, and addresses without user and password."""
    text = _USER.sub("", text)
    # Names stay, so that a reader sees what was left out.
    text = _PARAMETER.sub(r"\1=…", text)
    text = _ASSIGNMENT.sub(r"\1\2…", text)
    return _KEY.sub("…", text)


def masked_document(value: Any) -> Any:
    """Plain data with its texts masked."""
    if isinstance(value, dict):
        document: dict[Any, Any] = {}
        for key, child in value.items():
            is_secret = _is_secret_name(str(key)) and _is_literal(child)
            document[key] = "…" if is_secret else masked_document(child)
        return document
    if isinstance(value, list | tuple):
        return [masked_document(child) for child in value]
    if isinstance(value, str):
        return masked(value)
    return value


def refuse_secrets(document: Mapping[str, Any]) -> None:
    """Refuse a recipe, or a part of one, that holds a key or a password.

    Raises:
        BadInput: naming where, never what.
    """
    for path, value in _texts(document, ()):
        place = ".".join(path)
        reason = _reason(path, value)
        if reason:
            raise BadInput(f"{place} {reason}")


def refuse_secrets_in_url(url: str, place: str = "url") -> None:
    """Refuse an address with a password, or with a key among its parameters.

    Raises:
        BadInput: naming which, never its value.
    """
    reason = _reason_of_url(url)
    if reason:
        raise BadInput(f"{place} {reason}")


def _texts(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(value, Mapping):
        for key, child in value.items():
            yield from _texts(child, (*path, str(key)))
    elif isinstance(value, str):
        yield path, value
    elif isinstance(value, Sequence) and not isinstance(value, bytes):
        for child in value:
            yield from _texts(child, path)


def _reason(path: Sequence[str], value: str) -> str:
    """Why a text may not stand at this place of a recipe; empty if it may."""
    # What looks like a key is refused everywhere, also in a sentence.
    if _KEY.search(VARIABLE.sub("", value)):
        return f"looks like a key, and a recipe is written to files; {_ADVICE} and say key_env="
    if any(part in _WITHOUT_SECRETS for part in path):
        return ""
    if path and _is_secret_name(path[-1]) and _is_literal(value):
        return f"holds a secret, and a recipe is written to files; {_ADVICE}: key_env=NAME, or $NAME in a header"
    if "://" not in value:
        return ""
    return _reason_of_url(value)


def _reason_of_url(url: str) -> str:
    """Why an address may not stand in a recipe; empty if it may."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""  # no address; the code that opens it reports that
    if "@" in parts.netloc:
        return f"holds a user or password before the @, which would be written to files; {_ADVICE} and say key_env="
    for name, value in parse_qsl(parts.query):
        if _SECRET_PARAMETER.fullmatch(name) and _is_literal(value):
            return f"holds a secret ({name}), which would be written to files; {_ADVICE} and say query.{name}=$NAME"
    return ""


def _is_secret_name(name: str) -> bool:
    return _SECRET_NAME.fullmatch(name) is not None


def _is_literal(value: Any) -> bool:
    """Whether a value is itself what its name says, and does not only name the variable that holds it."""
    return isinstance(value, str) and bool(value.strip()) and VARIABLE.search(value) is None
