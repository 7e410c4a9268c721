"""The metadata of a run from the environment of a GitHub Actions step (docs.github.com, "Variables reference")."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from service.errors import InvalidValueError


def github_metadata(environment: Mapping[str, str], event: Mapping[str, Any] | None = None) -> dict[str, str | int]:
    """Return the fields of `RunMetadata` that the environment and the event tell, empty outside of GitHub Actions.

    In a pull request GITHUB_SHA is a merge commit that soon exists nowhere; the head of the pull request is taken
    instead. In a `workflow_run` the run that is reported on is the one that triggered it.

    >>> github_metadata({"GITHUB_ACTIONS": "true", "GITHUB_REPOSITORY": "o/n", "GITHUB_SHA": "a" * 40,
    ...                  "GITHUB_RUN_ID": "7", "GITHUB_RUN_ATTEMPT": "2", "GITHUB_REF": "refs/heads/main"})["branch"]
    'main'
    """
    fields: dict[str, str | int] = {}
    for field, variable in (
        ("project", "GITHUB_REPOSITORY"),
        ("sha", "GITHUB_SHA"),
        ("run_id", "GITHUB_RUN_ID"),
        ("job", "GITHUB_JOB"),
        ("branch", "GITHUB_HEAD_REF"),
    ):
        if environment.get(variable):
            fields[field] = environment[variable]
    attempt = environment.get("GITHUB_RUN_ATTEMPT", "")
    if attempt.isdigit():
        fields["attempt"] = int(attempt)
    kind, _, name = environment.get("GITHUB_REF", "").removeprefix("refs/").partition("/")
    if kind == "heads" and "branch" not in fields:
        fields["branch"] = name
    if kind == "pull" and name.partition("/")[0].isdigit():
        fields["pull_request"] = int(name.partition("/")[0])
    return fields | _event_fields(event or {})


def read_event(environment: Mapping[str, str]) -> Mapping[str, Any] | None:
    """Return the event that started the workflow, from the file at GITHUB_EVENT_PATH; None when there is none."""
    path = environment.get("GITHUB_EVENT_PATH")
    if not path:
        return None
    try:
        event = json.loads(Path(path).read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InvalidValueError(
            "GITHUB_EVENT_PATH", path, str(error), "Unset it, or pass --sha and --project."
        ) from None
    return event if isinstance(event, dict) else None


def _event_fields(event: Mapping[str, Any]) -> dict[str, str | int]:
    """Return what the event knows better than the variables."""
    fields: dict[str, str | int | None] = {}
    pull_request, workflow_run, merge_group = (
        _mapping(event.get(name)) for name in ("pull_request", "workflow_run", "merge_group")
    )
    if pull_request:
        head = _mapping(pull_request.get("head"))
        fields = {"sha": head.get("sha"), "branch": head.get("ref"), "pull_request": pull_request.get("number")}
    elif workflow_run:
        run_id, pulls = workflow_run.get("id"), workflow_run.get("pull_requests")
        fields = {
            "sha": workflow_run.get("head_sha"),
            "branch": workflow_run.get("head_branch"),
            "run_id": None if run_id is None else str(run_id),
            "attempt": workflow_run.get("run_attempt"),
            "pull_request": _mapping(pulls[0]).get("number") if isinstance(pulls, list) and pulls else None,
        }
    elif merge_group:
        fields = {"sha": merge_group.get("head_sha")}
    return {name: value for name, value in fields.items() if value is not None}


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
