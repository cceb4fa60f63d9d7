"""Filters of integers over small windows become exact products of transformed tiles."""

from __future__ import annotations

from math import prod

import numpy as np

from rutc.base.record import record
from rutc.graph_opt.alternatives.filtering import (
    MOST_GROWTH,
    Filtered,
    Work,
    filtered,
    filters_of,
    windows_of,
)
from rutc.graph_opt.editor import Editor
from rutc.graph_opt.kinds import matches
from rutc.graph_opt.minimal_filter import transform_weights
from rutc.graph_opt.rewrite import Reason, Result
from rutc.graph_opt.rules.narrow import Quantised, quantised
from rutc.graph_opt.weighted import weighted_reads
from rutc.tensor_ir import Apply, Cast, Const, DType, Expr, Lit, Nest, Node, Read
from rutc.tensor_ir.machine import COMMON, Machine

LARGEST = (1 << 31) - 1
LARGEST_FACTOR = (1 << 15) - 1
STRIDES = range(1, 3)
"""Steps of windows that are filtered."""


@matches("reduction")
@record
class FilterWhole:
    """A sum of integers over a small window becomes sums over channels at fewer points per output.

    %y{o,z} = sum{c,k} i32(%x[c, x=z+k-1 else 0]) * i32(%w[c, k, o])             with %x : i16
      ->  %x.points{c,p,t} = i16(select(p == 0, i32(%x[c, x=2*t+1 else 0]) - .., ..))
          %y.points{o,p,t} = sum{c} i32(%x.points[c, p, t]) * i32(%w.points[c, p, o])
          %y{o,z} = shr(select(z % 2 == 0, %y.points[o, p=0, t=z//2] + .., ..), 1)

    Exact: transformed weights are whole multiples, the transformed input fits 16 bits, and what
    outputs are divided by goes into them evenly. As `MinimalFiltering` otherwise, but that a filter
    costs no accuracy, so that a smaller gain will do, and that windows may move in steps of two.
    Costs are those of a machine.
    """

    share: float = 0.9
    saving: float = 40_000.0
    machine: Machine = COMMON

    def __call__(self, n: Node, editor: Editor) -> Result:
        """The weights, three nests, or why not."""
        if not isinstance(n, Nest) or not n.is_sum:
            return Reason("not a sum")
        match n.body[0]:
            case Apply("mul", (Cast(Read() as a, DType.I32), Cast(Read() as b, DType.I32))):
                operands = weighted_reads(a, b, editor)
            case _:
                return Reason("it does not sum products of two integers")
        if isinstance(operands, Reason):
            return operands
        source, weights, const = operands
        most = _largest(source, editor)
        if most is None:
            return Reason(f"%{source.value} is no quantised number in 16 bits")
        found = self.choice(n, source, weights, const, most, editor)
        return found if isinstance(found, Reason) else filtered(found, editor)

    def choice(
        self, n: Nest, source: Read, weights: Read, const: Const, most: int, editor: Editor
    ) -> Filtered | Reason:
        """What is filtered how, or why nothing; `most` is the largest magnitude of the source."""
        windows = windows_of(n, source, weights, editor, STRIDES)
        if not windows:
            return Reason("no bound dim is a window of small stride")
        w = self.machine.coefficients.filtering
        # Transformed tiles are made and used in slices, so that none of their bytes go far: no time
        # for them showed for 28 x 28 x 128 to 56 x 56 x 64.
        work = Work(n, source, const, tuple(windows), editor, self.machine, w.paired, bytes=0)
        direct = work.cycles({})
        choices = [
            (work.cycles(f), f)
            for f in filters_of(windows, editor)
            if work.growth(f) <= MOST_GROWTH and all(x.is_whole for x in f.values())
        ]
        limit = min(self.share * direct, direct - self.saving)
        choices = [c for c in choices if c[0] <= limit]
        if not choices:
            return Reason(f"it saves too little of about {direct:.0f} cycles")
        _, filters = min(choices, key=lambda c: c[0])
        found = Filtered(n, source, weights, const, filters)
        if not _fits(found, most):
            return Reason("its sums, or their factors, may take more bits")
        return found


def _largest(source: Read, editor: Editor) -> int | None:
    """The largest magnitude of a quantised number less its zero point; None of others."""
    p = editor.nest(source.value)
    if source.dtype is not DType.I16 or p is None or p.reducer is not None:
        return None
    return _magnitude(p.body[0])


def _magnitude(e: Expr) -> int | None:
    match e:
        case Cast(arg, DType.I16):
            # Without a zero point nothing was subtracted in 32 bits.
            form = quantised(arg if arg.dtype is DType.I32 else Cast(arg, DType.I32))
        case _:
            return None
    if form is None or form.is_real or form.scale is not None:
        return None
    return largest_difference(form)


def largest_difference(form: Quantised) -> int:
    """The largest magnitude of a quantised number less its zero point."""
    low, high = (-128, 127) if form.q.dtype.is_signed else (0, 255)
    if form.zero is not None and not isinstance(form.zero, Lit):
        # Another number of 8 bits: nothing else is subtracted in 16.
        return 255 + 128
    zero = form.zero.value if form.zero is not None else 0
    return max(abs(low - int(zero)), abs(high - int(zero)))


def _fits(found: Filtered, most: int) -> bool:
    """Whether transformed factors fit 16 bits, and outputs times what divides them 32."""
    const: Const = found.const
    every = found.filters
    reach = prod(max(sum(map(abs, row)) for row in f.of_input) for f in every.values())
    position = {const.axes.index(w.axis): f for w, f in every.items()}
    array = const.data.array
    if reach * most > LARGEST_FACTOR or transform_weights(position, array).dtype != np.int16:
        return False
    multiple = prod(f.denominator for f in every.values())
    bound = {d for d, c in found.weights.coords if getattr(c, "as_var", None) in found.nest.bound}
    summed = tuple(i for i, d in enumerate(const.axes) if d in bound)
    total = np.abs(array.astype(np.int64)).sum(axis=summed).max(initial=0)
    return int(total) * most * multiple <= LARGEST
