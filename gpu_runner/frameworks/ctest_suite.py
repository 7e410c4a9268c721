"""ctest: a process for each test, in any order, through a CTestTestfile.cmake written from ctest's own listing.

The build folder is not touched: the file, `Testing/` and its cost history are private. `arguments` of the suite select
tests when they are listed (`-C`, `-L`, `-R`, `-E`); what is listed is then run serially, without them.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpu_runner.failures import RunnerError
from gpu_runner.frameworks import MESSAGE_LENGTH, Listing, Progressed, Site, SuiteRun
from gpu_runner.frameworks.ctest_results import Console, read_report, result_of
from gpu_runner.host import ask
from gpu_runner.records import Records
from gpu_runner.sandbox import Collector

process_model = "one process a test"

LIST_TIMEOUT_S = 600.0
VERSION_TIMEOUT_S = 30.0
# ctest keeps the head of a long output and loses its failing tail; the tail is cut here instead.
OUTPUT_BYTES = 16 * 1024 * 1024
_CONSOLE_VARIABLES = frozenset({"CTEST_OUTPUT_ON_FAILURE", "CTEST_PROGRESS_OUTPUT", "CTEST_USE_VERBOSE"})
# Not carried over: the order is ours, and resource groups need a specification that only `ctest` itself was given.
_DROPPED = frozenset({"COST", "DEPENDS", "RESOURCE_GROUPS", "GENERATED_RESOURCE_SPEC_FILE", "MEASUREMENT"})


def find(environment: Mapping[str, str]) -> str:
    """Return the version of the ctest that would be used."""
    program = _program(environment)
    answer = ask([program, "--version"], VERSION_TIMEOUT_S)
    match = None if answer is None else re.search(r"ctest version (\S+)", answer.text)
    if match is None:
        raise RunnerError("missing_framework", f"{program} does not tell its version", "install CMake again")
    return match[1]


def _program(environment: Mapping[str, str]) -> str:
    program = shutil.which("ctest", path=environment.get("PATH"))
    if program is None:
        raise RunnerError(
            "missing_framework",
            f"there is no ctest on the PATH {environment.get('PATH')!r}",
            "install CMake, or `pip install cmake` into the environment of the runner",
        )
    return program


def list_tests(site: Site) -> Listing:
    """Return the tests of `test_dir` in ctest's serial order."""
    program = _program(site.environment)
    folder = site.cwd / (site.suite.test_dir or ".")
    collected = Collector()
    command = [program, "--show-only=json-v1", "--test-dir", str(folder), *site.suite.arguments]
    ended = site.launch(command, LIST_TIMEOUT_S, collected)
    text = collected.data.decode(errors="replace")
    try:
        described = json.loads(text[text.index("{") :])
    except ValueError:
        described = None
    if ended.exit_code != 0 or described is None:
        raise RunnerError(
            "list_failed",
            f"{' '.join(command)} listed nothing: {text.strip()[-MESSAGE_LENGTH:] or ended.detail or ended.ending}",
            "test_dir of the suite is the build folder, where CTestTestfile.cmake lies after the build",
        )
    tests = _unique([_entry(test) for test in described["tests"]])
    if not tests:
        raise RunnerError(
            "no_tests",
            f"ctest finds no tests in {folder}",
            "check that test_dir is the build folder, that the build calls enable_testing(), and the arguments",
        )
    names = _dependencies_first(_by_cost(tests), {test["name"]: test for test in tests})
    return Listing(tuple(names), find(site.environment), {"tests": tests})


def _entry(test: Mapping[str, Any]) -> dict[str, Any]:
    properties = {item["name"]: item["value"] for item in test.get("properties", [])}
    return {"name": test["name"], "command": test.get("command"), "properties": properties}


