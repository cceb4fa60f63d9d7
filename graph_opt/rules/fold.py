"""What can be computed now is computed now."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from rutc.base.record import record
from rutc.graph_opt.editor import Editor, merge_origins
from rutc.graph_opt.exprs import as_view, node_reads
from rutc.graph_opt.kinds import kind_of, matches
from rutc.graph_opt.rewrite import Reason, Result
from rutc.graph_opt.rules.contraction import made_once, repeated
from rutc.graph_opt.rules.narrow import quantised
from rutc.tensor_ir import Const, Data, DType, Graph, If, Index, Lit, Nest, Node, Read
from rutc.tensor_ir.expr import index_names, point
from rutc.tensor_ir.graph import mentioned, outs
from rutc.tensor_ir.interpreter.interpret import interpret_values
from rutc.tensor_ir.terms import factors


@matches("view", "elementwise", "reduction")
@record
class FoldConstants:
    """Computes nests that read only constants.

    %y{i} = %c[i=i] * %s[i=i]          ->   %y{i} = const [i] ...

    A result may be as large as `small_bytes`, or `growth` times what the nest reads: larger ones
    are cheaper to compute at run time than to store. A view keeps its source unless it is small.
    What is the same at every index of a dim of any size is computed for one, and readers repeat it:

    %y{b,i} = %c[i] * %s[i]            ->   %t{i} = const [i] ...;  %y{b,i} = %t[i]

    With `keep_quantised`, matrices of 8-bit numbers stay, which sums of products may want.
    Products of matrices take a fraction of the time of other nests of as many points.
    """

    small_bytes: int = 1 << 16
    growth: float = 2.0
    most_points: int = 1 << 28
    most_products: int = 1 << 32
    keep_quantised: bool = False

    def __call__(self, n: Node, editor: Editor) -> Result:
        """The nest's outputs as constants."""
        if not isinstance(n, Nest):
            return Reason("only nests are computed")
        if self.keep_quantised and n.reducer is None and len(n.out.dims) > 1:
            form = quantised(n.body[0])
            if form is not None:
                return Reason("sums of products may want the 8-bit numbers")
        sources: dict[str, Const] = {}
        for r in node_reads(n):
            c = editor.constant(r.value)
            if c is None:
                return Reason(f"%{r.value} is not a constant")
            sources[r.value] = c
        trips = editor.enclosing_dims(n)
        if trips and any(trips & index_names(e) for e in n.body):
            return Reason("it depends on the trip of a scan")
        if editor.size(n.dims) is not None:
            return self._folded(n, sources, editor)
        once = made_once(n, editor) if sources and kind_of(n) == "elementwise" else None
        if once is None:
            return Reason("its size is symbolic")
        found = self._folded(once, sources, editor)
        return found if isinstance(found, Reason) else (*found, *repeated(n, once))

    def may_store(self, size: int, sources: Iterable[Const]) -> bool:
        """Whether so many bytes, made of these constants, are few enough to be stored."""
        return size <= max(self.small_bytes, self.growth * _bytes_of(sources))

    def _folded(
        self, n: Nest, sources: dict[str, Const], editor: Editor
    ) -> Reason | tuple[Node, ...]:
        """The outputs of a nest that reads these constants alone."""
        points, elements = editor.size(n.dims), editor.size(n.out.dims)
        if points is None or elements is None:
            return Reason("its size is symbolic")
        sizes = editor.symbols
        if sizes and any(name in sizes for name in mentioned(n)):
            return Reason("it depends on a size")
        if n.out.dtype.is_opaque:
            return Reason("strings and boxes are left to the run time")
        size = sum(elements * v.dtype.bytes for v in n.outs)
        if size > self.small_bytes and as_view(n) is not None:
            return Reason("a view of a large constant is read in its place")
        if not self.may_store(size, sources.values()):
            read = _bytes_of(sources.values())
            return Reason(f"{size} bytes from {read}: too large to store")
        operands = _matrices(n)
        if points > (self.most_products if operands else self.most_points):
            return Reason(f"{points} points are too many to compute while compiling")
        n = replace(n, origin=merge_origins(*sources.values(), n))
        if operands:
            return (_multiplied(n, operands, sources, editor),)
        return fold(n, sources, editor)


