"""Chain speculation says what greedy decoding says, in fewer passes."""

from dataclasses import replace

import pytest
import torch

from gpu_runner.gdn.config import Family
from gpu_runner.gdn.counters import Counters
from gpu_runner.gdn.draft import MissingDraftError, draft_chain, draft_step
from gpu_runner.gdn.model import Model
from gpu_runner.gdn.registry import OpCtx
from gpu_runner.gdn.sequence import Sequence
from gpu_runner.gdn.spec import accepted_prefix, greedy, speculate
from gpu_runner.gdn.tiny import tiny_config, tiny_model

NEW = 16


@pytest.fixture(scope="module", params=list(Family))
def model(request):
    return tiny_model(tiny_config(request.param), seed=21)


@pytest.mark.parametrize("drafts", [1, 3])
@pytest.mark.parametrize("deterministic", [False, True])
def test_the_tokens_are_those_of_greedy_decoding_and_drafts_are_accepted(model, drafts, deterministic):
    ctx = OpCtx(deterministic=deterministic, counters=Counters())
    accepted = 0
    for seed in range(2):
        prompt = torch.randint(0, 64, (65,), generator=torch.Generator().manual_seed(seed)).tolist()
        found = speculate(model, prompt, NEW, drafts, ctx)
        assert found.token_ids == greedy(model, prompt, NEW, ctx)
        assert found.passes < NEW - 1 or not found.accepted
        assert found.proposed == drafts * found.passes
        accepted += found.accepted
    assert accepted > 0
    assert ctx.counters.flat((), ())["gdn.spec.accepted"] == accepted


def test_one_token_needs_no_pass(model):
    found = speculate(model, [1, 2, 3], 1, 2, OpCtx())
    assert (found.token_ids, found.passes) == (greedy(model, [1, 2, 3], 1, OpCtx()), 0)


@pytest.mark.parametrize(
    ("drafts", "wanted", "count"),
    [([], [4], 0), ([4, 5], [4, 5, 6], 2), ([4, 5], [4, 6, 7], 1), ([3, 5], [4, 5, 7], 0)],
)
def test_accepted_prefix(drafts, wanted, count):
    assert accepted_prefix(drafts, wanted) == count


def test_a_chain_feeds_the_head_with_its_own_states(model):
    sequence = Sequence(model, 8, OpCtx())
    hidden = sequence.extend([1, 2, 3])[-1:]
    first, second = draft_chain(model, hidden, 5, 2, OpCtx())
    predicted, logits = draft_step(model, hidden, torch.tensor([5]), OpCtx())
    assert int(logits.argmax()) == first
    assert int(draft_step(model, predicted, torch.tensor([first]), OpCtx())[1].argmax()) == second


def test_without_a_head_or_drafts_speculation_is_refused(model):
    headless = Model(model.config, replace(model.weights, draft=None))
    with pytest.raises(MissingDraftError, match="mtp"):
        speculate(headless, [1, 2], 4, 1, OpCtx())
    with pytest.raises(ValueError, match="at least 1"):
        speculate(model, [1, 2], 4, 0, OpCtx())
