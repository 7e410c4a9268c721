"""What is shown of an experiment agrees with what decides it."""

from __future__ import annotations

import pytest

from gpu_runner.protocol import Progress, to_json
from service.domain import ExperimentState, Purpose, Verdict
from service.errors import NotFoundError
from service.experiments.model import Counts
from service.history.progress import AttemptStanding, CellState, ExperimentView, experiment_view
from service.store.session import read
from tests.factories import Played, add_experiment, exclude


def view_of(played: Played) -> ExperimentView:
    with read() as session:
        return experiment_view(session, played.id)


def only_control(_block: int, arm: int) -> bool:
    return arm == 0


def test_a_new_experiment_shows_its_arms_and_no_counts():
    view = view_of(add_experiment(exclude()))
    assert view.state is ExperimentState.QUEUED
    assert [arm.words for arm in view.arms] == ["the full serial suite", "without plan.warm_plan_cache"]
    assert view.attempts == ()
    assert (view.blocks_done, view.blocks_possible) == (0, 30)
    assert view.comparisons[0].difference is None


def test_counts_so_far_come_from_complete_blocks_only():
    played = add_experiment(exclude(), fails=only_control)
    for _ in range(4):
        played.step()
    played.step()
    view = view_of(played)
    assert view.finding is None
    assert view.blocks_done == len([a for a in view.attempts if a.standing is AttemptStanding.COUNTED])
    done = view.blocks_done
    assert view.comparisons[0].control == Counts(match=done)
    assert view.comparisons[0].treated == Counts(clean=done)
    assert view.block_s == pytest.approx(14.0)


def test_a_running_block_shows_the_arm_the_test_and_what_is_stored_already():
    played = add_experiment(exclude(), fails=only_control)
    block_id, (first, second) = played.until_counted()
    lease = played.claim(block_id, to_json(Progress("execute", second, 1, "sampler.greedy", 3, 6)))
    before = view_of(played)
    played.store(block_id, lease, executions=1)
    view = view_of(played)
    running = view.running[0]
    assert (running.arm, running.test, running.done, running.total) == (second, "sampler.greedy", 3, 6)
    assert running.host == "box-1"
    last = view.attempts[-1]
    assert last.standing is AttemptStanding.RUNNING
    assert {cell.arm: cell.state for cell in last.cells} == {first: CellState.DONE, second: CellState.RUNNING}
    assert view.executions == before.executions + 1
    assert view.mark != before.mark


def test_a_lost_attempt_stays_in_the_strip_beside_its_repetition():
    played = add_experiment(exclude(), fails=only_control)
    block_id, _ = played.until_counted()
    played.lose(block_id, reason="the host rebooted")
    finding = played.play()
    view = view_of(played)
    first = [a for a in view.attempts if a.index == 0 and a.purpose is Purpose.COUNT]
    assert [(a.attempt, a.standing, a.reason) for a in first] == [
        (1, AttemptStanding.VOID, "the host rebooted"),
        (2, AttemptStanding.COUNTED, None),
    ]
    assert {cell.state for cell in first[0].cells} == {CellState.VOID}
    assert finding is not None
    assert view.voids == 1


def test_the_finding_fixes_counts_and_stop_and_later_blocks_are_shown_only():
    played = add_experiment(exclude(), fails=only_control, look_ahead=3)
    finding = played.play()
    view = view_of(played)
    assert finding is not None
    assert finding.verdict is Verdict.IMPLICATED
    assert view.state is ExperimentState.CONCLUDED
    assert view.blocks_possible == 0
    assert view.comparisons[0].control == finding.arms[0].control
    after = [a for a in view.attempts if a.standing is AttemptStanding.AFTER_STOP]
    assert {a.index for a in after} == {a.index for a in view.attempts if a.index > finding.stop_index}
    assert view.comparisons[0].difference == finding.arms[0].difference


def test_probes_are_shown_and_not_counted():
    played = add_experiment(exclude(), fails=only_control, has_probes=True)
    assert view_of(played).signature is None
    assert played.play() is not None
    view = view_of(played)
    assert view.signature is not None
    assert view.signature.source == "the control's first failure in an uncounted probe"
    probes = [a for a in view.attempts if a.purpose is Purpose.PROBE]
    assert [a.standing for a in probes] == [AttemptStanding.UNCOUNTED]
    assert view.blocks_done == view.comparisons[0].control.runs == len(view.attempts) - 1


def test_an_unknown_experiment_is_named():
    with read() as session, pytest.raises(NotFoundError, match="experiment 99"):
        experiment_view(session, 99)
