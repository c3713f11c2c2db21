"""Frozen dataclasses that cost a program little at its start.

``dataclass`` writes the source of six methods for each class and compiles it each time a process begins: half a
millisecond a class, a fifth of the agent's CPU at a join. Promises: ``@record`` is ``@dataclass(frozen=True,
slots=True)`` for its users, with ``field``, ``replace``, ``fields``, ``match`` and the type checker, but all classes
share their methods. Leaves out ``__post_init__`` and records that inherit; making one takes microseconds, a few times
what a compiled ``__init__`` takes.
Source: PEP 681, by which a type checker knows it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from functools import cache
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar, dataclass_transform, overload

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["record"]

_T = TypeVar("_T")


@overload
def record(cls: type[_T], /) -> type[_T]: ...


@overload
def record(*, kw_only: bool = False) -> Callable[[type[_T]], type[_T]]: ...


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[_T] | None = None, /, *, kw_only: bool = False) -> type[_T] | Callable[[type[_T]], type[_T]]:
    """Make a class a frozen dataclass with slots; raises TypeError for one that these methods would not serve."""

    def made(cls: type[_T]) -> type[_T]:
        if cls.__bases__ != (object,) or not vars(cls).keys().isdisjoint({*_METHODS, "__post_init__"}):
            raise TypeError(f"{cls.__name__} inherits, or has a method of its own that a record has")
        for name, method in _METHODS.items():
            setattr(cls, name, method)
        return dataclass(init=False, repr=False, eq=False, slots=True, kw_only=kw_only)(cls)

    return made if cls is None else made(cls)


def _init(self: DataclassInstance, /, *values: object, **named: object) -> None:
    """Give each field its value, as the ``__init__`` that ``dataclass`` writes does."""
    found, positional = _fields(type(self))
    if len(values) > len(positional) or not named.keys().isdisjoint(positional[: len(values)]):
        raise TypeError(f"{type(self).__name__}: more values than fields")
    named.update(zip(positional, values, strict=False))
    for each in found:
        if each.name in named:
            value = named.pop(each.name)
        elif each.default is not MISSING:
            value = each.default
        elif each.default_factory is not MISSING:
            value = each.default_factory()
        else:
            raise TypeError(f"{type(self).__name__}: no value for {each.name}")
        object.__setattr__(self, each.name, value)
    if named:
        raise TypeError(f"{type(self).__name__}: there is no field {', '.join(named)}")


def _repr(self: DataclassInstance) -> str:
    shown = [f"{each.name}={getattr(self, each.name)!r}" for each in _fields(type(self))[0] if each.repr]
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _eq(self: DataclassInstance, other: object) -> bool:
    if type(other) is not type(self):
        return NotImplemented
    return _values(self) == _values(other)


def _hash(self: DataclassInstance) -> int:
    return hash(_values(self))


def _setattr(self: object, name: str, _: object) -> NoReturn:
    raise FrozenInstanceError(f"{type(self).__name__} is frozen: {name} stays")


def _delattr(self: object, name: str) -> NoReturn:
    raise FrozenInstanceError(f"{type(self).__name__} is frozen: {name} stays")


def _setstate(self: DataclassInstance, state: tuple[object, ...]) -> None:
    """Take what ``_values`` gave to copy or pickle, which would otherwise set attributes."""
    for each, value in zip(_fields(type(self))[0], state, strict=True):
        object.__setattr__(self, each.name, value)


def _values(self: DataclassInstance) -> tuple[object, ...]:
    return tuple([getattr(self, each.name) for each in _fields(type(self))[0]])


@cache
def _fields(cls: type[DataclassInstance]) -> tuple[tuple[Field[object], ...], tuple[str, ...]]:
    """Return the fields of a class, and the names of those that may be given by position."""
    found = fields(cls)
    return found, tuple(each.name for each in found if not each.kw_only)


_METHODS: Final = {
    "__init__": _init,
    "__repr__": _repr,
    "__eq__": _eq,
    "__hash__": _hash,
    "__setattr__": _setattr,
    "__delattr__": _delattr,
    "__getstate__": _values,
    "__setstate__": _setstate,
}
