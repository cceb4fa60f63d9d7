"""Hypothesis strategies: index expressions, and small valid graphs with inputs for them.

Graphs come in two kinds. *Exact* ones hold small integers in every type, so that no reduction order
and no rewrite changes a result, and may compare, search and gather freely. *Smooth* ones use
transcendental functions and divisions but nothing that a rounding error could make jump.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
from hypothesis import strategies as st

from rutc.tensor_ir import (
    Apply,
    Body,
    Carry,
    Cast,
    Const,
    Coord,
    Data,
    DType,
    Expr,
    Graph,
    If,
    Index,
    IndexValue,
    Input,
    Lit,
    Nest,
    Node,
    Output,
    Read,
    Scan,
    Scatter,
    Value,
    While,
    apply,
    cast,
    reducer,
)
from rutc.tensor_ir.graph import outs
from rutc.tensor_ir.indices.affine import maximum, minimum

EXTENTS = (2, 3, 0, 1, 4, 5, 6, 7, 2, 3, 3, 2)
SYMBOL = "batch"
SIZES = (1, 3)
NAMES = ("x", "w", "a/b:0", "é", "1", "while.y", 'q"t', "h")
DIM_NAMES = ("a", "b", "c", "d", "e f", "else")
LARGEST = 100
NUMBERS = (DType.F32, DType.F64, DType.I64, DType.I32)


@st.composite
def indices(draw: st.DrawFn, names: Sequence[str], depth: int = 3, largest: int = 6) -> Index:
    """An index expression over `names`: sums, products, // and % by constants, min and max."""
    leaf = st.one_of(
        st.integers(-largest, largest).map(Index.of),
        st.sampled_from([*names, names[0]]).map(Index.of),
    )
    if depth == 0:
        return draw(leaf)
    smaller = indices(names, depth - 1, largest)
    kind = draw(
        st.sampled_from(["leaf", "add", "add", "sub", "scale", "div", "mod", "mul", "min", "max"])
    )
    if kind == "leaf":
        return draw(leaf)
    a = draw(smaller)
    match kind:
        case "scale":
            return a * draw(st.integers(-largest, largest))
        case "div":
            return a // draw(st.integers(1, largest * 2))
        case "mod":
            return a % draw(st.integers(1, largest * 2))
    b = draw(smaller)
    match kind:
        case "add":
            return a + b
        case "sub":
            return a - b
        case "mul":
            return a * b
        case "min":
            return minimum(a, b)
        case _:
            return maximum(a, b)


