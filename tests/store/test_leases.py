"""Leases: one worker a block, a fence against those that come back late, the database's clock."""

from __future__ import annotations

import threading
from datetime import UTC, datetime

import pytest
from sqlalchemy import update

from gpu_runner.protocol import SuiteDefinition
from service.domain import BlockState, Origin, Purpose
from service.experiments.model import BlockPlan
from service.store.catalog import add_project
from service.store.experiments import Request, create, get, insert_block
from service.store.leases import claim, expire, finish, holds, renew
from service.store.models import Block
from service.store.session import database_now, read, write
from tests.simulated import design, exclude

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def block_id(database) -> int:
    with write() as session:
        add_project(session, "acme/engine", "/nowhere", NOW)
        request = Request("ab", design(exclude("polluter")), SuiteDefinition("cuda", "ctest"), "/nowhere", Origin.CLI)
        experiment = create(session, request, NOW)
        return insert_block(session, experiment, BlockPlan(0, Purpose.COUNT, 1, (0, 1))).id


def test_only_one_worker_gets_a_block(block_id):
    barrier, leases = threading.Barrier(6), []

    def work(name: str) -> None:
        barrier.wait()
        with write() as session:
            leases.append(claim(session, block_id, name, 30.0))

    threads = [threading.Thread(target=work, args=(f"worker {i}",)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(lease is not None for lease in leases) == 1


def test_an_expired_lease_ends_the_attempt_as_lost_and_its_owner_can_write_nothing(block_id):
    with write() as session:
        lease = claim(session, block_id, "worker 1", 30.0)
    assert lease is not None
    with write() as session:
        assert renew(session, lease, 30.0, {"phase": "execute", "arm": 1})
        assert not expire(session)
        session.execute(update(Block).values(lease_until=database_now(session) - 1))
    with write() as session:
        assert [block.id for block in expire(session)] == [block_id]
    with read() as session:
        block = session.get_one(Block, block_id)
        assert block.state == BlockState.LOST.value
        assert block.attempts == [
            {"attempt": 1, "state": "lost", "lost_arm": 1, "reason": "the worker worker 1 stopped answering"}
        ]
    with write() as session:
        assert not holds(session, lease)
        assert not renew(session, lease, 30.0, None)
        assert not finish(session, lease, BlockState.COMPLETE)


def test_a_finished_block_is_not_claimed_again(block_id):
    with write() as session:
        lease = claim(session, block_id, "worker 1", 30.0)
        assert lease is not None and finish(session, lease, BlockState.COMPLETE)
    with write() as session:
        assert claim(session, block_id, "worker 2", 30.0) is None


def test_the_clock_is_the_database_s(database):
    with read() as session:
        assert abs(database_now(session) - datetime.now(UTC).timestamp()) < 60
    with read() as session, pytest.raises(Exception, match="no experiment 99"):
        get(session, 99)
