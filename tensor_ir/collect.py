"""The kernel that puts one trip's value in its place in what a loop collects."""

from __future__ import annotations

from collections.abc import Mapping

from rutc.tensor_ir.expr import Read
from rutc.tensor_ir.graph import Value
from rutc.tensor_ir.indices.affine import ZERO, Index, Range, Size
from rutc.tensor_ir.kernel import Access, Assign, Buffer, Kernel, Kind, Loop
from rutc.tensor_ir.layout import Layout
from rutc.tensor_ir.lower import Slice
from rutc.tensor_ir.statements import with_symbols


def collect_kernel(
    source: Value,
    out: Value,
    layouts: Mapping[str, Layout],
    extents: Mapping[str, Size],
    symbols: Mapping[str, Range],
    part: Slice | None = None,
) -> Kernel:
    """Returns the kernel for a trip, whose number is the one dim more of `out`; or for a `part`.

    for h in [0, 128) { for n in [0, 4) { %ys[t, n=4*p + n, h] = %y[n=4*p + n, h] } }
    """
    args = tuple(Buffer(v.name, v.dtype, layouts[v.name]) for v in (source, out))
    at = {d: Index.of(d) for d in out.dims}
    sizes = dict(extents)
    if part is not None:
        at[part.dim] += part.start
        sizes[part.dim] = part.size
    place = tuple((d, at[d]) for d in out.dims)
    read = Read(source.name, tuple((d, at[d]) for d in source.dims), source.dtype)
    body: tuple[Loop | Assign, ...] = (Assign(Access(out.name, place), read),)
    for d in reversed(source.dims):
        body = (Loop(d, ZERO, Index.of(sizes[d]), Kind.SERIAL, body),)
    return with_symbols(Kernel(f"{out.name}.collect", args, (), body), symbols)
