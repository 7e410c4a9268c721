"""One sequence by itself: the plain path of the command line, of drafts and of tests, without a scheduler."""

from __future__ import annotations

from collections.abc import Sequence as Items

import torch

from gpu_runner.gdn.batch import ForwardBatch, Phase
from gpu_runner.gdn.cache.pools import Pools
from gpu_runner.gdn.model import ForwardOutput, Model
from gpu_runner.gdn.registry import OpCtx

SLOT = 1


class Sequence:
    """The tokens processed so far and their state; `capacity` is how many tokens fit."""

    def __init__(self, model: Model, capacity: int, ctx: OpCtx) -> None:
        self.model = model
        self.ctx = ctx
        self.length = 0
        self.pools = Pools.allocate(
            model.config.pool_shape, rows=capacity, slots=1, dtype=model.dtype, device=model.device
        )

    def extend(self, token_ids: Items[int]) -> torch.Tensor:
        """Hidden states [T, hidden] of new tokens, by the chunked form."""
        output = self.model.run(self._batch(Phase.PREFILL, token_ids), self.pools, self.ctx)
        self.length += len(token_ids)
        return output.hidden

    def step(self, token_id: int) -> torch.Tensor:
        """Hidden state [1, hidden] of one new token, by the recurrent form."""
        output = self.model.run(self._batch(Phase.DECODE, [token_id]), self.pools, self.ctx)
        self.length += 1
        return output.hidden

    def verify(self, token_ids: Items[int]) -> tuple[ForwardBatch, ForwardOutput]:
        """The pass over a chain of draft tokens, which advances nothing; `accept` takes its result."""
        batch = self._batch(Phase.VERIFY, token_ids)
        return batch, self.model.run(batch, self.pools, self.ctx)

    def accept(self, batch: ForwardBatch, output: ForwardOutput, count: int) -> None:
        """Advances over the first `count` tokens of a verified chain; rows of the others are written over later."""
        self.model.commit(output, batch, self.pools, [list(range(count))])
        self.length += count

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits, float32 [R, vocabulary], of hidden states."""
        return self.model.logits(hidden, self.ctx)

    def _batch(self, phase: Phase, token_ids: Items[int]) -> ForwardBatch:
        new, capacity, device = len(token_ids), self.pools.kv_k.shape[1], self.model.device
        if not new:
            raise ValueError("no tokens given; a forward pass needs at least one")
        if self.length + new > capacity:
            raise ValueError(f"{self.length} + {new} tokens do not fit into a capacity of {capacity}")
        rows = torch.arange(self.length + new, device=device)
        return ForwardBatch(
            phase=phase,
            token_ids=torch.tensor(token_ids, dtype=torch.int64, device=device),
            positions=rows[self.length :],
            cu_seqlens=[0, new],
            state_slots=torch.tensor([SLOT], device=device),
            has_initial_state=torch.tensor([self.length > 0], device=device),
            kv_write=rows[self.length :],
            kv_read=[rows],
            parents=torch.arange(-1, new - 1, device=device) if phase is Phase.VERIFY else None,
        )
