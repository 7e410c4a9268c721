"""Bearer tokens: shown once, stored as a hash, with scopes."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.store.models import Token

PREFIX = "lkw_"


class Scope(StrEnum):
    """What a token may do; admin may do everything."""

    INGEST = "ingest"
    READ = "read"
    ENQUEUE = "enqueue"
    ADMIN = "admin"


def create_token(session: Session, name: str, scopes: Sequence[Scope], now: datetime) -> str:
    """Return the text of a new token; only its hash is stored."""
    text = PREFIX + secrets.token_urlsafe(32)
    session.add(Token(name=name, digest=_digest(text), scopes=[scope.value for scope in scopes], created_at=now))
    return text


def may(session: Session, text: str, scope: Scope) -> bool:
    """Return whether the token exists, is not revoked and has the scope."""
    token = session.scalar(select(Token).where(Token.digest == _digest(text), Token.revoked_at.is_(None)))
    return token is not None and (scope.value in token.scopes or Scope.ADMIN.value in token.scopes)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
