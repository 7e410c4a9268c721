"""Failures are a sentence with the value and the way out, an exit code, and nothing lost."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path

import pytest
from sqlalchemy import func, select

from service.cli import main
from service.config import settings
from service.store.models import Experiment, Message
from service.store.session import read
from service.up import hold_home

TOML = '[suites.unit]\nframework = "pytest"\npaths = ["tests"]\n\n[suites.unit.toggles.fast]\noff = { FAST = "0" }\n'


@pytest.fixture
def project(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A git repository with a likewise.toml, recorded as the only project; no broker answers."""
    monkeypatch.setenv("LIKEWISE_BROKER_URL", "redis://127.0.0.1:1/0")
    settings.cache_clear()
    source = tmp_path / "repository"
    source.mkdir()
    (source / "likewise.toml").write_text(TOML)
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "x"]):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b.invalid", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", "-C", str(source), *identity, *command], check=True)
    assert main(["project", "add", "acme/engine", "--source", str(source)]) == 0
    return source


def stored() -> int:
    with read() as session:
        return session.scalar(select(func.count()).select_from(Experiment)) or 0


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--treat", "exclud:x"], 2, ["exclud:x", "Did you mean exclude:?"]),
        (["--treat", "toggle:fats"], 1, ["fats", "fast"]),
        (["--treat", "alone", "--project", "acme/engin"], 1, ["acme/engin", "acme/engine"]),
        (["--treat", "alone", "--suite", "cuda"], 1, ["cuda", "unit"]),
        (["--treat", "alone", "--commit", "nowhere"], 1, ["nowhere", "branch"]),
        (["--treat", "env:LIKEWISE_RUN_SEED=3"], 2, ["LIKEWISE_RUN_SEED", "runner sets"]),
        (["--treat", "alone", "--treat", "alone"], 2, ["alone", "twice"]),
        (["--treat", "commit:--upload-pack=x"], 2, ["--upload-pack=x", "dash"]),
        (["--treat", "alone", "--blocks", "101"], 2, ["101", "1 to 100"]),
        (["--treat", "alone", "--history", "21/20"], 2, ["21/20", "13/20"]),
        (["--treat", "alone", "--history", "1/500"], 2, ["1/500", "rare", "--blocks"]),
        (["--treat", "alone + toggle:fast"], 2, ["2 ways", "--compound"]),
        (["--treat", "alone + toogle:fast"], 2, ["toogle:fast", "toggle:?"]),
        (["--treat", "env:=3"], 2, ["env:=3", "no variable"]),
        (["--treat", "alone", "--victim", " "], 2, ["victim", "no test"]),
        (["--treat", "alone", "--budget", "0"], 2, ["budget", "0"]),
        (["--treat", "alone", "--control", "alone"], 2, ["same as the control", "none"]),
    ],
)
def test_a_wrong_order_names_the_value_and_the_way_out_and_stores_nothing(project, capsys, arguments, code, words):
    assert main(["enqueue", "ab", "--victim", "t", *arguments]) == code
    said = capsys.readouterr().err
    assert all(word in said for word in words), said
    assert stored() == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["lits"], ["No such command 'lits'"]),
        (["show", "seven"], ["number", "valid integer", "Usage:"]),
        (["compare", "1/2"], ["Missing argument"]),
        (["list", "--jsn"], ["--jsn", "--json"]),
        (["project"], ["Usage:", "add"]),
    ],
)
def test_wrong_usage_is_a_sentence_and_code_2(arguments, words, capsys):
    assert main(arguments) == 2
    said = "".join(capsys.readouterr())
    assert all(word in said for word in words), said


