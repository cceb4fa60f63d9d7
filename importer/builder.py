"""What the operator functions build with: fresh dims and values, reads, nests.

Every method takes and returns `Tensor`s, whose axes are positional. Each axis of a new tensor gets
a fresh dim, except that an axis of extent 1 gets none. `dims` unifies and names the dims later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from rutc.importer.broadcast import broadcast, broadcast_to
from rutc.importer.expressions import OperatorError, check_rank, elements_of, lit, literal
from rutc.importer.open_sizes import must_equal
from rutc.importer.overflow import LONGEST, equal
from rutc.importer.tensor import (
    Axis,
    Item,
    Shape,
    Tensor,
    ints_of,
    is_const,
    is_symbolic,
    shape_text,
)
from rutc.tensor_ir import (
    Attribute,
    Bind,
    Body,
    Call,
    Const,
    Coord,
    Data,
    DType,
    Expr,
    If,
    Index,
    IndexValue,
    Lit,
    Nest,
    Node,
    Read,
    Reducer,
    Value,
    apply,
    cast,
    reducer,
)
from rutc.tensor_ir.affine import ONE, ZERO, FloorDiv, Range, product
from rutc.tensor_ir.graph import outs

CoordLike = Coord | int | str
ExprFunction = Callable[..., Expr]


MAX_ELEMENTS = 1 << 40
"""No tensor may have more."""
MOST = (1 << 31) - 1
"""What a size that nothing else limits may be."""

MANY = 8
"""An extent of more symbolic sizes is computed once and is a size of its own: otherwise a kernel
that needs it is told all the sizes in it, and can be told so many only."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the import of a body stands: how many nodes there are, and what its checks tell."""

    nodes: int
    equal: Mapping[tuple[Index, Index], Index]
    steps: Mapping[tuple[Index, Index], Index]


