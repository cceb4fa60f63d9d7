"""`@cached_property` without a lock, which `functools` has in Python 3.11 for each property.

There, two threads that compile could each compute one property and wait for the other's, and in a
process that is forked while another thread computes one, nobody could.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

T = TypeVar("T")


class _Cached(Generic[T]):
    """What `cached_property` puts in a class; an object's own value goes before it."""

    def __init__(self, function: Callable[[Any], T]) -> None:
        self._function = function
        self._name = function.__name__
        self.__doc__ = function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> T: ...
    def __get__(self, instance: object | None, owner: type | None = None) -> Self | T:
        if instance is None:
            return self
        value = self._function(instance)
        # Whoever was first counts: all of its readers see one object.
        found: T = instance.__dict__.setdefault(self._name, value)
        return found


def cached_property(function: Callable[[Any], T]) -> _Cached[T]:
    """A property that an object computes when it is first read, and keeps.

    Threads that read it at once may each compute it; all get the first one's value.
    """
    return _Cached(function)
