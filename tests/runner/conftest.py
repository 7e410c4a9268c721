"""Fixtures: a runner on a repository of the test's own, and one on each demo suite."""

import dataclasses
import shutil
from pathlib import Path

import pytest

from gpu_runner.protocol import SuiteDefinition
from gpu_runner.tree import tree_hash
from service.suitefile import read_suites
from tests.runner.harness import SUITES, Runner, commit, write


@pytest.fixture
def make_runner(tmp_path):
    """Returns a function from files (or a folder to copy) and suite settings to a Runner.

    Files lie in a plain folder, a copied folder becomes a git repository.
    """

    def make(files, **settings):
        source = tmp_path / "source"
        if isinstance(files, Path):
            shutil.copytree(files, source, ignore=shutil.ignore_patterns("__pycache__"))
            sha = commit(source)
        else:
            source.mkdir()
            write(source, files)
            sha = tree_hash(source)
        # The plugins installed beside our own pytest cost more than these suites do.
        alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"} if settings["framework"] == "pytest" else {}
        settings = {"name": "suite", "timeout_s": 60.0, "test_timeout_s": 20.0, "environment": alone, **settings}
        return Runner(source, tmp_path / "slot", SuiteDefinition(**settings), sha, tmp_path)

    return make


def settings_of(name):
    """Return a demo suite's own settings, with a time-out that a busy host does not reach by itself."""
    suite = read_suites((SUITES / name / "likewise.toml").read_text())["demo"]
    settings = {field.name: getattr(suite, field.name) for field in dataclasses.fields(suite)}
    return {**settings, "test_timeout_s": 2 * suite.test_timeout_s}


@pytest.fixture
def demo_of_ctest(make_runner):
    return make_runner(SUITES / "ctest_demo", **settings_of("ctest_demo"))


@pytest.fixture
def demo_of_pytest(make_runner):
    return make_runner(SUITES / "pytest_demo", **settings_of("pytest_demo"))
