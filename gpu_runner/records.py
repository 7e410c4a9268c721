"""Counters and measurements that tests report: lines on standard output, events, properties. Absent is never zero.

Lines: `LIKEWISE_COUNTER name=integer`, `LIKEWISE_METRIC name=number`. Events, one JSON object a line in the file
`$LIKEWISE_EVENTS`: `{"counter": name, "value": integer}` or `{"metric": name, "value": number, "sample": index}`, with
an optional `"test"`. Properties: `likewise.counter.NAME`, `likewise.metric.NAME`. Values that are no finite numbers are
not recorded.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from gpu_runner.protocol import Measurement

_LINE = re.compile(r"^\s*LIKEWISE_(COUNTER|METRIC) ([^=\s][^=]*?)\s*=\s*(\S+)\s*$", re.MULTILINE)
_PROPERTY = re.compile(r"likewise\.(counter|metric)\.(.+)", re.DOTALL)
LONGEST_NAME = 200


@dataclass(slots=True)
class Records:
    """What was reported so far: counters by test (None: the execution itself), and measurements in order."""

    counters: dict[str | None, dict[str, int]] = field(default_factory=dict)
    measurements: list[Measurement] = field(default_factory=list)

    def add_text(self, test: str | None, text: str) -> None:
        """Take the counter and metric lines of an output."""
        for kind, name, value in _LINE.findall(text):
            self._add(kind.lower(), name, value, test, None)

    def add_properties(self, test: str | None, properties: Iterable[tuple[Any, Any]]) -> None:
        """Take the properties whose names are ours."""
        for name, value in properties:
            match = _PROPERTY.fullmatch(str(name))
            if match is not None:
                self._add(match[1], match[2], value, test, None)

    def add_events(self, text: str, known_tests: Iterable[str]) -> None:
        """Take the lines of an events file; a line that is no such object is left out, an unknown test becomes None."""
        known = set(known_tests)
        for line in text.splitlines():
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if not isinstance(event, dict):
                continue
            test = event.get("test") if event.get("test") in known else None
            sample = event.get("sample")
            for kind in ("counter", "metric"):
                if isinstance(event.get(kind), str):
                    is_index = isinstance(sample, int) and not isinstance(sample, bool)
                    self._add(kind, event[kind], event.get("value"), test, sample if is_index else None)

    def of_test(self, test: str) -> dict[str, int]:
        """Return the counters of one test."""
        return dict(self.counters.get(test, {}))

    def totals(self) -> dict[str, int]:
        """Return the counters summed over tests and execution."""
        totals: dict[str, int] = {}
        for counters in self.counters.values():
            for name, value in counters.items():
                totals[name] = totals.get(name, 0) + value
        return totals

    def _add(self, kind: str, name: str, value: Any, test: str | None, sample: int | None) -> None:
        number = _number(value)
        if number is None or len(name) > LONGEST_NAME:
            return
        if kind == "metric":
            self.measurements.append(Measurement(name, float(number), test, sample))
        elif number == int(number):
            counters = self.counters.setdefault(test, {})
            counters[name] = counters.get(name, 0) + int(number)


def _number(value: Any) -> int | float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = int(value) if isinstance(value, str) and re.fullmatch(r"[+-]?\d{1,18}", value) else value
        number = float(number) if isinstance(number, str) else number
        return number if math.isfinite(number) else None
    except (ValueError, OverflowError):
        return None
