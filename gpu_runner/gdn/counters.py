"""What actually executed: integers per operator, realization, layer and phase."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _Event:
    operator: str
    outcome: str
    layer: int
    phase: str


class Counters:
    """Thread-safe counts. Every call of an operator ends as exactly one `fired` or one `fell_back`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: Counter[_Event] = Counter()
        self._plain: Counter[str] = Counter()

    def fired(self, operator: str, realization: str, layer: int, phase: str) -> None:
        """Counts one call that ran the realization it asked for."""
        self._count(operator, f"{realization}.fired", layer, phase)

    def fell_back(self, operator: str, reason: str, layer: int, phase: str) -> None:
        """Counts one call whose Triton realization declined for `reason` and which therefore ran torch."""
        self._count(operator, f"fallback.{reason}", layer, phase)

    def add(self, name: str, n: int = 1) -> None:
        """Adds n to a counter that belongs to no operator, such as gdn.scratch.growths."""
        with self._lock:
            self._plain[name] += n

    def reset(self) -> None:
        """Forgets everything."""
        with self._lock:
            self._events.clear()
            self._plain.clear()

    def by_layer_and_phase(self) -> dict[tuple[str, str, int, str], int]:
        """Counts by (operator, outcome, layer, phase); the outcome is "triton.fired" or "fallback.<reason>"."""
        with self._lock:
            return {(e.operator, e.outcome, e.layer, e.phase): n for e, n in self._events.items()}

    def flat(self, operators: Iterable[str], realizations: Iterable[str]) -> dict[str, int]:
        """Totals by name, sorted.

        For every operator, zeros included, since an absent counter means unknown: `gdn.<op>.calls`,
        `gdn.<op>.<realization>.fired` and `gdn.<op>.fallbacks`; where it happened also `gdn.<op>.fallback.<reason>`.
        calls == all fired + fallbacks; calls == 0 means never called. Then the counters of `add`.
        """
        realizations = tuple(realizations)
        with self._lock:
            totals = Counter(self._plain)
            for operator in operators:
                totals[f"gdn.{operator}.calls"] += 0
                totals[f"gdn.{operator}.fallbacks"] += 0
                for realization in realizations:
                    totals[f"gdn.{operator}.{realization}.fired"] += 0
            for name in ("allocations", "growths", "reuses"):
                totals[f"gdn.scratch.{name}"] += 0
            for event, n in self._events.items():
                totals[f"gdn.{event.operator}.calls"] += n
                totals[f"gdn.{event.operator}.{event.outcome}"] += n
                if event.outcome.startswith("fallback."):
                    totals[f"gdn.{event.operator}.fallbacks"] += n
        return dict(sorted(totals.items()))

    def layers_summary(self, operator: str, realization: str, layer_count: int | None = None) -> str:
        """Text such as "3/3 GDN layers fired, 0 fallbacks"; "never called" when no layer called the operator."""
        events = {key: n for key, n in self.by_layer_and_phase().items() if key[0] == operator}
        if not events:
            return "never called"
        called = {layer for _, _, layer, _ in events}
        fired = {layer for _, outcome, layer, _ in events if outcome == f"{realization}.fired"}
        fallbacks = sum(n for (_, outcome, _, _), n in events.items() if outcome.startswith("fallback."))
        of = len(called) if layer_count is None else layer_count
        return f"{len(fired)}/{of} GDN layers fired, {fallbacks} fallbacks"

    def _count(self, operator: str, outcome: str, layer: int, phase: str) -> None:
        with self._lock:
            self._events[_Event(operator, outcome, layer, str(phase))] += 1


COUNTERS = Counters()
"""The counters of this process."""
