"""Which realization runs, why one declines, and what the counters then say."""

import json

import pytest
import torch

from gpu_runner.gdn import registry
from gpu_runner.gdn.batch import Phase
from gpu_runner.gdn.counters import Counters
from gpu_runner.gdn.ops import calls, guards
from gpu_runner.gdn.ops.errors import RealizationError
from gpu_runner.gdn.ops.plan import plan_chunks
from gpu_runner.gdn.registry import OPERATORS, OpCtx, Realization
from tests.gdn.ops.cases import make_case

CPU = torch.device("cpu")
TORCH, TRITON = Realization


def flat(counters):
    return counters.flat(OPERATORS, tuple(Realization))


def run_all(case, ctx):
    """Every operator once."""
    g, beta = calls.gating(case.a, case.b, case.A_log, case.dt_bias, ctx=ctx)
    calls.conv1d_update(case.x[: len(case.slots)], case.conv_weight, case.conv_pool, case.slots, case.kept, ctx=ctx)
    k = calls.l2norm(case.k, ctx=ctx)
    g_cum = calls.cumsum(g, case.plan, ctx=ctx)
    A = calls.kkt_solve(k, beta, g_cum, case.plan, ctx=ctx)
    w, u = calls.wu(k, case.v, beta, g_cum, A, case.plan, ctx=ctx)
    state = (case.pool, case.slots, case.kept)
    states = calls.delta_h(k, w, u, g_cum, *state, case.plan, ctx=ctx)
    calls.chunk_o(k, k, states.v_new, states.h, g_cum, case.plan, ctx=ctx)
    gates = (case.a, case.b, case.A_log, case.dt_bias)
    calls.packed_decode(case.x[:1], *(t[:1] for t in gates[:2]), *gates[2:], *state, ctx=ctx)
    parents = torch.full((case.plan.tokens,), -1)
    calls.verify_decode(case.x, *gates, *state, parents, case.plan, ctx=ctx)
    calls.rmsnorm_gated(case.v, case.z, case.norm, ctx=ctx)


def tiny(**options):
    """Three tokens of one sequence, one head."""
    return make_case((3,), value_heads=1, slots=(1,), kept=(True,), **options)


def test_call_beats_environment_beats_device_default(monkeypatch):
    assert registry.select("wu", {}, CPU) is TORCH
    assert registry.select("wu", {}, torch.device("cuda")) is TRITON
    monkeypatch.setenv("LIKEWISE_GDN_REALIZE_WU", "triton")
    assert registry.select("wu", {}, CPU) is TRITON
    assert registry.select("delta_h", {}, CPU) is TORCH
    assert registry.select("wu", {"wu": "torch"}, CPU) is TORCH


@pytest.mark.parametrize(
    ("alias", "operator"),
    [("CHUNKO", "chunk_o"), ("DELTAH", "delta_h"), ("WU", "wu"), ("PACKEDDECODE", "packed_decode")],
)
def test_the_toggle_names_of_the_second_seed(alias, operator, monkeypatch):
    monkeypatch.setenv(f"LIKEWISE_GDN_REALIZE_{alias}", "triton")
    assert registry.select(operator, {}, CPU) is TRITON
    assert registry.check_environment() == {operator: TRITON}
    assert registry.select(operator, {alias.lower(): "torch"}, CPU) is TORCH


def test_unknown_values_and_names_are_errors(monkeypatch):
    with pytest.raises(RealizationError, match=r"LIKEWISE_GDN_REALIZE_WU asks for realization 'off'; known: torch"):
        registry.from_environment("wu", {"LIKEWISE_GDN_REALIZE_WU": "off"})
    with pytest.raises(RealizationError, match="no operator 'chunko2'"):
        registry.check_environment({"LIKEWISE_GDN_REALIZE_CHUNKO2": "torch"})
    with pytest.raises(RealizationError, match="no operator 'nothing'"):
        registry.select("wu", {"nothing": "torch"}, CPU)
    both = {"LIKEWISE_GDN_REALIZE_CHUNKO": "torch", "LIKEWISE_GDN_REALIZE_CHUNK_O": "triton"}
    with pytest.raises(RealizationError, match="contradicts"):
        registry.from_environment("chunk_o", both)
    monkeypatch.setenv("LIKEWISE_GDN_REALIZE_GATING", "1")
    case = tiny()
    with pytest.raises(RealizationError):
        calls.gating(case.a, case.b, case.A_log, case.dt_bias, ctx=OpCtx(counters=Counters()))


