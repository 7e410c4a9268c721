"""The workers' own functions called in this process: no broker, no web, the real runner."""

from __future__ import annotations

import json

import pytest
from sqlalchemy import select

from service.cli import main
from service.domain import BlockState, ExperimentState
from service.store.evidence import latest_finding
from service.store.models import Block, Experiment
from service.store.session import read
from workers.analyse import analyse
from workers.execute import execute


def run_to_the_end(number: int):
    """Returns the finding of an experiment, its blocks run one after another here."""
    for _ in range(200):
        analyse(number)
        with read() as session:
            state = session.get_one(Experiment, number).state
            if state == ExperimentState.CONCLUDED.value:
                return latest_finding(session, number)
            pending = select(Block.id).where(Block.experiment_id == number, Block.state == BlockState.PENDING.value)
            waiting = session.scalars(pending.order_by(Block.id)).all()
        for block_id in waiting:
            execute(block_id)
    raise AssertionError("the experiment does not end")


def enqueue(capsys: pytest.CaptureFixture[str], *arguments: str) -> int:
    """Returns the number of an experiment asked for on the command line."""
    capsys.readouterr()
    assert main(["enqueue", "ab", "--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)["experiment"]
