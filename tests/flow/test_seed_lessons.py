"""The second seed's lessons on the real demonstration suites, with the real runner."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_runner.protocol import Treatment, TreatmentKind, from_json, to_json
from service.cli import main
from service.cli.demo import Demonstration, make_repository
from service.domain import Verdict
from service.experiments.model import Design, Reason
from service.store.experiments import get
from service.store.session import write
from tests.flow.inline import enqueue, run_to_the_end
from tests.flow.stack import VICTIM
from tests.simulated import design, exclude, rates, simulate
from workers import execute as worker

ALONE = (Treatment(TreatmentKind.ALONE),)
BEFORE = (Treatment(TreatmentKind.INSERT_BEFORE, tests=("warm_plan_cache",)),)
PYTEST_VICTIM = "tests/test_spec_decode.py::test_spec_decode_gate"


@pytest.fixture
def engine(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The ctest demonstration suite as a project; no broker answers, so messages are kept."""
    monkeypatch.setenv("LIKEWISE_BROKER_URL", "redis://127.0.0.1:1/0")
    return add(home, "ctest_demo")


def add(home: Path, suite: str) -> Path:
    from service.config import settings

    settings.cache_clear()
    source = make_repository(home.parent / suite, Demonstration("demo", ((f"tests/suites/{suite}", "."),), ()))
    assert main(["project", "add", f"demo/{suite.removesuffix('_demo')}", "--source", str(source)]) == 0
    return source


def test_a_toggle_with_both_arms_alone_reproduces_nothing(engine, capsys):
    number = enqueue(
        capsys, "--victim", VICTIM, "--control", "alone", "--treat", "alone + toggle:plan_cache",
        "--history", "13/20", "--signature", "any",
    )  # fmt: skip
    finding = run_to_the_end(number)
    assert finding.verdict is Verdict.NOT_REPRODUCED
    assert finding.blocks_counted == 6
    assert "nothing exonerated" in finding.sentence


def test_toggled_and_alone_is_refused_unless_declared_as_one_treatment(engine, capsys):
    arguments = ["enqueue", "ab", "--victim", VICTIM, "--treat", "alone + toggle:chunk_o"]
    assert main(arguments) == 2
    assert "--compound" in capsys.readouterr().err
    assert main([*arguments, "--compound", "--dry-run"]) == 0


def test_a_toggle_that_changes_nothing_is_inert_after_one_block(engine, capsys):
    number = enqueue(capsys, "--victim", VICTIM, "--treat", "toggle:packed_decode", "--signature", "any")
    finding = run_to_the_end(number)
    assert finding.verdict is Verdict.TREATMENT_INERT
    assert finding.executions == 2
    assert "packed_decode.fired" in finding.sentence


@pytest.mark.parametrize("mode", ["intersect", "as_built"])
def test_a_build_that_registers_one_more_test_names_it(engine, capsys, mode):
    number = enqueue(
        capsys, "--victim", VICTIM, "--treat", "build:LIKEWISE_DEMO_EXTRA=ON", "--tests", mode,
        "--signature", "any", "--blocks", "1",
    )  # fmt: skip
    finding = run_to_the_end(number)
    assert finding.verdict is not Verdict.NOT_LIKE_FOR_LIKE
    notes = " ".join(finding.arms[0].notes)
    assert ("left out of all arms" if mode == "intersect" else "part of the treatment, as built") in notes
    assert "gdn_aot_concurrent_first_load" in notes


def test_a_misspelt_victim_ends_with_the_close_names(engine, capsys):
    number = enqueue(capsys, "--victim", "spec_decode_gat", "--treat", "alone")
    finding = run_to_the_end(number)
    assert finding.verdict is Verdict.INCONCLUSIVE
    assert finding.arms[0].reason is Reason.ARM_UNBUILDABLE
    assert VICTIM in finding.sentence


def test_a_suite_that_does_not_build_ends_with_its_words(engine, capsys):
    number = enqueue(capsys, "--victim", VICTIM, "--treat", "build:CMAKE_GENERATOR=No Such Generator")
    finding = run_to_the_end(number)
    assert finding.verdict is Verdict.INCONCLUSIVE
    assert finding.arms[0].reason is Reason.ARM_UNBUILDABLE
    assert "No Such Generator" in finding.sentence
    assert finding.executions == 0


def test_builds_that_differ_under_a_toggle_are_not_like_for_like_at_no_execution(engine, capsys, monkeypatch):
    number = enqueue(
        capsys, "--victim", VICTIM, "--compound", "--signature", "any",
        "--treat", "toggle:chunk_o + build:LIKEWISE_DEMO_EXTRA=ON",
    )  # fmt: skip
    declare_only_the_toggle(number, monkeypatch)
    finding = run_to_the_end(number)
    assert finding.verdict is Verdict.NOT_LIKE_FOR_LIKE
    assert finding.executions == 0
    assert "build_environment.LIKEWISE_DEMO_EXTRA" in finding.sentence


def declare_only_the_toggle(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the design claim less than the runner does: what a careless script would have asked for."""
    with write() as session:
        experiment = get(session, number)
        design = from_json(Design, experiment.design)
    asked = design.arms[1]
    real_job = worker.make_job

    def job(session, experiment, block):
        made = real_job(session, experiment, block)
        return replace(made, arms=(made.arms[0], replace(made.arms[1], treatments=asked.treatments)))

    monkeypatch.setattr(worker, "make_job", job)
    less = replace(design, arms=(design.arms[0], replace(asked, treatments=asked.treatments[:1])))
    with write() as session:
        get(session, number).design = to_json(less)


def test_the_pytest_suite_is_judged_the_same_way(home, monkeypatch, capsys):
    monkeypatch.setenv("LIKEWISE_BROKER_URL", "redis://127.0.0.1:1/0")
    add(home, "pytest_demo")
    number = enqueue(
        capsys, "--victim", PYTEST_VICTIM, "--treat", "alone", "--seed", "17", "--blocks", "8", "--signature", "any"
    )
    finding = run_to_the_end(number)
    assert finding.verdict is Verdict.IMPLICATED
    assert "the suite's context" in finding.sentence


def test_every_next_command_that_is_printed_is_understood(engine, capsys):
    arms = [
        (exclude("warm_plan_cache"), (), (0.9, 0.0)),
        (ALONE + BEFORE, ALONE, (0.0, 0.9)),
        (ALONE, (), (0.9, 0.0)),
        (exclude("warm_plan_cache"), (), (0.3, 0.3)),
        (ALONE, ALONE, (0.0, 0.0)),
    ]
    for treated, control, p in arms:
        found = simulate(design(treated, control=control, project="demo/ctest", suite="demo", victim=VICTIM), rates(*p))
        command = shlex.split(found.next_command)
        assert command[:3] == ["likewise", "enqueue", "ab"]
        assert main([*command[1:], "--dry-run"]) == 0, capsys.readouterr().err
