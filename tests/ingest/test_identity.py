"""One test has one identity, whether a CI report or our runner names it. Held to the real pytest and the real ctest."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.ingest import read_report
from service.ingest.identity import TestIdentity, identity_from_ctest, identity_from_junit, identity_from_node_id

SOURCE = '''
"""Names that pytest writes in many ways."""
import pytest

def test_plain():
    pass

@pytest.mark.parametrize("value", ["1", "a::b", "x/y.py", "[z]", "sp ace", "dot.ted"])
def test_rows(value):
    pass

class TestOuter:
    def test_method(self):
        assert False

    class TestInner:
        @pytest.mark.parametrize("n", [1, 2])
        def test_deep(self, n):
            pass
'''


@pytest.mark.parametrize("family", ["xunit1", "xunit2"])
def test_a_junit_case_of_pytest_and_its_node_id_meet(tmp_path: Path, family: str) -> None:
    (tmp_path / "pkg" / "sub").mkdir(parents=True)
    (tmp_path / "pkg" / "sub" / "test_names.py").write_text(SOURCE)
    (tmp_path / "test_top.py").write_text("def test_x():\n    pass\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "conftest.py").write_text(
        "def pytest_collection_finish(session):\n"
        "    open('ids', 'w').write('\\n'.join(item.nodeid for item in session.items))\n"
    )
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "-o",
            f"junit_family={family}",
            "--junitxml",
            "report.xml",
        ],
        cwd=tmp_path,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    node_ids = (tmp_path / "ids").read_text().splitlines()
    assert len(node_ids) == 11
    report = read_report("report.xml", (tmp_path / "report.xml").read_bytes())
    assert [case.identity for case in report.cases] == [identity_from_node_id(node_id) for node_id in node_ids]
    assert report.failing == 1


@pytest.mark.skipif(shutil.which("ctest") is None, reason="ctest is not on the PATH")
def test_ctests_junit_xml_log_and_console_meet(tmp_path: Path) -> None:
    names = ["plain", "with space", "gdn.chunk_o", "Suite.Case/0", "dots...", "#5"]
    lines = "".join(f'add_test([=[{name}]=] "{sys.executable}" "-c" "pass")\n' for name in names)
    (tmp_path / "CTestTestfile.cmake").write_text(lines)
    done = subprocess.run(
        ["ctest", "-T", "Test", "--output-junit", "junit.xml"],
        cwd=tmp_path,
        capture_output=True,
        timeout=60,
        check=False,
    )
    expected = [identity_from_ctest(name) for name in names]
    testing = tmp_path / "Testing"
    for name, data in {
        "junit.xml": (tmp_path / "junit.xml").read_bytes(),
        "Test.xml": next(testing.glob("*/Test.xml")).read_bytes(),
        "LastTest.log": next(testing.glob("Temporary/LastTest_*.log")).read_bytes(),
        "console": done.stdout,
    }.items():
        report = read_report(name, data)
        # The console draws dots behind a name, so those at its end cannot be told from it.
        found = [case.identity for case in report.cases]
        assert [i for i in found if i.name[:4] != "dots"] == [i for i in expected if i.name[:4] != "dots"], name
        assert report.is_complete, name


@pytest.mark.parametrize(
    ("arguments", "display"),
    [
        (("com.acme.FooTest", "", "com.acme.FooTest", "bar"), "com.acme.FooTest::bar"),
        (("com.acme", "", "com.acme.FooTest", "bar"), "com.acme.FooTest::bar"),
        (("a.spec.ts", "", "login", "works"), "a.spec.ts > login::works"),
        (("(empty)", "", "unit", "unit"), "unit"),
        (("(empty)", "", "unit", "other"), "unit::other"),
        (("s", "/home/runner/work/r/r/a.rb", "", "works"), "s > a.rb::works"),
    ],
)
def test_what_a_suite_says_already_is_not_said_twice(arguments: tuple[str, str, str, str], display: str) -> None:
    assert identity_from_junit(*arguments).display == display


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("f[<X object at 0x7f53d0c525d0>]", "f[<X object at 0x55aa00110022>]"),
        ("job 123e4567-e89b-12d3-a456-426614174000", "job 923e4567-e89b-12d3-a456-426614174fff"),
        ("run at 2026-01-02T03:04:05Z", "run at 2026-11-12T13:14:15Z"),
        ("in /tmp/tmpab12/x", "in /tmp/tmpzz99/y"),
        ("build 1796044123", "build 1700000000"),
        ("sha 0123456789abcdef01", "sha fedcba987654321010"),
    ],
)
def test_names_that_change_with_every_run_fold_into_one(name: str, other: str) -> None:
    one, two = (TestIdentity("", "", "c", text) for text in (name, other))
    assert one != two
    assert one.stable == two.stable
    assert one.is_unstable


@pytest.mark.parametrize(
    "name", ["test_f[1]", "test_f[12-0.5]", "shape 64x65", "H200", "v2026", "port 8080", "abcdef", "0xff"]
)
def test_parameters_are_no_instability(name: str) -> None:
    assert not TestIdentity("", "", "c", name).is_unstable


@given(st.text(max_size=60))
@settings(deadline=None, derandomize=True)
def test_the_second_key_is_its_own_second_key(name: str) -> None:
    identity = TestIdentity("", "", "", name)
    assert identity.stable.stable == identity.stable
    assert identity.display
