"""Asking for an experiment, looking at it, ending it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from service.domain import Verdict
from tests.factories import VICTIM, add_experiment, exclude

TOML = """
[suites.unit]
framework = "ctest"
test_dir = "build"
[suites.unit.toggles.slow]
off = { SLOW = "0" }
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A git repository with a suite."""
    root = tmp_path / "source"
    root.mkdir()
    (root / "likewise.toml").write_text(TOML)
    git = ["git", "-C", str(root), "-c", "user.name=t", "-c", "user.email=t@t"]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "one"]):
        subprocess.run([*git, *arguments], check=True, capture_output=True)
    return root


def order(**changes: object) -> dict[str, object]:
    return {"victim": VICTIM, "treat": ["exclude:plan.warm"], "project": "acme/engine", **changes}


def only_control(_block: int, arm: int) -> bool:
    return arm == 0


def test_an_order_becomes_an_experiment_even_while_the_broker_is_away(client: TestClient, source: Path):
    client.post("/v1/projects", json={"name": "acme/engine", "source": str(source)})
    reply = client.post("/v1/experiments", json=order(seed=11, blocks=20))
    assert reply.status_code == 201, reply.text
    body = reply.json()
    assert body["is_announced"] is False
    assert "messages are kept" in body["note"]
    assert body["page"].endswith(f"/experiments/{body['id']}")
    shown = client.get(reply.headers["location"]).json()
    assert (shown["state"], shown["design"]["seed"], shown["blocks_max"]) == ("queued", 11, 20)
    assert [arm["text"] for arm in shown["arms"]] == ["", "exclude:plan.warm"]
    assert len(shown["arms"][0]["commit"]) == 40


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"treat": ["exclud:x"]}, "exclud:x"),
        ({"treat": ["toggle:fast"]}, "fast"),
        ({"treat": []}, "treat"),
        ({"blocks": 101}, "101"),
        ({"blocks": True}, "blocks"),
        ({"commit": "--upload-pack=touch /tmp/x"}, "commit"),
        ({"project": "no/such"}, "no/such"),
        ({"suite": "gpu"}, "gpu"),
        ({"colour": "red"}, "colour"),
        ({"history_failures": 3}, "history"),
    ],
)
def test_a_wrong_order_is_refused_with_its_value_and_a_way_out(
    client: TestClient, source: Path, changes: dict[str, object], said: str
):
    client.post("/v1/projects", json={"name": "acme/engine", "source": str(source)})
    reply = client.post("/v1/experiments", json=order(**changes))
    assert reply.status_code in (404, 422), reply.text
    assert said in reply.json()["message"]
    assert reply.json()["way_out"]
    assert client.get("/v1/experiments").json()["experiments"] == []


def test_a_body_that_is_no_json_is_called_that(client: TestClient):
    reply = client.post("/v1/experiments", content="{", headers={"content-type": "application/json"})
    assert reply.status_code == 422
    assert reply.json()["message"].startswith("body is no JSON: ")


def test_an_experiment_shows_design_arms_blocks_counts_and_finding(client: TestClient):
    played = add_experiment(exclude(), fails=only_control)
    finding = played.play()
    shown = client.get(f"/v1/experiments/{played.id}").json()
    assert shown["finding"]["verdict"] == Verdict.IMPLICATED.value
    assert shown["comparisons"][0]["control"]["match"] == finding.arms[0].control.match
    assert {"design", "arms", "attempts", "running", "blocks_done", "stop_index", "mark"} <= set(shown)
    listed = client.get("/v1/experiments", params={"verdict": "IMPLICATED"}).json()["experiments"]
    assert [(row["id"], row["sentence"]) for row in listed] == [(played.id, finding.sentence)]
    assert client.get("/v1/experiments", params={"verdict": "WORSENED"}).json()["experiments"] == []
    assert client.get("/v1/experiments", params={"verdict": "GUILTY"}).status_code == 422


def test_contexts_tell_declared_from_equal_fields(client: TestClient):
    played = add_experiment(exclude(), fails=only_control)
    played.play()
    rows = client.get(f"/v1/experiments/{played.id}/contexts").json()["rows"]
    standing = {(row["channel"], row["name"]): row["standing"] for row in rows}
    assert standing["suite", "tests"] == "declared"
    assert standing["host", "cpu_model"] == "equal"
    assert standing["pressure", "wall_s"] == "observed"


def test_a_cancellation_needs_a_reason_and_happens_once(client: TestClient):
    played = add_experiment(exclude())
    path = f"/v1/experiments/{played.id}/cancel"
    assert client.post(path, json={"reason": "  "}).status_code == 422
    assert client.post(path, json={"reason": "wrong suite"}).status_code == 202
    assert played.step().verdict is Verdict.INCONCLUSIVE
    late = client.post(path, json={"reason": "again"})
    assert (late.status_code, late.json()["error"]) == (409, "conflict")


@pytest.mark.parametrize("path", ["/v1/experiments/99", "/v1/experiments/99/events", "/v1/experiments/99/contexts"])
def test_an_unknown_experiment_is_named(client: TestClient, path: str):
    reply = client.get(path)
    assert (reply.status_code, reply.json()["error"]) == (404, "not_found")
    assert "99" in reply.json()["message"]


def test_unknown_calls_and_methods_answer_in_the_same_form(client: TestClient):
    for reply in (client.get("/v1/nothing"), client.delete("/v1/runs"), client.get("/v1/experiments/x")):
        assert set(reply.json()) >= {"error", "message", "way_out"}
        assert reply.status_code in (404, 405, 422)
