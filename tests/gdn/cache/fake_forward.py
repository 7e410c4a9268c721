"""A forward pass without a model: a state slot holds the tokens it has absorbed, a KV row holds its token.

Every read is checked against what must be there, so that a wrong copy, a stale slot or a mislabelled checkpoint is an
error at once. The next token is a pure function of all tokens before it, as with greedy decoding.
"""

from __future__ import annotations

import hashlib

from gpu_runner.gdn.cache.request import Request
from gpu_runner.gdn.sched import Scheduler
from gpu_runner.gdn.step import Row, RowResult, Step


class WrongStateError(AssertionError):
    """A slot or a row did not hold what the scheduler believed."""


class ForwardBrokeError(RuntimeError):
    """The injected failure of a forward pass."""


class Answers:
    def __init__(self, results: list[RowResult]) -> None:
        self._results = results

    def values(self) -> list[RowResult]:
        return self._results


def next_token(tokens: list[int], vocabulary: int = 5) -> int:
    digest = hashlib.blake2b(bytes(t % 251 for t in tokens), digest_size=2).digest()
    return int.from_bytes(digest) % vocabulary


def expected_output(prompt: list[int], max_new_tokens: int, stop: frozenset[int] = frozenset()) -> list[int]:
    tokens = list(prompt)
    while len(tokens) < len(prompt) + max_new_tokens:
        tokens.append(next_token(tokens))
        if tokens[-1] in stop:
            break
    return tokens[len(prompt) :]


class FakeForward:
    def __init__(self) -> None:
        self.states: dict[int, list[int]] = {}
        self.kv: dict[int, int] = {}
        self.in_flight: dict[Request, int] = {}
        self.scheduler: Scheduler | None = None
        self.fails_next = False
        self.steps: list[Step] = []

    def __call__(self, step: Step) -> Answers:
        if self.fails_next:
            self.fails_next = False
            raise ForwardBrokeError("injected")
        self.steps.append(step)
        for source, destination in step.copies:
            self._owned(source, destination)
            self.states[destination] = list(self.states[source])
        return Answers([self._row(row) for row in step.rows])

    def _row(self, row: Row) -> RowResult:
        request = row.request
        new = row.tokens if row.tokens is not None else [self.in_flight[request]]
        self._owned(row.slot, *([row.track_slot] if row.track_slot >= 0 else []))
        before = [*request.tokens, self.in_flight.get(request, -1)][: row.start]
        state = self.states.get(row.slot, []) if row.start else []
        if state != before:
            raise WrongStateError(f"{request.name}: slot {row.slot} holds {len(state)} tokens, not {row.start}")
        for position, token in enumerate(new, row.start):
            self.kv[request.rows[position]] = token
        if [self.kv[r] for r in request.rows[: row.end]] != before + new:
            raise WrongStateError(f"{request.name}: the KV rows do not hold the first {row.end} tokens")
        self.states[row.slot] = before + new
        if row.boundary is not None:
            self.states[row.track_slot] = (before + new)[: row.boundary]
        token = next_token(before + new) if row.samples else None
        if token is not None:
            self.in_flight[request] = token
        return RowResult(token, 0.0, [])

    def _owned(self, *slots: int) -> None:
        assert self.scheduler is not None
        for slot in slots:
            if slot <= 0 or slot in self.scheduler.cache.slots:
                raise WrongStateError(f"slot {slot} is used although nobody owns it")
