"""Experiments in a real store, played through its own functions by a worker without processes."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

import pytest
from sqlalchemy import select

from gpu_runner.protocol import (
    ContextClass,
    ContextField,
    ExecutionReport,
    ExecutionStatus,
    Outcome,
    PreparedArm,
    SuiteDefinition,
    TestResult,
    Toggle,
    Treatment,
    TreatmentKind,
)  # fmt: skip
from service.config import settings
from service.domain import ArmRole, BlockState, Origin, Purpose
from service.experiments.model import ArmSpec, Design, Finding, Signature
from service.experiments.seeds import run_seed
from service.experiments.treatments import to_text
from service.store import schema
from service.store.catalog import add_project
from service.store.evidence import save_execution, save_prepared
from service.store.experiments import Request, advance, create, design_of
from service.store.hosts import seen
from service.store.leases import Lease, claim, finish, renew
from service.store.models import Block, Experiment
from service.store.session import engine_for, read, write

SHA = "4f1c2b9a7d3e5f60718293a4b5c6d7e8f9012345"
VICTIM = "kernels.chunk_o_matches_reference"
TESTS = ("plan.cold_start", "plan.warm_plan_cache", "attention.prefill", "sampler.greedy", VICTIM, "spec.accepts_draft")
POLLUTER = "plan.warm_plan_cache"
NOW = datetime(2026, 11, 30, 9, 0, tzinfo=UTC)
SUITE = SuiteDefinition(
    name="cuda",
    framework="ctest",
    build=("cmake -S . -B build", "cmake --build build"),
    test_dir="build",
    toggles={"chunk_o": Toggle({"VT_GDN_CHUNKO_TRITON": "0"})},
)

Fails = Callable[[int, int], bool]  # (block index, arm) -> whether the victim fails


@lru_cache(maxsize=1)
def _migrated() -> Path:
    """Return a database file with the newest schema, migrated once a process."""
    folder = tempfile.TemporaryDirectory(prefix="likewise-schema-")
    atexit.register(folder.cleanup)
    path = Path(folder.name) / "likewise.db"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LIKEWISE_DATABASE_URL", f"sqlite:///{path}")
        settings.cache_clear()
        schema.upgrade()
        with engine_for(settings().effective_database_url).connect() as connection:
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
        engine_for(settings().effective_database_url).dispose()
    settings.cache_clear()
    return path


@contextmanager
def store(home: Path, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give a migrated SQLite database in `home`; broker and dashboard point nowhere."""
    migrated = _migrated()
    patch.setenv("LIKEWISE_HOME", str(home))
    patch.setenv("LIKEWISE_DATABASE_URL", "")
    patch.setenv("LIKEWISE_BROKER_URL", f"redis+socket://{home}/no-broker.sock")
    settings.cache_clear()
    home.mkdir(parents=True, exist_ok=True)
    shutil.copy(migrated, home / "likewise.db")
    yield
    engine_for(settings().effective_database_url).dispose()
    settings.cache_clear()


def exclude(test: str = POLLUTER) -> tuple[Treatment, ...]:
    """Return the treatment that leaves one test out."""
    return (Treatment(TreatmentKind.EXCLUDE, tests=(test,)),)


