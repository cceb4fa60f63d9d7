"""The steps of one plan in the host program, and what becomes of the kernels that they launch.

Steps name kernels by their ids, which have meaning before there is code: `pending` has what each is
to be made of. What was made of one says how it wants constants packed, and `launched` what the
program's table and the manifest have of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from rutc.driver.parts.compile_job import CompileJob, Made, Slices
from rutc.driver.parts.launches import KernelFacts, Launched, Pending
from rutc.driver.parts.lowered_kernels import Lowered
from rutc.driver.parts.plan_cost import Work, work_of
from rutc.driver.parts.weights import Weights
from rutc.emit.host_program import host_steps as host
from rutc.emit.host_program import kernel_call
from rutc.emit.host_program.kernel_call import KernelId, Ref
from rutc.graph_opt.plan import (
    Choose,
    Fail,
    FillHalo,
    InTurn,
    Invoke,
    Joined,
    Learn,
    Near,
    Plan,
    PlanStep,
    Repeat,
    RepeatWhile,
    Run,
    Write,
    fails,
)
from rutc.tensor_ir.canonical import Canonical, canonical
from rutc.tensor_ir.collect import collect_kernel
from rutc.tensor_ir.facts.gradual import gradual_tables
from rutc.tensor_ir.facts.outside import finite_operands
from rutc.tensor_ir.facts.products import magnitudes, small_factors
from rutc.tensor_ir.graph import Call, Carry, Data, Scatter, Value
from rutc.tensor_ir.indices.affine import ZERO, Index, Range, Size, plain, product, typical
from rutc.tensor_ir.kernel import Buffer, Kernel
from rutc.tensor_ir.layout import Layout, dense
from rutc.tensor_ir.lower import Group, Slice, halo_kernel, lower, lower_scatter
from rutc.tuner.sharing import Operand, Shared

Symbols = Mapping[str, Range]
Chained = tuple[list[tuple[str, Size]], set[str], tuple[Size, ...]]
"""Of kernels over slices: counters and their trips, what passes between them, lengths of slices."""

MAKE_BOXES = frozenset({"box", "cut"})
"""The routines that make boxes."""


class PlanSteps:
    """The steps of one plan, and the kernels that they launch, which are not made yet.

    Kernels have ids from `first` on. Values and dims have meaning within one plan only.
    """

    def __init__(
        self,
        plan: Plan,
        weights: Weights,
        number: int = 0,
        first: int = 0,
        lowered: Lowered | None = None,
        on_pending: Callable[[Pending], None] = lambda pending: None,
    ) -> None:
        """The steps of the artifact's plan of that number; others were `lowered` before.

        `on_pending` is told each kernel.
        """
        self.plan = plan
        self.weights = weights
        self.number = number
        self.constants = plan.graph.constants
        self.sizes = dict(plan.graph.symbols)
        self.extents = {d: plain(e) for d, e in plan.graph.dims}
        self.magnitudes = magnitudes(plan.graph)
        self.first = first
        self._lowered = lowered or Lowered()
        self._on_pending = on_pending
        self._pending: list[Pending] = []
        self._launched_by: dict[int, range] = {}
        self.depth = 0
        """The number of loops around the steps at hand."""
        self.near: Mapping[str, Near] = {}
        """The values near of the kernels in turn at hand."""
        self.turns = 1
        """How many turns these commonly take."""
        self.turn: InTurn | None = None
        """Those of the loop at hand, of which threads do all trips for some."""
        self.steps = self._steps(plan.steps, self.sizes)
        self.pending = tuple(self._pending)

    # -- steps ----------------------------------------------------------------------------------
    def _steps(self, steps: tuple[PlanStep, ...], symbols: Symbols) -> tuple[host.Step, ...]:
        result: list[host.Step] = []
        for s in steps:
            first = len(self._pending)
            match s:
                case Run(group):
                    result += self._reserved(group.stored)
                    result.append(self._run(group, symbols))
                case Write(node):
                    result.append(self._write(node, symbols))
                case FillHalo(value):
                    result += self._reserved((value,))
                    kernel = self._halo(s, self.sizes)
                    if kernel is not None:
                        result.append(self._launch(kernel.name, (kernel,), Work()))
                case Repeat() if s.parts:
                    result += self._reserved(s.parts)
                    result.append(self._chain(s, symbols))
                case Repeat():
                    result += self._repeat(s, symbols)
                case InTurn():
                    result += self._in_turn(s, symbols)
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
                case Joined():
                    pass
                case Fail(message):
                    result.append(host.Fail(message))
            self._launched_by[id(s)] = range(first, len(self._pending))
        return tuple(result)

    def _halo(self, s: FillHalo, symbols: Symbols) -> Kernel | None:
        value, layout = self.plan.values[s.value], self.plan.layouts[s.value]
        return halo_kernel(value, layout, self.extents, symbols, s.turn)

    def _chain(self, s: Repeat, symbols: Symbols) -> host.Step:
        """Kernels over slices as one kernel, whose tasks are the slices."""
        counters = [(s.dim, s.trips)]
        steps = s.steps
        while isinstance(steps[0], Repeat):
            (inside,) = steps
            assert isinstance(inside, Repeat)
            counters.append((inside.dim, inside.trips))
            steps = inside.steps
        inner = dict(symbols)
        for name, trips in counters:
            bounds = Index.of(trips).bounds(symbols)
            assert bounds is not None, "slices are of bounded dims"
            inner[name] = (0, max(bounds[1] - 1, 0))
        groups = [x.group for x in steps if isinstance(x, Run)]
        private = {v for g in groups for v in g.stored} - set(s.parts)

        def made() -> tuple[Kernel, ...]:
            halos = (self._halo(x, inner) for x in steps if isinstance(x, FillHalo))
            kernels = (
                *(k for k in halos if k is not None),
                *(self._kernel(g, inner) for g in groups),
            )
            # The number of slices may depend on sizes that no kernel reads, nor the slices' own.
            counted = {n for _, trips in counters for n in Index.of(trips).names()}
            read = {n for k in kernels for n, _ in k.symbols}
            counted |= {n for n, _ in counters if n not in read}
            needed = counted | dict(kernels[0].symbols).keys()
            seen = tuple((n, r) for n, r in inner.items() if n in needed)
            return (replace(kernels[0], symbols=seen), *kernels[1:])

        around = tuple(counters), tuple(x for x in steps if isinstance(x, FillHalo))
        kernels = self._lowered.kernels(groups, self.plan.layouts, inner, made, around)
        first_name, last_name = kernels[0].name, kernels[-1].name
        name = first_name if len(kernels) == 1 else f"{first_name}-{last_name}"
        work = sum(map(self._work, groups), Work()).times(product(n for _, n in counters))
        lengths = tuple(dict.fromkeys(s.size for g in groups for s in g.slices))
        return self._launch(name, kernels, work, (counters, private, lengths))

    def _in_turn(self, s: InTurn, symbols: Symbols) -> list[host.Step]:
        self.near = {x.value: x for x in s.near}
        self.turns = typical(s.trips, self.sizes)
        self.turn = s if s.loop is not None else None
        body = self._steps(s.steps, symbols)
        self.near, self.turns, self.turn = {}, 1, None
        if s.loop is None:
            return [host.InTurn(s.trips, body, s.near_bytes)]
        # What is carried begins and ends as a whole.
        return [host.InTurn(s.trips, (x,), 0) if isinstance(x, host.Repeat) else x for x in body]

    def _repeat(self, s: Repeat, symbols: Symbols) -> list[host.Step]:
        bounds = Index.of(s.trips).bounds(self.sizes)
        last = max(bounds[1] - 1, 0) if bounds is not None else 1 << 62
        inner = {**symbols, s.dim: (0, last)}
        result = self._reserved(
            (*(c.param.name for c in s.carries), *(out for _, out in s.collect), *s.results)
        )
        result += [self._copy(c.param.name, c.init) for c in s.carries]
        self.depth += 1
        body = list(self._steps(s.steps, inner))
        if not fails(s.steps):
            for source, out in s.collect:
                body.append(self._collect(source, out, inner))
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
        if not fails(s.steps):
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
        return host.Operand(ref, self.plan.values[name].dtype.stored_name, shape)

    def _choose(self, s: Choose, symbols: Symbols) -> host.Step:
        branches: list[tuple[host.Step, ...]] = []
        for steps, values in ((s.then, s.then_values), (s.orelse, s.orelse_values)):
            copies = [self._copy(out, v) for out, v in zip(s.results, values, strict=False)]
            branches.append((*self._steps(steps, symbols), *copies))
        return host.Branch(self._ref(s.cond), branches[0], branches[1])

    def _collect(self, source: str, out: str, symbols: Symbols) -> host.Step:
        """The launch that puts one trip's value in its place in the collected output."""
        v, o, turn = self.plan.values[source], self.plan.values[out], self.turn
        layouts = self.plan.layouts
        if turn is None:
            kernel = collect_kernel(v, o, layouts, self.extents, symbols)
            return self._launch(kernel.name, (kernel,), Work())
        d = layouts[source].axes[0].dim
        part = Slice(d, turn.dim, plain(Index.of(self.extents[d]) // turn.trips))
        inner = {**symbols, turn.dim: (0, Index.of(turn.trips).value - 1)}
        kernel = collect_kernel(v, o, layouts, self.extents, inner, part)
        counted: Chained = [(turn.dim, turn.trips)], set(), (part.size,)
        return self._launch(kernel.name, (kernel,), Work(), counted)

    # -- kernels --------------------------------------------------------------------------------
    def _run(self, group: Group, symbols: Symbols) -> host.Step:
        kernels = self._lowered.kernels(
            (group,), self.plan.layouts, symbols, lambda: (self._kernel(group, symbols),)
        )
        return self._launch(group.name, kernels, self._work(group))

    def _kernel(self, group: Group, symbols: Symbols) -> Kernel:
        finite = finite_operands(group.reads, self.constants)
        small = small_factors(group.stages, self.constants, self.magnitudes)
        tables = gradual_tables(group.stages, self.constants, self.extents)
        return lower(
            group, self.plan.values, self.plan.layouts, self.extents, symbols, finite, small, tables
        )

    def _work(self, group: Group) -> Work:
        return work_of(group, self.plan.graph.extents)

    def _write(self, node: Scatter, symbols: Symbols) -> host.Step:
        kernel = lower_scatter(node, self.plan.values, self.plan.layouts, self.extents, symbols)
        return self._launch(kernel.name, (kernel,), Work())

    def _launch(
        self,
        name: str,
        kernels: tuple[Kernel, ...],
        work: Work,
        slices: Chained | None = None,
    ) -> host.Step:
        """The launch of kernels that join those pending."""
        said = None if slices is None else (tuple(slices[0]), frozenset(slices[1]), slices[2])
        renamed, job = self._lowered.job(kernels, said, lambda: self._job(kernels, slices))
        origin = tuple(dict.fromkeys(o for k in kernels for o in k.origin))
        id_ = KernelId(self.first + len(self._pending))
        pending = Pending(id_, name, kernels, renamed, job, work, origin, self.near, self.turns)
        self._pending.append(pending)
        self._on_pending(pending)
        return host.Launch(id_)

    def _job(
        self, kernels: tuple[Kernel, ...], slices: Chained | None
    ) -> tuple[Canonical, CompileJob]:
        """The job of kernels, and how its names are the plan's."""
        renamed = canonical(*kernels)
        forward = {old: new for new, old in renamed.buffers.items()}
        constants = tuple(
            tuple(forward[b.name] for b in k.args if b.name in self.constants) for k in kernels
        )
        sliced = None
        if slices is not None:
            counters, private, lengths = slices
            # Loops of several kernels may have had one name; symbols have one each.
            new = {old: name for name, old in renamed.dims.items()}
            kept = tuple(sorted(forward[v] for v in private))
            env = {old: Index.of(name) for old, name in new.items()}
            counts = tuple((new[n], plain(Index.of(trips).subs(env))) for n, trips in counters)
            own = tuple(plain(Index.of(size).subs(env)) for size in lengths)
            sliced = Slices(counts, kept, own)
        within = {n for n, _ in sliced.counters} if sliced is not None else set()
        read = dict.fromkeys(n for k in renamed.kernels for n, _ in k.symbols if n not in within)
        around = tuple(n for n in read if renamed.dims[n] not in self.sizes)
        return renamed, CompileJob(renamed.kernels, constants, sliced, counters=around)

    def launched_by(self, step: PlanStep) -> range:
        """The places in `pending` of the kernels of a step of the plan, its body's included."""
        return self._launched_by[id(step)]

    def constants_of(self, pending: Pending) -> tuple[Data, ...]:
        """The elements of the constants that a kernel reads."""
        names = {b.name: None for k in pending.kernels for b in k.args if b.name in self.constants}
        return tuple(self.constants[v].data for v in names)

    def launched(self, pending: Pending, made: Made) -> Launched:
        """The launch of a kernel that is made, constants packed as it wants them."""
        dims = pending.canonical.dims
        args: list[Ref] = []
        near: list[kernel_call.Near] = []
        operands: list[Operand] = []
        moved = ZERO
        for argument, b in zip(made.arguments, self.operands(pending, made), strict=True):
            constant = b.name in self.constants
            size = typical(b.bytes, self.sizes)
            operands.append(Operand(b.name, size, constant, argument.written))
            if not constant:
                moved += product(e for _, e in b.layout.extents) * b.dtype.bytes
            if b.name in pending.near:
                place = pending.near[b.name]
                near.append(kernel_call.Near(len(args), place.offset, place.bytes))
            if not constant:
                args.append(self._ref(b.name))
                continue
            args.append(self._weight(b.name, b.layout))
        if made.numbers:
            args.append(self.weights.place_numbers(made.numbers))
        own = {n: Index.of(d) for n, d in dims.items()}
        tasks, scratch = (plain(Index.of(x).subs(own)) for x in (made.tasks, made.thread_bytes))
        common = typical(tasks, self.sizes)
        found = tuple(way.named(dims) for way in made.ways)
        read = tuple(size.subs(own) for size in made.sizes)
        facts = KernelFacts(
            pending.name,
            made.symbol,
            pending.origin,
            typical(pending.work.done, self.sizes),
            sum(o.bytes for o in operands),
            common,
            pending.named(made.schedule),
            tuple(dict.fromkeys(n for size in read for n in size.ordered_names())),
            self.number,
            pending.job.records,
            pending.turns,
            round(made.cycles),
            round(made.computing),
            made.bound_by,
        )
        shared = Shared(tuple(operands), found, typical(pending.work.written, self.sizes))
        return Launched(
            made,
            tuple(args),
            tasks,
            scratch,
            read,
            tuple(near),
            facts,
            shared,
            pending.work.written,
            moved,
        )

    def operands(self, pending: Pending, made: Made) -> Iterator[Buffer]:
        """What the arguments of a kernel that is made are, constants packed as it wants them."""
        names = pending.canonical.buffers
        buffers = {b.name: b for k in pending.kernels for b in k.args}
        for argument in made.arguments:
            b, packing = buffers[names[argument.buffer]], argument.packing
            if packing is not None:
                layout = packing.layout(b.layout, self.extents, pending.canonical.dims)
                b = replace(b, layout=layout)
            yield b

    # -- memory ---------------------------------------------------------------------------------
    def _ref(self, name: str) -> Ref:
        if name in self.constants:
            return self._weight(name, self.plan.layouts[name])
        place = self.plan.places[name]
        match place.space:
            case "near":
                return Ref("arena")
            case "input":
                return Ref("input", place.index, place.offset)
            case "output":
                return Ref("output", place.index, place.offset)
            case "block":
                return Ref("block", place.index, place.offset)
            case _:
                return Ref("arena", 0, place.offset)

    def _weight(self, name: str, layout: Layout) -> Ref:
        return self.weights.place(self.constants[name], layout)

    def _reserved(self, values: Iterable[str]) -> list[host.Step]:
        """The steps that make the blocks of values large enough."""
        places = (self.plan.places[v] for v in values)
        return [host.Reserve(p.index, p.bytes) for p in places if p.space == "block"]

    def _copy(self, target: str, source: str) -> host.Step:
        value: Value = self.plan.values[target]
        size = product(self.extents[d] for d in value.dims) * value.dtype.bytes
        return host.Copy(self._ref(target), self._ref(source), plain(size))
