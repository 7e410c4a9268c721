"""The next token from logits: greedy, or drawn with a seed that belongs to the request."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a request's tokens are chosen.

    temperature: 0 is greedy. top_p: keep the most probable tokens whose probabilities sum to at least this,
    in (0, 1]. seed: every draw depends on (seed, position) alone, so a batch never changes a request's tokens.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise ValueError(f"temperature {self.temperature} is not a number from 0; 0 is greedy")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p {self.top_p} is outside (0, 1]")


def next_token(logits: torch.Tensor, params: SamplingParams, position: int) -> int:
    """The token chosen from logits [vocabulary] at `position` of its sequence.

    Draws by the Gumbel-max trick (Gumbel 1954): argmax of logits / temperature + Gumbel noise has the softmax's
    distribution. The generator is Mersenne Twister on the CPU, whatever the device, so seeds repeat everywhere.
    """
    if params.temperature == 0:
        return int(logits.argmax())
    scaled = logits.detach().to(device="cpu", dtype=torch.float64) / params.temperature
    if params.top_p < 1:
        scaled = scaled.masked_fill(~nucleus(scaled.softmax(-1), params.top_p), float("-inf"))
    generator = torch.Generator().manual_seed((params.seed * 0x9E3779B1 + position) % 2**63)
    uniform = torch.rand(scaled.shape, generator=generator, dtype=torch.float64)
    noise = -torch.log(-torch.log(uniform.clamp(min=torch.finfo(torch.float64).tiny)))
    return int((scaled + noise).argmax())


def nucleus(probabilities: torch.Tensor, top_p: float) -> torch.Tensor:
    """Bool [vocabulary]: the smallest set of most probable tokens that reaches `top_p`; never empty."""
    ordered, index = probabilities.sort(descending=True)
    is_kept = torch.zeros_like(probabilities, dtype=torch.bool)
    is_kept[index] = ordered.cumsum(-1) - ordered < top_p
    return is_kept
