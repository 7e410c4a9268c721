"""Words and tones that pages use: badges of verdicts and states, ages, durations, rates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime

from service.domain import ExperimentState, Verdict


@dataclass(frozen=True, slots=True)
class Badge:
    """How a verdict or a state is shown: a label with a symbol, a tone for the colours, and what it means."""

    label: str
    symbol: str
    tone: str
    meaning: str


VERDICTS: dict[Verdict, Badge] = {
    Verdict.IMPLICATED: Badge(
        "Implicated",
        "●",
        "cause",
        "With only this changed, failures go away or become rarer, beyond chance: it is a cause.",
    ),
    Verdict.WORSENED: Badge("Worsened", "▲", "cause", "With this one change the test fails more often, beyond chance."),
    Verdict.EXONERATED: Badge(
        "Exonerated", "○", "clear", "The test fails about as often either way: this change is not what makes it fail."
    ),
    Verdict.NOT_REPRODUCED: Badge(
        "Not reproduced",
        "◌",
        "quiet",
        "The failure appeared in no arm. Nothing is implicated, nothing exonerated.",
    ),
    Verdict.INCONCLUSIVE: Badge("Inconclusive", "?", "caution", "The runs do not settle it, in either direction."),
    Verdict.NOT_LIKE_FOR_LIKE: Badge(
        "Not like for like",
        "≠",
        "caution",
        "The arms differed in more than the declared change, so their counts must not be compared.",
    ),
    Verdict.TREATMENT_INERT: Badge(
        "Treatment inert", "∅", "caution", "The change never took effect: both arms ran the same thing."
    ),
    Verdict.FOUND: Badge("Found", "●", "cause", "The search ended with an answer."),
    Verdict.NO_CHANGE: Badge("No change", "○", "clear", "Nothing changed beyond chance."),
    Verdict.MEASURED: Badge("Measured", "●", "clear", "The measurement is complete."),
}

STATES: dict[ExperimentState, Badge] = {
    ExperimentState.QUEUED: Badge("Queued", "…", "live", "It waits for a worker."),
    ExperimentState.RUNNING: Badge("Running", "▶", "live", "Blocks are being run; no decision has been reached yet."),
    ExperimentState.DETACHED: Badge("Detached", "⇄", "live", "Its plan runs elsewhere; its evidence will be imported."),
    ExperimentState.CONCLUDED: Badge("Ended", "■", "quiet", "It ended."),
}


def badge_of(state: ExperimentState, verdict: Verdict | None) -> Badge:
    """Return the badge of the verdict, or of the state while there is none."""
    return VERDICTS[verdict] if verdict is not None else STATES[state]


def ago(then: datetime, now: datetime) -> str:
    """Return how long ago in words.

    >>> from datetime import UTC, timedelta
    >>> now = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
    >>> ago(now - timedelta(minutes=5), now), ago(now - timedelta(days=3), now)
    ('5 min ago', '3 days ago')
    """
    seconds = max(0.0, (now - then).total_seconds())
    if seconds < 60:
        return "just now"
    if seconds < 3600:
        return f"{int(seconds // 60)} min ago"
    if seconds < 86400:
        return f"{int(seconds // 3600)} h ago"
    days = int(seconds // 86400)
    return f"{days} day{'s' if days > 1 else ''} ago"


def duration(seconds: float | None) -> str:
    """Return a duration in the unit that suits it; a dash when it is unknown.

    >>> duration(0.0123), duration(7.25), duration(312), duration(None)
    ('12 ms', '7.2 s', '5 min 12 s', '–')
    """
    if seconds is None:
        return "–"
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def points(limit: float | None) -> str:
    """Return a difference of rates in points, with its sign.

    >>> points(0.643), points(-0.05), points(None)
    ('+64', '−5', 'unbounded')
    """
    if limit is None:
        return "unbounded"
    value = round(100 * limit)
    return "0" if value == 0 else f"{'+' if value > 0 else '−'}{abs(value)}"


def p_text(p: float) -> str:
    """Return a p-value in at most three digits.

    >>> p_text(0.0001), p_text(0.0423), p_text(1.0)
    ('< 0.001', '0.042', '1')
    """
    if p < 0.001:
        return "< 0.001"
    return f"{p:.3f}".rstrip("0").rstrip(".") if math.isfinite(p) else "–"


def shown(value: object, limit: int = 400) -> str:
    """Return a value of a context as text, cut to `limit` characters; None is "not reported"."""
    if value is None:
        return "not reported"
    text = "\n".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
