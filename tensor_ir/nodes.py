"""The nodes of graphs, and what they define, use and hold; `graph` says what they mean."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import TypeVar, assert_never

import numpy as np

from rutc.base.record import record
from rutc.tensor_ir.affine import Index
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.expr import Coord, Expr, Read, indices, operations, read_values, reads
from rutc.tensor_ir.reducer import Reducer

Origin = tuple[str, ...]
T = TypeVar("T")


@record
class Value:
    """A named value with its element type and its dims, sorted by name."""

    name: str
    dtype: DType
    dims: tuple[str, ...]

    def __post_init__(self) -> None:
        if tuple(sorted(set(self.dims))) != self.dims:
            raise ValueError(f"dims of %{self.name} are not sorted and distinct: {self.dims}")


SAMPLES, FEW = 64, 16
"""Elements of an array by which it is told from most others, and those that text is made of."""


class Data:
    """An immutable array that compares and hashes by content.

    One that is computed of others may be forgotten by who asks for it last, and may be made no
    sooner than somebody asks for it: then it hashes by what it is computed of.
    """

    def __init__(self, array: np.ndarray, again: Callable[[], np.ndarray] | None = None) -> None:
        """Of an array, which is not to be changed; `again` makes an equal one."""
        array.flags.writeable = False
        self.__dict__["array"] = array
        self._again = again

    @classmethod
    def later(
        cls,
        name: Hashable,
        shape: tuple[int, ...],
        dtype: np.dtype,
        again: Callable[[], np.ndarray],
    ) -> Data:
        """An array of finite floats that `again` makes: another one for each other name."""
        data = cls.__new__(cls)
        known = {"shape": shape, "dtype": dtype, "is_finite": True, "_sample": (name,)}
        data.__dict__.update(known, _again=again, _name=name)
        return data

    _name: Hashable = None
    """What it is computed of, and how, where that tells it from others."""

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The extents of its axes."""
        return self.array.shape

    @cached_property
    def dtype(self) -> np.dtype:
        """The type of its elements."""
        return self.array.dtype

    @property
    def few(self) -> str:
        """Some of its elements as text, or its name."""
        if self._name is not None:
            return repr(hash(self._name))
        flat, size = self.array.flat, self.array.size
        return str([flat[i] for i in range(0, size, max(1, size // FEW))])

    @cached_property
    def array(self) -> np.ndarray:
        """The elements, which are made again if they were forgotten."""
        assert self._again is not None, "what cannot be made again is not forgotten"
        array = self._again()
        array.flags.writeable = False
        return array

    def forget(self) -> None:
        """Frees the memory of an array that can be made again."""
        if self._again is not None:
            self.__dict__.pop("array", None)

    def __reduce__(self) -> tuple[type[Data], tuple[np.ndarray]]:
        return Data, (self.array,)

    def __repr__(self) -> str:
        return f"Data(array={self.array!r})"

    @cached_property
    def digest(self) -> str:
        """A hash of dtype, shape and bytes."""
        h = hashlib.blake2b(f"{self.array.dtype} {self.array.shape} ".encode(), digest_size=16)
        if self.array.dtype == object:
            h.update(repr(self.array.tolist()).encode())
        else:
            h.update(np.ascontiguousarray(self.array).view(np.uint8).data)
        return h.hexdigest()

    @cached_property
    def is_finite(self) -> bool:
        """Whether all elements are known to be finite numbers."""
        if self.array.dtype.kind != "f" or self.array.size == 0:
            return self.array.dtype.kind in "iub"
        return bool(np.isfinite(self.array.min()) and np.isfinite(self.array.max()))

    @cached_property
    def largest(self) -> float:
        """The largest magnitude of the finite elements of an array of floats; 0 without any."""
        if self.is_finite and self.array.size:
            return float(max(abs(self.array.min()), abs(self.array.max())))
        finite = self.array[np.isfinite(self.array)]
        return float(np.abs(finite).max(initial=0))

    def once(self, name: Hashable, find: Callable[[np.ndarray], T]) -> T:
        """What a function finds in the array: it is called once for each name.

        Plans of one graph in several assignments ask for the same of its constants.
        """
        known: dict[Hashable, T] = self.__dict__.setdefault("_found", {})
        if name not in known:
            known[name] = find(self.array)
        return known[name]

    def rounded(self, dtype: np.dtype) -> Data:
        """The array in a type of floats with fewer bits, to the nearest, ties to even."""

        def found(array: np.ndarray) -> Data:
            with np.errstate(over="ignore"):
                made = Data(array.astype(dtype))
            # Of a type that is not numpy's own it is not known otherwise.
            made.__dict__["is_finite"] = self.is_finite and bool(np.isfinite(made.array).all())
            return made

        return self.once(("rounded", dtype), found)

    def in_steps(self, axes: tuple[int, ...]) -> tuple[Data, Data]:
        """The array as whole numbers of steps, of up to 127, and the steps' sizes along these axes.

        Numbers are rounded to the nearest, ties to even; all have to be finite.
        """

        def found(array: np.ndarray) -> tuple[Data, Data]:
            others = tuple(i for i in range(array.ndim) if i not in axes)
            low = array.min(axis=others, keepdims=True, initial=0)
            high = array.max(axis=others, keepdims=True, initial=0)
            largest = np.maximum(high, -low)
            steps = np.where(largest > 0, largest / np.float32(127), np.float32(1))
            numbers = np.clip(np.rint(array / steps), -127, 127).astype(np.int8)
            return Data(numbers), Data(steps.squeeze(others))

        return self.once(("in steps", axes), found)

    @cached_property
    def _sample(self) -> tuple[object, ...]:
        """What differs between most arrays that differ, and is read in no time."""
        flat = self.array.reshape(-1) if self.array.flags.c_contiguous else self.array.flat
        few = flat[:: max(1, self.array.size // SAMPLES)][:SAMPLES]
        elements = repr(few.tolist()) if self.array.dtype == object else np.array(few).tobytes()
        return str(self.array.dtype), self.array.shape, elements

    def __str__(self) -> str:
        """The elements on one line, those of a large array shortened."""
        return np.array2string(self.array, separator=", ", threshold=16, max_line_width=1 << 20)

    def __eq__(self, other: object) -> bool:
        if self is other or not isinstance(other, Data):
            return self is other
        if self._name is not None and other._name is not None:
            return self._name == other._name
        alike = self._sample == other._sample
        if self._name is not None or other._name is not None:
            alike = self.shape == other.shape and self.dtype == other.dtype
        return alike and (self._is_that_of(other) or self.digest == other.digest)

    def _is_that_of(self, other: Data) -> bool:
        """Whether both have one array, and have not forgotten it."""
        own = self.__dict__.get("array")
        return own is not None and own is other.__dict__.get("array")

    def __hash__(self) -> int:
        return hash(self._sample)


@record
class Input:
    """A model input: `name` and axis order are the interface; `fixed` what alone it may hold."""

    out: Value
    name: str
    axes: tuple[str, ...]
    origin: Origin = ()
    fixed: Data | None = None


@record
class Const:
    """A constant; `axes` names the axes of `data` in order."""

    out: Value
    axes: tuple[str, ...]
    data: Data
    origin: Origin = ()


@record
class Nest:
    """For all dims of the outputs, reduce `body` over `bound`. All outputs share their dims."""

    outs: tuple[Value, ...]
    bound: tuple[str, ...]
    reducer: Reducer | None
    body: tuple[Expr, ...]
    origin: Origin = ()

    @cached_property
    def operations(self) -> int:
        """The operations and casts of the body."""
        return sum(map(operations, self.body))

    @property
    def out(self) -> Value:
        """The first output."""
        return self.outs[0]

    @property
    def dims(self) -> tuple[str, ...]:
        """The iteration space: free dims, then bound dims."""
        return (*self.out.dims, *self.bound)

    @property
    def is_sum(self) -> bool:
        """Whether what is reduced is added up."""
        return self.reducer is not None and self.reducer.name == "sum"

    @property
    def is_view(self) -> bool:
        """Whether the body only reads: no arithmetic, no gather, no fill."""
        return (
            self.reducer is None
            and isinstance(self.body[0], Read)
            and self.body[0].fill is None
            and all(isinstance(c, Index) for _, c in self.body[0].coords)
        )


@record
class Carry:
    """One carried value: `param` is `init` in the first trip, later the last trip's `next`."""

    param: Value
    init: str
    next: str


@record
class Scan:
    """Trips over `dim` in order. `outs` are the carried values' last states, then the collected.

    A body value in `collected` of dims D becomes an output of dims D + {dim}.
    """

    outs: tuple[Value, ...]
    dim: str
    carries: tuple[Carry, ...]
    collected: tuple[str, ...]
    body: tuple[Node, ...]
    origin: Origin = ()


@record
class Body:
    """A branch: nodes and the values that it yields."""

    nodes: tuple[Node, ...]
    results: tuple[str, ...]


@record
class If:
    """`outs` are the results of one branch, chosen by the bool scalar `cond`."""

    outs: tuple[Value, ...]
    cond: str
    then: Body
    orelse: Body
    origin: Origin = ()


@record
class While:
    """Trips while the bool scalar `cond` (a carried parameter) holds; outputs the last states."""

    outs: tuple[Value, ...]
    cond: str
    carries: tuple[Carry, ...]
    body: tuple[Node, ...]
    origin: Origin = ()


@record
class Scatter:
    """`base` with `body`, for every point of `dims`, combined into the element at `coords`."""

    out: Value
    base: str
    dims: tuple[str, ...]
    coords: tuple[tuple[str, Coord], ...]
    reducer: Reducer | None
    body: Expr
    origin: Origin = ()


Attribute = int | float | str | tuple[int, ...]


@record
class Call:
    """A routine of the host runtime, for what is no loop nest (sorting, strings, ...).

    `arg_axes` and `out_axes` are the orders in which the routine sees the axes of its operands and
    results; by default operands have none, and results' are in the order of their sorted dims.
    """

    outs: tuple[Value, ...]
    routine: str
    args: tuple[str, ...]
    attributes: tuple[tuple[str, Attribute], ...] = ()
    origin: Origin = ()
    arg_axes: tuple[tuple[str, ...], ...] = ()
    out_axes: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        if not self.arg_axes:
            object.__setattr__(self, "arg_axes", ((),) * len(self.args))
        if not self.out_axes:
            object.__setattr__(self, "out_axes", tuple(v.dims for v in self.outs))


@record
class Bind:
    """The size `symbol` is the i64 scalar `value`, which `out` equals."""

    out: Value
    symbol: str
    value: str
    origin: Origin = ()


Node = Input | Const | Nest | Scan | If | While | Scatter | Call | Bind


def outs(n: Node) -> tuple[Value, ...]:
    """The values that a node gives to the nodes after it."""
    if isinstance(n, Nest):
        return n.outs
    match n:
        case Input() | Const() | Scatter() | Bind():
            return (n.out,)
        case Scan() | If() | While() | Call():
            return n.outs
        case _:
            assert_never(n)


def bodies(n: Node) -> tuple[tuple[Node, ...], ...]:
    """The node lists nested in a node."""
    if isinstance(n, Nest):
        return ()
    match n:
        case Scan() | While():
            return (n.body,)
        case If():
            return (n.then.nodes, n.orelse.nodes)
        case Input() | Const() | Scatter() | Call() | Bind():
            return ()
        case _:
            assert_never(n)


def with_bodies(n: Node, change: Callable[[tuple[Node, ...]], tuple[Node, ...]]) -> Node:
    """The node with each of its bodies changed; itself if it has none."""
    match n:
        case Scan() | While():
            return replace(n, body=change(n.body))
        case If():
            then, orelse = (replace(b, nodes=change(b.nodes)) for b in (n.then, n.orelse))
            return replace(n, then=then, orelse=orelse)
        case _:
            return n


def defined(n: Node) -> tuple[Value, ...]:
    """The values that a node defines itself: its outputs and its carried parameters."""
    params = tuple(c.param for c in n.carries) if isinstance(n, Scan | While) else ()
    return (*outs(n), *params)


def walk_nodes(nodes: tuple[Node, ...]) -> Iterator[Node]:
    """All nodes, each before those of its bodies."""
    for n in nodes:
        yield n
        for body in bodies(n):
            yield from walk_nodes(body)


def used(n: Node) -> Iterator[str]:
    """The values that a node itself reads, those read by its bodies left out.

    One that several reads are of may occur several times.
    """
    match n:
        case Input() | Const():
            return
        case Nest():
            for e in n.body:
                yield from read_values(e)
        case Scan():
            for c in n.carries:
                yield from (c.init, c.next)
            yield from n.collected
        case While():
            yield n.cond
            for c in n.carries:
                yield from (c.init, c.next)
        case If():
            yield n.cond
            yield from (*n.then.results, *n.orelse.results)
        case Scatter():
            yield n.base
            yield from (r.value for r in reads(n.body))
            for _, coord in n.coords:
                if not isinstance(coord, Index):
                    yield from (r.value for r in reads(coord))
        case Call():
            yield from n.args
        case Bind():
            yield n.value
        case _:
            assert_never(n)


def mentioned(n: Node) -> Iterator[str]:
    """The dims and symbols that a node itself mentions, those of values that it reads left out."""
    for v in defined(n):
        yield from v.dims
    exprs: tuple[Expr, ...] = ()
    coords: tuple[Coord, ...] = ()
    match n:
        case Nest():
            exprs = n.body
            yield from n.bound
        case Scan():
            yield n.dim
        case Scatter():
            exprs, coords = (n.body,), tuple(c for _, c in n.coords)
            yield from n.dims
        case _:
            pass
    for c in coords:
        if isinstance(c, Index):
            yield from c.names()
        else:
            exprs = (*exprs, c)
    for e in exprs:
        for i in indices(e):
            yield from i.names()


def bound_symbols(nodes: Iterable[Node]) -> frozenset[str]:
    """The sizes that the nodes compute, those in bodies included."""
    return frozenset(n.symbol for n in walk_nodes(tuple(nodes)) if isinstance(n, Bind))


def used_deep(n: Node) -> Iterator[str]:
    """The values that a node and its bodies read."""
    yield from used(n)
    for body in bodies(n):
        for inner in body:
            yield from used_deep(inner)
