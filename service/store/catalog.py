"""Projects, suites with their versions, commits and tests: found or made, never doubled."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from gpu_runner.protocol import SuiteDefinition, canonical_digest, from_json, to_json
from service.errors import InvalidValueError, NotFoundError
from service.ingest.identity import TestIdentity
from service.store.models import Commit, Project, Suite, SuiteVersion, Test

CHUNK = 500


def add_project(session: Session, name: str, source: str | None, now: datetime) -> Project:
    """Return the project of that name, made or with its source changed."""
    if not name or len(name) > 200 or any(character.isspace() for character in name):
        raise InvalidValueError("project", name, "not a project name", "Write owner/name, without spaces.")
    project = session.scalar(select(Project).where(Project.name == name))
    if project is None:
        project = Project(name=name, source=source, created_at=now)
        session.add(project)
        session.flush()
    elif source is not None:
        project.source = source
    return project


def get_project(session: Session, name: str) -> Project:
    """Return the project; NotFoundError names those that exist."""
    project = session.scalar(select(Project).where(Project.name == name))
    if project is None:
        known = ", ".join(session.scalars(select(Project.name).order_by(Project.name).limit(10))) or "none yet"
        raise NotFoundError("project", name, f"Known: {known}. `likewise project add NAME --source PATH` adds one.")
    return project


def only_project(session: Session) -> Project:
    """Return the single project; InvalidValueError when there are several or none."""
    projects = session.scalars(select(Project).limit(3)).all()
    if len(projects) != 1:
        names = ", ".join(project.name for project in projects) or "none yet"
        raise InvalidValueError("project", None, "it must be named", f"Known: {names}.")
    return projects[0]


def add_suite(session: Session, project: Project, name: str) -> Suite:
    """Return the suite of that name, made when new."""
    suite = session.scalar(select(Suite).where(Suite.project_id == project.id, Suite.name == name))
    if suite is None:
        suite = Suite(project_id=project.id, name=name)
        session.add(suite)
        session.flush()
    return suite


def add_version(session: Session, suite: Suite, definition: SuiteDefinition, now: datetime) -> SuiteVersion:
    """Return the version with this definition, made when no version has it."""
    digest = canonical_digest(definition)
    version = session.scalar(
        select(SuiteVersion).where(SuiteVersion.suite_id == suite.id, SuiteVersion.digest == digest)
    )
    if version is None:
        version = SuiteVersion(suite_id=suite.id, digest=digest, definition=to_json(definition), created_at=now)
        session.add(version)
        session.flush()
    return version


def definition_of(version: SuiteVersion) -> SuiteDefinition:
    """Return the stored definition as the runner takes it."""
    return from_json(SuiteDefinition, version.definition)


def add_commit(
    session: Session, project: Project, sha: str, parents: Iterable[str] = (), authored_at: datetime | None = None
) -> Commit:
    """Return the commit, made when new; parents and time are filled in when they become known."""
    commit = session.scalar(select(Commit).where(Commit.project_id == project.id, Commit.sha == sha))
    if commit is None:
        commit = Commit(project_id=project.id, sha=sha, parents=list(parents), authored_at=authored_at)
        session.add(commit)
        session.flush()
    else:
        commit.parents = commit.parents or list(parents)
        commit.authored_at = commit.authored_at or authored_at
    return commit


def identity_key(identity: TestIdentity) -> str:
    """Return the SHA-256 of the identity's parts."""
    parts = [identity.suite, identity.file, identity.classname, identity.name, identity.variant]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def add_tests(session: Session, suite: Suite, wanted: Mapping[TestIdentity, str | None]) -> dict[TestIdentity, int]:
    """Return the ids of tests, made when new. Values are the framework's own ids where a runner knows them."""
    keys = {identity_key(identity): identity for identity in wanted}
    found = _existing(session, suite, list(keys))
    missing = [key for key in keys if key not in found]
    session.add_all(
        Test(
            suite_id=suite.id,
            key=key,
            stable_key=identity_key(keys[key].stable),
            report_suite=keys[key].suite,
            file=keys[key].file,
            classname=keys[key].classname,
            name=keys[key].name,
            variant=keys[key].variant,
            node=wanted[keys[key]],
        )
        for key in missing
    )
    session.flush()
    found |= _existing(session, suite, missing)
    for key, test in found.items():
        if test.node is None and wanted[keys[key]] is not None:
            test.node = wanted[keys[key]]
    return {keys[key]: test.id for key, test in found.items()}


def _existing(session: Session, suite: Suite, keys: list[str]) -> dict[str, Test]:
    found: dict[str, Test] = {}
    for start in range(0, len(keys), CHUNK):
        chunk = keys[start : start + CHUNK]
        query = select(Test).where(Test.suite_id == suite.id, Test.key.in_(chunk))
        found |= {test.key: test for test in session.scalars(query)}
    return found
