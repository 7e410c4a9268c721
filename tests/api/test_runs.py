"""Uploads: every readable file kept, repetitions harmless, what is wrong named."""

from __future__ import annotations

import base64
import json

import pytest
from starlette.testclient import TestClient

from service.config import settings

SHA = "0123456789abcdef0123456789abcdef01234567"
GOOD = b"""<testsuite name="unit" tests="2"><testcase classname="a" name="x" time="0.1"/>
<testcase classname="a" name="y" time="0.2"><failure message="1 != 2">trace</failure></testcase></testsuite>"""
BROKEN = b"this is not xml at all"


def metadata(**changes: object) -> dict[str, object]:
    return {"project": "acme/engine", "sha": SHA, "run_id": "4711", "job": "unit", "branch": "main", **changes}


def upload(client: TestClient, *files: tuple[str, bytes], **changes: object):
    parts = [("files", (name, content, "application/xml")) for name, content in files]
    return client.post("/v1/runs", data={"metadata": json.dumps(metadata(**changes))}, files=parts)


def test_an_upload_is_recorded_once_and_says_what_became_of_each_file(client: TestClient):
    reply = upload(client, ("unit.xml", GOOD))
    assert reply.status_code == 201, reply.text
    body = reply.json()
    assert (body["is_new"], body["results"], body["rejected"]) == (True, 2, 0)
    assert [(f["name"], f["status"], f["cases"], f["failing"]) for f in body["files"]] == [("unit.xml", "parsed", 2, 1)]
    again = upload(client, ("unit.xml", GOOD))
    assert again.status_code == 200
    assert (again.json()["is_new"], again.json()["run"]) == (False, body["run"])


def test_a_rejected_file_drops_no_other_and_is_not_read_as_green(client: TestClient):
    reply = upload(client, ("bad.xml", BROKEN), ("unit.xml", GOOD))
    assert reply.status_code == 201
    body = reply.json()
    assert (body["results"], body["rejected"], body["status"]) == (2, 1, "partial")
    bad = next(f for f in body["files"] if f["name"] == "bad.xml")
    assert bad["status"] == "rejected"
    assert bad["problems"]


def test_json_carries_the_same_upload(client: TestClient):
    body = {"metadata": metadata(), "files": [{"name": "unit.xml", "content": base64.b64encode(GOOD).decode()}]}
    reply = client.post("/v1/runs", json=body)
    assert reply.status_code == 201, reply.text
    assert upload(client, ("unit.xml", GOOD)).status_code == 200


def test_metadata_may_come_as_a_file_as_curl_sends_it(client: TestClient):
    parts = [("metadata", ("meta.json", json.dumps(metadata()), "application/json")), ("files", ("unit.xml", GOOD))]
    assert client.post("/v1/runs", files=parts).status_code == 201


@pytest.mark.parametrize(
    ("changes", "field"), [({"sha": "abc"}, "sha"), ({"attempt": "1"}, "attempt"), ({"colour": "red"}, "colour")]
)
def test_a_wrong_field_is_named_with_its_value(client: TestClient, changes: dict[str, object], field: str):
    reply = upload(client, ("unit.xml", GOOD), **changes)
    assert reply.status_code == 422
    assert field in reply.json()["message"]
    assert reply.json()["error"] == "invalid_value"


def test_an_upload_without_metadata_or_of_another_kind_is_refused(client: TestClient):
    assert "metadata" in client.post("/v1/runs", files=[("files", ("unit.xml", GOOD))]).json()["message"]
    other = client.post("/v1/runs", content=GOOD, headers={"content-type": "application/xml"})
    assert other.status_code == 422
    assert "application/xml" in other.json()["message"]
    assert other.json()["way_out"]


def test_a_broken_multipart_body_is_named(client: TestClient):
    reply = client.post("/v1/runs", content=b"--x\r\n", headers={"content-type": "multipart/form-data"})
    assert reply.status_code == 422
    assert reply.json()["error"] == "invalid_value"


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIKEWISE_UPLOAD_LIMIT_BYTES", "2000")
    settings.cache_clear()


@pytest.mark.usefixtures("small_limit")
def test_a_body_beyond_the_limit_is_refused_by_its_declared_length(client: TestClient):
    reply = upload(client, ("unit.xml", b"x" * 5000))
    assert reply.status_code == 413
    assert "2000" in reply.json()["message"]
    assert "LIKEWISE_UPLOAD_LIMIT_BYTES" in reply.json()["way_out"]


@pytest.mark.usefixtures("small_limit")
def test_a_body_without_a_length_is_refused_as_soon_as_it_is_too_long(client: TestClient):
    def chunks():
        for _ in range(10):
            yield b"x" * 1000

    reply = client.post("/v1/runs", content=chunks(), headers={"content-type": "application/json"})
    assert reply.status_code == 413


def test_runs_are_listed_newest_first_with_their_outcomes_a_page_at_a_time(client: TestClient):
    for attempt in (1, 2, 3):
        upload(client, ("unit.xml", GOOD), attempt=attempt)
    first = client.get("/v1/runs", params={"limit": 2}).json()
    assert [run["attempt"] for run in first["runs"]] == [3, 2]
    assert first["runs"][0]["outcomes"] == {"passed": 1, "failed": 1}
    second = client.get("/v1/runs", params={"limit": 2, "before": first["next"]}).json()
    assert [run["attempt"] for run in second["runs"]] == [1]
    assert second["next"] is None
    assert client.get("/v1/runs", params={"sha": "f" * 40}).json()["runs"] == []
    unknown = client.get("/v1/runs", params={"project": "no/such"})
    assert (unknown.status_code, unknown.json()["error"]) == (404, "not_found")
