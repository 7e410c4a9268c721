"""All evidence to the next step: load, decide, save, then send."""

from __future__ import annotations

from datetime import UTC, datetime

import structlog

from service.errors import BrokerUnavailableError
from service.queue import flush
from service.store.experiments import advance
from service.store.session import write

log = structlog.get_logger()


def analyse(experiment_id: int) -> None:
    """Advance the experiment; repeating it changes nothing."""
    with write() as session:
        finding = advance(session, experiment_id, datetime.now(UTC))
    if finding is not None:
        log.info("experiment_concluded", experiment=experiment_id, verdict=finding.verdict.value)
    send_what_was_committed()


def send_what_was_committed() -> None:
    """Send committed messages; when the broker is away they stay for the sweep."""
    try:
        flush()
    except BrokerUnavailableError as error:
        log.warning("messages_kept", detail=str(error))
