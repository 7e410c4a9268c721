"""Reports of test runs, whatever wrote them: one file of bytes in, one `ReportFile` out, never an exception."""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from service.ingest import ctest, ctest_text
from service.ingest.document import Document, open_document
from service.ingest.junit import read_junit
from service.ingest.report import FileStatus, RejectedReportError, ReportFile

__all__ = ["FORMATS", "Format", "read_report"]


@dataclass(frozen=True, slots=True)
class Format:
    """A format: its name, how to recognise it, how to read it."""

    name: str
    recognises: Callable[[Document], bool]
    read: Callable[[Document], ReportFile]


FORMATS = (
    Format(ctest.XML, ctest.is_test_xml, ctest.read_test_xml),
    Format(ctest_text.LOG, ctest_text.is_log, ctest_text.read_log),
    Format(ctest_text.CONSOLE, ctest_text.is_console, ctest_text.read_console),
    Format("junit", lambda _document: True, read_junit),
)
"""Asked in this order; the last takes what no other one knows."""


def read_report(name: str, data: bytes) -> ReportFile:
    """Return what the file says: parsed, repaired, or rejected with the reason and its line and column.

    `data` may be gzipped and in any common encoding. Nothing is opened, fetched or expanded.
    """
    known = "unknown"
    try:
        document = open_document(name, data)
        chosen = next(candidate for candidate in FORMATS if candidate.recognises(document))
        known = chosen.name
        with _collector_paused():
            return chosen.read(document)
    except RejectedReportError as error:
        return ReportFile(
            name=name,
            format=known,
            status=FileStatus.REJECTED,
            digest=hashlib.sha256(data).hexdigest(),
            size_bytes=len(data),
            problems=(error.problem,),
            is_complete=False,
        )


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Pause the cycle collector: results hold no cycles, and walking them as they grow takes a quarter of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
