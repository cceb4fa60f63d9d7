"""Products of which registers for matrices take no whole number at a time: zeros are added.

Registers multiply 16 to 32 neighbours of bf16, or 32 to 64 bytes, at a time. Of 197 products no
such number is a divisor. With zeros in both factors there are 224, and their sum is the same:
nothing that lies behind a row is ever multiplied, so that an infinity there changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import isfinite

import numpy as np

from rutc.base.record import record
from rutc.graph_opt.editor import Editor
from rutc.graph_opt.exprs import at_point, index_coords
from rutc.graph_opt.kinds import matches
from rutc.graph_opt.rewrite import Reason, Result
from rutc.tensor_ir import Cast, Const, Data, DType, Expr, Index, Lit, Nest, Node, Read, Value
from rutc.tensor_ir.expr import reads, transform
from rutc.tensor_ir.facts.matrix_blocks import ROW_BYTES, products_at_a_time, with_zeros
from rutc.tensor_ir.facts.products import terms_of
from rutc.tensor_ir.machine import COMMON, FEWEST_LANES, Machine


@matches("reduction")
@record
class PadProducts:
    """Zeros make a number of products a multiple of what registers for matrices take.

    %y{m,n} = sum{k} i32(%x[k, m]) * i32(%w[k, n])                    with 509 k and a constant %w
      ->  %w.padded{k.padded,n} = %w, and 0 behind it
          %y{m,n} = sum{k.padded} i32(%x[k=k.padded else 0, m]) * i32(%w.padded[k.padded, n])

    with 512 k.padded. A value then has a halo of zeros, in its own memory or in a copy. Where a run
    tells the number of products, as in attention of any length, there are whole blocks of them:

    %y{m,n} = sum{k} f32(%x[k, m]) * f32(%v[k, n])
      ->  %v.padded{b,i,n} = %v[k=32*b + i, n else 0]                 with ceil(n/32) b and 32 i
          %y{m,n} = sum{b,i} f32(%x[k=32*b + i, m else 0]) * f32(%v.padded[b, i, n])
    """

    machine: Machine = COMMON

    def __call__(self, n: Node, editor: Editor) -> Result:
        """The constants with zeros, and the sum with more products; or why not."""
        if not isinstance(n, Nest):
            return Reason("not a sum")
        pairs = terms_of(n.reducer, n.body)
        if pairs is None:
            return Reason("not a sum of products of narrow numbers")
        every = tuple(dict.fromkeys(r for pair in pairs for r in pair))
        dtype = every[0].dtype
        if not all(self.machine.has_matrices(r.dtype) for r in every):
            return Reason("no registers for matrices take such products")
        loop = max(n.bound, key=lambda d: editor.typical((d,)))
        extent = editor.size((loop,))
        if extent is None:
            return _refused(n, pairs, loop, editor) or _in_blocks(n, pairs, loop, editor)
        if products_at_a_time(extent, dtype.bytes):
            return Reason(f"registers take a divisor of {extent} products at a time")
        whole = with_zeros(extent, dtype.bytes)
        if not whole:
            return Reason(f"{extent} products are less than half of what registers take")
        why = _refused(n, pairs, loop, editor)
        if why is not None:
            return why
        row = editor.fresh_dim(f"{loop}.padded", Index.of(whole))
        padded: list[Const] = []
        instead: dict[Expr, Expr] = {}
        for r in every:
            const = editor.constant(r.value)
            if const is None:
                instead[r] = _with_fill(r, {loop: Index.of(row)})
                continue
            dim = _dim_at(r, loop)
            name = editor.fresh_value(f"{r.value}.padded", padded)
            padded.append(_padded(const, dim, row, whole, name))
            others = ((d, c) for d, c in r.coords if d != dim)
            coords = tuple(sorted((*others, (row, Index.of(row))), key=lambda c: c[0]))
            instead[r] = replace(r, value=name, coords=coords)
        bound = tuple(row if d == loop else d for d in n.bound)
        body = tuple(transform(e, lambda x: instead.get(x, x)) for e in n.body)
        return (*padded, replace(n, bound=bound, body=body))


def _in_blocks(
    n: Nest, pairs: tuple[tuple[Read, Read], ...], loop: str, editor: Editor
) -> tuple[Node, ...]:
    """The sum over blocks of so many products as registers take: a run tells how many blocks.

    The second factors, which are laid in columns, are written with their zeros; what the first
    ones read of them is a halo.
    """
    length = ROW_BYTES // pairs[0][0].dtype.bytes
    blocks = editor.fresh_dim(f"{loop}.blocks", (editor.extents[loop] + (length - 1)) // length)
    inside = editor.fresh_dim(f"{loop}.inside", Index.of(length))
    at = {loop: Index.of(blocks) * length + Index.of(inside)}
    instead: dict[Expr, Expr] = {}
    padded: list[Nest] = []
    for left, right in pairs:
        taken = _with_zeros(right, at, editor)
        own = {v for r in reads(taken) for _, c in index_coords(r) for v in c.names()}
        name = editor.fresh_value(f"{right.value}.padded", padded)
        out = Value(name, right.dtype, tuple(sorted(own & editor.extents.keys())))
        padded.append(Nest((out,), (), None, (taken,), n.origin))
        instead |= {left: _with_fill(left, at), right: at_point(out)}
    bound = (*(d for d in n.bound if d != loop), blocks, inside)
    body = tuple(transform(e, lambda x: instead.get(x, x)) for e in n.body)
    return (*padded, replace(n, bound=bound, body=body))


def _with_zeros(r: Read, at: Mapping[str, Index], editor: Editor) -> Expr:
    """What is read at other places, and 0 outside; of a value that is converted, itself."""
    made = editor.nest(r.value)
    body = made.body[0] if made is not None and made.reducer is None else None
    match body:
        case Cast(Read() as source, to) if r.fill is None and _is_whole(source, editor):
            places = {d: c.subs(at) for d, c in index_coords(r)}
            return Cast(_with_fill(source, places), to)
        case _:
            return _with_fill(r, at)


def _is_whole(r: Read, editor: Editor) -> bool:
    """Whether all of a value is read, nothing outside, each dim at a loop of its own."""
    loops = [c.as_var for _, c in index_coords(r)]
    sizes = [editor.extents[v] for v in loops if v is not None and v in editor.extents]
    whole = sizes == [editor.extents[d] for d, _ in r.coords]
    return whole and r.fill is None and len(set(loops)) == len(loops)


def _with_fill(r: Read, at: Mapping[str, Index]) -> Read:
    """What is read at other places, and zeros outside, if nothing else is said."""
    fill = r.fill or Lit(0.0 if r.dtype.is_float else 0, r.dtype)
    return replace(r, coords=_moved(r, at), fill=fill)


def _refused(
    n: Nest, pairs: tuple[tuple[Read, Read], ...], loop: str, editor: Editor
) -> Reason | None:
    """Why registers take no blocks of these products, or none that can have zeros; or None."""
    loops: list[set[str]] = [set(), set()]
    for pair in pairs:
        constants = [editor.constant(r.value) is not None for r in pair]
        if all(r.fill is not None and r.fill.value != 0 for r in pair):
            return Reason("outside of both factors is something else than 0")
        if not any(constants) and pair[0].dtype is not DType.BF16:
            return Reason("no factor is a constant")
        for own, r in zip(loops, pair[::-1] if constants[0] else pair, strict=True):
            coords = index_coords(r)
            places = [(d, c) for d, c in coords if loop in c.names()]
            if len(coords) < len(r.coords) or [c.as_var for _, c in places] != [loop]:
                return Reason(f"%{r.value} is not read at {loop}, once")
            if editor.extents[places[0][0]] != editor.extents[loop]:
                return Reason(f"%{r.value} has more than what is summed")
            if r.fill is not None and not isfinite(float(r.fill.value)):
                return Reason(f"outside of %{r.value} is no number")
            own |= {v for _, c in coords for v in c.names()}
    for own, other in (loops, loops[::-1]):
        longest = max((editor.typical((d,)) for d in n.out.dims if d in own - other), default=0)
        if longest < FEWEST_LANES:
            return Reason("there are too few rows or columns")
    return None


def _dim_at(r: Read, loop: str) -> str:
    """The dim that is read at a loop's index."""
    return next(d for d, c in index_coords(r) if c.as_var == loop)


def _moved(r: Read, at: Mapping[str, Index]) -> tuple[tuple[str, Index], ...]:
    return tuple((d, c.subs(at)) for d, c in index_coords(r))


def _padded(c: Const, dim: str, row: str, whole: int, name: str) -> Const:
    """A constant with zeros behind a dim, which becomes the dim `row`."""
    array = c.data.array
    pads = [
        (0, whole - size if d == dim else 0) for d, size in zip(c.axes, array.shape, strict=True)
    ]
    axes = tuple(row if d == dim else d for d in c.axes)
    out = Value(name, c.out.dtype, tuple(sorted(axes)))
    return Const(out, axes, Data(np.pad(array, pads)), c.origin)
