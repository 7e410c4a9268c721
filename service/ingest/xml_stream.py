"""One pass of expat over a document: no document type, no entities, bounded depth, repairs where they help.

expat alone is used because a document type, and with it every entity, is refused by one handler before it is read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar
from xml.parsers import expat

from service.ingest.document import Document, blank, position
from service.ingest.repair import Repairer, refuse_declarations
from service.ingest.report import RejectedReportError

MAX_DEPTH = 100


class Handler(Protocol):
    """What takes the elements of a document. `path` holds the names of the open elements, without prefixes."""

    path: list[str]

    def start(self, name: str, attributes: dict[str, str]) -> None:
        """Take the start of an element."""

    def end(self, name: str) -> None:
        """Take the end of an element."""

    def restart(self) -> None:
        """Take another document of the same file."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a document breaks off and why."""

    reason: str
    line: int
    column: int


class Stream:
    """The parser behind a handler, which asks it for places and for the text of elements."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.error_offset = 0
        self._base = 0
        self._data = b""
        self._parser = expat.ParserCreate("utf-8")

    def read(self, data: bytes, handler: Handler) -> None:
        """Read one document, and those written right behind it; ExpatError leaves the place in `error_offset`."""
        self._data = data
        while True:
            self._parser = self._new_parser(handler)
            try:
                self._parser.Parse(data[self._base :] if self._base else data, True)
            except expat.ExpatError as error:
                self.error_offset = self._base + self._parser.ErrorByteIndex
                if error.code != expat.errors.codes[expat.errors.XML_ERROR_JUNK_AFTER_DOC_ELEMENT]:
                    raise
                following = self._next_document(data, self.error_offset)
                if following is None:
                    return
                self._data = data = following
                handler.restart()
            else:
                return

    def place(self) -> tuple[int, int]:
        """Return line and column of the current event, from 1."""
        return position(self._data, self._base + self._parser.CurrentByteIndex)

    def capture(self, take: Callable[[str], object] | None) -> None:
        """Send the text that follows to `take`, or to nobody."""
        self._parser.CharacterDataHandler = take

    def check_depth(self, depth: int) -> None:
        """Raise RejectedReportError when elements are nested too deeply."""
        if depth > MAX_DEPTH:
            raise RejectedReportError(f"elements are nested deeper than {MAX_DEPTH}", *self.place())

    def _next_document(self, data: bytes, offset: int) -> bytes | None:
        """Set `_base` to a further report behind the root and return the data prepared for it; None without one."""
        rest = data[offset:]
        found = [at for at in (rest.find(b"<testsuite"), rest.find(b"<testcase")) if at >= 0]
        place = position(data, offset)
        if not found:
            refuse_declarations(rest)
            self.document.repair("text after the report is ignored", *place)
            return None
        refuse_declarations(rest[: min(found)])
        self.document.repair("another report follows in the same file; both are read", *place)
        self._base = offset + min(found)
        return data[:offset] + blank(rest[: min(found)]) + rest[min(found) :]

    def _new_parser(self, handler: Handler) -> expat.XMLParserType:
        parser = expat.ParserCreate("utf-8")
        parser.buffer_text = True
        parser.buffer_size = 1 << 16
        parser.StartElementHandler = handler.start
        parser.EndElementHandler = handler.end
        parser.StartDoctypeDeclHandler = self._refuse_doctype
        return parser

    def _refuse_doctype(self, *_: object) -> None:
        raise RejectedReportError("DOCTYPE declarations are refused", *self.place())


H = TypeVar("H", bound=Handler)


def read_xml(document: Document, new_handler: Callable[[Stream], H]) -> tuple[H, Cut | None]:
    """Return the handler that took the document, and where it breaks off if it does.

    A document that is not well-formed is repaired and read again by a new handler, until nothing is left to repair.
    """
    repairer = Repairer(document)
    data = document.data
    while True:
        stream = Stream(document)
        handler = new_handler(stream)
        mark = len(document.problems), document.is_repaired
        try:
            stream.read(data, handler)
        except expat.ExpatError as error:
            noted = document.problems[mark[0] :]
            # What this pass noted, the next one will note again.
            del document.problems[mark[0] :]
            document.is_repaired = mark[1]
            changed = repairer.repaired(data, is_root_seen=bool(handler.path))
            if changed is None:
                document.problems.extend(noted)
                document.is_repaired = mark[1] or bool(noted)
                return handler, Cut(expat.ErrorString(error.code), *position(data, stream.error_offset))
            data = changed
        else:
            return handler, None
