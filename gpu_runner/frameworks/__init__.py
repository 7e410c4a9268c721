"""The seam to test frameworks: what each can do, and the registry, which imports an adapter when it is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

from gpu_runner.failures import RunnerError
from gpu_runner.protocol import Outcome, SuiteDefinition, TestResult
from gpu_runner.records import Records
from gpu_runner.sandbox import Ended, Limits, Observer, Sandbox
from gpu_runner.supervisor import Overlay

OUTPUT_TAIL = 16 * 1024
OUTPUT_TAIL_PASSED = 2 * 1024
MESSAGE_LENGTH = 4 * 1024


@dataclass(frozen=True, slots=True)
class Site:
    """Where an adapter works: a restored tree, private folders, an environment.

    `own` is a private folder for the adapter's files; `cwd` is the suite's folder in the tree.
    """

    suite: SuiteDefinition
    cwd: Path
    own: Path
    environment: Mapping[str, str]
    sandbox: Sandbox
    overlay: Overlay | None

    def launch(self, command: Sequence[str], timeout_s: float, observer: Observer | None = None) -> Ended:
        """Run a command in the suite's folder."""
        limits = Limits(timeout_s, self.suite.memory_limit_bytes)
        return self.sandbox.run(command, str(self.cwd), self.environment, limits, self.overlay, observer)


@dataclass(frozen=True, slots=True)
class Listing:
    """The tests of a built tree in the framework's serial order, and what the adapter needs to run them (JSON)."""

    tests: tuple[str, ...]
    version: str
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SuiteRun:
    """One run of a suite. `results` are in the order of execution, tests that never started last.

    The counters of the results are in `records`: events that a test wrote into a file come to them later.
    """

    ended: Ended
    results: tuple[TestResult, ...]
    records: Records


Progressed = Callable[[int, str], None]


class Framework(Protocol):
    """What an adapter offers. `process_model` says whether the tests share a process."""

    process_model: str

    def find(self, environment: Mapping[str, str]) -> str:
        """Return the framework's version for `doctor`; RunnerError `missing_framework` with the way out."""

    def list_tests(self, site: Site) -> Listing:
        """Return the listing; RunnerError `missing_framework`, `list_failed` or `no_tests`."""

    def complete(self, listing: Listing, tests: Sequence[str]) -> tuple[str, ...]:
        """Return the list that runs when `tests` are asked for: with what they depend on, in a possible order."""

    def run_tests(self, site: Site, listing: Listing, tests: Sequence[str], progressed: Progressed) -> SuiteRun:
        """Run exactly these tests in this order; `progressed(position, test)` is called when a test starts."""


_ADAPTERS = {
    "ctest": "gpu_runner.frameworks.ctest_suite",
    "pytest": "gpu_runner.frameworks.pytest_suite",
}


def names() -> tuple[str, ...]:
    """Return the known frameworks."""
    return tuple(_ADAPTERS)


def get(name: str) -> Framework:
    """Return the adapter of a framework; RunnerError `missing_framework` for an unknown name."""
    module = _ADAPTERS.get(name)
    if module is None:
        raise RunnerError(
            "missing_framework",
            f"this runner has no adapter for the framework {name!r}",
            f"use one of {', '.join(_ADAPTERS)}, or update the runner",
        )
    return cast("Framework", importlib.import_module(module))


def tail(text: str, outcome: Outcome) -> str | None:
    """Return the end of a test's output, None when there is none; of a test that passed, less is kept."""
    return text[-(OUTPUT_TAIL_PASSED if outcome is Outcome.PASSED else OUTPUT_TAIL) :] or None