@dataclass
class Builder:
    """A graph under construction; `limit` bounds the magnitude of every value."""

    draw: st.DrawFn
    exact: bool
    dims: dict[str, Index]
    limit: dict[str, float] = field(default_factory=dict)
    values: list[Value] = field(default_factory=list)
    counters: tuple[str, ...] = ()
    count: int = 0
    largest: int = SIZES[1]

    # -- choices --------------------------------------------------------------------------------
    def one(self, options: Sequence[str]) -> str:
        return self.draw(st.sampled_from(list(options)))

    def chance(self, percent: int) -> bool:
        return self.draw(st.integers(0, 99)) >= 100 - percent

    def some_dims(self, most: int) -> tuple[str, ...]:
        free = [d for d in self.dims if d not in self.counters]
        least = 1 if free and self.chance(80) else 0
        chosen = self.draw(
            st.lists(st.sampled_from(free), min_size=least, max_size=most, unique=True)
        )
        return tuple(sorted(chosen))

    def name(self) -> str:
        self.count += 1
        stem = self.one(NAMES) if self.chance(20) else "v"
        return f"{stem}{self.count}"

    def define(self, dtype: DType, dims: Sequence[str], limit: float) -> Value:
        v = Value(self.name(), dtype, tuple(sorted(dims)))
        self.limit[v.name] = limit
        return v

    def most(self, d: str) -> int:
        extent = self.dims[d]
        return extent.value if extent.is_const else self.largest * 2

    # -- reads ----------------------------------------------------------------------------------
    def coordinate(self, d: str, space: Sequence[str]) -> tuple[Coord, bool]:
        """A coordinate along `d` and whether it always lies inside."""
        extent = self.dims[d]
        if d in space and self.chance(60):
            return Index.of(d), True
        scope = [*space, *self.counters]
        if scope:
            i = self.draw(indices(scope, depth=2, largest=3))
        else:
            i = Index.of(self.draw(st.integers(-3, 6)))
        if extent.is_const and i.names().isdisjoint({SYMBOL}):
            ranges = {x: (0, max(self.most(x) - 1, 0)) for x in scope}
            bounds = i.bounds(ranges)
            if bounds is not None and bounds[0] >= 0 and bounds[1] < extent.value:
                return i, True
        if extent.is_const and extent.value <= 0:
            return i, False
        if self.chance(60):
            return i % extent, True
        return i, False

    def read(self, v: Value, space: Sequence[str], *, gathers: bool = True) -> Read:
        coords: list[tuple[str, Coord]] = []
        inside = True
        for d in v.dims:
            sources = [x for x in self.values if x.dtype is DType.I64]
            nonempty = self.dims[d].is_const and self.dims[d].value > 0
            if gathers and self.exact and sources and nonempty and self.chance(15):
                source = self.draw(st.sampled_from(sources))
                position: Expr = self.read(source, space, gathers=False)
                if self.chance(30):
                    position = apply("add", position, Lit(1, DType.I64))
                coords.append((d, position))
                continue
            coord, fits = self.coordinate(d, space)
            inside = inside and fits
            coords.append((d, coord))
        fill = None if inside and self.chance(90) else self.literal(v.dtype)
        return Read(v.name, tuple(coords), v.dtype, fill)

    def literal(self, dtype: DType) -> Lit:
        if dtype is DType.BOOL:
            return Lit(self.draw(st.booleans()), dtype)
        if not self.exact and dtype.is_float and self.chance(50):
            return Lit(self.draw(st.floats(-2, 2, width=16)), dtype)
        return Lit(self.draw(st.integers(-3, 3)), dtype)

    # -- expressions ----------------------------------------------------------------------------
    def expr(self, dtype: DType, space: Sequence[str], depth: int = 2) -> tuple[Expr, float]:
        """An expression and a bound of its magnitude."""
        e, limit = self.any_expr(dtype, space, depth)
        if limit <= LARGEST or dtype is DType.BOOL:
            return e, limit
        low, high = Lit(-4, dtype), Lit(4, dtype)
        return apply("max", apply("min", e, high), low), 4

    def any_expr(self, dtype: DType, space: Sequence[str], depth: int) -> tuple[Expr, float]:
        if depth == 0 or self.chance(25):
            return self.leaf(dtype, space)
        if dtype is DType.BOOL:
            if not self.exact or self.chance(40):
                (a, _), (b, _) = (self.expr(dtype, space, depth - 1) for _ in range(2))
                return (
                    (apply("not", a), 1)
                    if self.chance(30)
                    else (apply(self.one(["and", "or", "xor"]), a, b), 1)
                )
            kind = self.draw(st.sampled_from(NUMBERS))
            (a, _), (b, _) = (self.expr(kind, space, depth - 1) for _ in range(2))
            return apply(self.one(["eq", "ne", "lt", "le", "gt", "ge"]), a, b), 1
        op = self.one(["add", "sub", "mul", "min", "max", "neg", "abs", "select", "cast", "other"])
        if op == "cast":
            return self.converted(dtype, space, depth)
        if op == "other":
            return self.other(dtype, space, depth)
        a, la = self.expr(dtype, space, depth - 1)
        if op in ("neg", "abs"):
            return apply(op, a), la
        b, lb = self.expr(dtype, space, depth - 1)
        if op == "select":
            c, _ = self.expr(DType.BOOL, space, 1)
            return Apply("select", (c, a, b)), max(la, lb)
        limit = la * lb if op == "mul" else la + lb if op in ("add", "sub") else max(la, lb)
        return apply(op, a, b), limit

    def converted(self, dtype: DType, space: Sequence[str], depth: int) -> tuple[Expr, float]:
        sources = [t for t in (*NUMBERS, DType.BOOL) if t is not dtype]
        if not self.exact:
            sources = [DType.BOOL, *([DType.I64] if dtype.is_float else [])]
        e, limit = self.expr(self.draw(st.sampled_from(sources)), space, depth - 1)
        if self.exact and self.chance(20):
            e = Cast(e, DType.BF16)
        return cast(e, dtype), max(limit, 1)

    def other(self, dtype: DType, space: Sequence[str], depth: int) -> tuple[Expr, float]:
        a, la = self.expr(dtype, space, depth - 1)
        b, lb = self.expr(dtype, space, depth - 1)
        if dtype.is_int:
            op = self.one(["div", "mod", "fmod", "bitand", "bitxor"])
            return apply(op, a, b), 2 * max(la, lb) + 1
        if self.exact:
            return apply(self.one(["floor", "round", "sign"]), a), max(la, 1)
        if self.chance(30):
            positive = apply("add", apply("abs", b), Lit(1, dtype))
            return apply("div", a, positive), la
        return apply(self.one(["tanh", "erf", "sin", "cos"]), a), 1

    def leaf(self, dtype: DType, space: Sequence[str]) -> tuple[Expr, float]:
        candidates = [v for v in self.values if v.dtype is dtype]
        if candidates and self.chance(85):
            v = self.draw(st.sampled_from(candidates))
            return self.read(v, space), max(self.limit[v.name], 3)
        if dtype is DType.I64 and space and self.chance(70):
            d = self.draw(st.sampled_from(list(space)))
            return IndexValue(Index.of(d)), max(self.most(d), 1)
        return self.literal(dtype), 3

    # -- nodes ----------------------------------------------------------------------------------
    def node(self, *, nested: bool = False) -> Node:
        kinds = ["map", "map", "map", "view", "reduce", "reduce", "reduce", "const", "scatter"]
        if not nested:
            kinds += ["scan", "if", "while"]
        match self.one(kinds):
            case "view":
                n: Node = self.view()
            case "reduce":
                n = self.reduction()
            case "const":
                n = self.const()
            case "scatter" if self.stateful():
                n = self.scatter()
            case "scan":
                n = self.scan()
            case "if":
                n = self.conditional()
            case "while":
                n = self.loop()
            case _:
                n = self.pointwise(self.dtype(), self.some_dims(3))
        self.values += outs(n)
        return n

    def dtype(self) -> DType:
        return self.draw(st.sampled_from([DType.F32, DType.F32, *NUMBERS, DType.BOOL]))

    def origin(self) -> tuple[str, ...]:
        return ("node/1", "Ünï\n2") if self.chance(10) else ()

    def pointwise(self, dtype: DType, dims: tuple[str, ...]) -> Nest:
        e, limit = self.expr(dtype, dims)
        return Nest((self.define(dtype, dims, limit),), (), None, (e,), self.origin())

    def view(self) -> Nest:
        source = self.draw(st.sampled_from(self.values))
        dims = self.some_dims(3)
        out = self.define(source.dtype, dims, max(3, self.limit[source.name]))
        return Nest((out,), (), None, (self.read(source, dims),), self.origin())

    def reduction(self) -> Nest:
        dims = self.some_dims(2)
        bound = tuple(d for d in self.some_dims(3) if d not in dims)
        name = self.one(
            [
                "sum",
                "sum",
                "sum",
                "max",
                "min",
                "any",
                "all",
                "bitand",
                *(
                    ["argmax", "argmin", "argmax_last", "argmin_last"]
                    if self.exact
                    else ["logsumexp", "moments"]
                ),
            ]
        )
        space = (*dims, *bound)
        dtype = DType.BOOL if name in ("any", "all") else self.draw(st.sampled_from(NUMBERS))
        if name in ("logsumexp", "moments"):
            dtype = DType.F32
        if name == "bitand":
            dtype = self.draw(st.sampled_from((DType.I64, DType.I32)))
        e, limit = self.expr(dtype, space)
        body: tuple[Expr, ...] = (e,)
        if name.startswith("arg"):
            i = Index.of(0)
            for d in bound:
                i = i * self.dims[d] + Index.of(d)
            body = (e, IndexValue(i))
        if name == "sum":
            limit *= max(1, prod(self.most(d) for d in bound))
        if name.startswith(("max", "min", "arg")) and any(
            not self.dims[d].is_const or self.dims[d].value == 0 for d in bound
        ):
            limit = float("inf")
        if name in ("logsumexp", "moments", "bitand"):
            limit = float("inf")
        r = reducer(name, *(b.dtype for b in body))
        outs = tuple(self.define(t, dims, limit) for t in r.outputs)
        return Nest(outs, bound, r, body, self.origin())

    def array(self, dtype: DType, shape: Sequence[int]) -> np.ndarray:
        size = prod(shape)
        items = self.draw(st.lists(st.integers(-3, 3), min_size=size, max_size=size))
        return np.array(items, np.int64).astype(dtype.numpy).reshape(shape)

    def const(self) -> Const:
        dims = [d for d in self.some_dims(2) if self.dims[d].is_const]
        axes = tuple(self.draw(st.permutations(dims)))
        dtype = self.draw(st.sampled_from([DType.F32, DType.I64, DType.I64, DType.BOOL]))
        data = Data(self.array(dtype, [self.dims[d].value for d in axes]))
        return Const(self.define(dtype, dims, 3), axes, data, self.origin())

    def stateful(self) -> list[Value]:
        """The values of which a body may make others with the same dims."""
        return [v for v in self.values if not set(v.dims) & set(self.counters)]

    def scatter(self) -> Scatter:
        base = self.draw(st.sampled_from(self.stateful()))
        dims = self.some_dims(2)
        target = self.read(base, dims)
        e, limit = self.expr(base.dtype, dims)
        names = ["set"]
        if base.dtype in NUMBERS:
            names += ["sum", "max", "min"]
        name = self.one(names)
        r = None if name == "set" else reducer(name, base.dtype)
        limit = self.limit[base.name] + limit * prod(self.most(d) for d in dims)
        out = self.define(base.dtype, base.dims, limit)
        return Scatter(out, base.name, dims, target.coords, r, e, self.origin())

    def nested(self, dtype: DType, dims: tuple[str, ...]) -> tuple[tuple[Node, ...], Value]:
        """A few nodes of a body and a last one of the given type."""
        outer = list(self.values)
        nodes = [self.node(nested=True) for _ in range(self.draw(st.integers(0, 2)))]
        last = self.pointwise(dtype, dims)
        self.values = outer
        return (*nodes, last), last.out

    def carried(self) -> tuple[Value, Value]:
        """A value to begin with and the parameter of a carry."""
        init = self.draw(st.sampled_from(self.stateful()))
        # The state may come to be anything that an expression of its type gives.
        return init, self.define(init.dtype, init.dims, max(LARGEST, self.limit[init.name]))

    def scan(self) -> Scan:
        outer = list(self.values)
        dim = self.draw(st.sampled_from(list(self.dims)))
        self.counters = (dim,)
        if not self.stateful():
            self.counters = ()
            const = Lit(1.0, DType.F32)
            out = self.define(DType.F32, (dim,), 1)
            body = Nest((self.define(DType.F32, (), 1),), (), None, (const,))
            return Scan((out,), dim, (), (body.out.name,), (body,))
        init, param = self.carried()
        self.values.append(param)
        body_nodes, last = self.nested(param.dtype, param.dims)
        inner = [v for n in body_nodes for v in (n.outs if isinstance(n, Nest) else ())]
        extra = self.draw(st.sampled_from([*inner, last]))
        self.counters = ()
        self.values = outer
        limit = max(self.limit[x] for x in (init.name, param.name, last.name))
        outs = (
            self.define(param.dtype, param.dims, limit),
            self.define(extra.dtype, (*extra.dims, dim), self.limit[extra.name]),
        )
        carries = (Carry(param, init.name, last.name),)
        return Scan(outs, dim, carries, (extra.name,), body_nodes, self.origin())

    def helper(self, out: Value, e: Expr) -> Value:
        """The output of a nest that is put before the node at hand."""
        self.before.append(Nest((out,), (), None, (e,)))
        return out

    before: list[Node] = field(default_factory=list)

    def conditional(self) -> If:
        condition = Lit(self.draw(st.booleans()), DType.BOOL)
        e, _ = self.expr(DType.BOOL, ()) if self.chance(60) else (condition, 1)
        cond = self.helper(self.define(DType.BOOL, (), 1), e)
        dtype, dims = self.dtype(), self.some_dims(2)
        then_nodes, a = self.nested(dtype, dims)
        else_nodes, b = self.nested(dtype, dims)
        out = self.define(dtype, dims, max(self.limit[a.name], self.limit[b.name]))
        return If(
            (out,),
            cond.name,
            Body(then_nodes, (a.name,)),
            Body(else_nodes, (b.name,)),
            self.origin(),
        )

    def loop(self) -> While:
        """A loop of a fixed count of trips, with one more carried value."""
        trips = self.draw(st.integers(0, 3))
        one, kind = Lit(1, DType.I64), DType.I64
        start = self.helper(self.define(kind, (), 0), Lit(0, kind))
        go = self.helper(self.define(DType.BOOL, (), 1), Lit(trips > 0, DType.BOOL))
        init, param = self.carried()
        count = self.define(kind, (), trips)
        going = self.define(DType.BOOL, (), 1)
        outer = list(self.values)
        self.values.append(param)
        nodes, last = self.nested(param.dtype, param.dims)
        self.values = outer
        following = self.define(kind, (), trips + 1)
        step = apply("add", Read(count.name, (), kind), one)
        again = self.define(DType.BOOL, (), 1)
        test = apply("lt", Read(following.name, (), kind), Lit(trips, kind))
        nodes = (
            *nodes,
            Nest((following,), (), None, (step,)),
            Nest((again,), (), None, (test,)),
        )
        carries = (
            Carry(going, go.name, again.name),
            Carry(count, start.name, following.name),
            Carry(param, init.name, last.name),
        )
        limit = max(self.limit[x] for x in (init.name, param.name, last.name))
        outs = tuple(self.define(c.param.dtype, c.param.dims, limit) for c in carries)
        return While(outs, going.name, carries, nodes, self.origin())


