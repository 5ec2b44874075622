"""Times on the command line: the form in which they are printed, and the forms that are read."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone, tzinfo

from sparklog.errors import ConfigError

_INSTANT = re.compile(r"(?<![a-z])(at|up|since|elected|timestamp|deadline)_ms\)?$")
"""The names of columns that hold times in ms since 1970; others in ms are durations."""

_AGO = re.compile(r"(\d{1,9})\s*(second|minute|hour|day|week)s?\s+ago")

_DURATION = re.compile(
    r"P(?:(\d{1,6})D)?(?:T(?:(\d{1,9})H)?(?:(\d{1,9})M)?(?:(\d{1,9}(?:\.\d{1,9})?)S)?)?", re.ASCII
)


def is_instant(name: str) -> bool:
    """Return whether a column of this name holds times in ms since 1970, or one of them."""
    return _INSTANT.search(name) is not None


def time_text(time: int | datetime, *, utc: bool) -> str:
    """Return a time in ISO 8601 with ms and the offset from UTC, in the local zone or in UTC.

    A time in ms that no calendar has is returned as its number.
    """
    try:
        if isinstance(time, int):
            time = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(milliseconds=time)
        return time.astimezone(_zone(utc=utc)).isoformat(" ", "milliseconds")
    except (OverflowError, ValueError, OSError):
        return str(time)


def short_time(time_ms: int, *, utc: bool, since_ms: int | None = None) -> str:
    """Return a time in ms since 1970 to the second, without the zone, for people.

    Parameters: `since_ms`, the beginning of a shown time: the date is left out if it began on the
    same day.
    """
    text = time_text(time_ms, utc=utc)[:19]
    is_same_day = since_ms is not None and time_text(since_ms, utc=utc)[:10] == text[:10]
    return text[11:] if is_same_day else text


def zone_name(time_ms: int, *, utc: bool) -> str:
    """Return the zone in which a time is printed: UTC, or the offset of the local zone then."""
    offset = time_text(time_ms, utc=utc)[23:]
    return "UTC" if offset == "+00:00" else f"UTC{offset}"


def read_past_time_ms(text: str, option: str, now_ms: int, *, utc: bool) -> int:
    """Return the time that an option gives, in ms since 1970.

    `text` is ISO 8601, ms since 1970, or relative to `now_ms` as in "10 minutes ago". A time
    without a zone is local, or in UTC if `utc` is set. Raises `ConfigError` for other texts.
    """
    if re.fullmatch(r"\d{9,15}", text, re.ASCII):
        return int(text)
    ago = _AGO.fullmatch(text.strip().lower())
    try:
        if ago is not None:
            past = timedelta(**{f"{ago[2]}s": int(ago[1])})
            return max(0, now_ms - past // timedelta(milliseconds=1))
        # Python 3.10 does not parse the suffix Z.
        found = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", text.strip()))
        if found.tzinfo is None:
            found = found.replace(tzinfo=_zone(utc=utc)) if utc else found.astimezone()
        return round(found.timestamp() * 1000)
    except (ValueError, OverflowError):
        raise ConfigError(
            f"{option} {text!r} is not a time: write it like 2026-01-31T12:00, "
            '2026-01-31T12:00:00+01:00 or "10 minutes ago"'
        ) from None


def read_duration_ms(text: str, option: str) -> int:
    """Return an ISO 8601 duration of days to seconds, such as P1DT2H, in ms.

    Raises `ConfigError` for other texts.
    """
    parsed = _DURATION.fullmatch(text.strip().upper())
    if parsed is None or not any(parsed.groups()):
        raise ConfigError(
            f"{option} {text!r} is not a duration: write it like PT1H30M, P7D or PT0.5S"
        )
    days, hours, minutes, seconds = (float(one or 0) for one in parsed.groups())
    return round((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000)


def _zone(*, utc: bool) -> tzinfo | None:
    """Return UTC, or None for the local zone."""
    return timezone.utc if utc else None