@dataclass
class Builder:
    """The graph under construction, and the ONNX node that is being imported."""

    ranges: dict[str, Range] = field(default_factory=dict)
    extents: dict[str, Index] = field(default_factory=dict)
    roles: dict[str, str] = field(default_factory=dict)
    hints: dict[str, str] = field(default_factory=dict)
    consts: list[Const] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    emitted: set[str] = field(default_factory=set)
    origin: tuple[str, ...] = ()
    base: str = "v"
    outputs: tuple[str, ...] = ()
    scope: dict[str, Item] = field(default_factory=dict)
    run_graph: Callable[..., tuple[Item, ...]] | None = None
    equal: dict[tuple[Index, Index], Index] = field(default_factory=dict)
    """Extents that are checked to be equal where the import stands, as one; (e, e) has what stands
    for an extent of many sizes."""
    alike: dict[str, tuple[Index, Index]] = field(default_factory=dict)
    """The sizes that stand for two extents that are checked to be equal."""
    steps: dict[tuple[Index, Index], Index] = field(default_factory=dict)
    """What an index along the second extent is multiplied with to be one along the first."""
    open_sizes: dict[str, None] = field(default_factory=dict)
    """The inputs' sizes whose range nobody stated, in order."""
    depth: int = 0
    """How many bodies are around what is built."""
    bound: dict[str, Range] = field(default_factory=dict)
    """The sizes that the program computes, and their ranges."""
    _claimed: set[str] = field(default_factory=set)

    # -- names ----------------------------------------------------------------------------------
    def fresh(self, hint: str | None = None) -> str:
        """A new value name; `hint` is what it should be called in the end."""
        name = f"v{len(self.hints)}"
        self.hints[name] = hint or self.base
        return name

    def claim(self, name: str, hint: str) -> None:
        """Says what a value should be called in the end; the first to ask has it."""
        if name not in self._claimed:
            self._claimed.add(name)
            self.hints[name] = hint

    def dim(self, extent: Index | int, role: str = "") -> str:
        """A new dim of this extent; `role` is what it should be called in the end."""
        name = f"_{len(self.extents)}"
        extent = Index.of(extent)
        self.extents[name] = extent
        bounds = extent.bounds(self.ranges)
        largest = max(abs(extent.const), *(abs(c) for _, c in extent.terms), 0)
        if largest > LONGEST:
            told = f"the extent {extent}, which" if largest < 1 << 64 else "an extent that"
            raise OperatorError(f"an axis would get {told} is too large")
        if bounds is not None:
            if bounds[0] > LONGEST:
                raise OperatorError(f"an axis would get the extent {extent}, which is too large")
            if bounds[1] < 0:
                raise OperatorError(f"an axis would get the extent {extent}, which is negative")
            self.ranges[name] = (0, max(bounds[1] - 1, 0))
        if role:
            self.roles[name] = role
        return name

    def axis(self, extent: Index | int, role: str = "") -> Axis:
        """A new axis; one of extent 1 has no dim."""
        extent = Index.of(extent)
        return Axis(None if extent == ONE else self.dim(extent, role), extent)

    def axes(self, shape: Sequence[Index | int], roles: Sequence[str] = ()) -> tuple[Axis, ...]:
        """New axes for a shape."""
        padded = (*roles, *[""] * len(shape))[: len(shape)]
        return tuple(self.axis(e, r) for e, r in zip(shape, padded, strict=True))

    # -- constants ------------------------------------------------------------------------------
    def constant(self, array: np.ndarray, dtype: DType | None = None, hint: str = "") -> Tensor:
        """A tensor whose elements are known: numbers, or index expressions of type i64."""
        kind = dtype or DType.of(array.dtype)
        return self.tensor(kind, self.axes(array.shape), hint or None, array)

    def _materialize(self, t: Tensor) -> None:
        """Defines a known tensor's value unless that has happened."""
        if t.known is None or t.name in self.emitted:
            return
        self.emitted.add(t.name)
        named = [a.dim for a in t.axes if a.dim is not None]
        out = Value(t.name, t.dtype, tuple(sorted(named)))
        if not is_symbolic(t.known, t.dtype):
            extents = zip(t.known.shape, t.axes, strict=True)
            array = t.known.reshape([n for n, a in extents if a.dim is not None])
            origin = (self.hints[t.name],)
            self.consts.append(Const(out, tuple(named), Data(array), origin))
            return
        self.nodes.append(Nest((out,), (), None, (elements_of(t),), self.origin))

    # -- reading --------------------------------------------------------------------------------
    def read(self, t: Tensor, coords: Sequence[CoordLike], fill: Lit | None = None) -> Expr:
        """The element at `coords`, one for each axis; `fill` where it may fall outside.

        A `fill` that cannot be needed is dropped; a known scalar is read as a literal.
        """
        if len(coords) != t.rank:
            raise OperatorError(f"{len(coords)} coordinates for a tensor of rank {t.rank}")
        at = [Index.of(c) if isinstance(c, int | str) else c for c in coords]
        if fill is not None and all(
            isinstance(c, Index) and self.inside(c, a.extent)
            for c, a in zip(at, t.axes, strict=True)
        ):
            fill = None
        along: list[tuple[str, Coord]] = [(u, ZERO) for u in t.units]
        along += [(a.dim, c) for a, c in zip(t.axes, at, strict=True) if a.dim is not None]
        named = sorted(along, key=lambda dc: dc[0])
        element: Expr
        if t.known is not None and t.known.size == 1:
            element = literal(t.known.reshape(-1)[0], t.dtype)
        else:
            self._materialize(t)
            element = Read(t.name, tuple(named), t.dtype, fill if named else None)
        if fill is None:
            return element
        for a, c in zip(t.axes, at, strict=True):
            if a.dim is None and not (isinstance(c, Index) and self.inside(c, ONE)):
                place = IndexValue(c) if isinstance(c, Index) else cast(c, DType.I64)
                here = apply("eq", place, Lit(0, DType.I64))
                element = apply("select", here, element, fill)
        return element

    def inside(self, c: Index, extent: Index) -> bool:
        """Whether `c` provably lies in [0, extent)."""
        low = c.bounds(self.ranges)
        if low is None or low[0] < 0:
            return False
        if not c.is_const and c.as_var is not None and self.extents.get(c.as_var) == extent:
            return True
        match c.terms:
            case (((FloorDiv(part, by),), 1),) if c.const == 0 and part.as_var is not None:
                if self.extents.get(part.as_var) == extent * by:
                    return True
        room = (extent - 1 - c).bounds(self.ranges)
        return room is not None and room[0] >= 0

    # -- nests ----------------------------------------------------------------------------------
    def nest(
        self,
        axes: Sequence[Axis],
        body: Expr,
        bound: Sequence[Axis] = (),
        reduce: str = "sum",
        hint: str | None = None,
    ) -> Tensor:
        """One nest over `axes`: `body`, or with `bound` axes its reduction over them."""
        if any(is_const(a.extent, 0) for a in axes):
            return self._empty(axes, body.dtype)
        dims = tuple(a.dim for a in bound if a.dim is not None)
        if not dims:
            (out,) = self._emit(axes, (body.dtype,), (), None, (body,), hint)
            return out
        kind = body.dtype
        wide = computing(kind) if reduce in ("sum", "prod") else kind
        made = self.multi(axes, (cast(body, wide),), bound, reducer(reduce, wide), hint)[0]
        return made if wide is kind else self.map(lambda x: cast(x, kind), made)

    def multi(
        self,
        axes: Sequence[Axis],
        bodies: tuple[Expr, ...],
        bound: Sequence[Axis],
        how: Reducer,
        hint: str | None = None,
    ) -> tuple[Tensor, ...]:
        """One nest of a reducer with several elements or outputs."""
        dims = tuple(a.dim for a in bound if a.dim is not None)
        return self._emit(axes, how.outputs, dims, how, bodies, hint)

    def _emit(
        self,
        axes: Sequence[Axis],
        kinds: Sequence[DType],
        bound: tuple[str, ...],
        how: Reducer | None,
        bodies: tuple[Expr, ...],
        hint: str | None,
    ) -> tuple[Tensor, ...]:
        size = product(a.extent for a in axes)
        bounds = size.bounds(_where_some(size, self.ranges))
        if bounds is not None and bounds[0] > MAX_ELEMENTS:
            raise OperatorError(f"a result of {size} elements is too large")
        named = tuple(sorted(a.dim for a in axes if a.dim is not None))
        outs = tuple(self.tensor(k, axes, hint) for k in kinds)
        values = tuple(Value(t.name, t.dtype, named) for t in outs)
        self.nodes.append(Nest(values, bound, how, bodies, self.origin))
        return outs

    def _empty(self, axes: Sequence[Axis], dtype: DType) -> Tensor:
        extents = [a.extent for a in axes]
        if not all(e.is_const for e in extents):
            nothing = Lit("", dtype) if dtype is DType.STRING else lit(0, dtype)
            return self._emit(axes, (dtype,), (), None, (nothing,), None)[0]
        shape = [e.const for e in extents]
        if prod(filter(None, shape)) > MAX_ELEMENTS:
            raise OperatorError(f"the shape {shape} is too large")
        array = np.empty(shape, dtype.numpy)
        return self.tensor(dtype, axes, None, array)

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

    def wide(
        self, fn: ExprFunction, *operands: Tensor, hint: str | None = None, onto: bool = False
    ) -> Tensor:
        """`map`, narrow floats computed with in f32 and rounded once, to the first's type."""
        kind = operands[0].dtype

        def widened(*elements: Expr) -> Expr:
            return cast(fn(*(cast(e, computing(e.dtype)) for e in elements)), kind)

        return self.map(widened, *operands, hint=hint, onto=onto)

    def spread(self, t: Tensor, axes: Sequence[Axis]) -> Expr:
        """The element of `t`, broadcast to `axes`, at their dims."""
        last = axes[len(axes) - t.rank :]
        return self.read(t, [self.along(a, x) for a, x in zip(t.axes, last, strict=True)])

    def along(self, own: Axis, axis: Axis) -> Index:
        """The coordinate on an operand's axis that belongs to an axis to which it is broadcast."""
        if own.extent == ONE:
            return ZERO
        return axis.index * self.steps.get((own.extent, axis.extent), ONE)

    def broadcast(self, shapes: Sequence[Shape]) -> Shape:
        """The shape that all broadcast to. Raises OperatorError where they do not."""
        found = broadcast(self, shapes)
        if found is None:
            texts = " and ".join(map(shape_text, shapes))
            raise OperatorError(f"shapes {texts} do not broadcast")
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
            return self._empty(axes, t.dtype)
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

    # -- bodies ---------------------------------------------------------------------------------
    @contextmanager
    def body(self, nodes: list[Node]) -> Iterator[list[Node]]:
        """Collects what is emitted inside at the end of `nodes` (constants stay outside)."""
        outer, self.nodes = self.nodes, nodes
        self.depth += 1
        equal, steps = dict(self.equal), dict(self.steps)
        emitted = set(self.emitted)
        try:
            yield nodes
        finally:
            consts = {c.out.name for c in self.consts}
            self.emitted = emitted | {n for n in self.emitted if n in consts}
            self.nodes = outer
            self.depth -= 1
            self.equal, self.steps = equal, steps

    def defined(self, t: Tensor) -> Tensor:
        """`t`, its value defined even if it is known."""
        self._materialize(t)
        return t

    def place(self) -> Place:
        """Where the import of the body at hand stands, to come back to."""
        return Place(len(self.nodes), dict(self.equal), dict(self.steps))

    def restore(self, place: Place) -> None:
        """Drops the nodes that came after a place in the body at hand, and what they tell."""
        self.emitted -= {v.name for n in self.nodes[place.nodes :] for v in outs(n)}
        del self.nodes[place.nodes :]
        self.equal, self.steps = dict(place.equal), dict(place.steps)

    def subgraph(self, graph: object, inputs: Sequence[Item] = ()) -> tuple[Item, ...]:
        """The outputs of a nested graph, which sees the values of the one around it."""
        if self.run_graph is None:
            raise OperatorError("nested graphs cannot be imported here")
        return self.run_graph(graph, self.scope, inputs)

    def tensor(
        self,
        dtype: DType,
        axes: Sequence[Axis],
        hint: str | None = None,
        known: np.ndarray | None = None,
    ) -> Tensor:
        """A tensor of a new value that the caller defines.

        Raises OperatorError for too many axes.
        """
        check_rank(len(axes))
        return Tensor(self.fresh(hint), dtype, tuple(axes), known)

    def value(self, t: Tensor) -> Value:
        """The graph's value of a tensor."""
        return Value(t.name, t.dtype, tuple(sorted(a.dim for a in t.axes if a.dim is not None)))

    def size(self, t: Tensor, role: str, most: int = MOST, least: int = 0) -> Index:
        """The i64 scalar `t` as a size, which the program learns when it runs.

        Raises OperatorError where it is known and lies outside of [least, most], or no scalar.
        """
        if any(e.is_const and e != ONE for e in t.shape):
            raise OperatorError(f"the size {role} must be one element, not {t}")
        if t.known is not None:
            (size,) = ints_of(t.known)
            if size.is_const and not least <= size.const <= most:
                raise OperatorError(f"the size {role} is {size}, outside of {least}..{most}")
            return size
        symbol, count = role, 1
        while symbol in self.ranges or symbol in self.extents:
            count += 1
            symbol = f"{role}{count}"
        self.ranges[symbol] = self.bound[symbol] = (least, most)
        scalar = self.nest((), self.read(t, [0] * t.rank))
        out = self.tensor(DType.I64, (), symbol)
        self.nodes.append(Bind(self.value(out), symbol, scalar.name, self.origin))
        return Index.of(symbol)

    def count(self, t: Tensor, role: str, most: int) -> Index:
        """The i64 scalar `t`, which is at most `most` in every run, as a size."""
        return self.size(t, role, most) if most > 0 else Index.of(0)

    def same(self, a: Index, b: Index) -> Index:
        """Two extents that must be equal, as one; a run in which they differ ends.

        Raises OperatorError where they are known to differ.
        """
        if a == b:
            return a
        if a.is_const and b.is_const:
            raise OperatorError(f"the extents {a} and {b} differ")
        for known in (self.equal.get((a, b)), self.equal.get((b, a))):
            if known is not None:
                return known
        must_equal(self, a, b)
        fits = equal(a, b, self.ranges)
        out = self.unless_failed(IndexValue(a), fits, f"the sizes {a} and {b} differ")
        limits = [x.bounds(self.ranges) for x in (a, b)]
        least = max(x[0] if x is not None else 0 for x in limits)
        most = min(x[1] if x is not None else MOST for x in limits)
        made = self.size(out, "same", max(min(most, LONGEST), least, 0), max(least, 0))
        self.equal |= {(a, b): made, (a, made): made, (b, made): made}
        if made.as_var is not None:
            self.alike[made.as_var] = a, b
        return made

    def total(self, extent: Index) -> Index:
        """An extent; one of many sizes as a size of its own, which the program computes first."""
        if len(extent.names()) <= MANY:
            return extent
        if (extent, extent) not in self.equal:
            least, most = extent.bounds(self.ranges) or (0, LONGEST)
            found = self.nest((), IndexValue(extent))
            made = self.size(found, "total", min(most, LONGEST), max(least, 0))
            self.equal[extent, extent] = made
            if made.as_var is not None:
                self.alike[made.as_var] = extent, extent
        return self.equal[extent, extent]

    def number(self, extent: Index, value: int, what: str) -> int:
        """`value`, which an extent must be. Raises OperatorError where it is not known to be."""
        if extent != Index.of(value):
            if not extent.is_const:
                must_equal(self, extent, Index.of(value))
            raise OperatorError(f"{what} is {extent}, not {value}")
        return value

    def unless_failed(self, value: Expr, ok: Expr, message: str) -> Tensor:
        """The scalar `value`, or the end of the run with a message where `ok` does not hold."""
        chosen = self.nest((), ok)
        with self.body([]) as nodes:
            kept = self.defined(self.nest((), value))
        lost, out = self.tensor(value.dtype, ()), self.tensor(value.dtype, ())
        told = (("message", f"{', '.join(self.origin)}: {message}"),)
        fail = Call((self.value(lost),), "fail", (), told, self.origin)
        then, orelse = Body(tuple(nodes), (kept.name,)), Body((fail,), (lost.name,))
        self.nodes.append(If((self.value(out),), chosen.name, then, orelse, self.origin))
        return out

    def whole(self, t: Tensor) -> Tensor:
        """`t` with a dim for every axis, as a routine sees it; a copy where it lacks some."""
        if t.known is None and not t.units and all(a.dim is not None for a in t.axes):
            return t
        axes = self.full_axes(t.shape)
        coords = [a.index if s.dim is not None else ZERO for a, s in zip(axes, t.axes, strict=True)]
        return self._emit(axes, (t.dtype,), (), None, (self.read(t, coords),), None)[0]

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


def _where_some(size: Index, ranges: Mapping[str, Range]) -> dict[str, Range]:
    """The ranges of what a size follows from where none of it is 0."""
    known = ((n, ranges[n]) for n in size.names() if n in ranges)
    return {n: (max(low, 1), max(high, 1)) for n, (low, high) in known}


def _dims(axes: Sequence[Axis]) -> tuple[str, ...]:
    return tuple(a.dim for a in axes if a.dim is not None)


def computing(kind: DType) -> DType:
    """The type in which several operations on elements of a type are chained."""
    return DType.F32 if kind.is_float and kind.bits < 32 else kind
