"""The gate before every benchmark lets nothing through that did not run, or is not a number."""

import pytest
import torch

from benchmarks import gdn_ops
from gpu_runner.gdn.ops import check, guards
from gpu_runner.gdn.ops.check import SMALL, Check, correctness, example, report, unmoved_bits
from gpu_runner.gdn.registry import OPERATORS


@pytest.fixture
def small():
    return example((20, 66), SMALL, torch.float32, torch.device("cpu"))


def test_a_decline_is_not_a_pass(small, monkeypatch):
    monkeypatch.setattr(guards, "is_interpreted", lambda: False)
    checks = list(correctness(small))
    declined = {c.operator for c in checks if c.error == float("inf")}
    assert declined == set(OPERATORS)
    assert all(c.is_right for c in checks if c.operator == "prefill"), "the hand path equals the definition"


def test_bits_that_move_are_found(small, monkeypatch):
    monkeypatch.setattr(guards, "is_interpreted", lambda: False)
    assert all(c.is_right for c in unmoved_bits(small))
    monkeypatch.setenv("LIKEWISE_GDN_FAULT", "ai_not_zeroed")
    wrong = {c.result for c in unmoved_bits(small) if not c.is_right}
    assert wrong == {"on poisoned scratch"}


def test_nan_is_wrong():
    assert not Check("wu", "w", float("nan"), 1.0).is_right
    assert "WRONG" in report([Check("wu", "w", float("nan"), 1.0)])
    assert check.relative_error(torch.tensor([3.0, 4.0]), torch.tensor([3.0, 0.0])) == pytest.approx(4 / 3)


def test_what_is_wrong_is_not_timed():
    assert gdn_ops.wrong_operators([Check("wu", "w", 1.0, 0.1), Check("l2norm", "y", 0.0, 0.1)]) == {"wu"}
    assert "chunk_o" in gdn_ops.wrong_operators([Check("prefill", "o", 1.0, 0.1)])


def test_every_workload_of_the_benchmark_runs(monkeypatch):
    monkeypatch.setattr(guards, "is_interpreted", lambda: False)
    monkeypatch.setattr(gdn_ops, "SHAPE", SMALL)
    monkeypatch.setattr(gdn_ops, "DECODES", (1, 3))
    monkeypatch.setattr(gdn_ops, "PREFILLS", {"1x70": (70,)})
    monkeypatch.setattr(gdn_ops, "DRAFTS", {"2x4": (4, 4)})
    timed = set()
    for workload in gdn_ops.workloads(torch.device("cpu"), quick=False):
        workload.run(min(1, workload.most_layers - 1))
        assert workload.size_bytes > 0
        timed.add(workload.operator.split(" ")[0])
    assert timed == {*OPERATORS, "gates"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_benchmark_says_so(capsys):
    assert gdn_ops.main([]) == 3
    assert "needs a GPU" in capsys.readouterr().out
