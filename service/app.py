"""The web application: REST under /v1, the pages, health. `uvicorn --factory service.app:make_app` serves it."""

from __future__ import annotations

from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as AsgiScope

from service.api import events, experiments, health, problems, projects, runs
from service.api.access import needs
from service.api.limits import BodyLimit
from service.errors import LikewiseError
from service.ingest.payload import RunMetadata, RunPayload
from service.store.tokens import Scope
from service.web import errors, pages
from service.web.render import static_files

_MACHINE_PATHS = ("/v1/", "/healthz", "/readyz", "/metrics", "/webhooks/")
_SECURITY = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}


class SecureHeaders:
    """Adds the headers that keep pages to their own scripts, styles and frames."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Pass the request on; the reply gets the headers."""

        async def secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _SECURITY.items():
                    headers.setdefault(name, value)
            await send(message)

        await self.app(scope, receive, secured)


def make_app() -> FastAPI:
    """Return the application. Settings are read when a request needs them."""
    app = FastAPI(
        title="Likewise",
        version="1",
        description="Same-context A/B experiments for tests that fail in the suite and pass alone.",
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
    )
    app.add_middleware(BodyLimit)
    app.add_middleware(SecureHeaders)
    for module in (runs, projects, experiments, events, health):
        app.include_router(module.router, responses={} if module is health else problems.DESCRIBED)
    app.include_router(pages.router, dependencies=[Depends(needs(Scope.READ))], include_in_schema=False)
    app.mount("/static", static_files())
    app.add_exception_handler(LikewiseError, _on_own)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(Exception, _on_crash)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


def _is_for_machines(request: Request) -> bool:
    return request.url.path.startswith(_MACHINE_PATHS)


async def _on_own(request: Request, error: Exception) -> Response:
    assert isinstance(error, LikewiseError)
    if _is_for_machines(request):
        return problems.problem_of(error)
    return errors.page_of(error)


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if _is_for_machines(request):
        return problems.problem_of_status(error.status_code, str(error.detail))
    return errors.page_of_status(error.status_code, request.url.path)


async def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    if _is_for_machines(request):
        return problems.problem_of_validation(error.errors())
    return errors.page_of_status(404, request.url.path)


async def _on_crash(request: Request, _error: Exception) -> Response:
    """Reply; the server, to which the error goes on, writes its trace to the log."""
    return problems.problem_of_crash() if _is_for_machines(request) else errors.page_of_status(500, request.url.path)


def _openapi(app: FastAPI) -> dict[str, Any]:
    """Return the description of the API, with the two bodies that FastAPI does not see for itself."""
    if app.openapi_schema is None:
        schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        parts = schema["components"]["schemas"]
        for model in (RunMetadata, RunPayload):
            own = model.model_json_schema(ref_template="#/components/schemas/{model}")
            parts |= own.pop("$defs", {})
            parts[model.__name__] = own
        app.openapi_schema = schema
    return app.openapi_schema
