"""The words of the product as enums and small values; no I/O and nothing of ours but the runner's protocol."""

from __future__ import annotations

from enum import StrEnum

from gpu_runner.protocol import Outcome

METHOD_VERSION = "1"


class ArmRole(StrEnum):
    """What an arm is for."""

    CONTROL = "control"
    TREATED = "treated"
    PROBE = "probe"


class ExperimentState(StrEnum):
    """Where an experiment stands."""

    QUEUED = "queued"
    RUNNING = "running"
    CONCLUDED = "concluded"
    DETACHED = "detached"  # its plan is run elsewhere, its evidence is imported


class Purpose(StrEnum):
    """Why a block exists: to prepare the arms, to fix the signature, or to be counted."""

    PREPARE = "prepare"
    PROBE = "probe"
    COUNT = "count"


class BlockState(StrEnum):
    """Where the current attempt of a block stands."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETE = "complete"
    LOST = "lost"


class RunStatus(StrEnum):
    """How much of a run was recorded."""

    COMPLETE = "complete"
    PARTIAL = "partial"
    LOST = "lost"


class Origin(StrEnum):
    """Who asked for an experiment."""

    CLI = "cli"
    BOT = "bot"
    WEB = "web"
    RULE = "rule"


class Verdict(StrEnum):
    """What an experiment came to. The rules are in `service.experiments.verdicts`."""

    IMPLICATED = "IMPLICATED"
    WORSENED = "WORSENED"
    EXONERATED = "EXONERATED"
    NOT_REPRODUCED = "NOT_REPRODUCED"
    INCONCLUSIVE = "INCONCLUSIVE"
    NOT_LIKE_FOR_LIKE = "NOT_LIKE_FOR_LIKE"
    TREATMENT_INERT = "TREATMENT_INERT"
    FOUND = "FOUND"
    NO_CHANGE = "NO_CHANGE"
    MEASURED = "MEASURED"


# Exit codes of every command that ends in a verdict: 0 done, 3 could not tell, 4 the answer is "no".
EXIT_CODES: dict[Verdict, int] = {
    Verdict.IMPLICATED: 0,
    Verdict.WORSENED: 0,
    Verdict.FOUND: 0,
    Verdict.MEASURED: 0,
    Verdict.EXONERATED: 4,
    Verdict.NO_CHANGE: 4,
    Verdict.NOT_REPRODUCED: 3,
    Verdict.INCONCLUSIVE: 3,
    Verdict.NOT_LIKE_FOR_LIKE: 3,
    Verdict.TREATMENT_INERT: 3,
}


class Observation(StrEnum):
    """How one execution counts for the victim."""

    MATCH = "match"
    CLEAN = "clean"
    OTHER = "other"


FAILING = frozenset({Outcome.FAILED, Outcome.ERROR, Outcome.CRASHED, Outcome.TIMED_OUT, Outcome.KILLED})
CLEAN = frozenset({Outcome.PASSED})
