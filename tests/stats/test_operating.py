"""Operating characteristics: the table of the shipped design, and the enumeration of all paths."""

import itertools
import math

import pytest

from service.stats.compare import fisher_greater_table
from service.stats.operating import operating_characteristics
from service.stats.power import (
    clean_runs_to_exclude,
    fixed_runs_per_arm,
    largest_detectable_rate,
    power_to_implicate,
    propose_blocks,
    smallest_blocks,
)
from service.stats.sequential import Claim, Counts, build_boundary, first_stop

# facts 2.4 (exact): implicated, worsened, exonerated, undecided, of it without any failure, executions.
SHIPPED = {
    20: [
        ((0.65, 0.1), (0.919, 0.000, 0.000, 0.081, 0.000), 19.0),
        ((0.65, 0.0), (1.000, 0.000, 0.000, 0.000, 0.000), 14.1),
        ((0.5, 0.0), (0.991, 0.000, 0.000, 0.009, 0.004), 19.0),
        ((0.3, 0.0), (0.800, 0.000, 0.000, 0.200, 0.058), 27.1),
        ((0.2, 0.0), (0.461, 0.000, 0.000, 0.539, 0.168), 28.1),
        ((0.3, 0.05), (0.456, 0.000, 0.000, 0.544, 0.038), 25.3),
        ((0.65, 0.35), (0.325, 0.001, 0.038, 0.636, 0.000), 26.2),
        ((0.65, 0.65), (0.015, 0.015, 0.509, 0.461, 0.000), 30.0),
        ((0.3, 0.3), (0.023, 0.023, 0.001, 0.952, 0.003), 20.6),
        ((0.1, 0.1), (0.016, 0.016, 0.000, 0.968, 0.185), 21.1),
        ((0.05, 0.05), (0.004, 0.004, 0.000, 0.992, 0.440), 20.2),
        ((0.0, 0.0), (0.000, 0.000, 0.000, 1.000, 1.000), 16.0),
        ((0.0, 0.65), (0.000, 1.000, 0.000, 0.000, 0.000), 14.1),
        ((0.3, 0.9), (0.000, 0.948, 0.004, 0.048, 0.000), 19.1),
        ((0.9, 0.45), (0.718, 0.000, 0.049, 0.234, 0.000), 25.7),
        ((0.6, 0.3), (0.337, 0.001, 0.017, 0.646, 0.000), 25.1),
    ],
    30: [
        ((0.65, 0.1), (0.988, 0.000, 0.000, 0.012, 0.000), 21.9),
        ((0.65, 0.0), (1.000, 0.000, 0.000, 0.000, 0.000), 14.8),
        ((0.5, 0.0), (0.999, 0.000, 0.000, 0.001, 0.001), 19.7),
        ((0.3, 0.0), (0.939, 0.000, 0.000, 0.061, 0.028), 31.8),
        ((0.2, 0.0), (0.679, 0.000, 0.000, 0.321, 0.107), 39.4),
        ((0.3, 0.05), (0.631, 0.000, 0.000, 0.369, 0.017), 35.6),
        ((0.65, 0.35), (0.481, 0.000, 0.069, 0.450, 0.000), 41.0),
        ((0.65, 0.65), (0.016, 0.016, 0.788, 0.180, 0.000), 40.4),
        ((0.3, 0.3), (0.024, 0.024, 0.013, 0.940, 0.001), 33.3),
        ((0.1, 0.1), (0.016, 0.016, 0.000, 0.968, 0.122), 30.6),
        ((0.05, 0.05), (0.004, 0.004, 0.000, 0.992, 0.358), 28.9),
        ((0.0, 0.0), (0.000, 0.000, 0.000, 1.000, 1.000), 20.0),
        ((0.0, 0.65), (0.000, 1.000, 0.000, 0.000, 0.000), 14.8),
        ((0.3, 0.9), (0.000, 0.993, 0.003, 0.004, 0.000), 20.4),
        ((0.9, 0.45), (0.895, 0.000, 0.045, 0.059, 0.000), 30.3),
        ((0.6, 0.3), (0.499, 0.000, 0.039, 0.461, 0.000), 40.0),
    ],
    40: [
        ((0.65, 0.1), (0.998, 0.000, 0.000, 0.002, 0.000), 23.8),
        ((0.65, 0.0), (1.000, 0.000, 0.000, 0.000, 0.000), 15.5),
        ((0.5, 0.0), (1.000, 0.000, 0.000, 0.000, 0.000), 20.9),
        ((0.3, 0.0), (0.989, 0.000, 0.000, 0.011, 0.007), 33.7),
        ((0.2, 0.0), (0.883, 0.000, 0.000, 0.117, 0.044), 46.3),
        ((0.3, 0.05), (0.733, 0.000, 0.000, 0.267, 0.003), 44.2),
        ((0.65, 0.35), (0.559, 0.000, 0.078, 0.363, 0.000), 53.7),
        ((0.65, 0.65), (0.012, 0.012, 0.907, 0.070, 0.000), 46.1),
        ((0.3, 0.3), (0.021, 0.021, 0.059, 0.899, 0.000), 48.0),
        ((0.1, 0.1), (0.022, 0.022, 0.000, 0.956, 0.052), 40.1),
        ((0.05, 0.05), (0.009, 0.009, 0.000, 0.983, 0.238), 40.4),
        ((0.0, 0.0), (0.000, 0.000, 0.000, 1.000, 1.000), 28.0),
        ((0.0, 0.65), (0.000, 1.000, 0.000, 0.000, 0.000), 15.5),
        ((0.3, 0.9), (0.000, 0.998, 0.002, 0.000, 0.000), 22.8),
        ((0.9, 0.45), (0.939, 0.000, 0.042, 0.020, 0.000), 35.3),
        ((0.6, 0.3), (0.577, 0.000, 0.047, 0.375, 0.000), 52.8),
    ],
}


