"""What the runner reads and writes: one JSON job on standard input, JSON lines on standard output.

Every message carries `protocol: 1`; another number is refused. Only the standard library is needed, so that a GPU
box with a bare interpreter can run a plan. Times are seconds since the epoch (UTC), durations seconds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

from gpu_runner.codec import MalformedMessageError, from_json, to_json

PROTOCOL = 1

__all__ = [
    "PROTOCOL", "ArmJob", "BlockJob", "Build", "CacheState", "ContextClass", "ContextField", "Done",
    "EvidenceHeader", "ExecutionJob", "ExecutionReport", "ExecutionStatus", "Expectation", "Failure", "Hello",
    "MalformedMessageError", "Measurement", "Outcome", "PlanHeader", "PrepareJob", "PreparedArm", "Progress",
    "SuiteDefinition", "TestResult", "TestsMode", "Toggle", "Treatment", "TreatmentKind", "canonical_digest",
    "from_json", "plan_digest", "read_line", "to_json", "write_line",
]  # fmt: skip


class Outcome(StrEnum):
    """What one attempt of one test came to."""

    PASSED = "passed"
    FAILED = "failed"
    ERROR = "error"
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"
    KILLED = "killed"
    SKIPPED = "skipped"
    NOT_RUN = "not_run"
    EXPECTED_FAILURE = "expected_failure"
    UNKNOWN = "unknown"


class CacheState(StrEnum):
    """Whether the caches of an execution start empty or from the snapshot of a warm-up."""

    COLD = "cold"
    WARM = "warm"


class TestsMode(StrEnum):
    """What happens to tests that exist in some arms only: left out everywhere, or part of the treatment."""

    __test__ = False  # pytest takes classes of this name for tests

    INTERSECT = "intersect"
    AS_BUILT = "as_built"


class TreatmentKind(StrEnum):
    """The tag of one declared difference of an arm."""

    EXCLUDE = "exclude"  # tests: left out of the list
    INSERT_BEFORE = "insert_before"  # tests: moved, or added, right before the victim
    ALONE = "alone"  # the victim only
    ORDER = "order"  # tests: run first, in this order; or `seed`: a permutation
    ENVIRONMENT = "environment"  # environment: set (None: unset) for the tests
    TOGGLE = "toggle"  # toggle: a named toggle of the suite, resolved to environment and expectations
    BUILD = "build"  # environment: set for the build commands; commands: replace them
    COMMIT = "commit"  # commit: another tree
    NONE = "none"  # A/A


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a counter should do between control and treated arm: `before` and `after` are ">0", "0" or "any"."""

    counter: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Treatment:
    """One declared difference. Only the fields of its kind are set."""

    kind: TreatmentKind
    tests: tuple[str, ...] = ()
    seed: int | None = None
    environment: dict[str, str | None] = field(default_factory=dict)
    toggle: str | None = None
    commands: tuple[str, ...] = ()
    commit: str | None = None
    expect: tuple[Expectation, ...] = ()


@dataclass(frozen=True, slots=True)
class Toggle:
    """A named realization toggle of a suite: the environment that switches it and the counters that must move."""

    environment: dict[str, str | None]
    expect: tuple[Expectation, ...] = ()


