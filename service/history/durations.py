"""How long executions of a suite took."""

from __future__ import annotations

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.store.models import Block, Execution, Experiment, Project, Suite


def mean_execution_seconds(session: Session, project: str, suite: str) -> float | None:
    """Return the mean seconds of an execution of the suite over all experiments, None when it never ran."""
    query = (
        select(func.avg(Execution.ended_at - Execution.started_at))
        .join(Block, Block.id == Execution.block_id)
        .join(Experiment, Experiment.id == Block.experiment_id)
        .join(Suite, Suite.id == Experiment.suite_id)
        .join(Project, Project.id == Experiment.project_id)
        .where(Project.name == project, Suite.name == suite)
    )
    found = session.scalar(query)
    return None if found is None else float(found)
