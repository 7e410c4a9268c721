"""Counters and measurements: what is taken, from where, and what is not."""

import json

import pytest

from gpu_runner.protocol import Measurement
from gpu_runner.records import Records


def test_lines_of_an_output_are_taken_and_everything_else_is_left():
    records = Records()
    records.add_text("t", "noise\nLIKEWISE_COUNTER a.fired=48\n  LIKEWISE_METRIC kl div=1e-3\nLIKEWISE_COUNTER b=x\n")
    assert records.of_test("t") == {"a.fired": 48}
    assert records.measurements == [Measurement("kl div", 0.001, "t")]


def test_a_counter_that_nobody_reports_is_absent_and_a_reported_zero_is_zero():
    records = Records()
    records.add_text("t", "LIKEWISE_COUNTER a=0")
    assert records.totals() == {"a": 0}


def test_counters_are_summed_over_tests_and_kept_by_test():
    records = Records()
    records.add_text("t", "LIKEWISE_COUNTER a=1\nLIKEWISE_COUNTER a=2")
    records.add_properties("u", [("likewise.counter.a", 4), ("other", 9)])
    assert (records.of_test("t"), records.of_test("u"), records.totals()) == ({"a": 3}, {"a": 4}, {"a": 7})


def test_events_carry_tests_and_samples():
    events = [
        {"counter": "a", "value": 2, "test": "t"},
        {"counter": "a", "value": 3},
        {"metric": "kl", "value": 0.5, "sample": 7, "test": "t"},
        {"metric": "kl", "value": 0.25, "test": "unknown"},
        ["no object"],
        {"counter": "a"},
    ]
    records = Records()
    records.add_events("\n".join(map(json.dumps, events)) + "\nhalf a li", ["t"])
    assert (records.of_test("t"), records.totals()) == ({"a": 2}, {"a": 5})
    assert records.measurements == [Measurement("kl", 0.5, "t", 7), Measurement("kl", 0.25)]


@pytest.mark.parametrize("value", ["nan", "inf", "1.5", "", "0x10", True, None, [1], "1e999", "9" * 400])
def test_a_value_that_is_no_finite_integer_is_no_counter(value):
    records = Records()
    records.add_properties("t", [("likewise.counter.a", value)])
    assert records.totals() == {}


@pytest.mark.parametrize(("value", "number"), [("-3", -3.0), ("1.5", 1.5), (2, 2.0), ("3.0", 3.0)])
def test_metrics_are_numbers(value, number):
    records = Records()
    records.add_properties(None, [("likewise.metric.x", value)])
    assert records.measurements == [Measurement("x", number)]
