"""The tables. Raw outcomes are append-only; conclusions are recomputed and carry the version of the method.

Times are aware UTC datetimes; lease times are seconds since the epoch on the database's own clock. SQLite and
PostgreSQL; a naming convention gives every constraint a stable name.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import JSON, ForeignKey, Index, LargeBinary, MetaData, String, Text, TypeDecorator, UniqueConstraint
from sqlalchemy import DateTime as _DateTime
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

NAMING = {
    "ix": "ix_%(column_0_label)s",
    "uq": "uq_%(table_name)s_%(column_0_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


class UtcDateTime(TypeDecorator[datetime]):
    """An aware UTC datetime; SQLite keeps it without a zone, and a naive one is refused before it is bound."""

    impl = _DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """Return the value in UTC; ValueError for a naive one."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value!r} has no time zone")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """Return the value as aware UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Base(DeclarativeBase):
    """The root of all tables."""

    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map = {datetime: UtcDateTime(), dict[str, Any]: JSON, list[Any]: JSON}  # noqa: RUF012


class Project(Base):
    """A repository whose CI is recorded. `source`: path or URL that the runner clones; None: history only."""

    __tablename__ = "projects"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(200), unique=True)
    source: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime]


class Suite(Base):
    """One set of tests of a project."""

    __tablename__ = "suites"
    __table_args__ = (UniqueConstraint("project_id", "name"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    project_id: Mapped[int] = mapped_column(ForeignKey("projects.id"), index=True)
    name: Mapped[str] = mapped_column(String(200))


class SuiteVersion(Base):
    """A definition that a suite had; experiments point at the one they copied."""

    __tablename__ = "suite_versions"
    __table_args__ = (UniqueConstraint("suite_id", "digest"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    suite_id: Mapped[int] = mapped_column(ForeignKey("suites.id"), index=True)
    digest: Mapped[str] = mapped_column(String(64))
    definition: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]


class Commit(Base):
    """A SHA with its parents. `position`: on the default branch's first-parent line, when known."""

    __tablename__ = "commits"
    __table_args__ = (UniqueConstraint("project_id", "sha"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    project_id: Mapped[int] = mapped_column(ForeignKey("projects.id"), index=True)
    sha: Mapped[str] = mapped_column(String(40))
    parents: Mapped[list[Any]]
    position: Mapped[int | None] = mapped_column(index=True)
    authored_at: Mapped[datetime | None]


class Test(Base):
    """A stable identity: `key` is the SHA-256 of its parts, `stable_key` that without addresses, uuids and times.

    `report_suite`: the path of suites inside a report. `node`: the framework's own id, known once a runner ran it.
    """

    __test__ = False
    __tablename__ = "tests"
    __table_args__ = (UniqueConstraint("suite_id", "key"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    suite_id: Mapped[int] = mapped_column(ForeignKey("suites.id"), index=True)
    key: Mapped[str] = mapped_column(String(64))
    stable_key: Mapped[str] = mapped_column(String(64), index=True)
    report_suite: Mapped[str] = mapped_column(Text, default="")
    file: Mapped[str] = mapped_column(Text, default="")
    classname: Mapped[str] = mapped_column(Text, default="")
    name: Mapped[str] = mapped_column(Text)
    variant: Mapped[str] = mapped_column(Text, default="")
    node: Mapped[str | None] = mapped_column(Text)


class Output(Base):
    """What tests printed, zlib-compressed and kept once by the SHA-256 of the text."""

    __tablename__ = "outputs"
    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    content: Mapped[bytes] = mapped_column(LargeBinary)
    size_bytes: Mapped[int]


class Run(Base):
    """One execution of a suite or CI job at a commit. `key` is unique: recording it again changes nothing."""

    __tablename__ = "runs"
    __table_args__ = (Index("ix_runs_suite_commit", "suite_id", "commit_id"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(String(64), unique=True)
    suite_id: Mapped[int] = mapped_column(ForeignKey("suites.id"))
    commit_id: Mapped[int] = mapped_column(ForeignKey("commits.id"), index=True)
    origin: Mapped[str] = mapped_column(String(16))
    status: Mapped[str] = mapped_column(String(16))
    provider_run_id: Mapped[str] = mapped_column(String(64), default="")
    attempt: Mapped[int] = mapped_column(default=1)
    job: Mapped[str] = mapped_column(Text, default="")
    variant: Mapped[str] = mapped_column(Text, default="")
    branch: Mapped[str] = mapped_column(Text, default="")
    pull_request: Mapped[int | None]
    exit_code: Mapped[int | None]
    conclusion: Mapped[str | None] = mapped_column(String(32))
    files: Mapped[list[Any]]
    started_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    recorded_at: Mapped[datetime] = mapped_column(index=True)


class Result(Base):
    """One attempt of one test in one run."""

    __tablename__ = "results"
    __table_args__ = (
        UniqueConstraint("run_id", "test_id", "attempt"),
        Index("ix_results_test_run", "test_id", "run_id"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id"), index=True)
    test_id: Mapped[int] = mapped_column(ForeignKey("tests.id"))
    attempt: Mapped[int] = mapped_column(default=1)
    position: Mapped[int | None]
    outcome: Mapped[str] = mapped_column(String(20))
    duration_s: Mapped[float | None]
    signature: Mapped[str | None] = mapped_column(Text)
    failure_type: Mapped[str | None] = mapped_column(Text)
    message: Mapped[str | None] = mapped_column(Text)
    output_digest: Mapped[str | None] = mapped_column(ForeignKey("outputs.digest"))


class MeasurementRow(Base):
    """A named number of a result, or of a whole run when `result_id` is None; one row per sample."""

    __tablename__ = "measurements"
    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id"), index=True)
    result_id: Mapped[int | None] = mapped_column(ForeignKey("results.id"), index=True)
    name: Mapped[str] = mapped_column(Text)
    sample: Mapped[int | None]
    value: Mapped[float]


class CounterRow(Base):
    """A named integer that tells what executed; of a whole run when `result_id` is None."""

    __tablename__ = "counters"
    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id"), index=True)
    result_id: Mapped[int | None] = mapped_column(ForeignKey("results.id"), index=True)
    name: Mapped[str] = mapped_column(Text)
    value: Mapped[int]


class Experiment(Base):
    """A question and how it is asked. `design` is fixed before block 1 but for a signature found by probes."""

    __tablename__ = "experiments"
    __table_args__ = (UniqueConstraint("parent_id", "child_key"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    project_id: Mapped[int] = mapped_column(ForeignKey("projects.id"), index=True)
    suite_id: Mapped[int] = mapped_column(ForeignKey("suites.id"))
    suite_version_id: Mapped[int] = mapped_column(ForeignKey("suite_versions.id"))
    kind: Mapped[str] = mapped_column(String(20))
    victim: Mapped[str] = mapped_column(Text)
    design: Mapped[dict[str, Any]]
    signature: Mapped[dict[str, Any] | None]
    source: Mapped[str] = mapped_column(Text)
    parent_id: Mapped[int | None] = mapped_column(ForeignKey("experiments.id"), index=True)
    child_key: Mapped[str | None] = mapped_column(String(64))
    requested_by: Mapped[str] = mapped_column(Text, default="")
    origin: Mapped[str] = mapped_column(String(16))
    priority: Mapped[int] = mapped_column(default=100)
    state: Mapped[str] = mapped_column(String(16), index=True)
    cancel_reason: Mapped[str | None] = mapped_column(Text)
    plan_digest: Mapped[str | None] = mapped_column(String(64))
    created_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]


class Arm(Base):
    """A suite at a commit under treatments. `prepared`: the runner's message after checkout, build and listing."""

    __tablename__ = "arms"
    __table_args__ = (UniqueConstraint("experiment_id", "index"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    experiment_id: Mapped[int] = mapped_column(ForeignKey("experiments.id"), index=True)
    index: Mapped[int]
    name: Mapped[str] = mapped_column(Text)
    role: Mapped[str] = mapped_column(String(16))
    commit_id: Mapped[int | None] = mapped_column(ForeignKey("commits.id"))
    treatments: Mapped[list[Any]]
    prepared: Mapped[dict[str, Any] | None]


class Block(Base):
    """The unit of leasing and of loss. `state`, lease and fence are those of the current attempt."""

    __tablename__ = "blocks"
    __table_args__ = (
        UniqueConstraint("experiment_id", "index"),
        Index("ix_blocks_state_lease", "state", "lease_until"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    experiment_id: Mapped[int] = mapped_column(ForeignKey("experiments.id"), index=True)
    index: Mapped[int]
    purpose: Mapped[str] = mapped_column(String(16))
    arms: Mapped[list[Any]]
    state: Mapped[str] = mapped_column(String(16))
    attempt: Mapped[int] = mapped_column(default=1)
    fence: Mapped[int] = mapped_column(default=0)
    owner: Mapped[str | None] = mapped_column(Text)
    host_id: Mapped[int | None] = mapped_column(ForeignKey("hosts.id"))
    lease_until: Mapped[float | None]
    heartbeat_at: Mapped[float | None]
    progress: Mapped[dict[str, Any] | None]
    attempts: Mapped[list[Any]]


class Execution(Base):
    """One run of one arm in one attempt of a block, with the context it ran in."""

    __tablename__ = "executions"
    __table_args__ = (UniqueConstraint("block_id", "attempt", "arm"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    block_id: Mapped[int] = mapped_column(ForeignKey("blocks.id"), index=True)
    attempt: Mapped[int]
    arm: Mapped[int]
    position: Mapped[int]
    status: Mapped[str] = mapped_column(String(16))
    fence: Mapped[int]
    host_id: Mapped[int | None] = mapped_column(ForeignKey("hosts.id"))
    run_id: Mapped[int | None] = mapped_column(ForeignKey("runs.id"))
    run_seed: Mapped[str] = mapped_column(String(20))
    exit_code: Mapped[int | None]
    lost_reason: Mapped[str | None] = mapped_column(Text)
    started_at: Mapped[float]
    ended_at: Mapped[float]
    context: Mapped[list[Any]]


class FindingRow(Base):
    """A conclusion, recomputable from the evidence whose digest it carries."""

    __tablename__ = "findings"
    __table_args__ = (UniqueConstraint("experiment_id", "evidence_digest", "method_version"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    experiment_id: Mapped[int] = mapped_column(ForeignKey("experiments.id"), index=True)
    verdict: Mapped[str] = mapped_column(String(20))
    stop_index: Mapped[int | None]
    method_version: Mapped[str] = mapped_column(String(16))
    evidence_digest: Mapped[str] = mapped_column(String(64))
    body: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]


class Host(Base):
    """A machine that runs blocks."""

    __tablename__ = "hosts"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(200), unique=True)
    boot_id: Mapped[str] = mapped_column(String(64))
    facts: Mapped[dict[str, Any]]
    seen_at: Mapped[datetime]


class Slot(Base):
    """A set of a host's devices that one block may hold."""

    __tablename__ = "slots"
    __table_args__ = (UniqueConstraint("host_id", "name"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    host_id: Mapped[int] = mapped_column(ForeignKey("hosts.id"), index=True)
    name: Mapped[str] = mapped_column(String(64))
    folder: Mapped[str] = mapped_column(Text)
    seen_at: Mapped[datetime]


class Token(Base):
    """A bearer token by the SHA-256 of its text; the text is shown once."""

    __tablename__ = "tokens"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(200))
    digest: Mapped[str] = mapped_column(String(64), unique=True)
    scopes: Mapped[list[Any]]
    created_at: Mapped[datetime]
    revoked_at: Mapped[datetime | None]


class Message(Base):
    """An outgoing nudge that carries an id. The sweep sends what is unsent; a lost or doubled one changes nothing."""

    __tablename__ = "messages"
    id: Mapped[int] = mapped_column(primary_key=True)
    task: Mapped[str] = mapped_column(String(64))
    target_id: Mapped[int]
    created_at: Mapped[datetime]
    sent_at: Mapped[datetime | None] = mapped_column(index=True)
