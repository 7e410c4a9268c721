"""A page's context to HTML: one template a context, everything escaped, nothing undefined let through."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Any

from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.staticfiles import StaticFiles

from service.web.contexts import ErrorPage, ExecutionPage, ExperimentPage, ExperimentsPage

TEMPLATES = Path(__file__).resolve().parents[2] / "templates"
STATIC = TEMPLATES / "static"

PAGES: dict[type, str] = {
    ExperimentsPage: "pages/experiments.html",
    ExperimentPage: "pages/experiment.html",
    ExecutionPage: "pages/execution.html",
    ErrorPage: "pages/error.html",
}


@lru_cache(maxsize=1)
def environment() -> Environment:
    """Return the templates' environment."""
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals["static"] = static_path
    return made


def render(page: Any, status: int = 200) -> HTMLResponse:
    """Return the page of a context."""
    template = environment().get_template(PAGES[type(page)])
    return HTMLResponse(template.render(page=page), status, {"Cache-Control": "no-cache"})


@lru_cache(maxsize=64)
def static_path(name: str) -> str:
    """Return the path of a static file, with its hash so that a new version is fetched."""
    return f"/static/{name}?v={hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]}"


def static_files() -> StaticFiles:
    """Return the application that serves `templates/static`."""
    return StaticFiles(directory=STATIC)
