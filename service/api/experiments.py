"""`/v1/experiments`: ask, list, look, cancel."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Response

from service.api.access import needs
from service.api.schemas import ID_MAX, CancelOrder, Enqueued, Experiments, Order, ProjectName
from service.config import settings
from service.domain import Origin, Verdict
from service.enqueue import enqueue, make_request
from service.errors import BrokerUnavailableError
from service.history.differences import ContextView, context_view
from service.history.listing import PAGE, list_experiments
from service.history.progress import ExperimentView, experiment_view
from service.queue import flush
from service.store.experiments import cancel
from service.store.session import read, write
from service.store.tokens import Scope

router = APIRouter(prefix="/v1", tags=["experiments"])

ExperimentId = Annotated[int, Path(ge=1, le=ID_MAX)]


@router.post("/experiments", status_code=201, dependencies=[Depends(needs(Scope.ENQUEUE))])
def post_experiment(order: Order, response: Response) -> Enqueued:
    """Enqueue an A/B. The suite is read from the project's `likewise.toml`, revisions are resolved to commits."""
    experiment_id = enqueue(make_request(order.as_ab(), Origin.WEB, order.requested_by))
    note = _announce()
    response.headers["Location"] = f"/v1/experiments/{experiment_id}"
    return Enqueued(
        id=experiment_id,
        page=f"{settings().effective_public_url}/experiments/{experiment_id}",
        is_announced=not note,
        note=note,
    )


def _announce() -> str:
    """Send what was committed; return why it has to wait for the sweep, empty when it was sent."""
    try:
        flush()
    except BrokerUnavailableError as error:
        return f"{error} {error.remedy}"
    return ""


@router.get("/experiments", dependencies=[Depends(needs(Scope.READ))])
def get_experiments(
    project: ProjectName | None = None,
    verdict: Verdict | None = None,
    before: Annotated[int | None, Query(ge=1, le=ID_MAX)] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = PAGE,
) -> Experiments:
    """List experiments, newest first."""
    with read() as session:
        rows = list_experiments(session, project, verdict, before=before, limit=limit)
    return Experiments(experiments=list(rows), next=rows[-1].id if len(rows) == limit else None)


@router.get("/experiments/{experiment_id}", dependencies=[Depends(needs(Scope.READ))])
def get_experiment(experiment_id: ExperimentId) -> ExperimentView:
    """Return everything that is shown of one experiment: design, arms, every block, counts so far, the finding."""
    with read() as session:
        return experiment_view(session, experiment_id)


@router.get("/experiments/{experiment_id}/contexts", dependencies=[Depends(needs(Scope.READ))])
def get_contexts(experiment_id: ExperimentId) -> ContextView:
    """Return the arms' contexts field by field: equal, declared, undeclared, drifted or only observed."""
    with read() as session:
        return context_view(session, experiment_id)


@router.post("/experiments/{experiment_id}/cancel", status_code=202, dependencies=[Depends(needs(Scope.ENQUEUE))])
def post_cancel(experiment_id: ExperimentId, order: CancelOrder) -> Enqueued:
    """Ask an experiment to end. What it showed so far is kept and judged."""
    with write() as session:
        cancel(session, experiment_id, order.reason, datetime.now(UTC))
    note = _announce()
    page = f"{settings().effective_public_url}/experiments/{experiment_id}"
    return Enqueued(id=experiment_id, page=page, is_announced=not note, note=note)
