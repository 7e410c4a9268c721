"""The fingerprint of an execution: every channel, every class, and no secrets."""

import os

import pytest

from gpu_runner.protocol import Treatment, TreatmentKind
from gpu_runner.surroundings import compose, search_path
from tests.runner.harness import ctest_files, fields

SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "s3cret",
    "GITHUB_TOKEN": "ghs_x",
    "PIP_INDEX_URL": "https://user:s3cret@example.org",
}


@pytest.fixture
def reports(make_runner):
    """Two arms, one of which sets a variable that the other lacks and takes one away, in an environment with secrets."""
    runner = make_runner(
        ctest_files(("one", "env"), ("two", "true")),
        framework="ctest",
        environment={"SUITE": "1", "SHOWN": "2", "GONE": "3"},
        record_values=("SHOWN",),
    )
    runner.arm()
    runner.arm(Treatment(TreatmentKind.ENVIRONMENT, environment={"MODE": "fast", "GONE": None}))
    job = runner.block_job((0, ("one", "two"), 11), (1, ("one", "two"), 12), victim="two")
    return runner.run(job, env={**os.environ, **SECRETS}).of("execution")


def test_every_field_is_there_in_every_arm_with_one_class(reports):
    described = [{(item.channel, item.name): item.context_class for item in report.context} for report in reports]
    assert described[0] == described[1]
    assert {channel for channel, _ in described[0]} == {
        "host", "device", "software", "suite", "process", "files", "pressure",
    }  # fmt: skip
    assert len(reports[0].context) == len(described[0])


def test_only_what_the_treatment_declares_differs_among_the_identity_fields(reports):
    control, treated = (
        {(item.channel, item.name): item.value for item in report.context if item.context_class == "identity"}
        for report in reports
    )
    differing = {key: (control[key], treated[key]) for key in control if control[key] != treated[key]}
    assert differing == {
        ("process", "environment.MODE"): (None, "fast"),
        ("process", "environment.GONE"): ("3", None),
    }


def test_names_are_recorded_always_and_values_by_choice(reports):
    process = fields(reports[0], "process")
    names = process["environment_names"]
    assert {"SUITE", "SHOWN", "PATH", "HOME", "LIKEWISE_RUN_SEED", "PIP_INDEX_URL"} <= set(names)
    assert not {"MODE", "GONE"} & set(names)
    assert process["environment.SHOWN"] == "2"
    assert "environment.SUITE" not in process
    assert "environment.PIP_INDEX_URL" not in process


def test_secrets_reach_neither_the_tests_nor_the_record(reports):
    output = reports[0].results[0].output
    assert "AWS_SECRET_ACCESS_KEY" not in output
    assert "GITHUB_TOKEN" not in output
    assert "s3cret" not in str(reports[0].context)


def test_a_test_gets_its_own_folders_and_its_seed(reports):
    lines = dict(line.partition("=")[::2] for line in reports[0].results[0].output.splitlines())
    assert lines["LIKEWISE_RUN_SEED"] == "11"
    private = lines["HOME"].removesuffix("/home")
    for name in ("TMPDIR", "XDG_CACHE_HOME", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH", "LIKEWISE_EVENTS"):
        assert lines[name].startswith(private)
    assert lines["SUITE"] == "1"


def test_suite_and_software_say_what_ran(reports):
    suite, software = fields(reports[0], "suite"), fields(reports[0], "software")
    assert (suite["tests"], suite["prefix"], suite["jobs"]) == (["one", "two"], ["one"], 1)
    assert software["commit"] == software["tree_hash"]
    assert software["dirty"] is False
    assert set(software) >= {"build_commands", "artefacts", "toolchain.cc", "toolchain.cmake", "toolchain.cuda"}
    pressure = fields(reports[0], "pressure")
    assert pressure["memory_available_bytes"] > 0
    assert pressure["peak_bytes"] > 0


def test_a_build_that_changes_tracked_files_is_dirty(make_runner):
    runner = make_runner(
        ctest_files(("one", "true")) | {"a": "x"}, framework="ctest", build=("echo y > a; echo z > b",)
    )
    clean = runner.arm(Treatment(TreatmentKind.BUILD, commands=("true",)))
    built = runner.arm()
    said = [fields(arm, "software") for arm in runner.prepare("one").of("prepared")]
    assert [said[clean]["dirty"], said[built]["dirty"]] == [False, True]
    assert said[clean]["tree_hash"] == said[built]["tree_hash"]
    assert said[clean]["artefacts"] != said[built]["artefacts"]
    assert said[clean]["build_commands"] == ["true"]


def test_environments_are_layered_and_none_takes_away(tmp_path, monkeypatch):
    monkeypatch.setenv("LC_TIME", "C")
    monkeypatch.setenv("NOT_INHERITED", "1")
    environment = compose(tmp_path, [{"A": "1", "B": "1"}, {"A": "2", "B": None, "TMPDIR": "/elsewhere"}])
    assert (environment["A"], environment["LC_TIME"], environment["TMPDIR"]) == ("2", "C", "/elsewhere")
    assert not {"B", "NOT_INHERITED"} & set(environment)


def test_the_path_always_ends_with_the_folder_of_the_interpreter():
    assert search_path(None).startswith("/usr/local/sbin:")
    assert search_path("/a:/b").startswith("/a:/b:")
    assert search_path(search_path("/a")) == search_path("/a")


NVIDIA_SMI = """#!/bin/sh
case "$*" in
*compute-apps*) echo "4242, python, 512" ;;
*clocks_event*) echo 'Field "clocks_event_reasons.hw_slowdown" is not a valid field to query.'; exit 2 ;;
*) echo "GPU-1, NVIDIA H200, 570.1, 96.00, 143771, Disabled, Default, Enabled, Enabled, 700.00, 4, Not Active,\
 Not Active, 345, 3201, 0x0000000000000001, 30, 76.5, 0"
   echo "GPU-2, NVIDIA H200, 570.1, 96.00, 143771, [N/A], Default, Enabled, Enabled, 700.00, 9, Active,\
 Not Active, 345, 3201, 0x0000000000000001, 30, 76.5, 0" ;;
esac
"""


def test_gpus_are_read_from_nvidia_smi_also_under_the_old_names(make_runner, tmp_path):
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "nvidia-smi").write_text(NVIDIA_SMI)
    (tools / "nvidia-smi").chmod(0o755)
    runner = make_runner(ctest_files(("one", "true")), framework="ctest")
    job = runner.block_job((0, ("one",), 1))
    report = runner.run(job, env={**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}).report
    found = {item.name: (item.context_class.value, item.value) for item in report.context if item.channel == "device"}
    assert found["count"] == ("identity", 2)
    assert found["0.uuid"] == ("identity", "GPU-1")
    assert found["1.mig_mode"] == ("identity", None)
    assert found["0.memory_used_mib"] == ("state", "4")
    assert found["1.hardware_slowdown"] == ("state", "Active")
    assert found["1.temperature_c"] == ("observed", "30")
    assert fields(report, "pressure")["device_processes"] == ["4242, python, 512"]


def test_a_gpu_that_does_not_answer_fails_the_job_not_the_test(make_runner, tmp_path):
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "nvidia-smi").write_text("#!/bin/sh\necho Unable to determine the device handle; exit 255\n")
    (tools / "nvidia-smi").chmod(0o755)
    runner = make_runner(ctest_files(("one", "true")), framework="ctest")
    job = runner.block_job((0, ("one",), 1))
    said = runner.run(job, env={**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"})
    assert (said.exit_code, said.failure.code, said.of("execution")) == (1, "device_unreadable", [])
