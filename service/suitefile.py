"""`likewise.toml`: the suites of the repository under test, read into definitions.

Keys are those of the README's table; an unknown key, a bad duration or a bad size is refused by name.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from typing import Any

from gpu_runner.protocol import Expectation, SuiteDefinition, Toggle
from service.errors import InvalidValueError, NotFoundError

FRAMEWORKS = ("ctest", "pytest")
# Set by the runner: a fixed seed in one arm would pass chance for a treatment.
RESERVED = ("LIKEWISE_RUN_SEED", "LIKEWISE_EVENTS")
_DURATION = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_SIZE = {"B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_TEXT = {"framework", "cwd", "test_dir", "python", "exclusive"}
_LISTS = {"build", "paths", "arguments", "record_values", "big_files"}
_TIMES = {"timeout": "timeout_s", "test_timeout": "test_timeout_s", "build_timeout": "build_timeout_s"}
_KEYS = _TEXT | _LISTS | set(_TIMES) | {"memory_limit", "environment", "toggles"}


def parse_duration(text: object, field: str) -> float:
    """Return seconds of a duration such as "90m", "1.5h", "250ms" or a number of seconds.

    >>> parse_duration("90m", "timeout")
    5400.0
    """
    if isinstance(text, int | float) and not isinstance(text, bool) and text > 0:
        return float(text)
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)", str(text))
    if match is None or float(match[1]) <= 0:
        raise InvalidValueError(field, text, "not a duration", 'Write for instance "90s", "10m" or "1.5h".')
    return float(match[1]) * _DURATION[match[2]]


def parse_size(text: object, field: str) -> int:
    """Return bytes of a size such as "100GiB" or a number of bytes.

    >>> parse_size("2KiB", "memory_limit")
    2048
    """
    if isinstance(text, int) and not isinstance(text, bool) and text > 0:
        return text
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?i?B)", str(text), re.IGNORECASE)
    if match is None or match[2].upper() not in _SIZE:
        raise InvalidValueError(field, text, "not a size", 'Write for instance "512MiB" or "100GiB".')
    return int(float(match[1]) * _SIZE[match[2].upper()])


def read_suites(text: str) -> dict[str, SuiteDefinition]:
    """Return the suites of a `likewise.toml` by name; InvalidValueError names the key that is wrong."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidValueError("likewise.toml", "?", f"not TOML: {error}") from None
    tables = data.get("suites")
    if not isinstance(tables, dict) or not tables:
        raise InvalidValueError(
            "likewise.toml", sorted(data), "it has no [suites.NAME] table", "`likewise init` writes one."
        )
    return {name: _suite(name, table) for name, table in tables.items()}


def pick_suite(suites: dict[str, SuiteDefinition], name: str | None) -> SuiteDefinition:
    """Return the named suite, or the only one when `name` is None."""
    if name is None:
        if len(suites) == 1:
            return next(iter(suites.values()))
        raise InvalidValueError("suite", None, "several suites exist", f"Choose one of {', '.join(sorted(suites))}.")
    if name not in suites:
        raise NotFoundError("suite", name, f"likewise.toml has: {', '.join(sorted(suites))}.")
    return suites[name]


def _suite(name: str, table: Any) -> SuiteDefinition:
    where = f"suites.{name}"
    if not isinstance(table, dict):
        raise InvalidValueError(where, table, "not a table")
    for key in table:
        if key not in _KEYS:
            close = difflib.get_close_matches(key, _KEYS, 1)
            raise InvalidValueError(
                f"{where}.{key}", table[key], "an unknown key", f"Did you mean {close[0]!r}?" if close else ""
            )
    if table.get("framework") not in FRAMEWORKS:
        raise InvalidValueError(
            f"{where}.framework", table.get("framework"), "not known", f"Use one of {', '.join(FRAMEWORKS)}."
        )
    values: dict[str, Any] = {"name": name}
    for key in _TEXT & set(table):
        if not isinstance(table[key], str):
            raise InvalidValueError(f"{where}.{key}", table[key], "not text")
        values[key] = table[key]
    if values.get("exclusive", "host") not in ("host", "device"):
        raise InvalidValueError(f"{where}.exclusive", values["exclusive"], "neither host nor device")
    for key in _LISTS & set(table):
        values[key] = _texts(table[key], f"{where}.{key}")
    for key, field in _TIMES.items():
        if key in table:
            values[field] = parse_duration(table[key], f"{where}.{key}")
    if "memory_limit" in table:
        values["memory_limit_bytes"] = parse_size(table["memory_limit"], f"{where}.memory_limit")
    if "environment" in table:
        values["environment"] = _environment(table["environment"], f"{where}.environment")
    values["toggles"] = {
        key: _toggle(entry, f"{where}.toggles.{key}") for key, entry in table.get("toggles", {}).items()
    }
    return SuiteDefinition(**values)


def _texts(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise InvalidValueError(where, value, "not a list of texts")
    return tuple(value)


def _environment(value: Any, where: str) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise InvalidValueError(where, value, "not a table of texts", 'Quote the values: NAME = "0".')
    for name in RESERVED:
        if name in value:
            raise InvalidValueError(f"{where}.{name}", value[name], "the runner sets it for every execution")
    return dict(value)


def _toggle(table: Any, where: str) -> Toggle:
    if not isinstance(table, dict) or set(table) - {"off", "expect"} or "off" not in table:
        raise InvalidValueError(where, table, "a toggle has `off` and may have `expect`")
    environment: dict[str, str | None] = dict(_environment(table["off"], f"{where}.off"))
    expect = tuple(parse_expectation(counter, text, where) for counter, text in table.get("expect", {}).items())
    return Toggle(environment, expect)


def parse_expectation(counter: str, text: object, where: str) -> Expectation:
    """Return what a counter should do.

    >>> parse_expectation("fired", ">0 -> 0", "expect")
    Expectation(counter='fired', before='>0', after='0')
    """
    match = re.fullmatch(r"\s*(>0|0|any)\s*->\s*(>0|0|any)\s*", str(text))
    if match is None:
        raise InvalidValueError(
            f"{where}.expect.{counter}", text, "not an expectation", 'Write for instance ">0 -> 0".'
        )
    return Expectation(counter, match[1], match[2])
