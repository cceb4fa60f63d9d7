"""Dims that are only ever taken apart are split, so that divisions leave the coordinates.

Merging reshapes (attention's heads, a grouped convolution's channels, an image's rows) reach their
readers as `d // K` and `d % K`, K a constant or a product of symbols. Splitting the reader's dim
makes these plain dims again; the merge moves to the reader's own output, and so on down to a
reduction, where it disappears.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rutc.base.record import record
from rutc.graph_opt.editor import Editor, key_of
from rutc.graph_opt.exprs import as_view, atoms, divisions, indices, node_reads
from rutc.graph_opt.kinds import matches
from rutc.graph_opt.rewrite import Reason, Result
from rutc.graph_opt.rules.views import can_leave
from rutc.tensor_ir import Expr, Index, Nest, Node, Read, Value
from rutc.tensor_ir.expr import map_index, substitute
from rutc.tensor_ir.indices.affine import ONE, ZERO, FloorDiv, Mod, Range, floordiv, mod
from rutc.tensor_ir.indices.dim_ranges import dim_range


@record
class Split:
    """`dim` as `factor * outer + inner`, with the extents of the two."""

    dim: str
    factor: Index
    outer: Index
    inner: Index


@matches("reduction")
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


@matches("elementwise", "reduction")
def split_free_dim(n: Node, editor: Editor) -> Result:
    """A free dim that is read as quotient and remainder becomes two, merged by a view after.

    %y{e} = exp(%x[h=e // 64, d=e % 64])
    ->
    %y.split{d,h} = exp(%x[h, d])
    %y{e} = %y.split[h=e // 64, d=e % 64]

    Only where all readers are nests that take the merge in: an output keeps its dims. Nor where a
    larger sum has the dim whole, as `%s` has in `%s[e] + %x[h=e // 64, d=e % 64]`: it is computed
    where that sum is. A reduction is split all the same: a copy that merges is cheaper than
    divisions in all its steps.
    """
    if not isinstance(n, Nest) or as_view(n) is not None:
        return Reason("a view is composed into its readers instead")
    why = Reason("no dim is read as quotient and remainder")
    for d in n.out.dims:
        split = _split_of(d, n, editor)
        if split is None:
            continue
        if n.reducer is not None:
            return _with_merge(n, split, editor)
        if _is_of_whole_sum(n, split, editor):
            why = Reason(f"it is computed where a sum is that has {d} whole")
            continue
        kept = _who_keeps_whole(n, d, split.factor, editor)
        if kept is None:
            return _with_merge(n, split, editor)
        why = kept
    return why


@matches("elementwise", "reduction")
@record
class SplitForReaders:
    """A free dim that all readers take apart becomes two.

    %y{m,e} = sum{k} %x[m, k] * %w[k, e]
    %z{m,h,d} = %y[m, e=64*h + d] * 2.0
    ->
    %y.split{d,h,m} = sum{k} %x[m, k] * %w[k, e=64*h + d]
    %z{m,h,d} = %y.split[d, h, m] * 2.0

    Then what follows has the same dims and can be computed where the sum is. An inner dim that is
    no multiple of `lanes` would leave vectors partly filled.
    """

    lanes: int = 16

    def __call__(self, n: Node, editor: Editor) -> Result:
        """The nest with the dim split, and the view that merges it again."""
        if not isinstance(n, Nest) or as_view(n) is not None:
            return Reason("a view is composed into its readers instead")
        why = Reason("its readers take no dim apart")
        for d in n.out.dims:
            extent = editor.extents[d]
            reads = _reads_along(n, d, editor)
            if isinstance(reads, Reason):
                why = reads
                continue
            found = {c for r in reads for _, c in r[2].terms if r[2].as_var is None}
            for factor in sorted(found):
                by = Index.of(factor)
                if factor % self.lanes or not _is_multiple(extent, by):
                    continue
                whole = Split(d, by, extent // by, by)
                before, after = _costs(whole, n, editor)
                if after > before:
                    why = Reason(f"splitting {d} by {factor} would divide in %{n.out.name} itself")
                elif all(_needed_splits(at, by, editor) == [] for _, _, at in reads):
                    names = _names_of_readers(whole, n, reads, editor)
                    return _with_merge(n, whole, editor, names)
        return why


def _is_of_whole_sum(n: Nest, split: Split, editor: Editor) -> bool:
    """Whether the largest sum that an elementwise nest reads along a dim has it whole.

    And others have both of its parts, which are whole again if they lie side by side in memory.
    """
    d, sizes = split.dim, {True: 0, False: 0}
    parts = {Index.of(d) // split.factor, Index.of(d) % split.factor}
    for r in node_reads(n):
        along = {c for _, c in r.coords if isinstance(c, Index) and d in c.names()}
        is_whole = along == {Index.of(d)}
        if along and not is_whole and along != parts:
            return False
        total = editor.nest(r.value)
        if along and total is not None and total.reducer is not None:
            sizes[is_whole] = max(sizes[is_whole], editor.typical(total.dims))
    return sizes[True] > sizes[False]


def _with_merge(
    n: Nest, split: Split, editor: Editor, names: tuple[str | None, str | None] = (None, None)
) -> tuple[Node, ...]:
    """`n` with its free dim split, and a view for each output that merges it again."""
    d, factor = split.dim, split.factor
    outer, inner, new = _apply(n, split, editor, names)
    dims = tuple(sorted({*n.out.dims, outer, inner} - {d}))
    values = tuple(Value(editor.fresh_value(f"{v.name}.split"), v.dtype, dims) for v in n.outs)
    parts = {outer: Index.of(d) // factor, inner: Index.of(d) % factor}
    coords = tuple((x, parts.get(x, Index.of(x))) for x in dims)
    merges = tuple(
        Nest((v,), (), None, (Read(s.name, coords, v.dtype),), n.origin)
        for v, s in zip(n.outs, values, strict=True)
    )
    return replace(new, outs=values), *merges


def _split_of(d: str, n: Nest, editor: Editor) -> Split | None:
    """How to split `d` so that fewer divisions are left, by the smallest factor that does."""
    extent = editor.extents[d]
    whole = [i for e in n.body for i in indices(e) if d in i.names()]
    if not any(map(divisions, whole)):
        return None
    for factor in _factors(d, whole, extent):
        split = Split(d, factor, extent // factor, factor)
        before, after = _costs(split, n, editor)
        if after < before:
            return split
    return None


def _factors(d: str, whole: list[Index], extent: Index) -> list[Index]:
    """By what a dim is divided, constants first; of products of symbols, those of few first."""
    found: dict[Index, None] = {}
    for i in whole:
        for a in atoms(i):
            if not isinstance(a, FloorDiv | Mod):
                continue
            step = a.num.coefficient(d)
            if step is not None and step > 0 and a.den % step == ZERO:
                found[a.den // step] = None
    fitting = (k for k in found if k != ONE and _is_multiple(extent, k))
    return sorted(fitting, key=lambda k: (sum(len(m) for m, _ in k.terms), k.const, str(k)))


Cost = tuple[int, int]
"""How many dims are divided, and the sum of their extents."""


def _costs(split: Split, n: Nest, editor: Editor) -> tuple[Cost, Cost]:
    """What the divisions in the coordinates of `n` cost before the split and after it."""
    # Names that no graph has: the real dims are made once the split is decided.
    outer, inner = "outer?", "inner?"
    ranges = dict(editor.ranges)
    for part, extent in ((outer, split.outer), (inner, split.inner)):
        limits = dim_range(extent, editor.ranges)
        if limits is not None:
            ranges[part] = limits
    env = {split.dim: Index.of(outer) * split.factor + Index.of(inner)}
    before = [i for e in n.body for i in indices(e) if split.dim in i.names()]
    after = [i.subs(env).simplify(ranges) for i in before]
    return _cost(before, ranges), _cost(after, ranges)


def _cost(whole: list[Index], ranges: Mapping[str, Range]) -> Cost:
    divided = [
        ranges.get(d, (0, 0))[1] + 1
        for i in whole
        for a in atoms(i)
        if isinstance(a, FloorDiv | Mod)
        for d in sorted(a.num.names())
    ]
    return len(divided), sum(divided)


def _reads_along(n: Nest, d: str, editor: Editor) -> list[tuple[Nest, Read, Index]] | Reason:
    """Every read of `n`'s outputs with its reader and its coordinate along `d`."""
    found = []
    for v in n.outs:
        if editor.is_output(v.name):
            return Reason(f"%{v.name} is an output of the graph")
        for reader in editor.readers(v.name):
            if not isinstance(reader, Nest):
                return Reason(f"%{v.name} is needed as it is by %{key_of(reader)}")
            for r in node_reads(reader):
                if r.value != v.name:
                    continue
                at = r.coord(d)
                if not isinstance(at, Index) or (r.fill is not None and can_leave(d, at, editor)):
                    return Reason(f"%{key_of(reader)} gathers along {d} or may leave it")
                found.append((reader, r, at))
    return found


def _who_keeps_whole(n: Nest, d: str, factor: Index, editor: Editor) -> Reason | None:
    """Which reader would have to put the split dim `d` together again, if there is one.

    Readers that would be split as well have readers in turn: a residual stream goes through all of
    a model. Where none needs it whole, that is true of each of them, so `editor.ahead` has it for
    when their turn comes.
    """
    seen = {(key_of(n), d, factor)}
    due = [(n, d, factor)]
    while due:
        nest, whole, by = due.pop()
        if (key_of(nest), whole, by) in editor.ahead:
            continue
        reads = _reads_along(nest, whole, editor)
        if isinstance(reads, Reason):
            return reads
        for reader, _, at in reads:
            needed = _needed_splits(at, by, editor)
            if needed is None or (needed and as_view(reader) is not None):
                return Reason(f"%{key_of(reader)} needs {whole}={at} undivided")
            for dim, inner in needed:
                if dim in reader.bound or (key_of(reader), dim, inner) in seen:
                    continue
                if dim not in reader.out.dims:
                    return Reason(f"%{key_of(reader)} needs {whole}={at} undivided")
                seen.add((key_of(reader), dim, inner))
                due.append((reader, dim, inner))
    editor.ahead.update(seen)
    return None


def _needed_splits(at: Index, by: Index, editor: Editor) -> list[tuple[str, Index]] | None:
    """The dims, with factors, to split so that quotient and remainder of `at` need no division.

    None if splitting dims cannot achieve that.
    """
    alone = at.as_var
    if alone is not None and by.is_const and editor.extents[alone].is_const:
        # A chain of elementwise nests asks this of every one: what follows tells the same.
        length = editor.extents[alone].const
        if length <= by.const:
            return []
        return None if length % by.const else [(alone, by)]
    needed: dict[tuple[str, Index], None] = {}
    for part in (floordiv(at, by, editor.ranges), mod(at, by, editor.ranges)):
        for a in atoms(editor.simplify(part)):
            # A size that is a quotient itself divides no dim.
            if not isinstance(a, FloorDiv | Mod) or a.num.names().isdisjoint(editor.extents):
                continue
            dim = a.num.as_var
            extent = editor.extents.get(dim or "")
            if dim is None or extent is None or not _is_multiple(extent, a.den):
                return None
            needed[dim, a.den] = None
    return list(needed)


def _is_multiple(extent: Index, factor: Index) -> bool:
    """Whether `factor` divides an extent, which is not it, whatever its symbols are."""
    return extent % factor == ZERO and extent not in (factor, ZERO)


def _names_of_readers(
    split: Split, n: Nest, reads: list[tuple[Nest, Read, Index]], editor: Editor
) -> tuple[str | None, str | None]:
    """The dims by which the readers know quotient and remainder, if `n` can have them."""
    taken = {*n.dims, *editor.enclosing_dims(n)}

    def known(part: Index, extent: Index) -> str | None:
        name = editor.simplify(part).as_var
        fits = name is not None and name not in taken and editor.extents.get(name) == extent
        return name if fits else None

    outer = inner = None
    by = split.factor
    for reader, _, at in reads:
        scanned = editor.enclosing_dims(reader)
        names = (
            known(floordiv(at, by, editor.ranges), split.outer),
            known(mod(at, by, editor.ranges), split.inner),
        )
        outer = outer or (names[0] if names[0] not in scanned else None)
        inner = inner or (names[1] if names[1] not in scanned else None)
    return outer, inner


def _apply(
    n: Nest, split: Split, editor: Editor, names: tuple[str | None, str | None] = (None, None)
) -> tuple[str, str, Nest]:
    """The two dims, named as the values that `n` reads name them where possible; and `n` split."""
    d = Index.of(split.dim)
    outer = names[0] or _known_name(n, d // split.factor, split.outer, editor)
    inner = names[1] or _known_name(n, d % split.factor, split.inner, editor)
    if outer is None or outer == inner:
        outer = editor.fresh_dim(f"{split.dim}_o", split.outer)
    if inner is None:
        inner = editor.fresh_dim(f"{split.dim}_i", split.inner)
    env = {split.dim: Index.of(outer) * split.factor + Index.of(inner)}

    def divided(e: Expr) -> Expr:
        return map_index(substitute(e, env), editor.simplify)

    return outer, inner, replace(n, body=tuple(map(divided, n.body)))


def _known_name(n: Nest, part: Index, extent: Index, editor: Editor) -> str | None:
    """The dim along which `n` reads `part`, if it can serve as a dim of `n` too."""
    taken = {*n.dims, *editor.enclosing_dims(n)}
    for r in node_reads(n):
        for d, c in r.coords:
            if c == part and d not in taken and editor.extents[d] == extent:
                return d
    return None
