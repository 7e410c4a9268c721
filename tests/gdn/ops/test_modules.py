"""Kernels are loaded once, whoever asks first; and every one of them compiles for a GPU that is not here."""

import json
import os
import subprocess
import sys
import threading
import time
import types

import pytest

from gpu_runner.gdn.counters import Counters
from gpu_runner.gdn.ops import modules
from gpu_runner.gdn.ops.errors import KernelNotReadyError, OperatorError
from gpu_runner.gdn.ops.modules import SOURCES, KernelModules, padded
from gpu_runner.gdn.ops.tiles import Tile


class SlowLoader(KernelModules):
    """Loading waits until a second thread has had its chance to look."""

    def __init__(self):
        self.loads = Counters()
        super().__init__(self.loads)
        self.loading = threading.Event()
        self.may_finish = threading.Event()

    def _load(self, name):
        self.loading.set()
        assert self.may_finish.wait(10)
        return super()._load(name)

    def count(self):
        return self.loads.flat((), ()).get("gdn.modules.loads", 0)


def load_in_two_threads(kernels):
    """What each of two threads got, the second having come while the first was loading."""
    results = [None, None]

    def load(i):
        try:
            results[i] = kernels.kernel("gating")
        except KernelNotReadyError as error:
            results[i] = error

    first, second = (threading.Thread(target=load, args=(i,)) for i in range(2))
    first.start()
    assert kernels.loading.wait(10)
    second.start()
    if "unguarded_first_load" in os.environ.get("LIKEWISE_GDN_FAULT", ""):
        second.join(10)
    kernels.may_finish.set()
    first.join(10)
    second.join(10)
    return results


def test_two_threads_load_once():
    kernels = SlowLoader()
    first, second = load_in_two_threads(kernels)
    assert first is second
    assert not isinstance(first, Exception)
    assert kernels.count() == 1


def test_fault_the_second_thread_sees_a_half_loaded_kernel(monkeypatch):
    monkeypatch.setenv("LIKEWISE_GDN_FAULT", "unguarded_first_load")
    kernels = SlowLoader()
    first, second = load_in_two_threads(kernels)
    assert not isinstance(first, Exception)
    assert isinstance(second, KernelNotReadyError)
    assert kernels.kernel("gating") is first, "later there is nothing to see"


def test_fault_a_warmed_kernel_hides_the_race(monkeypatch):
    monkeypatch.setenv("LIKEWISE_GDN_FAULT", "unguarded_first_load")
    kernels = SlowLoader()
    kernels.may_finish.set()
    kernels.warm_all()
    assert load_in_two_threads(kernels) == [kernels.kernel("gating")] * 2


def test_warm_all_loads_every_kernel():
    counters = Counters()
    kernels = KernelModules(counters)
    assert kernels.warm_all() == len(SOURCES)
    kernels.warm_all()
    assert counters.flat((), ())["gdn.modules.loads"] == len(SOURCES)
    with pytest.raises(OperatorError, match="no kernel 'nothing'"):
        kernels.kernel("nothing")


def test_only_one_interpreted_kernel_runs_at_a_time(interpreter):
    running, most = [], []

    class Kernel:
        def __getitem__(self, grid):
            return self

        def __call__(self, *args, **constants):
            running.append(1)
            most.append(len(running))
            time.sleep(0)  # gives other threads their turn
            running.pop()

    kernels = KernelModules(Counters())
    kernels.kernel("gating")
    kernels._entries["gating"].kernel = Kernel()
    threads = [
        threading.Thread(target=lambda: [kernels.launch("gating", (1,), Tile()) for _ in range(50)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(most), max(most)) == (200, 1)


def test_an_empty_grid_loads_nothing():
    counters = Counters()
    KernelModules(counters).launch("gating", (0,), Tile())
    assert "gdn.modules.loads" not in counters.flat((), ())


@pytest.mark.parametrize(("size", "expected"), [(1, 16), (16, 16), (17, 32), (24, 32), (128, 128), (129, 256)])
def test_sizes_are_padded_to_what_a_dot_accepts(size, expected):
    assert padded(size) == expected


@pytest.mark.parametrize("module", [None, types.ModuleType("half imported")])
def test_until_triton_is_imported_the_environment_decides(module, monkeypatch):
    monkeypatch.setitem(sys.modules, "triton.language.standard", module)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert modules.is_interpreted()
    monkeypatch.delenv("TRITON_INTERPRET")
    assert not modules.is_interpreted()


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "head_dim"), [("bf16", 128), ("fp32", 16)])
def test_every_kernel_compiles_for_sm_90(dtype, head_dim, tmp_path):
    report = tmp_path / "compiled.json"
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "gpu_runner.gdn.ops.aot", "--dtype", dtype, "--head-dim", str(head_dim)]
    done = subprocess.run(
        [*command, "--json", str(report)],
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    built = json.loads(report.read_text())
    assert {entry["kernel"] for entry in built} == set(SOURCES)
    assert all(entry["capability"] == 90 and len(entry["sha256"]) == 64 for entry in built)
    if head_dim == 128:
        assert {"wu", "delta_h", "chunk_o"} == {entry["kernel"] for entry in built if entry["uses_wgmma"]}
