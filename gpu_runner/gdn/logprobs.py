"""Log-probabilities of tokens, and how far a replay is from the generation it repeats."""

from __future__ import annotations

import torch


def chosen_log_probabilities(logits: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """float32 [R]: log p(token_ids[i]) under logits [R, vocabulary]."""
    return logits.float().log_softmax(-1).gather(-1, token_ids[:, None])[:, 0]


def k3_divergence(generated: torch.Tensor, replayed: torch.Tensor) -> float:
    """Mean k3 estimate of KL(generation || replay) from the log-probabilities of the same tokens; >= 0.

    k3 = exp(r) - 1 - r with r = replayed - generated, unbiased for tokens drawn from the generation
    (Schulman 2020, http://joschu.net/blog/kl-approx.html). Empty input has no divergence: ValueError.
    """
    if generated.numel() == 0:
        raise ValueError("no tokens were generated, so there is no divergence to estimate")
    ratio = (replayed - generated).double()
    return float((ratio.exp() - 1 - ratio).mean())
