"""Speculative decoding with a tree of drafts: several guesses for each next token, verified in one pass.

Every node is verified against its own ancestors alone, so a wrong sibling leaves no trace; the tokens are those of
plain greedy decoding.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass

import torch

from gpu_runner.gdn.batch import ForwardBatch, Phase
from gpu_runner.gdn.draft import draft_step
from gpu_runner.gdn.logprobs import chosen_log_probabilities
from gpu_runner.gdn.model import Model
from gpu_runner.gdn.registry import OpCtx
from gpu_runner.gdn.sequence import SLOT, Sequence


@dataclass(frozen=True, slots=True)
class TreeShape:
    """Depth of the tree in drafts, children tried per node, and how many drafts a pass verifies at most."""

    steps: int = 3
    top_k: int = 4
    drafts: int = 8

    def __post_init__(self) -> None:
        if min(self.steps, self.top_k, self.drafts) < 1:
            raise ValueError(f"{self} has a zero; without drafts decode plainly")


@dataclass(frozen=True, slots=True)
class DraftTree:
    """tokens: the last sure token, then drafts, parents first. parents: index of each node's parent, -1: the root's."""

    tokens: list[int]
    parents: list[int]

    def depths(self) -> list[int]:
        """Distance of each node from the root."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(depths[parent] + 1 if parent >= 0 else 0)
        return depths

    def child(self, node: int, token: int) -> int | None:
        """The child of `node` that guesses `token`, or None."""
        for index, (guess, parent) in enumerate(zip(self.tokens, self.parents, strict=True)):
            if parent == node and guess == token:
                return index
        return None


@dataclass(frozen=True, slots=True)
class Accepted:
    """path: the nodes from the root to the last accepted draft. hidden [len(path), hidden] and logits float32
    [len(path), vocabulary] of these nodes; the next token after each is the argmax.
    """

    path: list[int]
    hidden: torch.Tensor
    logits: torch.Tensor


@dataclass(frozen=True, slots=True)
class TreeSpeculation:
    """token_ids and their natural logprobs. proposed, accepted: drafts in all. off_first: accepted drafts that were
    not the drafter's first choice, which a chain would have missed. passes: verify passes.
    """

    token_ids: list[int]
    logprobs: list[float]
    proposed: int
    accepted: int
    off_first: int
    passes: int


def draft_tree(model: Model, hidden: torch.Tensor, token_id: int, shape: TreeShape, ctx: OpCtx) -> DraftTree:
    """The tree that the draft head expects after `token_id`; hidden [1, hidden] is the state before that token.

    As EAGLE-2 (Li et al. 2024, section 4): the `top_k` likeliest leaves grow `top_k` children each, then the `drafts`
    likeliest nodes are kept. A child is never likelier than its parent, so what is kept is a tree.
    """
    tokens, parents, scores = [token_id], [-1], [0.0]
    frontier = [0]
    states = hidden
    for _ in range(shape.steps):
        ids = torch.tensor([tokens[node] for node in frontier], device=hidden.device)
        states, logits = draft_step(model, states, ids, ctx)
        best, guesses = logits.log_softmax(-1).topk(min(shape.top_k, logits.shape[-1]), dim=-1)
        grown: list[tuple[int, int]] = []
        for place, node in enumerate(frontier):
            for log_p, guess in zip(best[place].tolist(), guesses[place].tolist(), strict=True):
                grown.append((len(tokens), place))
                tokens.append(guess)
                parents.append(node)
                scores.append(scores[node] + log_p)
        grown.sort(key=lambda item: -scores[item[0]])
        grown = grown[: shape.top_k]
        frontier = [node for node, _ in grown]
        states = states[torch.tensor([place for _, place in grown], device=hidden.device)]
    # Ties go to the older node, which is the parent.
    kept = sorted(sorted(range(1, len(tokens)), key=lambda node: (-scores[node], node))[: shape.drafts])
    place_of = {0: 0} | {node: place for place, node in enumerate(kept, 1)}
    return DraftTree([token_id, *(tokens[node] for node in kept)], [-1, *(place_of[parents[node]] for node in kept)])


def verify_tree(sequence: Sequence, tree: DraftTree) -> Accepted:
    """What one pass over the tree accepts. State, keys and values of the path are the sequence's afterwards; of other
    nodes nothing is left.
    """
    new, device = len(tree.tokens), sequence.model.device
    rows = torch.arange(sequence.length + new, device=device)
    depths = torch.tensor(tree.depths(), device=device)
    batch = ForwardBatch(
        phase=Phase.VERIFY,
        token_ids=torch.tensor(tree.tokens, device=device),
        positions=sequence.length + depths,
        cu_seqlens=[0, new],
        state_slots=torch.tensor([SLOT], device=device),
        has_initial_state=torch.tensor([sequence.length > 0], device=device),
        kv_write=rows[sequence.length :],
        kv_read=[rows],
        parents=torch.tensor(tree.parents, device=device),
    )
    output = sequence.model.run(batch, sequence.pools, sequence.ctx)
    logits = sequence.logits(output.hidden)
    best = logits.argmax(-1).tolist()
    path = [0]
    while (child := tree.child(path[-1], best[path[-1]])) is not None:
        path.append(child)
    sequence.model.commit(output, batch, sequence.pools, [path])
    _compact(sequence, path)
    sequence.length += len(path)
    return Accepted(path, output.hidden[path], logits[path])


def speculate_tree(
    model: Model, prompt: Items[int], max_new_tokens: int, shape: TreeShape, ctx: OpCtx
) -> TreeSpeculation:
    """Greedy continuation of `prompt` by `max_new_tokens` tokens, one draft tree per pass.

    Counted as gdn.spec.tree.proposed, .accepted, .off_first and .passes.
    """
    sequence = Sequence(model, len(prompt) + max_new_tokens + shape.drafts + 1, ctx)
    hidden = sequence.extend(prompt)[-1:]
    logits = sequence.logits(hidden)
    tokens = logits.argmax(-1).tolist()
    logprobs = chosen_log_probabilities(logits, logits.argmax(-1)).tolist()
    proposed = accepted = off_first = passes = 0
    while len(tokens) < max_new_tokens:
        tree = draft_tree(model, hidden, tokens[-1], shape, ctx)
        found = verify_tree(sequence, tree)
        wanted = found.logits.argmax(-1)
        tokens += wanted.tolist()
        logprobs += chosen_log_probabilities(found.logits, wanted).tolist()
        hidden = found.hidden[-1:]
        proposed, accepted, passes = proposed + len(tree.tokens) - 1, accepted + len(found.path) - 1, passes + 1
        off_first += sum(tree.parents.index(tree.parents[node]) != node for node in found.path[1:])
    counts = {"proposed": proposed, "accepted": accepted, "off_first": off_first, "passes": passes}
    for name, count in counts.items():
        ctx.counters.add(f"gdn.spec.tree.{name}", count)
    return TreeSpeculation(tokens[:max_new_tokens], logprobs[:max_new_tokens], **counts)


def _compact(sequence: Sequence, path: list[int]) -> None:
    """Moves keys and values of the accepted path to the rows that follow the sequence."""
    source = torch.tensor([sequence.length + node for node in path], device=sequence.model.device)
    target = slice(sequence.length, sequence.length + len(path))
    for pool in (sequence.pools.kv_k, sequence.pools.kv_v):
        pool[:, target] = pool[:, source]
