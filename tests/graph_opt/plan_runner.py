"""Runs plans without making code: the kernels of the plan, interpreted, in one arena of bytes.

It does what the host program of an artifact does. The arena is filled with garbage first, and each
value is a window of it at its place, so a layout, a halo, a fusion or a place that is wrong shows
in the outputs.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import prod

import numpy as np

from rutc.graph_opt.plan import (
    Choose,
    Fail,
    FillHalo,
    InTurn,
    Invoke,
    Joined,
    Learn,
    Place,
    Plan,
    PlanStep,
    Repeat,
    RepeatWhile,
    Run,
    Write,
)
from rutc.tensor_ir import Bind, Call, Const
from rutc.tensor_ir.graph import walk_nodes
from rutc.tensor_ir.indices.affine import Index, Range, Size, plain
from rutc.tensor_ir.interpreter.interpret_kernel import interpret_kernel
from rutc.tensor_ir.interpreter.routines import ROUTINES, Job, Result
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.layout import pack
from rutc.tensor_ir.lower import halo_kernel, lower, lower_scatter

GARBAGE = 0x5A


class PlanFailed(Exception):
    """The plan took a branch that ends the run."""


def run_plan(plan: Plan, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs by name, axes in each output's order."""
    runner = _Runner(plan, _symbols(plan, inputs))
    for n in plan.graph.inputs:
        runner.placed(n.out.name, inputs[n.name].shape)[...] = inputs[n.name]
    runner.steps(plan.steps, dict(plan.graph.symbols))
    found = {}
    for o in plan.graph.outputs:
        shape = [runner.extents[d] for d in o.axes]
        found[o.name] = runner.placed(o.value, shape).copy()
    return found


def _symbols(plan: Plan, inputs: Mapping[str, np.ndarray]) -> dict[str, int]:
    """The sizes that the inputs' shapes tell."""
    found: dict[str, int] = {}
    for n in plan.graph.inputs:
        for d, extent in zip(n.axes, inputs[n.name].shape, strict=True):
            name = plan.graph.extents[d].as_var
            if name is not None:
                found[name] = extent
    return found


