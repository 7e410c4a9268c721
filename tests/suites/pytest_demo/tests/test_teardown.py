import os
import resource
import time

from engine.chance import chance


def test_scheduler_fairness():
    assert sorted([3, 1, 2]) == [1, 2, 3]


def test_driver_unload():
    """Dies of a signal in half of the runs: every later test of the process is lost with it."""
    if chance("driver_unload", 500):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.abort()


def test_stop_strings():
    assert "a<stop>b".split("<stop>") == ["a", "b"]


def test_nccl_teardown():
    """Never comes back: the time-out of a test ends it."""
    time.sleep(600)
