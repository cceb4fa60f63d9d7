"""Loops over rows of a value at even distances, blocks of which registers for matrices hold.

    sum{c,j} %x[n, y=v + j, i, c] * %w[c, j, m]

In the order n, y, i, c rows of n are at even distances, those of v and i together, and those of i.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from math import ceil, prod

from rutc.base.record import record
from rutc.graph_opt.exprs import index_coords
from rutc.tensor_ir import Index, Nest, Read
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.facts.matrix_blocks import ROWS
from rutc.tensor_ir.facts.products import terms_of
from rutc.tensor_ir.indices.affine import Size


@record
class Rows:
    """Loops that go over rows one after another; the first goes along `dim` in steps of `step`."""

    loops: tuple[str, ...]
    dim: str = ""
    step: int = 1


def row_runs(
    order: Sequence[str],
    coords: Mapping[str, Index],
    free: AbstractSet[str],
    extents: Mapping[str, Size],
) -> list[Rows]:
    """The longest runs of `free` loops from each dim of a value on, its dims in this order.

    Dims along which no free loop goes do not count. Inside of the first loop of a run are loops
    over whole dims. A step that is not 1 is even only where the places in between lie elsewhere.
    """
    moving = [d for d in order if d in coords and coords[d].names() & free]
    found: list[Rows] = []
    for at, d in enumerate(moving):
        first, *others = sorted(coords[d].names() & free)
        step = coords[d].coefficient(first)
        if others or step is None or step < 1:
            continue
        loops = [first]
        for e in moving[at + 1 :]:
            v = coords[e].as_var
            if v is None or Index.of(extents[e]) != Index.of(extents[v]):
                break
            loops.append(v)
        found.append(Rows(tuple(loops), d, step))
    return found


def rows_in_use(extent: int) -> int:
    """How many rows registers have that share so many; all of several have equally many.

    Several are an even number: products take them two by two.
    """
    count = ceil(extent / ROWS)
    count += count % 2 if count > 1 else 0
    return ceil(extent / max(count, 1))


def matrix_factors(n: Nest, constants: AbstractSet[str]) -> tuple[Read, ...]:
    """The parts of a value of which a nest sums products with constants."""
    terms = terms_of(n.reducer, n.body) or ()
    found = dict.fromkeys(r for pair in terms for r in pair if r.value not in constants)
    return tuple(found) if any(a.dtype is DType.BF16 for a, _ in terms) else ()


def rows_of_sum(n: Nest, r: Read, order: Sequence[str], extents: Mapping[str, Size]) -> int:
    """How many rows of registers a sum uses, where a factor's dims are in this order.

    `extents` may be those of a slice, all of known size.
    """
    coords = dict(index_coords(r))
    sizes = {v: Index.of(extents[v]).value for v in n.out.dims}
    free = {v for v in n.out.dims if sizes[v] > 1}
    runs = row_runs(order, coords, free, extents)
    loops = [run.loops if run.step == 1 else run.loops[:1] for run in runs]
    return max((rows_in_use(prod(sizes[v] for v in own)) for own in loops), default=1)
