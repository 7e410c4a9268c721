"""Planning: how many runs show or exclude what."""

import math


def clean_runs_to_exclude(rate: float, confidence: float = 0.95) -> int:
    """Smallest number of runs without a failure that excludes a failure rate of `rate` or more.

    ceil(ln(1 - confidence) / ln(1 - rate)), one-sided and exact. ValueError unless 0 < rate <= 1.

    >>> clean_runs_to_exclude(0.05)
    59
    """
    if not 0.0 < rate <= 1.0:
        raise ValueError(f"failure rate {rate} must lie in (0, 1]: a rate of 0 cannot be excluded by clean runs")
    if rate == 1.0:
        return 1
    return math.ceil(math.log(1 - confidence) / math.log1p(-rate))
