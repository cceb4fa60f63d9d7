"""Sums of products of f32 as sums of products of factors' parts in bf16: what takes their place.

    x = hi + mid + lo        hi = bf16(x), mid = bf16(x - hi), lo = bf16(x - hi - mid)

Of a single part, the number is rounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from math import sqrt

import numpy as np

from rutc.base.record import record
from rutc.graph_opt.alternatives.window_rows import Taps, in_rows
from rutc.graph_opt.bf16_parts import are_finite, parts_of
from rutc.graph_opt.editor import Editor
from rutc.graph_opt.exprs import at_point, index_coords
from rutc.graph_opt.rewrite import Reason
from rutc.graph_opt.row_runs import Rows
from rutc.graph_opt.rules.row_groups import in_phases
from rutc.graph_opt.weighted import weighted
from rutc.tensor_ir import (
    Apply,
    Cast,
    Const,
    Data,
    DType,
    Expr,
    Index,
    Lit,
    Nest,
    Node,
    Read,
    Value,
    apply,
)
from rutc.tensor_ir.expr import point

NAMES = ("hi", "mid", "lo")
WHOLE, ROUNDED = len(NAMES), 1
"""How many parts hold all of a number in f32, and how many a rounded one."""
TERMS = ((0, 2), (0, 1), (1, 1), (1, 0), (0, 0), (2, 0))
"""The products of parts that are kept, (of the value, of the constant): each shares a part with
the next, which registers then hold already."""
HIGHEST = (2 - 2.0**-7) * 2.0**127
"""The largest number in bf16: less than the largest in f32, which would round to an infinity."""
SMALLEST = 2.0**-102
"""Factors that are not smaller have parts that are no subnormal numbers."""

GROWTH = DType.BF16.bytes / DType.F32.bytes
"""The size of a part in sizes of an f32."""


@record
class SumInParts:
    """A sum that takes less time with parts: so many cycles less, at common sizes."""

    nest: Nest
    source: Read
    weights: Read
    const: Const | None
    """The node of the weights; None where they are computed, too."""
    rows: Rows
    number: Index
    """How many rows there are, all dims together that the constant does not have."""
    saved: float
    direct: float
    """The cycles of the sum as it is."""
    products: int
    """Of a sum."""
    parts: int = WHOLE
    taps: Taps | None = None
    """What is laid side by side first, where there are too few neighbours to multiply."""

    @property
    def is_finite(self) -> bool:
        """Whether all parts of the constant are; what is computed is taken to be."""
        return self.const is None or are_finite(self.const.data.array)

    @property
    def largest(self) -> float:
        """No sum overflows where no element of the value, or of both values, is larger."""
        # Parts are rounded up by 2^-8 at most, both of a product.
        highest = float(np.finfo(np.float32).max) / (1 + 2.0**-8) ** 2
        if self.const is None:
            return sqrt(highest / max(self.products, 1))
        axes = {d for d, c in index_coords(self.weights) if c.as_var in self.nest.bound}
        summed = tuple(i for i, d in enumerate(self.const.axes) if d in axes)
        sizes = np.abs(self.const.data.array).sum(axis=summed, dtype=np.float64)
        return highest / max(float(sizes.max(initial=0.0)), 1.0)

    @property
    def growth(self) -> float:
        """Bytes that the constant's parts take more than it, which may stay beside them."""
        return (self.parts * GROWTH - 1) * bytes_of(self.const)


def bytes_of(const: Const | None) -> int:
    """What a constant takes; a computed value is none."""
    return 0 if const is None else const.data.array.nbytes


def computed_factors(n: Nest, editor: Editor) -> tuple[Read, Read, None] | None:
    """Two factors that are computed, each dim read at loops of its own, or at one place.

    The second is the one that is brought into the order of registers, each of its dims read at one
    loop: the smaller one, if any. Where a run tells its size, slices of rows may follow: then it is
    the one that results are reduced along, as scores are along keys.
    """
    match n.body[0]:
        case Apply(op="mul", args=(Read() as a, Read() as b)) if a.value != b.value:
            pass
        case _:
            return None
    if {n.out.dtype, a.dtype, b.dtype} != {DType.F32}:
        return None
    for r in (a, b):
        coords = index_coords(r)
        loops = [v for _, c in coords for v in c.names()]
        if r.fill is not None or len(coords) != len(r.coords):
            return None
        if len(set(loops)) != len(loops) or not editor.extents.keys() >= set(loops):
            return None
        if editor.constant(r.value) is not None:
            return None
    if not _is_plain(b):
        return (b, a, None) if _is_plain(a) else None
    sizes = [editor.typical(editor.values[r.value].dims) for r in (a, b)]
    first = sizes[0] < sizes[1]
    if editor.size(n.dims) is None:
        reduced = _reduced_along(n.out.name, editor)
        along = [not reduced.isdisjoint(loops_read(r, editor)) for r in (a, b)]
        first = along[0] if along[0] != along[1] else first
    return (b, a, None) if first and _is_plain(a) else (a, b, None)


