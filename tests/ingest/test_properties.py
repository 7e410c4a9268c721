"""The reader never raises, and agrees with another reader where both understand a file."""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import quoteattr

from hypothesis import example, given, settings
from hypothesis import strategies as st
from junitparser import Error, Failure, JUnitXml, Skipped, TestSuite

from gpu_runner.protocol import Outcome
from service.ingest import read_report
from service.ingest.report import FileStatus, ReportFile

DATA = Path(__file__).parent / "data"
steady = settings(deadline=None, derandomize=True, max_examples=100)
SEEDS = [path.read_bytes() for path in sorted(DATA.iterdir()) if path.suffix in {".xml", ".log", ".txt"}]
FRAGMENTS = [
    b"<", b">", b"/>", b"&", b"&#0;", b"&#x1b;", b"]]>", b"<![CDATA[", b"<!--", b"-->", b"<!DOCTYPE a>", b"<?xml ", b"\0", b"\xff",
    b"\xef\xbb\xbf", b"<testcase ", b"</testcase>", b"<testsuite>", b"</testsuite>", b"<failure>", b"<rerunFailure>", b"<property ",
    b'name="', b'time="1,5"', b'tests="999"', b"<system-out>", b"LIKEWISE_COUNTER a=1\n", b"Test #1: a ...", b"xmlns:x=''", b"x:",
]  # fmt: skip


def check(file: ReportFile) -> None:
    assert file.status is not FileStatus.REJECTED or (not file.cases and file.problems and not file.is_complete)
    assert not file.is_cut or not file.is_complete
    keys = [(case.identity, case.attempt) for case in file.cases]
    assert len(keys) == len(set(keys))
    assert [case.position for case in file.cases] == list(range(len(keys)))
    for case in file.cases:
        assert case.signature or not case.outcome.value.startswith("fail")


@given(st.binary(max_size=300))
@example(b"\x1f\x8b\x08\x00")
@example(b"\xff\xfe<\0a\0")
@example(b"<testsuite><testsuite></testsuite><failure/></testsuite>")
@steady
def test_any_bytes_are_read_or_rejected(data: bytes) -> None:
    check(read_report("x", data))


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    data = bytearray(draw(st.sampled_from(SEEDS)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        match draw(st.integers(0, 3)):
            case 0:
                data[at:at] = draw(st.sampled_from(FRAGMENTS))
            case 1:
                del data[at : at + draw(st.integers(1, 40))]
            case 2:
                data[at : at + 1] = draw(st.binary(min_size=1, max_size=3))
            case _:
                del data[at:]
    return bytes(data)


@given(mutated())
@settings(steady, max_examples=200)
def test_mutated_reports_are_read_or_rejected(data: bytes) -> None:
    check(read_report("x", data))


TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Cn", "Co"]), min_size=1, max_size=12)
CASES = st.lists(
    st.tuples(TEXT, TEXT, st.sampled_from(["", "failure", "error", "skipped"]), st.floats(0, 1e6, allow_nan=False)),
    max_size=6,
)


@given(suites=st.lists(st.tuples(TEXT, CASES), min_size=1, max_size=3))
@settings(steady, max_examples=60)
def test_well_formed_reports_read_as_junitparser_reads_them(
    suites: list[tuple[str, list[tuple[str, str, str, float]]]],
) -> None:
    text = ["<testsuites>"]
    for name, cases in suites:
        text.append(f"<testsuite name={quoteattr(name)}>")
        for classname, case, kind, time in cases:
            inside = f'<{kind} message="m"/>' if kind else ""
            text.append(
                f'<testcase classname={quoteattr(classname)} name={quoteattr(case)} time="{time}">{inside}</testcase>'
            )
        text.append("</testsuite>")
    data = "".join([*text, "</testsuites>"]).encode()
    file = read_report("x", data)
    check(file)
    oracle = [case for suite in JUnitXml.fromstring(data) if isinstance(suite, TestSuite) for case in suite]
    assert file.status is FileStatus.PARSED
    assert [case.identity.name for case in file.cases] == [case.name for case in oracle]
    assert [case.duration_s for case in file.cases] == [case.time for case in oracle]
    words = {Failure: Outcome.FAILED, Error: Outcome.ERROR, Skipped: Outcome.SKIPPED}
    assert [case.outcome for case in file.cases if not case.is_inferred] == [
        words[type(case.result[0])] if case.result else Outcome.PASSED
        for case, ours in zip(oracle, file.cases, strict=True)
        if not ours.is_inferred
    ]
