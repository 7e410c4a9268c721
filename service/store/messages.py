"""Outgoing messages: written in the transaction that makes them true, sent after it, marked when sent."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from service.store.models import Message


def add_message(session: Session, task: str, target_id: int, now: datetime) -> None:
    """Note a nudge to send after commit."""
    session.add(Message(task=task, target_id=target_id, created_at=now, sent_at=None))


def unsent(session: Session, limit: int = 200) -> Sequence[Message]:
    """Return messages that were not sent yet, oldest first."""
    return session.scalars(select(Message).where(Message.sent_at.is_(None)).order_by(Message.id).limit(limit)).all()


def mark_sent(session: Session, ids: Sequence[int], now: datetime) -> None:
    """Note that these messages were handed to the broker."""
    session.execute(update(Message).where(Message.id.in_(ids)).values(sent_at=now))


def nudge(session: Session, task: str, target_id: int, now: datetime, every_s: float) -> None:
    """Note a nudge unless the same one was noted within `every_s` seconds."""
    recent = select(Message.id).where(
        Message.task == task, Message.target_id == target_id, Message.created_at > now - timedelta(seconds=every_s)
    )
    if session.scalar(recent.limit(1)) is None:
        add_message(session, task, target_id, now)


def forget_sent(session: Session, before: datetime) -> None:
    """Delete messages that were sent before a time."""
    session.execute(delete(Message).where(Message.sent_at < before))
