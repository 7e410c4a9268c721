"""Durations as producers write them: with thousands separators, another locale's comma, units, templates, nothing."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from service.ingest.report import Timestamp

_UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0}
_WITH_UNIT = re.compile(r"^([-+]?[\d.,eE+-]+?)\s*([a-zµμ]+)$")
_AMBIGUOUS = re.compile(r"^[-+]?\d{1,3},\d{3}$")
_COMMA_DECIMAL = re.compile(r"^[-+]?(?:\d+|\d{1,3}(?:\.\d{3})+),\d+$")
_COMMA_THOUSANDS = re.compile(r"^[-+]?\d{1,3}(?:,\d{3})+(?:\.\d*)?$")
_EARLIEST = datetime(1990, 1, 1, tzinfo=UTC)


def plain_seconds(text: str | None) -> float | None:
    """Return the seconds of a number without a comma, never negative; None when it is not one.

    >>> plain_seconds("0."), plain_seconds("80ms"), plain_seconds("-3"), plain_seconds("NaN"), plain_seconds("")
    (0.0, 0.08, 0.0, None, None)
    """
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        found = _WITH_UNIT.match(text.strip())
        if found is None or found.group(2) not in _UNITS_S or "," in text:
            return None
        number = plain_seconds(found.group(1))
        return None if number is None else number * _UNITS_S[found.group(2)]
    if 0.0 <= value < math.inf:
        return value
    return 0.0 if -math.inf < value < 0.0 else None


def comma_is_decimal(texts: Iterable[str]) -> bool | None:
    """Return what a comma means in a file, judged by all its times; None when they do not tell, or contradict.

    >>> comma_is_decimal(["0,160", "1,5"]), comma_is_decimal(["0,160", "1,024.12"]), comma_is_decimal(["0,160"])
    (True, False, None)
    """
    found = {
        bool(_COMMA_DECIMAL.match(text))
        for text in texts
        if not _AMBIGUOUS.match(text) and (_COMMA_DECIMAL.match(text) or _COMMA_THOUSANDS.match(text))
    }
    return found.pop() if len(found) == 1 else None


def seconds(text: str | None, *, is_comma_decimal: bool | None) -> float | None:
    """Return the seconds of a time attribute; None when it says nothing or could be read in two ways.

    >>> seconds("14,029.255", is_comma_decimal=None), seconds("1.024,12", is_comma_decimal=None)
    (14029.255, 1024.12)
    >>> seconds("0,160", is_comma_decimal=True), seconds("0,160", is_comma_decimal=None)
    (0.16, None)
    """
    if text is None or "," not in text:
        return plain_seconds(text)
    text = text.strip()
    found = _WITH_UNIT.match(text)
    if found is not None:
        number = seconds(found.group(1), is_comma_decimal=is_comma_decimal)
        return None if number is None or found.group(2) not in _UNITS_S else number * _UNITS_S[found.group(2)]
    if _AMBIGUOUS.match(text):
        if is_comma_decimal is None:
            return None
    elif _COMMA_DECIMAL.match(text):
        is_comma_decimal = True
    elif _COMMA_THOUSANDS.match(text):
        is_comma_decimal = False
    else:
        return None
    return plain_seconds(text.replace(".", "").replace(",", ".") if is_comma_decimal else text.replace(",", ""))


def timestamp(raw: str | None) -> Timestamp | None:
    """Return a producer's time in any of the usual spellings; None when there is none.

    >>> timestamp("2021-03-07T10:36:56 UTC").at.isoformat()
    '2021-03-07T10:36:56+00:00'
    >>> timestamp("Sat, 03 Dec 2022 23:10:07 GMT").is_zone_known, timestamp("2013-05-24T10:23:58").is_zone_known
    (True, False)
    >>> timestamp("1970-01-01T00:00:00.000").at is None
    True
    """
    if not raw or not raw.strip():
        return None
    at = _read_time(raw.strip())
    if at is None:
        return Timestamp(raw, None, is_zone_known=False)
    is_zone_known = at.tzinfo is not None
    try:
        at = at.astimezone(UTC) if is_zone_known else at.replace(tzinfo=UTC)
    except OverflowError:
        return Timestamp(raw, None, is_zone_known=False)
    # Producers that do not know the time write the epoch, or the year 1.
    return Timestamp(raw, at if at > _EARLIEST else None, is_zone_known=is_zone_known)


def _read_time(text: str) -> datetime | None:
    if text.isascii() and text.isdigit() and len(text) in {10, 13}:
        return datetime.fromtimestamp(int(text) / (1000 if len(text) == 13 else 1), UTC)
    for reader in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            return reader(text.removesuffix(" UTC") + "+00:00" if text.endswith(" UTC") else text)
        except (ValueError, TypeError, IndexError):
            continue
    return None
