"""Hosts and slots that run blocks."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.store.models import Host, Slot


def seen(session: Session, name: str, boot_id: str, facts: dict[str, Any], now: datetime) -> Host:
    """Return the host of that name with its newest boot id and facts."""
    host = session.scalar(select(Host).where(Host.name == name))
    if host is None:
        host = Host(name=name, boot_id=boot_id, facts=facts, seen_at=now)
        session.add(host)
        session.flush()
    host.boot_id, host.facts, host.seen_at = boot_id, facts, now
    return host


def seen_slot(session: Session, host: Host, name: str, folder: str, now: datetime) -> Slot:
    """Return the slot of that name on the host."""
    slot = session.scalar(select(Slot).where(Slot.host_id == host.id, Slot.name == name))
    if slot is None:
        slot = Slot(host_id=host.id, name=name, folder=folder, seen_at=now)
        session.add(slot)
        session.flush()
    slot.folder, slot.seen_at = folder, now
    return slot
