"""Maxima that need not tell of NaN, as a sum does."""

from __future__ import annotations

from collections.abc import Iterator

from rutc.base.record import record
from rutc.graph_opt.editor import Editor
from rutc.graph_opt.exprs import index_coords
from rutc.graph_opt.kinds import matches
from rutc.graph_opt.rewrite import Reason, Result
from rutc.graph_opt.rules.normalize import exponent_of, is_over_rows, reduces
from rutc.tensor_ir import Apply, Expr, Index, Nest, Node, Read, reducer
from rutc.tensor_ir.expr import reads
from rutc.tensor_ir.machine import COMMON, Machine

KEEPS_NAN = frozenset(("add", "sub", "mul", "div", "neg", "exp", "log"))
"""Operations that give NaN wherever an operand is NaN."""


@matches("reduction")
@record
class LeaveNaNToSum:
    """A row's maximum is looked for among numbers, where a sum of exponentials is NaN of NaN.

    %m{b} = max{i} %x[b, i]
    %e{b,i} = exp(%x[b, i] - %m[b])
    %z{b} = sum{i} %e[b, i]
    %y{b,i} = %e[b, i] / %z[b]
    ->
    %m{b} = maxnum{i} %x[b, i]

    Whatever the maximum of a row with a NaN is, an exponential and thus the sum is NaN. So is
    all that is made of the maximum, if everything that leaves these nests is combined with the
    sum of its row. An instruction that passes over NaN is then enough for the maximum, and takes a
    third of what it takes to keep NaN.
    """

    machine: Machine = COMMON

    def __call__(self, n: Node, editor: Editor) -> Result:
        """The maximum's nest as one that passes over NaN; or why not."""
        if not isinstance(n, Nest) or not reduces(n, "max"):
            return Reason("not a maximum in f32 or f64")
        if not self.machine.passes_over_nan:
            return Reason("the instruction for a maximum keeps NaN")
        total = next(_totals(n, editor), None)
        if total is None:
            return Reason("no sum of exponentials tells of NaN")
        if not _Row(n, total, editor).covers(n.out.name):
            return Reason("something is made of the maximum without the sum")
        how = reducer("maxnum", n.out.dtype)
        return (Nest(n.outs, n.bound, how, n.body, n.origin),)


def _totals(top: Nest, editor: Editor) -> Iterator[Nest]:
    """The sums of `exp(x - m)` over the rows that `top` finds the maximum m of, in its dims."""
    near = [top.out.name]
    for value in near:
        for r in editor.readers(value):
            if not isinstance(r, Nest) or editor.block(r) != editor.block(top):
                continue
            match r.body[0]:
                case Apply(op="sub" | "exp") if r.reducer is None:
                    near.append(r.out.name)
            found = exponent_of(r.body[0], editor) if reduces(r, "sum") else None
            if found is None or found[1].value != top.out.name:
                continue
            x, m = found
            in_place = all(c == Index.of(d) for d, c in index_coords(m))
            same = set(r.out.dims) == set(top.out.dims)
            if in_place and same and is_over_rows(top, m, r.bound, x, editor):
                yield r


class _Row:
    """What is made of a maximum beside the sum of exponentials that is NaN if a row has a NaN."""

    def __init__(self, top: Nest, total: Nest, editor: Editor) -> None:
        self.total, self.editor = total, editor
        self.dims = frozenset(total.out.dims)
        self.block = editor.block(top)

    def covers(self, value: str) -> bool:
        """Whether all that leaves is NaN where the sum is, of what is made of `value`."""
        editor = self.editor
        if editor.is_output(value):
            return False
        return all(self._is_covered(r, value) for r in editor.readers(value))

    def _is_covered(self, reader: Node, value: str) -> bool:
        if reader is self.total:
            return True
        if not isinstance(reader, Nest) or len(reader.outs) != 1:
            return False
        if self.editor.block(reader) != self.block:
            return False
        own = [self._at(r) for e in reader.body for r in reads(e) if r.value == value]
        if any(at is None or at != own[0] for at in own):
            return False
        if reader.reducer is None and self._is_nan(reader.body[0], own[0]):
            return True
        in_place = {d: Index.of(d) for d in self.dims}
        return own[0] == in_place and self.covers(reader.out.name)

    def _at(self, r: Read) -> dict[str, Index] | None:
        """Where the row of an element lies; None if that is not known."""
        coords = dict(index_coords(r))
        if r.fill is not None or not self.dims <= coords.keys():
            return None
        return {d: coords[d] for d in self.dims}

    def _is_nan(self, e: Expr, at: dict[str, Index] | None) -> bool:
        """Whether `e` is NaN where the sum of the row `at` is."""
        match e:
            case Read():
                return self._at(e) == at and self._tells(e.value)
            case Apply(op=op, args=args) if op in KEEPS_NAN:
                return any(self._is_nan(a, at) for a in args)
            case _:
                return False

    def _tells(self, value: str) -> bool:
        """Whether a value is the sum, or is NaN where that is, as its reciprocal."""
        if value == self.total.out.name:
            return True
        n = self.editor.nest(value)
        if n is None or n.reducer is not None or set(n.out.dims) != self.dims:
            return False
        return self._is_nan(n.body[0], {d: Index.of(d) for d in self.dims})
