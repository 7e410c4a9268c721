"""The first step of an experiment."""

from __future__ import annotations

from workers.analyse import analyse


def schedule(experiment_id: int) -> None:
    """Issue the experiment's first blocks; it is the same decision as every later one."""
    analyse(experiment_id)
