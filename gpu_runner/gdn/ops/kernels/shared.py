"""What every kernel file needs: how dots and roundings are written so that the interpreter computes them too."""

# ruff: noqa: ANN001, ANN201, D403 - Triton compiles these: parameters have no Python types.
from __future__ import annotations

import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction

INTERPRETED = isinstance(tl.sum, InterpretedFunction)
"""Whether triton was imported under TRITON_INTERPRET=1; it cannot change afterwards."""

# The interpreter computes garbage on bfloat16 values, so there the operands of a dot are raised to float32 first. That
# is exact: the product of two bfloat16 numbers fits float32.
RAISE = tl.constexpr(INTERPRETED)


@triton.jit
def cast(x, dtype: tl.constexpr):
    """x in a storage dtype, rounded to nearest even: the interpreter would cut bfloat16 off instead."""
    TRUNCATES: tl.constexpr = RAISE and dtype == tl.bfloat16
    if TRUNCATES:
        wide = x.to(tl.float32)
        bits = wide.to(tl.int32, bitcast=True)
        nearest = ((bits + 0x7FFF + ((bits >> 16) & 1)) & -65536).to(tl.float32, bitcast=True)
        # The sum would turn a NaN into a number.
        y = tl.where(wide != wide, wide, nearest).to(dtype)  # noqa: PLR0124
    else:
        y = x.to(dtype)
    return y


@triton.jit
def dot(a, b):
    """a @ b in float32; "ieee", for without it a GPU would round float32 operands to tf32."""
    if RAISE:
        c = tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    else:
        c = tl.dot(a, b, input_precision="ieee")
    return c


@triton.jit
def silu(x):
    """x * sigmoid(x) in float32."""
    return x / (1.0 + tl.exp(-x))


@triton.jit
def softplus(x):
    """log(1 + exp(x)), x itself above 20; y / ((1 + y) - 1) undoes the rounding of 1 + y, as log1p does."""
    y = tl.exp(tl.minimum(x, 20.0))
    z = 1.0 + y
    log1p = tl.where(z == 1.0, y, tl.log(z) * (y / tl.maximum(z - 1.0, 1e-30)))
    return tl.where(x > 20.0, x, log1p)
