"""Hypothesis strategies: fusion groups of small nests with layouts, and schedules for them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod

import numpy as np
from hypothesis import strategies as st
from hypothesis.vendor.pretty import RepresentationPrinter

from rutc.graph_opt.exprs import at_point
from rutc.tensor_ir import (
    Apply,
    Cast,
    Coord,
    DType,
    Expr,
    Graph,
    Index,
    IndexValue,
    Input,
    Lit,
    Nest,
    Output,
    Read,
    Value,
    apply,
    cast,
    reducer,
)
from rutc.tensor_ir.expr import point
from rutc.tensor_ir.interpreter.interpret import interpret_values
from rutc.tensor_ir.kernel import Branch, Init, Kernel, Kind, Loop, Stmt
from rutc.tensor_ir.layout import Layout, dense, pack
from rutc.tensor_ir.lower import Group, lower
from rutc.tensor_ir.statements import walk_loops
from rutc.tensor_ir.steps import (
    Apart,
    BlockReduction,
    Cut,
    FactorOut,
    Fuse,
    Inside,
    Lanes,
    Mark,
    NotApplicable,
    Pack,
    Part,
    PartialSums,
    Peel,
    PrefetchBlock,
    PrefetchLater,
    PrefetchReads,
    PrefetchResult,
    Preload,
    Reorder,
    Schedule,
    Singly,
    Split,
    Step,
    Tile,
)
from rutc.tensor_ir.verifier import verify
from rutc.verify.judging.tolerance import Level, tolerance
from tests.strategies import Builder, random_inputs

EXTENTS = (3, 2, 1, 5, 7, 8, 17, 4, 16, 20, 33, 3, 2, 5, 7, 9, 12, 40, 0)
DIMS = ("i", "j", "k", "l", "m")
LONG = (64, 16, 3, 100, 128, 1, 7, 33, 200, 256, 512, 1000)
POINTS = 1500
"""The most points that a nest runs over: what the interpreter takes a fraction of a second for."""
SMALL = 28
"""The longest sums of products in bf16, which holds whole numbers up to 256."""
TYPES = (
    DType.F32, DType.F32, DType.F32, DType.F64, DType.I64, DType.I32, DType.BF16, DType.F16,
    DType.I8, DType.U8, DType.I16, DType.BOOL,
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A group, where its values lie, and what it shall compute."""

    graph: Graph
    group: Group
    layouts: Mapping[str, Layout]
    exact: bool
    seed: int

    @property
    def extents(self) -> dict[str, int]:
        return {d: e.value for d, e in self.graph.dims}

    def kernel(self) -> Kernel:
        """The lowered group."""
        finite = frozenset(n.out.name for n in self.graph.inputs)
        return lower(self.group, self.graph.values, self.layouts, self.extents, finite=finite)

    def arrays(self) -> dict[str, np.ndarray]:
        """All values by name, axes in the order of sorted dims."""
        return interpret_values(self.graph, random_inputs(self.graph, self.seed))

    def memory(self, arrays: Mapping[str, np.ndarray], kernel: Kernel) -> dict[str, np.ndarray]:
        """The kernel's arguments: what it reads laid out, what it stores full of garbage."""
        found: dict[str, np.ndarray] = {}
        for name in self.group.external_reads():
            v = self.graph.values[name]
            found[name] = pack(arrays[name], v.dims, kernel.buffer(name).layout)
        for name in self.group.stored:
            size = self.layouts[name].elements
            found[name] = np.full(size, 77).astype(self.graph.values[name].dtype.numpy)
        return found

    def check(self, memory: Mapping[str, np.ndarray], arrays: Mapping[str, np.ndarray]) -> None:
        """Compare what the kernel stored with the interpreter's values."""
        reduction = max(prod(self.extents[d] for d in n.bound) for n in self.group.stages)
        for name in self.group.stored:
            v = self.graph.values[name]
            got = unpack(memory[name], v.dims, self.extents, self.layouts[name])
            largest = max(magnitude(arrays[v]) for v in self.graph.values if v in arrays)
            assert_agree(name, got, arrays[name], self.exact, reduction, largest)

    def __repr__(self) -> str:
        layouts = "\n".join(f"%{n}: {x}" for n, x in self.layouts.items())
        return (
            f"{self.graph}\nshared {self.group.shared} stored {self.group.stored}\n{layouts}\n"
            f"seed {self.seed}"
        )

    def _repr_pretty_(self, printer: RepresentationPrinter, cycle: bool) -> None:
        printer.text(repr(self))


