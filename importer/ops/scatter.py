"""Operators that write at computed places."""

from __future__ import annotations

from collections.abc import Sequence

from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import OperatorError, lit
from rutc.importer.building.tensor import Axis, Tensor
from rutc.importer.ops.fit import of_shape
from rutc.importer.ops.operands import axis_of, static
from rutc.importer.ops.positions import column, position_in
from rutc.importer.ops.reshape import reshape
from rutc.importer.ops.size_operands import bound, checked, number, sizes
from rutc.importer.registry import operator
from rutc.tensor_ir import Coord, DType, Expr, Index, IndexValue, Scatter, apply, cast, reducer
from rutc.tensor_ir.indices.affine import ONE, ZERO, product

_REDUCERS = {"none": None, "add": "sum", "mul": "prod", "max": "max", "min": "min"}


def scattered(
    b: Builder,
    base: Tensor,
    space: Sequence[Axis],
    coords: Sequence[Coord],
    element: Expr,
    reduction: str = "none",
) -> Tensor:
    """A copy of `base` with `element`, over `space`, combined into it at `coords`."""
    if reduction not in _REDUCERS:
        raise OperatorError(f"reduction {reduction!r} is unknown")
    name = _REDUCERS[reduction]
    if base.dtype is DType.STRING and name is not None:
        raise OperatorError(f"strings cannot be combined (reduction {reduction!r})")
    if base.dtype is DType.BOOL and name is not None:
        name = "any" if reduction in ("add", "max") else "all"
    # An axis of extent 1 needs a dim where a coordinate along it may miss its only element.
    axes = [
        Axis(b.dim(e), e) if e == ONE and not _stays(b, c) else b.axis(e)
        for e, c in zip(base.shape, coords, strict=True)
    ]
    copy = b.relabelled(base, axes)
    if any(a.extent == ZERO for a in (*space, *axes)):
        return copy
    placed = [(a.dim, c) for a, c in zip(axes, coords, strict=True) if a.dim is not None]
    placed.sort(key=lambda dc: dc[0])
    dims = tuple(a.dim for a in space if a.dim is not None)
    how = reducer(name, base.dtype) if name is not None else None
    out = b.value(b.tensor(base.dtype, axes))
    b.nodes.append(Scatter(out, copy.name, dims, tuple(placed), how, element, b.origin))
    units = tuple(a.dim for a in axes if a.dim is not None and a.extent == ONE)
    seen = tuple(Axis(None, ONE) if a.extent == ONE else a for a in axes)
    return Tensor(out.name, base.dtype, seen, None, units)


def _stays(b: Builder, c: Coord) -> bool:
    """Whether a coordinate is always that of the only element."""
    return isinstance(c, Index) and b.inside(c, ONE)


@operator("ScatterElements")
def scatter_elements(
    b: Builder, x: Tensor, at: Tensor, updates: Tensor, *, axis: int = 0, reduction: str = "none"
) -> Tensor:
    """x with updates[i, j, ..] at [at[i, j, ..], j, ..] along an axis."""
    a = axis_of(axis, x.rank)
    updates = of_shape(b, updates, at.shape, f"is scattered into {x}")
    space = b.axes(at.shape)
    here = [i.index for i in space]
    coords: list[Coord] = list(here)
    coords[a] = position_in(b, at, here, x.shape[a])
    return scattered(b, x, space, coords, b.read(updates, here), reduction)


@operator("ScatterND")
def scatter_nd(
    b: Builder, x: Tensor, at: Tensor, updates: Tensor, *, reduction: str = "none"
) -> Tensor:
    """x with updates[.., j] at [at[.., :], j]."""
    depth = static(at.shape[-1], "the last extent of the indices")
    if depth > x.rank:
        raise OperatorError(f"the indices {at} have more coordinates than {x} has axes")
    wanted = (*at.shape[:-1], *x.shape[depth:])
    updates = of_shape(b, updates, wanted, f"is scattered into {x}")
    space = b.axes(updates.shape)
    outer = [i.index for i in space[: at.rank - 1]]
    coords = [position_in(b, column(b, at, k), outer, x.shape[k]) for k in range(depth)]
    coords += [i.index for i in space[at.rank - 1 :]]
    return scattered(b, x, space, coords, b.spread(updates, space), reduction)


