"""`likewise demo`: real A/B experiments on a demonstration suite, to their verdicts, with the dashboard."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import urllib.request
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from service.cli.experiments import wait_for
from service.cli.operate import Port, set_address
from service.cli.output import console, exit_with
from service.config import settings
from service.domain import Origin, Verdict
from service.enqueue import AbOrder, enqueue, ensure_project, make_request
from service.errors import InvalidValueError, NotFoundError
from service.queue import flush
from service.up import Supervisor

ROOT = Path(__file__).resolve().parents[2]
FIXED_TIME = "2026-01-01T00:00:00+00:00"
LEFT_OUT = shutil.ignore_patterns("build", "__pycache__", ".pytest_cache", "*.egg-info")


@dataclass(frozen=True, slots=True)
class Story:
    """One question of a demonstration and the experiment that answers it."""

    question: str
    order: AbOrder
    expected: frozenset[Verdict]


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A project made of a part of this repository, and its stories.

    `parts`: what is copied, and to where; it is the branch `main`. `change`: a file and its text that the checked-out
    branch adds.
    """

    project: str
    parts: tuple[tuple[str, str], ...]
    stories: tuple[Story, ...]
    change: tuple[str, str] | None = None


CTEST = Demonstration(
    "demo/engine",
    (("tests/suites/ctest_demo", "."),),
    (
        Story(
            "spec_decode_gate passes alone and often fails in the full serial suite. Is it warm_plan_cache?",
            AbOrder("spec_decode_gate", ("exclude:warm_plan_cache",), seed=219),
            frozenset({Verdict.IMPLICATED}),
        ),
    ),
)

GATE = "test_suite.py::test_gdn[speculative_gate]"
CLOSED_QUEUE = "test_suite.py::test_gdn[a_closed_queue_gives_its_scratch_back]"
SHARED_SCRATCH = """\"\"\"The branch under test: scratch belongs to a stream's handle, as it once did.\"\"\"

import os

os.environ.setdefault("LIKEWISE_GDN_FAULT", "shared_scratch_release")
"""

GDN = Demonstration(
    "demo/gdn",
    (("gpu_runner", "gpu_runner"), ("gpu_runner/gdn/suite/likewise.toml", "likewise.toml")),
    (
        Story(
            "On this branch the speculative gate fails in the full suite and passes alone. "
            "Is it the test that closes a queue?",
            AbOrder(GATE, (f"exclude:{CLOSED_QUEUE}",), suite="gdn", seed=2),
            frozenset({Verdict.IMPLICATED}),
        ),
        Story(
            "Or is it the Triton kernel of chunk_o, the usual suspect?",
            AbOrder(GATE, ("toggle:chunk_o",), suite="gdn", seed=2, blocks=20),
            frozenset({Verdict.EXONERATED, Verdict.INCONCLUSIVE}),
        ),
    ),
    change=("gpu_runner/gdn/suite/conftest.py", SHARED_SCRATCH),
)
DEMONSTRATIONS = {"ctest": CTEST, "gdn": GDN}


def demo(
    port: Port = None,
    suite: Annotated[str, typer.Option(help="ctest, or gdn: the Gated DeltaNet stack, which needs torch.")] = "ctest",
    exit_after: Annotated[bool, typer.Option("--exit", envvar="DEMO_EXIT", help="End after the verdict.")] = False,
) -> None:
    """Find out why a test fails in the full suite and passes alone: a real experiment, to its verdict."""
    if suite not in DEMONSTRATIONS:
        raise InvalidValueError("suite", suite, "not a demonstration", f"Choose {' or '.join(DEMONSTRATIONS)}.")
    set_address(None, port)
    out = console()
    chosen = DEMONSTRATIONS[suite]
    supervisor = Supervisor(settings(), lambda line: print(line, file=sys.stderr, flush=True))
    out.print("Starting broker, dashboard and workers ...")
    supervisor.start()
    try:
        source = make_repository(settings().home / "demo" / suite, chosen)
        ensure_project(chosen.project, str(source))
        verdicts = [_tell(story, chosen.project, supervisor) for story in chosen.stories]
        if not exit_after:
            out.print("Ctrl-C ends the dashboard.")
            supervisor.run()
    finally:
        supervisor.stop()
    for story, verdict in zip(chosen.stories, verdicts, strict=True):
        if verdict not in story.expected:
            raise typer.Exit(1) if verdict is None else exit_with(verdict)


def _tell(story: Story, project: str, supervisor: Supervisor) -> Verdict | None:
    out = console()
    number = enqueue(make_request(replace(story.order, project=project), Origin.CLI, "demo"))
    flush()
    out.print(Text(f"\n{story.question}", "bold"))
    out.print(f"Experiment {number}: arms of one suite, interleaved on this machine, one thing changed.\n")
    finding = wait_for(number, supervisor.revive)
    if finding is None:
        return None
    address = f"{settings().effective_public_url}/experiments/{number}"
    _check_page(address, finding.verdict)
    out.print(Text(f"\nThe evidence page answers: {address}", "bold"))
    return finding.verdict


def make_repository(folder: Path, made: Demonstration) -> Path:
    """Return a git repository with copies of parts of this one, the same SHAs for the same files.

    Branch `main` holds the parts; the branch `change`, checked out, adds the demonstration's change if it has one.
    """
    staging = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    for name, target in made.parts:
        if not (ROOT / name).exists():
            raise NotFoundError("part of the demonstration", name, "Run the demo from a clone of the repository.")
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, staging / target, ignore=LEFT_OUT, dirs_exist_ok=True)
        else:
            shutil.copy2(ROOT / name, staging / target)
    _git(staging, "init", "-q", "-b", "main")
    _commit(staging, "Demonstration suite")
    if made.change is not None:
        path, text = made.change
        _git(staging, "checkout", "-q", "-b", "change")
        (staging / path).write_text(text, encoding="utf-8")
        _commit(staging, "The change under test")
    shutil.rmtree(folder, ignore_errors=True)
    staging.rename(folder)
    return folder


def _commit(folder: Path, subject: str) -> None:
    _git(folder, "add", "-A", "-f")
    _git(folder, "commit", "-q", "-m", subject)


def _git(folder: Path, *arguments: str) -> None:
    environment = {
        **os.environ,
        "GIT_AUTHOR_DATE": FIXED_TIME,
        "GIT_COMMITTER_DATE": FIXED_TIME,
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_SYSTEM": os.devnull,
    }
    identity = ["-c", "user.name=Likewise", "-c", "user.email=demo@likewise.invalid", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, env=environment)


def _check_page(address: str, verdict: Verdict) -> None:
    with urllib.request.urlopen(address, timeout=10) as answer:  # noqa: S310  our own http address
        body = answer.read().decode()
    if answer.status != 200 or verdict.value.lower().replace("_", " ") not in body.lower().replace("_", " "):
        raise NotFoundError("verdict on the page", address, "Its log is logs/web.log in the state folder.")
