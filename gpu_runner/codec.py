"""JSON to frozen dataclasses and back, strictly: an unknown key, a missing key or a wrong type names its path."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeVar

T = TypeVar("T")


class MalformedMessageError(ValueError):
    """A protocol message does not have the declared form."""


def to_json(value: Any) -> Any:
    """Return `value` with dataclasses as objects, enums as their values and tuples as lists."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    return value


def from_json(cls: type[T], value: Any) -> T:
    """Return an instance of the dataclass `cls`; MalformedMessageError names the path that is wrong."""
    return typing.cast("T", _decode(cls, value, cls.__name__))


def _decode(kind: Any, value: Any, path: str) -> Any:
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        return _decode_union(kind, value, path)
    if kind is Any:
        return value
    if origin is tuple:
        _expect(isinstance(value, list | tuple), "a list", value, path)
        item = typing.get_args(kind)[0]
        return tuple(_decode(item, entry, f"{path}[{i}]") for i, entry in enumerate(value))
    if origin in (dict, Mapping):
        _expect(isinstance(value, dict), "an object", value, path)
        item = typing.get_args(kind)[1]
        return {str(key): _decode(item, entry, f"{path}.{key}") for key, entry in value.items()}
    if dataclasses.is_dataclass(kind):
        return _decode_dataclass(typing.cast("type", kind), value, path)
    if isinstance(kind, type) and issubclass(kind, Enum):
        allowed = [member.value for member in kind]
        _expect(value in allowed, f"one of {allowed}", value, path)
        return kind(value)
    if kind is float:
        _expect(isinstance(value, int | float) and not isinstance(value, bool), "a number", value, path)
        return float(value)
    if kind is int:
        _expect(isinstance(value, int) and not isinstance(value, bool), "an integer", value, path)
        return value
    _expect(isinstance(value, kind), kind.__name__, value, path)
    return value


def _decode_union(kind: Any, value: Any, path: str) -> Any:
    options = typing.get_args(kind)
    if value is None and type(None) in options:
        return None
    options = tuple(option for option in options if option is not type(None))
    if len(options) == 1:
        return _decode(options[0], value, path)
    for option in options:
        if isinstance(option, type) and not dataclasses.is_dataclass(option) and type(value) is option:
            return value
    raise MalformedMessageError(f"{path}: {value!r} is none of {[str(option) for option in options]}")


def _decode_dataclass(cls: type, value: Any, path: str) -> Any:
    _expect(isinstance(value, dict), "an object", value, path)
    hints, fields = _form(cls)
    unknown = sorted(set(value) - set(fields))
    _expect(not unknown, f"only the keys {sorted(fields)}", unknown, path)
    arguments: dict[str, Any] = {}
    for name, field in fields.items():
        if name in value:
            arguments[name] = _decode(hints[name], value[name], f"{path}.{name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise MalformedMessageError(f"{path}: the key {name!r} is missing")
    return cls(**arguments)


@functools.lru_cache(maxsize=256)
def _form(cls: type) -> tuple[dict[str, Any], dict[str, dataclasses.Field[Any]]]:
    return typing.get_type_hints(cls), {field.name: field for field in dataclasses.fields(cls)}


def _expect(is_right: bool, wanted: str, value: Any, path: str) -> None:
    if not is_right:
        raise MalformedMessageError(f"{path}: {value!r} where {wanted} is expected")
