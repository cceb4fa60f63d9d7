"""What a model computes in float64: the truth beside which float32 results are judged.

The graph is the importer's, with nothing rewritten, planned or scheduled, widened to f64 (`widen`)
and evaluated with numpy. So it shares the importer with the compiled model, and nothing else.

A run may be made with noise: then every value that the model declares as a narrower float is
moved by some roundings to that type (`tolerance.roundings`), at random (a value that the type holds
exactly stays). What such runs differ by is what the model's types explain, a label between two
nearly equal scores or a value between two steps included [Parker 1997, "Monte Carlo arithmetic"].
Values of 16 bits are rounded in every run, for the model asks for that, and moved by less.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import floor, inf, log2, prod

import numpy as np
import numpy.typing as npt

from rutc.base.cached import cached_property
from rutc.tensor_ir import (
    Apply,
    DType,
    Expr,
    Graph,
    Lit,
    Nest,
    Node,
    Read,
    Reducer,
    Value,
)
from rutc.tensor_ir.expr import index_names, walk
from rutc.tensor_ir.graph import bound_symbols, outs, used_deep, walk_nodes
from rutc.tensor_ir.indices.affine import Index
from rutc.tensor_ir.interpreter.evaluate import Block, Env, blocks, evaluate_expr
from rutc.tensor_ir.interpreter.interpret import POINTS, Run, State
from rutc.tensor_ir.terms import factors
from rutc.verify.judging.compare import Array
from rutc.verify.judging.tolerance import (
    IN_ORDER,
    ROW_STEPS,
    STORED,
    least_normal,
    roundings,
    unit_roundoff,
)
from rutc.verify.truth.float64 import NARROW, WIDE, widened
from rutc.verify.truth.matrix_sums import MatrixSums
from rutc.verify.truth.workload import paired, work_of, work_of_all

Wide = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

OPERAND = 1 << 22
"""Elements of an operand of a product at once: 32 MiB."""

CACHED = 1 << 15
"""Elements that are rounded at once: 256 KiB."""

LEAST: Mapping[DType, float] = {
    DType.F64: float(np.finfo(np.float64).tiny),
    DType.F32: float(np.finfo(np.float32).tiny),
    DType.BF16: float(np.finfo(np.float32).tiny),
}
"""The least positive number of a type that is no subnormal one, for those of which programs may
take these for zeros."""

FOLDS: Mapping[str, np.ufunc] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "any": np.logical_or,
    "all": np.logical_and,
}
"""Reducers that numpy has."""


class TooMuchWork(Exception):
    """A run of the truth would take longer than it may."""


class Truth:
    """A graph that runs in float64."""

    def __init__(self, graph: Graph, finer: frozenset[str] = frozenset()) -> None:
        """Widen a graph; in noise, rows of the ONNX nodes `finer` are rounded with one step."""
        self.work_s = 0.0
        self._finer = rounded_rows(graph, finer)
        nodes = [*walk_nodes(graph.nodes)]
        self._declared = {v.name: v.dtype for n in nodes for v in outs(n)}
        # Of the widened graph, what is cast to fewer bits would be one.
        self._views = frozenset(n.out.name for n in nodes if isinstance(n, Nest) and n.is_view)
        self.graph = widened(graph)

    @cached_property
    def _dying(self) -> tuple[tuple[str, ...], ...]:
        """The values that nothing reads after each of the nodes."""
        last: dict[str, int] = {}
        for number, n in enumerate(self.graph.nodes):
            defined = (v.name for inner in walk_nodes((n,)) for v in outs(inner))
            last.update(dict.fromkeys((*defined, *used_deep(n)), number))
        for o in self.graph.outputs:
            last.pop(o.value, None)
        dying: list[list[str]] = [[] for _ in self.graph.nodes]
        for name, number in last.items():
            dying[number].append(name)
        return tuple(map(tuple, dying))

    def run(
        self,
        inputs: Mapping[str, Array],
        noise: int | None = None,
        most_s: float = inf,
        *,
        flushing: bool = False,
    ) -> dict[str, Array]:
        """Returns the outputs by name; floats of 16 and 32 bits are given in float64.

        Args:
            inputs: A tensor for each input of the graph.
            noise: The seed of random roundings; None rounds to the nearest, and f32 not at all.
            most_s: The most work, in seconds of a common machine: an estimate, the same everywhere.
            flushing: Whether subnormal numbers of the types that the model declares count as zeros.

        Raises:
            UserError: the inputs do not fit the model.
            TooMuchWork: it is more work than that.
        """
        self.work_s = 0.0
        random = None if noise is None else np.random.default_rng(noise)
        run = _WideRun(self.graph, inputs, self._declared, random, most_s, self._finer)
        run.flushing, run.views = flushing, self._views
        try:
            self._check(run, most_s)
            for n, dying in zip(self.graph.nodes, self._dying, strict=True):
                run.nodes((n,))
                for name in dying:
                    run.values.pop(name, None)
        finally:
            self.work_s = run.work
        results = {}
        for o in self.graph.outputs:
            dims = self.graph.values[o.value].dims
            results[o.name] = run.values[o.value].transpose([dims.index(d) for d in o.axes])
        return results

    def _check(self, run: Run, most_s: float) -> None:
        """Raises TooMuchWork where that is known before the run."""
        unknown = bound_symbols(self.graph.nodes)
        if unknown or most_s == inf:
            return
        work = work_of_all(self.graph.nodes, lambda dims: prod(run.shape(dims)))
        if work > most_s:
            raise TooMuchWork(work)


def rounded_rows(graph: Graph, origins: frozenset[str]) -> dict[str, Read]:
    """The rows in fixed point of ONNX nodes, by value: `round(x / scale)`, and the read scale."""
    found: dict[str, Read] = {}
    for n in walk_nodes(graph.nodes):
        if not isinstance(n, Nest) or origins.isdisjoint(n.origin) or not n.out.dtype.is_int:
            continue
        for e in walk(n.body[0]):
            match e:
                case Apply(op="round", args=(Apply(op="div", args=(_, Read() as scale)),)):
                    found[n.out.name] = scale
                case _:
                    pass
    return found


class _WideRun(Run):
    """A run of a widened graph that rounds as the model's types ask, and multiplies by BLAS."""

    def __init__(
        self,
        graph: Graph,
        inputs: Mapping[str, Array],
        declared: Mapping[str, DType],
        random: np.random.Generator | None,
        most_s: float,
        finer: Mapping[str, Read],
    ) -> None:
        super().__init__(graph, inputs, {})
        self.finer = finer
        self.declared = declared
        self.random = random
        self.flushing = False
        self.views = frozenset[str]()
        self.work = 0.0
        self.most = most_s

    def node(self, n: Node) -> Sequence[Array]:
        self.spend(n)
        results = super().node(n)
        if self.flushing:
            results = [self.flushed(v, x) for v, x in zip(outs(n), results, strict=True)]
        if not isinstance(n, Nest) or n.out.name in self.views:
            return results
        if self.random is not None and n.out.name in self.finer:
            return [self.coarse(n, results[0])]
        summed = n.is_sum
        products = prod(self.shape(n.bound)) if summed else 1
        pairs = zip(n.outs, results, strict=True)
        settled = [self.settled(v.name, x, products) for v, x in pairs]
        if self.random is not None and any(map(is_logistic, n.body)):
            return [self.beside_one(x) for x in settled]
        return settled

    def flushed(self, v: Value, x: Array) -> Array:
        """A value with zeros, of the same signs, in place of subnormal numbers of its type."""
        least = LEAST.get(self.declared.get(v.name, v.dtype))
        if least is None or not x.size:
            return x
        with np.errstate(all="ignore"):
            return np.where(np.abs(x) < least, np.multiply(x, np.zeros_like(x)), x)

    def beside_one(self, x: Array) -> Array:
        """A logistic function some roundings of 1 off, as far as it goes beside its other limit.

        It is commonly computed as a half and a half of a hyperbolic tangent.
        """
        assert self.random is not None
        step = 2 * roundings(1) * unit_roundoff(np.float32)
        moved: Wide = x.astype(np.float64, copy=False) + step * (self.random.random(x.shape) - 0.5)
        return moved

    def settled(self, name: str, x: Array, products: int) -> Array:
        """A value as the type that the model declares would hold it, in this run."""
        dtype = self.declared.get(name)
        if dtype is None or x.dtype != WIDE.numpy:
            return x
        with np.errstate(all="ignore"):
            if self.random is not None:
                return self.rounded(x.astype(np.float64, copy=False), dtype, products)
            return x.astype(dtype.numpy).astype(np.float64) if dtype in NARROW else x

    def rounded(self, x: Wide, dtype: DType, products: int) -> Wide:
        """A value of a type some roundings from each value; the value itself where it is exact."""
        assert self.random is not None
        times = STORED if dtype in NARROW else roundings(products)
        step = np.float64(2 * times * unit_roundoff(dtype.numpy))
        least = 0.0 if dtype in LEAST else least_normal(dtype.numpy)
        given = np.ascontiguousarray(x).reshape(-1)
        result = np.empty_like(given)
        # Some at a time, which stay in a cache.
        for start in range(0, given.size, CACHED):
            part = given[start : start + CACHED]
            moved = self.random.random(part.shape, np.float32) - np.float32(0.5)
            other = part * (1 + step * moved)
            if least:
                # Subnormal numbers lie as far apart as the least of those that are not.
                size = np.abs(part)
                beside = np.copysign(np.maximum(size + step * least * moved, 0.0), part)
                other = np.where(size < least, beside, other)
            other = other.astype(dtype.numpy)
            exact = _is_exact(part, dtype, products)
            result[start : start + CACHED] = np.where(exact, part, other)
        return result.reshape(x.shape)

    def coarse(self, n: Nest, whole: Array) -> Array:
        """Rows in fixed point, moved as far as rounding all of them with one step may move them.

        The step is that of `DynamicQuantizeLinear`: a 255th of the range of all rows, and of 0.
        """
        assert self.random is not None
        scale = self.finer[n.out.name]
        factor = self.at_dims(scale, n.out.dims).astype(np.float64)
        rows = whole.astype(np.float64) * factor
        step = (rows.max(initial=0.0) - rows.min(initial=0.0)) / 255
        moved = rows + ROW_STEPS * step * (self.random.random(rows.shape) - 0.5)
        limits = np.iinfo(n.out.dtype.numpy)
        with np.errstate(all="ignore"):
            numbers: Array = np.clip(np.rint(moved / factor), limits.min, limits.max)
        return numbers.astype(whole.dtype)

    def at_dims(self, r: Read, dims: Sequence[str]) -> Array:
        """A value that is read at a part of the dims, with an axis for each of them."""
        coords = dict(r.coords)
        places = map(coords.get, self.graph.values[r.value].dims)
        own = [i.as_var if isinstance(i, Index) else None for i in places]
        kept = sorted((d for d in own if d is not None), key=list(dims).index)
        whole = self.values[r.value].transpose([own.index(d) for d in kept])
        extents = dict(zip(kept, whole.shape, strict=True))
        return whole.reshape([extents.get(d, 1) for d in dims])

    def spend(self, n: Node) -> None:
        """Counts the work of a node.

        Raises:
            TooMuchWork: there is more than the run may do.
        """
        self.work += work_of(n, lambda dims: prod(self.shape(dims)))
        if self.work > self.most:
            raise TooMuchWork(self.work)

    def nest(self, n: Nest) -> list[Array]:
        if n.is_sum and len(n.body) == 1:
            parts = factors(n.body[0])
            if len(parts) > 1:
                made = self.product(n, parts)
                if made is not None:
                    return [made]
        return super().nest(n)

    def reduce(self, n: Nest, reducer: Reducer, free: Block, bound_shape: tuple[int, ...]) -> State:
        fold = FOLDS.get(reducer.name)
        if fold is None or prod(bound_shape) == 0:
            return super().reduce(n, reducer, free, bound_shape)
        axes = tuple(range(len(n.bound)))
        total: Array | None = None
        for b in blocks(n.bound, bound_shape, max(1, POINTS // prod(free.shape))):
            block = Block(b.dims + free.dims, b.starts + free.starts, b.shape + free.shape)
            (found,) = self.elements(n, block)
            whole = np.broadcast_to(found, block.shape)
            with np.errstate(all="ignore"):
                part = np.asarray(fold.reduce(whole, axis=axes, dtype=found.dtype))
                total = part if total is None else np.asarray(fold(total, part))
                if reducer.name == "sum" and found.dtype == WIDE.numpy:
                    total = self.summed(n, whole.astype(np.float64, copy=False), total, axes)
        assert total is not None
        return (total,)

    def summed(self, n: Nest, summands: Wide, total: Array, axes: tuple[int, ...]) -> Array:
        """A sum; in a run with noise moved as far as adding one summand after another loses.

        A partial sum lies on the grid of the numbers that its type has there, and each summand is
        rounded to that grid. Equal summands are rounded alike: their errors add up, which those of
        random signs do not.
        """
        if self.random is None:
            return total
        wide = self.declared.get(n.out.name) is WIDE
        ulp = 2 * unit_roundoff(np.float64 if wide else np.float32)
        count = prod(summands.shape[axis] for axis in axes)
        # Some runtimes make one sum, others several that they add up at the end.
        several = self.random.uniform(0.0, max(1.0, log2(count) / 2))
        partial = np.maximum(np.abs(total), np.sqrt((summands * summands).sum(axis=axes)))
        grid = ulp * np.exp2(np.floor(np.log2(partial) - several))
        off = (np.rint(summands / grid) * grid - summands).sum(axis=axes)
        moved = total + off * self.random.uniform(-IN_ORDER, IN_ORDER, off.shape)
        return np.where(np.isfinite(moved), moved, total)

    def product(self, n: Nest, parts: Sequence[Expr]) -> Array | None:
        """The sums of products of two factors; None if the factors are no such two."""
        space = (*n.bound, *n.out.dims)
        pair = paired(parts, space)
        if pair is None:
            return None
        extents = dict(zip(space, self.shape(space), strict=True))
        if prod(extents.values()) == 0:
            return None
        uses = [frozenset(index_names(e)) & frozenset(space) for e in pair]
        if self.random is not None and uses[0] == uses[1]:
            # There are as many products as elements of either: their roundings can be looked at.
            return None
        largest = max(uses, key=lambda used: prod(extents[d] for d in used))
        if largest is uses[0]:
            pair, uses = pair[::-1], uses[::-1]
        # The dims of the large factor are split first: the other one is then made once.
        order = sorted(n.out.dims, key=lambda d: d not in largest)
        shape = [extents[d] for d in order]
        points = max(1, OPERAND * prod(shape) // prod(extents[d] for d in largest))
        result = np.empty(self.shape(n.out.dims), n.out.dtype.numpy)
        sums = MatrixSums(tuple(n.bound), tuple(order), (uses[0], uses[1]))
        known: dict[int, Array] = {}
        for block in blocks(order, shape, points):
            split = {d for d in order if block.shape[order.index(d)] < extents[d]}
            whole = Block(
                (*n.bound, *order),
                (*(0,) * len(n.bound), *block.starts),
                (*(extents[d] for d in n.bound), *block.shape),
            )
            operands = []
            for number, e in enumerate(pair):
                if number not in known or split & uses[number]:
                    found = self.factor(e, whole)
                    known[number] = found if number else self.moved(n, found)
                operands.append(known[number])
            part = sums.of(operands[0], operands[1], whole)
            place = tuple(block.slices[order.index(d)] for d in n.out.dims)
            result[place] = part.transpose([order.index(d) for d in n.out.dims])
        return result

    def factor(self, e: Expr, block: Block) -> Array:
        """What is multiplied, for all of a block."""
        env: Env = {**self.symbols, **block.indices}
        return evaluate_expr(e, env, self.values, block)

    def moved(self, n: Nest, x: Array) -> Array:
        """A factor of summed products; in a run with noise moved as far as their sum is rounded.

        That is how sums round: relative to their summands, not to what these leave of each other.
        """
        if self.random is None or x.dtype != WIDE.numpy:
            return x
        wide = self.declared.get(n.out.name) is WIDE
        times = roundings(prod(self.shape(n.bound)))
        step = 2 * times * unit_roundoff(np.float64 if wide else np.float32)
        part = self.random.random(x.shape, np.float32) - np.float32(0.5)
        # Sums of whole numbers are exact.
        moved = x.astype(np.float64, copy=False) * (1 + step * part)
        return np.where(np.rint(x) == x, x, moved)


def _is_exact(x: Wide, dtype: DType, products: int) -> Mask:
    """Where a sum of so many products (of one: a value) is rounded nowhere on its way.

    Eight times 0.1 has a place in the type, five times 0.1 has none: what a sum passes through has
    up to log2(products) bits more than the sum itself, whole numbers apart.
    """
    whole: Mask = np.rint(x) == x
    if dtype is WIDE:
        return whole
    held: Mask = x.astype(dtype.numpy).astype(np.float64) == x
    if products == 1:
        return held
    bits = -log2(unit_roundoff(dtype.numpy)) - log2(max(products, 1))
    significand = np.frexp(x)[0] * 2.0 ** max(0, floor(bits))
    short: Mask = np.rint(significand) == significand
    return held & (whole | short)


def is_logistic(e: Expr) -> bool:
    """Whether an expression is 1 / (1 + exp(x)) of any x."""
    match e:
        case Apply(op="div", args=(Lit(1), Apply(op="add", args=(a, b)))):
            ones = [x for x in (a, b) if isinstance(x, Lit) and x.value == 1]
            return len(ones) == 1 and any(isinstance(x, Apply) and x.op == "exp" for x in (a, b))
        case _:
            return False
