"""Errors as replies: `{"error": code, "message": ..., "way_out": ...}` with the status of the error's class."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from fastapi import Response
from pydantic import BaseModel

from service.errors import LikewiseError

VALUE_SHOWN = 160
HTTP_CODES = {404: "not_found", 405: "method_not_allowed", 413: "upload_too_large", 415: "unsupported_media_type"}


class ForbiddenError(LikewiseError):
    """This token does not have the scope {scope!r}."""

    code = "forbidden"
    http_status = 403
    way_out = "`likewise token create NAME --scope {scope}` prints one that has it."


class CrossSiteError(LikewiseError):
    """A page of {site!r} sent this request: without a token only this dashboard's own pages and programs may."""

    code = "cross_site"
    http_status = 403
    way_out = "`likewise token create NAME --scope {scope}` prints a token; send it as `Authorization: Bearer TOKEN`."


class UploadTooLargeError(LikewiseError):
    """The body has {size}; at most {limit} bytes are accepted."""

    code = "upload_too_large"
    http_status = 413
    way_out = "Send fewer files at a time, gzip them, or raise LIKEWISE_UPLOAD_LIMIT_BYTES."


class Invalid(BaseModel):
    """One value that a request should not have had."""

    field: str
    value: str
    problem: str


class Problem(BaseModel):
    """What went wrong, for programs (`error`), for people (`message`), and what to do about it (`way_out`).

    `details` names every wrong value of a request, where there are any.
    """

    error: str
    message: str
    way_out: str
    details: list[Invalid] = []


DESCRIBED: dict[int | str, dict[str, Any]] = {
    401: {"model": Problem, "description": "A token is needed"},
    403: {"model": Problem, "description": "The token lacks the scope"},
    404: {"model": Problem, "description": "There is no such thing"},
    409: {"model": Problem, "description": "It contradicts what is stored"},
    413: {"model": Problem, "description": "The body is too large"},
    422: {"model": Problem, "description": "A value is wrong"},
    503: {"model": Problem, "description": "The database or the broker does not answer"},
}


def problem_of(error: LikewiseError) -> Response:
    """Return the reply to an error of ours."""
    headers = {"WWW-Authenticate": "Bearer"} if error.http_status == 401 else None
    return _reply(error.http_status, error.code, str(error), error.remedy, headers)


def problem_of_status(status: int, detail: str) -> Response:
    """Return the reply to an error of HTTP itself, such as an unknown path."""
    hint = "/v1/openapi.json describes every call."
    return _reply(status, HTTP_CODES.get(status, "http_error"), detail, hint if status < 500 else "")


def problem_of_crash() -> Response:
    """Return the reply when the service itself failed; the log has the trace."""
    text = "Likewise failed while it answered; the log of the service has the details."
    return _reply(500, "internal", text, "Nothing was half written: it is safe to try again.")


def problem_of_validation(errors: Sequence[Any]) -> Response:
    """Return the reply to a request whose fields are wrong: the first in the message, every one in `details`."""
    found = [_invalid(error) for error in errors]
    first = found[0]
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    message = f"{first.field} is {first.value}: {first.problem}{more}."
    return _reply(422, "invalid_value", message, "/v1/openapi.json describes every call.", details=found)


def _invalid(error: dict[str, Any]) -> Invalid:
    place = [str(part) for part in error["loc"]]
    field = ".".join(place[1:]) or place[0]
    if error["type"] == "missing":
        return Invalid(field=field, value="missing", problem="it is needed")
    if error["type"] == "json_invalid":
        where = f"at character {place[1]}" if len(place) > 1 else ""
        return Invalid(
            field="body", value="no JSON", problem=f"{error.get('ctx', {}).get('error', '')} {where}".strip()
        )
    value = repr(error.get("input"))
    shown = value if len(value) <= VALUE_SHOWN else value[: VALUE_SHOWN - 3] + "..."
    return Invalid(field=field, value=shown, problem=str(error["msg"])[:1].lower() + str(error["msg"])[1:])


def _reply(
    status: int,
    code: str,
    message: str,
    way_out: str,
    headers: dict[str, str] | None = None,
    details: Sequence[Invalid] = (),
) -> Response:
    body = {"error": code, "message": message, "way_out": way_out}
    more = {"details": [item.model_dump() for item in details]} if details else {}
    # ASCII, because what was sent to us may hold characters that UTF-8 cannot write.
    return Response(json.dumps({**body, **more}, ensure_ascii=True), status, headers, "application/json")
