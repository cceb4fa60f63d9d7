"""Sizes that the program computes, and extents that it finds equal or ends at."""

from __future__ import annotations

from dataclasses import dataclass

from rutc.importer.building.expressions import KnownSizesError, OperatorError
from rutc.importer.building.nest_builder import NestBuilder
from rutc.importer.building.tensor import Tensor, ints_of
from rutc.importer.free_sizes.open_sizes import first_of_alike, must_equal
from rutc.importer.free_sizes.overflow import LONGEST, equal
from rutc.tensor_ir import Bind, Body, Call, DType, Expr, If, Index, IndexValue
from rutc.tensor_ir.indices.affine import ONE

MOST = (1 << 31) - 1
"""What a size that nothing else limits may be."""

MANY = 8
"""An extent of more symbolic sizes is computed once and is a size of its own: otherwise a kernel
that needs it is told all the sizes in it, and can be told so many only."""


@dataclass
class SizeBuilder(NestBuilder):
    """Adds sizes of the run's own to the graph under construction, and checks of them."""

    def size(self, t: Tensor, role: str, most: int = MOST, least: int = 0) -> Index:
        """The i64 scalar `t` as a size, which the program learns when it runs.

        Raises OperatorError where it is known and lies outside of [least, most], or no scalar.
        """
        if any(e.is_const and e != ONE for e in t.shape):
            raise OperatorError(f"the size {role} must be one element, not {t}")
        if t.known is not None:
            (size,) = ints_of(t.known)
            if size.is_const and not least <= size.const <= most:
                raise OperatorError(f"the size {role} is {size}, outside of {least}..{most}")
            return size
        symbol, count = role, 1
        while symbol in self.ranges or symbol in self.extents:
            count += 1
            symbol = f"{role}{count}"
        self.ranges[symbol] = self.bound[symbol] = (least, most)
        scalar = self.nest((), self.read(t, [0] * t.rank))
        out = self.tensor(DType.I64, (), symbol)
        self.nodes.append(Bind(self.value(out), symbol, scalar.name, self.origin))
        return Index.of(symbol)

    def count(self, t: Tensor, role: str, most: int) -> Index:
        """The i64 scalar `t`, which is at most `most` in every run, as a size."""
        return self.size(t, role, most) if most > 0 else Index.of(0)

    def same(self, a: Index, b: Index) -> Index:
        """Two extents that must be equal, as one; a run in which they differ ends.

        Raises OperatorError where they are known to differ.
        """
        if a == b:
            return a
        if a.is_const and b.is_const:
            raise KnownSizesError(f"the extents {a} and {b} differ")
        for known in (self.equal.get((a, b)), self.equal.get((b, a))):
            if known is not None:
                return known
        must_equal(self, a, b)
        fits = equal(a, b, self.ranges)
        one, other = first_of_alike(self, a, b)
        out = self.unless_failed(IndexValue(a), fits, f"the sizes {one} and {other} differ")
        limits = [x.bounds(self.ranges) for x in (a, b)]
        least = max(x[0] if x is not None else 0 for x in limits)
        most = min(x[1] if x is not None else MOST for x in limits)
        made = self.size(out, "same", max(min(most, LONGEST), least, 0), max(least, 0))
        self.equal |= {(a, b): made, (a, made): made, (b, made): made}
        self.checks |= made.names()
        if made.as_var is not None:
            self.alike[made.as_var] = a, b
        return made

    def total(self, extent: Index) -> Index:
        """An extent; one of many sizes as a size of its own, which the program computes first."""
        if len(extent.names()) <= MANY:
            return extent
        if (extent, extent) not in self.equal:
            least, most = extent.bounds(self.ranges) or (0, LONGEST)
            found = self.nest((), IndexValue(extent))
            made = self.size(found, "total", min(most, LONGEST), max(least, 0))
            self.equal[extent, extent] = made
            if made.as_var is not None:
                self.alike[made.as_var] = extent, extent
        return self.equal[extent, extent]

    def number(self, extent: Index, value: int, what: str) -> int:
        """`value`, which an extent must be. Raises OperatorError where it is not known to be."""
        if extent != Index.of(value):
            if not extent.is_const:
                must_equal(self, extent, Index.of(value))
            raise OperatorError(f"{what} is {extent}, not {value}")
        return value

    def unless_failed(self, value: Expr, ok: Expr, message: str) -> Tensor:
        """The scalar `value`, or the end of the run with a message where `ok` does not hold."""
        chosen = self.nest((), ok)
        with self.body([]) as nodes:
            kept = self.defined(self.nest((), value))
        lost, out = self.tensor(value.dtype, ()), self.tensor(value.dtype, ())
        told = (("message", f"{', '.join(self.origin)}: {message}"),)
        fail = Call((self.value(lost),), "fail", (), told, self.origin)
        then, orelse = Body(tuple(nodes), (kept.name,)), Body((fail,), (lost.name,))
        self.nodes.append(If((self.value(out),), chosen.name, then, orelse, self.origin))
        return out
