"""One request: what it asks for, what it has produced, and what it holds of the cache."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from gpu_runner.gdn.cache.radix import Node
from gpu_runner.gdn.cache.tracking import Checkpoints
from gpu_runner.gdn.sampling import SamplingParams


class Status(StrEnum):
    """Where a request is in its life."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    ABORTED = "aborted"


@dataclass(eq=False, slots=True)
class Request:
    """A prompt to continue or to score.

    max_new_tokens may be 0: the prompt is only computed, which fills the cache. score_from: log-probabilities of the
    prompt's tokens are wanted from this position on (1 is the first that has one), None: not at all.
    """

    name: str
    prompt: list[int]
    max_new_tokens: int
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop_tokens: frozenset[int] = frozenset()
    score_from: int | None = None

    status: Status = Status.WAITING
    output: list[int] = field(default_factory=list)
    output_logprobs: list[float] = field(default_factory=list)
    prompt_logprobs: list[float] = field(default_factory=list)

    # Of the cache. computed: tokens whose rows and state exist or are being written by the step in flight.
    rows: list[int] = field(default_factory=list)
    tree_rows: int = 0
    node: Node | None = None
    working: int | None = None
    copy_from: int | None = None
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    branching: int | None = None
    computed: int = 0
    cached_tokens: int = 0
    decode_steps: int = 0
    rejected_length: int | None = None
    rejections: int = 0

    @property
    def tokens(self) -> list[int]:
        """Prompt and output so far."""
        return self.prompt + self.output

    @property
    def is_live(self) -> bool:
        """Whether it still waits or runs."""
        return self.status in {Status.WAITING, Status.RUNNING}

    def stops(self) -> bool:
        """Whether the last token that was generated ends the output."""
        return bool(self.output) and self.output[-1] in self.stop_tokens

    def held_slots(self) -> list[int]:
        """Every state slot that this request owns."""
        working = [] if self.working is None else [self.working]
        return working + self.checkpoints.held()

    def own_rows(self) -> list[int]:
        """The KV rows that belong to the request and not to the tree."""
        return self.rows[self.tree_rows :]
