"""`/v1/projects`: which repositories are known, and where their sources are."""

from __future__ import annotations

from datetime import UTC, datetime

from fastapi import APIRouter, Depends

from service.api.access import needs
from service.api.schemas import ProjectOrder, Projects
from service.history.listing import list_projects
from service.store.catalog import add_project
from service.store.session import read, write
from service.store.tokens import Scope

router = APIRouter(prefix="/v1", tags=["projects"])


@router.get("/projects", dependencies=[Depends(needs(Scope.READ))])
def get_projects() -> Projects:
    """List every project with its source and its suites."""
    with read() as session:
        return Projects(projects=list(list_projects(session)))


@router.post("/projects", status_code=201, dependencies=[Depends(needs(Scope.ADMIN))])
def post_project(order: ProjectOrder) -> Projects:
    """Add a project, or change where its source is; replies with every project.

    Needs `admin`: whoever names a source decides which code the workers build and run.
    """
    with write() as session:
        add_project(session, order.name, order.source, datetime.now(UTC))
    return get_projects()