def test_every_operator_counts_each_call_once():
    counters = Counters()
    run_all(tiny(), OpCtx(layer=2, counters=counters))
    run_all(tiny(), OpCtx(layer=0, phase=Phase.MIXED, counters=counters))
    values = flat(counters)
    for operator in OPERATORS:
        assert values[f"gdn.{operator}.calls"] == 2
        assert values[f"gdn.{operator}.torch.fired"] == 2
        assert values[f"gdn.{operator}.triton.fired"] == 0
        assert values[f"gdn.{operator}.fallbacks"] == 0
    assert counters.by_layer_and_phase()["wu", "torch.fired", 2, "prefill"] == 1
    assert counters.by_layer_and_phase()["wu", "torch.fired", 0, "mixed"] == 1


@pytest.mark.usefixtures("interpreter")
def test_toggling_one_operator_moves_its_counters_and_no_others(monkeypatch):
    def counted():
        counters = Counters()
        run_all(tiny(), OpCtx(counters=counters))
        return flat(counters)

    before = counted()
    for operator in OPERATORS:
        with monkeypatch.context() as patch:
            patch.setenv(f"LIKEWISE_GDN_REALIZE_{operator.upper()}", "triton")
            after = counted()
        moved = {name for name in before if before[name] != after[name]}
        assert moved == {f"gdn.{operator}.torch.fired", f"gdn.{operator}.triton.fired"}


def test_never_called_is_told_from_declined():
    counters = Counters()
    assert counters.layers_summary("chunk_o", "triton") == "never called"
    for layer in range(3):
        counters.fell_back("chunk_o", "dtype", layer, Phase.PREFILL)
    assert counters.layers_summary("chunk_o", "triton") == "0/3 GDN layers fired, 3 fallbacks"
    for layer in range(3):
        counters.fired("wu", TRITON, layer, Phase.PREFILL)
    assert counters.layers_summary("wu", "triton") == "3/3 GDN layers fired, 0 fallbacks"
    assert counters.layers_summary("wu", "torch", layer_count=4) == "0/4 GDN layers fired, 0 fallbacks"
    values = flat(counters)
    assert values["gdn.chunk_o.fallback.dtype"] == values["gdn.chunk_o.fallbacks"] == 3
    assert values["gdn.delta_h.calls"] == 0


def test_counters_are_written_as_events(tmp_path, monkeypatch):
    events = tmp_path / "events.jsonl"
    monkeypatch.delenv("LIKEWISE_EVENTS", raising=False)
    assert registry.emit_counters() == 0
    monkeypatch.setenv("LIKEWISE_EVENTS", str(events))
    count = registry.emit_counters()
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    assert count == len(lines) > 4 * len(OPERATORS)
    assert {line["counter"]: line["value"] for line in lines} == registry.counters()


def spread(tensor):
    """The same values with gaps inside each row."""
    wide = torch.zeros(*tensor.shape[:-1], 2 * tensor.shape[-1], dtype=tensor.dtype)
    wide[..., ::2] = tensor
    return wide[..., ::2]


def chunk_arguments(case):
    g = torch.zeros(case.plan.tokens, 1)
    C, D = case.plan.chunks, case.k.shape[-1]
    dtype = case.k.dtype
    A, h = torch.zeros(C, 1, 64, 64, dtype=dtype), torch.zeros(C, 1, D, D, dtype=dtype)
    return g, A, h