class _Runner:
    def __init__(self, plan: Plan, symbols: Mapping[str, int]) -> None:
        self.plan = plan
        self.symbols = dict(symbols)
        self.sizes = {d: plain(e) for d, e in plan.graph.dims}
        self.extents: dict[str, int] = {}
        self.blocks: dict[int, np.ndarray] = {}
        self.set_extents()
        self.memory: dict[str, np.ndarray] = {}
        arena = np.full(self.value(plan.arena_bytes), GARBAGE, np.uint8)
        for name, place in plan.places.items():
            if place.space == "block":
                continue
            offset, size = self.value(place.offset), self.value(place.bytes)
            base = arena[offset:] if place.space == "arena" else _garbage(size)
            self.memory[name] = base[:size].view(plan.values[name].dtype.numpy)
        ports: dict[tuple[str, int], np.ndarray] = {}
        own = [p for p in plan.places.values() if p.space in ("input", "output")]
        for place in sorted(own, key=lambda p: -self.end(p)):
            ports.setdefault((place.space, place.index), _garbage(self.end(place)))
        for name, place in plan.places.items():
            if place.space in ("input", "output"):
                base = ports[place.space, place.index][self.value(place.offset) :]
                self.memory[name] = base.view(plan.values[name].dtype.numpy)
        self.constants: dict[str, Const] = {}
        for n in walk_nodes(plan.graph.nodes):
            if isinstance(n, Const):
                self.constants[n.out.name] = n
                data = pack(n.data.array, n.axes, plan.layouts[n.out.name])
                self.memory[n.out.name] = data.copy()
        self.counters: dict[str, int] = dict(symbols)
        self.draws: Counter[str] = Counter()

    def end(self, place: Place) -> int:
        """The bytes up to the end of a value."""
        return self.value(place.offset) + self.value(place.bytes)

    def placed(self, name: str, shape: Sequence[int]) -> np.ndarray:
        """An input's or output's elements where its layout has them."""
        memory, layout = self.memory[name], self.plan.layouts[name].at(self.symbols)
        steps = [int(Index.of(a.stride).value) * memory.itemsize for a in layout.axes]
        return np.lib.stride_tricks.as_strided(memory, tuple(shape), steps)

    def set_extents(self) -> None:
        """The extents that the symbols known so far tell."""
        for d, e in self.plan.graph.dims:
            if e.names() <= self.symbols.keys():
                self.extents[d] = self.value(e)

    def reserve(self, names: Iterable[str]) -> None:
        """Make the blocks of values large enough, their content lost."""
        for name in names:
            place = self.plan.places[name]
            if place.space != "block":
                continue
            size = self.value(place.bytes)
            if place.index not in self.blocks or len(self.blocks[place.index]) < size:
                self.blocks[place.index] = _garbage(size)
            block = self.blocks[place.index][:size]
            self.memory[name] = block.view(self.plan.values[name].dtype.numpy)

    def learn(self, bind: Bind) -> None:
        value = int(self.memory[bind.value][0])
        low, high = dict(self.plan.graph.symbols)[bind.symbol]
        if not low <= value <= high:
            raise PlanFailed(f"{bind.symbol} = {value}")
        self.memory[bind.out.name][:1] = value
        self.symbols[bind.symbol] = self.counters[bind.symbol] = value
        self.set_extents()

    def value(self, size: Size) -> int:
        return int(Index.of(size).evaluate(self.symbols))

    def steps(self, steps: tuple[PlanStep, ...], symbols: Mapping[str, Range]) -> None:
        for s in steps:
            match s:
                case Run(group):
                    self.reserve(group.stored)
                    layouts = self.plan.layouts
                    self.kernel(lower(group, self.plan.values, layouts, self.sizes, symbols))
                case Write(node):
                    self.memory[node.out.name] = self.memory[node.base]
                    layouts, known = self.plan.layouts, self.plan.values
                    self.kernel(lower_scatter(node, known, layouts, self.sizes, symbols))
                case FillHalo(value, turn):
                    self.reserve((value,))
                    layout, known = self.plan.layouts[value], self.plan.values[value]
                    kernel = halo_kernel(known, layout, self.sizes, symbols, turn)
                    if kernel is not None:
                        self.kernel(kernel)
                case Repeat():
                    self.repeat(s, symbols)
                case InTurn():
                    self.steps(s.steps, symbols)
                case RepeatWhile():
                    self.repeat_while(s, symbols)
                case Invoke(call):
                    self.reserve(v.name for v in call.outs)
                    self.call(call)
                case Learn(bind):
                    self.learn(bind)
                case Choose():
                    self.reserve(s.results)
                    taken = bool(self.memory[s.cond][0])
                    self.steps(s.then if taken else s.orelse, symbols)
                    values = s.then_values if taken else s.orelse_values
                    for out, v in zip(s.results, values, strict=True):
                        self.copy(out, v)
                case Joined():
                    pass
                case Fail(message):
                    raise PlanFailed(message)

    def repeat(self, s: Repeat, symbols: Mapping[str, Range]) -> None:
        self.reserve((*(c.param.name for c in s.carries), *s.results))
        self.reserve(out for _, out in s.collect)
        for c in s.carries:
            self.copy(c.param.name, c.init)
        trips = self.value(s.trips)
        for trip in range(trips):
            self.counters[s.dim] = trip
            self.steps(s.steps, {**symbols, s.dim: (0, max(trips - 1, 0))})
            for source, out in s.collect:
                self.collect(source, out, s.dim, trip)
            for c in s.carries:
                self.copy(c.param.name, c.next)
        for out, c in zip(s.results, s.carries, strict=True):
            self.copy(out, c.param.name)

    def repeat_while(self, s: RepeatWhile, symbols: Mapping[str, Range]) -> None:
        self.reserve((*(c.param.name for c in s.carries), *s.results))
        for c in s.carries:
            self.copy(c.param.name, c.init)
        while self.memory[s.cond][0]:
            self.steps(s.steps, symbols)
            for c in s.carries:
                self.copy(c.param.name, c.next)
        for out, c in zip(s.results, s.carries, strict=True):
            self.copy(out, c.param.name)

    def call(self, call: Call) -> None:
        args = [
            self.constant(v, axes) if v in self.constants else self.whole(v, axes)
            for v, axes in zip(call.args, call.arg_axes, strict=True)
        ]
        outs = [self.whole(v.name, axes) for v, axes in zip(call.outs, call.out_axes, strict=True)]
        results = tuple(Result(v.dtype, o.shape) for v, o in zip(call.outs, outs, strict=True))
        job = Job(args, results, dict(call.attributes), call.origin, self.draws[call.outs[0].name])
        self.draws[call.outs[0].name] += 1
        for target, made in zip(outs, ROUTINES[call.routine](job), strict=True):
            target[...] = made

    def constant(self, name: str, axes: tuple[str, ...]) -> np.ndarray:
        n = self.constants[name]
        return n.data.array.transpose([n.axes.index(d) for d in axes])

    def whole(self, name: str, axes: tuple[str, ...]) -> np.ndarray:
        shape = [self.extents[d] for d in axes]
        return self.memory[name][: prod(shape)].reshape(shape)

    def collect(self, source: str, out: str, dim: str, trip: int) -> None:
        layouts = {n: self.plan.layouts[n].at(self.symbols) for n in (source, out)}
        dims = self.plan.values[source].dims
        for point in np.ndindex(*(self.extents[d] for d in dims)):
            at = dict(zip(dims, point, strict=True))
            element = self.memory[source][layouts[source].position(at)]
            self.memory[out][layouts[out].position({**at, dim: trip})] = element

    def copy(self, target: str, source: str) -> None:
        # Bytes, as the host program copies them: both sides must have one layout.
        v = self.plan.values[target]
        count = prod(self.extents[d] for d in v.dims)
        self.memory[target][:count] = self.memory[source][:count]

    def kernel(self, kernel: Kernel) -> None:
        args = {b.name: self.memory[b.name] for b in kernel.args}
        for b in kernel.args:
            # What lies in memory that has room for more ends before that does.
            args[b.name] = args[b.name][: b.layout.at(self.counters).elements]
        interpret_kernel(kernel, args, self.counters)


def _garbage(size: int) -> np.ndarray:
    return np.full(size, GARBAGE, np.uint8)
