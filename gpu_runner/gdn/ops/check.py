"""Every Triton realization against the hand path in float64, and the bits that must not move.

    python -m gpu_runner.gdn.ops.check                         # on a GPU: bfloat16, Hk 16, Hv 32, D 128
    TRITON_INTERPRET=1 python -m gpu_runner.gdn.ops.check      # on a CPU: the interpreter at small sizes

Prints a table; exit 1 when anything is wrong. Benchmarks run it first and time nothing that it finds wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from gpu_runner.gdn.counters import Counters
from gpu_runner.gdn.ops import calls
from gpu_runner.gdn.ops.aot import HeadShape
from gpu_runner.gdn.ops.modules import is_interpreted
from gpu_runner.gdn.ops.plan import ChunkPlan, plan_chunks
from gpu_runner.gdn.ops.reference.sequential import sequential
from gpu_runner.gdn.ops.scratch import ScratchPools
from gpu_runner.gdn.registry import OPERATORS, OpCtx, Realization

LENGTHS = (1, 63, 64, 65, 200, 333)
SMALL = HeadShape(key_heads=1, value_heads=2, head_dim=16)
SMALL_LENGTHS = (1, 65, 20)

# Relative Frobenius errors. A bfloat16 result is rounded once (about 1.7e-3 of its norm at most); stages that round
# their operands too stay below 5e-3, the whole chunked form below 1e-2 (its state is made of rounded products). What is
# float32 throughout has only the order of its sums, and the GPU's exp.
ROUNDED_ONCE, ROUNDED, ROUNDED_THROUGHOUT, EXACT = 2.5e-3, 5e-3, 1e-2, 2e-6
FLOAT32 = 1e-5


@dataclass(frozen=True, slots=True)
class Check:
    """One result of one operator: its relative Frobenius error; 0/1 where bits must be equal whatever the dtype."""

    operator: str
    result: str
    error: float
    limit: float

    @property
    def is_right(self) -> bool:
        """False also for NaN."""
        return self.error <= self.limit


@dataclass(frozen=True, slots=True)
class Example:
    """Random inputs of N tokens of B sequences, each in a slot of its own, the states of all but one kept."""

    plan: ChunkPlan
    x: torch.Tensor
    conv_weight: torch.Tensor
    conv_pool: torch.Tensor
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    a: torch.Tensor
    b: torch.Tensor
    A_log: torch.Tensor
    dt_bias: torch.Tensor
    z: torch.Tensor
    norm: torch.Tensor
    pool: torch.Tensor
    slots: torch.Tensor
    kept: torch.Tensor

    def doubled(self) -> Example:
        """The same values in float64, for the hand path."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return replace(self, **{name: value.double() for name, value in fields.items() if _is_real(value)})


