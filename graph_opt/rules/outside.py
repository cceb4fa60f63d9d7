"""Windows go over what may lie inside of the values that they are read from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rutc.graph_opt.editor import Editor
from rutc.graph_opt.kinds import matches
from rutc.graph_opt.rewrite import Reason, Result
from rutc.graph_opt.rules.constants import range_of
from rutc.tensor_ir import Const, Expr, Index, Nest, Node, Read
from rutc.tensor_ir.expr import reads, substitute, transform
from rutc.tensor_ir.facts.outside import adds_nothing
from rutc.tensor_ir.indices.affine import Range


@matches("reduction")
def drop_outside(n: Node, editor: Editor) -> Result:
    """A reduction leaves out what is never read inside of a value, and adds nothing outside.

    %w = const {k: 3}
    %y{a} = sum{k} %x[a=a+12*k-12 else 0.0] * %w[k]   ->   %w.k = const {k.1: 1}
                                                           %y{a} = sum{k.1} %x[a] * %w.k[k.1]
    for extent(a) <= 12. Weights have to be finite: 0.0 * inf is NaN.
    """
    if not isinstance(n, Nest) or n.reducer is None or not n.bound:
        return Reason("nothing is reduced")
    why = Reason("every part of its windows is inside of their value somewhere")
    for r in dict.fromkeys(r for e in n.body for r in reads(e)):
        for b, kept in _kept(n, r, editor):
            if adds_nothing(n.reducer, n.body, r, lambda name: _is_finite(name, editor)):
                return _cut(n, b, kept, editor)
            why = Reason(f"what it reads outside of %{r.value} may add something")
    return why


def _is_finite(value: str, editor: Editor) -> bool:
    const = editor.constant(value)
    return const is not None and const.data.is_finite


def _kept(n: Nest, r: Read, editor: Editor) -> Iterator[tuple[str, Range]]:
    """(bound dim, its first and last index that may read inside) where these are not all."""
    if r.fill is None:
        return
    sizes = {d: editor.size((d,)) for d in n.dims}
    ranges = {d: (0, size - 1) for d, size in sizes.items() if size}
    for d, c in r.coords:
        size = editor.size((d,))
        for b in n.bound:
            step = c.coefficient(b) if isinstance(c, Index) else None
            if not isinstance(c, Index) or not step or size is None or b not in ranges:
                continue
            rest = (c - Index.of(b) * step).bounds(ranges)
            if rest is None:
                continue
            # 0 <= step * b + rest <= size - 1, for some rest.
            ends = (-rest[1], size - 1 - rest[0])
            low, high = ends if step > 0 else (-ends[1], -ends[0])
            first = max(-(-low // abs(step)), 0)
            last = min(high // abs(step), ranges[b][1])
            if (first, last) != ranges[b] and first <= last:
                yield b, (first, last)


def _cut(n: Nest, b: str, kept: Range, editor: Editor) -> Result:
    first, last = kept
    part = editor.fresh_dim(b, Index.of(last + 1 - first))
    bound = tuple(part if d == b else d for d in n.bound)
    consts: dict[Read, tuple[Const, Read]] = {}
    for r in dict.fromkeys(r for e in n.body for r in reads(e)):
        const = editor.constant(r.value)
        along = [d for d, c in r.coords if isinstance(c, Index) and c.as_var == b]
        if const is not None and r.fill is None and len(along) == 1:
            consts[r] = _part_of(const, r, along[0], kept, part, editor)

    def visit(e: Expr) -> Expr:
        return consts[e][1] if isinstance(e, Read) and e in consts else e

    moved = {b: Index.of(part) + first}
    cut = replace(
        n, bound=bound, body=tuple(substitute(transform(e, visit), moved) for e in n.body)
    )
    return (*(const for const, _ in consts.values()), cut)


def _part_of(
    const: Const, r: Read, d: str, kept: Range, part: str, editor: Editor
) -> tuple[Const, Read]:
    """The part of a constant that is left, and how it is read: its own dim at `part`."""
    taken, dim = range_of(const, d, kept, editor)
    coords = [(dim, Index.of(part)) if x == d else (x, c) for x, c in r.coords]
    return taken, Read(taken.out.name, tuple(sorted(coords, key=lambda p: p[0])), r.dtype)
