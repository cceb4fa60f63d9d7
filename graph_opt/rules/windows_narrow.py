"""Windows of numbers that are quantised, before or afterwards, are of numbers of 8 bits.

To quantise keeps the order of numbers, so the largest of some is what the largest of them becomes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import inf, isnan

import numpy as np

from rutc.graph_opt.editor import Editor, merge_origins
from rutc.graph_opt.exprs import at_point, index_coords, is_gathered
from rutc.graph_opt.kinds import matches
from rutc.graph_opt.magnitudes import is_finite
from rutc.graph_opt.rewrite import Reason, Result
from rutc.graph_opt.rules.narrow import origin_of, produced, quantising
from rutc.tensor_ir import DType, Lit, Nest, Node, Read, Value
from rutc.tensor_ir.expr import transform
from rutc.tensor_ir.reducer import highest, lowest, reducer

ORDERS = ("max", "min")
"""The reducers that give one of their elements, by the order of numbers alone."""


@matches("elementwise")
def quantise_before_windows(n: Node, editor: Editor) -> Result:
    """The largest numbers of windows are quantised before: bytes are stored, and compared.

    %x{i} = f32(%t[i]) * 0.5
    %m{n} = max{k} %x[i=2*n + k - 1 else -inf]
    %y{n} = u8(i32(min(max(round(%m[n] / 0.1) + 7.0, 0.0), 255.0)))
    ->
    %y.before{i} = u8(i32(min(max(round(%x[i] / 0.1) + 7.0, 0.0), 255.0)))
    %y{n} = max{k} %y.before[i=2*n + k - 1 else 0]

    Only of what is known to be finite: of windows in which there is a NaN, it is the largest.
    """
    found = quantising(n)
    if isinstance(found, Reason):
        return found
    n, r, scale, zero = found
    p = editor.nest(r.value)
    if p is None or p.reducer is None or p.reducer.name not in ORDERS:
        return Reason(f"%{r.value} is not the largest or smallest of some numbers")
    x = p.body[0]
    if not isinstance(x, Read) or is_gathered(x):
        return Reason(f"%{r.value} is of computed numbers")
    if r != at_point(p.out) or not editor.is_read_once(r.value, n):
        return Reason(f"%{r.value} is read elsewhere, too")
    source = editor.nest(x.value)
    if source is None or x.dtype is not DType.F32 or not editor.is_read_once(x.value, p):
        return Reason(f"%{x.value} is stored as it is")
    if all(c.is_const or c.as_var for _, c in index_coords(x)):
        return Reason(f"%{r.value} is of no windows, and may be computed with what it reads")
    if not 0 < scale < inf:
        return Reason("the scale is no positive number")
    here = at_point(source.out)
    if not is_finite(here, editor) or (x.fill is not None and isnan(float(x.fill.value))):
        return Reason(f"%{x.value} may be NaN, which is the largest number of its window")
    kind, before = n.out.dtype, quantised_before(n, r, source.out, editor)
    fill = None if x.fill is None else number_quantised(float(x.fill.value), scale, zero, kind)
    after = replace(
        p,
        outs=n.outs,
        reducer=reducer(p.reducer.name, kind),
        body=(Read(before.out.name, x.coords, kind, fill),),
        origin=merge_origins(p, n),
    )
    return before, after


@matches("reduction")
def compare_quantised(n: Node, editor: Editor) -> Result:
    """The largest of quantised numbers in windows is found of the numbers of 8 bits.

    %x{i} = f32(i32(%q[i]) - 3) * 0.5
    %m{n} = max{k} %x[i=2*n + k]
    ->
    %m.narrow{n} = max{k} %q[i=2*n + k]
    %m{n} = f32(i32(%m.narrow[n]) - 3) * 0.5

    What lies outside has no number of 8 bits: windows that reach there stay as they are.
    """
    if not isinstance(n, Nest) or n.reducer is None or n.reducer.name not in ORDERS:
        return Reason("it is not the largest or smallest of some numbers")
    x = n.body[0]
    if not isinstance(x, Read) or is_gathered(x):
        return Reason("it is of computed numbers")
    found = produced(x, editor) if x.fill is None else None
    if found is None or not found.is_real:
        return Reason(f"%{x.value} is no quantised number in all windows")
    if all(c.is_const or c.as_var for _, c in index_coords(x)):
        return Reason("it is of no windows, and may be computed with what it reads")
    if not isinstance(found.scale, Lit | None) or not isinstance(found.zero, Lit | None):
        return Reason("the scale or the zero point is no literal")
    if found.scale is not None and not float(found.scale.value) > 0:
        return Reason("the scale is no positive number")
    kind = found.q.dtype
    value = Value(editor.fresh_value(f"{n.out.name}.narrow"), kind, n.out.dims)
    largest = replace(
        n,
        outs=(value,),
        reducer=reducer(n.reducer.name, kind),
        body=(found.q,),
        origin=origin_of(n, (found,)),
    )
    real = replace(found, q=at_point(value)).number
    return largest, Nest(n.outs, (), None, (real,), n.origin)


def quantised_before(
    n: Nest, r: Read, source: Value, editor: Editor, beside: Iterable[Node] = ()
) -> Nest:
    """All of a value quantised as a nest does what it reads at `r`.

    Names differ from those of nests `beside` it.
    """
    name, here = editor.fresh_value(f"{n.out.name}.before", beside), at_point(source)
    body = transform(n.body[0], lambda e: here if e == r else e)
    return Nest((Value(name, n.out.dtype, source.dims),), (), None, (body,), n.origin)


def number_quantised(x: float, scale: float, zero: int, kind: DType) -> Lit:
    """What a number is quantised to."""
    whole = np.round(np.float32(x) / np.float32(scale)) + zero
    return Lit(int(np.clip(whole, lowest(kind).value, highest(kind).value)), kind)
