"""The kind `ab` on simulated evidence: every verdict, the second seed's lessons, calibration over seeds."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from gpu_runner.protocol import ContextClass, ContextField, Expectation, Outcome, TestsMode, Treatment, TreatmentKind
from service.domain import BlockState, Purpose, Verdict
from service.experiments.ab import PREPARE_INDEX, block_order, next_step
from service.experiments.model import (
    AttemptEvidence,
    BlockEvidence,
    Conclude,
    Evidence,
    History,
    Plan,
    Reason,
    TestOutcome,
)
from tests.simulated import (
    CLEAN,
    MATCH,
    OTHER,
    TESTS,
    VICTIM,
    context,
    design,
    exclude,
    no_counters,
    prepared,
    rates,
    run_block,
    simulate,
)

ALONE = (Treatment(TreatmentKind.ALONE),)
TOGGLE = (
    Treatment(
        TreatmentKind.TOGGLE,
        toggle="chunk_o",
        environment={"CHUNK_O": "0"},
        expect=(Expectation("chunk_o.fired", ">0", "0"),),
    ),
)
BEFORE = (Treatment(TreatmentKind.INSERT_BEFORE, tests=("polluter",)),)
NONE = (Treatment(TreatmentKind.NONE),)


def moved(arm: int) -> dict[str, int]:
    return {"chunk_o.fired": 0 if arm else 48}


def still(arm: int) -> dict[str, int]:
    return {"chunk_o.fired": 48}


def prepared_evidence(given, **changes):
    arms = prepared(given)
    return tuple(replace(arm, **changes.get(f"arm{arm.arm}", {})) for arm in arms)


def with_blocks(given, draw, count: int, counters=no_counters) -> Evidence:
    """Evidence of `count` complete blocks, whatever the verdict would have been."""
    first = BlockEvidence(PREPARE_INDEX, Purpose.PREPARE, (0,), (AttemptEvidence(1, BlockState.COMPLETE),))
    arms = tuple(arm.index for arm in given.arms)
    from service.experiments.model import BlockPlan

    blocks = [
        run_block(given, BlockPlan(i, Purpose.COUNT, 1, block_order(given.seed, i, arms)), draw, counters)
        for i in range(count)
    ]
    return Evidence(prepared(given), (first, *blocks))


def test_a_polluter_whose_absence_cures_is_implicated_with_share_and_next_command():
    finding = simulate(design(exclude("polluter")), rates(0.65, 0.0))
    assert finding.verdict is Verdict.IMPLICATED
    assert "polluter makes gate fail" in finding.sentence
    assert finding.arms[0].share_estimate == 1.0
    assert "alone + before:polluter" in finding.next_command
    assert "not the sole cause" not in finding.sentence


def test_a_partial_cure_is_called_a_contribution():
    finding = simulate(design(exclude("polluter"), blocks_max=60), rates(0.9, 0.2))
    assert finding.verdict is Verdict.IMPLICATED
    assert "contributes, it is not the sole cause" in finding.sentence


def test_an_insert_that_makes_a_clean_victim_fail_is_worsened():
    finding = simulate(design(ALONE + BEFORE, control=ALONE), rates(0.0, 0.65))
    assert finding.verdict is Verdict.WORSENED
    assert finding.next_command.endswith("exclude:polluter")


def test_a_toggle_tried_with_both_arms_alone_reproduces_nothing_and_exonerates_nothing():
    finding = simulate(design(ALONE + TOGGLE, control=ALONE), rates(0.0, 0.0), moved)
    assert finding.verdict is Verdict.NOT_REPRODUCED
    assert "nothing is implicated and nothing exonerated" in finding.sentence
    assert finding.arms[0].rate_upper_bound is not None
    assert any("cannot exonerate anything" in line for line in finding.explanations)


def test_the_full_suite_against_alone_finds_that_it_depends_on_the_context_with_its_interval():
    finding = simulate(design(ALONE), rates(0.65, 0.0))
    assert finding.verdict is Verdict.IMPLICATED
    assert "the suite's context" in finding.sentence
    assert finding.arms[0].difference is not None and finding.arms[0].difference.lower > 0


def test_a_toggle_alone_against_the_full_suite_is_not_like_for_like_unless_both_are_declared():
    given = design(TOGGLE)
    arms = prepared_evidence(given, arm1={"tests": (VICTIM,)})
    step = next_step(given, Evidence(arms))
    assert isinstance(step, Conclude)
    assert step.finding.verdict is Verdict.NOT_LIKE_FOR_LIKE
    assert step.finding.executions == 0
    both = simulate(design(ALONE + TOGGLE), rates(0.65, 0.0), moved)
    assert both.verdict is Verdict.IMPLICATED


def test_builds_that_differ_under_a_toggle_are_not_like_for_like_before_block_1():
    given = design(TOGGLE)
    arms = prepared_evidence(given, arm1={"context": context(TOGGLE, software__artefacts="b2")})
    step = next_step(given, Evidence(arms))
    assert isinstance(step, Conclude)
    assert step.finding.verdict is Verdict.NOT_LIKE_FOR_LIKE
    assert step.finding.executions == 0
    assert "artefacts" in step.finding.sentence


BUILD = (Treatment(TreatmentKind.BUILD, environment={"EXTRA": "ON"}),)


def built(mode: TestsMode):
    given = design(BUILD, tests_mode=mode)
    extra = ("extra", *TESTS)
    fields = context(BUILD, software__artefacts="b2", software__build_environment_EXTRA="ON", suite__tests=list(extra))
    if mode is TestsMode.AS_BUILT:
        change = {"arm1": {"tests": extra, "listing": extra, "only_here": ("extra",), "context": fields}}
    else:
        fields = tuple(f for f in fields if f.name != "tests") + tuple(f for f in context(()) if f.name == "tests")
        change = {
            "arm1": {"listing": extra, "left_out": ("extra",), "context": fields},
            "arm0": {"left_out": ("extra",)},
        }
    change["arm1"]["context"] = tuple(
        replace(f, name="build_environment.EXTRA") if f.name == "build_environment_EXTRA" else f
        for f in change["arm1"]["context"]
    )
    return given, prepared_evidence(given, **change)


def test_a_build_as_built_names_the_extra_test():
    given, arms = built(TestsMode.AS_BUILT)
    step = next_step(given, Evidence(arms))
    assert isinstance(step, Plan)
    cancelled = next_step(given, Evidence(arms, cancelled="enough"))
    assert isinstance(cancelled, Conclude)
    assert any("extra" in note for note in cancelled.finding.arms[0].notes)


def test_a_build_intersected_leaves_the_extra_test_out_of_both_arms_and_names_it():
    given, arms = built(TestsMode.INTERSECT)
    assert isinstance(next_step(given, Evidence(arms)), Plan)
    cancelled = next_step(given, Evidence(arms, cancelled="enough"))
    assert isinstance(cancelled, Conclude)
    notes = [note for note in cancelled.finding.arms[0].notes if "extra" in note]
    assert [note.split(",")[0] for note in notes] == ["left out of all arms"]


def test_a_build_whose_tree_and_artefacts_are_equal_is_inert_at_no_execution():
    given = design(BUILD)
    step = next_step(given, Evidence(prepared(given)))
    assert isinstance(step, Conclude)
    assert step.finding.verdict is Verdict.TREATMENT_INERT
    assert step.finding.executions == 0


def test_a_toggle_that_moves_no_counter_is_inert_after_the_first_block():
    finding = simulate(design(TOGGLE), rates(0.65, 0.65), still)
    assert finding.verdict is Verdict.TREATMENT_INERT
    assert finding.executions == 2
    assert "48 in the control, 48 in the treated arm" in finding.sentence


def test_an_expectation_that_holds_without_moving_shows_nothing():
    steady = (Expectation("chunk_o.fired", ">0", "0"), Expectation("chunk_o.fallbacks", "0", "0"))
    toggle = (replace(TOGGLE[0], expect=steady),)
    counters = {"chunk_o.fired": 48, "chunk_o.fallbacks": 0}
    assert simulate(design(toggle), rates(0.65, 0.65), lambda arm: counters).verdict is Verdict.TREATMENT_INERT
    acted = simulate(design(toggle), rates(0.9, 0.9), lambda arm: counters | {"chunk_o.fired": 0 if arm else 48})
    assert acted.verdict is not Verdict.TREATMENT_INERT


def test_zero_on_both_sides_is_never_called():
    finding = simulate(design(TOGGLE), rates(0.65, 0.65), lambda arm: {"chunk_o.fired": 0})
    assert finding.verdict is Verdict.TREATMENT_INERT
    assert "never called" in finding.sentence


def test_a_toggle_that_was_shown_to_act_can_be_exonerated_and_an_unverified_one_cannot():
    verdicts = {simulate(design(TOGGLE, seed=s), rates(0.9, 0.9), moved).verdict for s in range(3)}
    assert Verdict.EXONERATED in verdicts
    for s in range(3):
        finding = simulate(design(TOGGLE, seed=s), rates(0.9, 0.9))
        assert finding.verdict is Verdict.INCONCLUSIVE
        assert finding.arms[0].reason is Reason.UNVERIFIED


def test_a_treatment_that_breaks_the_victim_in_another_way_is_never_implicated():
    for seed in range(20):
        finding = simulate(
            design(exclude("polluter"), seed=seed),
            lambda arm, rng: OTHER if arm else (MATCH if rng.random() < 0.65 else CLEAN),
        )
        assert finding.verdict is Verdict.INCONCLUSIVE
        assert finding.arms[0].reason is Reason.OTHER_OUTCOMES


@pytest.mark.parametrize(("p_control", "p_treated"), [(0.65, 0.65), (0.3, 0.3)])
def test_an_innocent_suspect_is_blamed_in_at_most_14_of_200_experiments(p_control, p_treated):
    verdicts = Counter(
        simulate(design(exclude("suspect"), seed=seed), rates(p_control, p_treated)).verdict for seed in range(200)
    )
    assert verdicts[Verdict.IMPLICATED] <= 14
    assert verdicts[Verdict.WORSENED] <= 14


def test_an_a_a_experiment_blames_nothing_in_at_most_14_of_200_experiments():
    verdicts = Counter(simulate(design(NONE, seed=seed), rates(0.65, 0.65)).verdict for seed in range(1000, 1200))
    assert verdicts[Verdict.IMPLICATED] <= 14
    assert verdicts[Verdict.WORSENED] <= 14


@pytest.mark.parametrize("p_treated", [0.0, 0.65])
def test_a_control_that_never_fails_exonerates_nothing(p_treated):
    verdicts = Counter(simulate(design(TOGGLE, seed=seed), rates(0.0, p_treated), moved).verdict for seed in range(200))
    assert verdicts[Verdict.EXONERATED] == 0


def test_the_next_step_is_the_same_however_often_and_in_whatever_order_blocks_finish():
    given = design(exclude("polluter"), look_ahead=3)
    full = with_blocks(given, rates(0.65, 0.0), 12)
    whole = next_step(given, full)
    assert isinstance(whole, Conclude)
    assert next_step(given, full) == whole
    late = full.blocks[2]
    pending = replace(late, attempts=(AttemptEvidence(1, BlockState.RUNNING),))
    waiting = replace(full, blocks=(*full.blocks[:2], pending, *full.blocks[3:]))
    step = next_step(given, waiting)
    assert isinstance(step, Plan), "later blocks do not count before an earlier one has finished"
    assert [block.index for block in step.blocks[1:]] == list(range(12))


def test_blocks_after_the_stop_are_kept_and_not_counted():
    given = design(exclude("polluter"), look_ahead=5)
    short = next_step(given, with_blocks(given, rates(1.0, 0.0), 6))
    longer = next_step(given, with_blocks(given, rates(1.0, 0.0), 9))
    assert isinstance(short, Conclude) and isinstance(longer, Conclude)
    assert longer.finding.arms[0].control == short.finding.arms[0].control
    assert longer.finding.stop_index == short.finding.stop_index


def lost(arm: int | None, attempt: int = 1) -> AttemptEvidence:
    return AttemptEvidence(attempt, BlockState.LOST, (), arm, "the runner was killed")


def test_a_lost_block_is_run_again_and_three_losses_drop_it():
    given = design(exclude("polluter"))
    full = with_blocks(given, rates(0.65, 0.0), 3)
    once = replace(full, blocks=(*full.blocks[:-1], replace(full.blocks[-1], attempts=(lost(1),))))
    step = next_step(given, once)
    assert isinstance(step, Plan)
    assert step.blocks[-1].index == 2 and step.blocks[-1].attempt == 2
    thrice = replace(
        full, blocks=(*full.blocks[:-1], replace(full.blocks[-1], attempts=(lost(1), lost(0, 2), lost(1, 3))))
    )
    step = next_step(given, thrice)
    assert isinstance(step, Plan)
    assert [block.index for block in step.blocks if block.index >= 0] == [0, 1, 2, 3]


def test_losses_that_fall_on_one_arm_are_not_like_for_like():
    given = design(exclude("polluter"))
    full = with_blocks(given, rates(0.65, 0.65), 7)
    blocks = [full.blocks[0]]
    for block in full.blocks[1:]:
        good = replace(block.attempts[0], attempt=2)
        blocks.append(replace(block, attempts=(lost(1), good)))
    step = next_step(given, replace(full, blocks=tuple(blocks)))
    assert isinstance(step, Conclude)
    assert step.finding.verdict is Verdict.NOT_LIKE_FOR_LIKE
    assert "lost executions" in step.finding.sentence


def drifted(attempt: AttemptEvidence, number: int) -> AttemptEvidence:
    def free(value: int) -> ContextField:
        return ContextField("pressure", "memory_available_bytes", ContextClass.STATE, value)

    executions = tuple(
        replace(execution, context=(*execution.context, free(100 if execution.position else 50)))
        for execution in attempt.executions
    )
    return replace(attempt, attempt=number, executions=executions)


def test_a_block_whose_memory_drifted_is_void_and_three_times_is_not_like_for_like():
    given = design(exclude("polluter"))
    full = with_blocks(given, rates(0.65, 0.0), 1)
    block = full.blocks[-1]
    once = replace(full, blocks=(full.blocks[0], replace(block, attempts=(drifted(block.attempts[0], 1),))))
    step = next_step(given, once)
    assert isinstance(step, Plan) and step.blocks[-1].attempt == 2
    attempts = tuple(drifted(block.attempts[0], n) for n in (1, 2, 3))
    step = next_step(given, replace(full, blocks=(full.blocks[0], replace(block, attempts=attempts))))
    assert isinstance(step, Conclude)
    assert step.finding.verdict is Verdict.NOT_LIKE_FOR_LIKE
    assert "memory_available_bytes" in step.finding.sentence


def test_a_field_that_nobody_declared_is_named():
    given = design(exclude("polluter"))
    full = with_blocks(given, rates(0.65, 0.0), 1)
    block = full.blocks[-1]
    changed = tuple(
        replace(e, context=(*e.context, ContextField("process", "ulimits", ContextClass.IDENTITY, e.arm)))
        for e in block.attempts[0].executions
    )
    evidence = replace(
        full, blocks=(full.blocks[0], replace(block, attempts=(replace(block.attempts[0], executions=changed),)))
    )
    step = next_step(given, evidence)
    assert isinstance(step, Conclude)
    assert step.finding.verdict is Verdict.NOT_LIKE_FOR_LIKE
    assert [(d.channel, d.name) for d in step.finding.arms[0].differences] == [("process", "ulimits")]


def test_a_cancelled_experiment_keeps_its_counts_and_its_reason():
    given = design(exclude("polluter"))
    evidence = replace(with_blocks(given, rates(0.65, 0.65), 3), cancelled="the box is needed")
    step = next_step(given, evidence)
    assert isinstance(step, Conclude)
    assert step.finding.verdict is Verdict.INCONCLUSIVE
    assert step.finding.arms[0].control.runs == 3
    assert "Cancelled: the box is needed" in step.finding.explanations


def test_an_arm_that_does_not_build_ends_with_its_error():
    given = design(exclude("polluter"))
    arms = prepared_evidence(given, arm1={"error": "cmake ended with code 1", "error_code": "build_failed"})
    step = next_step(given, Evidence(arms))
    assert isinstance(step, Conclude)
    assert step.finding.arms[0].reason is Reason.ARM_UNBUILDABLE
    assert "cmake ended with code 1" in step.finding.sentence


def test_the_signature_comes_from_the_control_before_a_treated_arm():
    other_way = TestOutcome(Outcome.FAILED, "failed:ValueError")

    def draw(arm: int, rng: np.random.Generator) -> TestOutcome:
        return other_way if arm else (MATCH if rng.random() < 0.65 else CLEAN)

    finding = simulate(design(exclude("polluter"), signature=None), draw)
    assert finding.signature is not None
    assert finding.signature.values == ("failed:AssertionError",)
    assert finding.verdict is Verdict.INCONCLUSIVE


def test_a_quiet_experiment_with_history_stops_early():
    finding = simulate(design(exclude("polluter"), history=History(13, 20)), rates(0.0, 0.0))
    assert finding.verdict is Verdict.NOT_REPRODUCED
    assert finding.blocks_counted == 6


def test_the_budget_ends_an_experiment_with_its_reason():
    finding = simulate(design(exclude("polluter"), budget_executions=6), rates(0.65, 0.65))
    assert finding.verdict is Verdict.INCONCLUSIVE
    assert finding.arms[0].reason is Reason.BUDGET
    assert finding.executions == 6


def test_probes_are_held_to_the_budget():
    finding = simulate(design(exclude("polluter"), budget_executions=3, signature=None), rates(0.0, 0.0))
    assert finding.arms[0].reason is Reason.BUDGET
    assert finding.executions <= 3


def test_an_arm_that_does_not_build_is_sent_to_suite_check():
    given = design(exclude("polluter"))
    arms = prepared_evidence(given, arm1={"error": "no test 'gat'", "error_code": "no_such_test"})
    step = next_step(given, Evidence(arms))
    assert isinstance(step, Conclude)
    assert step.finding.next_command == "likewise suite check --project acme/engine --suite cuda"


def test_several_arms_are_judged_each_at_its_share_of_alpha():
    given = design(exclude("polluter"), exclude("suspect"), blocks_max=40)
    finding = simulate(given, rates(0.9, 0.0, 0.9))
    by_arm = {arm.arm: arm.verdict for arm in finding.arms}
    assert by_arm[1] is Verdict.IMPLICATED
    assert by_arm[2] in (Verdict.EXONERATED, Verdict.INCONCLUSIVE)
    assert finding.verdict is Verdict.IMPLICATED


def test_the_order_in_a_block_is_random_recorded_and_balanced():
    orders = [block_order(7, index, (0, 1)) for index in range(400)]
    first = sum(order[0] == 0 for order in orders)
    assert orders == [block_order(7, index, (0, 1)) for index in range(400)]
    assert 150 < first < 250
