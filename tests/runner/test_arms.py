"""Treatments on lists of tests: pure."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from gpu_runner.arms import (
    apply_treatments,
    arm_build,
    arm_commit,
    arm_environment,
    compare_listings,
    shuffle_seed,
)
from gpu_runner.failures import RunnerError
from gpu_runner.protocol import ArmJob, SuiteDefinition, TestsMode, Treatment, TreatmentKind

LISTING = ("a", "b", "c", "victim", "d")


def treat(kind, *tests, **values):
    return Treatment(TreatmentKind(kind), tests=tests, **values)


@pytest.mark.parametrize(
    ("treatments", "expected"),
    [
        ([], "a b c victim d"),
        ([treat("none")], "a b c victim d"),
        ([treat("exclude", "b", "d")], "a c victim"),
        ([treat("alone")], "victim"),
        ([treat("insert_before", "d")], "a b c d victim"),
        ([treat("insert_before", "d", "a")], "b c d a victim"),
        ([treat("alone"), treat("insert_before", "b")], "b victim"),
        ([treat("exclude", "b"), treat("insert_before", "b")], "a c b victim d"),
        ([treat("insert_before", "d"), treat("exclude", "a")], "b c d victim"),
        ([treat("order", "d", "victim")], "d victim a b c"),
        ([treat("exclude", "d"), treat("order", "d", "c")], "c a b victim"),
        ([treat("environment", environment={"A": "1"}), treat("build"), treat("commit")], "a b c victim d"),
    ],
)
def test_treatments_compose_in_their_order(treatments, expected):
    assert apply_treatments(LISTING, treatments, "victim") == tuple(expected.split())


@pytest.mark.parametrize(
    ("treatments", "code", "part"),
    [
        ([treat("exclude", "vicitm2")], "no_such_test", "'victim'"),
        ([treat("exclude", "victim")], "bad_treatment", "victim"),
        ([treat("exclude", *LISTING)], "no_tests", "nothing is left"),
        ([treat("insert_before", "victim")], "bad_treatment", "before itself"),
        ([treat("insert_before", "a", "a")], "bad_treatment", "twice"),
        ([treat("exclude", "victim"), treat("insert_before", "a")], "bad_treatment", "excluded"),
    ],
)
def test_an_impossible_treatment_names_what_is_wrong(treatments, code, part):
    with pytest.raises(RunnerError) as caught:
        apply_treatments(LISTING, treatments, "victim")
    assert caught.value.code == code
    assert part in caught.value.message + caught.value.way_out


def test_an_unknown_victim_is_answered_with_near_names():
    with pytest.raises(RunnerError) as caught:
        apply_treatments(("spec_decode_gate", "other"), [], "spec_decode_gat")
    assert (caught.value.code, "'spec_decode_gate'" in caught.value.way_out) == ("no_such_test", True)


def test_an_empty_listing_is_no_tests():
    with pytest.raises(RunnerError) as caught:
        apply_treatments((), [], "victim")
    assert caught.value.code == "no_tests"


names = st.lists(st.text(min_size=1), min_size=1, max_size=12, unique=True)


@given(names, st.integers(0, 2**64 - 1), st.data())
def test_a_seeded_order_is_a_permutation_that_leaving_a_test_out_does_not_disturb(listing, seed, data):
    victim = data.draw(st.sampled_from(listing))
    shuffled = apply_treatments(listing, [treat("order", seed=seed)], victim)
    assert sorted(shuffled) == sorted(listing)
    others = [test for test in listing if test != victim]
    if others:
        gone = data.draw(st.sampled_from(others))
        without = apply_treatments(listing, [treat("exclude", gone), treat("order", seed=seed)], victim)
        assert without == tuple(test for test in shuffled if test != gone)


@given(names, st.data())
def test_inserting_puts_the_tests_right_before_the_victim_and_keeps_all_others_in_order(listing, data):
    victim = data.draw(st.sampled_from(listing))
    others = [test for test in listing if test != victim]
    inserted = data.draw(st.permutations(others))[: data.draw(st.integers(0, len(others)))]
    result = apply_treatments(listing, [treat("insert_before", *inserted)], victim)
    place = result.index(victim)
    assert list(result[place - len(inserted) : place]) == inserted
    assert [test for test in result if test not in inserted] == [test for test in listing if test not in inserted]


@given(names, st.data())
def test_excluding_is_the_listing_minus_the_tests(listing, data):
    victim = data.draw(st.sampled_from(listing))
    gone = data.draw(
        st.lists(st.sampled_from(listing), unique=True).map(lambda tests: [t for t in tests if t != victim])
    )
    result = apply_treatments(listing, [treat("exclude", *gone)], victim)
    assert result == tuple(test for test in listing if test not in gone)


@given(st.lists(names, min_size=1, max_size=4))
def test_intersect_leaves_the_same_tests_in_every_arm_and_names_the_rest(listings):
    compared = compare_listings(dict(enumerate(listings)), TestsMode.INTERSECT)
    everywhere = set.intersection(*map(set, listings))
    for arm, listing in enumerate(listings):
        assert compared[arm].tests == tuple(test for test in listing if test in everywhere)
        assert set(compared[arm].left_out) == set().union(*listings) - everywhere


@given(st.lists(names, min_size=2, max_size=4))
def test_as_built_leaves_nothing_out_and_names_what_only_one_arm_has(listings):
    compared = compare_listings(dict(enumerate(listings)), TestsMode.AS_BUILT)
    for arm, listing in enumerate(listings):
        others = set().union(*(other for number, other in enumerate(listings) if number != arm))
        assert compared[arm].tests == tuple(listing)
        assert compared[arm].left_out == ()
        assert set(compared[arm].only_here) == set(listing) - others


def test_commit_build_environment_and_seed_come_from_the_treatments():
    suite = SuiteDefinition("s", "ctest", build=("make",))
    arm = ArmJob(
        1,
        "treated",
        "a" * 40,
        (
            treat("commit", commit="b" * 40),
            treat("build", environment={"ON": "1"}),
            treat("environment", environment={"X": "1", "Y": "2"}),
            treat("toggle", toggle="t", environment={"Y": None}),
            treat("order", seed=7),
        ),
    )
    assert arm_commit(arm) == "b" * 40
    assert arm_build(suite, arm).commands == ("make",)
    assert arm_build(suite, arm).environment == {"ON": "1"}
    assert arm_environment(arm) == {"X": "1", "Y": None}
    assert shuffle_seed(arm) == 7
    replaced = ArmJob(1, "treated", "a" * 40, (treat("build", commands=("ninja",)),))
    assert arm_build(suite, replaced).commands == ("ninja",)
    assert shuffle_seed(replaced) is None
