"""The two demo suites through the real command: every outcome told apart, and the chances that they promise."""

import hashlib

import pytest

from gpu_runner.protocol import TestsMode, Treatment, TreatmentKind
from tests.runner.harness import fields

POISON = {"LIKEWISE_DEMO_EXTRA": "POISON"}
CTEST_VICTIM = "spec_decode_gate"
PYTEST_VICTIM = "tests/test_spec_decode.py::test_spec_decode_gate"
PYTEST_POLLUTER = "tests/test_plan_cache.py::test_warm_plan_cache"


def draw(seed, name):
    """The suites' own rule: six hexadecimal digits of a hash, per thousand."""
    return int(hashlib.sha256(f"{seed}:{name}".encode()).hexdigest()[:6], 16) * 1000 // 16777216


def seed_where(**wanted):
    """Return the first seed whose draws are below (True) or not below (False) the suites' limits."""
    limits = {"spec_decode_gate": 650, "page_allocator_race": 100, "driver_unload": 500}
    return next(
        seed
        for seed in range(10_000)
        if all((draw(seed, name) < limits[name]) is is_so for name, is_so in wanted.items())
    )


FAILS = seed_where(spec_decode_gate=True, page_allocator_race=True, driver_unload=True)
PASSES = seed_where(spec_decode_gate=False, page_allocator_race=False, driver_unload=False)


def test_the_chances_of_the_seeds_are_those_that_the_suites_promise():
    # 20,000 draws: four standard errors are 0.0135 and 0.0085.
    seeds = range(20_000)
    assert abs(sum(draw(seed, "spec_decode_gate") < 650 for seed in seeds) / 20_000 - 0.65) < 0.0135
    assert abs(sum(draw(seed, "page_allocator_race") < 100 for seed in seeds) / 20_000 - 0.1) < 0.0085


def arms_of(runner):
    runner.arm(name="control")
    runner.arm(Treatment(TreatmentKind.EXCLUDE, tests=("warm_plan_cache",)))
    runner.arm(Treatment(TreatmentKind.ALONE))
    runner.arm(Treatment(TreatmentKind.ALONE), Treatment(TreatmentKind.INSERT_BEFORE, tests=("warm_plan_cache",)))
    runner.arm(Treatment(TreatmentKind.INSERT_BEFORE, tests=("checkpoint_shard_repair",)))
    runner.arm(Treatment(TreatmentKind.TOGGLE, toggle="chunk_o", environment={"LIKEWISE_DEMO_CHUNK_O": "0"}))


def test_ctest_demo_tells_every_outcome_apart_and_the_treatments_act(demo_of_ctest):
    arms_of(demo_of_ctest)
    prepared = demo_of_ctest.prepare(CTEST_VICTIM).of("prepared")
    assert [len(arm.tests) for arm in prepared] == [24, 23, 1, 2, 24, 24]
    said = demo_of_ctest.block(
        *((arm.arm, arm.tests, FAILS) for arm in prepared), (0, prepared[0].tests, PASSES), victim=CTEST_VICTIM
    )
    assert said.is_done
    reports = said.of("execution")
    control = {result.test: result for result in reports[0].results}
    assert {test: result.outcome.value for test, result in control.items() if result.outcome != "passed"} == {
        "driver_unload_abort": "crashed",
        "multi_gpu_allreduce": "skipped",
        "nccl_teardown": "timed_out",
        "page_allocator_race": "failed",
        "spec_decode_gate": "failed",
    }
    assert [result.position for result in reports[0].results] == list(range(24))
    assert control[CTEST_VICTIM].message == "CHECK(got_prefix == want_prod) failed: 4 == 7"
    assert control["chunk_o_prefill"].counters == {"chunk_o.triton.fired": 48, "chunk_o.hand.fired": 0}
    assert [(item.name, item.value, item.test) for item in reports[0].measurements] == [
        ("chunk_o.max_abs_error", 0.0078125, "chunk_o_prefill")
    ]
    victim = [next(r for r in report.results if r.test == CTEST_VICTIM) for report in reports]
    assert [result.outcome.value for result in victim] == [
        "failed",
        "passed",
        "passed",
        "failed",
        "failed",
        "failed",
        "passed",
    ]
    assert victim[4].message == "cannot open the draft model: header of shard 2 is truncated"
    assert reports[5].counters["chunk_o.triton.fired"] == 0
    assert reports[5].counters["chunk_o.hand.fired"] == 48


