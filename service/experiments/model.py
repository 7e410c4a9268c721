"""What an experiment is given and what it answers: design, evidence, plan, finding. Pure values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from gpu_runner.protocol import CacheState, ContextField, Measurement, Outcome, TestsMode, Treatment
from service.domain import ArmRole, BlockState, Observation, Purpose, Verdict


@dataclass(frozen=True, slots=True)
class Signature:
    """Which failures of the victim count. `values` empty: any failure does. `source`: how it was fixed."""

    values: tuple[str, ...] = ()
    source: str = "any failure"


@dataclass(frozen=True, slots=True)
class History:
    """Runs of the victim in CI before the experiment: `failures` with the signature of `runs`."""

    failures: int
    runs: int


@dataclass(frozen=True, slots=True)
class ArmSpec:
    """One arm as it was asked for. Toggles are resolved to environment and expectations."""

    index: int
    name: str
    role: ArmRole
    commit: str
    treatments: tuple[Treatment, ...] = ()


@dataclass(frozen=True, slots=True)
class Design:
    """Everything fixed before block 1.

    `alpha` is the level of IMPLICATED and of WORSENED (each divided by the number of treated arms), `alpha_exonerate`
    that of each ratio null, `margin` their r. `look_ahead`: blocks issued beyond the last finished one.
    `budget_executions` None: no budget beyond `blocks_max`.
    """

    victim: str
    arms: tuple[ArmSpec, ...]
    seed: int
    alpha: float = 0.025
    alpha_exonerate: float = 0.05
    margin: float = 0.5
    blocks_max: int = 30
    tests_mode: TestsMode = TestsMode.INTERSECT
    cache_state: CacheState = CacheState.COLD
    signature: Signature | None = None
    history: History | None = None
    budget_executions: int | None = None
    look_ahead: int = 1
    attempts_max: int = 3
    project: str = ""
    suite: str = ""

    @property
    def control(self) -> ArmSpec:
        """Return the control arm."""
        return self.arms[0]

    @property
    def treated(self) -> tuple[ArmSpec, ...]:
        """Return the arms that are compared with the control."""
        return tuple(arm for arm in self.arms if arm.role is not ArmRole.CONTROL)


@dataclass(frozen=True, slots=True)
class TestOutcome:
    """The last attempt of one test in one execution; `signature` of a failure."""

    __test__ = False
    outcome: Outcome
    signature: str | None = None


@dataclass(frozen=True, slots=True)
class PreparedEvidence:
    """An arm after checkout, build and listing; the fields of the runner's `PreparedArm`."""

    arm: int
    listing: tuple[str, ...]
    tests: tuple[str, ...]
    left_out: tuple[str, ...]
    only_here: tuple[str, ...]
    context: tuple[ContextField, ...]
    error_code: str | None
    error: str | None


@dataclass(frozen=True, slots=True)
class ExecutionEvidence:
    """One complete execution of one arm."""

    arm: int
    position: int
    outcomes: Mapping[str, TestOutcome]
    counters: Mapping[str, int]
    context: tuple[ContextField, ...]
    measurements: tuple[Measurement, ...] = ()
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True)
class AttemptEvidence:
    """One attempt of a block. `lost_arm` was running when the infrastructure took it; None: before any arm ran."""

    attempt: int
    state: BlockState
    executions: tuple[ExecutionEvidence, ...] = ()
    lost_arm: int | None = None
    lost_reason: str | None = None


