"""The stream of an experiment: progress when something changes, one end, then silence."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx2
import pytest
from starlette.testclient import TestClient

from gpu_runner.protocol import Progress, to_json
from service.api import events
from tests.factories import add_experiment, exclude
from tests.serving import serve


def only_control(_block: int, arm: int) -> bool:
    return arm == 0


def read_events(lines: Iterator[str]) -> Iterator[tuple[str, dict[str, object]]]:
    name = ""
    for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


def test_an_ended_experiment_gives_its_end_and_closes(client: TestClient):
    played = add_experiment(exclude(), fails=only_control)
    finding = played.play()
    reply = client.get(f"/v1/experiments/{played.id}/events")
    assert reply.headers["content-type"].startswith("text/event-stream")
    ((name, data),) = read_events(iter(reply.text.splitlines()))
    assert name == "end"
    assert (data["verdict"], data["sentence"]) == (finding.verdict.value, finding.sentence)


def test_a_running_experiment_is_followed_to_its_end(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(events, "POLL_S", 0.05)
    played = add_experiment(exclude(), fails=only_control)
    with serve() as address, httpx2.stream("GET", f"{address}/v1/experiments/{played.id}/events", timeout=60) as reply:
        stream = read_events(reply.iter_lines())
        name, data = next(stream)
        assert (name, data["state"], data["blocks_done"]) == ("progress", "queued", 0)
        block_id, arms = played.until_counted()
        lease = played.claim(block_id, to_json(Progress("execute", arms[0], 0, "plan.cold_start", 1, 6)))
        seen = next(data["running"][0] for _, data in stream if data["running"] and data["running"][0]["test"])
        assert (seen["test"], seen["done"], seen["total"]) == ("plan.cold_start", 1, 6)
        played.finish(block_id, lease)
        done = next(data for _, data in stream if data["blocks_done"] == 1)
        assert done["comparisons"][0]["control"] == {"match": 1, "clean": 0, "other": 0}
        finding = played.play()
        rest = list(stream)
    assert rest[-1][0] == "end"
    assert rest[-1][1]["verdict"] == finding.verdict.value
