"""What simulated searches cost and how often they name the right cause, with limits that show the noise."""

from dataclasses import dataclass

import numpy as np
from scipy.stats import beta

CONFIDENCE = 0.99
LEAST_ACCURACY = 0.93


@dataclass(frozen=True, slots=True, eq=False)
class Searches:
    """One entry per search: runs, second cost (builds or suite equivalents), whether it named something, and right.

    `confirming` counts the executions of confirming A/Bs where they were simulated, apart from the runs.
    """

    runs: np.ndarray
    second: np.ndarray
    named: np.ndarray
    right: np.ndarray
    confirming: np.ndarray

    @property
    def trials(self) -> int:
        """Number of searches."""
        return len(self.runs)

    @property
    def accuracy(self) -> float:
        """Share of right answers among the searches that name something."""
        return float(self.right.sum() / max(1, self.named.sum()))

    @property
    def accuracy_limit(self) -> float:
        """One-sided Clopper-Pearson lower limit of the accuracy, 99 %."""
        right, named = int(self.right.sum()), int(self.named.sum())
        return 0.0 if right == 0 else float(beta.ppf(1 - CONFIDENCE, right, named - right + 1))

    def line(self) -> str:
        """Mean runs with their standard error, mean second cost, accuracy with its limit, and what named nothing."""
        error = self.runs.std(ddof=1) / np.sqrt(self.trials)
        return (
            f"{self.runs.mean():7.1f} ±{error:4.1f} {self.second.mean():8.2f} "
            f"{self.accuracy:9.3f} {self.accuracy_limit:8.3f} {int((~self.named).sum()):6d} {self.trials:7d} {self.confirming.mean():8.1f}"
        )


def join(parts: list[Searches]) -> Searches:
    """Searches of several chunks as one."""
    return Searches(
        *(
            np.concatenate([getattr(p, name) for p in parts])
            for name in ("runs", "second", "named", "right", "confirming")
        )
    )
