"""`likewise demo`: a real A/B experiment on the demonstration suite, to its verdict, with the dashboard."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import urllib.request
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
from service.errors import NotFoundError
from service.queue import flush
from service.store import schema
from service.up import Supervisor

ROOT = Path(__file__).resolve().parents[2]
SUITE = ROOT / "tests" / "suites" / "ctest_demo"
PROJECT = "demo/engine"
VICTIM = "spec_decode_gate"
POLLUTER = "warm_plan_cache"
SEED = 219
FIXED_TIME = "2026-01-01T00:00:00+00:00"


def demo(
    port: Port = None,
    exit_after: Annotated[bool, typer.Option("--exit", envvar="DEMO_EXIT", help="End after the verdict.")] = False,
) -> None:
    """Find out why a test of a small suite fails in the full suite and passes alone."""
    set_address(None, port)
    out = console()
    supervisor = Supervisor(settings(), lambda line: print(line, file=sys.stderr, flush=True))
    out.print("Starting broker, dashboard and workers ...")
    supervisor.start()
    try:
        source = make_repository(settings().home / "demo" / "engine", SUITE)
        schema.upgrade()
        ensure_project(PROJECT, str(source))
        order = AbOrder(VICTIM, (f"exclude:{POLLUTER}",), project=PROJECT, seed=SEED)
        number = enqueue(make_request(order, Origin.CLI, "demo"))
        flush()
        out.print(
            f"{VICTIM} passes alone and often fails in the full serial suite. Is it {POLLUTER}?\n"
            f"Experiment {number}: the full suite against the suite without {POLLUTER}, interleaved, same context.\n"
        )
        finding = wait_for(number, supervisor.revive)
        address = f"{settings().effective_public_url}/experiments/{number}"
        _check_page(address, finding.sentence if finding else "")
        out.print(Text(f"\nThe evidence page answers: {address}", "bold"))
        if not exit_after:
            out.print("Ctrl-C ends the dashboard.")
            supervisor.run()
    finally:
        supervisor.stop()
    if finding is None or finding.verdict is not Verdict.IMPLICATED:
        raise typer.Exit(1) if finding is None else exit_with(finding.verdict)


def make_repository(folder: Path, suite: Path) -> Path:
    """Return a git repository with a copy of the suite and one commit, the same SHA wherever it is made."""
    if not suite.is_dir():
        raise NotFoundError("demonstration suite", str(suite), "Run the demo from a clone of the repository.")
    if (folder / ".git").exists():
        return folder
    staging = folder.with_name(folder.name + ".new")
    shutil.rmtree(staging, ignore_errors=True)
    shutil.copytree(suite, staging, ignore=shutil.ignore_patterns("build", "__pycache__", ".pytest_cache"))
    environment = {
        **os.environ,
        "GIT_AUTHOR_DATE": FIXED_TIME,
        "GIT_COMMITTER_DATE": FIXED_TIME,
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_SYSTEM": os.devnull,
    }
    identity = ["-c", "user.name=Likewise", "-c", "user.email=demo@likewise.invalid", "-c", "commit.gpgsign=false"]
    for command in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-q", "-m", "Demonstration suite"]):
        subprocess.run(["git", "-C", str(staging), *identity, *command], check=True, env=environment)
    shutil.rmtree(folder, ignore_errors=True)
    staging.rename(folder)
    return folder


def _check_page(address: str, sentence: str) -> None:
    with urllib.request.urlopen(address, timeout=10) as answer:  # noqa: S310  our own http address
        body = answer.read().decode()
    if answer.status != 200 or sentence.split(":", maxsplit=1)[0] not in body:
        raise NotFoundError("finding on the page", address, "Its log is logs/web.log in the state folder.")