@pytest.mark.parametrize("blocks", SHIPPED)
def test_the_shipped_design_behaves_as_documented(blocks):
    boundary = build_boundary(blocks)
    for rates, probabilities, executions in SHIPPED[blocks]:
        ends = operating_characteristics(boundary, *rates)
        reached = (ends.implicated, ends.worsened, ends.exonerated, ends.undecided, ends.never_failed)
        assert reached == pytest.approx(probabilities, abs=1.01e-3), rates
        assert ends.expected_executions == pytest.approx(executions, abs=0.051), rates
        assert ends.expected_executions == 2 * ends.expected_blocks


@pytest.mark.parametrize("stops_for_futility", [True, False])
@pytest.mark.parametrize("rates", [(0.7, 0.2), (0.9, 0.85), (0.1, 0.0), (0.0, 1.0)])
def test_the_recursion_equals_the_enumeration_of_all_paths(rates, stops_for_futility):
    boundary = build_boundary(6, 0.1, 0.2)
    outcomes = list(itertools.product((0, 1), repeat=2))
    ends, blocks, never_failed = dict.fromkeys([*Claim, None], 0.0), 0.0, 0.0
    for path in itertools.product(outcomes, repeat=6):
        weight = math.prod((rates[0] if a else 1 - rates[0]) * (rates[1] if b else 1 - rates[1]) for a, b in path)
        if weight == 0.0:
            continue
        counts = [Counts(1, a, 0, b, 0) for a, b in path]
        stop = first_stop(boundary, counts, stops_for_futility=stops_for_futility)
        length = stop.n if stop else 6
        ends[stop.claim if stop else None] += weight
        blocks += weight * length
        if (stop is None or stop.claim is Claim.FUTILE) and not any(a or b for a, b in path[:length]):
            never_failed += weight
    result = operating_characteristics(boundary, *rates, stops_for_futility=stops_for_futility)
    assert (result.implicated, result.worsened, result.exonerated, result.futile, result.exhausted) == pytest.approx(
        (ends[Claim.IMPLICATED], ends[Claim.WORSENED], ends[Claim.EXONERATED], ends[Claim.FUTILE], ends[None]),
        abs=1e-12,
    )
    assert (result.expected_blocks, result.never_failed) == pytest.approx((blocks, never_failed))


