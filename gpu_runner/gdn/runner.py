"""Carries out the scheduler's steps with the model: copies, the forward pass, sampling."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gpu_runner.gdn.batch import ForwardBatch, TrackCopy
from gpu_runner.gdn.cache.pools import Pools
from gpu_runner.gdn.cache.request import Request
from gpu_runner.gdn.logprobs import chosen_log_probabilities
from gpu_runner.gdn.model import Model
from gpu_runner.gdn.registry import OpCtx
from gpu_runner.gdn.sampling import next_token
from gpu_runner.gdn.step import Row, RowResult, Step


@dataclass(frozen=True, slots=True)
class _Answers:
    """Results that may still be computed on the device.

    tokens int64 and logprobs float32: one per row of the step. scored: log-probabilities of prompt tokens,
    concatenated; scored_counts: how many belong to each row.
    """

    samples: list[bool]
    tokens: torch.Tensor
    logprobs: torch.Tensor
    scored: torch.Tensor
    scored_counts: list[int]

    def values(self) -> list[RowResult]:
        """One result per row; waits for the device."""
        tokens, logprobs, scored = self.tokens.tolist(), self.logprobs.tolist(), self.scored.tolist()
        results, offset = [], 0
        for i, (samples, count) in enumerate(zip(self.samples, self.scored_counts, strict=True)):
            own = scored[offset : offset + count]
            results.append(RowResult(tokens[i] if samples else None, logprobs[i] if samples else 0.0, own))
            offset += count
        return results


class Runner:
    """The model over one set of pools; calling it starts the forward pass of a step."""

    def __init__(self, model: Model, pools: Pools, ctx: OpCtx) -> None:
        self.model = model
        self.pools = pools
        self.ctx = ctx
        self._in_flight: dict[Request, torch.Tensor] = {}

    def __call__(self, step: Step) -> _Answers:
        """Starts the pass; nothing here waits for the device unless a row samples with a temperature."""
        self.pools.copy_states(step.copies)
        targets = [_scored_positions(row) for row in step.rows]
        batch = self._batch(step, targets)
        logits = self.model.forward(batch, self.pools, self.ctx)
        return self._answers(step, logits, targets)

    def _batch(self, step: Step, targets: list[range]) -> ForwardBatch:
        device = self.model.device
        offsets: list[int] = [0]
        positions: list[int] = []
        kv_write: list[int] = []
        logit_rows: list[int] = []
        for row, scored in zip(step.rows, targets, strict=True):
            base = offsets[-1] - row.start
            offsets.append(base + row.end)
            positions += range(row.start, row.end)
            kv_write += row.request.rows[row.start : row.end]
            logit_rows += [base + position for position in scored]
            logit_rows.append(base + row.end - 1)
        tracks = [
            TrackCopy(sequence, row.boundary - row.start, row.track_slot)
            for sequence, row in enumerate(step.rows)
            if row.boundary is not None and not row.is_decode
        ]
        return ForwardBatch(
            phase=step.phase,
            token_ids=self._token_ids(step, offsets),
            positions=torch.tensor(positions, device=device),
            cu_seqlens=offsets,
            state_slots=torch.tensor([row.slot for row in step.rows], device=device),
            has_initial_state=torch.tensor([row.start > 0 for row in step.rows], device=device),
            kv_write=torch.tensor(kv_write, device=device),
            kv_read=[torch.tensor(row.request.rows[: row.end], device=device) for row in step.rows],
            tracks=tracks,
            decode_track_slots=self._decode_track_slots(step),
            logit_rows=torch.tensor(logit_rows, device=device),
        )

    def _token_ids(self, step: Step, offsets: list[int]) -> torch.Tensor:
        """The inputs; a token that is still being sampled is taken from the device without waiting for it."""
        known: list[int] = []
        for row in step.rows:
            known += [0] if row.tokens is None else row.tokens
        ids = torch.tensor(known, device=self.model.device)
        unread = [(i, row.request) for i, row in enumerate(step.rows) if row.tokens is None]
        if unread:
            places = torch.tensor([offsets[i] for i, _ in unread], device=ids.device)
            ids[places] = torch.stack([self._in_flight[request] for _, request in unread])
        return ids

    def _decode_track_slots(self, step: Step) -> torch.Tensor | None:
        if step.masks is None:
            return None
        mask = step.masks.mask
        if self.model.device.type == "cuda":
            mask = mask.pin_memory()
        mask = mask.to(self.model.device, non_blocking=True)
        prefilled = sum(not row.is_decode for row in step.rows)
        slots = torch.tensor([-1 if not row.is_decode else row.track_slot for row in step.rows], device=mask.device)
        slots[prefilled:] = torch.where(mask, slots[prefilled:], -1)
        return slots

    def _answers(self, step: Step, logits: torch.Tensor, targets: list[range]) -> _Answers:
        counts = [len(scored) for scored in targets]
        ends = torch.tensor(counts, device=logits.device).add(1).cumsum(0) - 1
        is_scored = torch.ones(logits.shape[0], dtype=torch.bool, device=logits.device)
        is_scored[ends] = False
        next_ids = [
            row.request.prompt[position + 1] for row, s in zip(step.rows, targets, strict=True) for position in s
        ]
        scored_ids = torch.tensor(next_ids, dtype=torch.int64, device=logits.device)
        last = logits[ends]
        tokens = last.argmax(-1)
        for i, row in enumerate(step.rows):
            if row.samples and row.request.sampling.temperature > 0:
                tokens[i] = next_token(last[i], row.request.sampling, row.end)
        self._in_flight = {
            **{request: token for request, token in self._in_flight.items() if request.is_live},
            **{row.request: tokens[i] for i, row in enumerate(step.rows) if row.samples},
        }
        return _Answers(
            samples=[row.samples for row in step.rows],
            tokens=tokens,
            logprobs=chosen_log_probabilities(last, tokens),
            scored=chosen_log_probabilities(logits[is_scored], scored_ids),
            scored_counts=counts,
        )


def _scored_positions(row: Row) -> range:
    """Positions of the row whose next token is a prompt token with a wanted log-probability."""
    request = row.request
    if request.score_from is None or row.is_decode:
        return range(0)
    return range(max(row.start, request.score_from - 1), min(row.end, len(request.prompt) - 1))