@dataclass(frozen=True, slots=True)
class BlockEvidence:
    """One issued block with every attempt, in order."""

    index: int
    purpose: Purpose
    arms: tuple[int, ...]
    attempts: tuple[AttemptEvidence, ...]


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that is known: every issued block, pending ones included, in issue order."""

    prepared: tuple[PreparedEvidence, ...] = ()
    blocks: tuple[BlockEvidence, ...] = ()
    cancelled: str | None = None
    children: tuple[ChildEvidence, ...] = ()


@dataclass(frozen=True, slots=True)
class ChildEvidence:
    """A confirming experiment of a search and what it found, None while it runs."""

    key: str
    finding: Finding | None


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """A block that should exist: `arms` in the order of execution, `attempt` from 1."""

    index: int
    purpose: Purpose
    attempt: int
    arms: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChildPlan:
    """A confirming experiment that should exist, unique by `key` under its parent."""

    key: str
    kind: str
    design: Design


@dataclass(frozen=True, slots=True)
class Plan:
    """The complete ordered lists that should exist; calling for it again issues nothing twice."""

    blocks: tuple[BlockPlan, ...]
    children: tuple[ChildPlan, ...] = ()
    arms: tuple[ArmSpec, ...] = ()
    signature: Signature | None = None


@dataclass(frozen=True, slots=True)
class Conclude:
    """The experiment is over."""

    finding: Finding


Step = Plan | Conclude


@dataclass(frozen=True, slots=True)
class Counts:
    """How the victim came out in one arm, in complete blocks up to the stop."""

    match: int = 0
    clean: int = 0
    other: int = 0

    @property
    def runs(self) -> int:
        """Return the number of executions."""
        return self.match + self.clean + self.other

    def add(self, observation: Observation) -> Counts:
        """Return the counts with one more execution."""
        return Counts(
            self.match + (observation is Observation.MATCH),
            self.clean + (observation is Observation.CLEAN),
            self.other + (observation is Observation.OTHER),
        )


class Reason(StrEnum):
    """Why an experiment could not tell."""

    BLOCKS_MAX = "most_blocks"
    BUDGET = "budget"
    FUTILITY = "futility"
    CANCELLED = "cancelled"
    ARM_UNBUILDABLE = "arm_unbuildable"
    HOST_LOST = "host_lost"
    OTHER_OUTCOMES = "other_outcomes"
    UNVERIFIED = "treatment_unverified"


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval with the method that made it; None is an infinite limit."""

    lower: float | None
    upper: float | None
    method: str
    confidence: float = 0.95


@dataclass(frozen=True, slots=True)
class Difference:
    """A context field that differs between two arms and was not declared."""

    channel: str
    name: str
    control: Any
    treated: Any
    arm: int


@dataclass(frozen=True, slots=True)
class CounterCheck:
    """One declared expectation beside what the counters showed; `seen` values are None when not reported."""

    counter: str
    expected: str
    before: int | None
    after: int | None
    holds: bool | None


@dataclass(frozen=True, slots=True)
class TestRow:
    """One test of the side table: failures of complete runs in control and treated arm. `p_holm` over all tests."""

    __test__ = False
    test: str
    control: tuple[int, int]
    treated: tuple[int, int]
    is_new: bool
    p_value: float
    p_holm: float


@dataclass(frozen=True, slots=True)
class ArmFinding:
    """What one treated arm came to, beside the control in the same blocks."""

    arm: int
    name: str
    verdict: Verdict
    sentence: str
    control: Counts
    treated: Counts
    stop_index: int | None
    difference: Interval | None = None
    share_explained: Interval | None = None
    share_estimate: float | None = None
    reason: Reason | None = None
    more_blocks: int | None = None
    rate_upper_bound: float | None = None
    counters: tuple[CounterCheck, ...] = ()
    differences: tuple[Difference, ...] = ()
    side_table: tuple[TestRow, ...] = ()
    method: str = "exact spending boundary"
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer of an experiment. `answer` is the typed result of a search or a measurement."""

    verdict: Verdict
    sentence: str
    arms: tuple[ArmFinding, ...] = ()
    explanations: tuple[str, ...] = ()
    blocks_counted: int = 0
    blocks_void: int = 0
    executions: int = 0
    stop_index: int | None = None
    signature: Signature | None = None
    next_command: str = ""
    commits: tuple[str, ...] = ()
    method_version: str = ""
    answer: dict[str, Any] = field(default_factory=dict)
