"""One tree of errors. A class's docstring is its message, `code` is stable, `way_out` says what to do."""

from __future__ import annotations


class LikewiseError(Exception):
    """Something could not be done: {detail}."""

    code = "error"
    http_status = 400
    exit_code = 1
    way_out = ""

    def __init__(self, **values: object) -> None:
        # A detail is somebody else's sentence: its full stop would stand beside ours.
        self.values = {
            name: v.rstrip(". ") if name == "detail" and isinstance(v, str) else v for name, v in values.items()
        }
        template = (type(self).__doc__ or "").strip()
        super().__init__(template.format_map(self.values))

    @property
    def remedy(self) -> str:
        """Return the way out as a sentence, filled in; empty when there is none."""
        return self.way_out.format_map(self.values)


class NotFoundError(LikewiseError):
    """There is no {kind} {value!r}."""

    code = "not_found"
    http_status = 404
    way_out = "{hint}"

    def __init__(self, kind: str, value: object, hint: str = "") -> None:
        super().__init__(kind=kind, value=value, hint=hint)


class InvalidValueError(LikewiseError):
    """{field} is {value!r}: {problem}."""

    code = "invalid_value"
    http_status = 422
    exit_code = 2
    way_out = "{hint}"

    def __init__(self, field: str, value: object, problem: str, hint: str = "") -> None:
        super().__init__(field=field, value=value, problem=problem, hint=hint)


class ConflictError(LikewiseError):
    """{detail}."""

    code = "conflict"
    http_status = 409
    way_out = "{hint}"

    def __init__(self, detail: str, hint: str = "") -> None:
        super().__init__(detail=detail, hint=hint)


class DatabaseUnavailableError(LikewiseError):
    """The database {url} cannot be used: {detail}."""

    code = "database_unavailable"
    http_status = 503
    way_out = "Check LIKEWISE_DATABASE_URL; `likewise db upgrade` makes or updates the schema."


class BrokerUnavailableError(LikewiseError):
    """The broker {url} does not answer: {detail}."""

    code = "broker_unavailable"
    http_status = 503
    way_out = "Start it, or check LIKEWISE_BROKER_URL; messages are kept and sent by the sweep once it answers."


class StateUnwritableError(LikewiseError):
    """The folder {path} cannot be written: {detail}."""

    code = "state_unwritable"
    way_out = "Set LIKEWISE_HOME to a folder that you may write."


class PortInUseError(LikewiseError):
    """Port {port} on {host} is in use."""

    code = "port_in_use"
    way_out = "Choose another one: LIKEWISE_PORT={free} or --port {free}."


class UnauthorizedError(LikewiseError):
    """This call needs a token with the scope {scope!r}."""

    code = "unauthorized"
    http_status = 401
    way_out = "`likewise token create NAME --scope {scope}` prints one; send it as `Authorization: Bearer TOKEN`."
