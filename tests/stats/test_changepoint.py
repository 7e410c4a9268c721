"""Change points against LUCI's published values, the full scan, and known steps."""

import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.stats.changepoint import (
    THRESHOLD,
    central_interval,
    current_counts,
    first_split,
    histories,
    log_marginal,
    position_posterior,
    scan,
    segment_all,
    segments,
)


def test_marginals_are_the_values_of_luci():
    # luci-go, analysis/internal/changepoints/inputbuffer and bayesian tests: Beta(0.3, 0.5), counts of sequences.
    want = (0.5208333333333335, 0.2083333333333334, 0.16741071428571436, 0.11454417293233085)
    got = [w * math.exp(log_marginal(f, n)) for f, n, w in ((0, 2, 1), (1, 2, 2), (1, 3, 3), (2, 4, 6))]
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-15)
    assert pytest.approx(9.21, abs=1e-3) == THRESHOLD


def slow_scan(fails, runs):
    def ml(f, n):
        return float(log_marginal(f, n))

    total = ml(sum(fails), sum(runs))
    return [ml(sum(fails[:t]), sum(runs[:t])) + ml(sum(fails[t:]), sum(runs[t:])) - total for t in range(1, len(fails))]


units = st.lists(st.integers(0, 3).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), min_size=2, max_size=30)


@given(units)
def test_scan_is_the_bayes_factor_of_every_cut(pairs):
    fails, runs = zip(*pairs, strict=True)
    np.testing.assert_allclose(scan(histories([fails], [runs]))[0], slow_scan(fails, runs), atol=1e-9)


@given(st.lists(st.booleans(), min_size=2, max_size=60))
def test_looking_at_turns_only_misses_no_best_split(outcomes):
    h = histories(np.array([outcomes], int))
    best = first_split(h)
    factors = scan(h)[0]
    if 0 < sum(outcomes) < len(outcomes):
        assert best.log_factor[0] == pytest.approx(factors.max())
        assert factors[best.at[0] - 1] == pytest.approx(factors.max())
    else:
        assert best.log_factor[0] == -np.inf


def recursive(fails, low, high):
    if high - low < 2:
        return []
    factors = scan(histories(fails[None, low:high]))[0]
    if factors.max() <= THRESHOLD:
        return []
    at = low + int(factors.argmax()) + 1
    return [*recursive(fails, low, at), at, *recursive(fails, at, high)]


def test_segmenting_all_at_once_is_the_recursion_of_each():
    rng = np.random.default_rng(4)
    rate = np.repeat(rng.choice([0.0, 0.05, 0.5, 0.95, 1.0], (60, 4)), 75, axis=1)
    fails = (rng.random(rate.shape) < rate).astype(int)
    got = segment_all(histories(fails))
    assert [list(row) for row in got] == [recursive(row, 0, 300) for row in fails]
    assert sum(map(len, got)) > 60


def test_segments_carry_counts_and_the_interval_of_their_beginning():
    fails = np.r_[np.zeros(100, int), np.ones(50, int), np.zeros(80, int)]
    first, second, third = segments(fails)
    assert (first.start, first.end, first.fails, first.runs, first.rate) == (0, 100, 0, 100, 0.0)
    assert (second.start, second.latest, second.rate) == (100, 100, 1.0)
    assert 98 <= second.earliest <= 100
    assert third.earliest <= 150 <= third.latest
    assert segments(np.zeros(5, int))[0].end == 5


def test_interval_covers_the_change_in_nearly_all_histories():
    rng = np.random.default_rng(11)
    covered = []
    for _ in range(300):
        change = int(rng.integers(50, 350))
        fails = (rng.random(400) < np.where(np.arange(400) < change, 0.1, 0.65)).astype(int)
        found = [s for s in segments(fails)[1:] if abs(s.start - change) < 60]
        covered.append(any(s.earliest <= change <= s.latest for s in found))
    # 0.99 claimed, 0.989 measured (facts 4); below 0.965 has probability 1e-4 at 0.99.
    assert np.mean(covered) >= 0.965


def test_the_current_segment_begins_at_the_last_change():
    h = histories([[1, 1, 1, 0, 0], [0, 1, 0, 1, 1]], [2, 2, 2, 2, 2])
    fails, runs = current_counts(h, [(1, 3), ()])
    assert (fails.tolist(), runs.tolist()) == ([0, 3], [4, 10])
    with pytest.raises(ValueError, match="2 histories"):
        current_counts(h, [()])


def test_a_prior_moves_the_position_and_units_without_runs_say_nothing():
    fails, runs = [0, 0, 0, 1, 1], [2, 2, 0, 2, 2]
    weight = position_posterior(fails, runs)
    assert weight[1] == pytest.approx(weight[2])
    tilted = position_posterior(fails, runs, [1, 1, 9, 1])
    assert tilted[2] == pytest.approx(9 * tilted[1])
    assert tilted.sum() == pytest.approx(1.0)


def test_central_interval_of_one_certain_position():
    assert central_interval([0.0, 1.0, 0.0]) == (1, 1)
    assert central_interval([0.5, 0.5]) == (0, 1)


@pytest.mark.parametrize("share_flaky", [0.1, 1.0])
def test_ten_thousand_histories_of_a_thousand_runs_take_seconds(share_flaky):
    rng = np.random.default_rng(0)
    rate = np.where(rng.random(10_000) < share_flaky, rng.beta(0.5, 2, 10_000), 0.0)
    fails = rng.random((10_000, 1000)) < rate[:, None]
    # Processor time, best of three: a neighbour that empties the caches is not our slowness. Aims: 1.0 s and 3 s.
    scans, segmentations = [], []
    for _ in range(3):
        began = time.process_time()
        h = histories(fails)
        first_split(h)
        scanned = time.process_time()
        segment_all(h)
        scans.append(scanned - began)
        segmentations.append(time.process_time() - scanned)
        if scans[-1] < 1.0 and segmentations[-1] < 3.0:
            break
    assert min(scans) < 2.0
    assert min(segmentations) < 6.0


WRONG = {
    "one row": lambda: histories([1, 0]),
    "no units": lambda: histories(np.zeros((3, 0))),
    "shape of runs": lambda: histories([[1, 0]], [1, 1, 1]),
    "more failures than runs": lambda: histories([[2, 0]]),
    "negative": lambda: histories([[-1, 0]]),
}


@pytest.mark.parametrize("make", WRONG.values(), ids=WRONG)
def test_wrong_histories_are_named(make):
    with pytest.raises(ValueError):
        make()
