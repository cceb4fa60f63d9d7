"""The names that a growing table had at some time, without a copy of it for each such time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from itertools import islice

from rutc.base.cached import cached_property


class Earlier(AbstractSet[str]):
    """The names in a table by now; it only gets more, and they are not sought before one is.

    known = Earlier(table)
    table["n"] = ...
    "n" in known              # False
    frozenset() <= known      # True, and nothing was sought
    """

    def __init__(self, table: Mapping[str, object]) -> None:
        """The names that `table` has now, in whose order later ones come last."""
        self._table = table
        self._count = len(table)

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(islice(self._table, self._count))

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return self._count
