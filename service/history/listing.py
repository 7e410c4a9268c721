"""Lists of what is stored: experiments with their verdicts, runs, projects. Newest first, a page at a time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.domain import BlockState, ExperimentState, Purpose, RunStatus, Verdict
from service.store.catalog import get_project
from service.store.models import Block, Commit, Experiment, FindingRow, Project, Result, Run, Suite

PAGE = 50


@dataclass(frozen=True, slots=True)
class ExperimentRow:
    """One experiment in a list. `blocks_done`: complete counted-purpose blocks, or those the finding counts."""

    id: int
    kind: str
    project: str
    suite: str
    victim: str
    state: ExperimentState
    verdict: Verdict | None
    sentence: str
    blocks_done: int
    blocks_max: int
    requested_by: str
    origin: str
    created_at: datetime
    finished_at: datetime | None
    is_cancelled: bool


@dataclass(frozen=True, slots=True)
class RunRow:
    """One recorded run with how many of its results came to each outcome."""

    id: int
    project: str
    suite: str
    sha: str
    origin: str
    status: RunStatus
    provider_run_id: str
    attempt: int
    job: str
    variant: str
    branch: str
    pull_request: int | None
    conclusion: str | None
    outcomes: dict[str, int]
    recorded_at: datetime


@dataclass(frozen=True, slots=True)
class ProjectRow:
    """One project, where its source is, and its suites."""

    name: str
    source: str | None
    suites: tuple[str, ...]
    created_at: datetime


def list_experiments(
    session: Session,
    project: str | None = None,
    verdict: Verdict | None = None,
    *,
    before: int | None = None,
    limit: int = PAGE,
) -> tuple[ExperimentRow, ...]:
    """Return experiments, newest first, those before the number `before`; NotFoundError for an unknown project."""
    newest = (
        select(FindingRow.experiment_id, func.max(FindingRow.id).label("id"))
        .group_by(FindingRow.experiment_id)
        .subquery()
    )
    query = (
        select(Experiment, Project.name, Suite.name, FindingRow)
        .join(Project, Project.id == Experiment.project_id)
        .join(Suite, Suite.id == Experiment.suite_id)
        .outerjoin(newest, newest.c.experiment_id == Experiment.id)
        .outerjoin(FindingRow, FindingRow.id == newest.c.id)
        .order_by(Experiment.id.desc())
        .limit(limit)
    )
    if project is not None:
        query = query.where(Experiment.project_id == get_project(session, project).id)
    if verdict is not None:
        query = query.where(FindingRow.verdict == verdict.value)
    if before is not None:
        query = query.where(Experiment.id < before)
    rows = session.execute(query).all()
    done = _blocks_done(session, [experiment.id for experiment, *_ in rows])
    return tuple(
        _experiment_row(experiment, name, suite, row, done.get(experiment.id, 0))
        for experiment, name, suite, row in rows
    )


def _experiment_row(
    experiment: Experiment, project: str, suite: str, row: FindingRow | None, done: int
) -> ExperimentRow:
    return ExperimentRow(
        id=experiment.id,
        kind=experiment.kind,
        project=project,
        suite=suite,
        victim=experiment.victim,
        state=ExperimentState(experiment.state),
        verdict=Verdict(row.verdict) if row else None,
        sentence=str(row.body["sentence"]) if row else "",
        blocks_done=int(row.body["blocks_counted"]) if row else done,
        blocks_max=int(experiment.design["blocks_max"]),
        requested_by=experiment.requested_by,
        origin=experiment.origin,
        created_at=experiment.created_at,
        finished_at=experiment.finished_at,
        is_cancelled=experiment.cancel_reason is not None,
    )


def _blocks_done(session: Session, ids: list[int]) -> dict[int, int]:
    query = (
        select(Block.experiment_id, func.count(Block.id))
        .where(
            Block.experiment_id.in_(ids),
            Block.purpose == Purpose.COUNT.value,
            Block.state == BlockState.COMPLETE.value,
        )
        .group_by(Block.experiment_id)
    )
    return {row[0]: row[1] for row in session.execute(query)}


def list_runs(
    session: Session,
    project: str | None = None,
    sha: str | None = None,
    *,
    before: int | None = None,
    limit: int = PAGE,
) -> tuple[RunRow, ...]:
    """Return runs, newest first, those before the number `before`; NotFoundError for an unknown project."""
    query = (
        select(Run, Project.name, Suite.name, Commit.sha)
        .join(Suite, Suite.id == Run.suite_id)
        .join(Project, Project.id == Suite.project_id)
        .join(Commit, Commit.id == Run.commit_id)
        .order_by(Run.id.desc())
        .limit(limit)
    )
    if project is not None:
        query = query.where(Suite.project_id == get_project(session, project).id)
    if sha is not None:
        query = query.where(Commit.sha == sha)
    if before is not None:
        query = query.where(Run.id < before)
    rows = session.execute(query).all()
    outcomes = _outcomes(session, [run.id for run, *_ in rows])
    return tuple(_run_row(run, name, suite, found, outcomes.get(run.id, {})) for run, name, suite, found in rows)


def _outcomes(session: Session, ids: list[int]) -> dict[int, dict[str, int]]:
    query = (
        select(Result.run_id, Result.outcome, func.count(Result.id))
        .where(Result.run_id.in_(ids))
        .group_by(Result.run_id, Result.outcome)
    )
    found: dict[int, dict[str, int]] = {}
    for run_id, outcome, count in session.execute(query):
        found.setdefault(run_id, {})[outcome] = count
    return found


def _run_row(run: Run, project: str, suite: str, sha: str, outcomes: dict[str, int]) -> RunRow:
    return RunRow(
        id=run.id,
        project=project,
        suite=suite,
        sha=sha,
        origin=run.origin,
        status=RunStatus(run.status),
        provider_run_id=run.provider_run_id,
        attempt=run.attempt,
        job=run.job,
        variant=run.variant,
        branch=run.branch,
        pull_request=run.pull_request,
        conclusion=run.conclusion,
        outcomes=outcomes,
        recorded_at=run.recorded_at,
    )


def list_projects(session: Session) -> tuple[ProjectRow, ...]:
    """Return every project by name."""
    suites: dict[int, list[str]] = {}
    for project_id, name in session.execute(select(Suite.project_id, Suite.name).order_by(Suite.name)):
        suites.setdefault(project_id, []).append(name)
    query = select(Project).order_by(Project.name)
    return tuple(
        ProjectRow(project.name, project.source, tuple(suites.get(project.id, ())), project.created_at)
        for project in session.scalars(query)
    )
