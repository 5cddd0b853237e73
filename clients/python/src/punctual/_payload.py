"""Payloads and results: from Python values to JSON, and from JSON to the type that a worker asks for.

Dataclasses need nothing else; pydantic models and msgspec structs are recognized if their package was imported by the
program, so this module imports neither by itself.
"""

from __future__ import annotations

import dataclasses
import sys
import types
import typing
from typing import Any

DEPTH_MAX = 100
"""Deeper payloads than the broker's JSON limit cannot arrive; the bound keeps recursion finite."""


# A union in `isinstance` would be built anew for each value.
_SCALARS = (str, int, float)


class PayloadError(ValueError):
    """A payload does not have the type that the worker asked for."""


def plain(value: Any) -> Any:
    """A value as `json.dumps` takes it. Plain values are returned as they are."""
    if value is None or isinstance(value, _SCALARS):
        return value
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    msgspec = sys.modules.get("msgspec")
    if msgspec is not None and isinstance(value, msgspec.Struct):
        return msgspec.to_builtins(value)
    raise TypeError(f"not a JSON value: {type(value).__name__}")


def convert(value: Any, to: Any, where: str = "payload", depth: int = 0) -> Any:
    """Converts JSON into `to`: a dataclass, a pydantic model, a msgspec struct or a plain type."""
    if depth > DEPTH_MAX:
        raise PayloadError(f"{where} is nested deeper than {DEPTH_MAX}")
    if to is Any or to is object or isinstance(to, typing.TypeVar):
        return value
    if hasattr(to, "model_validate"):
        try:
            return to.model_validate(value)
        except ValueError as error:
            raise PayloadError(f"{where}: {error}") from error
    msgspec = sys.modules.get("msgspec")
    if msgspec is not None and isinstance(to, type) and issubclass(to, msgspec.Struct):
        try:
            return msgspec.convert(value, to)
        except ValueError as error:
            raise PayloadError(f"{where}: {error}") from error
    if dataclasses.is_dataclass(to) and isinstance(to, type):
        return _dataclass(value, to, where, depth)
    return _plain_type(value, to, where, depth)


def _dataclass(value: Any, to: type[Any], where: str, depth: int) -> Any:
    if not isinstance(value, dict):
        raise PayloadError(f"{where}: expected an object for {to.__name__}, got {value!r:.80}")
    hints = typing.get_type_hints(to)
    known = [field for field in dataclasses.fields(to) if field.init and field.name in value]
    try:
        return to(**{f.name: convert(value[f.name], hints[f.name], f"{where}.{f.name}", depth + 1) for f in known})
    except TypeError as error:
        raise PayloadError(f"{where}: {error}") from error


def _plain_type(value: Any, to: Any, where: str, depth: int) -> Any:
    origin, arguments = typing.get_origin(to), typing.get_args(to)
    if origin in (typing.Union, types.UnionType):
        for option in arguments:
            try:
                return convert(value, option, where, depth + 1)
            except PayloadError:
                continue
        raise PayloadError(f"{where}: {value!r:.80} is none of {to}")
    if origin is typing.Literal:
        if value in arguments:
            return value
        raise PayloadError(f"{where}: {value!r:.80} is none of {arguments}")
    kind = origin or to
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind is None or kind is type(None):
        kind = type(None)
    if not isinstance(kind, type):
        return value
    wrong = not isinstance(value, kind) or (isinstance(value, bool) and kind in (int, float))
    if wrong:
        raise PayloadError(f"{where}: expected {kind.__name__}, got {value!r:.80}")
    if kind is list and arguments:
        return [convert(one, arguments[0], f"{where}[{index}]", depth + 1) for index, one in enumerate(value)]
    if kind is dict and len(arguments) == 2:
        return {key: convert(one, arguments[1], f"{where}[{key!r}]", depth + 1) for key, one in value.items()}
    return value