@st.composite
def graphs(
    draw: st.DrawFn,
    *,
    exact: bool | None = None,
    symbolic: bool | None = None,
    most: int = 6,
    sizes: tuple[int, int] = SIZES,
) -> Graph:
    """A valid graph of up to `most` nodes besides its inputs, with all of its values outputs."""
    exact = draw(st.booleans()) if exact is None else exact
    symbolic = draw(st.integers(0, 3)) == 0 if symbolic is None else symbolic
    names = draw(st.lists(st.sampled_from(DIM_NAMES), min_size=2, max_size=4, unique=True))
    dims = {d: Index.of(draw(st.sampled_from(EXTENTS))) for d in names}
    if symbolic:
        dims["n"] = Index.of(SYMBOL)
        if draw(st.booleans()):
            dims["m"] = Index.of(SYMBOL) * 2 - 1
    b = Builder(draw, exact, dims, largest=sizes[1])
    nodes: list[Node] = []
    for i in range(draw(st.integers(1, 3))):
        dtype = draw(st.sampled_from([DType.F32, DType.F32, DType.I64, DType.BOOL]))
        chosen = b.some_dims(3)
        if symbolic and i == 0:
            chosen = tuple(sorted({*chosen, "n"}))
        v = b.define(dtype, chosen, 3)
        nodes.append(Input(v, f"in {i}", tuple(draw(st.permutations(chosen)))))
        b.values.append(v)
    for _ in range(draw(st.integers(1, most))):
        n = b.node()
        nodes += [*b.before, n]
        b.before.clear()
    outputs = [
        Output(f"out {i}", v.name, tuple(draw(st.permutations(v.dims))))
        for i, v in enumerate(b.values)
    ]
    symbols = ((SYMBOL, sizes),) if symbolic else ()
    return Graph("random", tuple(dims.items()), tuple(nodes), tuple(outputs), symbols)


def random_sizes(graph: Graph, seed: int) -> dict[str, int]:
    """A size of its range for every symbol of a graph, of the eight least."""
    rng = np.random.default_rng(seed)
    return {s: int(rng.integers(low, min(high, low + 8) + 1)) for s, (low, high) in graph.symbols}


def random_inputs(
    graph: Graph, seed: int, sizes: Mapping[str, int] | None = None
) -> dict[str, np.ndarray]:
    """Inputs of small integers for a graph; symbols get these sizes, or some of their range."""
    rng = np.random.default_rng(seed)
    sizes = random_sizes(graph, seed) if sizes is None else sizes
    found = {}
    for n in graph.inputs:
        shape = [int(graph.extents[d].evaluate(sizes)) for d in n.axes]
        found[n.name] = rng.integers(-3, 4, shape).astype(n.out.dtype.numpy)
    return found