def test_doctor_shows_what_the_runner_found(project, capsys):
    main(["doctor", "--json"])
    rows = {row["what"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["state folder"]["ok"]
    assert not rows["broker"]["ok"]
    assert rows["a framework"] == {
        "what": "a framework",
        "ok": True,
        "needed": True,
        "found": "at least one",
        "way_out": rows["a framework"]["way_out"],
    }
    assert main(["doctor"]) in {0, 1}
    assert "process trees" in capsys.readouterr().out


@pytest.mark.parametrize("is_there", [True, False])
def test_a_source_that_is_no_repository_is_named(home, tmp_path, capsys, is_there):
    source = tmp_path / "plain"
    if is_there:
        source.mkdir()
    assert main(["project", "add", "a/b", "--source", str(source)]) == 1
    assert str(source) in capsys.readouterr().err


def test_an_error_is_json_where_json_was_asked_for(project, capsys):
    assert main(["enqueue", "ab", "--victim", "t", "--treat", "nonsense:x", "--json"]) == 2
    answer = json.loads(capsys.readouterr().out)
    assert answer["error"] == "invalid_value"
    assert answer["way_out"]


def test_without_a_broker_the_experiment_is_kept_and_its_message_waits(project, capsys):
    assert main(["enqueue", "ab", "--victim", "t", "--treat", "alone"]) == 0
    captured = capsys.readouterr()
    assert "kept" in captured.out
    assert "LIKEWISE_BROKER_URL" in captured.err
    assert stored() == 1
    with read() as session:
        assert session.scalars(select(Message.sent_at)).all() == [None]


def test_an_unwritable_state_folder_is_named(tmp_path, monkeypatch, capsys):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("LIKEWISE_HOME", str(blocked / "home"))
    settings.cache_clear()
    assert main(["db", "upgrade"]) == 1
    said = capsys.readouterr().err
    assert str(blocked / "home") in said
    assert "LIKEWISE_HOME" in said


def test_a_database_that_is_down_is_named_without_its_password(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LIKEWISE_HOME", str(tmp_path))
    monkeypatch.setenv("LIKEWISE_DATABASE_URL", "postgresql://likewise:secret@127.0.0.1:1/likewise")
    settings.cache_clear()
    assert main(["list"]) == 1
    said = capsys.readouterr().err
    assert "127.0.0.1:1" in said
    assert "LIKEWISE_DATABASE_URL" in said
    assert "secret" not in said


def test_a_port_in_use_is_named_with_a_free_one(home, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["up", "--port", str(port)]) == 1
    said = capsys.readouterr().err
    assert f"Port {port}" in said
    assert "LIKEWISE_PORT=" in said


def test_a_second_up_on_the_same_folder_is_refused_and_leaves_the_first_alone(home, capsys):
    held = hold_home(settings().home)
    try:
        assert main(["up"]) == 1
    finally:
        os.close(held)
    said = capsys.readouterr().err
    assert str(settings().home) in said
    assert str(os.getpid()) in said
    assert "LIKEWISE_HOME" in said


def test_an_experiment_that_is_over_cannot_be_cancelled_and_an_unknown_one_is_named(project, capsys):
    assert main(["cancel", "7", "--reason", "x"]) == 1
    assert "no experiment 7" in capsys.readouterr().err


def test_init_writes_a_suite_file_that_is_read_back(home, tmp_path, capsys):
    (tmp_path / "CMakeLists.txt").write_text("")
    assert main(["init", str(tmp_path)]) == 0
    from service.suitefile import read_suites

    assert read_suites((tmp_path / "likewise.toml").read_text())["default"].framework == "ctest"
    assert main(["init", str(tmp_path)]) == 1
    assert "--force" in capsys.readouterr().err


def test_a_suite_file_in_another_encoding_is_named(project, capsys):
    (project / "likewise.toml").write_bytes(b"\xff\xfe")
    assert main(["enqueue", "ab", "--victim", "t", "--treat", "alone"]) == 2
    assert "UTF-8" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_named(project, tmp_path, capsys):
    main(["enqueue", "ab", "--victim", "t", "--treat", "alone"])
    target = tmp_path / "nowhere" / "x.zip"
    assert main(["bundle", "1", "--output", str(target)]) == 1
    assert str(target) in capsys.readouterr().err


def test_a_suite_file_with_a_misspelt_key_names_the_right_one(project, capsys):
    (project / "likewise.toml").write_text(TOML.replace("paths", "pathes"))
    assert main(["enqueue", "ab", "--victim", "t", "--treat", "alone"]) == 2
    assert "'paths'" in capsys.readouterr().err


def test_a_damaged_bundle_and_damaged_evidence_are_refused(home, tmp_path, capsys):
    damaged = tmp_path / "x.zip"
    damaged.write_bytes(b"PK\x03\x04 not a zip")
    assert main(["replay", str(damaged)]) == 2
    lines = tmp_path / "evidence.jsonl"
    lines.write_text('{"protocol":2}\n')
    assert main(["evidence", "import", str(lines)]) == 2
    assert "protocol" in capsys.readouterr().err