@pytest.mark.parametrize("rates", [(-0.1, 0.5), (0.5, 1.1)])
def test_an_impossible_rate_is_refused(rates):
    with pytest.raises(ValueError, match="failure rate"):
        operating_characteristics(build_boundary(5), *rates)


# facts 2.4: smallest N_max of power .9 against a full cure, without and with the futility stop.
@pytest.mark.parametrize(
    ("rate", "without", "with_futility"),
    [(0.65, 9, 9), (0.5, 13, 13), (0.4, 18, 19), (0.3, 23, 25), (0.2, 38, 42), (0.15, 52, 57)],
)
def test_the_smallest_number_of_blocks(rate, without, with_futility):
    assert smallest_blocks(rate, stops_for_futility=False) == without
    assert smallest_blocks(rate) == with_futility
    assert power_to_implicate(with_futility, rate, 0.0) >= 0.9 > power_to_implicate(with_futility - 1, rate, 0.0)


def test_a_rate_that_a_hundred_blocks_cannot_settle_has_no_smallest_number():
    assert smallest_blocks(0.05) is None
    proposal = propose_blocks(0.05)
    assert (proposal.blocks, proposal.is_settled_rarely) == (100, True)
    assert proposal.power == power_to_implicate(100, 0.05, 0.0) < 0.9


def test_a_proposal_is_never_below_sixteen_blocks():
    frequent, rarer = propose_blocks(0.65), propose_blocks(0.3)
    assert (frequent.blocks, frequent.is_settled_rarely) == (16, False)
    assert frequent.power == power_to_implicate(16, 0.65, 0.0)
    assert frequent.expected_executions == pytest.approx(13.8, abs=0.05)
    assert rarer.blocks == 25


def test_the_largest_detectable_rate_has_just_the_power():
    rate = largest_detectable_rate(30, 0.65)
    assert power_to_implicate(30, 0.65, rate) >= 0.9 > power_to_implicate(30, 0.65, rate + 0.001)
    assert largest_detectable_rate(30, 0.2) is None


def test_clean_runs_exclude_a_rate():
    # Hanley and Lippman-Hand 1983: 59 clean runs for 5 %, 299 for 1 %.
    assert [clean_runs_to_exclude(rate) for rate in (0.05, 0.01, 0.5, 1.0)] == [59, 299, 5, 1]
    assert clean_runs_to_exclude(0.05, 0.99) == 90
    for rate in (0.0, -0.1, 1.1):
        with pytest.raises(ValueError, match=str(rate)):
            clean_runs_to_exclude(rate)


# facts 1.5 (exact): executions per arm for power .9 of one-sided Fisher and Boschloo tests.
@pytest.mark.parametrize(
    ("alpha", "rates", "per_arm_fisher", "per_arm_boschloo"),
    [
        (0.05, (0.65, 0.1), 15, 12),
        (0.05, (0.2, 0.0), 38, 32),
        (0.05, (0.5, 0.0), 12, 9),
        (0.05, (0.3, 0.05), 42, 37),
        (0.05, (0.65, 0.35), 53, 49),
        (0.025, (0.65, 0.1), 18, 15),
        (0.025, (0.2, 0.0), 45, 38),
        (0.025, (0.5, 0.0), 14, 12),
        (0.025, (0.3, 0.05), 51, 45),
        (0.025, (0.65, 0.35), 61, 57),
    ],
)
def test_fixed_size_tests_need_the_printed_runs(alpha, rates, per_arm_fisher, per_arm_boschloo):
    assert fixed_runs_per_arm(*rates, alpha, p_values=fisher_greater_table) == per_arm_fisher
    assert fixed_runs_per_arm(*rates, alpha) == per_arm_boschloo


def test_a_fixed_size_test_may_need_too_many_runs():
    assert fixed_runs_per_arm(0.01, 0.0, p_values=fisher_greater_table) is None