@operator("TensorScatter")
def tensor_scatter(
    b: Builder,
    past: Tensor,
    update: Tensor,
    write_indices: Tensor | None = None,
    *,
    axis: int = -2,
    mode: str = "linear",
) -> Tensor:
    """past with update written along an axis from write_indices[batch] on (a cache's update)."""
    a = axis_of(axis, past.rank)
    shape = [update.shape[a] if k == a else e for k, e in enumerate(past.shape)]
    update = of_shape(b, update, shape, f"is written to {past}")
    space = b.axes(update.shape)
    coords: list[Coord] = [i.index for i in space]
    place: Expr = IndexValue(space[a].index)
    if write_indices is not None:
        role = f"says for each batch of {past} where to write"
        write_indices = of_shape(b, write_indices, past.shape[:1], role)
        here, room = space[0].index, past.shape[a] - update.shape[a] + 1
        if mode == "circular":
            start = cast(b.read(write_indices, [here]), DType.I64)
        else:
            first = position_in(b, write_indices, [here], room, signed=False)
            start = IndexValue(first) if isinstance(first, Index) else first
        place = apply("add", start, place)
    if mode == "circular":
        place = apply("mod", place, IndexValue(past.shape[a]))
    coords[a] = place
    return scattered(b, past, space, coords, b.spread(update, space))


@operator("MaxUnpool")
def max_unpool(
    b: Builder,
    x: Tensor,
    at: Tensor,
    output_shape: Tensor | None = None,
    *,
    kernel_shape: Sequence[int],
    pads: Sequence[int] = (),
    strides: Sequence[int] = (),
) -> Tensor:
    """Zeros with the elements of x at the flat indices that MaxPool gave."""
    rank = len(kernel_shape)
    step = tuple(strides) or (1,) * rank
    edge = tuple(pads) or (0,) * (2 * rank)
    inferred = [
        (e - 1) * s + k - edge[i] - edge[i + rank]
        for i, (e, s, k) in enumerate(zip(x.shape[2:], step, kernel_shape, strict=True))
    ]
    small = (*x.shape[:2], *inferred)
    shape = tuple(map(Index.of, small))
    if output_shape is not None:
        given = sizes(b, output_shape, "output_shape", 0, x.rank)
        shape = tuple(_at_least(b, n, o) for n, o in zip(given, shape, strict=True))
    axes = b.axes((product(shape),))
    zeros = b.nest(axes, lit(0, x.dtype))
    space = b.axes(x.shape)
    here = [i.index for i in space]
    flat_at = position_in(b, at, here, product(small), signed=False)
    position = IndexValue(flat_at) if isinstance(flat_at, Index) else flat_at
    if tuple(shape) != tuple(small):
        position = _moved(position, small, shape)
    flat = scattered(b, zeros, space, [position], b.read(x, here))
    return reshape(b, flat, shape)


def _at_least(b: Builder, given: Index, inferred: Index) -> Index:
    """An extent that is given, or the end of the run where it has no room for what is known."""
    room = (given - inferred).bounds(b.ranges)
    if room is not None and room[0] >= 0:
        return given
    why = f"output_shape asks for {given} elements along an axis that is unpooled to {inferred}"
    if room is not None and room[1] < 0:
        raise OperatorError(why)
    enough = apply("ge", number(given), number(inferred))
    return bound(b, checked(b, number(given), enough, why), "extent")


def _moved(position: Expr, old: Sequence[Index], new: Sequence[Index]) -> Expr:
    """A flat position in a tensor of shape `old` as one in a tensor of shape `new`."""
    moved: Expr = lit(0, DType.I64)
    scale = ONE
    for o, n in zip(reversed(old), reversed(new), strict=True):
        part = apply("mod", position, IndexValue(o))
        moved = apply("add", moved, apply("mul", part, IndexValue(scale)))
        position = apply("div", position, IndexValue(o))
        scale = scale * n
    return moved
