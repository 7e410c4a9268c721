"""Treatments: read from text, described in words, and what each declares to change of the context.

Text forms (command line, bot): exclude:TEST · before:TEST · alone · order:TEST,TEST · order:seed=N · env:NAME=VALUE
(env:NAME unsets) · toggle:NAME · build:NAME=VALUE · commit:REV · none. Several are joined with ` + `.
"""

from __future__ import annotations

import difflib
import re

from gpu_runner.protocol import SuiteDefinition, Treatment, TreatmentKind
from service.errors import InvalidValueError, NotFoundError
from service.suitefile import RESERVED

FORMS = (
    "exclude:TEST before:TEST alone order:TEST,... order:seed=N env:NAME=VALUE "
    "toggle:NAME build:NAME=VALUE commit:REV none"
)


# A test's name may hold " + " itself: only what begins like a treatment is another one.
_JOINED = re.compile(r" \+ (?=[a-z]+:(?!:)|(?:alone|none)(?: \+ |$))")


def parse_treatments(text: str, suite: SuiteDefinition) -> tuple[Treatment, ...]:
    """Return the treatments of one arm; toggles are resolved against the suite.

    Raises InvalidValueError for an unknown form and NotFoundError for an unknown toggle.
    """
    return tuple(_parse_one(part.strip(), suite) for part in _JOINED.split(text))


def _parse_one(text: str, suite: SuiteDefinition) -> Treatment:
    name, _, value = text.partition(":")
    if name in ("alone", "none"):
        if value:
            raise InvalidValueError("treatment", text, f"{name} takes no value")
        return Treatment(TreatmentKind(name))
    if not value:
        raise InvalidValueError("treatment", text, "not a treatment", f"Forms: {FORMS}.")
    if name == "exclude":
        return Treatment(TreatmentKind.EXCLUDE, tests=(value,))
    if name == "before":
        return Treatment(TreatmentKind.INSERT_BEFORE, tests=(value,))
    if name == "order":
        return _order(text, value)
    if name == "env":
        return Treatment(TreatmentKind.ENVIRONMENT, environment=_assignment(text, value))
    if name == "build":
        return Treatment(TreatmentKind.BUILD, environment=_assignment(text, value))
    if name == "commit":
        return Treatment(TreatmentKind.COMMIT, commit=value)
    if name == "toggle":
        return resolve_toggle(value, suite)
    close = difflib.get_close_matches(name, ("exclude", "before", "order", "env", "toggle", "build", "commit"), 1)
    raise InvalidValueError(
        "treatment", text, "not a treatment", f"Did you mean {close[0]}:?" if close else f"Forms: {FORMS}."
    )


def _order(text: str, value: str) -> Treatment:
    if value.startswith("seed="):
        if not value[5:].isdigit():
            raise InvalidValueError("treatment", text, "the seed is not a number")
        return Treatment(TreatmentKind.ORDER, seed=int(value[5:]))
    return Treatment(TreatmentKind.ORDER, tests=tuple(value.split(",")))


def _assignment(text: str, value: str) -> dict[str, str | None]:
    name, has_value, content = value.partition("=")
    if not name:
        raise InvalidValueError("treatment", text, "it names no variable", "Write for instance env:NAME=VALUE.")
    if name in RESERVED:
        raise InvalidValueError("treatment", text, f"the runner sets {name} for every execution")
    return {name: content if has_value else None}


def resolve_toggle(name: str, suite: SuiteDefinition) -> Treatment:
    """Return the toggle's treatment with its environment and expectations copied from the suite."""
    toggle = suite.toggles.get(name)
    if toggle is None:
        known = ", ".join(sorted(suite.toggles)) or "none"
        raise NotFoundError("toggle", name, f"Suite {suite.name} has: {known}.")
    return Treatment(TreatmentKind.TOGGLE, toggle=name, environment=dict(toggle.environment), expect=toggle.expect)


def describe(treatments: tuple[Treatment, ...]) -> str:
    """Return the treatments in words, e.g. "without warm_plan_cache"; "the full suite" for none."""
    return " and ".join(_words(item) for item in treatments) or "the full serial suite"


def to_text(treatments: tuple[Treatment, ...]) -> str:
    """Return the text form that `parse_treatments` reads back."""
    return " + ".join(_text(item) for item in treatments)


