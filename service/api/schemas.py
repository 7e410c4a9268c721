"""What the API takes and gives, where no view says it already. Unknown fields and wrong types are refused."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from gpu_runner.protocol import CacheState, TestsMode
from service.domain import RunStatus
from service.enqueue import AbOrder
from service.history.listing import ExperimentRow, ProjectRow, RunRow

ID_MAX = 2**31 - 1
SEED_MAX = 2**53 - 1  # the largest that every reader of JSON keeps exact

Line = Annotated[str, StringConstraints(min_length=1, max_length=2000, pattern=r"^[^\x00-\x1f]+$")]
ProjectName = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\s\x00-\x1f]+$")]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Order(_Strict):
    """An A/B as it is asked for. Treatments in words: `exclude:TEST`, `before:TEST`, `alone`, `toggle:NAME`, `none`."""

    kind: Literal["ab"] = "ab"
    victim: Line
    treat: Annotated[list[Line], Field(min_length=1, max_length=20)]
    project: ProjectName | None = None
    suite: Line | None = None
    control: Line | None = None
    commit: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_./@^~-]{0,199}$")] = "HEAD"
    signature: Line | None = None
    blocks: Annotated[int, Field(ge=1, le=100)] | None = None
    seed: Annotated[int, Field(ge=0, le=SEED_MAX)] | None = None
    tests_mode: Annotated[TestsMode, Field(strict=False)] = TestsMode.INTERSECT
    cache_state: Annotated[CacheState, Field(strict=False)] = CacheState.COLD
    budget_executions: Annotated[int, Field(ge=2, le=ID_MAX)] | None = None
    history_failures: Annotated[int, Field(ge=1, le=ID_MAX)] | None = None
    history_runs: Annotated[int, Field(ge=1, le=ID_MAX)] | None = None
    is_compound: bool = False
    is_detached: bool = False
    priority: Annotated[int, Field(ge=0, le=10_000)] = 100
    requested_by: Annotated[str, StringConstraints(max_length=200, pattern=r"^[^\x00-\x1f]*$")] = ""

    @model_validator(mode="after")
    def _history_is_whole(self) -> Self:
        if (self.history_failures is None) != (self.history_runs is None):
            raise ValueError("history_failures and history_runs go together")
        return self

    def as_ab(self) -> AbOrder:
        """Return the order as `service.enqueue` takes it."""
        history = None
        if self.history_failures is not None and self.history_runs is not None:
            history = (self.history_failures, self.history_runs)
        return AbOrder(
            victim=self.victim,
            treat=tuple(self.treat),
            project=self.project,
            suite=self.suite,
            control=self.control,
            commit=self.commit,
            signature=self.signature,
            blocks=self.blocks,
            seed=self.seed,
            tests_mode=self.tests_mode,
            cache_state=self.cache_state,
            budget_executions=self.budget_executions,
            history=history,
            is_compound=self.is_compound,
            is_detached=self.is_detached,
            priority=self.priority,
        )


class Enqueued(BaseModel):
    """The number of the new experiment and its page. `is_announced` False: the broker was away, the sweep will tell."""

    id: int
    page: str
    is_announced: bool
    note: str = ""


class CancelOrder(_Strict):
    """Why an experiment should end."""

    reason: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=500)]


class ProjectOrder(_Strict):
    """A project and where its source is: a path on this machine or a URL that git clones."""

    name: ProjectName
    source: Line | None = None


class FileReply(BaseModel):
    """What became of one file: `parsed`, `repaired` or `rejected`, and why, with line and column."""

    name: str
    format: str
    status: str
    digest: str
    cases: int
    failing: int
    problems: list[str]


class UploadReply(BaseModel):
    """What became of an upload. `is_new` False: it was recorded before and nothing changed."""

    run: int
    is_new: bool
    status: RunStatus
    results: int
    rejected: int
    files: list[FileReply]


class Runs(BaseModel):
    """One page of runs; `next` is the value of `before` that gives the next one, None at the end."""

    runs: list[RunRow]
    next: int | None


class Experiments(BaseModel):
    """One page of experiments; `next` is the value of `before` that gives the next one, None at the end."""

    experiments: list[ExperimentRow]
    next: int | None


class Projects(BaseModel):
    """Every project."""

    projects: list[ProjectRow]
