"""The only periodic task: what a lost worker, a lost message or a lost broker left undone is done again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import structlog
from sqlalchemy import select

from service.config import settings
from service.domain import BlockState
from service.store.experiments import live
from service.store.leases import expire
from service.store.messages import add_message, forget_sent, nudge
from service.store.models import Block
from service.store.session import write
from workers.analyse import send_what_was_committed

log = structlog.get_logger()


def sweep() -> None:
    """End expired leases, nudge what waits, send what is unsent. Safe to repeat and to run twice at once."""
    now, every_s = datetime.now(UTC), settings().nudge_s
    with write() as session:
        for block in expire(session):
            log.warning("lease_expired", block=block.id, experiment=block.experiment_id)
            add_message(session, "analyse", block.experiment_id, now)
        experiments = [experiment.id for experiment in live(session)]
        unfinished = select(Block.id, Block.experiment_id, Block.state).where(
            Block.state.in_([BlockState.PENDING.value, BlockState.RUNNING.value]),
            Block.experiment_id.in_(experiments),
        )
        busy: set[int] = set()
        for block_id, experiment_id, state in session.execute(unfinished.order_by(Block.id)):
            busy.add(experiment_id)
            if state == BlockState.PENDING.value:
                nudge(session, "execute", block_id, now, every_s)
        for experiment_id in experiments:
            if experiment_id not in busy:
                nudge(session, "analyse", experiment_id, now, every_s)
        forget_sent(session, now - timedelta(days=1))
    send_what_was_committed()
