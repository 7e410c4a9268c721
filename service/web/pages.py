"""The pages: load, build the context, render."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Path, Query
from fastapi.responses import HTMLResponse

from service.domain import Verdict
from service.history.differences import compare_contexts
from service.history.execution import execution_view
from service.history.listing import PAGE, ExperimentRow, ProjectRow, list_experiments, list_projects
from service.history.progress import view_of
from service.store.evidence import load_evidence
from service.store.experiments import get
from service.store.session import read
from service.web.contexts import Choice, ExperimentItem, ExperimentsPage, Moment
from service.web.evidence import experiment_page
from service.web.execution import execution_page
from service.web.render import render
from service.web.words import VERDICTS, ago, badge_of

router = APIRouter()

ID_MAX = 2**31 - 1
Number = Annotated[int, Path(ge=1, le=ID_MAX)]
Index = Annotated[int, Path(ge=-100, le=ID_MAX)]
ArmNumber = Annotated[int, Path(ge=0, le=1000)]


@router.get("/", response_class=HTMLResponse)
@router.get("/experiments", response_class=HTMLResponse)
def experiments(
    project: Annotated[str, Query(max_length=200, pattern=r"^[^\x00-\x1f]*$")] = "",
    verdict: str = "",
    before: Annotated[int | None, Query(ge=1, le=ID_MAX)] = None,
) -> HTMLResponse:
    """Show the experiments, newest first, of one project or with one verdict if asked."""
    wanted = Verdict(verdict) if verdict in set(Verdict) else None
    with read() as session:
        rows = list_experiments(session, project or None, wanted, before=before)
        projects = list_projects(session)
    return render(experiments_page(rows, projects, project, wanted, datetime.now(UTC)))


@router.get("/experiments/{experiment_id}", response_class=HTMLResponse)
def experiment(experiment_id: Number) -> HTMLResponse:
    """Show the evidence of one experiment."""
    with read() as session:
        stored = get(session, experiment_id)
        evidence = load_evidence(session, stored)
        view = view_of(session, stored, evidence)
        contexts = compare_contexts(experiment_id, view.design, evidence, view.finding)
    return render(experiment_page(view, contexts, datetime.now(UTC)))


@router.get("/experiments/{experiment_id}/executions/{block}/{attempt}/{arm}", response_class=HTMLResponse)
def execution(experiment_id: Number, block: Index, attempt: Number, arm: ArmNumber) -> HTMLResponse:
    """Show the results and the output of one execution."""
    with read() as session:
        view = execution_view(session, experiment_id, block, attempt, arm)
    return render(execution_page(view))


def experiments_page(
    rows: tuple[ExperimentRow, ...],
    projects: tuple[ProjectRow, ...],
    project: str,
    verdict: Verdict | None,
    now: datetime,
) -> ExperimentsPage:
    """Return the list's page."""
    chosen = {"project": project, "verdict": verdict.value if verdict else ""}
    query = {name: value for name, value in chosen.items() if value}
    has_more = len(rows) == PAGE
    return ExperimentsPage(
        title="Experiments",
        items=tuple(_item(row, now) for row in rows),
        projects=tuple(Choice(row.name, row.name, row.name == project) for row in projects),
        verdicts=tuple(Choice(value.value, badge.label, value is verdict) for value, badge in VERDICTS.items()),
        is_filtered=bool(query),
        next_path=f"/?{urlencode({**query, 'before': rows[-1].id})}" if has_more else None,
        is_live=any(row.verdict is None for row in rows),
    )


def _item(row: ExperimentRow, now: datetime) -> ExperimentItem:
    progress = f"{row.blocks_done} of at most {row.blocks_max} blocks"
    if row.verdict is not None:
        progress = f"{row.blocks_done} block{'' if row.blocks_done == 1 else 's'}"
    return ExperimentItem(
        id=row.id,
        path=f"/experiments/{row.id}",
        badge=badge_of(row.state, row.verdict),
        victim=row.victim,
        sentence=row.sentence or ("It was cancelled and ends soon." if row.is_cancelled else ""),
        place=f"{row.project} · {row.suite}",
        progress=progress,
        age=Moment(row.created_at.isoformat(), ago(row.created_at, now)),
    )