def _words(item: Treatment) -> str:
    match item.kind:
        case TreatmentKind.EXCLUDE:
            return f"without {', '.join(item.tests)}"
        case TreatmentKind.INSERT_BEFORE:
            return f"with {', '.join(item.tests)} right before the victim"
        case TreatmentKind.ALONE:
            return "the victim alone"
        case TreatmentKind.ORDER:
            return f"in the order of seed {item.seed}" if item.seed is not None else f"{', '.join(item.tests)} first"
        case TreatmentKind.TOGGLE:
            return f"toggle {item.toggle} ({_pairs(item.environment)})"
        case TreatmentKind.ENVIRONMENT:
            return f"with {_pairs(item.environment)}"
        case TreatmentKind.BUILD:
            return f"built with {_pairs(item.environment)}" if item.environment else "built another way"
        case TreatmentKind.COMMIT:
            return f"at commit {(item.commit or '')[:12]}"
        case TreatmentKind.NONE:
            return "nothing changed (A/A)"


def _text(item: Treatment) -> str:
    match item.kind:
        case TreatmentKind.EXCLUDE:
            return " + ".join(f"exclude:{test}" for test in item.tests)
        case TreatmentKind.INSERT_BEFORE:
            return " + ".join(f"before:{test}" for test in item.tests)
        case TreatmentKind.ORDER:
            return f"order:seed={item.seed}" if item.seed is not None else f"order:{','.join(item.tests)}"
        case TreatmentKind.TOGGLE:
            return f"toggle:{item.toggle}"
        case TreatmentKind.ENVIRONMENT:
            return " + ".join(f"env:{_pair(name, value)}" for name, value in item.environment.items())
        case TreatmentKind.BUILD:
            return " + ".join(f"build:{_pair(name, value)}" for name, value in item.environment.items())
        case TreatmentKind.COMMIT:
            return f"commit:{item.commit}"
        case TreatmentKind.ALONE | TreatmentKind.NONE:
            return item.kind.value


def _pairs(environment: dict[str, str | None]) -> str:
    return ", ".join(_pair(name, value) for name, value in environment.items())


def _pair(name: str, value: str | None) -> str:
    return name if value is None else f"{name}={value}"


def is_aa(treatments: tuple[Treatment, ...]) -> bool:
    """Return whether an arm changes nothing on purpose."""
    return all(item.kind is TreatmentKind.NONE for item in treatments)


def declared_fields(treatments: tuple[Treatment, ...], *, as_built: bool) -> frozenset[tuple[str, str]]:
    """Return the context fields (channel, name) that the treatments say they change.

    A test list follows from exclude, insert, alone and order; artefacts, toolchain outputs and, `as_built`, the list
    of tests from build and commit. Names ending in `*` stand for every field with that beginning.
    """
    fields: set[tuple[str, str]] = set()
    for item in treatments:
        match item.kind:
            case TreatmentKind.EXCLUDE | TreatmentKind.INSERT_BEFORE | TreatmentKind.ALONE:
                fields |= {("suite", "tests"), ("suite", "prefix")}
            case TreatmentKind.ORDER:
                fields |= {("suite", "tests"), ("suite", "prefix"), ("suite", "shuffle_seed")}
            case TreatmentKind.ENVIRONMENT | TreatmentKind.TOGGLE:
                fields |= {("process", f"environment.{name}") for name in item.environment}
            case TreatmentKind.BUILD:
                fields |= {("software", f"build_environment.{name}") for name in item.environment}
                fields |= _BUILT if not as_built else _BUILT | _LISTED
                if item.commands:
                    fields.add(("software", "build_commands"))
            case TreatmentKind.COMMIT:
                fields |= {("software", "commit"), ("software", "tree_hash"), ("software", "dirty")}
                fields |= _BUILT if not as_built else _BUILT | _LISTED
            case TreatmentKind.NONE:
                pass
    return frozenset(fields)


_BUILT = {("software", "artefacts"), ("software", "kernel_fingerprints")}
_LISTED = {("suite", "tests"), ("suite", "prefix"), ("suite", "listing")}


def kinds_of_change(treatments: tuple[Treatment, ...]) -> frozenset[TreatmentKind]:
    """Return the kinds of what is changed, A/A left out."""
    return frozenset(item.kind for item in treatments if item.kind is not TreatmentKind.NONE)
