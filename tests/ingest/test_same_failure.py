"""The words that our runner's plugin takes from pytest and those of pytest's JUnit report give one signature."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from gpu_runner.protocol import Outcome
from service.ingest import read_report
from service.ingest.identity import identity_from_node_id
from service.signature import failure_signature

SOURCE = """
import random

import pytest

class Odd(Exception):
    pass

def limit(n):
    return n

def test_compare():
    assert random.random() > limit(2)

def test_message():
    assert [random.random()] == [1], f"drift of {random.random()} found"

def test_raises():
    raise ValueError(f"bad shape {random.randint(1, 9)}")

def test_own_exception():
    raise Odd(f"odd {random.random()}")

def test_key():
    {}["user_id"]

def test_chained():
    try:
        1 / 0
    except ZeroDivisionError as error:
        raise RuntimeError("no device 3") from error

def test_fail():
    pytest.fail("on purpose")

def test_text():
    assert "a\\nb" == "a\\nc"

@pytest.fixture
def device():
    raise OSError(f"no device {random.randint(0, 7)}")

def test_setup(device):
    pass
"""
# What gpu_runner's plugin records: the name of the exception's type and the message of pytest's crash entry.
CONFTEST = """
import json
import pytest

@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if call.excinfo is not None:
        with open("words.jsonl", "a") as file:
            file.write(json.dumps([item.nodeid, call.when, call.excinfo.typename, report.longrepr.reprcrash.message]) + "\\n")
    return report
"""


def signatures(folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    folder.mkdir()
    (folder / "test_words.py").write_text(SOURCE)
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text("[pytest]\n")
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml", "report.xml"],
        cwd=folder,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    reported = {
        case.identity.display: case.signature
        for case in read_report("report.xml", (folder / "report.xml").read_bytes()).cases
    }
    recorded = {}
    for line in (folder / "words.jsonl").read_text().splitlines():
        node_id, when, kind, message = json.loads(line)
        outcome = Outcome.FAILED if when == "call" else Outcome.ERROR
        recorded[identity_from_node_id(node_id).display] = failure_signature(outcome, kind, message)
    return reported, recorded


def test_ci_and_experiment_agree_and_two_runs_agree(tmp_path: Path) -> None:
    reported, recorded = signatures(tmp_path / "one")
    assert len(reported) == 9
    assert reported == recorded
    assert len(set(reported.values())) == 9
    again, _ = signatures(tmp_path / "two")
    assert again == reported
