"""The first use of a kernel in a process. A case that warms a kernel hides what these look for.

Faults `unguarded_first_load` and `autotune_writes_state`: they fail alone and pass after the operators' cases.
"""

from __future__ import annotations

import threading
from unittest import mock

import torch

from gpu_runner.gdn.ops import calls
from gpu_runner.gdn.ops.errors import KernelNotReadyError
from gpu_runner.gdn.ops.modules import KERNELS
from gpu_runner.gdn.registry import OpCtx
from gpu_runner.gdn.suite.case import case
from gpu_runner.gdn.suite.inputs import Inputs

KERNEL = "packed_decode"
PATIENCE_S = 0.5


@case
def concurrent_first_load() -> None:
    """Two queues use one kernel for the first time at once; both get it, loaded once.

    The load waits until the other queue has come by. Behind a lock that queue waits in turn, until patience ends.
    """
    came_by, is_loading = threading.Event(), threading.Event()
    load, loads, failures = KERNELS._load, [], []

    def slow_load(name: str) -> object:
        loads.append(name)
        is_loading.set()
        came_by.wait(PATIENCE_S)
        return load(name)

    def first() -> None:
        KERNELS.kernel(KERNEL)
        is_loading.set()

    def second() -> None:
        is_loading.wait(PATIENCE_S)
        try:
            KERNELS.kernel(KERNEL)
        except KernelNotReadyError as error:
            failures.append(error)
        came_by.set()

    with mock.patch.object(KERNELS, "_load", slow_load):
        queues = [threading.Thread(target=first), threading.Thread(target=second)]
        for queue in queues:
            queue.start()
        for queue in queues:
            queue.join()
    assert not failures, f"first load is not safe across two queues: {failures[0]}"
    assert len(loads) <= 1, f"the kernel was loaded {len(loads)} times"


@case
def first_scan_equals_the_second() -> None:
    """The scan over chunks twice from the same states: a first use may not do more than a later one."""
    ctx, pools = OpCtx(), []
    for _ in range(2):
        i = Inputs.draw((40,), seed=31)
        kept = torch.ones_like(i.kept)
        calls.delta_h(i.k, i.k.repeat(1, 2, 1), i.v, i.g, i.pool, i.slots, kept, i.plan, ctx=ctx)
        pools.append(i.pool)
    assert torch.equal(*pools), f"first states differ by {(pools[0] - pools[1]).abs().max().item():.1e}"
