"""The interpreter: the meaning of the graph language, and the oracle of every test.

Slow and obvious: every nest is computed over its whole iteration space with numpy, in blocks of at
most `POINTS` points, so that temporaries stay below 256 MiB whatever the space. Reducers know no
special case: bound dims are folded pairwise with the reducer's own `merge`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from types import EllipsisType
from typing import assert_never

import numpy as np

from rutc.errors import InternalError, UserError
from rutc.tensor_ir.graph import (
    Bind,
    Call,
    Carry,
    Const,
    Data,
    Graph,
    If,
    Input,
    Nest,
    Node,
    Scan,
    Scatter,
    While,
    outs,
)
from rutc.tensor_ir.indices.affine import Index
from rutc.tensor_ir.interpreter.evaluate import Block, Env, blocks, evaluate_expr, literal
from rutc.tensor_ir.interpreter.routines import ROUTINES, Job, Result
from rutc.tensor_ir.reducer import Reducer, as_locals
from rutc.tensor_ir.running import Prefix, running_nest

POINTS = 1 << 20
"""Points of one block: with 8 bytes an element and 32 live temporaries, 256 MiB."""

State = tuple[np.ndarray, ...]


def interpret(
    graph: Graph,
    inputs: Mapping[str, np.ndarray],
    symbols: Mapping[str, int] | None = None,
) -> dict[str, np.ndarray]:
    """The outputs by name, axes in each output's order.

    Args:
        graph: A verified graph.
        inputs: An array for every input, by name, axes in the input's order.
        symbols: Sizes of symbols; those that are an input's extent may be left out.

    Raises:
        UserError: Inputs or symbols are missing or do not fit.
        InternalError: The graph is invalid or calls an unknown routine.
    """
    values = interpret_values(graph, inputs, symbols)
    results = {}
    for o in graph.outputs:
        dims = graph.values[o.value].dims
        results[o.name] = values[o.value].transpose([dims.index(d) for d in o.axes])
    return results


def interpret_values(
    graph: Graph,
    inputs: Mapping[str, np.ndarray],
    symbols: Mapping[str, int] | None = None,
) -> dict[str, np.ndarray]:
    """Every value by name, axes in the order of its sorted dims; of bodies, the last trip's."""
    run = Run(graph, inputs, dict(symbols or {}))
    run.nodes(graph.nodes)
    return run.values