def example(
    lengths: Sequence[int], shape: HeadShape, dtype: torch.dtype, device: torch.device, *, seed: int = 0
) -> Example:
    """Inputs of a model's shape; heads remember from one token to some hundreds, as after an initialisation."""
    generator = torch.Generator(device).manual_seed(seed)
    H, HV, D, B = shape.key_heads, shape.value_heads, shape.head_dim, len(lengths)
    N, C = sum(lengths), (2 * H + HV) * D
    offsets = [0]
    for length in lengths:
        offsets.append(offsets[-1] + length)

    def normal(*size: int, dtype: torch.dtype = dtype) -> torch.Tensor:
        return torch.randn(*size, generator=generator, device=device, dtype=torch.float32).to(dtype)

    packed = normal(N, C + 2 * HV)
    uniform = torch.rand(2, HV, generator=generator, device=device)
    kept = torch.ones(B, dtype=torch.bool, device=device)
    kept[B // 2] = B == 1
    return Example(
        plan=plan_chunks(offsets, device),
        x=packed[:, :C],
        a=packed[:, C : C + HV],
        b=packed[:, C + HV :],
        conv_weight=normal(C, 4),
        conv_pool=normal(B + 1, C, 3),
        q=normal(N, H, D),
        k=normal(N, H, D),
        v=normal(N, C)[:, : HV * D].unflatten(1, (HV, D)),
        A_log=(uniform[0] * 16).clamp(min=1e-3).log(),
        dt_bias=uniform[1] * 6 - 6,
        z=normal(N, HV, D),
        norm=normal(D),
        pool=normal(B + 1, HV, D, D, dtype=torch.float32) * 0.1,
        slots=torch.arange(B, 0, -1, device=device),
        kept=kept,
    )


def context(realization: Realization) -> OpCtx:
    """A context that asks for one realization everywhere; its scratch and counters are its own."""
    counters = Counters()
    return OpCtx(overrides=dict.fromkeys(OPERATORS, realization), counters=counters)


def prefill(e: Example, ctx: OpCtx) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs [N, Hv, Dv] of the chunked form and the pool after it; the pool of `e` stays."""
    pool = e.pool.clone()
    g, beta = calls.gating(e.a, e.b, e.A_log, e.dt_bias, ctx=ctx)
    q, k = calls.l2norm(e.q, ctx=ctx), calls.l2norm(e.k, ctx=ctx)
    g_cum = calls.cumsum(g, e.plan, ctx=ctx)
    A = calls.kkt_solve(k, beta, g_cum, e.plan, ctx=ctx)
    w, u = calls.wu(k, e.v, beta, g_cum, A, e.plan, ctx=ctx)
    states = calls.delta_h(k, w, u, g_cum, pool, e.slots, e.kept, e.plan, ctx=ctx)
    return calls.chunk_o(q, k, states.v_new, states.h, g_cum, e.plan, ctx=ctx), pool


Results = tuple[torch.Tensor, ...]


def operators(e: Example) -> Iterator[tuple[str, dict[str, float], Callable[[Example, OpCtx], Results]]]:
    """Each operator: its name, the limits of its results, and how to call it on `e` or on `e.doubled()`.

    Intermediate inputs come from the hand path, rounded as `e` stores them, the same for every realization.
    """
    hand = context(Realization.TORCH)
    g, beta = calls.gating(e.a, e.b, e.A_log, e.dt_bias, ctx=hand)
    q, k = calls.l2norm(e.q, ctx=hand), calls.l2norm(e.k, ctx=hand)
    g_cum = calls.cumsum(g, e.plan, ctx=hand)
    A = calls.kkt_solve(k, beta, g_cum, e.plan, ctx=hand).clone()
    w, u = (t.clone() for t in calls.wu(k, e.v, beta, g_cum, A, e.plan, ctx=hand))
    scanned = calls.delta_h(k, w, u, g_cum, e.pool.clone(), e.slots, e.kept, e.plan, ctx=hand)
    h, v_new = scanned.h.clone(), scanned.v_new.clone()
    drafts = example((1,) * len(e.slots), _shape(e), e.q.dtype, e.q.device, seed=1)
    tree = example((4,) * len(e.slots), _shape(e), e.q.dtype, e.q.device, seed=2)
    parents = torch.tensor([-1, 0, 0, 2] * len(e.slots), device=e.q.device)

    def like(x: Example) -> Callable[[torch.Tensor], torch.Tensor]:
        """Intermediate tensors in float64 for the float64 example, unchanged for the other."""
        return torch.Tensor.double if x.q.dtype == torch.float64 else lambda tensor: tensor

    def same(x: Example, other: Example) -> Example:
        return other.doubled() if x.q.dtype == torch.float64 else other

    def conv1d(x: Example, ctx: OpCtx) -> Results:
        pool = x.conv_pool.clone()
        return calls.conv1d(x.x, x.conv_weight, pool, x.slots, x.kept, x.plan, ctx=ctx), pool

    def conv1d_update(x: Example, ctx: OpCtx) -> Results:
        x = same(x, drafts)
        pool = x.conv_pool.clone()
        return calls.conv1d_update(x.x, x.conv_weight, pool, x.slots, x.kept, ctx=ctx), pool

    def conv1d_verify(x: Example, ctx: OpCtx) -> Results:
        x = same(x, tree)
        return (calls.conv1d_verify(x.x, x.conv_weight, x.conv_pool, x.slots, x.kept, parents, x.plan, ctx=ctx),)

    def kkt_solve(x: Example, ctx: OpCtx) -> Results:
        c = like(x)
        return (calls.kkt_solve(c(k), c(beta), c(g_cum), x.plan, ctx=ctx),)

    def wu(x: Example, ctx: OpCtx) -> Results:
        c = like(x)
        return calls.wu(c(k), x.v, c(beta), c(g_cum), c(A), x.plan, ctx=ctx)

    def delta_h(x: Example, ctx: OpCtx) -> Results:
        c, pool = like(x), x.pool.clone()
        states = calls.delta_h(c(k), c(w), c(u), c(g_cum), pool, x.slots, x.kept, x.plan, ctx=ctx)
        return states.h, states.v_new, pool

    def chunk_o(x: Example, ctx: OpCtx) -> Results:
        c = like(x)
        return (calls.chunk_o(c(q), c(k), c(v_new), c(h), c(g_cum), x.plan, ctx=ctx),)

    def packed_decode(x: Example, ctx: OpCtx) -> Results:
        x = same(x, drafts)
        pool = x.pool.clone()
        o = calls.packed_decode(x.x, x.a, x.b, x.A_log, x.dt_bias, pool, x.slots, x.kept, ctx=ctx)
        return o, pool

    def verify_decode(x: Example, ctx: OpCtx) -> Results:
        x = same(x, tree)
        return calls.verify_decode(x.x, x.a, x.b, x.A_log, x.dt_bias, x.pool, x.slots, x.kept, parents, x.plan, ctx=ctx)

    is_rounded = e.q.dtype == torch.bfloat16
    once, stages = (ROUNDED_ONCE, ROUNDED) if is_rounded else (FLOAT32, FLOAT32)
    yield "gating", {"g": EXACT, "beta": EXACT}, lambda x, ctx: calls.gating(x.a, x.b, x.A_log, x.dt_bias, ctx=ctx)
    yield "conv1d", {"y": once, "state": 0.0}, conv1d
    yield "conv1d", {"update": once, "state": 0.0}, conv1d_update
    yield "conv1d", {"verify": once}, conv1d_verify
    yield "l2norm", {"y": once}, lambda x, ctx: (calls.l2norm(x.k, ctx=ctx),)
    yield "cumsum", {"G": EXACT}, lambda x, ctx: (calls.cumsum(like(x)(g), x.plan, ctx=ctx),)
    yield "kkt_solve", {"A": once}, kkt_solve
    yield "wu", {"w": stages, "u": stages}, wu
    yield "delta_h", {"h": stages, "v_new": stages, "state": stages}, delta_h
    yield "chunk_o", {"o": stages}, chunk_o
    yield "packed_decode", {"o": once, "state": EXACT}, packed_decode
    yield "verify_decode", {"o": once, "states": EXACT}, verify_decode
    yield (
        "rmsnorm_gated",
        {"y": once},
        lambda x, ctx: (calls.rmsnorm_gated(x.v, x.z, x.norm, ctx=ctx),),
    )


def correctness(e: Example) -> Iterator[Check]:
    """Every operator's Triton realization against the hand path in float64, then both forms against the definition.

    A decline is reported as an error of infinity: what ran was not what was asked for.
    """
    doubled = e.doubled()
    for operator, limits, call in operators(e):
        ctx = context(Realization.TRITON)
        got = [t.clone() for t in call(e, ctx)]
        wanted = call(doubled, context(Realization.TORCH))
        has_fired = ctx.counters.layers_summary(operator, Realization.TRITON).endswith("fired, 0 fallbacks")
        for (name, limit), g, w in zip(limits.items(), got, wanted, strict=True):
            yield Check(operator, name, relative_error(g, w) if has_fired else float("inf"), limit)
    outputs, states = _definition(doubled)
    o, pool = prefill(e, context(Realization.TRITON))
    limit = ROUNDED_THROUGHOUT if e.q.dtype == torch.bfloat16 else FLOAT32
    yield Check("prefill", "o", relative_error(o, outputs), limit)
    yield Check("prefill", "state", relative_error(pool[e.slots], states), limit)


def unmoved_bits(e: Example) -> Iterator[Check]:
    """What must agree to the last bit; the error is the share of runs that did not."""
    ctx = context(Realization.TRITON)
    o, pool = prefill(e, ctx)
    repeats = [prefill(e, ctx) for _ in range(3)]
    moved = sum(not (torch.equal(o, again) and torch.equal(pool, state)) for again, state in repeats)
    yield Check("prefill", "run to run", moved / len(repeats), 0.0)

    longest = max(range(e.plan.sequences), key=lambda n: e.plan.cu_seqlens[n + 1] - e.plan.cu_seqlens[n])
    start, end = e.plan.cu_seqlens[longest], e.plan.cu_seqlens[longest + 1]
    only, only_pool = prefill(_part(e, longest, start, end), ctx)
    same = torch.equal(only, o[start:end]) and torch.equal(only_pool[e.slots[longest]], pool[e.slots[longest]])
    yield Check("prefill", "alone and in a batch", float(not same), 0.0)

    first, middle = prefill(_part(e, longest, start, start + 64), ctx)
    rest = replace(_part(e, longest, start + 64, end), pool=middle, kept=torch.ones_like(e.kept[:1]))
    second, final = prefill(rest, ctx)
    same = torch.equal(torch.cat([first, second]), o[start:end])
    same = same and torch.equal(final[e.slots[longest]], pool[e.slots[longest]])
    yield Check("prefill", "cut after 64 tokens", float(not same), 0.0)

    poisoned = ScratchPools(Counters()).of_stream(e.q.device, 0)
    dirty = replace(ctx, scratch=poisoned)
    prefill(e, dirty)
    poisoned.pools.poison()
    again, state = prefill(e, dirty)
    yield Check("prefill", "on poisoned scratch", float(not (torch.equal(o, again) and torch.equal(pool, state))), 0.0)
    # In bfloat16 the rounding of the convolution's output hides how each kernel was scheduled; in float32 it shows.
    limit = 0.0 if e.q.dtype is torch.bfloat16 else EXACT
    yield Check("verify_decode", "a chain and decode", _chain_against_decode(e, ctx), limit)


def relative_error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """|got - wanted| / |wanted| in the Frobenius norm, float64; 0 where both are zero."""
    difference = torch.linalg.vector_norm(got.double() - wanted.double())
    return float(difference / torch.linalg.vector_norm(wanted.double()).clamp(min=1e-300))


def report(checks: Sequence[Check]) -> str:
    """A table of the checks, wrong ones marked."""
    rows = [
        f"{c.operator:14} {c.result:22} {c.error:9.2e}  <= {c.limit:8.1e}  {'' if c.is_right else 'WRONG'}".rstrip()
        for c in checks
    ]
    return "\n".join([f"{'operator':14} {'result':22} {'error':>9}     limit", *rows])


def _chain_against_decode(e: Example, ctx: OpCtx) -> float:
    """The largest relative error of outputs and states of a verified chain against the same steps decoded."""
    steps, B = 3, e.plan.sequences
    chain = example((steps,) * B, _shape(e), e.q.dtype, e.q.device, seed=3)
    parents = torch.tensor([-1, 0, 1] * B, device=e.q.device)
    state = (chain.slots, chain.kept)
    gates = (chain.A_log, chain.dt_bias)
    mixed = calls.conv1d_verify(chain.x, chain.conv_weight, chain.conv_pool, *state, parents, chain.plan, ctx=ctx)
    o, snapshots = calls.verify_decode(
        mixed, chain.a, chain.b, *gates, chain.pool, *state, parents, chain.plan, ctx=ctx
    )
    pool, conv_pool, kept, worst = chain.pool.clone(), chain.conv_pool.clone(), chain.kept, 0.0
    for step in range(steps):
        rows = torch.arange(B, device=e.q.device) * steps + step
        one = calls.conv1d_update(chain.x[rows], chain.conv_weight, conv_pool, chain.slots, kept, ctx=ctx)
        out = calls.packed_decode(one, chain.a[rows], chain.b[rows], *gates, pool, chain.slots, kept, ctx=ctx)
        kept = torch.ones_like(kept)
        worst = max(worst, relative_error(o[rows], out), relative_error(snapshots[rows], pool[chain.slots]))
    return worst


def _part(e: Example, sequence: int, start: int, end: int) -> Example:
    """Tokens `start` to `end` of one sequence."""
    cut = {name: getattr(e, name)[start:end] for name in ("x", "q", "k", "v", "a", "b", "z")}
    one = slice(sequence, sequence + 1)
    plan = plan_chunks([0, end - start], e.q.device)
    return replace(e, plan=plan, slots=e.slots[one], kept=e.kept[one], **cut)


def _definition(e: Example) -> tuple[torch.Tensor, torch.Tensor]:
    hand = context(Realization.TORCH)
    g, beta = calls.gating(e.a, e.b, e.A_log, e.dt_bias, ctx=hand)
    outputs, states = [], []
    for n in range(e.plan.sequences):
        rows = slice(e.plan.cu_seqlens[n], e.plan.cu_seqlens[n + 1])
        state = e.pool[e.slots[n]] * e.kept[n]
        o, after = sequential(e.q[rows], e.k[rows], e.v[rows], g[rows], beta[rows], state)
        outputs.append(o)
        states.append(after[-1])
    return torch.cat(outputs), torch.stack(states)


def _shape(e: Example) -> HeadShape:
    return HeadShape(e.q.shape[1], e.v.shape[1], e.q.shape[2])


def _is_real(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def main() -> int:
    """0 when every check is right, 1 when one is wrong, 3 when there is nothing to check on."""
    if torch.cuda.is_available():
        e = example(LENGTHS, HeadShape(), torch.bfloat16, torch.device("cuda", torch.cuda.current_device()))
    elif is_interpreted():
        e = example(SMALL_LENGTHS, SMALL, torch.bfloat16, torch.device("cpu"))
    else:
        print("there is no GPU; with TRITON_INTERPRET=1 the interpreter is checked")
        return 3
    checks = [*correctness(e), *unmoved_bits(e)]
    print(report(checks))
    return 0 if all(check.is_right for check in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
