"""`/v1/runs`: CI reports in, recorded runs out."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException

from service.api.access import needs
from service.api.schemas import ID_MAX, FileReply, ProjectName, Runs, UploadReply
from service.errors import InvalidValueError
from service.history.listing import PAGE, list_runs
from service.ingest.payload import MAX_FILES, RunPayload
from service.record import record_upload
from service.store.session import read
from service.store.tokens import Scope

router = APIRouter(prefix="/v1", tags=["runs"])

FIELD_BYTES = 1024 * 1024
_FIELDS = "Fields are `metadata` (JSON) and any number of files (`-F files=@report.xml`)."
_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["metadata"],
                    "properties": {
                        "metadata": {"$ref": "#/components/schemas/RunMetadata"},
                        "files": {"type": "array", "items": {"type": "string", "format": "binary"}},
                    },
                },
                "encoding": {"metadata": {"contentType": "application/json"}},
            },
            "application/json": {"schema": {"$ref": "#/components/schemas/RunPayload"}},
        },
    }
}


async def read_payload(request: Request) -> RunPayload:
    """Return the upload in the body, multipart or JSON; InvalidValueError names what is wrong with it."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json":
        return RunPayload.from_json(await request.body())
    if kind != "multipart/form-data":
        hint = "Send multipart/form-data with a field `metadata` and the files, or application/json."
        raise InvalidValueError("content-type", kind, "not a kind of upload", hint)
    metadata: str | bytes | None = None
    files: list[tuple[str, bytes]] = []
    try:
        async with request.form(max_files=MAX_FILES, max_fields=16, max_part_size=FIELD_BYTES) as form:
            for name, part in form.multi_items():
                content = await part.read() if isinstance(part, UploadFile) else part
                if name == "metadata":
                    metadata = content
                elif isinstance(part, UploadFile) and isinstance(content, bytes):
                    files.append((part.filename or name, content))
                else:
                    raise InvalidValueError(name, str(part)[:80], "no such field", _FIELDS)
    except (MultiPartException, HTTPException) as error:
        detail = getattr(error, "message", None) or getattr(error, "detail", "broken")
        raise InvalidValueError("body", "multipart", str(detail), _FIELDS) from None
    if metadata is None:
        raise InvalidValueError("metadata", "missing", "every upload says what ran", "Send it as a JSON field.")
    return RunPayload.of(metadata, files)


@router.post(
    "/runs",
    status_code=201,
    responses={200: {"model": UploadReply, "description": "Recorded before; nothing changed"}},
    dependencies=[Depends(needs(Scope.INGEST))],
    openapi_extra=_BODY,
)
def post_run(payload: Annotated[RunPayload, Depends(read_payload)], response: Response) -> UploadReply:
    """Record one run with its reports; `files` says what became of each.

    A file that cannot be read never drops the others. Sending the same run again changes nothing and replies 200.
    """
    recorded = record_upload(payload)
    if not recorded.is_new:
        response.status_code = 200
    files = [_file(entry) for entry in recorded.files]
    return UploadReply(
        run=recorded.run_id,
        is_new=recorded.is_new,
        status=recorded.status,
        results=recorded.results,
        rejected=sum(file.status == "rejected" for file in files),
        files=files,
    )


def _file(entry: dict[str, Any]) -> FileReply:
    return FileReply.model_validate({name: entry[name] for name in FileReply.model_fields})


@router.get("/runs", dependencies=[Depends(needs(Scope.READ))])
def get_runs(
    project: ProjectName | None = None,
    sha: Annotated[str | None, Query(pattern="^[0-9a-f]{40}$")] = None,
    before: Annotated[int | None, Query(ge=1, le=ID_MAX)] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = PAGE,
) -> Runs:
    """List recorded runs, newest first, with how many results came to each outcome."""
    with read() as session:
        rows = list_runs(session, project, sha, before=before, limit=limit)
    return Runs(runs=list(rows), next=rows[-1].id if len(rows) == limit else None)
