"""The commands of the README are understood: experiments as a dry run, pure statistics for real, the rest by --help."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from service.cli import main
from service.cli.demo import GDN, make_repository
from tests.conftest import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
NAMES = {
    "GATE": "test_suite.py::test_gdn[speculative_gate]",
    "EXTRA": "test_suite.py::test_gdn[concurrent_first_load]",
    "FAULT": "env:LIKEWISE_GDN_FAULT=unguarded_first_load",
}


def commands() -> list[list[str]]:
    """Returns every `likewise ...` line of the shell blocks, continued lines joined, variables filled in."""
    found = []
    for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("likewise "):
                filled = re.sub(r"\$(\w+)", lambda match: NAMES[match[1]], line.split(" #")[0].split(" > ")[0])
                found.append(shlex.split(filled)[1:])
    return found


def test_the_names_in_the_readme_are_those_that_are_tested():
    assert all(f"{name}='{value}'" in README for name, value in NAMES.items() if name != "FAULT")
    assert f"FAULT={NAMES['FAULT']}" in README


def test_the_step_for_github_actions_is_the_tested_one():
    assert (ROOT / "tests/ingest/data/github_actions_step.yml").read_text(encoding="utf-8").rstrip() in README


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_a_command_of_the_readme_is_understood(command, home, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    if command[:2] == ["enqueue", "ab"] and "demo/gdn" in command:
        source = make_repository(tmp_path / "gdn", GDN)
        assert main(["project", "add", "demo/gdn", "--source", str(source)]) == 0
        assert main([*command, "--dry-run"]) == 0, capsys.readouterr().err
    elif command[0] in ("compare", "power"):
        assert main(command) == 0
    elif command[0] == "threshold":
        Path(command[1]).write_text("\n".join(str(0.001 * (1 + n % 7)) for n in range(40)))
        assert main(command) == 0
    else:
        words = [word for word in command if not word.startswith("-")]
        group = 2 if words[0] in ("project", "suite", "enqueue", "plan", "evidence", "token", "db") else 1
        assert main([*words[:group], "--help"]) == 0
