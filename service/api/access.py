"""Who may call: programs on this machine without a token unless the settings refuse it, everybody else with one."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from service.api.problems import CrossSiteError, ForbiddenError
from service.config import settings
from service.errors import UnauthorizedError
from service.store.session import read
from service.store.tokens import Scope, may

LOOPBACK = frozenset({"127.0.0.1", "::1"})
_NAMES = frozenset({"127.0.0.1", "::1", "localhost"})
_bearer = HTTPBearer(auto_error=False, description="A token of `likewise token create`; not needed on loopback.")


def needs(scope: Scope) -> Callable[[Request, HTTPAuthorizationCredentials | None], None]:
    """Return a dependency that lets a request through when it may do what `scope` says.

    It raises UnauthorizedError without a valid token, ForbiddenError when the token lacks the scope, and
    CrossSiteError when a foreign web page makes a browser on this machine call without a token.
    """

    def check(
        request: Request,
        bearer: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
    ) -> None:
        token = bearer.credentials if bearer else _basic_password(request)
        if token is None:
            if settings().require_tokens or not _is_loopback(request):
                raise UnauthorizedError(scope=scope.value)
            _refuse_cross_site(request, scope)
            return
        with read() as session:
            if may(session, token, scope):
                return
            if any(may(session, token, other) for other in Scope):
                raise ForbiddenError(scope=scope.value)
        raise UnauthorizedError(scope=scope.value)

    return check


def _is_loopback(request: Request) -> bool:
    return request.client is not None and request.client.host in LOOPBACK


def _refuse_cross_site(request: Request, scope: Scope) -> None:
    """Refuse what a foreign page could make a browser send: another origin, or a name that was bent to 127.0.0.1."""
    own = _NAMES | {settings().host, urlsplit(settings().effective_public_url).hostname}
    host = urlsplit(f"//{request.headers.get('host', '')}").hostname
    if host not in own:
        raise CrossSiteError(site=host or "", scope=scope.value)
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
        raise CrossSiteError(site=origin, scope=scope.value)
    if request.headers.get("sec-fetch-site") == "cross-site" and request.method != "GET":
        raise CrossSiteError(site="another site", scope=scope.value)


def _basic_password(request: Request) -> str | None:
    """Return the password of HTTP Basic, how a browser on another machine sends a token; for reading only."""
    kind, _, value = request.headers.get("authorization", "").partition(" ")
    if kind.lower() != "basic" or request.method not in {"GET", "HEAD"}:
        return None
    try:
        return base64.b64decode(value, validate=True).decode().partition(":")[2] or None
    except (binascii.Error, UnicodeDecodeError):
        return None
