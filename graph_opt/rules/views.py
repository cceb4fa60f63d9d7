"""Views disappear: readers read the source through composed coordinates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rutc.graph_opt.editor import Editor, merge_origins
from rutc.graph_opt.exprs import as_view, atoms, index_coords, is_plain, map_expressions, node_reads
from rutc.graph_opt.kinds import matches
from rutc.graph_opt.rewrite import Equal, Reason, Result
from rutc.tensor_ir import Const, Coord, Expr, Index, Input, Nest, Node, Read, Scatter
from rutc.tensor_ir.expr import substitute, transform
from rutc.tensor_ir.indices.affine import FloorDiv, Mod, Var
from rutc.tensor_ir.indices.dim_ranges import is_positive


@matches("view", "elementwise", "reduction", "scatter")
def compose_views(n: Node, editor: Editor) -> Result:
    """A reader of a view reads the view's source.

    %v{a,b} = %x[p=b, q=2*a]
    %y{i,j} = exp(%v[a=j, b=i])        ->   %y{i,j} = exp(%x[p=i, q=2*j])

    A view with a fill (a padding) composes too. Where the read has a fill itself, only when
    leaving the view's extents is the same as leaving the source's.
    """
    if not isinstance(n, Nest | Scatter):
        return Reason("only nests and scatters read through coordinates")
    divides = isinstance(n, Scatter) or n.reducer is None
    composed: dict[Read, Read] = {}
    why = Reason("it reads no view")
    for r in node_reads(n):
        view = as_view(editor.producer(r.value))
        if view is None or r in composed:
            continue
        result = compose(r, view[1], editor, divides=divides)
        if isinstance(result, Reason):
            why = result
        else:
            composed[r] = result
    if not composed:
        return why

    def visit(e: Expr) -> Expr:
        return composed.get(e, e) if isinstance(e, Read) else e

    new = map_expressions(n, lambda e: transform(e, visit))
    views = [v for r in composed if (v := editor.producer(r.value)) is not None]
    return (replace(new, origin=merge_origins(*views, n)),)


@matches("view")
def drop_copy(n: Node, editor: Editor) -> Result:
    """A value that equals another everywhere is that other.

    %y{a,b} = %x[a=a, b=b]
    output "y" = %y                    ->   output "y" = %x
    """
    view = as_view(n)
    if view is None or view[1].fill is not None:
        return Reason("not a view")
    assert isinstance(n, Nest)
    r = view[1]
    same = editor.values[r.value].dims == n.out.dims and all(
        isinstance(c, Index) and c.as_var == d for d, c in r.coords
    )
    if not same:
        return Reason("the view rearranges its source")
    source = editor.producer(r.value)
    if source is None or editor.block(source) != editor.block(n):
        return Reason("the source belongs to a surrounding block")
    if isinstance(source, Input | Const) and editor.leaves_block(n.out.name):
        return Reason("an output needs storage of its own, apart from inputs and constants")
    if editor.leaves_block(r.value) and editor.leaves_block(n.out.name):
        return Reason("two outputs need storage of their own")
    return Equal((r.value,))


@matches("view", "elementwise", "reduction", "scatter")
def drop_fill(n: Node, editor: Editor) -> Result:
    """A read that never leaves its value's extents needs no fill.

    %y{i} = %x[a=i+1 else 0]           ->   %y{i} = %x[a=i+1]       for i+1 < extent(a)
    """
    if not isinstance(n, Nest | Scatter):
        return Reason("only nests and scatters read through coordinates")
    if not any(r.fill is not None for r in node_reads(n)):
        return Reason("no read has a fill")

    def visit(e: Expr) -> Expr:
        if not isinstance(e, Read) or e.fill is None:
            return e
        leaves = any(can_leave(d, c, editor) for d, c in e.coords)
        return e if leaves else replace(e, fill=None)

    new = map_expressions(n, lambda e: transform(e, visit))
    return (new,) if new != n else Reason("every read with a fill may leave its value")


def compose(r: Read, inner: Read, editor: Editor, *, divides: bool) -> Read | Reason:
    """The read `r` of the view `%v{..} = inner` as a read of the view's source.

    With `divides`, the composed coordinates may divide sums of several dims.
    """
    gathered = sorted(d for d, c in r.coords if not isinstance(c, Index))
    env = dict(index_coords(r))
    if gathered and inner.fill is not None and r.fill is None:
        return Reason("a data-dependent coordinate is clamped, but the padding has a fill")
    fill = inner.fill if r.fill is None else r.fill
    if r.fill is not None:
        leaving = [d for d, c in r.coords if can_leave(d, c, editor)]
        if not leaving:
            fill = inner.fill
        elif inner.fill is not None and inner.fill != r.fill:
            return Reason(f"two fills: {r.fill.value} around {inner.fill.value}")
        for d in leaving:
            if not leaves_together(d, inner, editor):
                return Reason(f"leaving {d} is not leaving %{inner.value}")
    coords: list[tuple[str, Coord]] = []
    for d, c in inner.coords:
        assert isinstance(c, Index)
        through = [g for g in gathered if g in c.names()]
        if not through:
            at = editor.simplify(c.subs(env))
            if not divides and _divides_sum(at, editor):
                return Reason(f"{d}={at} would divide in every step of a reduction")
            if fill is None and can_leave(d, at, editor) and not can_leave(d, c, editor):
                return Reason(f"{d}={at} cannot be shown to stay inside")
            coords.append((d, at))
        elif c.as_var is None or editor.extents[through[0]] != editor.extents[d]:
            return Reason(f"a data-dependent coordinate meets {d}={c}")
        else:
            coords.append((d, r.coord(through[0])))
    return replace(r, value=inner.value, coords=tuple(coords), fill=fill)


def can_leave(dim: str, c: Coord, editor: Editor) -> bool:
    """Whether the coordinate `c` along `dim` may lie outside of the extent."""
    if not isinstance(c, Index):
        return True
    if c.as_var is not None and editor.extents.get(c.as_var) == editor.extents[dim]:
        return False
    last = editor.extents[dim] - 1
    low, room = c.bounds(editor.ranges), (last - c).bounds(editor.ranges)
    if low is None or room is None:
        return True
    if low[0] >= 0 and room[0] >= 0:
        return False
    if is_positive(c + 1, editor.ranges) and is_positive(last - c + 1, editor.ranges):
        return False
    if low[0] < 0 or not _rises(c):
        return True
    ends = {d: editor.extents[d] - 1 for d in c.names() if d in editor.extents}
    left = editor.simplify(last - c.subs(ends)).bounds(editor.ranges)
    return left is None or left[0] < 0


def _rises(c: Index) -> bool:
    """Whether a coordinate falls nowhere as what is in it grows: loops, and sizes."""
    for mono, k in c.terms:
        match mono:
            case _ if all(isinstance(atom, Var) for atom in mono):
                rises = True
            case (FloorDiv(num, den),) if den.is_const:
                rises = _rises(num)
            case _:
                rises = False
        if k < 0 or not rises:
            return False
    return True


def leaves_together(dim: str, inner: Read, editor: Editor) -> bool:
    """Whether a coordinate outside of the view's `dim` always lies outside of the source."""
    extent = editor.extents[dim]
    for d, c in inner.coords:
        assert isinstance(c, Index)
        sign = c.coefficient(dim)
        if sign not in (1, -1) or len(c.terms) != 1:
            continue
        # The coordinates at the view's last and first index, in the source's direction.
        first = c.const if sign == 1 else c.const + 1 - extent
        beyond = editor.extents[d] - extent - Index.of(first)
        low, high = Index.of(first).bounds(editor.ranges), beyond.bounds(editor.ranges)
        if low is not None and high is not None and low[1] <= 0 and high[1] <= 0:
            return True
    return False


