"""The two jobs: prepare the arms of an experiment, and run a block of executions; both emit messages."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from gpu_runner import context, frameworks, host, tree
from gpu_runner.arms import (
    apply_treatments,
    arm_build,
    arm_commit,
    arm_environment,
    compare_listings,
    refuse_restored,
)
from gpu_runner.checkout import Checkout, Snapshot, fresh_private
from gpu_runner.device import DeviceUnreadableError
from gpu_runner.failures import RunnerError
from gpu_runner.frameworks import Framework, Listing, Site, SuiteRun
from gpu_runner.life import Life
from gpu_runner.protocol import (
    ArmJob,
    BlockJob,
    CacheState,
    ContextField,
    Done,
    ExecutionJob,
    ExecutionReport,
    ExecutionStatus,
    PreparedArm,
    PrepareJob,
    Progress,
    canonical_digest,
)
from gpu_runner.residency import read_through, resident_share
from gpu_runner.restore import RestoreMode, Restorer
from gpu_runner.sandbox import Ending, Sandbox
from gpu_runner.slot import SLOT_MARK, Slot
from gpu_runner.surroundings import CACHE_VARIABLES, compose
from gpu_runner.warm import WarmCaches

OUTPUT_TAIL = 16 * 1024
WARM_ENOUGH = 0.999

Emit = Callable[[object], None]


def run_job(job: PrepareJob | BlockJob, life: Life, emit: Emit) -> None:
    """Do the job and emit its messages, `Done` last; RunnerError when it cannot be done."""
    slot = Slot(Path(job.slot_dir))
    try:
        run_job_in(slot, job, life, emit)
        emit(Done())
    finally:
        slot.close()


def run_job_in(
    slot: Slot, job: PrepareJob | BlockJob, life: Life, emit: Emit, restore_mode: RestoreMode | None = None
) -> None:
    """Do the job in a slot that the caller holds; `Done` is not emitted."""
    worker = Worker(job, slot, life, emit, restore_mode)
    if isinstance(job, PrepareJob):
        worker.prepare(job)
    else:
        worker.run_block(job)


@dataclasses.dataclass(frozen=True, slots=True)
class Failed:
    """An arm that cannot be prepared."""

    code: str
    message: str
    way_out: str


class Worker:
    """Holds what the steps of one job share: slot, sandbox, checkout, framework."""

    def __init__(
        self, job: PrepareJob | BlockJob, slot: Slot, life: Life, emit: Emit, restore_mode: RestoreMode | None
    ) -> None:
        if not job.arms:
            raise RunnerError("malformed_job", "the job has no arms", "give at least the control arm")
        self.job = job
        self.suite = job.suite
        self.slot = slot
        self.life = life
        self.emit = emit
        self.framework: Framework = frameworks.get(job.suite.framework)
        self.sandbox = Sandbox(slot, life)
        self.checkout = Checkout(job.source, self.sandbox, arm_commit(job.arms[0]), job.tree_hash, len(job.arms))
        self.restorer = Restorer(self.sandbox, restore_mode)
        self.arms = {arm.arm: arm for arm in job.arms}

    def prepare(self, job: PrepareJob) -> None:
        """Emit one `PreparedArm` for each arm, in the order of the job."""
        prepared: dict[int, tuple[Snapshot, Listing] | Failed] = {}
        for arm in job.arms:
            try:
                snapshot = self.snapshot(arm)
                prepared[arm.arm] = (snapshot, self.listing(arm, snapshot))
            except RunnerError as error:
                if error.code not in ARM_ERRORS:
                    raise
                prepared[arm.arm] = Failed(error.code, error.message, error.way_out)
        listings = {arm: pair[1].tests for arm, pair in prepared.items() if not isinstance(pair, Failed)}
        compared = compare_listings(listings, job.tests_mode)
        for arm in job.arms:
            found = prepared[arm.arm]
            if isinstance(found, Failed):
                self.emit(_failed(arm, found))
                continue
            snapshot, listing = found
            tests = compared[arm.arm]
            try:
                applied = apply_treatments(tests.tests, arm.treatments, job.victim)
                chosen = self.framework.complete(listing, applied)
                refuse_restored(applied, chosen, arm.treatments)
            except RunnerError as error:
                self.emit(_failed(arm, Failed(error.code, error.message, error.way_out), listing.tests))
                continue
            environment = self.environment(arm, {}, 0)
            self.emit(
                PreparedArm(
                    arm.arm,
                    listing.tests,
                    chosen,
                    tests.left_out,
                    tests.only_here,
                    tuple(self.fixed_fields(arm, snapshot, listing, chosen, environment)),
                )
            )

    def run_block(self, job: BlockJob) -> None:
        """Emit one `ExecutionReport` for each execution, as it ends."""
        for position, execution in enumerate(job.executions):
            arm = self.arms.get(execution.arm)
            if arm is None:
                raise RunnerError(
                    "malformed_job", f"execution {position} names arm {execution.arm}, which is not given"
                )
            snapshot = self.snapshot(arm)
            listing = self.listing(arm, snapshot)
            _check_known(execution, listing)
            warm = None
            if job.cache_state is CacheState.WARM:
                warm = WarmCaches(self.slot, _warm_key(job, arm, snapshot, execution))
                if not warm.exist():
                    self.emit(Progress("warm", arm.arm))
                    seed = int(canonical_digest([job.experiment, "warm", arm.arm])[:15], 16)
                    uncounted = ExecutionJob(arm.arm, execution.tests, seed, execution.environment)
                    report = self.execute(uncounted, position, snapshot, listing, None)
                    if report.lost_reason is not None:
                        raise RunnerError("warm_up_lost", f"the warm-up of arm {arm.arm}: {report.lost_reason}")
                    warm.keep(self.life.check)
            self.emit(self.execute(execution, position, snapshot, listing, warm))

    def snapshot(self, arm: ArmJob) -> Snapshot:
        """Return the built tree of an arm."""
        progress = lambda phase: self.emit(Progress(phase, arm.arm))  # noqa: E731
        return self.checkout.snapshot(self.suite, arm_commit(arm), arm_build(self.suite, arm), progress)

    def listing(self, arm: ArmJob, snapshot: Snapshot) -> Listing:
        """Return the tests of an arm's built tree under the arm's environment, as remembered with the snapshot."""
        environment = self.environment(arm, {}, 0)
        suite = self.suite
        how = [suite.framework, suite.test_dir, suite.python, suite.paths, suite.arguments, environment]
        name = f"listing-{canonical_digest(how)[:16]}"
        known = snapshot.recall(name)
        if known is None:
            self.emit(Progress("list", arm.arm))
            fresh_private(self.slot.private)
            found = self.framework.list_tests(self.site(environment, snapshot))
            known = {"tests": found.tests, "version": found.version, "data": found.data}
            snapshot.remember(name, known)
        return Listing(tuple(known["tests"]), known["version"], known["data"])

    def environment(self, arm: ArmJob, extra: Mapping[str, str | None], run_seed: int) -> dict[str, str]:
        """Return the whole environment of an arm's tests."""
        own = {
            "LIKEWISE_RUN_SEED": str(run_seed),
            "LIKEWISE_EVENTS": str(self.slot.private / "own" / "events.jsonl"),
            SLOT_MARK: str(self.slot.path),
        }
        return compose(self.slot.private, [own, self.suite.environment, arm_environment(arm), extra])

    def site(self, environment: Mapping[str, str], snapshot: Snapshot) -> Site:
        """Restore the tree and return the place where the framework works."""
        overlay = self.restorer.restore(snapshot)
        cwd = Path(os.path.normpath(self.slot.tree / self.suite.cwd))
        return Site(self.suite, cwd, self.slot.private / "own", environment, self.sandbox, overlay)

    def execute(
        self, execution: ExecutionJob, position: int, snapshot: Snapshot, listing: Listing, warm: WarmCaches | None
    ) -> ExecutionReport:
        """Run one execution and return its report."""
        arm = self.arms[execution.arm]
        self.emit(Progress("restore", arm.arm, position, total=len(execution.tests)))
        environment = self.environment(arm, execution.environment, execution.run_seed)
        fresh_private(self.slot.private)
        if warm is not None:
            warm.restore(self.life.check)
        site = self.site(environment, snapshot)
        fields = self.fixed_fields(arm, snapshot, listing, execution.tests, environment)
        cache_state = CacheState.COLD if warm is None else CacheState.WARM
        fields += context.files_fields(self.restorer.mode.value, cache_state, self.cache_digest())
        fields += context.before_fields(self.warm_big_files(snapshot))
        kills_before = host.kernel_kills()
        started_at, started = time.time(), time.monotonic()
        run = self.framework.run_tests(site, listing, execution.tests, self.progressed(execution, position))
        duration_s = time.monotonic() - started
        changes = [*self.restorer.changes(), *self.private_changes(warm)]
        fields += context.after_fields(
            context.Afterwards(
                position, execution.run_seed, duration_s, run.ended.peak_bytes, run.ended.left_processes, changes
            )
        )
        return self.report(execution, position, run, fields, (started_at, started_at + duration_s), kills_before)

    def report(
        self,
        execution: ExecutionJob,
        position: int,
        run: SuiteRun,
        fields: Sequence[ContextField],
        times: tuple[float, float],
        kills_before: int | None,
    ) -> ExecutionReport:
        """Return the report of a finished run."""
        events = self.slot.private / "own" / "events.jsonl"
        if events.is_file():
            run.records.add_events(events.read_text("utf-8", errors="replace"), execution.tests)
        last_attempt = {result.test: result.attempt for result in run.results}
        results = [
            dataclasses.replace(result, counters=run.records.of_test(result.test))
            if result.attempt == last_attempt[result.test]
            else result
            for result in run.results
        ]
        lost_reason = _lost_reason(run, kills_before)
        job = self.job if isinstance(self.job, BlockJob) else None
        return ExecutionReport(
            arm=execution.arm,
            position=position,
            status=ExecutionStatus.LOST if lost_reason else ExecutionStatus.COMPLETE,
            run_seed=execution.run_seed,
            started_at=times[0],
            ended_at=times[1],
            exit_code=run.ended.exit_code,
            lost_reason=lost_reason,
            results=tuple(results),
            counters=run.records.totals(),
            measurements=tuple(run.records.measurements),
            context=tuple(fields),
            output=run.ended.output.decode(errors="replace")[-OUTPUT_TAIL:] or None,
            block=job.block if job else None,
            attempt=job.attempt if job else None,
        )

    def fixed_fields(
        self,
        arm: ArmJob,
        snapshot: Snapshot,
        listing: Listing,
        tests: Sequence[str],
        environment: Mapping[str, str],
    ) -> list[ContextField]:
        """Return what is known before anything runs."""
        try:
            devices = context.device_fields()
        except DeviceUnreadableError as error:
            raise RunnerError(
                "device_unreadable",
                f"nvidia-smi does not answer: {error}",
                "look at the host (dmesg, `nvidia-smi`), and take it out of service until it answers",
            ) from None
        arms = self.job.arms
        version = listing.version
        session = listing.data.get("session", {})
        return [
            *context.host_fields(),
            *devices,
            *context.software_fields(arm, arms, self.suite, snapshot),
            *context.suite_fields(arm, self.suite, tests, self.job.victim, version, session),
            *context.process_fields(arms, self.suite, environment, self.framework.process_model),
            *context.limit_fields(self.suite),
        ]

    def progressed(self, execution: ExecutionJob, position: int) -> Callable[[int, str], None]:
        """Return what tells that a test has started, at most a few times a second."""
        total = len(execution.tests)
        last = -1.0

        def tell(done: int, test: str) -> None:
            nonlocal last
            now = time.monotonic()
            if now - last >= PROGRESS_S:
                last = now
                self.emit(Progress("execute", execution.arm, position, test, done, total))

        return tell

    def warm_big_files(self, snapshot: Snapshot) -> dict[str, str]:
        """Read the suite's big files into the page cache, and return their names and paths."""
        root = snapshot.tree if self.restorer.mode is RestoreMode.OVERLAY else self.slot.tree
        found = {}
        for pattern in self.suite.big_files:
            for path in sorted((root / self.suite.cwd).glob(pattern)):
                found[str(path.relative_to(root / self.suite.cwd))] = str(path)
                if path.is_file() and (resident_share(str(path)) or 0.0) < WARM_ENOUGH:
                    read_through(path, self.life.check)
        return found

    def cache_digest(self) -> str:
        """Return the hash of the cache folders as they stand."""
        return canonical_digest([tree.tree_hash(self.slot.private / name) for name in CACHE_VARIABLES.values()])

    def private_changes(self, warm: WarmCaches | None) -> Iterator[tree.Change]:
        """Yield the files that the execution left in its private folders, the runner's own left out."""
        before = warm.paths() if warm is not None else frozenset()
        for path in sorted(tree.file_paths(self.slot.private) - before):
            if not path.startswith("own/"):
                yield tree.Change("created", f"private/{path}")


