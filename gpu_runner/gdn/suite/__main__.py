"""`python -m gpu_runner.gdn.suite list [GROUP...]` and `... case NAME`, one process for each case of ctest."""

from __future__ import annotations

import sys

from gpu_runner.gdn.suite.case import all_cases, run_case

USAGE = "usage: python -m gpu_runner.gdn.suite list [GROUP...] | case NAME"


def main(arguments: list[str]) -> int:
    """The exit status: 0, or 2 for a wrong command. A failing case ends in its traceback, status 1."""
    match arguments:
        case ["list", *groups]:
            for found in all_cases().values():
                if not groups or found.group in groups:
                    print(found.name)
            return 0
        case ["case", name] if name in all_cases():
            run_case(name)
            print(f"{name}: passed")
            return 0
    print(USAGE, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
