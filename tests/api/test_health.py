"""Whether the service can work, and its numbers."""

from __future__ import annotations

from fastapi import FastAPI
from sqlalchemy import text
from starlette.testclient import TestClient

from service.store.session import write
from tests.factories import add_experiment, exclude


def test_readiness_says_which_part_is_missing_and_the_way_out(client: TestClient):
    reply = client.get("/readyz")
    assert reply.status_code == 503
    body = reply.json()
    assert body["database"] == "ok"
    assert "LIKEWISE_BROKER_URL" in body["broker"]
    with write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = 'older'"))
    assert "likewise db upgrade" in client.get("/readyz").json()["database"]


def test_a_whole_service_is_ready(client: TestClient, monkeypatch):
    monkeypatch.setattr("service.api.health.ping", lambda: 0.001)
    reply = client.get("/readyz")
    assert (reply.status_code, reply.json()) == (200, {"is_ready": True, "database": "ok", "broker": "ok"})


def test_metrics_count_runs_blocks_and_experiments(client: TestClient):
    played = add_experiment(exclude(), fails=lambda _block, arm: arm == 0)
    played.play()
    add_experiment(exclude())
    text_ = client.get("/metrics").text
    assert 'likewise_experiments{state="concluded"} 1.0' in text_
    assert 'likewise_experiments{state="queued"} 1.0' in text_
    assert 'likewise_runs_recorded_total{origin="experiment",status="complete"} 8.0' in text_
    assert 'likewise_blocks{state="complete"}' in text_


def test_a_lost_database_is_a_sentence_and_not_a_crash(client: TestClient):
    with write() as session:
        session.execute(text("DROP TABLE findings"))
    reply = client.get("/v1/experiments")
    assert (reply.status_code, reply.json()["error"]) == (503, "database_unavailable")
    assert "likewise db upgrade" in reply.json()["way_out"]


def test_a_crash_answers_without_its_trace(app: FastAPI, monkeypatch):
    def crash(*_):
        raise ZeroDivisionError("secret")

    monkeypatch.setattr("service.api.projects.list_projects", crash)
    client = TestClient(app, base_url="http://127.0.0.1", client=("127.0.0.1", 1), raise_server_exceptions=False)
    reply = client.get("/v1/projects")
    assert (reply.status_code, reply.json()["error"]) == (500, "internal")
    assert "secret" not in reply.text