class Run:
    """One interpretation: the values and symbols known so far (`verify.truth` has another)."""

    def __init__(
        self, graph: Graph, inputs: Mapping[str, np.ndarray], symbols: dict[str, int]
    ) -> None:
        self.graph = graph
        self.inputs = inputs
        self.bounds = dict(graph.symbols)
        self.symbols = {name: int(size) for name, size in symbols.items()}
        self.values: dict[str, np.ndarray] = {}
        self.draws: Counter[str] = Counter()
        for n in graph.inputs:
            if n.name not in inputs:
                raise UserError(f"input {n.name!r} is missing; given are {sorted(inputs)}")
            self.bind_sizes(n.axes, np.asarray(inputs[n.name]).shape)

    def bind_sizes(self, axes: Sequence[str], shape: Sequence[int]) -> None:
        """Learn the symbols that are themselves an axis's extent."""
        for d, size in zip(axes, shape, strict=False):
            multiple = self.graph.extents[d].as_multiple
            if multiple is not None and size % multiple[0] == 0:
                symbol, size = multiple[1], size // multiple[0]
                low, high = self.bounds.get(symbol, (size, size))
                if not low <= self.symbols.setdefault(symbol, size) <= high:
                    raise UserError(f"the size {symbol} is {size}, outside of {low}..{high}")

    def shape(self, dims: Sequence[str]) -> tuple[int, ...]:
        """The extents of `dims`."""
        return tuple(self.size(self.graph.extents[d]) for d in dims)

    def size(self, x: Index) -> int:
        """The value of an extent."""
        missing = sorted(x.names() - self.symbols.keys())
        if missing:
            raise UserError(f"the size {x} needs values for {', '.join(missing)}")
        return int(x.evaluate(self.symbols))

    def nodes(self, nodes: Sequence[Node]) -> None:
        """Computes nodes in order."""
        for n in nodes:
            results = self.node(n)
            for v, array in zip(outs(n), results, strict=True):
                if array.dtype != v.dtype.numpy or array.shape != self.shape(v.dims):
                    raise InternalError(
                        f"%{v.name} is {v.dtype}{list(self.shape(v.dims))} but computing it "
                        f"gave {array.dtype}{list(array.shape)}"
                    )
                self.values[v.name] = array

    def node(self, n: Node) -> Sequence[np.ndarray]:
        """The values of a node's outputs."""
        match n:
            case Input():
                return [self.input(n)]
            case Const():
                return [_sort_axes(n.data.array, n.axes)]
            case Nest():
                return self.nest(n)
            case Scan():
                return self.scan(n)
            case If():
                branch = n.then if bool(self.values[n.cond]) else n.orelse
                self.nodes(branch.nodes)
                return [self.values[r] for r in branch.results]
            case While():
                self.enter(n.carries)
                while bool(self.values[n.cond]):
                    self.nodes(n.body)
                    self.step(n.carries)
                return [self.values[c.param.name] for c in n.carries]
            case Scatter():
                return [self.scatter(n)]
            case Call():
                return self.call(n)
            case Bind():
                return [self.bind(n)]
            case _:
                assert_never(n)

    def input(self, n: Input) -> np.ndarray:
        """The array given for an input, if it fits."""
        array = np.asarray(self.inputs[n.name])
        wanted = self.shape(n.axes)
        if array.dtype != n.out.dtype.numpy or array.shape != wanted:
            raise UserError(
                f"input {n.name!r} is {n.out.dtype} of shape {list(wanted)} "
                f"but {array.dtype} of shape {list(array.shape)} is given"
            )
        if n.fixed is not None and Data(array.copy()) != n.fixed:
            raise UserError(f"input {n.name!r} must be {n.fixed}, which the model is compiled for")
        return _sort_axes(array, n.axes)

    def nest(self, n: Nest) -> list[np.ndarray]:
        """The outputs of a nest, block by block."""
        free = n.out.dims
        whole = self.shape(free)
        results = [np.empty(whole, v.dtype.numpy) for v in n.outs]
        if prod(whole) == 0:
            return results
        bound_shape = self.shape(n.bound)
        inner = max(1, POINTS // max(1, prod(bound_shape)))
        prefix = running_nest(n, lambda d: self.size(self.graph.extents[d]))
        if prefix is not None:
            return self.running(n, prefix)
        for block in blocks(free, whole, inner):
            if n.reducer is None:
                parts: Sequence[np.ndarray] = self.elements(n, block)
            else:
                parts = self.reduce(n, n.reducer, block, bound_shape)
            for result, part in zip(results, parts, strict=True):
                # With the ellipsis, an object is not wrapped in an array.
                place: tuple[slice | EllipsisType, ...] = (*block.slices, ...)
                result[place] = np.broadcast_to(part, block.shape)
        return results

    def running(self, n: Nest, prefix: Prefix) -> list[np.ndarray]:
        """The outputs of a running reduction, each from the one before."""
        assert n.reducer is not None
        free, whole = n.out.dims, self.shape(n.out.dims)
        block = Block(free, (0,) * len(free), whole)
        elements = self.elements(replace(n, body=prefix.elements), block)
        lifted = [np.broadcast_to(x, whole) for x in _lift(n.reducer, tuple(elements))]
        rows = [np.moveaxis(x, free.index(prefix.along), 0) for x in lifted]
        rows = [x[::-1] if prefix.back else x for x in rows]
        state: State = tuple(
            np.broadcast_to(literal(i), rows[0].shape[1:]) for i in n.reducer.identity
        )
        results = [np.empty(whole, v.dtype.numpy) for v in n.outs]
        places = [np.moveaxis(x, free.index(prefix.along), 0) for x in results]
        places = [x[::-1] if prefix.back else x for x in places]
        for t in range(len(rows[0])):
            state = merge(n.reducer, state, tuple(x[t] for x in rows))
            for place, part in zip(places, _finish(n.reducer, state), strict=True):
                place[t, ...] = part
        return results

    def reduce(self, n: Nest, reducer: Reducer, free: Block, bound_shape: tuple[int, ...]) -> State:
        """The outputs over the free dims of one block: bound dims folded, then finished."""
        total: State = tuple(np.broadcast_to(literal(i), free.shape) for i in reducer.identity)
        if prod(bound_shape) > 0:
            for b in blocks(n.bound, bound_shape, max(1, POINTS // prod(free.shape))):
                block = Block(b.dims + free.dims, b.starts + free.starts, b.shape + free.shape)
                flat = (prod(b.shape), *free.shape)
                lifted = _lift(reducer, self.elements(n, block))
                state = tuple(np.broadcast_to(x, block.shape).reshape(flat) for x in lifted)
                total = merge(reducer, total, fold(reducer, state))
        return _finish(reducer, total)

    def elements(self, n: Nest, block: Block) -> State:
        """The bodies of a nest over a block."""
        env: Env = {**self.symbols, **block.indices}
        return tuple(evaluate_expr(e, env, self.values, block) for e in n.body)

    def enter(self, carries: Sequence[Carry]) -> None:
        """Gives the carried parameters their first values."""
        self.values.update({c.param.name: self.values[c.init] for c in carries})

    def step(self, carries: Sequence[Carry]) -> None:
        """Gives the carried parameters the values of the next trip."""
        self.values.update({c.param.name: self.values[c.next] for c in carries})

    def scan(self, n: Scan) -> list[np.ndarray]:
        """The last carried values, and the collected ones."""
        trips = self.size(self.graph.extents[n.dim])
        collected = [np.empty(self.shape(v.dims), v.dtype.numpy) for v in n.outs[len(n.carries) :]]
        self.enter(n.carries)
        for t in range(trips):
            self.symbols[n.dim] = t
            self.nodes(n.body)
            for name, v, array in zip(
                n.collected, n.outs[len(n.carries) :], collected, strict=True
            ):
                np.moveaxis(array, v.dims.index(n.dim), 0)[t, ...] = self.values[name]
            self.step(n.carries)
        self.symbols.pop(n.dim, None)
        return [*(self.values[c.param.name] for c in n.carries), *collected]

    def scatter(self, n: Scatter) -> np.ndarray:
        """The base with all elements combined into it."""
        result = self.values[n.base].copy()
        dims = tuple(sorted(n.dims))
        space = self.shape(dims)
        if prod(space) == 0 or result.size == 0:
            return result
        for block in blocks(dims, space, POINTS):
            env: Env = {**self.symbols, **block.indices}
            positions = [
                np.asarray(c.evaluate(env), np.int64)
                if isinstance(c, Index)
                else evaluate_expr(c, env, self.values, block)
                for _, c in n.coords
            ]
            items = evaluate_expr(n.body, env, self.values, block)
            at = [np.broadcast_to(p, block.shape).ravel() for p in positions]
            items = np.broadcast_to(items, block.shape).ravel()
            inside = np.ones(items.shape, np.bool_)
            for p, extent in zip(at, result.shape, strict=True):
                inside &= (p >= 0) & (p < extent)
            flat = np.zeros(items.shape, np.int64)
            for p, extent in zip(at, result.shape, strict=True):
                flat = flat * extent + p
            _combine(n.reducer, result.reshape(-1), flat[inside], items[inside])
        return result

    def bind(self, n: Bind) -> np.ndarray:
        """The value of a size that the program computes."""
        size = int(self.values[n.value])
        low, high = self.bounds[n.symbol]
        if not low <= size <= high:
            names = ", ".join(n.origin) or "the model"
            raise UserError(f"{names}: the size {n.symbol} is {size}, outside of {low}..{high}")
        self.symbols[n.symbol] = size
        return self.values[n.value]

    def call(self, n: Call) -> Sequence[np.ndarray]:
        """The results of a routine."""
        if n.routine not in ROUTINES:
            raise InternalError(
                f"the interpreter has no routine {n.routine!r} (called for "
                f"%{n.outs[0].name}); it has {sorted(ROUTINES)}"
            )
        arguments = [
            self.values[a].transpose([self.graph.values[a].dims.index(d) for d in axes])
            for a, axes in zip(n.args, n.arg_axes, strict=True)
        ]
        results = tuple(
            Result(v.dtype, self.shape(axes)) for v, axes in zip(n.outs, n.out_axes, strict=True)
        )
        name = n.outs[0].name
        job = Job(arguments, results, dict(n.attributes), n.origin, self.draws[name])
        self.draws[name] += 1
        made = ROUTINES[n.routine](job)
        return [_sort_axes(a, axes) for a, axes in zip(made, n.out_axes, strict=True)]


# -- reducers -----------------------------------------------------------------------------------
def merge(r: Reducer, a: State, b: State) -> State:
    """Two states merged, elementwise."""
    return tuple(evaluate_expr(m, as_locals(a=a, b=b), {}) for m in r.merge)


def fold(r: Reducer, state: State) -> State:
    """All states along the first axis (not empty) merged into one, pairwise."""
    odd: list[State] = []
    count = state[0].shape[0]
    while count > 1:
        half = count // 2
        if count % 2:
            odd.append(tuple(s[-1] for s in state))
        state = merge(r, tuple(s[:half] for s in state), tuple(s[half : 2 * half] for s in state))
        state = tuple(np.broadcast_to(s, (half, *s.shape[1:])) for s in state)
        count = half
    total: State = tuple(s[0] for s in state)
    for tail in odd:
        total = merge(r, total, tail)
    return total


def _lift(r: Reducer, elements: State) -> State:
    return tuple(evaluate_expr(e, as_locals(x=elements), {}) for e in r.lift)


def _finish(r: Reducer, state: State) -> State:
    return tuple(evaluate_expr(e, as_locals(s=state), {}) for e in r.finish)


def _combine(r: Reducer | None, target: np.ndarray, at: np.ndarray, items: np.ndarray) -> None:
    """`items` combined into the flat array `target` at the positions `at`; None keeps the last."""
    if r is None:
        target[at] = items
        return
    order = np.argsort(at, kind="stable")
    at = at[order]
    state = tuple(np.broadcast_to(s, at.shape) for s in _lift(r, (items[order],)))
    while (at[1:] == at[:-1]).any():
        at, state = _halve_runs(r, at, state)
    start = tuple(np.broadcast_to(s, at.shape) for s in _lift(r, (target[at],)))
    (target[at],) = _finish(r, merge(r, start, state))


def _halve_runs(r: Reducer, at: np.ndarray, state: State) -> tuple[np.ndarray, State]:
    """States of neighbours merged in every run of equal, sorted positions."""
    same = at[1:] == at[:-1]
    place = np.arange(len(at))
    place -= np.maximum.accumulate(np.where(np.concatenate([[True], ~same]), place, 0))
    kept = place % 2 == 0
    first = np.flatnonzero(kept[:-1] & same)
    merged = merge(r, tuple(s[first] for s in state), tuple(s[first + 1] for s in state))
    state = tuple(s.copy() for s in state)
    for s, m in zip(state, merged, strict=True):
        s[first] = m
    return at[kept], tuple(s[kept] for s in state)


def _sort_axes(array: np.ndarray, axes: Sequence[str]) -> np.ndarray:
    return array.transpose([axes.index(d) for d in sorted(axes)])