def unpack(
    flat: np.ndarray, dims: Sequence[str], extents: Mapping[str, int], layout: Layout
) -> np.ndarray:
    """The elements of a value in memory, axes in the order of `dims`."""
    shape = [extents[d] for d in dims]
    at = dict(zip(dims, np.indices(shape, sparse=True), strict=True))
    place = np.zeros(shape, np.int64)
    for a in layout.axes:
        position = (at[a.dim] + layout.before.get(a.dim, 0)) // a.div
        extent, stride = Index.of(a.extent).value, Index.of(a.stride).value
        place = place + (position if a.whole else position % extent) * stride
    return flat[place] if place.size else np.zeros(shape, flat.dtype)


def magnitude(array: np.ndarray) -> float:
    """The largest finite magnitude of numbers, 0 of anything else."""
    if not DType.of(array.dtype).is_float:
        return 0.0
    found = np.abs(array.astype(np.float64))
    return float(np.max(found, initial=0.0, where=np.isfinite(found)))


def assert_agree(
    name: str,
    got: np.ndarray,
    expected: np.ndarray,
    exact: bool,
    reduction: int = 1,
    largest: float = 0.0,
    level: Level = Level.KERNEL,
) -> None:
    """Raises AssertionError unless all elements are as close as the tolerances ask.

    Results in f64 may have been computed in f32. Numbers as large as `largest` went into them,
    though they may cancel.
    """
    if exact or not DType.of(expected.dtype).is_float:
        np.testing.assert_array_equal(got, expected, err_msg=name)
        return
    dtype = np.dtype(np.float32) if expected.dtype == np.float64 else expected.dtype
    limit = tolerance(level, dtype, reduction or 1)
    a, b = got.astype(np.float64), expected.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        same |= np.abs(a - b) <= limit.allowed(np.append(b, largest))[:-1].reshape(b.shape)
    assert same.all(), f"{name}: {got[~same][:4]} instead of {expected[~same][:4]}"


