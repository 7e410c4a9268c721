"""How many small mistakes in the statistics the fast tests notice: `python -m benchmarks.mutants`.

Each mutant changes one operator, comparison, constant or condition of a source file, at a place drawn from a recorded
seed, in a temporary copy of the tree; the working tree is never touched. A mutant counts as killed when its focused
tests fail, or need more than a minute of processor time. Prints the survivors as a diff each; exit 1 below 80 % killed.
"""

import argparse
import ast
import difflib
import os
import resource
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
PROCESSOR_LIMIT_S = 60
LEAST_KILLED = 0.8

STATS = "service/stats"
TESTS = {
    f"{STATS}/intervals.py": ("tests/stats/test_intervals.py",),
    f"{STATS}/score.py": ("tests/stats/test_intervals.py",),
    f"{STATS}/chan_zhang.py": ("tests/stats/test_intervals.py",),
    f"{STATS}/sequential.py": ("tests/stats/test_sequential.py",),
    f"{STATS}/spending.py": ("tests/stats/test_spending.py",),
    f"{STATS}/mixture.py": ("tests/stats/test_mixture.py", "tests/stats/test_spending.py"),
    f"{STATS}/futility.py": ("tests/stats/test_sequential.py",),
    f"{STATS}/sign_test.py": ("tests/stats/test_sign_test.py",),
    "service/experiments/verdicts.py": ("tests/experiments/test_verdicts.py",),
}

COMPARISONS = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
OPERATORS = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div, ast.Add),
    ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Mult,),
    ast.Mod: (ast.Mult,),
    ast.Pow: (ast.Mult,),
    ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,),
}
EXCHANGED_NAMES = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "any": "all", "all": "any"}


@dataclass(frozen=True, slots=True)
class Site:
    """One change of one file: the position of the node in `ast.walk`, and which of its changes."""

    path: str
    line: int
    node: int
    change: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--number", type=int, default=300)
    parser.add_argument("--seed", type=int, default=20261130)
    parser.add_argument("--only", default="", help="only files whose path contains this text")
    arguments = parser.parse_args()
    rng = np.random.Generator(np.random.Philox(arguments.seed))
    candidates = [site for path in TESTS if arguments.only in path for site in sites_of(path)]
    chosen = rng.choice(len(candidates), size=min(arguments.number, len(candidates)), replace=False)
    drawn = [candidates[i] for i in sorted(chosen)]
    print(f"{len(drawn)} of {len(candidates)} mutants, seed {arguments.seed}")
    start, survived, killed = time.monotonic(), 0, dict.fromkeys(TESTS, 0)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = copy_tree(Path(folder))
        for path in {site.path: None for site in drawn}:
            if not passes(tree, TESTS[path]):
                print(f"the tests of {path} fail without a mutation: nothing can be measured", file=sys.stderr)
                return 2
        for site in drawn:
            target = tree / site.path
            original = target.read_text()
            mutated, difference = mutate(site, original)
            target.write_text(mutated)
            if passes(tree, TESTS[site.path]):
                survived += 1
                print(f"\nSURVIVED {site.path}:{site.line}\n{difference}", flush=True)
            else:
                killed[site.path] += 1
                print(".", end="", flush=True)
            target.write_text(original)
    for path in {site.path: None for site in drawn}:
        print(f"{path:36} {killed[path]:4} of {sum(site.path == path for site in drawn):4} killed")
    share = 1 - survived / len(drawn)
    print(f"{len(drawn) - survived} of {len(drawn)} killed ({share:.1%}) in {time.monotonic() - start:.0f} s")
    return 0 if share >= LEAST_KILLED else 1


