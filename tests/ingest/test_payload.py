"""The metadata of a run: strict at the door, and what GitHub Actions says of itself."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from service.errors import InvalidValueError
from service.ingest.github_actions import github_metadata, read_event
from service.ingest.payload import Conclusion, RunMetadata, RunPayload, UploadedFile, metadata_of

SHA = "0123456789abcdef0123456789ABCDEF01234567"
LEAST = {"project": "o/n", "sha": SHA, "run_id": "7"}


def test_a_json_body_and_a_multipart_request_say_the_same() -> None:
    content = b"\xff\xfe<testsuite/>\n?>" * 3
    metadata = LEAST | {
        "parents": ["a" * 40], "branch": "main", "attempt": 2, "job": "test", "variant": "py3.13", "suite": "cuda",
        "pull_request": 5, "conclusion": "failure", "exit_code": 1, "started_at": "2026-01-31T12:00:00+01:00",
    }  # fmt: skip
    encoded = base64.b64encode(content).decode()
    body = json.dumps({"metadata": metadata, "files": [{"name": "a.xml", "content": encoded}]})
    payload = RunPayload.from_json(body)
    assert payload == RunPayload.of(json.dumps(metadata), [("a.xml", content)])
    assert payload.files[0].content == content
    assert payload.metadata.sha == SHA.lower()
    assert payload.metadata.conclusion is Conclusion.FAILURE
    assert RunPayload.from_json(payload.model_dump_json()) == payload


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"sha": "abc"}, "sha"),
        ({"sha": None}, "sha"),
        ({"parents": ["abc"]}, "parents.0"),
        ({"project": "no-slash"}, "project"),
        ({"project": "o/n; rm"}, "project"),
        ({"run_id": ""}, "run_id"),
        ({"run_id": 7}, "run_id"),
        ({"attempt": 0}, "attempt"),
        ({"attempt": "2"}, "attempt"),
        ({"attempt": True}, "attempt"),
        ({"pull_request": 0}, "pull_request"),
        ({"conclusion": "green"}, "conclusion"),
        ({"started_at": "2026-01-31T12:00:00"}, "started_at"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_wrong_field_is_refused_by_name(change: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        RunPayload.of(json.dumps(LEAST | change), [])
    assert caught.value.values["field"] == field


@pytest.mark.parametrize("missing", ["project", "sha", "run_id"])
def test_what_identifies_a_run_is_needed(missing: str) -> None:
    with pytest.raises(InvalidValueError, match=missing):
        RunPayload.of(json.dumps({name: value for name, value in LEAST.items() if name != missing}), [])
    with pytest.raises(InvalidValueError):
        RunPayload.of("not json", [])
    with pytest.raises(InvalidValueError, match="files"):
        RunPayload.from_json(json.dumps({"metadata": LEAST, "files": [{"name": "a"}]}))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, None),
        ({"exit_code": 0}, False),
        ({"exit_code": 1}, True),
        ({"conclusion": Conclusion.SUCCESS}, False),
        ({"conclusion": Conclusion.CANCELLED}, True),
        ({"conclusion": Conclusion.SUCCESS, "exit_code": 3}, True),
        ({"conclusion": Conclusion.FAILURE, "exit_code": 0}, True),
    ],
)
def test_whether_the_job_failed(given: dict[str, Any], expected: bool | None) -> None:
    assert metadata_of(**(LEAST | given)).has_failed is expected


PUSH = {
    "GITHUB_ACTIONS": "true",
    "GITHUB_REPOSITORY": "o/n",
    "GITHUB_SHA": "b" * 40,
    "GITHUB_RUN_ID": "123",
    "GITHUB_RUN_ATTEMPT": "3",
    "GITHUB_JOB": "unit",
    "GITHUB_REF": "refs/heads/topic/x",
}


def test_github_actions_on_a_push() -> None:
    fields = github_metadata(PUSH, {"ref": "refs/heads/topic/x", "after": "b" * 40})
    assert metadata_of(**fields) == RunMetadata(
        project="o/n", sha="b" * 40, branch="topic/x", run_id="123", attempt=3, job="unit"
    )
    assert "branch" not in github_metadata(PUSH | {"GITHUB_REF": "refs/tags/v1"})
    assert github_metadata({}) == {}


def test_github_actions_on_a_pull_request_records_its_head_not_the_merge() -> None:
    environment = PUSH | {"GITHUB_REF": "refs/pull/42/merge", "GITHUB_HEAD_REF": "feature"}
    assert github_metadata(environment)["pull_request"] == 42
    event = {"pull_request": {"number": 42, "head": {"sha": "c" * 40, "ref": "feature"}}}
    fields = github_metadata(environment, event)
    assert (fields["sha"], fields["branch"], fields["pull_request"]) == ("c" * 40, "feature", 42)


def test_github_actions_after_another_workflow_records_that_one() -> None:
    event = {
        "workflow_run": {
            "id": 9,
            "run_attempt": 2,
            "head_sha": "d" * 40,
            "head_branch": "f",
            "pull_requests": [{"number": 8}],
        }
    }
    fields = github_metadata(PUSH, event)
    assert fields == {
        "project": "o/n", "sha": "d" * 40, "run_id": "9", "attempt": 2, "job": "unit", "branch": "f", "pull_request": 8,
    }  # fmt: skip


def test_the_event_file_is_read_and_a_broken_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "event.json"
    assert read_event({}) is None
    assert read_event({"GITHUB_EVENT_PATH": str(path)}) is None
    path.write_text('{"merge_group": {"head_sha": "' + "e" * 40 + '"}}')
    event = read_event({"GITHUB_EVENT_PATH": str(path)})
    assert github_metadata(PUSH, event)["sha"] == "e" * 40
    path.write_text("{")
    with pytest.raises(InvalidValueError, match="GITHUB_EVENT_PATH"):
        read_event({"GITHUB_EVENT_PATH": str(path)})


def test_real_pull_request_payloads_give_valid_metadata() -> None:
    folder = Path(__file__).parents[3] / "shared" / "real" / "webhooks" / "pull_request"
    if not folder.is_dir():
        pytest.skip(f"the real payloads are not at {folder}")
    paths = sorted(folder.glob("*.json"))
    assert paths
    for path in paths:
        event = json.loads(path.read_text(encoding="utf-8"))
        metadata = metadata_of(**github_metadata(PUSH, event))
        assert metadata.sha == event["pull_request"]["head"]["sha"], path.name
        assert metadata.pull_request == event["pull_request"]["number"], path.name


def test_a_file_needs_a_name() -> None:
    with pytest.raises(ValueError, match="name"):
        UploadedFile(name="", content=b"")
