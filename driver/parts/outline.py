"""The outline of an artifact: what the steps of its plans read and write, where it lies, and when.

A section of the library has it as JSON (`rutc.emit.linking.library`). No run reads it: it is there
to be looked at (`rutc inspect --html`).

    outline := machine, plan*            numbers that depend on sizes are those at common sizes
    plan    := value*, weight*, step*    steps name values and weights by their numbers
    value   := name, type, dims and extents, layout, place, bytes, first and last time of its life
    step    := time, kind, name, depth, kernel's number in the manifest, values read and written,
               the bytes of each that it touches

Times are those by which the planner tells whether values may share memory
(`rutc.graph_opt.decide.memory.Lifetimes`): a step begins at one, and what it defines lives from
there on. Steps inside of others are `depth` steps in. A loop is two steps around those of its body,
the second being its `end`; a choice is one before its branches, and the end of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

from rutc.base.record import record
from rutc.driver.parts.launches import Launched
from rutc.driver.parts.plan_steps import PlanSteps
from rutc.emit.host_program.kernel_call import KernelId
from rutc.graph_opt.decide.memory import Lifetimes
from rutc.graph_opt.exprs import is_gathered
from rutc.graph_opt.plan import (
    Choose,
    Fail,
    FillHalo,
    InTurn,
    Invoke,
    Joined,
    Learn,
    PlanStep,
    Repeat,
    RepeatWhile,
    Run,
    Write,
    fails,
    groups_of,
)
from rutc.tensor_ir.expr import Apply, Expr, reads, walk
from rutc.tensor_ir.graph import Nest, outs, used, walk_nodes
from rutc.tensor_ir.indices.affine import Size, typical
from rutc.tensor_ir.kernel import Buffer
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.textual.text import node_lines, value_name

MOST_OPERATIONS = 64
"""Of a nest whose text is told: transforms of filters, forests and polynomials have more."""


@record
class ValueOutline:
    """A value in memory: `space` is arena, block, input, output, or near (a thread's own).

    Sizes that a run tells are formulas in `extents`; `offset` and `bytes` are those at common
    ones. `first` and `last` are None for what a run does not define.
    """

    name: str
    dtype: str
    extents: Mapping[str, int | str]
    layout: str
    space: str
    index: int
    offset: int
    bytes: int
    first: int | None
    last: int | None
    origin: tuple[str, ...]


@record
class WeightOutline:
    """A constant as a kernel wants it packed, at an offset in bytes of the weights."""

    name: str
    dtype: str
    extents: Mapping[str, int | str]
    layout: str
    offset: int
    bytes: int


@record
class StepOutline:
    """A step; `kernel` is None for what is no launch. `nests` are what a kernel computes, as text.

    `kind` is products, reduction, gather, copy or elementwise for kernels of a fusion group or of
    a chain of them, by what they do most; scatter, halo or collect for others; routine, join, size,
    fail, loop, while, if, turns or end for what is no kernel. A run does it `runs` times, at common
    sizes, as far as it is known. A kernel touches so many bytes of each of `reads`, `writes` and
    `weights`, which `touched` has in this order; it is empty of other steps.
    """

    time: int
    kind: str
    name: str
    depth: int
    runs: int
    kernel: int | None
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    weights: tuple[int, ...]
    origin: tuple[str, ...]
    nests: tuple[str, ...]
    touched: tuple[int, ...] = ()


@record
class PlanOutline:
    """A plan: it runs where the size `where` is positive, and elsewhere if it is empty.

    `end` is the time at which a run is over.
    """

    where: str
    arena_bytes: int
    end: int
    values: tuple[ValueOutline, ...]
    weights: tuple[WeightOutline, ...]
    steps: tuple[StepOutline, ...]


@record
class Outline:
    """All plans of an artifact in the order of their kernels, and the machine that they are for."""

    machine: Mapping[str, int | float | str]
    plans: tuple[PlanOutline, ...]

    def facts(self) -> dict[str, object]:
        """The same as JSON."""
        return asdict(self)


def outline(
    machine: Machine,
    parts: Sequence[PlanSteps],
    conditions: Sequence[str],
    launched: Mapping[KernelId, Launched],
) -> Outline:
    """The outline of plans whose kernels are made; the conditions are those of all but the last."""
    told = {f.name: getattr(machine, f.name) for f in fields(machine)}
    rates = {name: x for name, x in told.items() if isinstance(x, int | float | str)}
    plans = (
        _Walk(part, launched).plan_outline(where)
        for part, where in zip(parts, (*conditions, ""), strict=True)
    )
    return Outline(rates, tuple(plans))


def kind_of(nests: Sequence[Nest]) -> str:
    """What nests of one kernel do most: the first of the kinds below that one of them is of."""
    bodies = [e for n in nests for e in n.body]
    if any(n.is_sum and any(_multiplies(e) for e in n.body) for n in nests):
        return "products"
    if any(n.reducer is not None for n in nests):
        return "reduction"
    if any(is_gathered(r) for e in bodies for r in reads(e)):
        return "gather"
    return "copy" if all(n.is_view for n in nests) else "elementwise"


def _multiplies(e: Expr) -> bool:
    """Whether an expression multiplies what it reads by each other."""
    products = (x for x in walk(e) if isinstance(x, Apply) and x.op == "mul")
    return any(all(any(reads(a)) for a in x.args) for x in products)


class _Walk:
    """Goes through a plan's steps, counting time as `Lifetimes` does."""

    def __init__(self, part: PlanSteps, launched: Mapping[KernelId, Launched]) -> None:
        self.part = part
        self.plan = part.plan
        self.launched = launched
        self.time = 0
        self.depth = 0
        self.runs = 1
        self.inside = 0
        """The number of chains around the steps at hand, which are no steps of their own."""
        self.steps: list[StepOutline] = []
        self.values: dict[str, int] = {}
        self.weights: list[WeightOutline] = []
        self.packed: dict[tuple[str, int], int] = {}
        """The numbers of weights by names and offsets."""
        self.origins = {
            v.name: n.origin for n in walk_nodes(self.plan.graph.nodes) for v in outs(n)
        }

    def plan_outline(self, where: str) -> PlanOutline:
        """The outline of the plan."""
        times = Lifetimes({})
        times.visit(self.plan.steps)
        self._visit(self.plan.steps)
        assert self.time == times.time, "both count the same steps"
        end = times.time + 1
        given = {o.value for o in self.plan.graph.outputs}
        values: list[ValueOutline] = []
        for name in self.values:
            life = times.lives.get(name)
            last = None if life is None else end if name in given else life.last
            values.append(self._value(name, None if life is None else life.first, last))
        arena = self._common(self.plan.arena_bytes)
        return PlanOutline(where, arena, end, tuple(values), tuple(self.weights), tuple(self.steps))

    # -- steps ----------------------------------------------------------------------------------
    def _visit(self, steps: Iterable[PlanStep]) -> None:
        for s in steps:
            self.time += 1
            match s:
                case Run(group):
                    self._launch(s, kind_of(group.stages), group.stages)
                case Write():
                    self._launch(s, "scatter")
                case FillHalo():
                    self._launch(s, "halo")
                case Repeat() if s.parts:
                    stages = [n for g in groups_of(s.steps) for n in g.stages]
                    self._launch(s, kind_of(stages), stages)
                    self.inside += 1
                    self._visit(s.steps)
                    self.inside -= 1
                    self.time += 1
                case Repeat():
                    self._loop(s)
                case InTurn():
                    self._add("turns", s.dim)
                    self._body(s.steps)
                    self.time += 1
                case RepeatWhile():
                    self._while(s)
                case Joined(node):
                    self._add("join", node.out.name, used(node), [node.out.name], node.origin)
                case Learn(bind):
                    read, written = [bind.value], [bind.out.name]
                    self._add("size", bind.symbol, read, written, bind.origin)
                case Invoke(call):
                    written = [v.name for v in call.outs]
                    self._add("routine", call.routine, call.args, written, call.origin)
                case Choose():
                    self._choose(s)
                case Fail(message):
                    self._add("fail", message)

    def _body(self, steps: Iterable[PlanStep], runs: int = 1) -> None:
        """Steps inside of the last one, done so many times for each of its runs."""
        before = self.runs
        self.depth, self.runs = self.depth + 1, before * max(runs, 0)
        self._visit(steps)
        self.depth, self.runs = self.depth - 1, before

    def _loop(self, s: Repeat) -> None:
        params = [c.param.name for c in s.carries]
        self._add("loop", s.dim, [c.init for c in s.carries], params, s.origin)
        runs = self._common(s.trips)
        self._body(s.steps, runs)
        self.time += 1
        if not fails(s.steps):
            own = self.part.launched_by(s)
            before, self.depth, self.runs = self.runs, self.depth + 1, self.runs * runs
            for number in own[len(own) - len(s.collect) :]:
                self._kernel(number, "collect", ())
            self.depth, self.runs = self.depth - 1, before
        nexts = [*(c.next for c in s.carries), *(out for _, out in s.collect)]
        self._add("end", s.dim, nexts, s.results, s.origin)

    def _while(self, s: RepeatWhile) -> None:
        params = [c.param.name for c in s.carries]
        self._add("while", s.cond, [c.init for c in s.carries], params, s.origin)
        self._body(s.steps)
        self.time += 1
        self._add("end", s.cond, [c.next for c in s.carries], s.results, s.origin)

    def _choose(self, s: Choose) -> None:
        self._add("if", s.cond, [s.cond], (), s.origin)
        for steps, values in ((s.then, s.then_values), (s.orelse, s.orelse_values)):
            self._body(steps)
            self.time += 1
            self._add("end", s.cond, values, s.results if values else (), s.origin)

    def _launch(self, s: PlanStep, kind: str, nests: Iterable[Nest] = ()) -> None:
        """The step of a kernel; of a halo that is empty, and in a chain, there is none."""
        for number in () if self.inside else self.part.launched_by(s):
            self._kernel(number, kind, tuple(_texts(nests)))

    def _kernel(self, number: int, kind: str, nests: tuple[str, ...]) -> None:
        pending = self.part.pending[number]
        made = self.launched[pending.id]
        read: dict[str, int] = {}
        written: dict[str, int] = {}
        weights: dict[int, int] = {}
        operands = self.part.operands(pending, made.made)
        arguments = made.made.arguments
        refs = made.args[: len(arguments)]
        for b, argument, ref in zip(operands, arguments, refs, strict=True):
            if b.name in self.part.constants:
                weights[self._weight(b, self._common(ref.offset))] = argument.touched
            else:
                (written if argument.written else read)[b.name] = argument.touched
        if self.inside:
            return
        reads, writes = self._numbers(read), self._numbers(written)
        touched = {**read, **written}
        self.steps.append(
            replace(
                self._step(kind, pending.name, reads, writes, pending.origin),
                kernel=int(pending.id),
                weights=tuple(weights),
                nests=nests,
                touched=(*(touched[v] for v in (*reads, *writes)), *weights.values()),
            )
        )

    def _add(
        self,
        kind: str,
        name: str,
        read: Iterable[str] = (),
        written: Iterable[str] = (),
        origin: tuple[str, ...] = (),
    ) -> None:
        """Another step, of what is no kernel."""
        if not self.inside:
            step = self._step(kind, name, self._numbers(read), self._numbers(written), origin)
            self.steps.append(step)

    def _numbers(self, names: Iterable[str]) -> dict[str, int]:
        """Stored values, each with its number: not constants, and not what has no place."""
        constants, places = self.part.constants, self.plan.places
        stored = (v for v in names if v not in constants and v in places)
        return {v: self.values.setdefault(v, len(self.values)) for v in stored}

    def _step(
        self,
        kind: str,
        name: str,
        reads: Mapping[str, int],
        writes: Mapping[str, int],
        origin: tuple[str, ...],
    ) -> StepOutline:
        """A step that is done now, without what only kernels have."""
        return StepOutline(
            self.time,
            kind,
            name,
            self.depth,
            self.runs,
            kernel=None,
            reads=tuple(reads.values()),
            writes=tuple(writes.values()),
            weights=(),
            origin=origin,
            nests=(),
        )

    # -- values ---------------------------------------------------------------------------------
    def _value(self, name: str, first: int | None, last: int | None) -> ValueOutline:
        value, place = self.plan.values[name], self.plan.places[name]
        b = Buffer(name, value.dtype, self.plan.layouts[name])
        return ValueOutline(
            name,
            value.dtype.stored_name,
            self._extents(value.dims),
            str(b.layout),
            place.space,
            place.index,
            self._common(place.offset),
            self._common(b.bytes),
            first,
            last,
            self.origins.get(name, ()),
        )

    def _weight(self, b: Buffer, offset: int) -> int:
        number = self.packed.setdefault((b.name, offset), len(self.weights))
        if number == len(self.weights):
            extents = self._extents(self.plan.values[b.name].dims)
            about = b.name, b.dtype.stored_name, extents, str(b.layout)
            self.weights.append(WeightOutline(*about, offset, self._common(b.bytes)))
        return number

    def _extents(self, dims: Iterable[str]) -> dict[str, int | str]:
        sizes = ((d, self.part.extents[d]) for d in dims)
        return {d: x if isinstance(x, int) else str(x) for d, x in sizes}

    def _common(self, size: Size) -> int:
        return typical(size, self.part.sizes)


def _texts(nests: Iterable[Nest]) -> Iterator[str]:
    """The texts of nests; of those that nobody would read, how long they are."""
    for n in nests:
        if n.operations <= MOST_OPERATIONS:
            yield "\n".join(node_lines(n))
        else:
            names = ", ".join(value_name(v.name) for v in n.outs)
            yield f"{names} = an expression of {n.operations} operations"


def read_outline(facts: Mapping[str, Any]) -> Outline:
    """What `Outline.facts` gave, after it was JSON. Raises KeyError or TypeError for another."""
    return Outline(facts["machine"], tuple(_plan(p) for p in facts["plans"]))


def _plan(facts: Mapping[str, Any]) -> PlanOutline:
    return PlanOutline(
        facts["where"],
        facts["arena_bytes"],
        facts["end"],
        tuple(ValueOutline(**_fixed(v)) for v in facts["values"]),
        tuple(WeightOutline(**_fixed(w)) for w in facts["weights"]),
        tuple(StepOutline(**_fixed(s)) for s in facts["steps"]),
    )


def _fixed(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a record, whose tuples are lists in JSON."""
    return {name: tuple(x) if isinstance(x, list) else x for name, x in facts.items()}
