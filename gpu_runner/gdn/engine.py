"""The engine: generate, score, flush, and what it has done so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gpu_runner.gdn import faults
from gpu_runner.gdn.cache.errors import RequestTooLargeError
from gpu_runner.gdn.cache.pools import Pools
from gpu_runner.gdn.cache.request import Request, Status
from gpu_runner.gdn.counters import COUNTERS, Counters
from gpu_runner.gdn.model import Model
from gpu_runner.gdn.registry import OpCtx
from gpu_runner.gdn.runner import Runner
from gpu_runner.gdn.sampling import SamplingParams
from gpu_runner.gdn.sched import Scheduler, SchedulerConfig


@dataclass(frozen=True, slots=True)
class Completion:
    """What became of one prompt.

    logprobs: natural log-probability of each new token. cached_tokens: how much of the prompt came from the cache.
    """

    token_ids: list[int]
    logprobs: list[float]
    cached_tokens: int
    is_aborted: bool


class Engine:
    """A model with its cache and scheduler; one engine serves one device.

    `production` refuses every historical fault (FaultError).
    """

    def __init__(
        self, model: Model, config: SchedulerConfig, *, counters: Counters = COUNTERS, production: bool = False
    ) -> None:
        faults.refuse_in_production(production=production)
        self.config = config
        self.counters = counters
        cache = config.cache
        pools = Pools.allocate(
            model.config.pool_shape, rows=cache.rows, slots=cache.slots, dtype=model.dtype, device=model.device
        )
        self.runner = Runner(model, pools, OpCtx(deterministic=cache.deterministic, counters=counters))
        self.scheduler = Scheduler(config, self.runner, counters)
        self._requests = 0

    def submit(
        self,
        prompt: Sequence[int],
        max_new_tokens: int,
        sampling: SamplingParams | None = None,
        *,
        stop_tokens: frozenset[int] = frozenset(),
        score_from: int | None = None,
    ) -> Request:
        """A queued request, filled in by `step`; RequestTooLargeError when it can never run.

        ValueError for what the model has no answer to: it must not reach a batch, where it would end the others too.
        """
        vocabulary = self.runner.model.config.vocab_size
        unknown = [token for token in prompt if not isinstance(token, int) or not 0 <= token < vocabulary]
        if unknown:
            raise ValueError(f"{unknown[:5]} are no token ids of a vocabulary of {vocabulary}")
        if max_new_tokens < 0:
            raise ValueError(f"max_new_tokens {max_new_tokens} is negative; 0 only fills the cache")
        request = Request(
            name=f"request-{self._requests}",
            prompt=list(prompt),
            max_new_tokens=max_new_tokens,
            sampling=sampling or SamplingParams(),
            stop_tokens=stop_tokens,
            score_from=score_from,
        )
        self.scheduler.submit(request)
        self._requests += 1
        return request

    def step(self) -> bool:
        """One round of the scheduler; False when there was nothing to do."""
        return self.scheduler.step()

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
        sampling: SamplingParams | None = None,
        *,
        stop_tokens: frozenset[int] = frozenset(),
    ) -> list[Completion]:
        """Completions of all prompts, batched continuously; `max_new_tokens` 0 only fills the cache.

        When one prompt is refused none is run.
        """
        requests: list[Request] = []
        try:
            for prompt in prompts:
                requests += [self.submit(prompt, max_new_tokens, sampling, stop_tokens=stop_tokens)]
        except (RequestTooLargeError, ValueError):
            for request in requests:
                self.scheduler.abort(request)
            raise
        self.scheduler.run()
        return [completion(request) for request in requests]

    def score(self, tokens: Sequence[int], score_from: int = 1) -> list[float]:
        """Natural log-probabilities of tokens[score_from:], each given all before it, by prefill alone."""
        if not 1 <= score_from < len(tokens):
            raise ValueError(f"score_from {score_from} is outside [1, {len(tokens)}): no token to score")
        request = self.submit(tokens, 0, score_from=score_from)
        self.scheduler.run()
        return request.prompt_logprobs

    def flush_cache(self) -> bool:
        """Empties the prefix cache; False, and nothing happens, while requests wait or run."""
        return self.scheduler.flush()

    def server_info(self) -> dict[str, Any]:
        """Configuration, use of the pools, counters of the cache and the faults that are on; JSON values only."""
        cache = self.scheduler.cache
        return {
            "config": asdict(self.config),
            "waiting": len(self.scheduler.waiting),
            "running": len(self.scheduler.running),
            "free_rows": cache.rows.available(),
            "evictable_rows": cache.tree.evictable_rows(),
            "free_slots": len(cache.slots),
            "tree_slots": len(cache.tree.states()),
            "counters": self.counters.flat((), ()),
            "faults": sorted(str(fault) for fault in faults.active()),
        }


def completion(request: Request) -> Completion:
    """What a request that has ended produced."""
    is_aborted = request.status is Status.ABORTED
    return Completion(request.output, request.output_logprobs, request.cached_tokens, is_aborted)