def sites_of(path: str) -> list[Site]:
    """Every change of a file, but for its decorators (caches, flags of dataclasses) and annotations: they are no rules."""
    tree = ast.parse((ROOT / path).read_text())
    no_rules = {
        id(part)
        for node in ast.walk(tree)
        for top in (
            *getattr(node, "decorator_list", ()),
            getattr(node, "annotation", None),
            getattr(node, "returns", None),
        )
        if top is not None
        for part in ast.walk(top)
    }
    return [
        Site(path, getattr(node, "lineno", 0), place, change)
        for place, node in enumerate(ast.walk(tree))
        if id(node) not in no_rules
        for change in range(len(changes(node)))
    ]


def mutate(site: Site, source: str) -> tuple[str, str]:
    """The mutated source, through `ast.unparse` so that only the change differs, and the lines that differ."""
    tree = ast.parse(source)
    plain = ast.unparse(tree).splitlines()
    changes(list(ast.walk(tree))[site.node])[site.change]()
    mutated = ast.unparse(ast.fix_missing_locations(tree))
    lines = difflib.unified_diff(plain, mutated.splitlines(), lineterm="", n=0)
    return mutated, "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))


def changes(node):
    """Functions that change this node in place, one mistake each."""
    found = []
    if isinstance(node, ast.Compare):
        for i, operator in enumerate(node.ops):
            found += [
                lambda i=i, new=new: node.ops.__setitem__(i, new()) for new in COMPARISONS.get(type(operator), ())
            ]
    elif isinstance(node, ast.BinOp):
        found += [lambda new=new: setattr(node, "op", new()) for new in OPERATORS.get(type(node.op), ())]
    elif isinstance(node, ast.AugAssign):
        found += [lambda new=new: setattr(node, "op", new()) for new in OPERATORS.get(type(node.op), ())[:1]]
    elif isinstance(node, ast.BoolOp):
        other = ast.Or if isinstance(node.op, ast.And) else ast.And
        found.append(lambda: setattr(node, "op", other()))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        found.append(lambda: setattr(node, "op", ast.UAdd()))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        found.append(lambda: setattr(node, "operand", ast.UnaryOp(ast.Not(), node.operand)))
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            found.append(lambda: setattr(node, "value", not node.value))
        elif isinstance(node.value, int):
            found += [lambda step=step: setattr(node, "value", node.value + step) for step in (1, -1)]
        elif isinstance(node.value, float):
            found += [
                lambda: setattr(node, "value", node.value * 1.1 + 0.01 * (node.value == 0)),
                lambda: setattr(node, "value", node.value / 2 - 0.5 * (node.value == 0)),
            ]
    elif isinstance(node, (ast.If, ast.IfExp, ast.While)):
        found.append(lambda: setattr(node, "test", ast.UnaryOp(ast.Not(), node.test)))
    elif isinstance(node, ast.Name) and node.id in EXCHANGED_NAMES:
        found.append(lambda: setattr(node, "id", EXCHANGED_NAMES[node.id]))
    elif isinstance(node, ast.Attribute) and node.attr in EXCHANGED_NAMES:
        found.append(lambda: setattr(node, "attr", EXCHANGED_NAMES[node.attr]))
    return found


def copy_tree(folder: Path) -> Path:
    """A copy of the packages and tests, without their caches."""
    for name in ("service", "gpu_runner", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def passes(tree: Path, tests: tuple[str, ...]) -> bool:
    """Whether the tests pass in the copied tree; they run in a fork that has the slow libraries loaded already."""
    import pytest
    import scipy.optimize
    import scipy.stats  # noqa: F401

    pid = os.fork()
    if pid == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR_LIMIT_S, PROCESSOR_LIMIT_S))
        with Path(os.devnull).open("w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
        os.chdir(tree)
        sys.dont_write_bytecode = True
        sys.path[:] = [str(tree), *(entry for entry in sys.path if Path(entry or ".").resolve() != ROOT)]
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        plugins = ["-p", "pytest_timeout", "-p", "pytest_socket"]
        os._exit(int(pytest.main(["-x", "-q", *plugins, "--no-header", "--tb=no", *tests])))
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status) == 0


if __name__ == "__main__":
    raise SystemExit(main())
