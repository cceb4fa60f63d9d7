"""Regions that are written at known places are choices between two values."""

from __future__ import annotations

from collections.abc import Iterator

from rutc.graph_opt.editor import Editor, merge_origins
from rutc.graph_opt.exprs import index_coords, side_by_side
from rutc.graph_opt.kinds import matches
from rutc.graph_opt.rewrite import Reason, Result
from rutc.tensor_ir import DType, Expr, Index, Lit, Nest, Node, Read, Scatter
from rutc.tensor_ir.expr import point, reads, reads_plainly, substitute, transform
from rutc.tensor_ir.indices.affine import ZERO, floordiv


@matches("scatter")
def choose_region(n: Node, editor: Editor) -> Result:
    """A scatter over most of a value, at a place of its own for each point, is elementwise.

    %y{a,b} = scatter{i,j} %x[a=i + 1, b=2*j] set= exp(%u[i, j])    for extent(b) = 2*extent(j)
    ->
    %y{a,b} = select(index(a - 1) < 0, %x[a, b],
              select(index(2*(b // 2) - b) < 0, %x[a, b], exp(%u[i=a - 1, j=b // 2 else 0.0])))

    So it joins the kernels of what it is made of and of what reads it, as slices that a program
    assigns to do. A scatter in place leaves the rest of a value alone: it stays where the region
    is less than half of that, which a nest reads and writes as well.
    """
    if not isinstance(n, Scatter) or n.reducer is not None:
        return Reason("not a scatter that sets elements")
    if 2 * editor.typical(n.dims) < editor.typical(n.out.dims):
        return Reason("it writes less than half of the value")
    at: dict[str, Index] = {}
    needed: list[Index] = []
    for dim, c in n.coords:
        if not isinstance(c, Index):
            return Reason(f"data tell its place along {dim}")
        inner = [d for d in n.dims if d in c.names()]
        if len(inner) > 1 or any(d in at for d in inner):
            return Reason(f"{dim}={c} is not a dim's own place")
        if not inner:
            needed += _not_beyond(Index.of(dim) - c, Index.of(1), editor)
            continue
        (d,) = inner
        step = c.coefficient(d)
        if not step:
            return Reason(f"{dim}={c} is no multiple of {d}")
        gap = Index.of(dim) - (c - Index.of(d) * step)
        at[d] = editor.simplify(floordiv(gap, Index.of(step), editor.ranges))
        if at[d].as_var is None or editor.extents[d] != editor.extents[dim]:
            needed += _not_beyond(at[d], editor.extents[d], editor)
        # Where the step leaves nothing over.
        needed += _not_negative(at[d] * step - gap, editor)
        needed += _not_negative(gap - at[d] * step, editor)
    for d in n.dims:
        if d not in at and editor.extents[d] != Index.of(1):
            return Reason(f"all of {d} is written to one place")
        at.setdefault(d, ZERO)
    if not all(reads_plainly(r) for r in reads(n.body)):
        return Reason("data tell what it reads")
    old = Read(n.base, point(n.out.dims), n.out.dtype)
    makers: list[Nest] = []
    new = transform(substitute(_as_made(n.body, n, editor, makers), at), _filled)
    for place in reversed(needed):
        new = side_by_side(place, old, new)
    return (Nest((n.out,), (), None, (new,), merge_origins(*makers, n)),)


def _as_made(e: Expr, reader: Node, editor: Editor, makers: list[Nest]) -> Expr:
    """What `reader` computes, without the elementwise values that nothing else reads.

    Each of their elements is written to one place: none is computed twice.
    """
    done: dict[Read, Expr] = {}

    def visit(e: Expr) -> Expr:
        if not isinstance(e, Read) or e.fill is not None or not reads_plainly(e):
            return e
        p = editor.nest(e.value)
        if p is None or p.reducer is not None or not editor.is_read_once(e.value, reader):
            return e
        if e not in done:
            whole = _as_made(p.body[0], p, editor, makers)
            makers.append(p)
            done[e] = substitute(whole, dict(index_coords(e)))
        return done[e]

    return transform(e, visit)


def _not_beyond(place: Index, extent: Index, editor: Editor) -> Iterator[Index]:
    """What must not be negative for a place to be below an extent, and not negative itself."""
    yield from _not_negative(place, editor)
    yield from _not_negative(extent - 1 - place, editor)


def _not_negative(x: Index, editor: Editor) -> Iterator[Index]:
    """What must not be negative, unless it is known never to be."""
    least = editor.simplify(x)
    bounds = least.bounds(editor.ranges)
    if bounds is None or bounds[0] < 0:
        yield least


def _filled(e: Expr) -> Expr:
    """A read with a fill, for where nothing is written."""
    if isinstance(e, Read) and e.fill is None:
        nothing = Lit("" if e.dtype is DType.STRING else 0, e.dtype)
        return Read(e.value, e.coords, e.dtype, nothing)
    return e