def _reduced_along(value: str, editor: Editor) -> frozenset[str]:
    """The dims of a value that the next reductions of it, or of what it is changed to, go over."""
    dims = frozenset(editor.values[value].dims)
    left, seen = [value], {value}
    for v in left:
        nests = [n for n in editor.readers(v) if isinstance(n, Nest)]
        found = dims.intersection(d for n in nests for d in n.bound)
        if found:
            return found
        after = [o.name for n in nests if dims <= {*n.out.dims} for o in n.outs]
        left += [o for o in after if o not in seen]
        seen.update(after)
    return frozenset()


def _is_plain(r: Read) -> bool:
    """Whether each dim is read at one loop, or at one place."""
    return all(c.is_const or c.as_var is not None for _, c in index_coords(r))


def operands(
    n: Nest, editor: Editor, *, computed: bool
) -> tuple[Read, Read, Const | None, int] | Reason:
    """The factors of a sum, the second one's constant, and how many products there are of a sum.

    Without a constant only if both may be `computed`.
    """
    found: tuple[Read, Read, Const | None] | Reason = weighted(n, editor)
    if isinstance(found, Reason) and computed:
        found = computed_factors(n, editor) or found
    if isinstance(found, Reason):
        return found
    products = editor.size(n.bound)
    if products is None and found[2] is not None:
        return Reason("the number of its products is known at run time only")
    return (*found, products or editor.typical(n.bound))


def terms_of_parts(parts: int) -> tuple[tuple[int, int], ...]:
    """The products that are kept of so many parts."""
    return tuple((i, j) for i, j in TERMS if i + j < parts)


def in_parts(c: SumInParts, editor: Editor) -> Iterator[Node]:
    """The parts of both factors, and the sum of their products."""
    if c.taps is not None and c.const is not None:
        yield from in_rows(c.nest, c.source, c.weights, c.const, c.taps, editor)
        return
    lefts: list[Expr] = []
    rest, read = taken_apart(c.source, editor)
    if c.rows.step > 1:
        rest, read = in_phases(c.source, c.rows, editor)
    dims = tuple(sorted(loops_read(rest, editor)))
    left: Expr = rest
    # What lies beyond the largest bf16 goes into the other parts: to round it gives an infinity.
    high = apply("min", apply("max", rest, Lit(-HIGHEST, DType.F32)), Lit(HIGHEST, DType.F32))
    for part in _names(c.source.value, c.parts, editor):
        # A number that is rounded alone may become an infinity.
        taken = high if left is rest and c.parts > ROUNDED else left
        value = Value(part, DType.BF16, dims)
        yield Nest((value,), (), None, (Cast(taken, DType.BF16),))
        left = apply("sub", left, Cast(at_point(value), DType.F32))
        lefts.append(Cast(replace(read, value=part), DType.F32))
    names = _names(c.weights.value, c.parts, editor)
    if c.const is None:
        value = editor.values[c.weights.value]
        out = Value(names[0], DType.BF16, value.dims)
        yield Nest((out,), (), None, (Cast(at_point(value), DType.BF16),))
    else:
        arrays = parts_of(c.const.data.array, c.parts)
        for part, array in zip(names, arrays, strict=True):
            out = Value(part, DType.BF16, c.const.out.dims)
            yield Const(out, c.const.axes, Data(array), c.const.origin)
    coords = c.weights.coords
    rights = [Cast(Read(part, coords, DType.BF16), DType.F32) for part in names]
    terms = [apply("mul", lefts[i], rights[j]) for i, j in terms_of_parts(c.parts)]
    yield replace(c.nest, body=(reduce(lambda a, b: apply("add", a, b), terms),))


def taken_apart(source: Read, editor: Editor) -> tuple[Read, Read]:
    """(what is taken apart, how a part of it is read): all of a value, or what is read of it."""
    value = editor.values[source.value]
    loops = loops_read(source, editor)
    named = [v for _, c in index_coords(source) for v in c.names() if v in loops]
    apart = len(named) == len(loops) and source.fill is None
    if apart and 2 * editor.typical(loops) <= editor.typical(value.dims):
        coords = point(tuple(sorted(loops)))
        return source, Read(source.value, coords, DType.BF16)
    fill = None if source.fill is None else replace(source.fill, dtype=DType.BF16)
    return at_point(value), replace(source, dtype=DType.BF16, fill=fill)


def loops_read(r: Read, editor: Editor) -> frozenset[str]:
    """The loops that move a read; sizes of a run that its places depend on are none."""
    return frozenset(v for _, c in index_coords(r) for v in c.names() if v in editor.extents)


def _names(value: str, parts: int, editor: Editor) -> list[str]:
    return [editor.fresh_value(f"{value}.{part}") for part in NAMES[:parts]]
