"""`@record`: frozen dataclasses whose methods are made when they are first called.

`@dataclass(frozen=True)` writes the source of seven methods and has it compiled, 0.4 ms for each
class that is defined. rutc defines some hundred, and a compilation makes objects of half of them
and compares or prints few. The methods are those of a frozen dataclass, and so are `fields`,
`replace`, `asdict` and `match`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from typing import NoReturn, TypeVar, dataclass_transform, overload

T = TypeVar("T")

Source = Callable[[type, dict[str, object]], Iterator[str]]
"""Yields the lines of a method's body, under its `def`, and adds what they name to the globals."""


@overload
def record(cls: type[T]) -> type[T]: ...
@overload
def record(*, eq: bool = True) -> Callable[[type[T]], type[T]]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(field, Field))
def record(
    cls: type[T] | None = None, *, eq: bool = True
) -> type[T] | Callable[[type[T]], type[T]]:
    """Makes a class a frozen dataclass; without `eq`, objects are equal only to themselves."""
    return _made(cls, eq) if cls is not None else lambda given: _made(given, eq)


def _made(cls: type[T], eq: bool) -> type[T]:
    # A class with an __eq__ of its own and no __hash__ has None in its place.
    own = {name for name, value in vars(cls).items() if value is not None}
    cls = dataclass(init=False, repr=False, eq=False)(cls)
    wanted = {"__init__": _init, "__repr__": _repr}
    if eq:
        wanted |= {"__eq__": _eq, "__hash__": _hash}
    for name, source in wanted.items():
        if name not in own:
            setattr(cls, name, _stub(cls, name, source))
    for name in ("__setattr__", "__delattr__"):
        setattr(cls, name, _refuse)
    return cls


def _refuse(self: object, name: str, *_: object) -> NoReturn:
    raise FrozenInstanceError(f"cannot change field {name!r} of {type(self).__name__}")


def _stub(cls: type, name: str, source: Source) -> Callable[..., object]:
    """A method that puts the real one in its place when it is called."""

    def stub(self: object, *args: object, **named: object) -> object:
        names: dict[str, object] = {"_set_field": object.__setattr__}
        exec("\n".join(source(cls, names)), names)
        made = names[name]
        assert callable(made)
        setattr(cls, name, made)
        return made(self, *args, **named)

    return stub


def _init(cls: type, names: dict[str, object]) -> Iterator[str]:
    """`def __init__(self, a, b=default): ...`."""
    parameters, body = ["self"], []
    for f in fields(cls):
        value = f.name
        if f.default_factory is not MISSING:
            names[f"_make_{f.name}"], names["_missing"] = f.default_factory, MISSING
            parameters.append(f"{f.name}=_missing")
            value = f"_make_{f.name}() if {f.name} is _missing else {f.name}"
        elif f.default is not MISSING:
            names[f"_default_{f.name}"] = f.default
            parameters.append(f"{f.name}=_default_{f.name}")
        else:
            parameters.append(f.name)
        body.append(f" _set_field(self, {f.name!r}, {value})")
    if hasattr(cls, "__post_init__"):
        body.append(" self.__post_init__()")
    yield f"def __init__({', '.join(parameters)}):"
    yield from body or [" pass"]


def _eq(cls: type, names: dict[str, object]) -> Iterator[str]:
    yield "def __eq__(self, other):"
    yield " if other.__class__ is not self.__class__: return NotImplemented"
    yield f" return {_compared(cls, 'self')} == {_compared(cls, 'other')}"


def _hash(cls: type, names: dict[str, object]) -> Iterator[str]:
    yield "def __hash__(self):"
    yield f" return hash({_compared(cls, 'self')})"


def _compared(cls: type, name: str) -> str:
    """The source of a tuple of all fields that take part in comparisons."""
    return "(" + "".join(f"{name}.{f.name}, " for f in fields(cls) if f.compare) + ")"


def _repr(cls: type, names: dict[str, object]) -> Iterator[str]:
    shown = ", ".join(f"{f.name}={{self.{f.name}!r}}" for f in fields(cls) if f.repr)
    yield "def __repr__(self):"
    yield f" return f'{{type(self).__qualname__}}({shown})'"
