"""`/healthz` (the process answers), `/readyz` (it can work), `/metrics` (for Prometheus)."""

from __future__ import annotations

from collections.abc import Iterator

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from pydantic import BaseModel
from sqlalchemy import ColumnElement, func, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import InstrumentedAttribute

from service.errors import LikewiseError
from service.queue import ping
from service.store import schema
from service.store.models import Block, Experiment, Run
from service.store.session import read

router = APIRouter(tags=["health"])


class Health(BaseModel):
    """The process answers."""

    status: str


class Readiness(BaseModel):
    """Whether the service can work; each part is `ok` or says what is wrong and the way out."""

    is_ready: bool
    database: str
    broker: str


@router.get("/healthz")
def healthz() -> Health:
    """Return `ok` as long as the process answers."""
    return Health(status="ok")


@router.get("/readyz", responses={503: {"model": Readiness}})
def readyz(response: Response) -> Readiness:
    """Return whether the database has the newest schema and the broker answers; 503 when not."""
    database, broker = _database(), _broker()
    is_ready = database == broker == "ok"
    if not is_ready:
        response.status_code = 503
    return Readiness(is_ready=is_ready, database=database, broker=broker)


def _database() -> str:
    try:
        current, head = schema.current(), schema.head()
    except LikewiseError as error:
        return f"{error} {error.remedy}"
    except OperationalError as error:
        return f"The database does not answer: {str(error.orig or error).splitlines()[0]}"
    return "ok" if current == head else f"schema {current or 'missing'}, wanted {head}: run `likewise db upgrade`"


def _broker() -> str:
    try:
        ping()
    except LikewiseError as error:
        return f"{error} {error.remedy}"
    return "ok"


class StoreCollector:
    """Counts of the store, read when Prometheus asks."""

    def collect(self) -> Iterator[Metric]:
        """Give runs recorded, and experiments and blocks by state."""
        with read() as session:
            counted = {
                table: session.execute(select(*labels, func.count()).group_by(*labels)).all()
                for table, labels in _LABELS.items()
            }
        runs = CounterMetricFamily("likewise_runs_recorded", "Runs recorded", labels=["origin", "status"])
        blocks = GaugeMetricFamily("likewise_blocks", "Blocks by state of their current attempt", labels=["state"])
        experiments = GaugeMetricFamily("likewise_experiments", "Experiments by state", labels=["state"])
        for family, table in ((runs, Run), (blocks, Block), (experiments, Experiment)):
            for *labels, count in counted[table]:
                family.add_metric(labels, count)
            yield family


_LABELS: dict[type, tuple[InstrumentedAttribute[str] | ColumnElement[str], ...]] = {
    Run: (Run.origin, Run.status),
    Block: (Block.state,),
    Experiment: (Experiment.state,),
}


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
def metrics() -> Response:
    """Return the counts of the store in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(StoreCollector())
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)
