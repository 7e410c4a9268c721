"""What comes with a run: who ran what, where, and the files. The body of `POST /v1/runs` and of `likewise ingest`."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from service.errors import InvalidValueError

Sha = Annotated[str, StringConstraints(to_lower=True, pattern=r"^[0-9a-fA-F]{40}$")]
Text = Annotated[str, StringConstraints(strip_whitespace=True, max_length=500)]
Name = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=500)]

MAX_FILES = 5_000


class Conclusion(StrEnum):
    """How the CI says that the job ended; the words are GitHub's."""

    SUCCESS = "success"
    FAILURE = "failure"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    SKIPPED = "skipped"
    NEUTRAL = "neutral"
    ACTION_REQUIRED = "action_required"
    STARTUP_FAILURE = "startup_failure"
    STALE = "stale"


class _Strict(BaseModel):
    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, ser_json_bytes="base64", val_json_bytes="base64"
    )


class RunMetadata(_Strict):
    """The identity of a run: (project, run_id, attempt, job, variant) is unique, and sending it again changes nothing.

    `suite` names the suite of `likewise.toml` that ran, where there is one. `parents` are the parents of `sha`.
    """

    project: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]+(?:/[A-Za-z0-9_.-]+)+$", max_length=200)]
    sha: Sha
    parents: tuple[Sha, ...] = Field(default=(), max_length=16)
    branch: Text | None = None
    run_id: Name
    attempt: int = Field(default=1, ge=1, le=10_000)
    job: Text = ""
    variant: Text = ""
    suite: Text = ""
    pull_request: int | None = Field(default=None, ge=1)
    conclusion: Conclusion | None = None
    exit_code: int | None = Field(default=None, ge=-(2**31), lt=2**32)
    started_at: AwareDatetime | None = None

    @property
    def has_failed(self) -> bool | None:
        """Return whether the job failed, None when nobody said."""
        if self.exit_code is not None and self.exit_code != 0:
            return True
        if self.conclusion is not None:
            return self.conclusion not in {Conclusion.SUCCESS, Conclusion.SKIPPED, Conclusion.NEUTRAL}
        return None if self.exit_code is None else False


class UploadedFile(_Strict):
    """One file as it lies on disk, also gzipped; in a JSON body its content is base64."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=1000)]
    content: bytes


class RunPayload(_Strict):
    """A run with its files: the JSON body of `POST /v1/runs`. No file at all is a run whose report was lost."""

    metadata: RunMetadata
    files: tuple[UploadedFile, ...] = Field(default=(), max_length=MAX_FILES)

    @classmethod
    def of(cls, metadata: str | bytes, files: Iterable[tuple[str, bytes]]) -> Self:
        """Return the payload of a multipart request: its field `metadata`, and name and bytes of each of its files.

        InvalidValueError names the first field that is wrong.
        """
        try:
            return cls(
                metadata=RunMetadata.model_validate_json(metadata),
                files=tuple(UploadedFile(name=name, content=content) for name, content in files),
            )
        except ValidationError as error:
            raise invalid(error) from None

    @classmethod
    def from_json(cls, body: str | bytes) -> Self:
        """Return the payload of a JSON body; InvalidValueError names the first field that is wrong."""
        try:
            return cls.model_validate_json(body)
        except ValidationError as error:
            raise invalid(error) from None


def metadata_of(**values: str | int | Conclusion | datetime | tuple[str, ...] | None) -> RunMetadata:
    """Return the metadata of the values that are not None; InvalidValueError names the first field that is wrong."""
    try:
        return RunMetadata.model_validate({name: value for name, value in values.items() if value is not None})
    except ValidationError as error:
        raise invalid(error) from None


def invalid(error: ValidationError) -> InvalidValueError:
    """Return our error for the first thing that Pydantic found wrong."""
    first = error.errors(include_url=False, include_context=False)[0]
    field = ".".join(str(part) for part in first["loc"]) or "body"
    value = first.get("input")
    shown = "missing" if first["type"] == "missing" else f"{value!r:.120}" if isinstance(value, str | int) else "..."
    hints = {
        "project": "Write it as owner/name.",
        "sha": "Write all 40 hexadecimal digits of the commit.",
        "parents": "Write all 40 hexadecimal digits of each commit.",
        "started_at": 'Write it with its zone, for instance "2026-01-31T12:00:00Z".',
    }
    leaf = next((str(part) for part in reversed(first["loc"]) if isinstance(part, str)), "")
    if first["type"] == "extra_forbidden":
        return InvalidValueError(field, shown, "no such field", f"Known are {', '.join(RunMetadata.model_fields)}.")
    return InvalidValueError(field, shown, first["msg"][:1].lower() + first["msg"][1:], hints.get(leaf, ""))
