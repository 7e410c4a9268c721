"""What all tests share: a private home, the environment without our variables, seconds per folder at the end."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
_seconds: dict[str, float] = defaultdict(float)

for _name in [name for name in os.environ if name.startswith("LIKEWISE_")]:
    del os.environ[_name]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    parts = report.nodeid.split("/")
    _seconds[parts[1] if len(parts) > 2 else parts[0].split("::")[0]] += report.duration


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.section("seconds per folder (test time, summed over processes)")
    for folder, seconds in sorted(_seconds.items(), key=lambda item: -item[1]):
        terminalreporter.write_line(f"{seconds:8.1f}  {folder}")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A private LIKEWISE_HOME with a fresh SQLite schema."""
    from service.config import settings
    from service.store import schema

    folder = tmp_path / "home"
    monkeypatch.setenv("LIKEWISE_HOME", str(folder))
    settings.cache_clear()
    schema.upgrade()
    yield folder
    settings.cache_clear()


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of shared material beside the project, or a skip."""
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip("the shared material lies beside the project only where it is developed")
    return folder
