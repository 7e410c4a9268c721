"""Who may call, from where, with which token; and what a foreign web page may not do."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from starlette.testclient import TestClient

from service.config import settings
from service.store.session import write
from service.store.tokens import Scope, create_token


def token(*scopes: Scope) -> dict[str, str]:
    with write() as session:
        text = create_token(session, "ci", scopes, datetime.now(UTC))
    return {"authorization": f"Bearer {text}"}


def test_programs_on_this_machine_need_no_token(client: TestClient):
    assert client.get("/v1/projects").status_code == 200
    assert client.post("/v1/projects", json={"name": "acme/engine"}).status_code == 201


def test_another_machine_needs_one_and_is_told_how(far_client: TestClient):
    reply = far_client.get("/v1/projects")
    assert reply.status_code == 401
    assert reply.headers["www-authenticate"] == "Bearer"
    assert "likewise token create NAME --scope read" in reply.json()["way_out"]
    assert far_client.get("/v1/projects", headers=token(Scope.READ)).status_code == 200


def test_the_setting_asks_for_tokens_on_this_machine_too(client: TestClient, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LIKEWISE_REQUIRE_TOKENS", "true")
    settings.cache_clear()
    assert client.post("/v1/projects", json={"name": "acme/engine"}).status_code == 401
    assert client.get("/v1/projects", headers=token(Scope.ADMIN)).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "scope"),
    [
        ("POST", "/v1/runs", "ingest"),
        ("GET", "/v1/runs", "read"),
        ("POST", "/v1/projects", "admin"),
        ("POST", "/v1/experiments", "enqueue"),
        ("GET", "/v1/experiments", "read"),
        ("GET", "/v1/experiments/1", "read"),
        ("POST", "/v1/experiments/1/cancel", "enqueue"),
        ("GET", "/v1/experiments/1/events", "read"),
        ("GET", "/v1/experiments/1/contexts", "read"),
    ],
)
def test_every_call_asks_for_its_scope(far_client: TestClient, method: str, path: str, scope: str):
    assert far_client.request(method, path).status_code == 401
    others = [other for other in Scope if other.value not in (scope, "admin")]
    reply = far_client.request(method, path, headers=token(*others))
    assert (reply.status_code, reply.json()["error"]) == (403, "forbidden")
    assert scope in reply.json()["way_out"]


def test_a_token_that_nobody_made_is_refused_even_on_this_machine(client: TestClient):
    assert client.get("/v1/projects", headers={"authorization": "Bearer lkw_wrong"}).status_code == 401


def test_a_browser_on_another_machine_is_asked_for_the_token_as_a_password(far_client: TestClient):
    reply = far_client.get("/")
    assert reply.status_code == 401
    assert reply.headers["www-authenticate"].startswith("Basic")
    text = token(Scope.READ)["authorization"].removeprefix("Bearer ")
    assert far_client.get("/", auth=("", text)).status_code == 200
    assert far_client.post("/v1/projects", json={"name": "a/b"}, auth=("", text)).status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"host": "evil.example:8321"},
        {"sec-fetch-site": "cross-site"},
    ],
)
def test_a_foreign_page_cannot_make_the_browser_on_this_machine_write(client: TestClient, headers: dict[str, str]):
    reply = client.post("/v1/projects", json={"name": "acme/engine"}, headers=headers)
    assert (reply.status_code, reply.json()["error"]) == (403, "cross_site")
    assert client.get("/v1/projects").json() == {"projects": []}


def test_a_name_bent_to_this_machine_reads_nothing(client: TestClient):
    assert client.get("/v1/projects", headers={"host": "evil.example"}).status_code == 403


def test_the_own_pages_may_call(client: TestClient):
    headers = {"origin": "http://127.0.0.1:8321", "sec-fetch-site": "same-origin"}
    assert client.post("/v1/projects", json={"name": "acme/engine"}, headers=headers).status_code == 201


def test_health_needs_no_token(far_client: TestClient):
    assert far_client.get("/healthz").json() == {"status": "ok"}
