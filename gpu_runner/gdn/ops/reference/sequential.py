"""The definition: one token at a time in float64, for tests and for the correctness gate of the benchmarks."""

from __future__ import annotations

import torch

L2_EPS = 1e-6


def sequential(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    *,
    normalise: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs [T, Hv, Dv] and the states after each token [T, Hv, Dv, Dk] of one sequence, all float64.

    q, k [T, Hk, Dk]; v [T, Hv, Dv]; g (log decay), beta [T, Hv]; state [Hv, Dv, Dk] before the first token.
    Yang, Kautz, Hatamizadeh 2025, "Gated Delta Networks", eq. 10; q and k are l2-normalised first if `normalise`.
    """
    q, k, v, g, beta, S = (x.double() for x in (q, k, v, g, beta, state))
    if normalise:
        q, k = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + L2_EPS) for x in (q, k))
    per_key = v.shape[1] // q.shape[1]
    q, k = (x.repeat_interleave(per_key, 1) for x in (q * q.shape[-1] ** -0.5, k))
    outputs, states = [], []
    for t in range(v.shape[0]):
        S = S * g[t].exp()[:, None, None]
        d = (v[t] - torch.einsum("hvk,hk->hv", S, k[t])) * beta[t][:, None]
        S = S + d[:, :, None] * k[t][:, None, :]
        outputs.append(torch.einsum("hvk,hk->hv", S, q[t]))
        states.append(S)
    if not outputs:
        return v.clone(), state.double().new_zeros(0, *state.shape)
    return torch.stack(outputs), torch.stack(states)