def declined_calls():
    """(operator, reason, function of a context), every decline that a guard can state."""

    def wide(**options):
        return tiny(head_dim=136, **options)

    def gating(a, ctx):
        return calls.gating(a, a, torch.zeros(1), torch.zeros(1), ctx=ctx)

    def conv(case, ctx, x=None, plan=None, weight=None):
        weight = case.conv_weight if weight is None else weight
        plan = plan or case.plan
        calls.conv1d(case.x if x is None else x, weight, case.conv_pool, case.slots, case.kept, plan, ctx=ctx)

    def conv_verify(case, ctx, parents):
        calls.conv1d_verify(
            case.x, case.conv_weight, case.conv_pool, case.slots, case.kept, parents, case.plan, ctx=ctx
        )

    def kkt(case, ctx, plan=None, beta=None):
        g = chunk_arguments(case)[0]
        calls.kkt_solve(case.k, g if beta is None else beta, g, plan or case.plan, ctx=ctx)

    def wu(case, ctx, plan=None, A=None, k=None):
        g, whole, _ = chunk_arguments(case)
        k = case.k if k is None else k
        calls.wu(k, case.v, g, g, whole if A is None else A, plan or case.plan, ctx=ctx)

    def delta(case, ctx, pool=None, k=None):
        g = chunk_arguments(case)[0]
        pool, k = case.pool if pool is None else pool, case.k if k is None else k
        calls.delta_h(k, case.k, case.v.contiguous(), g, pool, case.slots, case.kept, case.plan, ctx=ctx)

    def chunk_o(case, ctx, plan=None, scale=None, q=None):
        g, _, h = chunk_arguments(case)
        q = case.q if q is None else q
        calls.chunk_o(q, case.k, case.v.contiguous(), h, g, plan or case.plan, scale=scale, ctx=ctx)

    def decode(case, ctx, scale=None, pool=None, mixed=None, verify=False):
        pool, mixed = case.pool if pool is None else pool, case.x if mixed is None else mixed
        gates = (case.a, case.b, case.A_log, case.dt_bias)
        if verify:
            state = (pool, case.slots, case.kept, torch.full((case.plan.tokens,), -1), case.plan)
            calls.verify_decode(mixed, *gates, *state, scale=scale, ctx=ctx)
        else:
            gates = (case.a[:1], case.b[:1], *gates[2:])
            calls.packed_decode(mixed[:1], *gates, pool, case.slots, case.kept, scale=scale, ctx=ctx)

    def transposed(pool):
        return pool.transpose(-1, -2).contiguous().transpose(-1, -2)

    def verified(**options):
        return lambda case, ctx: decode(case, ctx, verify=True, **{k: f(case) for k, f in options.items()})

    bare = plan_chunks([0, 3], with_indices=False)
    half = torch.float16
    double = tiny(dtype=torch.float64)
    yield "gating", "dtype", lambda ctx: gating(torch.zeros(3, 1, dtype=half), ctx)
    yield (
        "gating",
        "layout",
        lambda ctx: calls.gating(
            torch.zeros(2, 3).t(), torch.zeros(3, 2), torch.zeros(4)[::2], torch.zeros(2), ctx=ctx
        ),
    )
    yield "l2norm", "dtype", lambda ctx: calls.l2norm(tiny().k.to(half), ctx=ctx)
    yield "l2norm", "layout", lambda ctx: calls.l2norm(spread(tiny().k), ctx=ctx)
    yield "l2norm", "head_dim", lambda ctx: calls.l2norm(torch.ones(1, 1, 257), ctx=ctx)
    yield "rmsnorm_gated", "dtype", lambda ctx: calls.rmsnorm_gated(double.v, double.z, double.norm, ctx=ctx)
    yield "rmsnorm_gated", "layout", lambda ctx: calls.rmsnorm_gated(spread(tiny().v), tiny().z, tiny().norm, ctx=ctx)
    yield (
        "rmsnorm_gated",
        "head_dim",
        lambda ctx: calls.rmsnorm_gated(*[torch.ones(1, 1, 257)] * 2, torch.ones(257), ctx=ctx),
    )
    yield "conv1d", "dtype", lambda ctx: conv(double, ctx)
    yield "conv1d", "layout", lambda ctx: conv(tiny(), ctx, x=spread(tiny().x))
    yield "conv1d", "layout", lambda ctx: conv_verify(tiny(), ctx, torch.tensor([-1, 0, -1, 0, 0, 0])[::2])
    yield "conv1d", "no_chunk_indices", lambda ctx: conv(tiny(), ctx, plan=bare)
    yield "cumsum", "dtype", lambda ctx: calls.cumsum(torch.zeros(3, 1, dtype=torch.bfloat16), bare, ctx=ctx)
    yield "cumsum", "layout", lambda ctx: calls.cumsum(torch.zeros(2, 3).t(), tiny().plan, ctx=ctx)
    yield "cumsum", "no_chunk_indices", lambda ctx: calls.cumsum(torch.zeros(3, 1), bare, ctx=ctx)
    yield "kkt_solve", "dtype", lambda ctx: kkt(tiny(), ctx, beta=torch.zeros(3, 1, dtype=torch.bfloat16))
    yield "kkt_solve", "layout", lambda ctx: kkt(tiny(), ctx, beta=torch.zeros(3, 2)[:, :1])
    yield "kkt_solve", "head_dim", lambda ctx: kkt(wide(), ctx)
    yield "kkt_solve", "no_chunk_indices", lambda ctx: kkt(tiny(), ctx, plan=bare)
    yield "wu", "dtype", lambda ctx: wu(tiny(), ctx, A=torch.zeros(1, 1, 64, 64, dtype=torch.bfloat16))
    yield "wu", "layout", lambda ctx: wu(tiny(), ctx, k=spread(tiny().k))
    yield "wu", "head_dim", lambda ctx: wu(wide(), ctx)
    yield "wu", "no_chunk_indices", lambda ctx: wu(tiny(), ctx, plan=bare)
    yield "delta_h", "dtype", lambda ctx: delta(tiny(), ctx, pool=tiny().pool.bfloat16())
    yield "delta_h", "layout", lambda ctx: delta(tiny(), ctx, pool=transposed(tiny().pool))
    yield "delta_h", "head_dim", lambda ctx: delta(wide(), ctx)
    yield "chunk_o", "dtype", lambda ctx: chunk_o(tiny(), ctx, q=tiny().q.bfloat16())
    yield "chunk_o", "layout", lambda ctx: chunk_o(tiny(), ctx, q=spread(tiny().q))
    yield "chunk_o", "head_dim", lambda ctx: chunk_o(wide(), ctx)
    yield "chunk_o", "scale", lambda ctx: chunk_o(tiny(), ctx, scale=1.0)
    yield "chunk_o", "no_chunk_indices", lambda ctx: chunk_o(tiny(), ctx, plan=bare)
    yield "packed_decode", "dtype", lambda ctx: decode(tiny(), ctx, pool=tiny().pool.bfloat16())
    yield "packed_decode", "layout", lambda ctx: decode(tiny(), ctx, pool=transposed(tiny().pool))
    yield "packed_decode", "head_dim", lambda ctx: decode(tiny(head_dim=257), ctx)
    yield "packed_decode", "scale", lambda ctx: decode(tiny(), ctx, scale=1.0)
    yield "verify_decode", "dtype", lambda ctx: verified(pool=lambda c: c.pool.bfloat16())(tiny(), ctx)
    yield "verify_decode", "layout", lambda ctx: verified(mixed=lambda c: spread(c.x))(tiny(), ctx)
    yield "verify_decode", "head_dim", lambda ctx: verified()(tiny(head_dim=257), ctx)
    yield "verify_decode", "scale", lambda ctx: verified(scale=lambda _: 1.0)(tiny(), ctx)


DECLINED = list(declined_calls())


@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize(
    ("operator", "reason", "call"), DECLINED, ids=[f"{op}-{why}-{i}" for i, (op, why, _) in enumerate(DECLINED)]
)
def test_every_decline_runs_torch_and_is_counted(operator, reason, call):
    ctx = OpCtx(overrides=dict.fromkeys(OPERATORS, TRITON), counters=Counters())
    call(ctx)
    values = flat(ctx.counters)
    assert values[f"gdn.{operator}.fallback.{reason}"] == 1
    assert values[f"gdn.{operator}.calls"] == values[f"gdn.{operator}.fallbacks"] == 1
    assert values[f"gdn.{operator}.triton.fired"] == values[f"gdn.{operator}.torch.fired"] == 0


def test_without_interpreter_and_gpu_every_operator_declines(monkeypatch):
    monkeypatch.setattr(guards, "is_interpreted", lambda: False)
    ctx = OpCtx(overrides=dict.fromkeys(OPERATORS, TRITON), counters=Counters())
    run_all(tiny(), ctx)
    values = flat(ctx.counters)
    for operator in OPERATORS:
        assert values[f"gdn.{operator}.fallback.no_device"] == values[f"gdn.{operator}.calls"] == 1
