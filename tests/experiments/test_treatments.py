"""What a treatment declares is what the runner records as different."""

from __future__ import annotations

import pytest

from gpu_runner.arms import apply_treatments
from gpu_runner.context import suite_fields
from gpu_runner.protocol import ArmJob, SuiteDefinition, Treatment, TreatmentKind
from service.experiments.treatments import declared_fields, parse_treatments, to_text

LISTING = ("one", "two", "three", "victim", "five")


@pytest.mark.parametrize(
    "treatment",
    [
        Treatment(TreatmentKind.EXCLUDE, tests=("two",)),
        Treatment(TreatmentKind.INSERT_BEFORE, tests=("five",)),
        Treatment(TreatmentKind.ALONE),
        Treatment(TreatmentKind.ORDER, tests=("three", "victim")),
        Treatment(TreatmentKind.ORDER, seed=3),
    ],
    ids=lambda treatment: f"{treatment.kind}-{treatment.seed}",
)
def test_a_treatment_of_the_list_declares_every_suite_field_that_it_changes(treatment):
    suite = SuiteDefinition("unit", "ctest")
    recorded = []
    for treatments in ((), (treatment,)):
        arm = ArmJob(0, "arm", "c", treatments)
        fields = suite_fields(arm, suite, apply_treatments(LISTING, arm.treatments, "victim"), "victim", "4", {})
        recorded.append({(field.channel, field.name): field.value for field in fields})
    control, treated = recorded
    differing = {key for key in control if control[key] != treated[key]}
    assert ("suite", "tests") in differing
    assert differing <= declared_fields((treatment,), as_built=False)


def test_a_plus_in_the_name_of_a_test_joins_nothing():
    text = "exclude:t.py::ids[a + b] + before:t.py::x + alone"
    treatments = parse_treatments(text, SuiteDefinition("unit", "pytest"))
    assert [item.tests for item in treatments] == [("t.py::ids[a + b]",), ("t.py::x",), ()]
    assert to_text(treatments) == text
