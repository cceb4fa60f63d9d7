"""What the operator functions build with: fresh dims and values, reads, nests.

Every method takes and returns `Tensor`s, whose axes are positional. Each axis of a new tensor gets
a fresh dim, except that an axis of extent 1 gets none. `dims` unifies and names the dims later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rutc.importer.building.broadcast import broadcast, broadcast_to
from rutc.importer.building.expressions import KnownSizesError, OperatorError, check_rank, lit
from rutc.importer.building.nest_builder import CoordLike
from rutc.importer.building.size_builder import SizeBuilder
from rutc.importer.building.tensor import Axis, Item, Shape, Tensor, is_const, shape_text
from rutc.tensor_ir import Attribute, Call, DType, Expr, Index, Lit, cast
from rutc.tensor_ir.indices.affine import ONE, ZERO

ExprFunction = Callable[..., Expr]


@dataclass
class Builder(SizeBuilder):
    """The graph under construction, with what operators say of tensors."""

    def map(
        self, fn: ExprFunction, *operands: Tensor, hint: str | None = None, onto: bool = False
    ) -> Tensor:
        """`fn` of the operands' elements, broadcast to each other as numpy does.

        With `onto` the result has the first operand's shape, to which the others are broadcast.
        """
        shapes = [t.shape for t in operands]
        shape = self.broadcast_to(shapes[0], *shapes[1:]) if onto else self.broadcast(shapes)
        axes = self.axes(shape)
        return self.nest(axes, fn(*(self.spread(t, axes) for t in operands)), hint=hint)

    def wide(self, fn: ExprFunction, *operands: Tensor, onto: bool = False) -> Tensor:
        """`map`, narrow floats computed with in f32 and rounded once, to the first's type."""
        kind = operands[0].dtype

        def widened(*elements: Expr) -> Expr:
            return cast(fn(*(cast(e, e.dtype.computing) for e in elements)), kind)

        return self.map(widened, *operands, onto=onto)

    def spread(self, t: Tensor, axes: Sequence[Axis]) -> Expr:
        """The element of `t`, broadcast to `axes`, at their dims."""
        last = axes[len(axes) - t.rank :]
        return self.read(t, [self.along(a, x) for a, x in zip(t.axes, last, strict=True)])

    def along(self, own: Axis, axis: Axis) -> Index:
        """The coordinate on an operand's axis that belongs to an axis to which it is broadcast."""
        if own.extent == ONE:
            return ZERO
        stride = self.strides.get((own.extent, axis.extent))
        return axis.index if stride is None else axis.index * stride

    def broadcast(self, shapes: Sequence[Shape]) -> Shape:
        """The shape that all broadcast to. Raises OperatorError where they do not."""
        found = broadcast(self, shapes)
        if found is None:
            texts = " and ".join(map(shape_text, shapes))
            raise KnownSizesError(f"shapes {texts} do not broadcast")
        return found

    def broadcast_to(self, whole: Shape, *shapes: Shape) -> Shape:
        """The shape `whole`. Raises OperatorError where one of the others does not fit it."""
        for shape in shapes:
            if not broadcast_to(self, shape, whole):
                texts = f"{shape_text(shape)} to {shape_text(whole)}"
                raise OperatorError(f"shapes do not broadcast: {texts}")
        return whole

    def view(
        self,
        t: Tensor,
        shape: Sequence[Index | int],
        coords: Callable[..., Sequence[CoordLike]],
        roles: Sequence[str] = (),
        fill: Lit | None = None,
    ) -> Tensor:
        """A tensor of `shape` whose element at (i, j, ..) is `t[coords(i, j, ..)]`."""
        axes = self.axes(shape, roles)
        if any(is_const(a.extent, 0) for a in axes):
            return self.empty(axes, t.dtype)
        at = coords(*(a.index for a in axes))
        return self.nest(axes, self.read(t, at, fill))

    def reshaped(self, t: Tensor, axes: Sequence[Axis]) -> Tensor:
        """`t` under other axes with the same dims in the same order (units put in or left out)."""
        check_rank(len(axes))
        kept = {a.dim for a in axes}
        left = [a.dim for a in t.axes if a.dim is not None and a.extent == ONE]
        t = replace(t, units=(*t.units, *(d for d in left if d not in kept)))
        shape = [a.extent.const for a in axes] if all(a.extent.is_const for a in axes) else None
        if t.known is not None and shape is not None:
            return replace(t, axes=tuple(axes), known=t.known.reshape(shape))
        return replace(t, axes=tuple(axes))

    def permuted(self, t: Tensor, order: Sequence[int]) -> Tensor:
        """`t` with its axes in another order; the value is the same, as its dims have no order."""
        known = None if t.known is None else t.known.transpose(order)
        return replace(t, axes=tuple(t.axes[i] for i in order), known=known)

    def subgraph(self, graph: object, inputs: Sequence[Item] = ()) -> tuple[Item, ...]:
        """The outputs of a nested graph, which sees the values of the one around it."""
        if self.run_graph is None:
            raise OperatorError("nested graphs cannot be imported here")
        return self.run_graph(graph, self.scope, inputs)

    def whole(self, t: Tensor) -> Tensor:
        """`t` with a dim for every axis, as a routine sees it; a copy where it lacks some."""
        lacking = sum(a.dim is None for a in t.axes)
        if t.known is None and len(t.units) == lacking:
            units = iter(t.units)
            named = (Axis(next(units), ONE) if a.dim is None else a for a in t.axes)
            return replace(t, axes=tuple(named), units=())
        axes = self.full_axes(t.shape)
        coords = [a.index if s.dim is not None else ZERO for a, s in zip(axes, t.axes, strict=True)]
        return self.emit(axes, (t.dtype,), (), None, (self.read(t, coords),), None)[0]

    def full_axes(self, shape: Sequence[Index | int]) -> tuple[Axis, ...]:
        """New axes for a shape, each with a dim, whatever its extent."""
        return tuple(Axis(self.dim(e), Index.of(e)) for e in shape)

    def call(
        self,
        routine: str,
        operands: Sequence[Tensor],
        results: Sequence[tuple[DType, Sequence[Axis]]],
        **attributes: Attribute,
    ) -> tuple[Tensor, ...]:
        """The results of a routine; operands and results need a dim for every axis."""
        outs = tuple(self.tensor(kind, axes) for kind, axes in results)
        self.nodes.append(
            Call(
                tuple(self.value(t) for t in outs),
                routine,
                tuple(t.name for t in operands),
                tuple(attributes.items()),
                self.origin,
                tuple(_dims(t.axes) for t in operands),
                tuple(_dims(t.axes) for t in outs),
            )
        )
        return outs

    def relabelled(self, t: Tensor, axes: Sequence[Axis]) -> Tensor:
        """A copy of `t` over exactly these axes; 0 where they are longer."""
        coords = [a.index if s.dim is not None else ZERO for a, s in zip(axes, t.axes, strict=True)]
        same = all(a.extent == s.extent for a, s in zip(axes, t.axes, strict=True))
        fill = None if same else lit(0, t.dtype)
        return self.nest(axes, self.read(t, coords, fill))


def _dims(axes: Sequence[Axis]) -> tuple[str, ...]:
    return tuple(a.dim for a in axes if a.dim is not None)
