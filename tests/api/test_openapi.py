"""The API holds what its own description says: no crash, no undescribed status, whatever is sent."""

from __future__ import annotations

import pytest
from fastapi import FastAPI
from hypothesis import HealthCheck, Phase, given, settings
from starlette.testclient import TestClient

from service.store.session import write
from service.store.tokens import Scope, create_token
from tests.factories import NOW, add_experiment, exclude
from tests.serving import serve

GENERATED = settings(
    max_examples=6,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.slow
def test_no_request_makes_the_service_crash(app: FastAPI):
    schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
    add_experiment(exclude())
    with write() as session:
        token = create_token(session, "all", [Scope.ADMIN], NOW)
    schema = schemathesis.openapi.from_dict(app.openapi())
    statuses: dict[str, set[int]] = {}
    with serve() as address:
        for found in schema.exclude(path_regex="events|readyz").get_all_operations():
            operation = found.ok()

            @GENERATED
            @given(case=operation.as_strategy())
            def send(case):
                reply = case.call(base_url=address, headers={"Authorization": f"Bearer {token}"})
                assert reply.status_code < 500, case.as_curl_command()
                statuses.setdefault(case.operation.label, set()).add(reply.status_code)

            send()
    assert len(statuses) == 11
    assert not {401, 403} & set().union(*statuses.values())
    assert {200, 201} & statuses["POST /v1/runs"]


def test_every_call_is_described(app: FastAPI, client: TestClient):
    described = client.get("/v1/openapi.json").json()
    assert set(described["paths"]) == {
        "/v1/runs", "/v1/projects", "/v1/experiments", "/v1/experiments/{experiment_id}",
        "/v1/experiments/{experiment_id}/contexts", "/v1/experiments/{experiment_id}/cancel",
        "/v1/experiments/{experiment_id}/events", "/healthz", "/readyz", "/metrics",
    }  # fmt: skip
    parts = described["components"]["schemas"]
    assert {"RunMetadata", "RunPayload", "Order", "ExperimentView", "Problem"} <= set(parts)
