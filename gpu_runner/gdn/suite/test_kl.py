"""The KL tests: answers that used the cache against a cold replay, one measurement `kl_div` per sample."""

import os
from collections.abc import Callable, Iterator

import pytest
import torch

from gpu_runner.gdn import faults, registry
from gpu_runner.gdn.counters import COUNTERS
from gpu_runner.gdn.suite.case import SEED_VARIABLE, device
from gpu_runner.gdn.suite.kl_cases import KL_CASES, mean_divergence, report, run_case, thresholds


@pytest.fixture(autouse=True)
def _counted() -> Iterator[None]:
    """Each test reports its own counters, whether it passes or not; one thread, so that sums keep their order."""
    COUNTERS.reset()
    for counter, value in faults.counters().items():
        COUNTERS.add(counter, value)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    registry.emit_counters()


@pytest.mark.parametrize("name", KL_CASES)
def test_mean_divergence_stays_below_the_threshold(
    name: str, request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> None:
    """The mean over samples, as SGLang's KL tests assert it; the threshold was fixed before."""
    samples = run_case(name, os.environ.get(SEED_VARIABLE, "0"), device())
    report(samples, request.node.nodeid)
    threshold = thresholds()[name].mean
    record_property("likewise.metric.kl_threshold", threshold)
    mean = mean_divergence(samples)
    worst = max(samples, key=lambda sample: sample.divergence)
    assert mean <= threshold, f"mean k3 {mean:.3g} above {threshold:.3g}; worst sample {worst.divergence:.3g}"
