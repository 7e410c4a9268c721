"""The printed boundaries of the facts (2.3), which were built on 26 rates, and what they are built from."""

import numpy as np

from service.stats.mixture import Prior, ratio_mixture
from service.stats.spending import Spending, path_weights, spend, spent

RATES_26 = np.concatenate([[0.002, 0.005, 0.01, 0.02, 0.03], np.linspace(0.05, 0.95, 19), [0.98, 0.99]])

# (blocks, alpha): n -> least control failures beside 0, 1, 2, 3 treated failures.
PRINTED = {
    (16, 0.05): {
        4: (4,),
        5: (4, 5),
        6: (4, 6, 6),
        8: (4, 6, 7, 8),
        10: (4, 6, 8, 9),
        12: (4, 6, 8, 9),
        16: (4, 6, 8, 10),
    },
    (20, 0.025): {
        4: (4,),
        5: (4,),
        6: (5, 6),
        7: (5, 7, 7),
        8: (5, 7, 8),
        10: (5, 7, 8, 9),
        12: (5, 7, 9, 10),
        16: (5, 7, 9, 11),
        20: (4, 8, 10, 11),
    },
    (40, 0.025): {
        4: (4,),
        5: (5,),
        8: (5, 8, 8),
        10: (6, 8, 9, 10),
        15: (6, 8, 10, 12),
        20: (5, 9, 10, 12),
        30: (5, 9, 11, 12),
        40: (5, 8, 11, 13),
    },
}


def build(blocks, alpha, rates=RATES_26, prior=Prior.FIFTY_FIFTY, spending=Spending.POCOCK, ratio=1.0):
    """Rows of the boundary and the rejected paths, at the given null rates and without a check between them."""
    mixture = ratio_mixture(prior, ratio)
    tables = [mixture.log_e_table(n) for n in range(1, blocks + 1)]
    schedule = [spent(spending, alpha, n / blocks) for n in range(1, blocks + 1)]
    return spend(tables, schedule, ratio, rates)


def probability(crossed, p_high, p_low):
    """Probability of the crossed paths at a pair of rates."""
    blocks = len(crossed) - 1
    weights = [path_weights(blocks, np.array([p]))[0] for p in (p_high, p_low)]
    return float(weights[0] @ crossed @ weights[1])


def expected_executions(rows, p_high, p_low):
    """Expected runs of both arms, looking at every block and stopping at the boundary."""
    from service.stats.spending import add_block

    alive, blocks = np.ones((1, 1)), 0.0
    for row in rows:
        alive = add_block(alive, p_high, p_low)
        n = len(alive) - 1
        least = np.full(n + 1, n + 1)
        least[: len(row)] = row
        stops = np.arange(n + 1)[:, None] >= least
        if n < len(rows):
            blocks += n * float(alive[stops].sum())
            alive[stops] = 0.0
        else:
            blocks += n * float(alive.sum())
    return 2 * blocks