@dataclass(frozen=True, slots=True)
class Build:
    """How the tree of an arm is made: commands run in `cwd` with this environment added."""

    commands: tuple[str, ...] = ()
    environment: dict[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SuiteDefinition:
    """How one set of tests is built, listed and run. Copied into the experiment when it is enqueued."""

    name: str
    framework: str
    cwd: str = "."
    build: tuple[str, ...] = ()
    test_dir: str | None = None
    python: str | None = None
    paths: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    record_values: tuple[str, ...] = ()
    timeout_s: float = 5400.0
    test_timeout_s: float = 600.0
    build_timeout_s: float = 1800.0
    memory_limit_bytes: int | None = None
    exclusive: str = "host"
    big_files: tuple[str, ...] = ()
    toggles: dict[str, Toggle] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ArmJob:
    """An arm as the runner needs it: which tree, which build, which treatment."""

    arm: int
    name: str
    commit: str
    treatments: tuple[Treatment, ...] = ()


@dataclass(frozen=True, slots=True)
class PrepareJob:
    """Check out and build every distinct (commit, build), list it, and apply the treatments to the list.

    `source` is a path or URL of a git repository, or a plain folder (then every commit must equal its tree hash).
    `slot_dir` is the runner's private folder: lock, trees, snapshots, caches. `tree_hash` (detached runs): what the
    tree of the control commit must hash to.
    """

    source: str
    slot_dir: str
    suite: SuiteDefinition
    arms: tuple[ArmJob, ...]
    victim: str
    tests_mode: TestsMode = TestsMode.INTERSECT
    tree_hash: str | None = None
    protocol: int = PROTOCOL
    type: str = "prepare"


@dataclass(frozen=True, slots=True)
class ExecutionJob:
    """One execution: the arm, its fixed ordered test list, its seed."""

    arm: int
    tests: tuple[str, ...]
    run_seed: int
    environment: dict[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BlockJob:
    """Run `executions` one after another, each in a fresh process on a restored tree with private caches."""

    source: str
    slot_dir: str
    suite: SuiteDefinition
    arms: tuple[ArmJob, ...]
    victim: str
    experiment: str
    block: int
    attempt: int
    executions: tuple[ExecutionJob, ...]
    cache_state: CacheState = CacheState.COLD
    tests_mode: TestsMode = TestsMode.INTERSECT
    tree_hash: str | None = None
    protocol: int = PROTOCOL
    type: str = "block"


class ContextClass(StrEnum):
    """How a context field is compared: exactly, within a tolerance, or never."""

    IDENTITY = "identity"
    STATE = "state"
    OBSERVED = "observed"


@dataclass(frozen=True, slots=True)
class ContextField:
    """One recorded fact about an execution. `value` is JSON; None means that it could not be read."""

    channel: str
    name: str
    context_class: ContextClass
    value: Any


@dataclass(frozen=True, slots=True)
class Hello:
    """First line of every run: who speaks."""

    runner_version: str
    python: str
    host: str
    boot_id: str
    pid: int
    protocol: int = PROTOCOL
    type: str = "hello"


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a long job stands. `phase`: checkout build list restore warm execute. Counts are of tests."""

    phase: str
    arm: int | None = None
    position: int | None = None
    test: str | None = None
    done: int | None = None
    total: int | None = None
    protocol: int = PROTOCOL
    type: str = "progress"


@dataclass(frozen=True, slots=True)
class PreparedArm:
    """One arm after checkout, build and listing.

    `listing`: every test that exists there, in the framework's serial order. `tests`: the ordered list that the arm
    will run. `left_out`: tests dropped from every arm because some arm lacks them (intersect). `only_here`: tests that
    no other arm has. `context`: the identity fields known before anything ran. `error_code` is None, or one of
    `no_such_commit build_failed list_failed no_tests no_such_test bad_treatment missing_framework tree_differs`.
    """

    arm: int
    listing: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    only_here: tuple[str, ...] = ()
    context: tuple[ContextField, ...] = ()
    error_code: str | None = None
    error: str | None = None
    protocol: int = PROTOCOL
    type: str = "prepared"


@dataclass(frozen=True, slots=True)
class Measurement:
    """A named number, possibly one per sample; `test` None: of the whole execution."""

    name: str
    value: float
    test: str | None = None
    sample: int | None = None


@dataclass(frozen=True, slots=True)
class TestResult:
    """One attempt of one test. `position` counts from 0 in the order of execution; None when it never started.

    `failure_type` and `message` are the framework's own (exception type, failing expression); `output` is the tail of
    what the test printed.
    """

    __test__: ClassVar[bool] = False  # pytest takes classes of this name for tests

    test: str
    outcome: Outcome
    attempt: int = 1
    position: int | None = None
    duration_s: float | None = None
    failure_type: str | None = None
    message: str | None = None
    output: str | None = None
    counters: dict[str, int] = field(default_factory=dict)


class ExecutionStatus(StrEnum):
    """COMPLETE: the suite ran to its end, however it ended. LOST: the infrastructure took it; it says nothing."""

    COMPLETE = "complete"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class ExecutionReport:
    """One finished execution with everything that it showed. Counters are summed over its tests."""

    arm: int
    position: int
    status: ExecutionStatus
    run_seed: int
    started_at: float
    ended_at: float
    exit_code: int | None = None
    lost_reason: str | None = None
    results: tuple[TestResult, ...] = ()
    counters: dict[str, int] = field(default_factory=dict)
    measurements: tuple[Measurement, ...] = ()
    context: tuple[ContextField, ...] = ()
    output: str | None = None
    block: int | None = None
    attempt: int | None = None
    protocol: int = PROTOCOL
    type: str = "execution"


@dataclass(frozen=True, slots=True)
class Failure:
    """The job could not be done: `code` is stable, `message` names the value, `way_out` says what to do."""

    code: str
    message: str
    way_out: str = ""
    protocol: int = PROTOCOL
    type: str = "failure"


@dataclass(frozen=True, slots=True)
class Done:
    """Last line of a job that ran to its end."""

    protocol: int = PROTOCOL
    type: str = "done"


@dataclass(frozen=True, slots=True)
class PlanHeader:
    """First line of a detached plan; its `BlockJob` lines follow in issue order.

    `digest` is `plan_digest` of the header and its blocks. `tree_hash` is what the files of the control commit hash
    to. `source` and `slot_dir` of the jobs are replaced by those of the command line. A block's execution may leave
    its test list empty: then it is the one that is prepared where the plan runs.
    """

    digest: str
    experiment: str
    tree_hash: str
    prepare: PrepareJob
    protocol: int = PROTOCOL
    type: str = "plan"


@dataclass(frozen=True, slots=True)
class EvidenceHeader:
    """First line of the evidence of a detached plan; `PreparedArm`, `ExecutionReport` and one `Done` line follow.

    `plan_digest` binds it to the plan. A block that lost an execution stands there once for each of its attempts.
    """

    plan_digest: str
    experiment: str
    runner: Hello
    protocol: int = PROTOCOL
    type: str = "evidence"


_MESSAGES: dict[str, type] = {
    "plan": PlanHeader,
    "evidence": EvidenceHeader,
    "prepare": PrepareJob,
    "block": BlockJob,
    "hello": Hello,
    "progress": Progress,
    "prepared": PreparedArm,
    "execution": ExecutionReport,
    "failure": Failure,
    "done": Done,
}


def write_line(message: Any) -> str:
    """Return the message as one JSON line, newline included."""
    return json.dumps(to_json(message), ensure_ascii=False, separators=(",", ":")) + "\n"


def read_line(line: str) -> Any:
    """Return the message of one JSON line; MalformedMessageError names what is wrong with it."""
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise MalformedMessageError(f"not JSON: {line[:120]!r}: {error}") from None
    if not isinstance(value, dict) or value.get("protocol") != PROTOCOL:
        found = value.get("protocol") if isinstance(value, dict) else value
        raise MalformedMessageError(f"protocol {found!r}; this side speaks protocol {PROTOCOL}: update the older side")
    kind = value.get("type")
    if kind not in _MESSAGES:
        raise MalformedMessageError(f"message type {kind!r}; known are {sorted(_MESSAGES)}")
    return from_json(_MESSAGES[kind], value)


def canonical_digest(value: Any) -> str:
    """Return the SHA-256 (64 hex digits) of the value's canonical JSON: sorted keys, no spaces."""
    text = json.dumps(to_json(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def plan_digest(header: PlanHeader, blocks: Sequence[BlockJob]) -> str:
    """Return the digest that binds evidence to a plan: of its header without the digest, and of all its blocks."""
    return canonical_digest([{**to_json(header), "digest": ""}, list(blocks)])
