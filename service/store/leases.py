"""Leases on blocks: claimed with a fence, renewed, finished or expired; all times are the database's.

A worker that comes back late holds an old fence and can write nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from sqlalchemy import CursorResult, select, update
from sqlalchemy.orm import Session

from service.domain import BlockState
from service.store.models import Block
from service.store.session import database_now


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to run one attempt of one block."""

    block_id: int
    attempt: int
    fence: int


def claim(session: Session, block_id: int, owner: str, lease_s: float) -> Lease | None:
    """Return a lease on a pending block, None when somebody else has it or it needs nothing."""
    now = database_now(session)
    claimed = session.execute(
        update(Block)
        .where(Block.id == block_id, Block.state == BlockState.PENDING.value)
        .values(
            state=BlockState.RUNNING.value,
            owner=owner,
            fence=Block.fence + 1,
            lease_until=now + lease_s,
            heartbeat_at=now,
            progress=None,
        )
    )
    if cast("CursorResult[Any]", claimed).rowcount != 1:
        return None
    block = session.execute(select(Block.attempt, Block.fence).where(Block.id == block_id)).one()
    return Lease(block_id, block.attempt, block.fence)


def renew(session: Session, lease: Lease, lease_s: float, progress: dict[str, Any] | None) -> bool:
    """Extend the lease; False when it was lost, and the worker must stop."""
    now = database_now(session)
    values: dict[str, Any] = {"lease_until": now + lease_s, "heartbeat_at": now}
    if progress is not None:
        values["progress"] = progress
    renewed = session.execute(update(Block).where(*_held(lease)).values(**values))
    return cast("CursorResult[Any]", renewed).rowcount == 1


def holds(session: Session, lease: Lease) -> bool:
    """Return whether the lease is still the current one; locks the row for the rest of the transaction."""
    return session.scalar(select(Block.id).where(*_held(lease)).with_for_update()) is not None


def finish(
    session: Session, lease: Lease, state: BlockState, *, lost_arm: int | None = None, reason: str | None = None
) -> bool:
    """End the attempt as complete or lost; False when the lease was lost before."""
    block = session.scalar(select(Block).where(*_held(lease)).with_for_update())
    if block is None:
        return False
    end_attempt(block, state, lost_arm, reason)
    return True


def expire(session: Session) -> Sequence[Block]:
    """End every attempt whose lease ran out as lost, and return their blocks."""
    now = database_now(session)
    query = select(Block).where(Block.state == BlockState.RUNNING.value, Block.lease_until < now).with_for_update()
    blocks = session.scalars(query).all()
    for block in blocks:
        running = (block.progress or {}).get("arm")
        end_attempt(block, BlockState.LOST, running, f"the worker {block.owner} stopped answering")
    return blocks


def end_attempt(block: Block, state: BlockState, lost_arm: int | None, reason: str | None) -> None:
    """Append the current attempt to the block's attempts and give its lease back; an older fence is void from here."""
    ended = {"attempt": block.attempt, "state": state.value, "lost_arm": lost_arm, "reason": reason}
    block.attempts = [*block.attempts, ended]
    block.state = state.value
    block.owner = None
    block.lease_until = None
    block.fence += 1
    block.progress = None


def _held(lease: Lease) -> tuple[Any, ...]:
    return (
        Block.id == lease.block_id,
        Block.fence == lease.fence,
        Block.attempt == lease.attempt,
        Block.state == BlockState.RUNNING.value,
    )
