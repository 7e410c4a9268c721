"""Inputs for the operators: odd sizes, mixed lengths, strided rows, and buffers poisoned with NaN."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gpu_runner.gdn.batch import Phase
from gpu_runner.gdn.counters import Counters
from gpu_runner.gdn.ops.plan import ChunkPlan, plan_chunks
from gpu_runner.gdn.ops.scratch import ScratchPools
from gpu_runner.gdn.registry import OPERATORS, OpCtx, Realization


@dataclass
class Case:
    """N packed tokens of B sequences; a `slots` entry of -1 is padding."""

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


def make_case(
    lengths=(65, 1, 100), *, key_heads=1, value_heads=2, head_dim=16, dtype=torch.float32, slots=(4, -1, 2),
    kept=(True, True, False), seed=0,
) -> Case:  # fmt: skip
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape, dtype=dtype):
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        return torch.randn(*shape, generator=generator, dtype=wide).to(dtype)

    offsets = [0]
    for length in lengths:
        offsets.append(offsets[-1] + length)
    N, channels = offsets[-1], (2 * key_heads + value_heads) * head_dim
    state_dtype = torch.float64 if dtype == torch.float64 else torch.float32
    packed = normal(N, channels + 3 * value_heads)
    pool = normal(6, value_heads, head_dim, head_dim, dtype=state_dtype)
    return Case(
        plan=plan_chunks(offsets),
        # Rows of a wider projection, as the model hands them over.
        x=packed[:, :channels],
        a=packed[:, channels : channels + value_heads],
        b=packed[:, channels + value_heads : channels + 2 * value_heads],
        conv_weight=normal(channels, 4),
        conv_pool=normal(6, channels, 3),
        q=normal(N, key_heads, head_dim),
        k=normal(N, key_heads, head_dim),
        v=normal(N, channels)[:, : value_heads * head_dim].unflatten(1, (value_heads, head_dim)),
        A_log=torch.rand(value_heads, generator=generator, dtype=state_dtype),
        dt_bias=torch.rand(value_heads, generator=generator, dtype=state_dtype),
        z=normal(N, 2 * value_heads * head_dim)[:, : value_heads * head_dim].unflatten(1, (value_heads, head_dim)),
        norm=normal(head_dim),
        pool=pool,
        slots=torch.tensor(slots),
        kept=torch.tensor(kept),
    )


def context(realization=Realization.TORCH, *, phase=Phase.PREFILL, layer=0, pools=None) -> OpCtx:
    """A context of its own scratch, whose every byte is NaN, and its own counters."""
    pools = pools or ScratchPools(Counters())
    scratch = pools.of_stream("cpu", 0)
    for name in ("A", "w", "u", "h", "v_new"):
        scratch.empty(name, (1 << 16,), torch.float32)
    pools.poison()
    return OpCtx(
        layer=layer,
        phase=phase,
        overrides=dict.fromkeys(OPERATORS, realization),
        scratch=scratch,
        counters=Counters(),
    )


class Poisoned:
    """Makes torch.empty and torch.empty_like return NaN, so that an output nobody wrote is seen."""

    def __init__(self, monkeypatch):
        empty, empty_like = torch.empty, torch.empty_like

        def filled(tensor):
            return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor

        monkeypatch.setattr(torch, "empty", lambda *a, **k: filled(empty(*a, **k)))
        monkeypatch.setattr(torch, "empty_like", lambda *a, **k: filled(empty_like(*a, **k)))
