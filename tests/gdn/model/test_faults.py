"""Switching historical faults on, and the two ways in which it is refused."""

import pytest

from gpu_runner.gdn import faults
from gpu_runner.gdn.faults import MECHANISM, Fault, FaultError


def test_no_fault_is_on_by_default(monkeypatch):
    monkeypatch.delenv(faults.VARIABLE, raising=False)
    assert faults.active() == frozenset()
    assert faults.counters() == {}


def test_faults_are_switched_on_by_id_and_counted_in_every_result(monkeypatch):
    monkeypatch.setenv(faults.VARIABLE, " env_leak,reject_leak, ")
    assert faults.active() == {Fault.ENV_LEAK, Fault.REJECT_LEAK}
    assert faults.is_on(Fault.ENV_LEAK)
    assert not faults.is_on(Fault.AI_NOT_ZEROED)
    assert faults.counters() == {"gdn.fault.env_leak": 1, "gdn.fault.reject_leak": 1}


def test_an_unknown_fault_is_an_error_that_names_the_known(monkeypatch):
    monkeypatch.setenv(faults.VARIABLE, "env_leak,typo")
    with pytest.raises(FaultError, match=r"'typo'.*env_leak"):
        faults.active()


@pytest.mark.parametrize("value", ["", "0"])
def test_production_is_off_by_these_values_alone(monkeypatch, value):
    monkeypatch.setenv(faults.PRODUCTION_VARIABLE, value)
    monkeypatch.setenv(faults.VARIABLE, "env_leak")
    assert faults.active() == {Fault.ENV_LEAK}


@pytest.mark.parametrize("value", ["1", "true", "yes"])
def test_production_mode_refuses_faults_and_nothing_else(monkeypatch, value):
    monkeypatch.setenv(faults.PRODUCTION_VARIABLE, value)
    assert faults.active() == frozenset()
    faults.refuse_in_production(production=True)
    monkeypatch.setenv(faults.VARIABLE, "env_leak")
    with pytest.raises(FaultError, match="env_leak are on in production"):
        faults.active()
    with pytest.raises(FaultError, match="production"):
        faults.refuse_in_production(production=True)
    faults.refuse_in_production(production=False)


def test_every_fault_says_its_mechanism():
    assert set(MECHANISM) == set(Fault)
