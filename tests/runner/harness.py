"""A real runner on real little repositories: what builds a source and talks to the command."""

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from gpu_runner.protocol import (
    ArmJob,
    BlockJob,
    CacheState,
    ExecutionJob,
    PrepareJob,
    SuiteDefinition,
    TestsMode,
    read_line,
    write_line,
)

ROOT = Path(__file__).parents[2]
SUITES = ROOT / "tests" / "suites"


def git(folder, *arguments):
    """Run git with an identity of its own, and return what it prints."""
    who = ["-c", "user.name=Likewise", "-c", "user.email=likewise@example.org", "-c", "init.defaultBranch=main"]
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    command = ["git", *who, "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout.strip()


def write(folder, files):
    """Write files."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def commit(folder, files=None):
    """Write files and commit everything; returns the SHA."""
    write(folder, files or {})
    if not (folder / ".git").exists():
        git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", "x")
    return git(folder, "rev-parse", "HEAD")


def ctest_files(*tests, properties=""):
    """Return the files of a ctest project without a build: `tests` are names with the shell script that each runs."""
    lines = [f"add_test([==[{name}]==] sh -c [==[{script}]==])\n" for name, script in tests]
    return {"CTestTestfile.cmake": "".join(lines) + properties}


@dataclass
class Said:
    """What a runner wrote, by kind, and how it ended."""

    exit_code: int
    messages: list
    stderr: str
    lines: list = field(default_factory=list)

    def of(self, kind):
        return [message for message in self.messages if message.type == kind]

    @property
    def failure(self):
        return self.of("failure")[0]

    @property
    def report(self):
        return self.of("execution")[0]

    @property
    def outcomes(self):
        return {result.test: result.outcome.value for result in self.report.results}

    @property
    def is_done(self):
        return bool(self.of("done"))


def command_line(*arguments):
    return [sys.executable, "-m", "gpu_runner", *arguments]


def understand(completed):
    lines = completed.stdout.splitlines()
    return Said(completed.returncode, [read_line(line) for line in lines], completed.stderr, lines)


@dataclass
class Runner:
    """A source, a slot, a suite and one commit; arms and tests are given by each call."""

    source: Path
    slot: Path
    suite: SuiteDefinition
    commit: str
    scratch: Path
    arms: list = field(default_factory=list)

    def arm(self, *treatments, commit=None, name="arm"):
        """Add an arm and return its number."""
        self.arms.append(ArmJob(len(self.arms), name, commit or self.commit, tuple(treatments)))
        return len(self.arms) - 1

    def run(self, job, **options):
        path = self.scratch / "job.json"
        path.write_text(write_line(job))
        with path.open() as file:
            completed = subprocess.run(
                command_line("run"), stdin=file, capture_output=True, text=True, cwd=ROOT, check=False, **options
            )
        return understand(completed)

    def prepare_job(self, victim, mode=TestsMode.INTERSECT):
        arms = tuple(self.arms) or (ArmJob(0, "control", self.commit),)
        return PrepareJob(str(self.source), str(self.slot), self.suite, arms, victim, mode)

    def prepare(self, victim, mode=TestsMode.INTERSECT, **options):
        return self.run(self.prepare_job(victim, mode), **options)

    def block_job(self, *executions, victim=None, cache_state=CacheState.COLD, number=0):
        """`executions` are (arm, tests, seed) or ExecutionJobs."""
        items = tuple(item if isinstance(item, ExecutionJob) else ExecutionJob(*item) for item in executions)
        arms = tuple(self.arms) or (ArmJob(0, "control", self.commit),)
        victim = victim or items[0].tests[-1]
        return BlockJob(
            str(self.source), str(self.slot), self.suite, arms, victim, "experiment", number, 0, items, cache_state
        )

    def block(self, *executions, **options):
        return self.run(self.block_job(*executions, **options))

    def execute(self, *tests, seed=1):
        """One execution of the first arm; the last test is the victim."""
        return self.block((0, tests, seed))


def fields(report, channel):
    """Return a channel of a report's context as a dictionary."""
    return {item.name: item.value for item in report.context if item.channel == channel}


def read_numbers(path):
    """Return the process ids that a test wrote into a file, one a line."""
    return [int(line) for line in path.read_text().split()]


def is_alive(pid):
    """Tell whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
    except (FileNotFoundError, ProcessLookupError):
        return False
