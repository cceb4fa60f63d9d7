"""A register tile: which rows and vectors of an output are computed at once, and at what cost."""

from __future__ import annotations

from math import prod

from rutc.base.record import record


@record
class RegisterTile:
    """`vectors` registers along the loop `vector`, for every point of the `rows` (loop, factor).

    The loops `inside` go over what lies inside of the values that they read.
    """

    vector: str
    vectors: int
    rows: tuple[tuple[str, int], ...]
    cost: float
    inside: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Registers that accumulate."""
        return self.vectors * prod(f for _, f in self.rows)
