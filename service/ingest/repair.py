"""Repairs of XML that its producer wrote wrongly, tried only on a file that a strict parser refuses."""

from __future__ import annotations

import re

from service.ingest.document import Document, blank, position
from service.ingest.report import RejectedReportError

_START = re.compile(rb"<(?:[A-Za-z_][\w.-]*:)?(?:testsuites?|testcase|testrun|Site)(?=[\s/>])")
_FORBIDDEN = re.compile(rb"<!(?:DOCTYPE|ENTITY|ELEMENT|ATTLIST|NOTATION)", re.IGNORECASE)
_ILLEGAL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff\ud800-\udfff]")
_LITERAL = rb"<!\[CDATA\[.*?\]\]>|<!--.*?-->"
_REFERENCE = re.compile(
    _LITERAL + rb"|&(?:#(?:(\d{1,7})|[xX]([0-9a-fA-F]{1,6}));|(?:amp|lt|gt|quot|apos);)?", re.DOTALL
)
_TAG = re.compile(_LITERAL + rb"""|<[A-Za-z_][\w:.-]*(?:\s+[\w:.-]+\s*=\s*(?:"[^"]*"|'[^']*'))+\s*/?>""", re.DOTALL)
_REPLACEMENT = "\ufffd".encode()


class Repairer:
    """Changes the bytes of one document until they parse, or gives up; every change is noted in the document."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self._tried: set[str] = set()

    def repaired(self, data: bytes, *, is_root_seen: bool) -> bytes | None:
        """Return changed bytes that deserve another try; None when every repair was tried."""
        repairs = [self._characters, self._references, self._attributes]
        if not is_root_seen:
            repairs.append(self._start)
        for repair in repairs:
            if repair.__name__ not in self._tried:
                self._tried.add(repair.__name__)
                changed = repair(data)
                if changed != data:
                    return changed
        return None

    def _characters(self, data: bytes) -> bytes:
        """Return the data as valid UTF-8 without the characters that XML forbids."""
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            text = data.decode(errors="replace")
            self.document.repair("bytes that are not UTF-8 became U+FFFD", *position(data, error.start))
        first = _ILLEGAL.search(text)
        if first is not None:
            text, count = _ILLEGAL.subn("\ufffd", text)
            line = text.count("\n", 0, first.start()) + 1
            column = first.start() - text.rfind("\n", 0, first.start())
            word = "character" if count == 1 else "characters"
            self.document.repair(f"{count} forbidden {word} became U+FFFD, the first {first.group()!r}", line, column)
        return text.encode()

    def _references(self, data: bytes) -> bytes:
        """Return the data with references to forbidden characters replaced and other stray ampersands escaped."""
        places: list[int] = []

        def replace(found: re.Match[bytes]) -> bytes:
            whole = found.group(0)
            if whole == b"&":
                places.append(found.start())
                return b"&amp;"
            decimal, hexadecimal = found.groups()
            if decimal is None and hexadecimal is None:
                return whole
            number = int(decimal) if decimal else int(hexadecimal, 16)
            if number < 0x110000 and not _ILLEGAL.match(chr(number)):
                return whole
            places.append(found.start())
            return _REPLACEMENT

        changed = _REFERENCE.sub(replace, data)
        if places:
            word = "reference was" if len(places) == 1 else "references were"
            self.document.repair(f"{len(places)} broken {word} replaced", *position(data, places[0]))
        return changed

    def _start(self, data: bytes) -> bytes:
        """Return the data with what precedes the first element of a report as spaces."""
        found = _START.search(data)
        if found is None or not found.start():
            return data
        before = data[: found.start()]
        refuse_declarations(before)
        if before.strip():
            at = len(before) - len(before.lstrip())
            self.document.repair("text before the report is ignored", *position(data, at))
        return blank(before) + data[found.start() :]

    def _attributes(self, data: bytes) -> bytes:
        """Return the data with every `<` inside an attribute's quotes escaped."""
        places: list[int] = []

        def replace(found: re.Match[bytes]) -> bytes:
            tag = found.group(0)
            if tag.startswith(b"<!") or tag.find(b"<", 1) < 0:
                return tag
            places.append(found.start() + tag.find(b"<", 1))
            return b"<" + tag[1:].replace(b"<", b"&lt;")

        changed = _TAG.sub(replace, data)
        if places:
            word = "attribute was" if len(places) == 1 else "attributes were"
            self.document.repair(f"'<' in {len(places)} {word} escaped", *position(data, places[0]))
        return changed


def refuse_declarations(data: bytes) -> None:
    """Raise RejectedReportError when the data holds a document type or an entity declaration."""
    found = _FORBIDDEN.search(data)
    if found is not None:
        raise RejectedReportError(
            f"{found.group(0).decode()[2:].upper()} declarations are refused", *position(data, found.start())
        )
