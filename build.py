"""From a plan to an artifact's parts: every group's kernel, the weights' image, the host program.

The steps come first, with drafts of the launches. Then code is made of all kernels, in several
processes, of equal ones (up to names, see `tensor_ir.canonical`) once. At last the launches are
completed: kernels say how they want constants packed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from rutc.crew import done_by_crew
from rutc.emit import cache
from rutc.emit import program as host
from rutc.errors import UserError
from rutc.graph_opt.plan import (
    Choose,
    Fail,
    FillHalo,
    Invoke,
    Learn,
    Plan,
    PlanStep,
    Repeat,
    RepeatWhile,
    Run,
    Write,
)
from rutc.recipe import Draft, Made, Recipe, Slices, draft, key, make
from rutc.record import record
from rutc.tensor_ir.affine import ZERO, Index, Range, plain, product, typical
from rutc.tensor_ir.canonical import Canonical, canonical
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.expr import Apply, Cast, Read, reads, walk
from rutc.tensor_ir.graph import (
    Call,
    Carry,
    Const,
    Data,
    Input,
    Scatter,
    Value,
    bound_symbols,
    walk_nodes,
)
from rutc.tensor_ir.kernel import (
    Access,
    Assign,
    Buffer,
    Kernel,
    Kind,
    Loop,
    walk_stmts,
    with_symbols,
)
from rutc.tensor_ir.layout import Layout, dense, pack
from rutc.tensor_ir.lower import Group, halo_kernel, lower, lower_scatter
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.products import terms_of
from rutc.tuner.sharing import Operand, Shared, share

Symbols = Mapping[str, Range]

MAKE_BOXES = frozenset({"box", "cut"})
"""The routines that make boxes."""

SMALL_MODEL_CYCLES = 400_000
"""A model estimated below this (about 0.15 ms) runs on one thread: waking another takes longer."""


@record
class Pending:
    """A launch of kernels whose code is not made yet; several are the parts of a chain."""

    name: str
    kernels: tuple[Kernel, ...]
    canonical: Canonical
    recipe: Recipe
    flops: int
    origin: tuple[str, ...]


@record
class KernelFacts:
    """What the manifest says of one launch.

    Where its sizes depend on `symbols`, numbers are those at common sizes.
    """

    name: str
    symbol: str
    origin: tuple[str, ...]
    flops: int
    bytes: int
    tasks: int
    schedule: str
    symbols: tuple[str, ...] = ()


@dataclass
class Built:
    """The parts of an artifact."""

    program: host.Program
    objects: list[bytes]
    facts: list[KernelFacts]


@dataclass
class Builder:
    """Builds one plan for one machine."""

    plan: Plan
    machine: Machine
    name: str
    jobs: int
    keep_subnormals: bool = False
    on_kernel: Callable[[int, int], None] = lambda done, total: None
    on_routines: Callable[[Sequence[str]], None] = lambda routines: None
    on_draft: Callable[[Pending, Made, Draft], None] | None = None
    pending: list[Pending] = field(default_factory=list)
    facts: list[KernelFacts] = field(default_factory=list)
    shared: list[Shared] = field(default_factory=list)
    weights: dict[tuple[Data, Layout, str], int] = field(default_factory=dict)
    images: list[tuple[int, np.ndarray]] = field(default_factory=list)
    weight_bytes: int = 0
    thread_bytes: int = 0
    depth: int = 0
    """The number of loops around the steps at hand."""

    def build(self) -> Built:
        """Schedule, emit and compile all kernels, pack all weights, write the host program."""
        self.constants = {
            n.out.name: n for n in walk_nodes(self.plan.graph.nodes) if isinstance(n, Const)
        }
        self.sizes = dict(self.plan.graph.symbols)
        self.extents = {d: plain(e) for d, e in self.plan.graph.dims}
        self.common = {d: typical(e, self.sizes) for d, e in self.extents.items()}
        if (
            _model_cycles(self.plan.steps, self.common, self.sizes, self.machine)
            < SMALL_MODEL_CYCLES
        ):
            self.machine = replace(self.machine, cores=1)
        drafts = self._steps(self.plan.steps, self.sizes)
        self.on_routines(host.routines(drafts))
        objects: dict[str, bytes] = {}
        launches: list[host.Launch] = []
        matrices = False
        for pending, made in zip(self.pending, self._made(), strict=True):
            objects[made.symbol] = made.code
            self.thread_bytes = max(self.thread_bytes, made.thread_bytes)
            launches.append(self._completed(pending, made))
            matrices |= made.matrices
        turns = share(self.shared, self.machine)
        launches = [replace(x, turns=n) for x, n in zip(launches, turns, strict=True)]
        steps = _with_launches(drafts, launches)
        plain_machine = self.machine.without_matrices()
        graph = self.plan.graph
        bound = bound_symbols(graph.nodes)
        program = host.Program(
            name=self.name,
            inputs=tuple(self._input(n) for n in graph.inputs),
            outputs=tuple(
                self._output(o.value, self._port(o.name, self._dtype(o.value), o.axes))
                for o in graph.outputs
            ),
            arena_bytes=self.plan.arena_bytes,
            steps=steps,
            symbols=tuple((s, r) for s, r in graph.symbols if s not in bound),
            bound=tuple((s, r) for s, r in graph.symbols if s in bound),
            weights=tuple(self.images),
            weight_bytes=self.weight_bytes,
            features=tuple(sorted((self.machine if matrices else plain_machine).features)),
            keep_subnormals=self.keep_subnormals,
            thread_bytes=self.thread_bytes,
            strings=self.plan.strings,
        )
        return Built(program, list(objects.values()), self.facts)

    def _input(self, n: Input) -> host.Port:
        port = self._port(n.name, _name(n.out.dtype), n.axes)
        if n.fixed is None:
            return port
        array = n.fixed.array
        if n.out.dtype is DType.STRING:
            raise UserError(f"input {n.name!r} is of strings, which cannot be given when compiling")
        return replace(port, fixed=host.Fixed(array.tobytes(), str(n.fixed)))

    def _dtype(self, value: str) -> str:
        return _name(self.plan.values[value].dtype)

    def _output(self, value: str, port: host.Port) -> host.Port:
        place = self.plan.places[value]
        return replace(port, block=place.index) if place.space == "block" else port

    def _port(self, name: str, dtype: str, axes: tuple[str, ...]) -> host.Port:
        return host.Port(name, dtype, tuple(self.extents[d] for d in axes))

    # -- steps ----------------------------------------------------------------------------------
    def _steps(self, steps: tuple[PlanStep, ...], symbols: Symbols) -> tuple[host.Step, ...]:
        result: list[host.Step] = []
        for s in steps:
            match s:
                case Run(group):
                    result += self._reserved(group.stored)
                    result.append(self._run(group, symbols))
                case Write(node):
                    result.append(self._write(node, symbols))
                case FillHalo(value):
                    result += self._reserved((value,))
                    kernel = halo_kernel(
                        self.plan.values[value],
                        self.plan.layouts[value],
                        self.extents,
                        self.sizes,
                    )
                    if kernel is not None:
                        result.append(self._launch(kernel.name, (kernel,), 0))
                case Repeat():
                    result += self._repeat(s, symbols)
                case RepeatWhile():
                    result += self._repeat_while(s, symbols)
                case Learn(bind):
                    result.append(self._copy(bind.out.name, bind.value))
                    result.append(host.Bind(bind.symbol, self._ref(bind.value), bind.origin))
                case Invoke(call):
                    result += self._reserved(v.name for v in call.outs)
                    result.append(self._invoke(call))
                case Choose():
                    result += self._reserved(s.results)
                    result.append(self._choose(s, symbols))
                case Fail(message):
                    result.append(host.Fail(message))
        return tuple(result)

    def _chain(self, s: Repeat, symbols: Symbols) -> host.Step:
        """Kernels over slices as one kernel, whose tasks are the slices."""
        counters = [(s.dim, self._trips(s))]
        steps = s.steps
        while isinstance(steps[0], Repeat):
            (inside,) = steps
            assert isinstance(inside, Repeat)
            counters.append((inside.dim, self._trips(inside)))
            steps = inside.steps
        inner = {**symbols, **{name: (0, trips - 1) for name, trips in counters}}
        groups = [x.group for x in steps if isinstance(x, Run)]
        private = {v for g in groups for v in g.stored} - set(s.parts)
        kernels = tuple(
            lower(g, self.plan.values, self.plan.layouts, self.extents, inner) for g in groups
        )
        name = f"{groups[0].name}-{groups[-1].name}"
        flops = prod(n for _, n in counters) * sum(_work(g, self.common) for g in groups)
        return self._launch(name, kernels, flops, (counters, private))

    def _trips(self, s: Repeat) -> int:
        return Index.of(s.trips).value

    def _repeat(self, s: Repeat, symbols: Symbols) -> list[host.Step]:
        if s.parts:
            return [self._chain(s, symbols)]
        bounds = Index.of(s.trips).bounds(self.sizes)
        last = max(bounds[1] - 1, 0) if bounds is not None else 1 << 62
        inner = {**symbols, s.dim: (0, last)}
        result = self._reserved(
            (*(c.param.name for c in s.carries), *(out for _, out in s.collect), *s.results)
        )
        result += [self._copy(c.param.name, c.init) for c in s.carries]
        self.depth += 1
        body = list(self._steps(s.steps, inner))
        for source, out in s.collect:
            kernel = self._collect(source, out, inner)
            body.append(self._launch(kernel.name, (kernel,), 0))
        body += [self._copy(c.param.name, c.next) for c in s.carries]
        body, after = self._swept(body, s.carries, [out for _, out in s.collect])
        self.depth -= 1
        result += [host.Repeat(s.dim, s.trips, tuple(body)), *after]
        result += [
            self._copy(out, c.param.name) for out, c in zip(s.results, s.carries, strict=True)
        ]
        return result

    def _repeat_while(self, s: RepeatWhile, symbols: Symbols) -> list[host.Step]:
        self.depth += 1
        body = [*self._steps(s.steps, symbols)]
        body += [self._copy(c.param.name, c.next) for c in s.carries]
        body, after = self._swept(body, s.carries, ())
        self.depth -= 1
        return [
            *self._reserved((*(c.param.name for c in s.carries), *s.results)),
            *(self._copy(c.param.name, c.init) for c in s.carries),
            host.While(self._ref(s.cond), tuple(body)),
            *after,
            *(self._copy(out, c.param.name) for out, c in zip(s.results, s.carries, strict=True)),
        ]

    def _swept(
        self, body: list[host.Step], carries: Iterable[Carry], collected: Iterable[str]
    ) -> tuple[list[host.Step], list[host.Step]]:
        """A loop's body that releases the boxes of a trip that no later one can reach.

        What remains belongs to the loop around it after the second result, which follows the loop.
        """
        if not any(isinstance(s, host.Call) and s.routine in MAKE_BOXES for s in host.walk(body)):
            return body, []
        names = [v for v in (*(c.param.name for c in carries), *collected) if v in self.plan.boxes]
        roots = tuple(self._operand(v, self.plan.values[v].dims) for v in names)
        sweep = host.Call("sweep", roots, (), depth=self.depth)
        return [*body, sweep], [host.Call("settle", (), (), depth=self.depth)]

    def _invoke(self, call: Call) -> host.Step:
        args = [self._operand(v, axes) for v, axes in zip(call.args, call.arg_axes, strict=True)]
        results = [
            self._operand(v.name, axes) for v, axes in zip(call.outs, call.out_axes, strict=True)
        ]
        return host.Call(
            call.routine, tuple(args), tuple(results), call.attributes, call.origin, self.depth
        )

    def _operand(self, name: str, axes: tuple[str, ...]) -> host.Operand:
        """A value as a routine sees it."""
        layout = dense(axes, self.extents)
        ref = self._weight(name, layout) if name in self.constants else self._ref(name)
        shape = tuple(self.extents[d] for d in axes)
        return host.Operand(ref, _name(self.plan.values[name].dtype), shape)

    def _choose(self, s: Choose, symbols: Symbols) -> host.Step:
        branches: list[tuple[host.Step, ...]] = []
        for steps, values in ((s.then, s.then_values), (s.orelse, s.orelse_values)):
            copies = [self._copy(out, v) for out, v in zip(s.results, values, strict=False)]
            branches.append((*self._steps(steps, symbols), *copies))
        return host.Branch(self._ref(s.cond), branches[0], branches[1])

    def _collect(self, source: str, out: str, symbols: Symbols) -> Kernel:
        """The kernel that puts one trip's value in its place in the collected output."""
        v, o = self.plan.values[source], self.plan.values[out]
        args = (
            Buffer(source, v.dtype, self.plan.layouts[source]),
            Buffer(out, o.dtype, self.plan.layouts[out]),
        )
        coords = tuple((d, Index.of(d)) for d in v.dims)
        target = tuple((d, Index.of(d)) for d in o.dims)
        body: tuple[Loop | Assign, ...] = (
            Assign(Access(out, target), Read(source, coords, v.dtype)),
        )
        for d in reversed(v.dims):
            body = (Loop(d, ZERO, Index.of(self.extents[d]), Kind.SERIAL, body),)
        return with_symbols(Kernel(f"{out}.collect", args, (), body), symbols)

    # -- kernels --------------------------------------------------------------------------------
    def _run(self, group: Group, symbols: Symbols) -> host.Step:
        kernel = lower(group, self.plan.values, self.plan.layouts, self.extents, symbols)
        return self._launch(group.name, (kernel,), _work(group, self.common))

    def _write(self, node: Scatter, symbols: Symbols) -> host.Step:
        kernel = lower_scatter(node, self.plan.values, self.plan.layouts, self.extents, symbols)
        return self._launch(kernel.name, (kernel,), 0)

    def _launch(
        self,
        name: str,
        kernels: tuple[Kernel, ...],
        flops: int,
        slices: tuple[list[tuple[str, int]], set[str]] | None = None,
    ) -> host.Step:
        """A draft of a launch, whose kernel is its number among those pending."""
        renamed = canonical(*kernels)
        forward = {old: new for new, old in renamed.buffers.items()}
        constants = tuple(
            tuple(forward[b.name] for b in k.args if b.name in self.constants) for k in kernels
        )
        sliced = None
        if slices is not None:
            counters, private = slices
            new = {old: name for name, old in renamed.dims.items()}
            kept = tuple(sorted(forward[v] for v in private))
            sliced = Slices(tuple((new[name], trips) for name, trips in counters), kept)
        recipe = Recipe(renamed.kernels, constants, sliced)
        origin = tuple(dict.fromkeys(o for k in kernels for o in k.origin))
        self.pending.append(Pending(name, kernels, renamed, recipe, flops, origin))
        return host.Launch(str(len(self.pending) - 1), (), 0)

    def _made(self) -> Iterator[Made]:
        """Yields what becomes of each of the pending kernels."""
        known: dict[Recipe, int] = {}
        numbers = [known.setdefault(p.recipe, len(known)) for p in self.pending]
        recipes = list(known)
        keys = [key(r, self.machine) for r in recipes]
        found = {n: data for n, k in enumerate(keys) if (data := cache.lookup(k)) is not None}
        missing = [n for n in range(len(recipes)) if n not in found]
        # The largest first, so that none ends long after the others.
        missing.sort(key=lambda n: -_statements(recipes[n]))

        def work(number: int) -> bytes:
            data = make(recipes[number], self.machine).encoded()
            cache.store(keys[number], data)
            return data

        made: dict[int, Made] = {}
        self.on_kernel(len(found), len(recipes))
        with closing(done_by_crew(missing, work, self.jobs)) as done:
            for pending, number in zip(self.pending, numbers, strict=True):
                while number not in found:
                    other, found[other] = next(done)
                    self.on_kernel(len(found), len(recipes))
                if number not in made:
                    made[number] = Made.decoded(found[number])
                    if self.on_draft is not None:
                        self.on_draft(pending, made[number], draft(pending.recipe, self.machine))
                yield made[number]

    def _completed(self, pending: Pending, made: Made) -> host.Launch:
        """The launch of a kernel, constants packed as it wants them."""
        dims, names = pending.canonical.dims, pending.canonical.buffers
        buffers = {b.name: b for k in pending.kernels for b in k.args}
        args: list[host.Ref] = []
        operands: list[Operand] = []
        for argument in made.arguments:
            b = buffers[names[argument.buffer]]
            size = typical(b.layout.size, self.sizes) * b.dtype.bytes
            constant = b.name in self.constants
            operands.append(Operand(b.name, size, constant, argument.written))
            if not constant:
                args.append(self._ref(b.name))
                continue
            packing = argument.packing
            layout = b.layout if packing is None else packing.layout(self.extents, dims)
            args.append(self._weight(b.name, layout))
        tasks = plain(Index.of(made.tasks).subs({n: Index.of(d) for n, d in dims.items()}))
        common = typical(tasks, self.sizes)
        found = tuple(way.named(dims) for way in made.ways)
        self.shared.append(Shared(tuple(operands), found, pending.flops))
        read = tuple(dims[n] for n in made.symbols)
        self.facts.append(
            KernelFacts(
                pending.name,
                made.symbol,
                pending.origin,
                pending.flops,
                sum(o.bytes for o in operands),
                common,
                made.schedule,
                read,
            )
        )
        return host.Launch(made.symbol, tuple(args), tasks, pending.origin, read)

    # -- memory ---------------------------------------------------------------------------------
    def _ref(self, name: str) -> host.Ref:
        if name in self.constants:
            return self._weight(name, self.plan.layouts[name])
        place = self.plan.places[name]
        match place.space:
            case "input":
                return host.Ref("input", place.index, place.offset)
            case "output":
                return host.Ref("output", place.index, place.offset)
            case "block":
                return host.Ref("block", place.index, place.offset)
            case _:
                return host.Ref("arena", 0, place.offset)

    def _weight(self, name: str, layout: Layout) -> host.Ref:
        const = self.constants[name]
        data = const.data
        # The layout without its names: two constants of equal content share one image.
        position = {d: i for i, d in enumerate(const.axes)}
        shape = rename(layout, position)
        key = (data, shape, str(const.out.dtype))
        if key not in self.weights:
            image = pack(data.array, const.axes, layout)
            offset = self.weight_bytes
            self.weights[key] = offset
            self.images.append((offset, image))
            self.weight_bytes = offset + -(-max(image.nbytes, 1) // 64) * 64
        return host.Ref("weights", 0, self.weights[key])

    def _reserved(self, values: Iterable[str]) -> list[host.Step]:
        """The steps that make the blocks of values large enough."""
        places = (self.plan.places[v] for v in values)
        return [host.Reserve(p.index, p.bytes) for p in places if p.space == "block"]

    def _copy(self, target: str, source: str) -> host.Step:
        value: Value = self.plan.values[target]
        size = product(self.extents[d] for d in value.dims) * value.dtype.bytes
        return host.Copy(self._ref(target), self._ref(source), plain(size))


def rename(layout: Layout, position: Mapping[str, int]) -> Layout:
    """The layout with dims named by their axis number."""
    axes = tuple(replace(a, dim=f"{position[a.dim]}") for a in layout.axes)
    return Layout(axes, (), None, ())


def _with_launches(
    steps: tuple[host.Step, ...], launches: Sequence[host.Launch]
) -> tuple[host.Step, ...]:
    """The steps with the drafts of launches replaced by those with their numbers."""

    def completed(s: host.Step) -> host.Step:
        match s:
            case host.Launch():
                return launches[int(s.kernel)]
            case host.Branch():
                then = _with_launches(s.then, launches)
                return replace(s, then=then, orelse=_with_launches(s.orelse, launches))
            case host.Repeat() | host.While():
                return replace(s, body=_with_launches(s.body, launches))
            case _:
                return s

    return tuple(map(completed, steps))


def _statements(recipe: Recipe) -> int:
    """How much there is to emit, roughly."""
    return sum(1 for k in recipe.kernels for _ in walk_stmts(k.body))


def _model_cycles(
    steps: tuple[PlanStep, ...],
    extents: Mapping[str, int],
    sizes: Mapping[str, Range],
    machine: Machine,
) -> float:
    """A rough count of cycles of one run on one thread."""
    total = 0.0
    for s in steps:
        match s:
            case Run(group):
                total += _work(group, extents) / (machine.width * machine.fma_per_cycle)
                total += _gathers(group, extents)
            case Repeat():
                trips = typical(s.trips, sizes)
                total += trips * _model_cycles(s.steps, extents, sizes, machine)
            case RepeatWhile():
                total += _model_cycles(s.steps, extents, sizes, machine)
            case Choose():
                branches = (_model_cycles(x, extents, sizes, machine) for x in (s.then, s.orelse))
                total += max(branches)
            case Write(node):
                total += prod(extents[d] for d in node.dims)
            case FillHalo() | Invoke() | Learn() | Fail():
                pass
    return total


def _gathers(group: Group, extents: Mapping[str, int]) -> int:
    """Elements that a group reads at places that depend on data, each of some cycle."""
    extents = {**extents, **{s.dim: s.size for s in group.slices}}
    total = 0
    for n in group.stages:
        found = sum(not isinstance(c, Index) for e in n.body for r in reads(e) for _, c in r.coords)
        total += found * prod(extents[d] for d in n.dims)
    return total


def _work(group: Group | None, extents: Mapping[str, int]) -> int:
    """Floating-point operations of a group: arithmetic in bodies, and one per reduced element.

    All products of the parts of two numbers are one operation.
    """
    total = 0
    if group is not None:
        extents = {**extents, **{s.dim: s.size for s in group.slices}}
    for n in group.stages if group is not None else ():
        points = prod(extents[d] for d in n.dims)
        each = sum(
            1 for e in n.body for x in walk(e) if isinstance(x, Apply | Cast) and x.dtype.is_float
        )
        if len(terms_of(n.reducer, n.body) or ()) > 1:
            each = 1
        total += points * (each + (1 if n.reducer is not None else 0))
    return total


def _name(kind: DType) -> str:
    """An element type as the host runtime names it."""
    return kind.value if kind.is_opaque else kind.numpy.name
