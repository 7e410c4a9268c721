"""A limit on the size of request bodies, counted while they arrive."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.problems import UploadTooLargeError, problem_of
from service.config import settings


class BodyLimit:
    """Refuses a body beyond the settings' upload limit: by its declared length at once, else as soon as it is too long.

    The error of a body without a declared length is raised where the body is read, and handled like any other.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its body counted."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        limit = settings().upload_limit_bytes
        declared = dict(scope["headers"]).get(b"content-length", b"")
        if declared.isdigit() and int(declared) > limit:
            reply = problem_of(UploadTooLargeError(size=f"{int(declared)} bytes", limit=limit))
            await reply(scope, receive, send)
            return
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit:
                raise UploadTooLargeError(size="more", limit=limit)
            return message

        await self.app(scope, counted, send)
