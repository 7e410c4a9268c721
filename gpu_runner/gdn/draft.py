"""The draft head: guesses the next tokens from the last hidden state, at the price of one small product each."""

from __future__ import annotations

import torch

from gpu_runner.gdn.counters import Counters
from gpu_runner.gdn.linear import linear, zero_centred_rms_norm
from gpu_runner.gdn.model import Model
from gpu_runner.gdn.ops.scratch import ScratchPools
from gpu_runner.gdn.registry import OPERATORS, OpCtx, Realization
from gpu_runner.gdn.sequence import Sequence
from gpu_runner.gdn.weights import DraftWeights


class MissingDraftError(ValueError):
    """Speculation was asked of a checkpoint without an `mtp` module."""


def draft_step(
    model: Model, hidden: torch.Tensor, token_ids: torch.Tensor, ctx: OpCtx
) -> tuple[torch.Tensor, torch.Tensor]:
    """(hidden states that the head predicts after `token_ids`, their logits), [R, hidden] and float32 [R, vocabulary].

    hidden [R, hidden]: those before each token, the model's own or the head's. As in Qwen3-Next's `mtp` module, norm
    the embedding and the hidden state, join them and project; its decoder layer is left out, so a draft has no state.
    """
    weights = model.weights.draft
    if weights is None:
        raise MissingDraftError("this checkpoint has no mtp.* tensors; run without speculation")
    stable = ctx.deterministic
    joined = _joined(model, weights, hidden, token_ids)
    predicted = linear(joined, weights.fc, is_row_stable=stable)
    normed = zero_centred_rms_norm(predicted, weights.norm, model.config.rms_norm_eps)
    return predicted, linear(normed, model.weights.lm_head, is_row_stable=stable).float()


def draft_chain(model: Model, hidden: torch.Tensor, token_id: int, count: int, ctx: OpCtx) -> list[int]:
    """The `count` tokens that the head expects after `token_id`; hidden [1, hidden] is the state before that token."""
    drafts: list[int] = []
    last = token_id
    for _ in range(count):
        hidden, logits = draft_step(model, hidden, torch.tensor([last], device=hidden.device), ctx)
        last = int(logits[0].argmax())
        drafts.append(last)
    return drafts


def fit_draft(model: Model, *, seed: int, sequences: int = 4, tokens: int = 256) -> dict[str, torch.Tensor]:
    """The `mtp.*` tensors of a head fitted to the model: ridge regression of its own next hidden states.

    A random head is never right, and a dead drafter passes every identity test; a trained one needs data. The closed
    form on random text gives a tiny random model a drafter that is right now and then.
    """
    hidden_size, dtype = model.config.hidden_size, model.dtype
    zero = torch.zeros(hidden_size, dtype=dtype, device=model.device)
    norms = DraftWeights(zero, zero, zero.new_zeros(hidden_size, 2 * hidden_size), zero)
    # By the hand path, on scratch and counters of its own: the head may not depend on what it helps to compare.
    hand_path, counters = dict.fromkeys(OPERATORS, Realization.TORCH), Counters()
    scratch = ScratchPools(counters).of_stream(model.device, 0)
    ctx = OpCtx(overrides=hand_path, scratch=scratch, counters=counters)
    generator = torch.Generator().manual_seed(seed)
    inputs, targets = [], []
    for _ in range(sequences):
        ids = torch.randint(0, model.config.vocab_size, (tokens,), generator=generator)
        hidden = Sequence(model, tokens, ctx).extend(ids.tolist())
        inputs.append(_joined(model, norms, hidden[:-1], ids[1:]))
        targets.append(hidden[1:])
    x, y = torch.cat(inputs).double(), torch.cat(targets).double()
    penalty = 1e-3 * len(x) * torch.eye(x.shape[1], dtype=torch.float64, device=x.device)
    fc = torch.linalg.solve(x.T @ x + penalty, x.T @ y).T
    return {
        "mtp.pre_fc_norm_hidden.weight": zero.clone(),
        "mtp.pre_fc_norm_embedding.weight": zero.clone(),
        "mtp.fc.weight": fc.to(dtype).contiguous(),
        "mtp.norm.weight": model.weights.final_norm.clone(),
    }


def _joined(model: Model, weights: DraftWeights, hidden: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    eps = model.config.rms_norm_eps
    embedded = zero_centred_rms_norm(model.weights.embed[token_ids], weights.embedding_norm, eps)
    return torch.cat([embedded, zero_centred_rms_norm(hidden, weights.hidden_norm, eps)], dim=-1)
