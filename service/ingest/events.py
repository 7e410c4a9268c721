"""Counters and measurements that a test prints or records as properties."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpu_runner.protocol import Measurement

if TYPE_CHECKING:
    from service.ingest.cases import Part
    from service.ingest.document import Document

_COUNTER = "likewise.counter."
_METRIC = "likewise.metric."
_LINE = re.compile(r"^LIKEWISE_(COUNTER|METRIC)[ \t]+([^\s=]+)[ \t]*=[ \t]*(\S+)[ \t]*\r?$", re.MULTILINE)
_SAMPLE = re.compile(r"^(.+)\[(\d{1,9})\]$")
_LARGEST_COUNT = 2**63 - 1


@dataclass(slots=True)
class Numbers:
    """What one test, or one whole execution, counted and measured. A counter given several times is added up."""

    counters: dict[str, int] = field(default_factory=dict)
    measurements: list[Measurement] = field(default_factory=list)

    def add_property(self, part: Part, document: Document) -> None:
        """Take a JUnit property `likewise.counter.NAME` or `likewise.metric.NAME`; leave others alone."""
        name = part.attributes.get("name", "")
        if name.startswith(_COUNTER):
            self._count(name.removeprefix(_COUNTER), part.attributes.get("value", part.text), document)
        elif name.startswith(_METRIC):
            self._measure(name.removeprefix(_METRIC), part.attributes.get("value", part.text), document)

    def add_output(self, text: str, document: Document) -> None:
        """Take the lines `LIKEWISE_COUNTER name=value` and `LIKEWISE_METRIC name=value` of an output."""
        if "LIKEWISE_" not in text:
            return
        for found in _LINE.finditer(text):
            kind, name, value = found.groups()
            if kind == "COUNTER":
                self._count(name, value, document)
            else:
                self._measure(name, value, document)

    def _count(self, name: str, value: str, document: Document) -> None:
        try:
            count = int(value)
        except ValueError:
            document.warn(f"counter {name!r} is {value[:40]!r}, not an integer; it stays unknown")
            return
        total = self.counters.get(name, 0) + count
        if abs(total) > _LARGEST_COUNT:
            document.warn(f"counter {name!r} does not fit 64 bits; it stays unknown")
            return
        self.counters[name] = total

    def _measure(self, name: str, value: str, document: Document) -> None:
        """Add a measurement; `name[3]` is sample 3, and a name given several times is numbered in order."""
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            document.warn(f"measurement {name!r} is {value[:40]!r}, not a finite number; it stays unknown")
            return
        indexed = _SAMPLE.match(name)
        if indexed:
            self.measurements.append(Measurement(indexed.group(1), number, sample=int(indexed.group(2))))
            return
        earlier = sum(measurement.name == name for measurement in self.measurements)
        if earlier == 1:
            at = next(i for i, measurement in enumerate(self.measurements) if measurement.name == name)
            first = self.measurements[at]
            if first.sample is None:
                self.measurements[at] = Measurement(name, first.value, sample=0)
        self.measurements.append(Measurement(name, number, sample=earlier or None))
