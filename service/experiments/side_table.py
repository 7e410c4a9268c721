"""Every test beside the victim: failures in each arm, Holm over tests. Shown, never steering the experiment."""

from __future__ import annotations

from collections.abc import Sequence

from service.domain import CLEAN, FAILING
from service.experiments.model import ExecutionEvidence, TestRow
from service.stats.compare import fisher
from service.stats.many_arms import holm_adjusted


def build(
    victim: str, control: int, treated: int, blocks: Sequence[dict[int, ExecutionEvidence]]
) -> tuple[TestRow, ...]:
    """Return the tests that failed at least once in either arm, smallest p-value first, the victim left out.

    Counts are (failures, runs) over executions in which the test passed or failed; skipped and not-run are no runs.
    `is_new`: it failed in the treated arm only. p: Fisher two-sided; Holm 1979 over all tests that ran in both arms.
    """
    counts: dict[str, list[int]] = {}
    for block in blocks:
        for column, arm in ((0, control), (2, treated)):
            for test, outcome in block[arm].outcomes.items():
                row = counts.setdefault(test, [0, 0, 0, 0])
                if outcome.outcome in FAILING:
                    row[column] += 1
                if outcome.outcome in FAILING | CLEAN:
                    row[column + 1] += 1
    counts.pop(victim, None)
    both = {test: row for test, row in counts.items() if row[1] and row[3]}
    # A test that never failed has p = 1 and still counts in the correction.
    p_values = {test: fisher(*row) if row[0] or row[2] else 1.0 for test, row in both.items()}
    adjusted = dict(zip(p_values, map(float, holm_adjusted(list(p_values.values()))), strict=True))
    rows = [
        TestRow(
            test,
            (row[0], row[1]),
            (row[2], row[3]),
            is_new=row[0] == 0 and row[2] > 0,
            p_value=p_values.get(test, 1.0),
            p_holm=adjusted.get(test, 1.0),
        )
        for test, row in counts.items()
        if row[0] or row[2]
    ]
    return tuple(sorted(rows, key=lambda row: (row.p_value, row.test)))