def _bytes_of(constants: Iterable[Const]) -> int:
    return sum(c.data.array.size * c.out.dtype.bytes for c in constants)


def _matrices(n: Nest) -> tuple[Read, Read] | None:
    """The two factors of a product of matrices: floats read at a loop's index along every dim.

    Both have all of the dims that are summed over, and no other in common.
    """
    if not n.is_sum or n.out.dtype not in (DType.F32, DType.F64):
        return None
    match factors(n.body[0]):
        case [Read() as left, Read() as right]:
            loops = [_loops(left), _loops(right)]
            covered = {d for found in loops for d in found}
            shared = set(loops[0]) & set(loops[1])
            whole = all(len(set(found)) == len(found) and None not in found for found in loops)
            if whole and covered == set(n.dims) and shared == set(n.bound):
                return left, right
            return None
        case _:
            return None


def _loops(r: Read) -> list[str | None]:
    """The loop whose index a read has along each of the value's dims, None where it has another."""
    return [c.as_var if r.fill is None and isinstance(c, Index) else None for _, c in r.coords]


def _multiplied(
    n: Nest, operands: tuple[Read, Read], sources: dict[str, Const], editor: Editor
) -> Const:
    """The constant that a product of matrices gives, summed in f64.

    A loop may be shorter than the dim that it goes along: it reads the first elements.
    """
    number = {d: i for i, d in enumerate(n.dims)}
    given: list[np.ndarray | list[int]] = []
    for r in operands:
        c, loops = sources[r.value], dict(zip((d for d, _ in r.coords), _loops(r), strict=True))
        along = [str(loops[d]) for d in c.axes]
        part = c.data.array[tuple(slice(editor.size((d,))) for d in along)]
        given += [part.astype(np.float64), [number[d] for d in along]]
    with np.errstate(all="ignore"):
        found = np.einsum(*given, [number[d] for d in n.out.dims], optimize=True)
        return Const(n.out, n.out.dims, Data(found.astype(n.out.dtype.numpy)), n.origin)


def fold(n: Nest, sources: dict[str, Const], editor: Editor) -> tuple[Node, ...]:
    """The constants that a nest of constants gives."""
    dims = dict.fromkeys((*n.dims, *(d for c in sources.values() for d in c.axes)))
    graph = Graph(
        name=n.out.name,
        dims=tuple((d, editor.extents[d]) for d in dims),
        nodes=(*sources.values(), n),
        outputs=(),
    )
    values = interpret_values(graph, {})
    return tuple(Const(v, v.dims, Data(values[v.name]), n.origin) for v in outs(n))


@matches("other")
def choose_branch(n: Node, editor: Editor) -> Result:
    """An If whose condition is known is its branch.

    %y = if true { %a = .. yield %a } else { .. }    ->   %a = ..;  %y = %a
    """
    if not isinstance(n, If):
        return Reason("not an If")
    made_by = editor.producer(n.cond)
    if isinstance(made_by, Const):
        taken = bool(made_by.data.array.item())
    elif isinstance(made_by, Nest) and isinstance(made_by.body[0], Lit):
        taken = bool(made_by.body[0].value)
    else:
        return Reason(f"%{n.cond} is not known")
    nodes = editor.body(n, 0 if taken else 1)
    results = n.then.results if taken else n.orelse.results
    copies = tuple(
        Nest((v,), (), None, (Read(r, point(v.dims), v.dtype),), n.origin)
        for v, r in zip(n.outs, results, strict=True)
    )
    return (*nodes, *copies)
