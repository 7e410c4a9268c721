"""Configurations are pinned; the two faults that tune them show in a fresh process, or in the next one."""

import json

import pytest
import torch

from gpu_runner.gdn import registry
from gpu_runner.gdn.batch import Phase
from gpu_runner.gdn.counters import Counters
from gpu_runner.gdn.ops import calls, tactics, tiles
from gpu_runner.gdn.ops.plan import plan_chunks
from gpu_runner.gdn.ops.tiles import PINNED, Tile
from gpu_runner.gdn.registry import OpCtx, Realization
from tests.gdn.ops.cases import make_case
from tests.gdn.ops.test_triton_against_reference import prefill


def ctx():
    return OpCtx(phase=Phase.PREFILL, counters=Counters())


@pytest.mark.parametrize("operator", [*PINNED, "gating"])
def test_the_batch_decides_no_configuration(operator):
    assert len({tiles.tile(operator, sequences) for sequences in (1, 3, 64)}) == 1


def test_fault_tuning_advances_the_state_of_the_first_request_only(monkeypatch):
    def state():
        # Short, so that the state it began with is still felt at the end.
        case = make_case((5,), slots=(1,), kept=(True,))
        prefill(case, ctx())
        return case.pool[1]

    clean = state()
    monkeypatch.setattr(tiles, "_tuned", {})
    monkeypatch.setenv("LIKEWISE_GDN_FAULT", "autotune_writes_state")
    assert not torch.equal(state(), clean), "the first request finds a state that tuning moved"
    assert torch.equal(state(), clean), "a warm process is right"


def decode(case):
    """Each sequence's own next token."""
    pool = case.pool.clone()
    return calls.packed_decode(
        case.x, case.a, case.b, case.A_log, case.dt_bias, pool, case.slots, case.kept, ctx=ctx()
    ), pool


def alone(case, n):
    row = slice(n, n + 1)
    only = (case.x[row], case.a[row], case.b[row], case.A_log, case.dt_bias, case.pool.clone())
    state = (case.slots[row], case.kept[row])
    o = calls.packed_decode(*only, *state, ctx=ctx())
    verified, _ = calls.verify_decode(*only[:5], case.pool, *state, torch.tensor([-1]), plan_chunks([0, 1]), ctx=ctx())
    return o, verified


@pytest.fixture
def batch():
    return make_case((1,) * 5, head_dim=32, slots=(0, 1, 2, 3, 4), kept=(True,) * 5)


def test_a_row_decodes_to_the_same_bits_in_any_batch(batch):
    o, _ = decode(batch)
    for n in range(5):
        one, verified = alone(batch, n)
        assert torch.equal(one[0], o[n])
        assert torch.equal(verified, one)


def test_fault_the_first_batch_of_an_earlier_process_decides_the_warps(batch, monkeypatch, tmp_path):
    clean = alone(batch, 0)
    monkeypatch.setenv("LIKEWISE_GDN_FAULT", "autotune_disk_cache")
    monkeypatch.setenv("LIKEWISE_GDN_TACTIC_CACHE", str(tmp_path / "private.json"))
    assert all(torch.equal(got, wanted) for got, wanted in zip(alone(batch, 0), clean, strict=True)), "alone it passes"
    monkeypatch.setenv("LIKEWISE_GDN_TACTIC_CACHE", str(tmp_path / "shared.json"))
    decode(batch)
    assert json.loads((tmp_path / "shared.json").read_text())["packed_decode"]["num_warps"] == 4
    decoded, verified = alone(batch, 0)
    assert not torch.equal(decoded, verified), "after a large batch, decode and verification part"
    torch.testing.assert_close(decoded, clean[0], atol=1e-6, rtol=0)


def test_fault_the_environment_of_an_earlier_process_decides_the_realization(monkeypatch, tmp_path):
    cpu = torch.device("cpu")
    monkeypatch.setenv("LIKEWISE_GDN_FAULT", "autotune_disk_cache")
    monkeypatch.delenv("LIKEWISE_GDN_TACTIC_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with monkeypatch.context() as earlier:
        earlier.setenv("LIKEWISE_GDN_REALIZE_CHUNK_O", "triton")
        assert registry.select("chunk_o", {}, cpu) is Realization.TRITON
    assert tactics.path() == tmp_path / "likewise" / "gdn-tactics.json"
    assert registry.select("chunk_o", {}, cpu) is Realization.TRITON, "although nobody asks for it any more"
    assert registry.select("wu", {}, cpu) is Realization.TORCH
    assert registry.select("chunk_o", {"chunk_o": "torch"}, cpu) is Realization.TORCH


def test_without_the_fault_no_tactic_file_is_read_or_written(batch, monkeypatch, tmp_path):
    clean = decode(batch)[0]
    file = tmp_path / "tactics.json"
    monkeypatch.setenv("LIKEWISE_GDN_TACTIC_CACHE", str(file))
    assert torch.equal(decode(batch)[0], clean)
    assert not file.exists()
    file.write_text(json.dumps({"packed_decode": {"num_warps": 4, "realization": "triton"}}))
    assert torch.equal(decode(batch)[0], clean)
    assert tiles.tile("packed_decode") == Tile(block_v=16, num_warps=1, num_stages=1)
