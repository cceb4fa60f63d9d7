"""Masks: which lanes of a vector are iterations of a loop, or are active at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rutc.emit.llvm import ir
from rutc.emit.llvm.ir_vectors import I32, splat
from rutc.emit.llvm.opaque import opaque_count
from rutc.tensor_ir.machine import Machine


class LaneMasks:
    """Masks of vector loops; of equal ones in a block of code one is made.

    Unrolled loops around a vector loop ask for its masks again and again. Blocks have their own:
    what lives from block to block would take a register.
    """

    def __init__(self, builder: ir.IRBuilder, machine: Machine) -> None:
        """Make masks where `builder` is."""
        self.builder = builder
        self.machine = machine
        self._block = builder.block
        self._known: dict[object, ir.Value] = {}

    def below(self, end: ir.Value, base: int, lanes: int, *, truncated: bool) -> ir.Value:
        """The lanes whose iteration, `base` and as many more as its number, is below an i64.

        Under those of `truncated` stores LLVM must not see how many there are.
        """
        b, counts = self.builder, ir.VectorType(I32, lanes)
        count = self._once(("count", end.ref), lambda: b.trunc(end, I32))
        if truncated:
            shown = count
            count = self._once(("hidden", shown.ref), lambda: opaque_count(b, shown, self.machine))
        wide = self._once(("wide", count.ref, lanes), lambda: splat(b, count, lanes))
        numbers = ir.Constant(counts, [base + i for i in range(lanes)])
        return self._once(("below", wide.ref, base), lambda: b.icmp_signed("<", numbers, wide))

    def _once(self, key: object, build: Callable[[], ir.Value]) -> ir.Value:
        """What `build` emits, or has emitted in this block for the same key."""
        if self.builder.block is not self._block:
            self._block, self._known = self.builder.block, {}
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = build()
        return found


def constant_lanes(mask: ir.Value) -> list[bool] | None:
    """Which lanes a mask has, where that is constant."""
    if not isinstance(mask, ir.Constant):
        return None
    assert isinstance(mask.constant, Sequence)
    return [bool(lane) for lane in mask.constant]


def idle_lanes(mask: ir.Value) -> list[bool]:
    """Which lanes a mask is known not to have."""
    known = constant_lanes(mask)
    if known is not None:
        return [not lane for lane in known]
    if not (isinstance(mask, ir.Instruction) and mask.op == "and"):
        return [False] * mask.lanes
    return [p or q for p, q in zip(*map(idle_lanes, mask.operands), strict=True)]


def pieces(active: Sequence[bool]) -> list[tuple[int, int]]:
    """Runs of active lanes as (first, number), each a power of two at a multiple of itself.

    1111 1010 -> (0, 4) (4, 1) (6, 1)
    """
    found: list[tuple[int, int]] = []
    at = 0
    while at < len(active):
        count = 1
        while at % (2 * count) == 0 and at + 2 * count <= len(active):
            if not all(active[at : at + 2 * count]):
                break
            count *= 2
        if active[at]:
            found.append((at, count))
        at += count
    return found


def both(b: ir.IRBuilder, p: ir.Value | None, q: ir.Value) -> ir.Value:
    """The lanes that two masks have in common."""
    if p is None:
        return q
    first, second = constant_lanes(p), constant_lanes(q)
    if first is None or second is None:
        return b.and_(p, q)
    return ir.Constant(p.type, [x and y for x, y in zip(first, second, strict=True)])
