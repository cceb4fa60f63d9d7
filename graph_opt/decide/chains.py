"""Chains of kernels over slices of a dim, and the steps that run them."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from rutc.base.record import record
from rutc.graph_opt.plan import PlanStep
from rutc.tensor_ir.affine import (
    FloorDiv,
    Index,
    Mod,
)
from rutc.tensor_ir.expr import Read
from rutc.tensor_ir.layout import Layout
from rutc.tensor_ir.lower import Group


@record
class Member:
    """A kernel of a chain: its slice holds `ratios` indices of `dims` for each of the first one's.

    Only the last dim is cut into slices of several indices.
    """

    step: int
    group: Group
    dims: tuple[str, ...]
    ratios: tuple[int, ...]

    @functools.cached_property
    def moved(self) -> Mapping[str, frozenset[str]]:
        """Of each value that is read, the dims that what is read of it depends on."""
        found: dict[str, frozenset[str]] = {}
        for r in self.group.reads:
            own = frozenset(d for d in self.dims if moves(r, d))
            found[r.value] = found.get(r.value, frozenset()) | own
        return found


@record
class Chain:
    """Kernels over slices of `size` indices of the first one's last dim.

    Slices may be `blocks`: parts of an index of another dim, or of lines. Others may be `crowded`:
    they cannot be so short that what passes between the kernels takes no more than it may.
    """

    members: tuple[Member, ...]
    size: int
    gain: float
    blocks: bool
    crowded: bool

    def gives_way_to(self, later: Chain | None) -> bool:
        """Whether a chain that begins with a later kernel of this one is the better one."""
        if later is None:
            return False
        instead = self.crowded and later.blocks
        return later.gain > self.gain or (
            instead and later.members[-1].step >= self.members[-1].step
        )


@record
class Sliced:
    """The steps with chains in repeats, and the layouts with the values stored in part."""

    steps: tuple[PlanStep, ...]
    layouts: dict[str, Layout]


def has_period(i: Index, d: str, size: int) -> bool:
    """Whether an index is a loop's remainder that slices of so many iterations begin anew."""
    match i.terms:
        case (((Mod(p, q),), _),) if p.as_var == d and q.is_const:
            return size % q.value == 0
        case _:
            return False


def loop_of(c: object) -> tuple[str, int] | None:
    """(loop, k) of the coordinates `loop` and `loop // k`."""
    if not isinstance(c, Index):
        return None
    if c.as_var is not None:
        return c.as_var, 1
    match c.terms:
        case (((FloorDiv(p, q),), 1),) if p.as_var is not None and q.is_const and c.const == 0:
            return p.as_var, q.value
        case _:
            return None


def moves(r: Read, d: str) -> bool:
    """Whether the place that is read depends on the loop over `d`."""
    return any(not isinstance(c, Index) or d in c.names() for _, c in r.coords)
