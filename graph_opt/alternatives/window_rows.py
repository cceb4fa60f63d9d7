"""Windows of few channels, laid so that the products of a row of taps lie side by side.

Registers for matrices multiply many neighbours at a time. A picture has three channels: too few.
But those of neighbouring taps follow them, once channels are the innermost dim:

    %y{n,h,w} = sum{c,i,j} %x[c, y=2*h + i - 3, z=2*w + j - 3 else 0] * %k[n, c, i, j]

      ->  %x.hi{y,q} = bf16(%x[c=q % 4, y, z=q // 4 - 3 else 0])
          %k.hi{n,i,t} = bf16(%k[n, c=t % 4, i, j=t // 4]), 0 where there is no such channel
          %y{n,h,w} = sum{i,t} f32(%x.hi[y=2*h + i - 3, q=8*w + t else 0]) * f32(%k.hi[n, i, t])

Channels are made a power of two, with zeros: nothing of a neighbouring window is ever multiplied,
so that an infinity there changes nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from rutc.base.record import record
from rutc.graph_opt.bf16_parts import parts_of
from rutc.graph_opt.editor import Editor
from rutc.graph_opt.exprs import index_coords
from rutc.tensor_ir import Cast, Const, Data, DType, Index, Lit, Nest, Node, Read, Value, apply

MOST_CHANNELS = 8
"""Channels that are laid side by side, zeros included."""
ZERO = Lit(0.0, DType.F32)


@record
class Taps:
    """Taps of a window that lie side by side: `number` along the loop `tap`, of `each` channels.

    The value has the channels along `of`, read at the loop `channel`, and is read along `dim` at
    `step` times the loop `along`, plus the tap and `offset`.
    """

    tap: str
    number: int
    channel: str
    of: str
    channels: int
    each: int
    dim: str
    along: str
    step: int
    offset: int

    @property
    def products(self) -> int:
        """How many lie side by side, zeros included."""
        return self.number * self.each

    def places(self, editor: Editor) -> int:
        """How many lie side by side in a row of the value that windows are read of."""
        return (self.step * (editor.extents[self.along].value - 1) + self.number) * self.each

    def copied(self, source: Read, editor: Editor) -> int:
        """Elements of the value that windows are read of, at common sizes."""
        others = (d for d, _ in source.coords if d not in (self.dim, self.of))
        return editor.typical(others) * self.places(editor)


def longest_row(
    n: Nest, source: Read, weights: Read, length: Callable[[int], int], editor: Editor
) -> Taps | None:
    """The longest row of taps that there is; None if none has a `length` that registers take.

    Sizes of what is copied have to be known.
    """
    coords = index_coords(source)
    weighed = {c.as_var for _, c in index_coords(weights)}
    plain = [(d, v) for d, c in coords if (v := c.as_var) in n.bound and v in weighed]
    found: list[Taps] = []
    for of, channel in plain:
        for dim, c in coords:
            for tap in sorted(c.names() & weighed & {*n.bound}):
                taps = _taps(n, of, str(channel), dim, c, tap, length, editor)
                if taps is not None:
                    found.append(taps)
    return max(found, key=lambda t: t.products, default=None)


def _taps(
    n: Nest,
    of: str,
    channel: str,
    dim: str,
    c: Index,
    tap: str,
    length: Callable[[int], int],
    editor: Editor,
) -> Taps | None:
    along = c.names() - {tap}
    number, channels = editor.size((tap,)), editor.size((channel,))
    if dim == of or len(along) != 1 or not number or not channels or not along <= {*n.out.dims}:
        return None
    (var,) = along
    step = c.coefficient(var)
    if c.coefficient(tap) != 1 or not step or step < 0 or editor.size((var, dim)) is None:
        return None
    rest = c - Index.of(tap) - Index.of(var) * step
    # Vectors then begin with a tap, and have each channel at the same lanes.
    powers = (2 << k for k in range(MOST_CHANNELS.bit_length() - 1))
    each = next((e for e in powers if e >= channels and length(number * e)), None)
    if not rest.is_const or each is None:
        return None
    return Taps(tap, number, channel, of, channels, each, dim, var, step, rest.value)


def in_rows(
    n: Nest, source: Read, weights: Read, const: Const, taps: Taps, editor: Editor
) -> Iterator[Node]:
    """The nodes in the place of a sum: both factors in bf16, in rows of taps, and their sum."""
    place = editor.fresh_dim("q", Index.of(taps.places(editor)))
    row = editor.fresh_dim("taps", Index.of(taps.products))
    at = {
        taps.of: Index.of(place) % taps.each,
        taps.dim: Index.of(place) // taps.each + taps.offset,
    }
    dims = [d for d, _ in source.coords if d not in at]
    coords = tuple((d, editor.simplify(at.get(d, Index.of(d)))) for d, _ in source.coords)
    high = Value(
        editor.fresh_value(f"{source.value}.hi"), DType.BF16, tuple(sorted((*dims, place)))
    )
    taken = Read(source.value, coords, DType.F32, ZERO)
    yield Nest((high,), (), None, (Cast(taken, DType.BF16),))
    own = _weights(weights, const, taps, row, editor)
    yield own
    along = Index.of(taps.along) * (taps.step * taps.each) + Index.of(row)
    places = tuple(sorted((*((d, c) for d, c in source.coords if d in dims), (place, along))))
    fill = None if source.fill is None else Lit(0.0, DType.BF16)
    read = Read(high.name, places, DType.BF16, fill)
    others = ((d, c) for d, c in weights.coords if d in own.out.dims)
    weight = Read(own.out.name, tuple(sorted((*others, (row, Index.of(row))))), DType.BF16)
    product = apply("mul", Cast(read, DType.F32), Cast(weight, DType.F32))
    bound = tuple(d for d in n.bound if d not in (taps.tap, taps.channel))
    yield replace(n, bound=(*bound, row), body=(product,))


def _weights(weights: Read, const: Const, taps: Taps, row: str, editor: Editor) -> Const:
    """The weights in the order of rows of taps, zeros where there is no channel."""
    dims = {str(c.as_var): d for d, c in index_coords(weights)}
    last = dims[taps.tap], dims[taps.channel]
    axes = [d for d in const.axes if d not in last]
    order = [const.axes.index(d) for d in (*axes, *last)]
    array = const.data.array.transpose(order)
    pads = [(0, 0)] * (array.ndim - 1) + [(0, taps.each - taps.channels)]
    flat = np.pad(array, pads).reshape(*array.shape[:-2], taps.products)
    (rounded,) = parts_of(flat, 1)
    name = editor.fresh_value(f"{weights.value}.hi")
    out = Value(name, DType.BF16, tuple(sorted((*axes, row))))
    return Const(out, (*axes, row), Data(rounded), const.origin)
