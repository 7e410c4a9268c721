"""Each fault that the suite shows: the arm that exposes it, and the control beside it that does not.

In-process faults run several cases in one process, first uses run alone, the file on disk has a process per case.
"""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from gpu_runner.gdn.suite.case import all_cases

ROOT = Path(__file__).parents[3]
SUITE = tomllib.loads((ROOT / "gpu_runner/gdn/suite/likewise.toml").read_text())["suites"]["gdn"]
DIRTY_SEED, CLEAN_SEED = "1", "3"  # lengths of 170 and 110 tokens in `a_closed_queue_gives_its_scratch_back`
POLLUTER, GATE = "a_closed_queue_gives_its_scratch_back", "speculative_gate"
SOLVE, GROWTH = "solve_after_larger_work_is_clean", "growing_scratch_keeps_what_a_plan_captured"
LEAK, LAYERS = "l2norm_is_the_same_in_both_realizations", "every_layer_fires_what_the_environment_asks"
LOAD, WARM_DECODE = "concurrent_first_load", "packed_decode_matches_float64"
SCAN, WARM_SCAN = "first_scan_equals_the_second", "delta_h_keeps_states_and_snapshots"


def arm(fault, *cases, **environment):
    return {"environment": {"LIKEWISE_GDN_FAULT": fault, "LIKEWISE_RUN_SEED": DIRTY_SEED} | environment, "cases": cases}


ARMS = {
    "scratch, polluted": arm("shared_scratch_release", POLLUTER, GATE),
    "scratch, alone": arm("shared_scratch_release", GATE),
    "scratch, a length that does not fit": arm("shared_scratch_release", POLLUTER, GATE, LIKEWISE_RUN_SEED=CLEAN_SEED),
    "scratch, poisoned neighbours": arm("shared_scratch_release", POLLUTER, "queues_of_two_streams_are_apart", GATE),
    "scratch, off": arm("", POLLUTER, GATE),
    "tiles, on": arm("ai_not_zeroed", SOLVE),
    "tiles, fresh memory": arm("ai_not_zeroed", "kkt_solve_matches_float64"),
    "growth, on": arm("grow_frees_captured", GROWTH),
    "leak, leaked": arm("env_leak", LEAK, LAYERS),
    "leak, alone": arm("env_leak", LAYERS),
    "leak, off": arm("", LEAK, LAYERS),
    "load, fresh": arm("unguarded_first_load", LOAD),
    "load, warmed": arm("unguarded_first_load", WARM_DECODE, LOAD),
    "load, off": arm("", LOAD),
    "scan, fresh": arm("autotune_writes_state", SCAN),
    "scan, warmed": arm("autotune_writes_state", WARM_SCAN, SCAN),
    "all cases, no fault": arm(""),
    "all cases, chunk_o off": arm("", **SUITE["toggles"]["chunk_o"]["off"]),
}


@pytest.fixture(scope="module")
def results():
    """The result of every arm, by name."""
    process = subprocess.run(
        [sys.executable, Path(__file__).with_name("arms.py")],
        input=json.dumps(list(ARMS.values())),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **SUITE["environment"], "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return dict(zip(ARMS, json.loads(process.stdout), strict=True))


def test_without_a_fault_every_case_passes(results):
    outcome = results["all cases, no fault"]
    assert {name: outcome[name] for name in all_cases()} == dict.fromkeys(all_cases(), "passed")


def test_shared_scratch_fails_the_gate_after_its_polluter_only(results):
    polluted = results["scratch, polluted"]
    assert polluted[POLLUTER] == "passed"
    assert polluted[GATE].startswith("failed: got_prefix == want_prefix")
    assert polluted["counters"]["gdn.fault.shared_scratch_release"] == 2
    assert results["scratch, poisoned neighbours"][GATE].startswith("failed")
    for control in ("scratch, alone", "scratch, a length that does not fit", "scratch, off"):
        assert results[control][GATE] == "passed", control


def test_tiles_that_are_not_zeroed_show_on_used_memory_only(results):
    assert results["tiles, on"][SOLVE].startswith("failed")
    assert results["tiles, fresh memory"]["kkt_solve_matches_float64"] == "passed"


def test_growth_that_frees_a_captured_buffer(results):
    assert "captured" in results["growth, on"][GROWTH]


def test_a_leaked_toggle_shows_in_the_counters_of_later_cases(results):
    leaked, control = results["leak, leaked"], results["leak, alone"]
    assert leaked[LEAK] == "passed"
    assert leaked[LAYERS].startswith("failed: l2norm (torch): 0/3 GDN layers fired")
    assert control[LAYERS] == "passed"
    assert results["leak, off"][LAYERS] == "passed"
    assert control["counters"]["gdn.l2norm.triton.fired"] == 0
    assert leaked["counters"]["gdn.l2norm.triton.fired"] > 1
    assert results["leak, off"]["counters"]["gdn.l2norm.triton.fired"] == 1


def test_an_unguarded_first_load_fails_in_a_fresh_process_and_a_warming_case_hides_it(results):
    assert "not safe across two queues" in results["load, fresh"][LOAD]
    assert results["load, warmed"][LOAD] == "passed"
    assert results["load, off"][LOAD] == "passed"


def test_tuning_on_live_state_spoils_the_first_use_only(results):
    assert results["scan, fresh"][SCAN].startswith("failed: first states differ")
    assert results["scan, warmed"][WARM_SCAN].startswith("failed")
    assert results["scan, warmed"][SCAN] == "passed"


def test_the_toggle_of_chunk_o_moves_its_counters_and_no_others(results):
    base, off = (results[name]["counters"] for name in ("all cases, no fault", "all cases, chunk_o off"))
    moved = {name for name in base.keys() | off.keys() if base.get(name) != off.get(name)}
    assert moved == {"gdn.chunk_o.triton.fired", "gdn.chunk_o.torch.fired", "gdn.chunk_o.triton.layers",
                     "gdn.chunk_o.torch.layers", "gdn.modules.loads"}  # fmt: skip
    assert (base["gdn.chunk_o.triton.layers"], base["gdn.chunk_o.fallbacks"]) == (3, 0)
    assert (off["gdn.chunk_o.torch.layers"], off["gdn.chunk_o.triton.fired"]) == (3, 0)
    assert all(results["all cases, chunk_o off"][name] == "passed" for name in all_cases())


@pytest.mark.parametrize("operator", sorted(SUITE["toggles"]))
def test_what_a_toggle_expects_of_the_base_is_there(results, operator):
    counters = results["all cases, no fault"]["counters"]
    for name, expectation in SUITE["toggles"][operator]["expect"].items():
        before = expectation.split(" -> ")[0]
        assert {"0": counters[name] == 0, ">0": counters[name] > 0, "any": True}[before], name
