"""What happens when an experiment ends: today the log; pages and the command line read the finding themselves."""

from __future__ import annotations

import structlog

from service.store.evidence import latest_finding
from service.store.session import read

log = structlog.get_logger()


def report(experiment_id: int) -> None:
    """Log the finding of an ended experiment."""
    with read() as session:
        finding = latest_finding(session, experiment_id)
    if finding is not None:
        log.info("experiment_reported", experiment=experiment_id, verdict=finding.verdict.value, text=finding.sentence)
