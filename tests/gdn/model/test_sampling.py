"""Choosing tokens, and the distance between a generation and its replay."""

import math

import pytest
import torch

from gpu_runner.gdn.logprobs import chosen_log_probabilities, k3_divergence
from gpu_runner.gdn.sampling import SamplingParams, next_token, nucleus


def test_temperature_zero_takes_the_largest():
    assert next_token(torch.tensor([0.1, 2.0, 1.9]), SamplingParams(), 0) == 1


def test_draws_follow_the_distribution():
    """4000 positions of one seed; three times the standard error."""
    probabilities = torch.tensor([0.5, 0.3, 0.2])
    params = SamplingParams(temperature=1.0, seed=3)
    draws = torch.tensor([next_token(probabilities.log(), params, position) for position in range(4000)])
    for token, p in enumerate(probabilities.tolist()):
        assert abs((draws == token).float().mean().item() - p) < 3 * math.sqrt(p * (1 - p) / 4000)


def test_a_draw_depends_on_seed_and_position_alone():
    logits = torch.zeros(64)
    drawn = [next_token(logits, SamplingParams(1.0, seed=seed), p) for seed, p in ((1, 5), (1, 5), (2, 5), (1, 6))]
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) == 3


def test_temperature_sharpens():
    logits = torch.tensor([1.0, 0.0])
    cold = [next_token(logits, SamplingParams(0.05, seed=1), position) for position in range(200)]
    assert set(cold) == {0}


@pytest.mark.parametrize(("top_p", "kept"), [(0.5, [1]), (0.51, [1, 2]), (0.9, [0, 1, 2]), (1e-9, [1])])
def test_nucleus_is_the_smallest_set_that_reaches_top_p(top_p, kept):
    probabilities = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    assert nucleus(probabilities, top_p).nonzero()[:, 0].tolist() == kept


def test_top_p_never_draws_outside():
    logits = torch.tensor([0.2, 0.5, 0.3]).log()
    params = SamplingParams(1.0, top_p=0.6, seed=2)
    assert {next_token(logits, params, position) for position in range(300)} == {1, 2}


@pytest.mark.parametrize("wrong", [{"temperature": -1.0}, {"top_p": 0.0}, {"top_p": 1.5}])
def test_parameters_without_meaning_are_refused(wrong):
    with pytest.raises(ValueError, match=str(next(iter(wrong.values())))):
        SamplingParams(**wrong)


def test_chosen_log_probabilities_by_hand():
    logits = torch.tensor([[0.0, math.log(3.0)], [5.0, 5.0]])
    got = chosen_log_probabilities(logits, torch.tensor([1, 0]))
    torch.testing.assert_close(got, torch.tensor([0.75, 0.5]).log())


def test_k3_by_hand_and_not_negative():
    """r = log 2: 2 - 1 - log 2; r = -log 2: 1/2 - 1 + log 2; their mean is 1/4."""
    generated = torch.tensor([0.0, 0.0])
    replayed = torch.tensor([math.log(2), -math.log(2)])
    assert k3_divergence(generated, replayed) == pytest.approx(0.25, abs=1e-6)
    assert k3_divergence(generated, generated) == 0.0
    with pytest.raises(ValueError, match="no tokens"):
        k3_divergence(torch.tensor([]), torch.tensor([]))
