"""An experiment from what a person writes: suite, victim, treatments in words. CLI, API, bot and pages share it."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from gpu_runner.protocol import CacheState, SuiteDefinition, TestsMode, Treatment, TreatmentKind
from service.domain import ArmRole, Origin
from service.errors import InvalidValueError, NotFoundError
from service.experiments.model import ArmSpec, Design, History, Signature
from service.experiments.treatments import describe, kinds_of_change, parse_treatments
from service.stats.power import propose_blocks
from service.store.catalog import add_project, get_project, only_project
from service.store.experiments import Request, create
from service.store.session import read, write
from service.suitefile import pick_suite, read_suites

SUITE_FILE = "likewise.toml"
GIT_TIMEOUT_S = 60.0
BLOCKS_DEFAULT = 30


@dataclass(frozen=True, slots=True)
class AbOrder:
    """An A/B as it is asked for. Texts are those of `service.experiments.treatments`; None takes the default."""

    victim: str
    treat: tuple[str, ...]
    project: str | None = None
    suite: str | None = None
    control: str | None = None
    commit: str = "HEAD"
    signature: str | None = None
    blocks: int | None = None
    seed: int | None = None
    tests_mode: TestsMode = TestsMode.INTERSECT
    cache_state: CacheState = CacheState.COLD
    budget_executions: int | None = None
    history: tuple[int, int] | None = None
    is_compound: bool = False
    is_detached: bool = False
    priority: int = 100
    suite_file: Path | None = None


def make_request(order: AbOrder, origin: Origin, requested_by: str = "") -> Request:
    """Return the complete request: suite definition read, commits resolved, arms checked. Nothing is stored.

    Raises InvalidValueError or NotFoundError with the value that is wrong and the way out.
    """
    with read() as session:
        project = get_project(session, order.project) if order.project else only_project(session)
        name, source = project.name, project.source
    if source is None:
        hint = f"`likewise project add {name} --source PATH_OR_URL` sets it."
        raise InvalidValueError("project", name, "it has no source to check out", hint)
    definition = read_definition(source, order.suite, order.suite_file)
    if not order.victim.strip():
        raise InvalidValueError("victim", order.victim, "no test", "`likewise suite check` lists the suite's tests.")
    if order.budget_executions is not None and order.budget_executions < 1:
        raise InvalidValueError("budget", order.budget_executions, "it must be at least 1 execution")
    head = resolve_commit(source, order.commit)
    control = _resolve(parse_treatments(order.control, definition) if order.control else (), source)
    if not order.treat:
        raise InvalidValueError("treat", "", "no treated arm", "Give at least one --treat.")
    arms = [_arm(0, "control", ArmRole.CONTROL, head, control)]
    for index, text in enumerate(order.treat, start=1):
        treatments = _resolve(parse_treatments(text, definition), source)
        if text in order.treat[: index - 1]:
            raise InvalidValueError("treat", text, "it is asked for twice", "Each treated arm is given once.")
        _check_one_difference(text, control, treatments, is_compound=order.is_compound)
        arms.append(_arm(index, text, ArmRole.TREATED, head, treatments))
    design = Design(
        victim=order.victim,
        arms=tuple(arms),
        seed=order.seed if order.seed is not None else secrets.randbits(32),
        blocks_max=_blocks(order),
        tests_mode=order.tests_mode,
        cache_state=order.cache_state,
        signature=_signature(order.signature),
        history=History(*order.history) if order.history else None,
        budget_executions=order.budget_executions,
        project=name,
        suite=definition.name,
    )
    return Request("ab", design, definition, source, origin, requested_by, order.priority, order.is_detached)


def enqueue(request: Request) -> int:
    """Store the experiment and return its number. The caller flushes the queue."""
    with write() as session:
        return create(session, request, datetime.now(UTC)).id


def ensure_project(name: str, source: str) -> None:
    """Add the project, or change its source."""
    with write() as session:
        add_project(session, name, source, datetime.now(UTC))


def _arm(index: int, name: str, role: ArmRole, head: str, treatments: tuple[Treatment, ...]) -> ArmSpec:
    commits = [item.commit for item in treatments if item.kind is TreatmentKind.COMMIT]
    return ArmSpec(index, name, role, commits[-1] if commits and commits[-1] else head, treatments)


def _check_one_difference(
    text: str, control: Sequence[Treatment], treated: Sequence[Treatment], *, is_compound: bool
) -> None:
    differs = tuple(item for item in treated if item not in control) + tuple(c for c in control if c not in treated)
    kinds = kinds_of_change(differs)
    if len(kinds) > 1 and not is_compound:
        hint = "Change one thing, or declare that all of them are the treatment with --compound."
        problem = f"it differs from the control in {len(kinds)} ways ({describe(differs)})"
        raise InvalidValueError("treat", text, problem, hint)
    if not kinds and not any(item.kind is TreatmentKind.NONE for item in treated):
        raise InvalidValueError("treat", text, "it is the same as the control", "Write `none` for an A/A.")


def _resolve(treatments: tuple[Treatment, ...], source: str) -> tuple[Treatment, ...]:
    return tuple(
        Treatment(TreatmentKind.COMMIT, commit=resolve_commit(source, item.commit))
        if item.kind is TreatmentKind.COMMIT and item.commit
        else item
        for item in treatments
    )


def _signature(text: str | None) -> Signature | None:
    if text is None:
        return None
    if text == "any":
        return Signature((), "any failure, as asked for")
    return Signature((text,), "given")


def _blocks(order: AbOrder) -> int:
    if order.blocks is not None:
        if not 1 <= order.blocks <= 100:
            raise InvalidValueError("blocks", order.blocks, "it must be 1 to 100")
        return order.blocks
    if order.history is None:
        return BLOCKS_DEFAULT
    failures, runs = order.history
    if not 0 < failures <= runs:
        raise InvalidValueError("history", f"{failures}/{runs}", "it needs at least one failure")
    proposed = propose_blocks(failures / runs)
    if proposed.is_settled_rarely:
        hint = "Give --blocks to run it all the same, or look for a context in which it fails more often."
        raise InvalidValueError("history", f"{failures}/{runs}", "too rare to settle within 100 blocks", hint)
    return proposed.blocks


def read_definition(source: str, suite: str | None, suite_file: Path | None = None) -> SuiteDefinition:
    """Return the suite's definition from `likewise.toml` of a local source, or from the file given."""
    path = suite_file or Path(source) / SUITE_FILE
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        hint = "`likewise init` writes one; for a source elsewhere give --suite-file."
        raise NotFoundError("suite file", str(path), hint) from error
    except UnicodeDecodeError as error:
        raise InvalidValueError("suite file", str(path), f"not UTF-8: {error}", "Save it as UTF-8.") from error
    return pick_suite(read_suites(text), suite)


def resolve_commit(source: str, revision: str) -> str:
    """Return the 40-digit SHA of a revision of a git repository, local or remote."""
    if revision.startswith("-"):
        raise InvalidValueError("commit", revision, "a revision does not begin with a dash")
    if Path(source).is_dir():
        found = _git("-C", source, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    else:
        found = _git("ls-remote", "--", source, revision).split("\t", maxsplit=1)[0]
        if not found and len(revision) == 40:
            found = revision
    if len(found) != 40:
        hint = "Give a branch, a tag or a SHA that the source has; a plain folder needs `git init` and a commit first."
        raise NotFoundError("commit", f"{revision} in {source}", hint)
    return found


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=False)
    except FileNotFoundError:
        raise NotFoundError("program", "git", "Install git: the runner checks commits out with it.") from None
    return done.stdout.strip()
