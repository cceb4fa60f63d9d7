"""The graph under construction: names, dims, constants, reads and nests.

Each axis of a new tensor gets a fresh dim, except that an axis of extent 1 gets none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod

import numpy as np

from rutc.importer.building.expressions import OperatorError, check_rank, elements_of, lit, literal
from rutc.importer.building.tensor import Axis, Item, Tensor, is_const, is_symbolic
from rutc.importer.free_sizes.overflow import LONGEST
from rutc.importer.free_sizes.pieces import Pieces
from rutc.importer.free_sizes.solutions import Solutions
from rutc.tensor_ir import (
    Const,
    Coord,
    Data,
    DType,
    Expr,
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
from rutc.tensor_ir.graph import outs
from rutc.tensor_ir.indices.affine import ONE, ZERO, FloorDiv, Range, product
from rutc.tensor_ir.indices.dim_ranges import dim_range

CoordLike = Coord | int | str

MAX_ELEMENTS = 1 << 40
"""No tensor may have more."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the import of a body stands: how many nodes there are, and what its checks tell."""

    nodes: int
    equal: Mapping[tuple[Index, Index], Index]
    strides: Mapping[tuple[Index, Index], Index]


@dataclass
class NestBuilder:
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
    any_ranks: bool = False
    """Whether axes that are left out where they have extent 1 may stay in other runs."""
    kept_axes: bool = False
    """Whether runs end in which axes have extent 1 that would be left out then."""
    scope: Mapping[str, Item] = field(default_factory=dict)
    run_graph: Callable[..., tuple[Item, ...]] | None = None
    equal: dict[tuple[Index, Index], Index] = field(default_factory=dict)
    """Extents that are checked to be equal where the import stands, as one; (e, e) has what stands
    for an extent of many sizes."""
    demanded: set[tuple[str, Index]] = field(default_factory=set)
    """The values whose element is checked to be a size."""
    checks: set[str] = field(default_factory=set)
    """The sizes that a run computes though nothing has them, as it ends where others differ."""
    alike: dict[str, tuple[Index, Index]] = field(default_factory=dict)
    """The sizes that stand for two extents that are checked to be equal."""
    pieces: dict[str, Pieces] = field(default_factory=dict)
    """The sizes that are one formula or another one, by what an input's size is."""
    longest_of: dict[str, Index] = field(default_factory=dict)
    """By the size of the longest of some parts: what that is never more than, and commonly is."""
    usual: dict[str, Index] = field(default_factory=dict)
    """What sizes commonly are that the program takes from data."""
    strides: dict[tuple[Index, Index], Index] = field(default_factory=dict)
    """What an index along the second extent is multiplied with to be one along the first."""
    open_sizes: dict[str, None] = field(default_factory=dict)
    """The inputs' sizes whose range nobody stated, in order."""
    told: dict[str, Index | Solutions] = field(default_factory=dict)
    """What the node that is being imported says of these."""
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
        limits = dim_range(extent, self.ranges)
        if limits is not None:
            self.ranges[name] = limits
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
            return self.empty(axes, body.dtype)
        dims = tuple(a.dim for a in bound if a.dim is not None)
        if not dims:
            (out,) = self.emit(axes, (body.dtype,), (), None, (body,), hint)
            return out
        kind = body.dtype
        wide = kind.computing if reduce in ("sum", "prod") else kind
        made = self.multi(axes, (cast(body, wide),), bound, reducer(reduce, wide), hint)[0]
        return self.as_type(made, kind)

    def as_type(self, t: Tensor, kind: DType) -> Tensor:
        """`t` with its elements converted to a type; itself if they are of it."""
        if t.dtype is kind:
            return t
        axes = self.axes(t.shape)
        return self.nest(axes, cast(self.read(t, [a.index for a in axes]), kind))

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
        return self.emit(axes, how.outputs, dims, how, bodies, hint)

    def emit(
        self,
        axes: Sequence[Axis],
        kinds: Sequence[DType],
        bound: tuple[str, ...],
        how: Reducer | None,
        bodies: tuple[Expr, ...],
        hint: str | None,
    ) -> tuple[Tensor, ...]:
        """One nest, whatever its dims: those of `axes`, and those of `bound` for the reducer."""
        size = product(a.extent for a in axes)
        bounds = size.bounds(_where_some(size, self.ranges))
        if bounds is not None and bounds[0] > MAX_ELEMENTS:
            raise OperatorError(f"a result of {size} elements is too large")
        named = tuple(sorted(a.dim for a in axes if a.dim is not None))
        outs = tuple(self.tensor(k, axes, hint) for k in kinds)
        values = tuple(Value(t.name, t.dtype, named) for t in outs)
        self.nodes.append(Nest(values, bound, how, bodies, self.origin))
        return outs

    def empty(self, axes: Sequence[Axis], dtype: DType) -> Tensor:
        """A tensor over axes of which one has no elements, or may have none."""
        extents = [a.extent for a in axes]
        if not all(e.is_const for e in extents):
            return self.emit(axes, (dtype,), (), None, (lit(0, dtype),), None)[0]
        shape = [e.const for e in extents]
        if prod(filter(None, shape)) > MAX_ELEMENTS:
            raise OperatorError(f"the shape {shape} is too large")
        array = np.empty(shape, dtype.numpy)
        return self.tensor(dtype, axes, None, array)

    # -- bodies ---------------------------------------------------------------------------------
    @contextmanager
    def body(self, nodes: list[Node]) -> Iterator[list[Node]]:
        """Collects what is emitted inside at the end of `nodes` (constants stay outside)."""
        outer, self.nodes = self.nodes, nodes
        self.depth += 1
        equal, strides = dict(self.equal), dict(self.strides)
        emitted = set(self.emitted)
        try:
            yield nodes
        finally:
            consts = {c.out.name for c in self.consts}
            self.emitted = emitted | {n for n in self.emitted if n in consts}
            self.nodes = outer
            self.depth -= 1
            self.equal, self.strides = equal, strides

    def defined(self, t: Tensor) -> Tensor:
        """`t`, its value defined even if it is known."""
        self._materialize(t)
        return t

    def place(self) -> Place:
        """Where the import of the body at hand stands, to come back to."""
        return Place(len(self.nodes), dict(self.equal), dict(self.strides))

    def restore(self, place: Place) -> None:
        """Drops the nodes that came after a place in the body at hand, and what they tell."""
        self.emitted -= {v.name for n in self.nodes[place.nodes :] for v in outs(n)}
        del self.nodes[place.nodes :]
        self.equal, self.strides = dict(place.equal), dict(place.strides)

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


def _where_some(size: Index, ranges: Mapping[str, Range]) -> dict[str, Range]:
    """The ranges of what a size follows from where none of it is 0."""
    known = ((n, ranges[n]) for n in size.names() if n in ranges)
    return {n: (max(low, 1), max(high, 1)) for n, (low, high) in known}