def _unique(tests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tell tests of one name, registered in different folders, apart by a number."""
    seen: dict[str, int] = {}
    for test in tests:
        seen[test["name"]] = seen.get(test["name"], 0) + 1
        if seen[test["name"]] > 1:
            test["name"] = f"{test['name']} ({seen[test['name']]})"
    return tests


def _by_cost(tests: Sequence[Mapping[str, Any]]) -> list[str]:
    ordered = sorted(tests, key=lambda test: -float(test["properties"].get("COST", 0.0)))
    return [test["name"] for test in ordered]


def _needs(name: str, entries: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return list(entries[name]["properties"].get("DEPENDS", []))


def _dependencies_first(names: Sequence[str], entries: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the order that ctest runs serially: a test's dependencies, as far as they run, stand before it."""
    selected = set(names)
    order = {name: place for place, name in enumerate(entries)}
    placed: dict[str, None] = {}
    for name in names:
        waiting, found = [name], set()
        while waiting:
            for needed in _needs(waiting.pop(), entries):
                if needed in selected and needed not in found:
                    found.add(needed)
                    waiting.append(needed)
        for needed in sorted(found - {name}, key=order.__getitem__):
            placed.setdefault(needed)
        placed.setdefault(name)
    return list(placed)


def complete(listing: Listing, tests: Sequence[str]) -> tuple[str, ...]:
    """Return the tests with the set-up and clean-up tests of the fixtures that they require."""
    entries = {test["name"]: test for test in listing.data["tests"]}

    def fixtures(name: str, role: str) -> set[str]:
        return set(entries[name]["properties"].get(f"FIXTURES_{role}", []))

    chosen = dict.fromkeys(tests)
    while True:
        required = set().union(*(fixtures(name, "REQUIRED") for name in chosen))
        set_up = [name for name in entries if name not in chosen and fixtures(name, "SETUP") & required]
        cleaned = [name for name in entries if name not in chosen and fixtures(name, "CLEANUP") & required]
        if not set_up and not cleaned:
            break
        chosen |= dict.fromkeys([*set_up, *cleaned])
    order = list(tests)
    for name in chosen:
        if name not in tests:
            users = [place for place, user in enumerate(order) if name in _needs(user, entries)]
            served = [place for place, user in enumerate(order) if user in _needs(name, entries)]
            order.insert(min(users) if users else max(served, default=len(order) - 1) + 1, name)
    return tuple(_dependencies_first(order, entries))


def run_tests(site: Site, listing: Listing, tests: Sequence[str], progressed: Progressed) -> SuiteRun:
    """Run the tests in this order; a test that is named twice runs twice."""
    folder = site.own / "ctest"
    folder.mkdir(parents=True)
    attempts = _attempts(tests)
    (folder / "CTestTestfile.cmake").write_text(_test_file(listing, attempts), "utf-8", errors="surrogateescape")
    size = str(OUTPUT_BYTES)
    command = [
        _program(site.environment), "--test-dir", str(folder), "-j", "1", "-T", "Test", "--no-compress-output",
        "--no-tests=error", "--timeout", f"{site.suite.test_timeout_s:g}",
        "--test-output-size-passed", size, "--test-output-size-failed", size,
    ]  # fmt: skip
    console = Console([test for test, _, _ in attempts], progressed)
    # Variables that would mix other things into the console.
    environment = {name: value for name, value in site.environment.items() if name not in _CONSOLE_VARIABLES}
    ended = replace(site, environment=environment).launch(command, site.suite.timeout_s, console)
    records = Records()
    found = read_report(folder, ended)
    results = [result_of(place, attempts[place], console, found, ended, records) for place in console.order()]
    return SuiteRun(ended, tuple(results), records)


def _attempts(tests: Sequence[str]) -> list[tuple[str, int, str]]:
    """Return for each place its test, attempt and the name under which ctest knows it."""
    taken = set(tests)
    seen: dict[str, int] = {}
    found = []
    for test in tests:
        seen[test] = seen.get(test, 0) + 1
        name = test
        while seen[test] > 1 and name in taken:
            name += f" attempt {seen[test]}"
        taken.add(name)
        found.append((test, seen[test], name))
    return found


def _test_file(listing: Listing, attempts: Sequence[tuple[str, int, str]]) -> str:
    entries = {test["name"]: test for test in listing.data["tests"]}
    known = {name for _, _, name in attempts}
    lines = []
    for test, _, name in attempts:
        entry = entries[test]
        command = [_quote(part) for part in entry["command"]] if entry["command"] else ["NOT_AVAILABLE"]
        lines.append(f"add_test({_quote(name)} {' '.join(command)})")
        properties = dict(entry["properties"])
        needed = [other for other in properties.get("DEPENDS", []) if other in known]
        kept = {key: value for key, value in properties.items() if key not in _DROPPED}
        pairs = [f"{key} {_quote(_value(key, value))}" for key, value in kept.items()]
        pairs += [f"DEPENDS {_quote(_value('DEPENDS', needed))}"] if needed else []
        if pairs:
            lines.append(f"set_tests_properties({_quote(name)} PROPERTIES {' '.join(pairs)})")
    return "\n".join(lines) + "\n"


def _value(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, list):
        return ";".join(str(item).replace(";", "\\;") for item in value)
    if key == "TIMEOUT_AFTER_MATCH":
        return ";".join([f"{value['timeout']:g}", *(str(item).replace(";", "\\;") for item in value["regex"])])
    return f"{value:g}" if isinstance(value, float) else str(value)


def _quote(text: str) -> str:
    """Return a bracket argument: nothing in it is special to CMake, not even `#`."""
    level = 1
    while f"]{'=' * level}]" in f"{text}]":
        level += 1
    return f"[{'=' * level}[{'' if not text.startswith(chr(10)) else chr(10)}{text}]{'=' * level}]"