# -- groups -------------------------------------------------------------------------------------
@dataclass
class _Cases:
    """A group under construction."""

    draw: st.DrawFn
    extents: dict[str, int]
    nodes: list[Input | Nest] = field(default_factory=list)
    stages: list[Nest] = field(default_factory=list)
    exact: bool = True
    halos: dict[str, tuple[dict[str, tuple[int, int]], Lit]] = field(default_factory=dict)

    def one(self, options: Sequence[str]) -> str:
        return self.draw(st.sampled_from(list(options)))

    def number(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def chance(self, percent: int) -> bool:
        return self.number(0, 99) >= 100 - percent

    def value(self, dtype: DType, dims: Sequence[str]) -> Value:
        count = len(self.nodes) + sum(len(s.outs) for s in self.stages)
        return Value(f"v{count}", dtype, tuple(sorted(set(dims))))

    def input(self, dtype: DType, dims: Sequence[str]) -> Value:
        v = self.value(dtype, dims)
        self.nodes.append(Input(v, v.name, v.dims))
        return v

    def stage(
        self, dtypes: Sequence[DType], dims: Sequence[str], bound: Sequence[str], name: str | None,
        *body: Expr,
    ) -> tuple[Value, ...]:  # fmt: skip
        count = len(self.nodes) + sum(len(s.outs) for s in self.stages)
        outs = tuple(Value(f"v{count + i}", t, tuple(sorted(dims))) for i, t in enumerate(dtypes))
        r = reducer(name, *(b.dtype for b in body)) if name is not None else None
        self.stages.append(Nest(outs, tuple(bound), r, body))
        return outs

    def dims(self, least: int, most: int, among: Sequence[str] | None = None) -> list[str]:
        pool = list(self.extents if among is None else among)
        if not pool:
            return []
        chosen = st.lists(st.sampled_from(pool), min_size=least, max_size=most, unique=True)
        return self.draw(chosen)

    def literal(self, dtype: DType) -> Lit:
        low = 0 if not dtype.is_signed else -3
        return Lit(self.number(low, 3) if dtype is not DType.BOOL else self.chance(50), dtype)

    def small(self, bound: Sequence[str], dtype: DType) -> bool:
        """Whether sums over `bound` are exact in `dtype`."""
        points = prod(self.extents[d] for d in bound)
        return points <= SMALL if dtype in (DType.BF16, DType.F16) else True

    # -- kinds of groups ------------------------------------------------------------------------
    def contraction(self) -> tuple[Value, ...]:
        """A sum of products, its operands over any of the dims, coordinates sometimes moved."""
        dims = self.dims(1, 3)
        bound = self.dims(1, 2, [d for d in self.extents if d not in dims])
        dtype = self.draw(st.sampled_from([t for t in TYPES if t is not DType.BOOL]))
        if not bound or not self.small(bound, dtype):
            dtype = DType.F32
        space = [*dims, *bound]
        operands: list[Expr] = []
        for _ in range(2):
            v = self.input(dtype, self.dims(1, 3, space))
            operands.append(at_point(v))
        body: Expr = apply("mul", *operands)
        if dtype in (DType.BF16, DType.F16) and self.chance(60):
            body = apply("mul", *(cast(x, DType.F32) for x in operands))
        return self.stage([body.dtype], dims, bound, "sum", body)

    def window(self) -> tuple[Value, ...]:
        """A reduction of a window with fills, with or without weights."""
        x, taps = self.dims(2, 2)
        others = self.dims(0, 1, [d for d in self.extents if d not in (x, taps)])
        dtype = self.draw(st.sampled_from([DType.F32, DType.F32, DType.I32, DType.BF16, DType.I8]))
        if not self.small([taps], dtype):
            dtype = DType.F32
        name = self.one(["sum", "max", "min"])
        source = self.input(dtype, [x, *others])
        stride, dilation, before = self.number(1, 2), self.number(1, 2), self.number(0, 2)
        at = Index.of(x) * stride + Index.of(taps) * dilation - before
        fill = self.literal(dtype)
        if self.chance(60):
            # States of narrow floats may be wider.
            fill = Lit(reducer(name, dtype).identity[0].value, dtype)
        coords = tuple((d, at if d == x else Index.of(d)) for d in source.dims)
        body: Expr = Read(source.name, coords, dtype, fill)
        last = (self.extents[x] - 1) * (stride - 1) + (self.extents[taps] - 1) * dilation - before
        if self.extents[x] and self.extents[taps] and self.chance(60):
            self.halos[source.name] = ({x: (before, max(last, 0))}, fill)
        if name == "sum" and self.chance(70):
            w = self.input(dtype, [taps, *self.dims(0, 1, others)])
            body = apply("mul", body, at_point(w))
        return self.stage([dtype], [x, *others], [taps], name, body)

    def reduction(self) -> tuple[Value, ...]:
        """A reducer with any number of states over any dims."""
        dims = self.dims(0, 2)
        bound = [d for d in self.extents if d not in dims][: self.number(1, 2)]
        name = self.one(REDUCERS)
        dtype = self.draw(st.sampled_from([DType.F32, DType.F64, DType.I32, DType.F32]))
        if name in ("any", "all"):
            dtype = DType.BOOL
        if name in ("logsumexp", "moments"):
            dtype = DType.F64 if dtype is DType.F64 else DType.F32
            self.exact = False
        if name in ("prod", "bitand"):
            dtype = DType.I32
        source = self.input(dtype, [*dims, *bound])
        body: list[Expr] = [at_point(source)]
        if name.startswith("arg"):
            index = Index.of(0)
            for d in bound:
                index = index * self.extents[d] + Index.of(d)
            kind = self.draw(st.sampled_from([DType.I64, DType.I32]))
            body.append(cast(IndexValue(index), kind))
        r = reducer(name, *(b.dtype for b in body))
        return self.stage(r.outputs, dims, bound, name, *body)

    def concat(self) -> tuple[Value, ...]:
        """Parts of several values beside each other."""
        dims = self.dims(1, 3)
        along = dims[0]
        dtype = self.draw(st.sampled_from(TYPES))
        left, right = self.input(dtype, dims), self.input(dtype, self.dims(1, len(dims), dims))
        edge = self.number(0, self.extents[along])
        fill = self.literal(dtype)

        def part(v: Value, start: int) -> Read:
            coords = ((d, Index.of(d) - (start if d == along else 0)) for d in v.dims)
            return Read(v.name, tuple(coords), dtype, fill)

        inside = apply(
            self.one(["lt", "ge", "le", "gt"]), IndexValue(Index.of(along)), Lit(edge, DType.I64)
        )
        body = Apply("select", (inside, part(left, 0), part(right, edge)))
        return self.stage([dtype], dims, [], None, body)

    def reshaped(self) -> tuple[Value, ...]:
        """Elements gathered by quotients, remainders or data."""
        dims = self.dims(1, 3)
        dtype = self.draw(st.sampled_from(TYPES))
        source = self.input(dtype, self.dims(1, 2))
        points = prod(self.extents[d] for d in dims)
        flat = Index.of(0)
        for d in dims:
            flat = flat * self.extents[d] + Index.of(d)
        coords: list[tuple[str, Coord]] = []
        fill = self.literal(dtype) if self.chance(40) else None
        for d in source.dims:
            extent = self.extents[d]
            match self.one(["divided", "data", "reversed"]):
                case "divided" if extent:
                    step = max(1, -(-points // extent))
                    coords.append((d, flat // step if self.chance(50) else flat % extent))
                case "data":
                    at = self.input(DType.I64, self.dims(0, 2, dims))
                    where = at_point(at)
                    coords.append((d, apply("add", where, Lit(1, DType.I64))))
                case _:
                    fill = fill or self.literal(dtype)
                    coords.append((d, Index.of(dims[0]) * -1 + self.number(-1, 5)))
        body = Read(source.name, tuple(coords), dtype, fill)
        return self.stage([dtype], dims, [], None, body)

    def rows(self) -> tuple[Value, ...]:
        """A normalisation: reductions over rows and what is computed with them."""
        k, *outer = self.dims(1, 3)
        dtype = self.draw(st.sampled_from([DType.F32, DType.F32, DType.F64, DType.I32]))
        source = self.input(dtype, [k, *outer])
        whole = at_point(source)
        name = self.one(["max", "sum", "min"])
        (top,) = self.stage([dtype], outer, [k], name, whole)
        row = point(top.dims)
        shifted = apply("sub", whole, Read(top.name, row, dtype))
        (middle,) = self.stage([dtype], [k, *outer], [], None, shifted)
        inner: Expr = at_point(middle)
        if self.chance(50):
            (total,) = self.stage([dtype], outer, [k], "sum", inner)
            inner = apply("add", inner, Read(total.name, row, dtype))
            if self.chance(70):
                return self.stage([dtype], [k, *outer], [], None, inner)
            return (total,)
        return (middle,)

    def wild(self) -> tuple[Value, ...]:
        """Any nest that the graphs' strategy makes."""
        b = Builder(self.draw, exact=True, dims={d: Index.of(e) for d, e in self.extents.items()})
        for _ in range(self.number(1, 3)):
            kind = self.draw(st.sampled_from([DType.F32, DType.I64, DType.BOOL, DType.F32]))
            v = self.input(kind, self.dims(0, 2))
            b.values.append(v)
            b.limit[v.name] = 3
        b.count = 100
        n = b.reduction() if self.chance(50) else b.pointwise(b.dtype(), b.some_dims(3))
        self.stages.append(n)
        return n.outs

    def epilogue(self, last: tuple[Value, ...]) -> None:
        """Elementwise stages after the last one, over the same dims."""
        for _ in range(self.number(0, 2)):
            v = last[-1]
            own = at_point(v)
            other = self.input(v.dtype, self.dims(0, len(v.dims), v.dims))
            read: Expr = at_point(other)
            if v.dtype is DType.BOOL:
                body: Expr = apply(self.one(["and", "or", "xor"]), own, read)
            else:
                body = apply(self.one(["add", "sub", "max", "min"]), own, read)
                if self.chance(30):
                    kinds = [DType.F32, DType.F64, *([DType.I32] if self.exact else [])]
                    kind = self.draw(st.sampled_from(kinds))
                    body = Cast(body, kind) if kind is not v.dtype else body
            last = self.stage([body.dtype], v.dims, [], None, body)


@st.composite
def cases(
    draw: st.DrawFn,
    kinds: Sequence[str] = (),
    lengths: Sequence[int] = EXTENTS,
    points: int = POINTS,
) -> Case:
    """A group of one to four nests with random layouts.

    Args:
        draw: Hypothesis's.
        kinds: Methods of `_Cases`; all of them by default.
        lengths: The extents to choose from.
        points: The most points that a nest runs over.
    """
    extents = {d: draw(st.sampled_from(lengths)) for d in DIMS[: draw(st.integers(2, 4))]}
    while prod(max(e, 1) for e in extents.values()) > points:
        longest = max(extents, key=lambda d: extents[d])
        extents[longest] = extents[longest] // 2 or 1
    b = _Cases(draw, extents)
    known = {
        "contraction": b.contraction,
        "window": b.window,
        "reduction": b.reduction,
        "concat": b.concat,
        "reshaped": b.reshaped,
        "rows": b.rows,
        "wild": b.wild,
    }
    kind = b.one(kinds or list(known))
    last = known[kind]()
    shared = last[0].dims
    if kind == "rows":
        shared = b.stages[0].out.dims
    else:
        b.epilogue(last)
    outs = [v for s in b.stages for v in s.outs]
    stored = {v.name for v in b.stages[-1].outs}
    stored |= {v.name for v in outs if b.chance(25)}
    group = Group(
        "group",
        tuple(b.stages),
        tuple(draw(st.permutations(shared))),
        tuple(v.name for v in outs if v.name in stored),
    )
    graph = Graph(
        "case",
        tuple((d, Index.of(e)) for d, e in extents.items()),
        (*b.nodes, *b.stages),
        tuple(Output(v.name, v.name, v.dims) for v in outs),
    )
    verify(graph)
    named = {name: graph.values[name] for name in (*group.external_reads(), *group.stored)}
    layouts = {name: _layout(b, v) for name, v in named.items()}
    return Case(graph, group, layouts, b.exact, draw(st.integers(0, 9)))


def _layout(b: _Cases, v: Value) -> Layout:
    order = b.draw(st.permutations(v.dims))
    halo, fill = b.halos.get(v.name, ({}, None))
    halo = dict(halo)
    if b.chance(15):
        fill = fill or b.literal(v.dtype)
        for d in v.dims:
            lo, hi = halo.get(d, (0, 0))
            halo[d] = (lo + b.number(0, 2), hi + b.number(0, 2))
    blocks = {d: b.draw(st.sampled_from([4, 8, 3])) for d in v.dims if b.chance(15)}
    return dense(order, b.extents, halo=halo, fill=fill, blocks=blocks)


# -- schedules ----------------------------------------------------------------------------------
UNROLLED = 64
"""The most copies of a statement that a random schedule makes."""
KINDS_OF_STEPS = (
    "split", "split", "fuse", "reorder", "peel", "cut", "part", "mark", "mark", "mark", "lanes",
    "lanes", "block", "sums", "apart", "factors", "tile", "tile", "inside", "inside", "prefetch",
    "later", "reads", "result", "preload", "preload", "singly", "pack",
)  # fmt: skip
REDUCERS = (
    "argmax", "argmin", "argmax_last", "argmin_last", "logsumexp", "maxnum", "moments", "prod",
    "max", "min", "any", "all", "bitand",
)  # fmt: skip


@st.composite
def scheduled(draw: st.DrawFn, kernel: Kernel, most: int) -> tuple[Kernel, Schedule]:
    """The kernel after up to `most` random steps that apply, and those steps."""
    applied: list[Step] = []
    for _ in range(draw(st.integers(0, most))):
        loops = list(walk_loops(kernel.body))
        if not loops:
            break
        step = _random_step(draw, kernel, loops)
        try:
            after = step.apply(kernel)
        except NotApplicable:
            continue
        if copies(after) <= UNROLLED:
            kernel = after
            applied.append(step)
    return kernel, tuple(applied)


def copies(kernel: Kernel) -> int:
    """The most often that unrolling and branches repeat a statement."""

    def count(body: Sequence[object], times: int) -> int:
        most = times
        for s in body:
            if isinstance(s, Loop):
                bounds = s.hi - s.lo
                unrolled = s.kind is Kind.UNROLL and bounds.is_const
                most = max(most, count(s.body, times * (max(bounds.value, 1) if unrolled else 1)))
        return most

    return count(kernel.body, 1)


def _random_step(draw: st.DrawFn, kernel: Kernel, loops: Sequence[Loop]) -> Step:
    names = list(dict.fromkeys(x.var for x in loops))
    var = draw(st.sampled_from(names))
    chains = [c for x in loops if len(c := _chain(x)) > 1]
    kind = draw(st.sampled_from(KINDS_OF_STEPS))
    match kind:
        case "split":
            return Split(var, draw(st.sampled_from([2, 3, 4, 5, 8, 16])))
        case "fuse" if chains:
            chain = draw(st.sampled_from(chains))
            return Fuse(chain[0], chain[1], f"{chain[0]}_{chain[1]}")
        case "reorder" if chains:
            chain = draw(st.sampled_from(chains))
            return Reorder(tuple(draw(st.permutations(chain[: draw(st.integers(2, 4))]))))
        case "peel":
            rests = draw(st.sets(st.integers(1, 20), max_size=2))
            return Peel(var, tuple(sorted(rests)))
        case "cut":
            return Cut(var, tuple(draw(st.lists(st.integers(-1, 20), max_size=3))))
        case "part":
            return Part(var, tuple(draw(st.lists(st.integers(-1, 20), max_size=3))))
        case "lanes":
            inner = [x.var for x in loops if not any(isinstance(s, Loop) for s in x.body)]
            width = draw(st.sampled_from([2, 3, 4, 8, 16, 20, 32]))
            var = draw(st.sampled_from(inner))
            holders = [x.var for x in loops if var in _chain(x)]
            return Lanes(var, width, draw(st.sampled_from(holders)))
        case "block" if bound := _bound(kernel.body):
            var = draw(st.sampled_from(bound))
            output = draw(st.sampled_from([*(b.name for b in kernel.args[-2:]), "parts"]))
            outside = draw(st.sampled_from([loops[0].var, *names]))
            return BlockReduction(var, draw(st.sampled_from([2, 3, 8])), outside, output)
        case "sums" if bound := _bound(kernel.body):
            return PartialSums(draw(st.sampled_from(bound)), draw(st.sampled_from([1, 2, 3, 8])))
        case "apart" if bound := _bound(kernel.body):
            unrolled = [x.var for x in loops if x.kind is Kind.UNROLL] or bound
            most = draw(st.sampled_from([8, 32, 200]))
            return Apart(
                draw(st.sampled_from(bound)), draw(st.sampled_from(unrolled)), most // 2, most
            )
        case "factors" if bound := _bound(kernel.body):
            return FactorOut(draw(st.sampled_from(bound)))
        case "inside" if bound := _bound(kernel.body):
            return Inside(tuple(draw(st.lists(st.sampled_from(bound), min_size=1, unique=True))))
        case "prefetch":
            buffer = draw(st.sampled_from([b.name for b in kernel.args]))
            return PrefetchBlock(buffer, var, draw(st.sampled_from([0, 40])), 16)
        case "later":
            buffer = draw(st.sampled_from([b.name for b in kernel.args]))
            turns, again = (
                tuple(draw(st.lists(st.sampled_from(names), max_size=1))) for _ in range(2)
            )
            return PrefetchLater(buffer, var, draw(st.integers(1, 3)), 16, 2, turns, again)
        case "reads":
            buffer = draw(st.sampled_from([b.name for b in kernel.args]))
            return PrefetchReads(buffer, var, 16, draw(st.integers(1, 2)))
        case "result":
            return PrefetchResult(draw(st.sampled_from([b.name for b in kernel.args])), 16)
        case "pack":
            b = draw(st.sampled_from(kernel.args))
            order = draw(st.permutations([d for d, _ in b.layout.extents]))
            dims = draw(st.lists(st.sampled_from(order), unique=True)) if order else []
            return Pack(b.name, tuple(order), tuple((d, draw(st.integers(1, 5))) for d in dims))
        case "preload":
            buffer = draw(st.sampled_from([b.name for b in kernel.args]))
            chain = draw(st.sampled_from([*chains, [var]]))
            return Preload(buffer, tuple(chain[-draw(st.integers(1, 2)) :]))
        case "singly":
            return Singly(draw(st.sampled_from([b.name for b in kernel.args])))
        case "tile":
            chain = draw(st.sampled_from([*chains, [var]]))
            start = draw(st.integers(0, len(chain) - 1))
            moved = chain[start : start + draw(st.integers(1, 3))]
            kinds = [draw(st.sampled_from([Kind.UNROLL, Kind.VECTOR])) for _ in moved]
            return Tile(tuple(moved), tuple(kinds))
        case _:
            return Mark(var, draw(st.sampled_from(list(Kind))))


def _bound(body: tuple[Stmt, ...]) -> list[str]:
    """The loops of reductions that have just been started."""
    found: list[str] = []
    for before, s in pairwise((None, *body)):
        if isinstance(before, Init) and isinstance(s, Loop):
            found += [s.var, *(x.var for x in walk_loops(s.body))]
        elif isinstance(s, Loop):
            found += _bound(s.body)
        elif isinstance(s, Branch):
            found += [*_bound(s.then), *_bound(s.orelse)]
    return found


def _chain(loop: Loop) -> list[str]:
    """The directly nested loops from `loop` inward."""
    chain = [loop.var]
    while len(loop.body) == 1 and isinstance(loop.body[0], Loop):
        loop = loop.body[0]
        chain.append(loop.var)
    return chain
