"""What an HTTP status means for a request: ask again, ask less, or give up."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from sightline.models.chat.messages import NoReply, Refused, Rejected, Transient

MAY_PASS = {408, 409, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524, 529}
_NO_MONEY = ("insufficient_quota", "credit balance", "payment required")
_BLOCKED = ("content_filter", "content_policy", "content management policy", "safety system")


def no_reply(status: int, message: str, key_variable: str | None, retry_after: str | None = None) -> NoReply:
    """The exception for an answer with this status.

    Args:
        message: what the server says about it.
        key_variable: where the key came from, None if none was sent.
        retry_after: the server's header of that name, or what says the same.
    """
    wait = seconds_to_wait(retry_after)
    # Gemini mentions billing whenever a limit of the minute is reached, and says then how long to wait.
    unpaid = (*_NO_MONEY, "billing") if wait is None else _NO_MONEY
    said = f" ({message})" if message else ""
    lowered = message.lower()
    if status in (400, 403, 422) and "logprob" in lowered:  # reasoning models of OpenAI forbid them with a 403
        return Rejected(f"the server answers {status}{said}", malformed=True)
    if status in (401, 403) or (status == 400 and "api key" in lowered):
        about = f"the key in {key_variable}" if key_variable else "a request without a key; set key_env"
        return Rejected(f"the server refuses {about}{said}")
    if status == 402 or (status == 429 and any(word in lowered for word in unpaid)):
        return Rejected(f"the provider wants to be paid first{said}")
    if status == 404:
        return Rejected(f"the server knows no such model or address{said}")
    if status in (400, 422) and any(word in lowered for word in _BLOCKED):
        return Refused(f"the provider blocked the request{said}")
    if status in MAY_PASS or status >= 500:
        return Transient(f"the server answers {status}{said}", wait)
    return Rejected(f"the server answers {status}{said}", malformed=status in (400, 422))


def seconds_to_wait(retry_after: str | None, now: float | None = None) -> float | None:
    """Seconds that a Retry-After header asks for, be it a number or a date; None if it says nothing sensible.

    Args:
        now: seconds since 1970, for the date; default: the clock.
    """
    if retry_after is None:
        return None
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            then = parsedate_to_datetime(retry_after)
        except (ValueError, TypeError, IndexError):
            return None
        then = then if then.tzinfo else then.replace(tzinfo=UTC)
        seconds = (then - datetime.fromtimestamp(time.time() if now is None else now, UTC)).total_seconds()
    return max(seconds, 0.0) if seconds < float("inf") else None
