"""The two forms of the suite as a user runs them, and what their likewise.toml says."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from gpu_runner.gdn.faults import parse
from gpu_runner.gdn.registry import ENVIRONMENT_PREFIX, check_environment
from gpu_runner.gdn.suite.__main__ import main
from gpu_runner.gdn.suite.case import all_cases

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "gpu_runner/gdn/suite"
SUITES = tomllib.loads((FOLDER / "likewise.toml").read_text())["suites"]
OURS = {name: suite for name, suite in SUITES.items() if name.startswith("gdn")}
TACTICS = ["decode_of_a_large_batch_matches_float64", "decode_has_the_bits_of_verification"]


def environment_of(suite, **more):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, **SUITES[suite]["environment"], "PATH": path, **more}


def test_every_toggle_sets_variables_that_mean_something():
    for suite in OURS.values():
        check_environment(suite["environment"])
        parse(suite["environment"].get("LIKEWISE_GDN_FAULT", ""))
        for toggle in suite.get("toggles", {}).values():
            assert check_environment(toggle["off"])
            assert all(name.startswith(ENVIRONMENT_PREFIX) for name in toggle["off"])


def test_the_pytest_form_runs_serially_in_the_order_of_the_suite(tmp_path):
    """Two cases by keyword, given in the wrong order, with the plugins that are installed here."""
    events = tmp_path / "events"
    process = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-k", "sampling or toggles_name"],
        cwd=FOLDER,
        env=environment_of("gdn", LIKEWISE_EVENTS=str(events), PYTEST_DISABLE_PLUGIN_AUTOLOAD=""),
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    ran = [line for line in process.stdout.splitlines() if line.startswith("test_suite.py::")]
    assert [line.split("[")[1].split("]")[0] for line in ran] == [
        "toggles_name_operators",
        "sampling_repeats_with_its_seed",
    ]
    names = {json.loads(line).get("counter") for line in events.read_text().splitlines()}
    assert "gdn.chunk_o.torch.fired" in names


def test_the_ctest_form_shows_the_tactic_file_across_processes(tmp_path):
    """The case passes, passes after the large batch without the fault, and fails after it with the fault."""
    pytest.importorskip("cmake", reason="the ctest form needs cmake and ctest")
    build = tmp_path / "build"
    run = {"cwd": ROOT, "capture_output": True, "text": True, "check": False}
    environment = environment_of("gdn_tactics")
    configured = subprocess.run(["cmake", "-S", FOLDER, "-B", build, "-DGDN_GROUPS=tactics"], env=environment, **run)
    assert configured.returncode == 0, configured.stderr
    failed = {}
    for name, fault, chosen in (
        ("fault", "autotune_disk_cache", "decode"),
        ("alone", "autotune_disk_cache", "bits_of_verification"),
        ("control", "", "decode"),
    ):
        private = {"XDG_CACHE_HOME": str(tmp_path / name), "LIKEWISE_GDN_FAULT": fault}
        process = subprocess.run(
            ["ctest", "--test-dir", build, "-j", "1", "-R", chosen], env=environment | private, **run
        )
        failed[name] = [case for case in TACTICS if f"{case} (Failed)" in process.stdout]
        assert (process.returncode == 0) == (not failed[name]), process.stdout
    assert failed == {"fault": TACTICS[1:], "alone": [], "control": []}


def test_the_command_lists_groups_and_refuses_what_it_does_not_know(capsys):
    assert main(["list", "tactics"]) == 0
    assert capsys.readouterr().out.split() == TACTICS
    assert main(["list"]) == 0
    assert capsys.readouterr().out.split() == list(all_cases())
    assert main(["case", "no_such_case"]) == 2
    assert "usage" in capsys.readouterr().err
    assert main(["case", "toggles_name_operators"]) == 0


def test_the_suite_is_of_the_promised_size():
    assert 25 <= len(all_cases()) <= 40
