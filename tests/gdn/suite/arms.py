"""Runs arms of the demonstration suite, each in a fork of one process that has imported it and run nothing.

    python arms.py < arms.json > results.json

An arm is {"environment": {...}, "cases": [...]}; its result maps each case to "passed" or to its failure's message,
and "counters" to the sums over its cases.
"""

import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

from gpu_runner.gdn.registry import check_environment
from gpu_runner.gdn.suite import case
from gpu_runner.gdn.suite.case import all_cases, run_case


def run_arm(arm):
    with tempfile.TemporaryDirectory() as folder:
        events = Path(folder, "events")
        os.environ |= {"LIKEWISE_EVENTS": str(events), **arm["environment"]}
        case.ASKED_AT_START = check_environment()
        result = {}
        for name in arm["cases"] or all_cases():
            try:
                run_case(name)
                result[name] = "passed"
            except AssertionError as error:
                result[name] = f"failed: {error}"
        counters = Counter()
        for line in events.read_text().splitlines():
            event = json.loads(line)
            if "counter" in event:
                counters[event["counter"]] += event["value"]
        return result | {"counters": counters}


def in_a_fork(arm):
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            os.close(reader)
            with os.fdopen(writer, "w") as pipe, os.fdopen(os.dup(2), "w") as sys.stdout:
                json.dump(run_arm(arm), pipe)
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        result = pipe.read()
    assert os.waitpid(child, 0)[1] == 0, arm
    return json.loads(result)


if __name__ == "__main__":
    all_cases()
    json.dump([in_a_fork(arm) for arm in json.load(sys.stdin)], sys.stdout)