# Errors of one arm; any other ends the job.
ARM_ERRORS = frozenset(
    {
        "no_such_commit",
        "build_failed",
        "list_failed",
        "no_tests",
        "no_such_test",
        "bad_treatment",
        "missing_framework",
        "tree_differs",
    }
)
PROGRESS_S = 0.2
# What a test looks like that the kernel killed for memory, in pytest's process and in ctest's words.
KILLED_FROM_OUTSIDE = frozenset({"SIGKILL", "Subprocess killed"})


def _failed(arm: ArmJob, failed: Failed, listing: tuple[str, ...] = ()) -> PreparedArm:
    message = f"{failed.message}; {failed.way_out}" if failed.way_out else failed.message
    return PreparedArm(arm.arm, listing, error_code=failed.code, error=message)


def _check_known(execution: ExecutionJob, listing: Listing) -> None:
    unknown = sorted(set(execution.tests) - set(listing.tests))
    if unknown:
        raise RunnerError(
            "no_such_test",
            f"arm {execution.arm} has no test {unknown[0]!r} ({len(unknown)} of its list are missing)",
            "prepare the experiment again: the tests of this tree are others than the plan names",
        )
    if not execution.tests:
        raise RunnerError("no_tests", f"the execution of arm {execution.arm} names no tests", "name at least one")


def _warm_key(job: BlockJob, arm: ArmJob, snapshot: Snapshot, execution: ExecutionJob) -> str:
    parts = [job.experiment, arm.arm, snapshot.key, execution.tests, arm_environment(arm), execution.environment]
    return canonical_digest(parts)[:24]


def _lost_reason(run: SuiteRun, kills_before: int | None) -> str | None:
    """Return why a run says nothing about its tests; None when it does."""
    ended = run.ended
    if ended.ending is Ending.STUCK:
        return f"processes could not be killed: {ended.detail}"
    if ended.ending is Ending.NOT_STARTED:
        return f"the suite could not be started: {ended.detail}"
    kills = host.kernel_kills()
    was_killed = any(result.failure_type in KILLED_FROM_OUTSIDE for result in run.results)
    if was_killed and kills_before is not None and kills is not None and kills > kills_before:
        return (
            "the kernel killed a process because the host ran out of memory; set memory_limit below the host's memory"
        )
    return None
