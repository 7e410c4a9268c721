"""The Celery app of the workers: tasks, queues and the one periodic task."""

from __future__ import annotations

import logging

import structlog

from service import queue
from service.config import settings
from workers import analyse, execute, report, schedule, sweep

log = structlog.get_logger()

app = queue.app()
app.conf.beat_schedule = {
    "sweep": {
        "task": "likewise.sweep",
        "schedule": settings().sweep_s,
        "options": {"queue": queue.CONTROL_QUEUE, "expires": settings().sweep_s * 2},
    }
}
# In memory: a schedule file that a kill cut in half would keep the sweep from starting again.
app.conf.beat_scheduler = "celery.beat:Scheduler"
app.conf.beat_max_loop_interval = 1

logging.getLogger("celery").setLevel(logging.WARNING)


@app.task(name="likewise.schedule")
def schedule_task(experiment_id: int) -> None:
    """Decide the first step of an experiment."""
    schedule.schedule(experiment_id)


@app.task(name="likewise.execute")
def execute_task(block_id: int) -> None:
    """Run a block on this worker's slot."""
    execute.execute(block_id)


@app.task(name="likewise.analyse")
def analyse_task(experiment_id: int) -> None:
    """Decide the next step of an experiment from all its evidence."""
    analyse.analyse(experiment_id)


@app.task(name="likewise.report")
def report_task(experiment_id: int) -> None:
    """Tell who asked that an experiment has ended."""
    report.report(experiment_id)


@app.task(name="likewise.sweep")
def sweep_task() -> None:
    """End expired leases and send unsent messages."""
    sweep.sweep()