def test_ctest_demo_registers_one_more_test_under_the_build_flag(demo_of_ctest):
    demo_of_ctest.arm()
    built = demo_of_ctest.arm(Treatment(TreatmentKind.BUILD, environment=POISON))
    extra = "gdn_aot_concurrent_first_load"
    left_out = demo_of_ctest.prepare(CTEST_VICTIM).of("prepared")
    assert [(arm.left_out, extra in arm.tests) for arm in left_out] == [((extra,), False)] * 2
    kept = demo_of_ctest.prepare(CTEST_VICTIM, TestsMode.AS_BUILT).of("prepared")
    assert [(arm.only_here, extra in arm.tests) for arm in kept] == [((), False), ((extra,), True)]
    told = [fields(arm, "software") for arm in kept]
    assert told[0]["tree_hash"] == told[1]["tree_hash"]
    assert told[0]["artefacts"] != told[1]["artefacts"]
    assert [item["build_environment.LIKEWISE_DEMO_EXTRA"] for item in told] == [None, "POISON"]
    # Its process leaves the same plan behind as the polluter.
    report = demo_of_ctest.block((built, (extra, CTEST_VICTIM), FAILS)).report
    assert report.results[1].outcome == "failed"


def test_pytest_demo_tells_every_outcome_apart_and_loses_what_follows_a_crash(demo_of_pytest):
    demo_of_pytest.arm()
    demo_of_pytest.arm(Treatment(TreatmentKind.EXCLUDE, tests=(PYTEST_POLLUTER,)))
    prepared = demo_of_pytest.prepare(PYTEST_VICTIM).of("prepared")
    said = demo_of_pytest.block(
        (0, prepared[0].tests, FAILS),
        (1, prepared[1].tests, FAILS),
        (0, prepared[0].tests, PASSES),
        victim=PYTEST_VICTIM,
    )
    crashed, without, hung = said.of("execution")

    def others(report):
        return {r.test.split("::")[1]: r.outcome.value for r in report.results if r.outcome != "passed"}

    always = {"test_multi_gpu_allreduce": "skipped", "test_bf16_is_associative": "expected_failure"}
    after_crash = {"test_driver_unload": "crashed", "test_stop_strings": "not_run", "test_nccl_teardown": "not_run"}
    flaky = {"test_page_allocator_race": "failed"}
    assert others(crashed) == {**always, **after_crash, **flaky, "test_spec_decode_gate": "failed"}
    assert others(without) == {**always, **after_crash, **flaky}
    assert others(hung) == {**always, "test_nccl_teardown": "timed_out"}
    assert crashed.exit_code == -6
    assert fields(crashed, "files")["left_behind"] == []
    victim = next(result for result in crashed.results if result.test == PYTEST_VICTIM)
    assert (victim.failure_type, victim.message) == ("AssertionError", "assert 4 == 7")
    assert crashed.counters == {
        "chunk_o.triton.fired": 48,
        "chunk_o.hand.fired": 0,
        "plan_cache.written": 1,
        "packed_decode.fired": 30,
    }
    assert "plan_cache.written" not in without.counters


def test_pytest_demo_has_a_flag_a_second_polluter_and_another_way_to_break(demo_of_pytest):
    built = demo_of_pytest.arm(Treatment(TreatmentKind.BUILD, environment=POISON))
    extra = "tests/test_gdn_first_load.py::test_gdn_aot_concurrent_first_load"
    breaker = "tests/test_spec_decode.py::test_checkpoint_shard_repair"
    said = demo_of_pytest.block(
        (built, (extra, PYTEST_VICTIM), FAILS),
        (built, (PYTEST_VICTIM,), FAILS),
        (built, (breaker, PYTEST_VICTIM), PASSES),
        (built, (PYTEST_VICTIM, PYTEST_POLLUTER), FAILS),
    )
    reports = said.of("execution")
    victims = [next(r for r in report.results if r.test == PYTEST_VICTIM) for report in reports]
    assert [result.outcome.value for result in victims] == ["failed", "passed", "failed", "passed"]
    assert [result.failure_type for result in victims] == ["AssertionError", None, "OSError", None]


@pytest.mark.parametrize(
    ("toggle", "counter", "value"),
    [("PLAN_CACHE", "plan_cache.written", 0), ("PACKED_DECODE", "packed_decode.fired", 30)],
)
def test_one_toggle_moves_its_counter_and_one_does_nothing(demo_of_ctest, toggle, counter, value):
    arm = demo_of_ctest.arm(Treatment(TreatmentKind.TOGGLE, toggle="t", environment={f"LIKEWISE_DEMO_{toggle}": "0"}))
    report = demo_of_ctest.block((arm, ("packed_decode", "warm_plan_cache", CTEST_VICTIM), FAILS)).report
    assert report.counters[counter] == value
    assert report.results[2].outcome == ("passed" if toggle == "PLAN_CACHE" else "failed")
