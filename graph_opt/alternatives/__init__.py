"""Other algorithms for sums and windows: each is offered for some nests, and one of them chosen.

- `separable`: windows of several dims, dim by dim;
- `filtering`: minimal filtering, the algorithm that convolutions know by the name of Winograd;
- `remainders`: products of bytes with small factors, and the few that are larger apart;
- `signs`: products of bytes with magnitudes of constants, their signs with the other factors;
- `split_precision`: products of f32 as products of parts in bf16.

Each chooses by itself, or does what an assignment says (`Assigned`); `ways` has what they share.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from rutc.base.record import record
from rutc.graph_opt.editor import Editor


@record
class Assigned:
    """The algorithms of sums, by the values that they give; others are computed as they stand."""

    algorithms: tuple[tuple[str, str], ...] = ()

    def has(self, value: str, algorithm: str) -> bool:
        """Whether a sum is computed so; windows of several dims may be separated several times."""
        return (value, algorithm) in self.algorithms


DIRECT = Assigned()
"""Every sum as it stands."""


@record
class Offer:
    """An algorithm for the nest of a value, and what it is estimated to take of `direct`."""

    value: str
    algorithm: str
    cost: float
    direct: float

    def __str__(self) -> str:
        return f"%{self.value} by {self.algorithm}: {self.cost:.0f} of {self.direct:.0f}"


class Choosing(ABC):
    """A rule, or a step of the pipeline, that chooses algorithms of sums."""

    @abstractmethod
    def offers(self, editor: Editor) -> Iterable[Offer]:
        """Every algorithm that it may give a sum of the graph."""

    @abstractmethod
    def chosen(self, editor: Editor) -> Iterable[tuple[str, str]]:
        """(the value of a sum, the algorithm that it is to have) of those that get another one."""
