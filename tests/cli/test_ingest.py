"""`likewise ingest`: what it reads, sends, prints and returns."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from service.cli.ingest import ingest_command
from service.errors import InvalidValueError
from service.ingest.payload import RunPayload
from service.ingest.summary import IngestSummary, summarise
from service.ingest.upload import read_run

DATA = Path(__file__).parents[1] / "ingest" / "data"
SHA = "a" * 40
LOCAL = ["--project", "o/n", "--sha", SHA]
ACTIONS = {"GITHUB_REPOSITORY": "o/n", "GITHUB_SHA": SHA, "GITHUB_RUN_ID": "7", "GITHUB_REF": "refs/heads/main"}


class Sent:
    """Stands where a store would."""

    def __init__(self) -> None:
        self.payloads: list[RunPayload] = []

    def __call__(self, payload: RunPayload) -> IngestSummary:
        is_new = payload not in self.payloads
        self.payloads.append(payload)
        return summarise(read_run(payload), run="12", url="http://127.0.0.1:8321/runs/12", is_new=is_new)


def run(arguments: list[str], environment: Mapping[str, str] | None = None) -> tuple[Result, Sent]:
    sent = Sent()
    app = typer.Typer()
    app.command()(ingest_command(sent, environment or {}))
    return CliRunner().invoke(app, arguments), sent


def test_files_are_sent_with_the_metadata_of_the_options() -> None:
    result, sent = run([str(DATA / "pytest.xml"), *LOCAL, "--branch", "main", "--run-id", "5", "--attempt", "2", "--job", "unit",
                        "--variant", "py3.13", "--suite", "cuda", "--pull-request", "9", "--exit-code", "1"])  # fmt: skip
    assert result.exit_code == 0
    [payload] = sent.payloads
    metadata = payload.metadata
    assert (metadata.branch, metadata.run_id, metadata.attempt, metadata.job) == ("main", "5", 2, "unit")
    assert (metadata.variant, metadata.suite, metadata.pull_request, metadata.exit_code) == ("py3.13", "cuda", 9, 1)
    assert payload.files[0].content == (DATA / "pytest.xml").read_bytes()
    assert "recorded as run 12 http://127.0.0.1:8321/runs/12" in result.output
    assert "run complete: 4 results" in result.output


def test_github_actions_needs_no_options_and_options_win() -> None:
    result, sent = run([str(DATA / "pytest.xml"), "--branch", "topic"], ACTIONS)
    assert result.exit_code == 0
    metadata = sent.payloads[0].metadata
    assert (metadata.project, metadata.sha, metadata.run_id, metadata.branch) == ("o/n", SHA, "7", "topic")


def test_a_rejected_file_is_named_first_and_the_others_are_kept(tmp_path: Path) -> None:
    shutil.copy(DATA / "pytest.xml", tmp_path / "good.xml")
    (tmp_path / "bad.xml").write_text("<testsuite>\n  <oops")
    result, sent = run([str(tmp_path), *LOCAL])
    assert result.exit_code == 1
    assert [Path(file.name).name for file in sent.payloads[0].files] == ["bad.xml", "good.xml"]
    lines = result.output.splitlines()
    assert re.search(r"bad\.xml +rejected +0 +2:3: not well-formed", lines[1])
    assert re.search(r"good\.xml +parsed +4 +1 error, 1 expected_failure, 1 failed, 1 passed", lines[2])
    assert "run partial" in result.output


def test_a_file_that_breaks_off_ends_with_1() -> None:
    result, _ = run([str(DATA / "cut_off.xml"), *LOCAL])
    assert result.exit_code == 1
    assert "4:1: cut off" in result.output


def test_a_dry_run_needs_no_metadata_and_sends_nothing() -> None:
    result, sent = run([str(DATA / "dirty.xml"), "--dry-run"])
    assert result.exit_code == 0
    assert sent.payloads == []
    assert "dry run: nothing was stored" in result.output
    assert "repaired" in result.output


def test_json_is_one_object() -> None:
    result, _ = run([str(DATA / "pytest.xml"), str(DATA / "absent.xml"), "--dry-run", "--json"])
    assert result.exit_code == 1
    summary = json.loads(result.output)
    assert summary["tests"] == 4
    assert summary["files"][0]["status"] == "parsed"
    assert summary["problems"] == [f"{DATA / 'absent.xml'}: no such file"]


def test_patterns_and_folders_find_each_file_once(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for name in ("a.xml", "deep/b.xml", "deep/c.txt"):
        shutil.copy(DATA / "pytest.xml", tmp_path / name)
    _, sent = run([str(tmp_path / "**" / "*.xml"), str(tmp_path), *LOCAL])
    assert [str(Path(file.name).relative_to(tmp_path)) for file in sent.payloads[0].files] == ["a.xml", "deep/b.xml"]


def test_a_run_that_left_no_report_is_recorded_as_lost_only_with_an_exit_code(tmp_path: Path) -> None:
    absent = str(tmp_path / "junit.xml")
    result, sent = run([absent, *LOCAL, "--run-id", "5", "--exit-code", "143"])
    assert result.exit_code == 1
    assert "run lost" in result.output
    assert sent.payloads[0].files == ()
    refused, sent = run([absent, *LOCAL, "--run-id", "5"])
    assert isinstance(refused.exception, InvalidValueError)
    assert "--exit-code" in refused.exception.remedy
    assert sent.payloads == []


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (["--sha", SHA], "project"),
        (["--project", "o/n"], "sha"),
        (["--project", "o/n", "--sha", "abc"], "sha"),
        (["--project", "nope", "--sha", SHA], "project"),
        ([*LOCAL, "--attempt", "0"], "attempt"),
    ],
)
def test_bad_metadata_is_a_usage_error_that_names_the_field(arguments: list[str], field: str) -> None:
    result, sent = run([str(DATA / "pytest.xml"), *arguments])
    assert isinstance(result.exception, InvalidValueError)
    assert result.exception.exit_code == 2
    assert result.exception.values["field"] == field
    assert sent.payloads == []


def test_no_file_at_all_is_a_usage_error() -> None:
    assert run([])[0].exit_code == 2


def test_the_same_files_without_a_run_id_are_the_same_run() -> None:
    sent = Sent()
    app = typer.Typer()
    app.command()(ingest_command(sent, {}))
    for _ in range(2):
        result = CliRunner().invoke(app, [str(DATA / "pytest.xml"), *LOCAL])
    assert sent.payloads[0] == sent.payloads[1]
    assert "nothing changed" in result.output
