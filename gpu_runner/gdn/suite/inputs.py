"""Small inputs for operators, and the float64 oracle that they are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import torch

from gpu_runner.gdn.counters import Counters
from gpu_runner.gdn.ops.plan import ChunkPlan, plan_chunks
from gpu_runner.gdn.ops.scratch import ScratchPools
from gpu_runner.gdn.registry import OPERATORS, OpCtx, Realization
from gpu_runner.gdn.suite import case

KEY_HEADS, VALUE_HEADS, WIDTH = 1, 2, 16
CONV_DIM = (2 * KEY_HEADS + VALUE_HEADS) * WIDTH


def oracle_context() -> OpCtx:
    """PyTorch realizations on scratch and counters of their own: nothing in the process can reach them."""
    counters = Counters()
    scratch = ScratchPools(counters).of_stream(case.device(), 0)
    hand_path = dict.fromkeys(OPERATORS, Realization.TORCH)
    return OpCtx(overrides=hand_path, scratch=scratch, counters=counters)


@dataclass(frozen=True, slots=True)
class Inputs:
    """Everything that an operator can be given, for packed sequences of the given lengths.

    x, weight: convolution. mixed: rows after it. q, k, v: [N, heads, width], q and k of norm 1. a, b, g, beta, A_log,
    dt_bias: gates. conv_pool, pool: three slots, of which the sequences use 1, 2, ... z, norm: output gate.
    """

    plan: ChunkPlan
    slots: torch.Tensor
    kept: torch.Tensor
    x: torch.Tensor
    weight: torch.Tensor
    mixed: torch.Tensor
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    a: torch.Tensor
    b: torch.Tensor
    A_log: torch.Tensor
    dt_bias: torch.Tensor
    g: torch.Tensor
    beta: torch.Tensor
    conv_pool: torch.Tensor
    pool: torch.Tensor
    z: torch.Tensor
    norm: torch.Tensor
    float32_fields: frozenset[str] = field(default=frozenset({"A_log", "dt_bias", "g", "beta", "pool", "norm"}))

    @classmethod
    def draw(cls, lengths: Sequence[int], *, seed: int, value_heads: int = VALUE_HEADS) -> Self:
        """Random inputs in the suite's dtype on its device; the first sequence has no initial state."""
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator)

        offsets = [0]
        for length in lengths:
            offsets.append(offsets[-1] + length)
        tokens, count = offsets[-1], len(lengths)
        conv_dim = (2 * KEY_HEADS + value_heads) * WIDTH
        drawn = cls(
            plan=plan_chunks(offsets, case.device()),
            slots=torch.arange(1, count + 1),
            kept=torch.arange(count) > 0,
            x=normal(tokens, conv_dim),
            weight=normal(conv_dim, 4),
            mixed=normal(tokens, conv_dim),
            q=torch.nn.functional.normalize(normal(tokens, KEY_HEADS, WIDTH), dim=-1),
            k=torch.nn.functional.normalize(normal(tokens, KEY_HEADS, WIDTH), dim=-1),
            v=normal(tokens, value_heads, WIDTH),
            a=normal(tokens, value_heads),
            b=normal(tokens, value_heads),
            A_log=normal(value_heads),
            dt_bias=normal(value_heads),
            g=-torch.rand(tokens, value_heads, generator=generator),
            beta=torch.rand(tokens, value_heads, generator=generator),
            conv_pool=normal(count + 1, conv_dim, 3),
            pool=normal(count + 1, value_heads, WIDTH, WIDTH),
            z=normal(tokens, value_heads, WIDTH),
            norm=normal(WIDTH),
        )
        return drawn._moved(case.device(), case.dtype())

    def fresh(self) -> Self:
        """The same inputs with pools of their own, for a call that writes into them."""
        return replace(self, conv_pool=self.conv_pool.clone(), pool=self.pool.clone())

    def in_float64(self) -> Self:
        """The same numbers in float64, pools included."""
        return replace(self, **{name: value.double() for name, value in self._floats()})

    def with_dtype(self, dtype: torch.dtype) -> Self:
        """The same inputs with another model dtype."""
        return self._moved(case.device(), dtype)

    def _floats(self) -> list[tuple[str, torch.Tensor]]:
        pairs = [(item.name, getattr(self, item.name)) for item in fields(self)]
        return [(name, v) for name, v in pairs if isinstance(v, torch.Tensor) and v.is_floating_point()]

    def _moved(self, device: torch.device, dtype: torch.dtype) -> Self:
        moved: dict[str, Any] = {
            name: value.to(device, torch.float32 if name in self.float32_fields else dtype)
            for name, value in self._floats()
        }
        return replace(self, slots=self.slots.to(device), kept=self.kept.to(device), **moved)


def assert_close(got: torch.Tensor, want: torch.Tensor) -> None:
    """AssertionError unless `got` equals the float64 `want` within the rounding of the suite's dtype."""
    if case.dtype() is torch.float32:
        assert_near(got, want, atol=3e-5, rtol=1e-4)
    else:
        assert_near(got, want, atol=6e-2, rtol=4e-2)


def assert_near(got: torch.Tensor, want: torch.Tensor, *, atol: float, rtol: float = 0.0) -> None:
    """AssertionError unless |got - want| <= atol + rtol * |want| everywhere; no number is near a NaN.

    torch.testing says it with more words, for which it imports sympy: 0.75 s in each process.
    """
    assert got.shape == want.shape, f"shapes differ: {tuple(got.shape)} and {tuple(want.shape)}"
    difference = (got.double() - want.double()).abs()
    is_far = ~(difference <= atol + rtol * want.double().abs())
    worst = float(difference.nan_to_num(nan=float("inf")).max())
    assert not bool(is_far.any()), f"{int(is_far.sum())} of {got.numel()} elements differ, by up to {worst:.1e}"