def _divides_sum(x: Index, editor: Editor) -> bool:
    """Whether `x` divides an expression of several dims."""
    divided = (a.num.names() for a in atoms(x) if isinstance(a, FloorDiv | Mod))
    return any(len(names & editor.extents.keys()) > 1 for names in divided)


@matches("view")
def sum_as_viewed(n: Node, editor: Editor) -> Result:
    """A reduction whose only reader renames, merges or splits its dims is computed as viewed.

    %p{m,n} = sum{k} %x[m, k] * %w[k, n]
    %y{i,j,l} = %p[m=l, n=4*i + j]          for extent(j) = 4
    ->
    %y{i,j,l} = sum{k} %x[m=l, k] * %w[k, n=4*i + j]

    Every element is read exactly once, so that none is computed twice.
    """
    if not isinstance(n, Nest) or n.reducer is not None or not isinstance(n.body[0], Read):
        return Reason("not a view")
    r = n.body[0]
    p = editor.nest(r.value)
    if p is None or p.reducer is None or len(p.outs) != 1:
        return Reason("it does not read a reduction")
    if not is_plain(r):
        return Reason(f"%{r.value} is padded or gathered")
    if not editor.is_read_once(r.value, n):
        return Reason(f"%{r.value} has another reader")
    if editor.block(p) != editor.block(n):
        return Reason(f"%{r.value} is computed outside of this body")
    coords = dict(index_coords(r))
    used: list[str] = []
    for d, c in coords.items():
        digits = _digits(c, editor.extents)
        if digits is None or editor.extents[d] != digits[1]:
            return Reason("not every element is read once")
        used += digits[0]
    if sorted(used) != sorted(n.out.dims):
        return Reason("not every element is read once")
    taken = set(n.out.dims)
    names = {d: editor.fresh_dim(d, editor.extents[d]) if d in taken else d for d in p.bound}
    env = coords | {d: Index.of(name) for d, name in names.items()}
    body = tuple(substitute(e, env) for e in p.body)
    bound = tuple(names[d] for d in p.bound)
    return (Nest(n.outs, bound, p.reducer, body, merge_origins(p, n)),)


def _digits(c: Index, extents: Mapping[str, Index]) -> tuple[list[str], Index] | None:
    """(dims, number of values) of an index that numbers the points of its dims without gaps.

    4*i + j, with extent(j) = 4  ->  [j, i], 4*extent(i)
    """
    if c.const != 0:
        return None
    weights: dict[str, int] = {}
    for mono, weight in c.terms:
        name = Index(((mono, 1),)).as_var
        if name is None or weight < 1:
            return None
        weights[name] = weight
    order = sorted(weights, key=lambda v: weights[v])
    total = Index.of(1)
    for v in order:
        if total != Index.of(weights[v]):
            return None
        total = total * extents[v]
    return order, total
