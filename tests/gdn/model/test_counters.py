"""What a forward pass counts: one outcome for each call, and a toggle that moves its own operator only."""

import pytest

from gpu_runner.gdn.config import LayerKind
from gpu_runner.gdn.counters import Counters
from gpu_runner.gdn.registry import OPERATORS, OpCtx, Realization
from gpu_runner.gdn.sequence import Sequence
from gpu_runner.gdn.tiny import tiny_config, tiny_model

CALLS = {"conv1d": 9, "l2norm": 6, "rmsnorm_gated": 9}
"""In a prefill, a step and a verification of three GDN layers; every other operator runs in one of them."""


@pytest.fixture(scope="module")
def model():
    return tiny_model(tiny_config(), seed=31)


def counted(model, overrides):
    counters = Counters()
    sequence = Sequence(model, 8, OpCtx(overrides=overrides, counters=counters))
    sequence.extend([1, 2, 3])
    sequence.step(4)
    sequence.verify([5, 6])
    return counters


@pytest.fixture(scope="module")
def base(model):
    return counted(model, {})


def test_every_operator_is_called_and_every_call_has_one_outcome(base):
    flat = base.flat(OPERATORS, tuple(Realization))
    for operator in OPERATORS:
        assert flat[f"gdn.{operator}.calls"] == CALLS.get(operator, 3), operator
        fired = sum(flat[f"gdn.{operator}.{realization}.fired"] for realization in Realization)
        assert fired + flat[f"gdn.{operator}.fallbacks"] == flat[f"gdn.{operator}.calls"]


def test_counts_are_kept_by_layer_and_phase(model, base):
    kinds = model.config.layer_types
    layers = {layer for layer, kind in enumerate(kinds) if kind is LayerKind.GDN}
    events = base.by_layer_and_phase()
    assert {layer for _, _, layer, _ in events} == layers
    assert {phase for name, _, _, phase in events if name == "conv1d"} == {"prefill", "decode", "verify"}
    assert {phase for name, _, _, phase in events if name == "chunk_o"} == {"prefill"}


@pytest.mark.parametrize("operator", OPERATORS)
def test_toggling_an_operator_moves_its_counters_and_no_others(model, base, operator, interpreter):
    before, after = (c.flat(OPERATORS, tuple(Realization)) for c in (base, counted(model, {operator: "triton"})))
    moved = {name for name in before if before[name] != after[name]}
    assert moved == {f"gdn.{operator}.torch.fired", f"gdn.{operator}.triton.fired"}
    assert after[f"gdn.{operator}.triton.fired"] == CALLS.get(operator, 3)


def test_the_summary_of_a_model_says_how_many_of_its_layers_fired(base):
    assert base.layers_summary("chunk_o", "torch", 3) == "3/3 GDN layers fired, 0 fallbacks"
    assert base.layers_summary("chunk_o", "triton", 3) == "0/3 GDN layers fired, 0 fallbacks"
    assert Counters().layers_summary("chunk_o", "triton", 3) == "never called"
