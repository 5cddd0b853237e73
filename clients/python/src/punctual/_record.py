"""Answers of the broker as typed, read-only views of their JSON.

A `Record` keeps the JSON object that it was made from and converts a field when it is read. So a batch of thousands of
results costs no more than its JSON, no field of a newer broker is lost, and each class is its own table of the fields
that it knows (`Record.fields()`), which a test compares with the OpenAPI document of the broker.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, ClassVar, Generic, TypeVar, overload

from ._units import parse_duration, parse_instant

T = TypeVar("T")
R = TypeVar("R", bound="Record")
Json = Any


class Field(Generic[T]):
    """An attribute of a record. `name` is its name in the JSON."""

    __slots__ = ("name", "read")

    def __init__(self, name: str, read: Callable[[Mapping[str, Json], str], T]) -> None:
        self.name = name
        self.read = read

    @overload
    def __get__(self, record: None, owner: type[Any]) -> Field[T]: ...
    @overload
    def __get__(self, record: Record, owner: type[Any]) -> T: ...
    def __get__(self, record: Record | None, owner: type[Any]) -> Field[T] | T:
        return self if record is None else self.read(record.json, self.name)

    def __set__(self, record: Record, value: object) -> None:
        raise AttributeError(f"{type(record).__name__} is read-only")


class Record:
    """A read-only view of a JSON object. `json` is the object itself, with all that the broker sent."""

    __slots__ = ("json",)
    schema: ClassVar[tuple[str, ...]] = ()
    """The schemas of the OpenAPI document that this class shows."""

    json: Mapping[str, Json]

    def __init__(self, json: Mapping[str, Json]) -> None:
        self.json = json

    @classmethod
    def fields(cls) -> dict[str, str]:
        """Names in the JSON, and the attributes that show them."""
        return {
            field.name: attribute
            for kind in reversed(cls.__mro__)
            for attribute, field in vars(kind).items()
            if isinstance(field, Field)
        }

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.json == getattr(other, "json", None)

    def __hash__(self) -> int:
        return hash(json.dumps(self.json, sort_keys=True))

    def __repr__(self) -> str:
        shown = (
            f"{attribute}={getattr(self, attribute)!r}"
            for name, attribute in self.fields().items()
            if self.json.get(name) is not None
        )
        return f"{type(self).__name__}({', '.join(shown)})"


def _optional(read: Callable[[Json], T]) -> Callable[[Mapping[str, Json], str], T | None]:
    def value(json: Mapping[str, Json], name: str) -> T | None:
        found = json.get(name)
        return None if found is None else read(found)

    return value


def _required(read: Callable[[Json], T]) -> Callable[[Mapping[str, Json], str], T]:
    return lambda json, name: read(json[name])


def text(name: str) -> Field[str]:
    return Field(name, lambda json, name: json[name])


def text_or_none(name: str) -> Field[str | None]:
    return Field(name, lambda json, name: json.get(name))


def integer(name: str) -> Field[int]:
    return Field(name, lambda json, name: json[name])


def integer_or_none(name: str) -> Field[int | None]:
    return Field(name, lambda json, name: json.get(name))


def number(name: str) -> Field[float]:
    return Field(name, lambda json, name: json[name])


def number_or_none(name: str) -> Field[float | None]:
    return Field(name, lambda json, name: json.get(name))


def boolean(name: str) -> Field[bool]:
    return Field(name, lambda json, name: bool(json.get(name)))


def anything(name: str) -> Field[Any]:
    return Field(name, lambda json, name: json.get(name))


def instant(name: str) -> Field[datetime]:
    return Field(name, _required(parse_instant))


def instant_or_none(name: str) -> Field[datetime | None]:
    return Field(name, _optional(parse_instant))


def duration(name: str) -> Field[timedelta]:
    return Field(name, _required(parse_duration))


def duration_or_none(name: str) -> Field[timedelta | None]:
    return Field(name, _optional(parse_duration))


def converted(name: str, read: Callable[[Json], T]) -> Field[T]:
    return Field(name, _required(read))


def converted_or_none(name: str, read: Callable[[Json], T]) -> Field[T | None]:
    return Field(name, _optional(read))


def values(name: str, read: Callable[[Json], T]) -> Field[list[T]]:
    """A list; an absent one is empty."""
    return Field(name, lambda json, name: [read(value) for value in json.get(name) or ()])


def texts(name: str) -> Field[dict[str, str]]:
    """An object of strings; an absent one is empty."""
    return Field(name, lambda json, name: dict(json.get(name) or {}))
