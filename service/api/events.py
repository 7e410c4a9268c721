"""`/v1/experiments/{id}/events`: server-sent events while an experiment runs, ending with `end`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from fastapi.concurrency import run_in_threadpool
from fastapi.sse import EventSourceResponse, ServerSentEvent

from gpu_runner.protocol import to_json
from service.api.access import needs
from service.api.experiments import ExperimentId
from service.domain import ExperimentState
from service.errors import DatabaseUnavailableError
from service.history.progress import ExperimentView, evidence_mark, experiment_view, running_blocks
from service.store.experiments import get
from service.store.session import read
from service.store.tokens import Scope

router = APIRouter(prefix="/v1", tags=["experiments"])

POLL_S = 1.0


@dataclass(frozen=True, slots=True)
class Tick:
    """What a stream has said last. `counts` are read again only when `mark` changes."""

    mark: str
    is_over: bool
    running: list[Any]
    counts: dict[str, Any]


def existing(experiment_id: ExperimentId) -> int:
    """Return the number of an experiment that exists; NotFoundError otherwise."""
    with read() as session:
        return get(session, experiment_id).id


def look(experiment_id: int, last: Tick | None) -> Tick:
    """Return where the experiment stands: what runs now, and the counts when something was stored since `last`."""
    with read() as session:
        experiment = get(session, experiment_id)
        mark = evidence_mark(session, experiment)
        is_over = experiment.state == ExperimentState.CONCLUDED.value
        running = to_json(list(running_blocks(session, experiment)))
        counts = (
            last.counts if last is not None and last.mark == mark else _counts(experiment_view(session, experiment_id))
        )
        return Tick(mark, is_over, running, counts)


def _counts(view: ExperimentView) -> dict[str, Any]:
    return {
        "state": view.state.value,
        "verdict": view.finding.verdict.value if view.finding else None,
        "sentence": view.finding.sentence if view.finding else "",
        "blocks_done": view.blocks_done,
        "blocks_possible": view.blocks_possible,
        "waiting": view.waiting,
        "comparisons": [
            {
                "arm": comparison.arm,
                "name": comparison.name,
                "control": to_json(comparison.control),
                "treated": to_json(comparison.treated),
                "difference": to_json(comparison.difference),
            }
            for comparison in view.comparisons
        ],
    }


@router.get(
    "/experiments/{experiment_id}/events",
    response_class=EventSourceResponse,
    dependencies=[Depends(needs(Scope.READ))],
)
async def get_events(experiment: Annotated[int, Depends(existing)]) -> AsyncIterable[ServerSentEvent]:
    """Stream `progress` whenever something changes and `end` once the experiment is over; then the stream closes."""
    last: Tick | None = None
    while True:
        try:
            tick = await run_in_threadpool(look, experiment, last)
        except DatabaseUnavailableError as error:
            yield ServerSentEvent(event="unavailable", data={"message": str(error), "way_out": error.remedy})
            await asyncio.sleep(POLL_S)
            continue
        if tick != last:
            data = {"id": experiment, "mark": tick.mark, "running": tick.running, **tick.counts}
            yield ServerSentEvent(event="end" if tick.is_over else "progress", data=data, id=tick.mark)
        if tick.is_over:
            return
        last = tick
        await asyncio.sleep(POLL_S)
