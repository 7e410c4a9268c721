"""A file as it came, made readable: unzipped, in UTF-8, within the limits, with a note for every change."""

from __future__ import annotations

import codecs
import hashlib
import re
import zlib
from dataclasses import dataclass, field

from service.ingest.report import Problem, RejectedReportError

MAX_BYTES = 128 * 1024 * 1024
MAX_PROBLEMS = 200

_GZIP = b"\x1f\x8b"
_CHUNK = 1 << 20
# The families of character sets that XML files declare; Python's other codecs, such as zip or punycode, are none.
_CODE_PAGES = ("iso8859", "cp", "koi8", "gb", "big5", "shift_jis", "euc_", "mac-", "tis-620", "iso2022")
_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_DECLARATION = re.compile(rb"^\s*<\?xml\s([^>]*?)\?>")
_ENCODING = re.compile(rb"""encoding\s*=\s*["']([A-Za-z][\w.-]*)["']""")
_ROOT = re.compile(rb"<(?:[A-Za-z_][\w.-]*:)?([A-Za-z_][\w.-]*)(?=[\s/>])")
_PROLOG = re.compile(rb"<!--.*?-->|<\?.*?\?>", re.DOTALL)


@dataclass(slots=True)
class Document:
    """The text of a file as UTF-8 bytes; lines are those of the file. `problems` grow while it is read."""

    name: str
    data: bytes
    digest: str
    size_bytes: int
    problems: list[Problem] = field(default_factory=list)
    is_repaired: bool = False
    unnoted: int = 0

    def warn(self, message: str, line: int | None = None, column: int | None = None) -> None:
        """Note something that a person should know; of more than `MAX_PROBLEMS` only their number."""
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(Problem(message, line, column))
        else:
            self.unnoted += 1

    def repair(self, message: str, line: int | None = None, column: int | None = None) -> None:
        """Note that the file was changed to be read."""
        self.is_repaired = True
        self.warn(message, line, column)

    @property
    def notes(self) -> tuple[Problem, ...]:
        """Return the problems in the order of their places; those of the whole file come last."""
        placed = sorted(self.problems, key=lambda problem: (problem.line is None, problem.line or 0))
        return (*placed, Problem(f"and {self.unnoted} more")) if self.unnoted else tuple(placed)

    @property
    def root(self) -> str | None:
        """Return the name of the first element, without a prefix; None if nothing looks like one."""
        found = _ROOT.search(_PROLOG.sub(b"", self.data[:65536])) or _ROOT.search(_PROLOG.sub(b"", self.data))
        return found.group(1).decode() if found else None


def open_document(name: str, data: bytes) -> Document:
    """Return the document of a file's bytes; RejectedReportError when it is empty, too large or broken gzip."""
    document = Document(name, data, hashlib.sha256(data).hexdigest(), len(data))
    if data.startswith(_GZIP):
        document.data = _unzip(document)
    if len(document.data) > MAX_BYTES:
        raise RejectedReportError(f"{len(document.data)} bytes; at most {MAX_BYTES} are read")
    if not document.data.strip():
        raise RejectedReportError("the file is empty", 1, 1)
    document.data = _to_utf8(document)
    if not document.data.strip():
        raise RejectedReportError("nothing follows the XML declaration", 1, 1)
    return document


def position(data: bytes, offset: int) -> tuple[int, int]:
    r"""Return line and column, both from 1, of a byte offset.

    >>> position(b"ab\ncd", 4)
    (2, 2)
    """
    start = data.rfind(b"\n", 0, offset) + 1
    return data.count(b"\n", 0, start) + 1, len(data[start:offset].decode(errors="replace")) + 1


def _unzip(document: Document) -> bytes:
    """Return the unpacked bytes of all members; what a broken end still gives is kept, with a problem."""
    pieces: list[bytes] = []
    size = 0
    rest = document.data
    while rest.startswith(_GZIP):
        member = zlib.decompressobj(wbits=31)
        try:
            while rest and not member.eof:
                piece = member.decompress(rest, _CHUNK)
                rest = member.unconsumed_tail
                pieces.append(piece)
                size += len(piece)
                if size > MAX_BYTES:
                    raise RejectedReportError(f"unpacks to more than {MAX_BYTES} bytes")
        except zlib.error as error:
            if not size:
                raise RejectedReportError(f"broken gzip: {error}") from None
            document.repair(f"broken gzip after {size} bytes: {error}")
            break
        if not member.eof:
            document.repair(f"gzip ends early, after {size} bytes")
        rest = member.unused_data
    return b"".join(pieces)


def _to_utf8(document: Document) -> bytes:
    data = document.data
    encoding, start = _encoding(document)
    data = data[start:]
    if encoding == "utf-8":
        return _blank_declaration(document, data)
    try:
        text = codecs.decode(data, encoding)
    except (UnicodeDecodeError, ValueError):
        text = codecs.decode(data, encoding, "replace")
        document.repair(f"bytes that are not {encoding} became U+FFFD")
    # A lone surrogate of broken UTF-16 cannot be written as UTF-8.
    return _blank_declaration(document, text.encode("utf-8", "replace"))


def _encoding(document: Document) -> tuple[str, int]:
    """Return the name of the encoding and how many bytes its mark takes."""
    data = document.data
    for mark, encoding in _BOMS:
        if data.startswith(mark):
            return encoding, len(mark)
    if data[:4] in {b"<\0?\0", b"<\0t\0"}:
        return "utf-16-le", 0
    if data[:4] in {b"\0<\0?", b"\0<\0t"}:
        return "utf-16-be", 0
    declaration = _DECLARATION.match(data)
    declared = _ENCODING.search(declaration.group(1)) if declaration else None
    if declaration is None or declared is None:
        return "utf-8", 0
    name = declared.group(1).decode()
    try:
        known = codecs.lookup(name).name
    except LookupError:
        known = ""
    if known.startswith(_CODE_PAGES):
        return known, 0
    # The declaration itself was readable, so the file is in no encoding of two or more bytes a character.
    if not known.startswith(("utf-8", "utf-16", "utf-32", "ascii")):
        document.repair(f"unknown encoding {name!r}; read as UTF-8", *position(data, declaration.start(1)))
    return "utf-8", 0


def _blank_declaration(document: Document, data: bytes) -> bytes:
    """Return the data with its XML declaration as spaces: its encoding is dealt with, its version does not matter."""
    declaration = _DECLARATION.match(data)
    if declaration is None:
        return data
    if not data.startswith(b"<"):
        document.repair("blank lines before the XML declaration", 1, 1)
    return blank(declaration.group(0)) + data[declaration.end() :]


def blank(data: bytes) -> bytes:
    """Return as many spaces, with the line ends kept, so that later places stay the same."""
    return re.sub(rb"[^\n]", b" ", data)
