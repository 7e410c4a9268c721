"""The one file of ours inside the project's pytest process. Copied next to its settings; standard library only.

It selects and orders the tests, and writes what happens to them as JSON lines, each flushed at once, so that the last
line names the test that was running when the process died. It also hides the runner's own packages from the project.
It must work with every pytest from 6.2 and every Python from 3.8 that a project may use.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

import pytest

SECTION_LIMIT = 16 * 1024
MESSAGE_LIMIT = 4 * 1024
PACKAGES = ("torch", "triton", "numpy", "transformers", "pytest-xdist", "pytest-rerunfailures", "pytest-asyncio")

SETTINGS = json.loads(Path(__file__).with_name("likewise_settings.json").read_text(encoding="utf-8"))


class _Report:
    """The file of events. A process that a test forked must not write into it."""

    def __init__(self, path: str) -> None:
        self.descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.set_inheritable(self.descriptor, False)
        self.owner = os.getpid()

    def write(self, event: str, **values: Any) -> None:
        if os.getpid() == self.owner:
            line = json.dumps({"event": event, "time": time.monotonic(), **values}) + "\n"
            os.write(self.descriptor, line.encode("utf-8", "surrogatepass"))


class _Hidden:
    """Lets the project import its own `service` or `workers`, never the runner's."""

    def __init__(self, names: Iterable[str], root: str) -> None:
        self.names = frozenset(names)
        self.root = root

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        if path is not None or name not in self.names:
            return None
        others = [entry for entry in sys.path if os.path.realpath(entry or ".") != self.root]
        spec = PathFinder.find_spec(name, others, target)
        if spec is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return spec


REPORT = _Report(SETTINGS["report"])
sys.meta_path.insert(0, _Hidden(SETTINGS["hidden_names"], SETTINGS["hidden_root"]))


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: Any) -> None:
    """Say which pytest, Python and settings run here."""
    # Tests spread over several processes have no order: run them in this one.
    if hasattr(config.option, "numprocesses"):
        config.option.numprocesses = None
        config.option.dist = "no"
        config.option.tx = []
    inifile = getattr(config, "inipath", None)
    REPORT.write(
        "session",
        pytest=pytest.__version__,
        python=sys.version.split()[0],
        rootdir=str(config.rootpath),
        inifile=None if inifile is None else str(inifile),
        capture=config.getoption("capture", "fd"),
        packages=_versions(),
    )


def pytest_collectreport(report: Any) -> None:
    """Name a file that cannot be collected."""
    if report.failed:
        REPORT.write("not_collected", node=report.nodeid, message=str(report.longrepr)[-MESSAGE_LIMIT:])


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Leave the wanted tests in the wanted order, after every other plugin had its say."""
    wanted = SETTINGS["tests"]
    if wanted is None:
        return
    place = {test: number for number, test in enumerate(wanted)}
    chosen = sorted((item for item in items if item.nodeid in place), key=lambda item: place[item.nodeid])
    others = [item for item in items if item.nodeid not in place]
    if others:
        config.hook.pytest_deselected(items=others)
    items[:] = chosen


def pytest_collection_finish(session: Any) -> None:
    """Say what will run."""
    REPORT.write("collected", tests=[item.nodeid for item in session.items])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logstart(nodeid: str) -> None:
    """Say which test runs from now on."""
    REPORT.write("start", test=nodeid)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(call: Any) -> Iterator[None]:
    """Keep the type of a failure, which a report only prints."""
    outcome: Any = yield
    report = outcome.get_result()
    if call.excinfo is not None:
        report.likewise_failure = (call.excinfo.typename, _message(call.excinfo, report))


def _message(excinfo: Any, report: Any) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        return str(crash.message)[:MESSAGE_LIMIT]
    return f"{excinfo.typename}: {excinfo.value}"[:MESSAGE_LIMIT]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report: Any) -> None:
    """Write down one phase of a test."""
    # A subtest is no test of its own; a failed one decides about its test, which older plugins let pass.
    if hasattr(report, "context") and report.outcome != "failed":
        return
    kind, message = getattr(report, "likewise_failure", (None, None))
    # The sections of a report hold everything captured so far: its last phase has them all.
    REPORT.write(
        "phase",
        test=report.nodeid,
        when=report.when,
        outcome=report.outcome,
        duration_s=report.duration,
        expected=getattr(report, "wasxfail", None),
        failure_type=kind,
        message=message,
        details=str(report.longrepr)[-SECTION_LIMIT:] if report.failed else None,
        sections=[[name, text[-SECTION_LIMIT:]] for name, text in report.sections],
        records=_record_lines(report.sections),
        properties=[
            [str(name), value if isinstance(value, (int, float, str)) else str(value)]
            for name, value in report.user_properties
        ]
        if report.when == "teardown"
        else [],
    )


def _record_lines(sections: Sequence[tuple[str, str]]) -> list[str]:
    """Return the counter and metric lines of standard output, which a long output would cut off."""
    text = "\n".join(text for name, text in sections if "stdout" in name)
    return [line for line in text.splitlines() if line.lstrip().startswith("LIKEWISE_")] if "LIKEWISE_" in text else []


@pytest.hookimpl(trylast=True)
def pytest_runtest_logfinish(nodeid: str) -> None:
    """Say that the test is over."""
    REPORT.write("finish", test=nodeid)


def pytest_keyboard_interrupt(excinfo: Any) -> None:
    """Say why the session was ended from within."""
    REPORT.write("interrupted", message=f"{excinfo.typename}: {excinfo.value}"[:MESSAGE_LIMIT])


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(exitstatus: int) -> None:
    """Say that the session came to its end."""
    REPORT.write("end", exit_status=int(exitstatus))
