"""Dims that are only ever taken apart are split, so that divisions leave the coordinates.

Merging reshapes (attention's heads, a grouped convolution's channels) reach their readers as
`d // K` and `d % K`. Splitting the reader's dim makes these plain dims again; the merge moves to
the reader's own output, and so on down to a reduction, where it disappears.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rutc.graph_opt.editor import Editor, key_of
from rutc.graph_opt.exprs import as_view, atoms, divisions, indices, node_reads
from rutc.graph_opt.rewrite import Reason, Result
from rutc.tensor_ir import Coord, Expr, Index, Nest, Node, Read, Value
from rutc.tensor_ir.affine import FloorDiv, Mod, floordiv, mod
from rutc.tensor_ir.expr import map_index, substitute


@dataclass(frozen=True)
class Split:
    """`dim` as `factor * outer + inner`, with the extents of the two."""

    dim: str
    factor: int
    outer: Index
    inner: Index


def split_bound_dim(n: Node, editor: Editor) -> Result:
    """A bound dim that is read as quotient and remainder becomes two.

    %y{o} = sum{e} %x[h=e // 64, d=e % 64] * %w[e, o]
    ->
    %y{o} = sum{h,d} %x[h, d] * %w[e=64*h + d, o]
    """
    if not isinstance(n, Nest) or n.reducer is None:
        return Reason("nothing is reduced")
    for d in n.bound:
        split = _split_of(d, n, editor)
        if split is not None:
            outer, inner, new = _apply(n, split, editor)
            bound = tuple(x for b in n.bound for x in ((outer, inner) if b == d else (b,)))
            return (replace(new, bound=bound),)
    return Reason("no bound dim is read as quotient and remainder")


def split_free_dim(n: Node, editor: Editor) -> Result:
    """A free dim that is read as quotient and remainder becomes two, merged by a view after.

    %y{e} = exp(%x[h=e // 64, d=e % 64])
    ->
    %y.split{d,h} = exp(%x[h, d])
    %y{e} = %y.split[h=e // 64, d=e % 64]

    Only where all readers are nests that take the merge in: an output keeps its dims.
    """
    if not isinstance(n, Nest) or as_view(n) is not None:
        return Reason("a view is composed into its readers instead")
    why = Reason("no dim is read as quotient and remainder")
    for d in n.out.dims:
        split = _split_of(d, n, editor)
        if split is None:
            continue
        kept = _who_keeps_whole(n, d, split.factor, editor, set())
        if kept is not None:
            why = kept
            continue
        outer, inner, new = _apply(n, split, editor)
        dims = tuple(sorted({*n.out.dims, outer, inner} - {d}))
        values = tuple(Value(editor.fresh_value(f"{v.name}.split"), v.dtype, dims) for v in n.outs)
        parts = {outer: Index.of(d) // split.factor, inner: Index.of(d) % split.factor}
        coords = tuple((x, parts.get(x, Index.of(x))) for x in dims)
        merges = tuple(
            Nest((v,), (), None, (Read(s.name, coords, v.dtype),), n.origin)
            for v, s in zip(n.outs, values, strict=True)
        )
        return (replace(new, outs=values), *merges)
    return why


def _split_of(d: str, n: Nest, editor: Editor) -> Split | None:
    """How to split `d` so that fewer divisions are left, by the smallest factor that does."""
    extent = editor.extents[d]
    if not extent.is_const:
        return None
    whole = [i for e in n.body for i in indices(e) if d in i.names()]
    if not any(map(divisions, whole)):
        return None
    for factor in _factors(d, whole, extent.const):
        split = Split(d, factor, Index.of(extent.const // factor), Index.of(factor))
        if _pays(split, whole, editor):
            return split
    return None


def _factors(d: str, whole: list[Index], extent: int) -> list[int]:
    found = set()
    for i in whole:
        for a in atoms(i):
            if not isinstance(a, FloorDiv | Mod) or not a.den.is_const:
                continue
            step = a.num.coefficient(d)
            if step and a.den.const % step == 0:
                found.add(a.den.const // step)
    return sorted(k for k in found if 1 < k < extent and extent % k == 0)


def _pays(split: Split, whole: list[Index], editor: Editor) -> bool:
    # Names that no graph has: the real dims are made once the split is decided.
    outer, inner = "outer?", "inner?"
    ranges = dict(editor.ranges)
    ranges[outer] = (0, split.outer.const - 1)
    ranges[inner] = (0, split.inner.const - 1)
    env = {split.dim: Index.of(outer) * split.factor + Index.of(inner)}
    after = sum(divisions(i.subs(env).simplify(ranges)) for i in whole)
    return after < sum(map(divisions, whole))


def _who_keeps_whole(
    n: Nest, d: str, factor: int, editor: Editor, seen: set[tuple[str, str]]
) -> Reason | None:
    """Which reader would have to put the split dim `d` together again, if there is one."""
    if (key_of(n), d) in seen:
        return None
    seen.add((key_of(n), d))
    for v in n.outs:
        if editor.is_output(v.name):
            return Reason(f"%{v.name} is an output of the graph")
        for reader in editor.readers(v.name):
            if not isinstance(reader, Nest):
                return Reason(f"%{v.name} is needed as it is by %{key_of(reader)}")
            for r in node_reads(reader):
                at = r.coord(d) if r.value == v.name else None
                if at is None or _divides(at, factor, r, editor):
                    continue
                inner = at.as_var if isinstance(at, Index) and r.fill is None else None
                if inner is None or editor.extents.get(inner) != editor.extents[d]:
                    return Reason(f"%{key_of(reader)} needs {d}={at} undivided")
                if inner in reader.bound:
                    continue
                if inner not in reader.out.dims or as_view(reader) is not None:
                    return Reason(f"%{key_of(reader)} needs {d}={at} undivided")
                kept = _who_keeps_whole(reader, inner, factor, editor, seen)
                if kept is not None:
                    return kept
    return None


def _divides(at: Coord, factor: int, r: Read, editor: Editor) -> bool:
    """Whether quotient and remainder of a coordinate are free of divisions."""
    if r.fill is not None or not isinstance(at, Index):
        return False
    by = Index.of(factor)
    parts = floordiv(at, by, editor.ranges), mod(at, by, editor.ranges)
    return all(divisions(editor.simplify(p)) == 0 for p in parts)


def _apply(n: Nest, split: Split, editor: Editor) -> tuple[str, str, Nest]:
    """The two dims, named as the values that `n` reads name them where possible; and `n` split."""
    outer = _known_name(n, split, Index.of(split.dim) // split.factor, split.outer, editor)
    inner = _known_name(n, split, Index.of(split.dim) % split.factor, split.inner, editor)
    if outer is None or outer == inner:
        outer = editor.fresh_dim(f"{split.dim}_o", split.outer)
    if inner is None:
        inner = editor.fresh_dim(f"{split.dim}_i", split.inner)
    env = {split.dim: Index.of(outer) * split.factor + Index.of(inner)}

    def divided(e: Expr) -> Expr:
        return map_index(substitute(e, env), editor.simplify)

    return outer, inner, replace(n, body=tuple(map(divided, n.body)))


def _known_name(n: Nest, split: Split, part: Index, extent: Index, editor: Editor) -> str | None:
    """The dim along which `n` reads `part`, if it can serve as a dim of `n` too."""
    taken = {*n.dims, *editor.enclosing_dims(n)}
    for r in node_reads(n):
        for d, c in r.coords:
            if c == part and d not in taken and editor.extents[d] == extent:
                return d
    return None
