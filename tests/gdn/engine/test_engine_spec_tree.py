"""Tree speculation: the tokens of plain greedy decoding, and no trace of a rejected branch."""

from functools import cache

import pytest
import torch

from gpu_runner.gdn.counters import Counters
from gpu_runner.gdn.model import Model
from gpu_runner.gdn.registry import OpCtx
from gpu_runner.gdn.sequence import SLOT, Sequence
from gpu_runner.gdn.spec import greedy, speculate
from gpu_runner.gdn.spec_tree import DraftTree, TreeShape, draft_tree, speculate_tree, verify_tree
from gpu_runner.gdn.suite.kl_flows import tiny_model
from tests.gdn.engine.tiny_engines import prompt_of


@cache
def drafting_model() -> Model:
    torch.set_num_threads(1)
    return tiny_model(dtype=torch.float32, initializer_range=0.2, has_draft=True)


@pytest.mark.parametrize("shape", [TreeShape(3, 4, 8), TreeShape(5, 2, 6), TreeShape(1, 3, 3)], ids=str)
def test_the_tree_equals_greedy_and_accepts_drafts(shape):
    counters = Counters()
    ctx = OpCtx(counters=counters)
    accepted = off_first = 0
    for length in (5, 63, 80):
        prompt = prompt_of(length)
        answer = speculate_tree(drafting_model(), prompt, 40, shape, ctx)
        assert answer.token_ids == greedy(drafting_model(), prompt, 40, ctx)
        assert len(answer.logprobs) == 40
        accepted, off_first = accepted + answer.accepted, off_first + answer.off_first
    assert accepted > 0
    # A chain would have missed these.
    assert off_first > 0
    assert counters.flat((), ())["gdn.spec.tree.accepted"] == accepted


def test_the_chain_equals_greedy_and_accepts_drafts():
    ctx = OpCtx(counters=Counters())
    answers = [speculate(drafting_model(), prompt_of(length), 40, 3, ctx) for length in (5, 63)]
    assert [a.token_ids for a in answers] == [greedy(drafting_model(), prompt_of(n), 40, ctx) for n in (5, 63)]
    assert sum(a.accepted for a in answers) > 0


def test_a_tree_of_one_branch_is_a_chain_of_first_choices():
    ctx = OpCtx(counters=Counters())
    sequence = Sequence(drafting_model(), 40, ctx)
    hidden = sequence.extend(prompt_of(20))[-1:]
    tree = draft_tree(drafting_model(), hidden, 7, TreeShape(4, 1, 4), ctx)
    assert tree.parents == [-1, 0, 1, 2, 3]
    assert tree.depths() == [0, 1, 2, 3, 4]


def test_a_rejected_branch_leaves_state_and_keys_bit_for_bit_as_if_it_had_never_been_drafted():
    # Row-stable products: a node's numbers do not depend on its company, so that equality is exact.
    ctx = OpCtx(deterministic=True, counters=Counters())
    plain, drafted = (Sequence(drafting_model(), 40, ctx) for _ in range(2))
    for sequence in (plain, drafted):
        hidden = sequence.extend(prompt_of(20))[-1:]
    first = int(plain.logits(hidden)[0].argmax())
    second = greedy(drafting_model(), [*prompt_of(20), first], 1, ctx)[0]
    wrong = (second + 1) % 64
    alone = verify_tree(plain, DraftTree([first, second], [-1, 0]))
    # The right draft stands behind a wrong sibling that has a child of its own.
    found = verify_tree(drafted, DraftTree([first, wrong, second, wrong], [-1, 0, 0, 1]))
    assert (alone.path, found.path) == ([0, 1], [0, 2])
    assert torch.equal(found.logits, alone.logits)
    assert drafted.length == plain.length == 22
    for name in ("conv", "temporal"):
        assert torch.equal(getattr(drafted.pools, name)[:, SLOT], getattr(plain.pools, name)[:, SLOT])
    for name in ("kv_k", "kv_v"):
        assert torch.equal(getattr(drafted.pools, name)[:, :22], getattr(plain.pools, name)[:, :22])


def test_a_tree_without_drafts_is_refused():
    with pytest.raises(ValueError, match="decode plainly"):
        TreeShape(steps=0)
