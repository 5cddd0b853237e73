"""Durations and instants: Python's own types outside, the text of the HTTP API inside.

Text that a caller gives is passed on as it is; the broker checks it and names the field that is wrong.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from typing import TypeAlias

Duration: TypeAlias = timedelta | str
"""A `timedelta`, or text like `500ms`, `15m`, `1h30m`, `30d` or `PT15M`."""

Instant: TypeAlias = datetime | str | int
"""An aware `datetime`, RFC 3339 text, or milliseconds since the Unix epoch."""

_UNITS_MS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1))
_SHORT = re.compile(r"(?:(\d+)w)?(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?(?:(\d+)ms)?")
_ISO = re.compile(r"P(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:[.](\d{1,3})\d*)?S)?)?")
_FRACTION = re.compile(r"[.](\d+)")


def duration_text(duration: Duration) -> str:
    """The text of a duration. Parts of a millisecond are rounded up: a task is never early."""
    if isinstance(duration, str):
        return duration
    micros = (duration.days * 86_400 + duration.seconds) * 1_000_000 + duration.microseconds
    if micros < 0:
        raise ValueError(f"a duration cannot be negative: {duration!r}")
    rest = -(-micros // 1_000)
    parts = []
    for unit, size in _UNITS_MS:
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def parse_duration(text: str) -> timedelta:
    """Reads `1h30m` or `PT1H30M`."""
    iso = text.startswith("P")
    found = (_ISO if iso else _SHORT).fullmatch(text)
    if not text or found is None or not any(found.groups()):
        raise ValueError(f"not a duration like 15m, 1h30m or PT15M: {text!r}")
    weeks, days, hours, minutes, seconds, millis = found.groups()
    millis = (millis or "0").ljust(3, "0") if iso else millis
    return timedelta(
        weeks=int(weeks or 0),
        days=int(days or 0),
        hours=int(hours or 0),
        minutes=int(minutes or 0),
        seconds=int(seconds or 0),
        milliseconds=int(millis or 0),
    )


def seconds(duration: Duration) -> float:
    """A duration as seconds, for timeouts of this process."""
    parsed = parse_duration(duration) if isinstance(duration, str) else duration
    return parsed.total_seconds()


def instant_json(instant: Instant) -> str | int:
    """An instant as the API takes it."""
    if not isinstance(instant, datetime):
        return instant
    if instant.tzinfo is None:
        raise ValueError(f"a datetime needs a time zone: {instant!r}")
    return instant.astimezone(timezone.utc).isoformat(timespec="milliseconds")[:-6] + "Z"


def parse_instant(text: str) -> datetime:
    """Reads RFC 3339. (`fromisoformat` takes neither `Z` nor nine decimals before Python 3.11.)"""
    if text.endswith(("Z", "z")):
        text = text[:-1] + "+00:00"
    text = _FRACTION.sub(lambda found: "." + found.group(1)[:6].ljust(6, "0"), text, count=1)
    return datetime.fromisoformat(text)
