"""Executions to a verdict, for all three questions: `python -m benchmarks.verdicts`.

A/B of two arms (exact), the search for a commit, and the search for a preceding test (simulated, fixed seeds), each
beside its bound and beside what people use today. Prints plain tables, writes benchmarks/results/verdicts.txt, and exits
1 when a search that claims 0.95 is shown to be right less often than 0.93. `--quick` runs a tenth of the trials.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from benchmarks.accuracy import LEAST_ACCURACY, Searches, join
from benchmarks.commit_searches import CommitProblem, has_git_bayesect, search_commits, search_git_bayesect
from benchmarks.order_searches import OrderProblem, search_halving, search_order
from benchmarks.two_arms import PAIRS, TwoArms, two_arms
from service.stats.causes import CauseKind, OrderPlan
from service.stats.operating import operating_characteristics
from service.stats.sequential import build_boundary

RESULTS = Path(__file__).parent / "results" / "verdicts.txt"
SEED = 20260101
PROCESSES = 2
CHUNK = 50

COMMITS = (
    CommitProblem("0.1->0.65, ends 20/20"),
    CommitProblem("  build cost 5", build_cost=5.0),
    CommitProblem("  one historic run per commit", history=1),
    CommitProblem("  the same, ends 200/20", old_runs=200, history=1),
    CommitProblem("  0.8 of the prior on a tenth of the commits", hot=0.8),
    CommitProblem("0->0.65, ends 20/20", p_old=0.0),
    CommitProblem("0->0.2, ends 20/20", p_old=0.0, p_new=0.2),
    CommitProblem("0.05->0.3, ends 20/20", p_old=0.05, p_new=0.3),
)
BAYESECT = (
    CommitProblem("0.1->0.65, nothing given", old_runs=0, new_runs=0),
    CommitProblem("0.1->0.65, ends 20/20"),
    CommitProblem("  one historic run per commit", history=1),
)
PLAN = OrderPlan(64)
ORDERS = (
    OrderProblem("single", CauseKind.SINGLE, PLAN),
    OrderProblem("AND-pair", CauseKind.AND, PLAN),
    OrderProblem("AND-pair, time ignored", CauseKind.AND, OrderPlan(64, fixed_cost=1.0)),
    OrderProblem("OR-pair, each name confirmed by an A/B", CauseKind.OR, PLAN, is_confirmed=True),
)
HALVING = ((ORDERS[0], 1), (ORDERS[0], 5), (ORDERS[1], 1))


def two_arm_lines(rows: list[TwoArms]) -> Iterator[str]:
    """The table of the A/B."""
    yield "1. A/B: expected executions, both arms, one-sided alpha 0.05, power 0.9, no futility stop (exact)"
    yield f"{'rates':>12} {'oracle':>8} {'boundary':>9} {'ratio':>6} {'N_max':>6} {'Fisher':>7} {'Boschloo':>9} {'e-value':>8}"
    for row in rows:
        rates = f"{row.rates[0]:g}/{row.rates[1]:g}"
        yield (
            f"{rates:>12} {row.oracle:8.1f} {row.sequential:9.1f} {row.sequential / row.oracle:6.3f} {row.blocks:6d} "
            f"{row.fisher:7d} {row.boschloo:9d} {row.e_value:8.1f}"
        )
    yield "boundary: prior 50/50, Pocock-type spending, smallest N_max of power 0.9. e-value: prior cure .5, cut at power 0.9."


def confirming_lines() -> Iterator[str]:
    """What the confirming A/B adds to a search, which the tables below leave out."""
    boundary = build_boundary(30)
    for p_control, p_treated in ((0.65, 0.1), (0.65, 0.0)):
        ends = operating_characteristics(boundary, p_control, p_treated)
        yield (
            f"A confirming A/B at {p_control:g}/{p_treated:g} adds {ends.expected_executions:.1f} executions and implicates "
            f"with probability {ends.implicated:.3f} (30 blocks, alpha 0.025, exact)."
        )


def search_lines(title: str, second: str, rows: list[tuple[str, Searches]]) -> Iterator[str]:
    """One table of searches."""
    yield title
    yield f"{'':<46} {'runs':>7} {'':5} {second:>8} {'accuracy':>9} {'99% low':>8} {'unsure':>6} {'trials':>7} {'confirm':>8}"
    for name, searches in rows:
        yield f"{name:<46} {searches.line()}"


def run_all(trials: int) -> tuple[list[str], bool]:
    """All tables, and whether no search is shown to be less accurate than the least allowed."""
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:

        def chunks(search: Callable[..., Searches], problem: OrderProblem) -> list[Future[Searches]]:
            starts = range(0, trials, CHUNK)
            return [pool.submit(search, problem, first, min(CHUNK, trials - first), SEED) for first in starts]

        orders = [(problem.name, chunks(search_order, problem)) for problem in ORDERS]
        arms = [pool.submit(two_arms, *pair) for pair in PAIRS]
        commits = [(p.name, pool.submit(search_commits, p, 2 * trials, SEED)) for p in COMMITS]
        halving = [(p.name, k, pool.submit(search_halving, p, trials, SEED, k)) for p, k in HALVING]
        rivals = [(p.name, pool.submit(search_git_bayesect, p, trials, SEED)) for p in BAYESECT if has_git_bayesect()]
        ours = [(name, job.result()) for name, job in commits]
        ours_order = [(name, join([job.result() for job in jobs])) for name, jobs in orders]
        theirs = [(f"git-bayesect 1.2: {name.strip()}", job.result()) for name, job in rivals]
        halved = [(f"detect-test-pollution's rule, {k} run(s): {name}", job.result()) for name, k, job in halving]
        rows = [job.result() for job in arms]
    lines = [*two_arm_lines(rows), *confirming_lines(), ""]
    lines += search_lines("2. Which of 64 commits: stop at posterior 0.95", "builds", ours + theirs)
    if not theirs:
        lines.append("git-bayesect is not installed (extra `bench`): its rows are left out.")
    lines.append("")
    lines += search_lines(
        "3. Which of 64 preceding tests, p = 0.65, 10 full and 10 alone runs given", "suites", ours_order + halved
    )
    lines.append(
        "runs: mean and standard error. unsure: could not tell, or (halving) the final check did not reproduce."
    )
    honest = all(s.accuracy_limit >= LEAST_ACCURACY for _, s in ours + ours_order)
    return lines, honest


def main() -> int:
    """Print and store the tables; 1 when the accuracy falls short."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the trials, results are not stored")
    quick = parser.parse_args().quick
    began = time.perf_counter()
    lines, honest = run_all(100 if quick else 1000)
    lines.append(f"seed {SEED}, {time.perf_counter() - began:.0f} s with {PROCESSES} processes")
    print("\n".join(lines))
    if not quick:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text("\n".join(lines) + "\n")
    return 0 if honest or quick else 1


if __name__ == "__main__":
    raise SystemExit(main())