@dataclass(slots=True)
class Played:
    """An experiment in the store and the worker that plays it. `contexts`: extra identity fields by arm."""

    id: int
    fails: Fails
    contexts: Mapping[int, tuple[ContextField, ...]] = field(default_factory=dict)
    counters: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    outcome: Outcome = Outcome.FAILED
    message: str = "max |difference| 0.031 > 0.002 at head 3 of chunk_o"
    extra: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # other tests that fail, in these arms
    missing: Mapping[int, tuple[str, ...]] = field(default_factory=dict)  # tests that an arm does not list
    host_id: int | None = None
    clock: float = NOW.timestamp()

    def step(self) -> Finding | None:
        """Advance once and run every block that waits; the finding once there is one."""
        with write() as session:
            finding = advance(session, self.id, NOW)
        if finding is None:
            for block_id in self.waiting():
                self.run(block_id)
        return finding

    def play(self, steps: int = 200) -> Finding | None:
        """Step until it concludes, at most `steps` times."""
        for _ in range(steps):
            finding = self.step()
            if finding is not None:
                return finding
        return None

    def until_counted(self) -> tuple[int, list[int]]:
        """Play until a counted block waits; its id and its arms in order of execution."""
        while True:
            with write() as session:
                assert advance(session, self.id, NOW) is None
            for block_id in self.waiting():
                with read() as session:
                    block = session.get_one(Block, block_id)
                if block.purpose == Purpose.COUNT.value:
                    return block_id, list(block.arms)
                self.run(block_id)

    def waiting(self) -> list[int]:
        """Return the ids of the blocks that wait for a worker."""
        with write() as session:
            query = select(Block.id).where(Block.experiment_id == self.id, Block.state == BlockState.PENDING.value)
            return list(session.scalars(query.order_by(Block.id)))

    def claim(self, block_id: int, progress: Mapping[str, object] | None = None) -> Lease:
        """Return a lease on the block, with the runner's progress noted."""
        with write() as session:
            lease = claim(session, block_id, "box-1:4711:0", 3600.0)
            assert lease is not None
            self.host_id = seen(session, "box-1", "boot-1", {}, NOW).id
            session.get_one(Block, block_id).host_id = self.host_id
            if progress is not None:
                renew(session, lease, 3600.0, dict(progress))
        return lease

    def run(self, block_id: int) -> None:
        """Run the block to its end."""
        self.finish(block_id, self.claim(block_id))

    def finish(self, block_id: int, lease: Lease) -> None:
        """Store everything that the claimed block shows, and end it."""
        self.store(block_id, lease)
        with write() as session:
            finish(session, lease, BlockState.COMPLETE)

    def lose(self, block_id: int, reason: str = "the worker box-1:4711:0 stopped answering", arm: int = 0) -> None:
        """Lose the block's attempt to the infrastructure."""
        lease = self.claim(block_id)
        with write() as session:
            finish(session, lease, BlockState.LOST, lost_arm=arm, reason=reason)

    def store(self, block_id: int, lease: Lease, executions: int | None = None) -> None:
        """Store what the block shows: the preparation, or the first `executions` of its executions."""
        with write() as session:
            experiment = session.get_one(Experiment, self.id)
            block = session.get_one(Block, block_id)
            design = design_of(experiment)
            if block.purpose == Purpose.PREPARE.value:
                for arm in design.arms:
                    save_prepared(session, experiment, self._prepared(design, arm))
                return
            for position, index in enumerate(block.arms[:executions]):
                report = self._report(design, design.arms[index], block, position)
                save_execution(session, experiment, block, report, lease.fence, self.host_id)

    def _prepared(self, design: Design, arm: ArmSpec) -> PreparedArm:
        return PreparedArm(arm.index, TESTS, self._tests(design, arm), context=self._context(design, arm)[:4])

    def _tests(self, design: Design, arm: ArmSpec) -> tuple[str, ...]:
        return tuple(test for test in tests_of(design, arm) if test not in self.missing.get(arm.index, ()))

    def _report(self, design: Design, arm: ArmSpec, block: Block, position: int) -> ExecutionReport:
        results = []
        for place, test in enumerate(self._tests(design, arm)):
            is_victim = test == design.victim
            if is_victim and self.fails(block.index, arm.index):
                results.append(
                    TestResult(
                        test,
                        self.outcome,
                        1,
                        place,
                        1.25,
                        "AssertionError",
                        self.message,
                        "layer 3 of 4\n<script>alert(1)</script>",
                    )
                )
            elif arm.index in self.extra.get(test, ()):
                results.append(TestResult(test, Outcome.FAILED, 1, place, 0.5, "AssertionError", "1 != 2"))
            else:
                results.append(TestResult(test, Outcome.PASSED, 1, place, 0.5))
        started, self.clock = self.clock, self.clock + 8.0
        return ExecutionReport(
            arm=arm.index,
            position=position,
            status=ExecutionStatus.COMPLETE,
            run_seed=run_seed(design.seed, block.index, arm.index),
            started_at=started,
            ended_at=self.clock - 1.0,
            exit_code=8 if any(r.outcome is not Outcome.PASSED for r in results) else 0,
            results=tuple(results),
            counters=dict(self.counters.get(arm.index, {})),
            context=self._context(design, arm),
        )

    def _context(self, design: Design, arm: ArmSpec) -> tuple[ContextField, ...]:
        tests = self._tests(design, arm)
        fields = [
            ContextField("software", "commit", ContextClass.IDENTITY, arm.commit),
            ContextField("software", "tree_hash", ContextClass.IDENTITY, "a" * 64),
            ContextField("suite", "tests", ContextClass.IDENTITY, list(tests)),
            ContextField("suite", "framework", ContextClass.IDENTITY, "ctest 3.31.6"),
            ContextField("process", "environment.VT_GDN_CHUNKO_TRITON", ContextClass.IDENTITY, _toggled(arm)),
            ContextField("host", "cpu_model", ContextClass.IDENTITY, "AMD EPYC 9554"),
            ContextField("host", "boot_id", ContextClass.IDENTITY, "boot-1"),
            ContextField("pressure", "memory_available_bytes", ContextClass.STATE, 61 * 2**30 + arm.index * 2**20),
            ContextField("pressure", "wall_s", ContextClass.OBSERVED, 7.0),
        ]
        return (*fields, *self.contexts.get(arm.index, ()))


def _toggled(arm: ArmSpec) -> str | None:
    values = [item.environment.get("VT_GDN_CHUNKO_TRITON") for item in arm.treatments]
    return next((value for value in values if value is not None), None)


def tests_of(design: Design, arm: ArmSpec) -> tuple[str, ...]:
    """Return the list that an arm of a demo experiment runs: excluded tests left out, the victim alone if asked."""
    if any(item.kind is TreatmentKind.ALONE for item in arm.treatments):
        return (design.victim,)
    left_out = {test for item in arm.treatments if item.kind is TreatmentKind.EXCLUDE for test in item.tests}
    tests = TESTS if design.victim in TESTS else tuple(design.victim if test == VICTIM else test for test in TESTS)
    return tuple(test for test in tests if test not in left_out)


def add_experiment(
    *treated: tuple[Treatment, ...],
    fails: Fails = lambda _block, _arm: False,
    victim: str = VICTIM,
    project: str = "acme/engine",
    created_at: datetime = NOW,
    seed: int = 7,
    has_probes: bool = False,
    **values: object,
) -> Played:
    """Store an experiment with a full-suite control and these treated arms, and return who plays it."""
    arms = [ArmSpec(0, "control", ArmRole.CONTROL, SHA)]
    arms += [ArmSpec(i, to_text(arm), ArmRole.TREATED, SHA, arm) for i, arm in enumerate(treated, start=1)]
    design = Design(
        victim=victim,
        arms=tuple(arms),
        seed=seed,
        signature=None if has_probes else Signature((), "any failure, as asked for"),
        project=project,
        suite=SUITE.name,
    )
    design = replace(design, **values)  # type: ignore[arg-type]
    with write() as session:
        add_project(session, project, "/srv/engine", created_at)
        request = Request("ab", design, SUITE, "/srv/engine", Origin.CLI, "kim")
        return Played(create(session, request, created_at).id, fails)
