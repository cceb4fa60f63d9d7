"""The order of the decisions: layouts, copies, halos, fusion, memory."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from rutc.errors import InternalError
from rutc.graph_opt.cost import NestCost
from rutc.graph_opt.decide.fusion import Fuser
from rutc.graph_opt.decide.halo import masked_at_edges, needed_halo
from rutc.graph_opt.decide.inplace import share_bases
from rutc.graph_opt.decide.interface import with_interface_copies
from rutc.graph_opt.decide.layout import (
    Copier,
    choose_innermost,
    fixed_orders,
    order_dims,
    replace_read,
    wants_packing,
)
from rutc.graph_opt.decide.memory import place_values
from rutc.graph_opt.decide.numbering import numbered
from rutc.graph_opt.decide.slices import Slicer
from rutc.graph_opt.decide.turns import Turns
from rutc.graph_opt.editor import rename_reads
from rutc.graph_opt.plan import (
    Choose,
    Fail,
    FillHalo,
    Invoke,
    Learn,
    Plan,
    PlanStep,
    Refusal,
    Repeat,
    RepeatWhile,
    Run,
    Write,
    fails,
)
from rutc.tensor_ir.affine import Index, plain, typical
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.expr import Expr, Lit, Read, reads
from rutc.tensor_ir.graph import (
    Bind,
    Body,
    Call,
    Const,
    Graph,
    If,
    Nest,
    Node,
    Scan,
    Scatter,
    While,
    bound_symbols,
    outs,
    used_deep,
    walk_nodes,
)
from rutc.tensor_ir.layout import Layout, dense
from rutc.tensor_ir.lower import Group
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.verify import verify

NEIGHBOURS = 4
"""Rows of bytes are made so many times as long, so that all neighbours can be loaded together."""


def decide(graph: Graph, machine: Machine) -> Plan:
    """The plan of an optimized graph for a machine.

    Raises:
        UserError: it has what cannot be planned yet.
    """
    found = numbered(graph)
    plan = _Decider(with_interface_copies(found.graph), machine).plan()
    return replace(plan, strings=found.strings, boxes=found.boxes)


@dataclass
class _Decider:
    graph: Graph
    machine: Machine
    halo: dict[str, dict[str, tuple[int, int]]] = field(default_factory=dict)
    fill: dict[str, Lit] = field(default_factory=dict)
    refusals: list[Refusal] = field(default_factory=list)
    counters: list[str] = field(default_factory=list)
    """The scanned dims of the bodies at hand: no value in them has such a dim."""

    def plan(self) -> Plan:
        graph = self.graph
        self.symbols = dict(graph.symbols)
        self.sizes = {d: plain(e) for d, e in graph.dims}
        # What dims commonly are: costs are weighed with it, nothing that must hold depends on it.
        self.extents = {d: typical(e, self.symbols) for d, e in self.sizes.items()}
        self.varying = frozenset(d for d, e in self.sizes.items() if not isinstance(e, int))
        shared = share_bases(graph, fixed_orders(graph.nodes, graph.outputs))
        graph, self.homes, self.fixed = shared.graph, shared.homes, shared.fixed
        self.steps = frozenset(s for s, bounds in graph.symbols if bounds == (0, 1))
        self.checks = frozenset(s for s, (low, high) in graph.symbols if low == high)
        self.inner = choose_innermost(
            graph.nodes,
            self.extents,
            self.fixed,
            self.homes,
            self.machine,
            self.steps,
            self.varying,
        )
        self.copier = Copier(self.extents, set(graph.values), {})
        self.values = dict(graph.values)
        self.data = {n.out.name: n for n in walk_nodes(graph.nodes) if isinstance(n, Const)}
        self.constants = frozenset(self.data)
        nodes = self._with_copies(graph.nodes, frozenset())
        graph = replace(graph, nodes=nodes)
        verify(graph, since=self.graph)
        self.values = dict(graph.values)
        self.order = order_dims(nodes, self.inner, self.fixed, self.homes)
        layouts = self._layouts()
        outputs = {o.value for o in graph.outputs}
        steps = self._steps(nodes, outputs, "g")
        slicer = self._slicer(graph, layouts)
        homes = frozenset({*self.homes, *self.homes.values()})
        bound = frozenset(bound_symbols(graph.nodes))
        outside = homes | self.fixed.keys() | self.constants | outputs
        free = slicer.free | (self.halo.keys() - outside)
        first = (layouts[i.name].axes[:1] for i in graph.inputs if i.name in layouts)
        sizes = (a.extent for axes in first for a in axes)
        batches = frozenset(n for n in sizes if isinstance(n, int) and n > 1)
        sliced = Turns(slicer, free, homes, bound, batches).slice(steps)
        steps, layouts = sliced.steps, sliced.layouts
        places, arena = place_values(graph, steps, self.values, layouts, self.homes)
        return Plan(graph, self.values, steps, layouts, places, arena, tuple(self.refusals))

    # -- copies and halos -----------------------------------------------------------------------
    def _with_copies(self, nodes: tuple[Node, ...], defined: frozenset[str]) -> tuple[Node, ...]:
        """The scope's nodes with copies of operands; `defined` are the copies outside of it."""
        result: list[Node] = []
        for n in nodes:
            if isinstance(n, Scan):
                self.counters.append(n.dim)
                result.append(replace(n, body=self._scope(n.body, defined)))
                self.counters.pop()
            elif isinstance(n, While):
                result.append(replace(n, body=self._scope(n.body, defined)))
            elif isinstance(n, If):
                then = Body(self._scope(n.then.nodes, defined), n.then.results)
                orelse = Body(self._scope(n.orelse.nodes, defined), n.orelse.results)
                result.append(replace(n, then=then, orelse=orelse))
            elif isinstance(n, Nest):
                n, copies = self._fed(n)
                for c in copies:
                    if c.out.name not in defined:
                        defined |= {c.out.name}
                        result.append(c)
                result.append(n)
            else:
                result.append(n)
        return tuple(result)

    def _scope(self, nodes: tuple[Node, ...], defined: frozenset[str]) -> tuple[Node, ...]:
        """A body's nodes with copies of operands; the copies made in it are not seen outside."""
        outside = dict(self.copier.copies)
        body = self._with_copies(nodes, defined)
        self.copier.copies = outside
        return body

    def _fed(self, n: Nest) -> tuple[Nest, list[Nest]]:
        """The nest with its operands copied where that pays, and the copies."""
        copies: list[Nest] = []
        if n.reducer is None and all(r.fill is None for e in n.body for r in reads(e)):
            return n, copies
        cost = NestCost(n, self.extents, self.constants, self.machine, self.steps, self.varying)
        if n.reducer is None and not cost.windows:
            return n, copies
        _, vector = cost.best(self.inner)
        body = n.body
        if vector is not None and vector in n.out.dims:
            for u in cost.strided(vector, self.inner):
                if wants_packing(u, n, self.extents):
                    copy, read = self.copier.packed(u.read, n.dims, "packed")
                    copies.append(replace(copy, origin=n.origin))
                    copy_out = copy.out
                    self.values[copy_out.name] = copy_out
                    self.inner[copy_out.name] = vector
                    body = tuple(replace_read(e, u.read, read) for e in body)
        lanes = {
            u.read.value: u.moves[vector]
            for u in cost.uses
            if u.read.value in cost.windows and vector is not None and u.moves.get(vector)
        }
        if vector is not None and vector in n.out.dims:
            for r, d in cost.apart(vector, self.inner):
                if r.fill is not None:
                    lanes[r.value] = d
                elif set(self.counters).isdisjoint(self.values[r.value].dims):
                    copy = self.copier.whole(self.values[r.value], f"near.{d}")
                    copies.append(replace(copy, origin=n.origin))
                    self.values[copy.out.name] = copy.out
                    self.inner[copy.out.name] = d
                    body = tuple(replace_read(e, r, replace(r, value=copy.out.name)) for e in body)
        for r in dict.fromkeys(r for e in body for r in reads(e)):
            if r.fill is not None:
                body = self._with_halo(n, r, body, copies, lanes.get(r.value))
        # All of a window is read from one place, what lies inside of the value, too.
        found = {c.body[0].value: c.out.name for c in copies if isinstance(c.body[0], Read)}
        names = {v: found[v] for v in cost.windows if v in found}
        if names:
            body = tuple(rename_reads(e, names) for e in body)
        return replace(n, body=body), copies

    def _with_halo(
        self,
        n: Nest,
        r: Read,
        body: tuple[Expr, ...],
        copies: list[Nest],
        lanes: str | None,
    ) -> tuple[Expr, ...]:
        """The body reading a value that has a halo: the value's own, or a copy's.

        `lanes` is the dim to be innermost in the copy, if that matters.
        """
        assert r.fill is not None
        inner = self.inner.get(r.value)
        halo = needed_halo(n, r, self.sizes, self.values, self.symbols, inner, self._is_finite)
        if not halo or r.value in self.constants:
            return body
        if masked_at_edges(n, r, self.sizes, self.inner):
            return body
        name = self.homes.get(r.value, r.value)
        own = self.fill.get(name)
        strided = lanes is not None and self.inner.get(name) != lanes
        if name in self.fixed or strided or (own is not None and own != r.fill):
            if not set(self.counters).isdisjoint(self.values[name].dims):
                return body
            inner = lanes or self.inner.get(name)
            kind = f"halo{_slug(r.fill)}" + (f".{lanes}" if strided else "")
            copy = self.copier.whole(self.values[r.value], kind)
            copies.append(replace(copy, origin=n.origin))
            self.values[copy.out.name] = copy.out
            self.inner[copy.out.name] = inner
            new = replace(r, value=copy.out.name)
            body = tuple(replace_read(e, r, new) for e in body)
            name = copy.out.name
        self.fill[name] = r.fill
        wide = self.halo.setdefault(name, {})
        for d, (lo, hi) in halo.items():
            a, b = wide.get(d, (0, 0))
            wide[d] = (max(a, lo), max(b, hi))
        return body

    def _is_finite(self, value: str) -> bool:
        """Whether a value is a constant of finite numbers."""
        return value in self.data and self.data[value].data.is_finite

    def _layouts(self) -> dict[str, Layout]:
        layouts: dict[str, Layout] = {}
        for name, v in self.values.items():
            order = self.order.get(name, v.dims)
            line = 0 if name in self.fixed else self.machine.line_bytes // v.dtype.bytes
            narrow = name not in self.fixed and v.dtype in (DType.I8, DType.U8)
            home = self.homes.get(name, name)
            layouts[name] = dense(
                order,
                self.sizes,
                halo=self.halo.get(home),
                fill=self.fill.get(home),
                line=line,
                whole=NEIGHBOURS if narrow else 1,
            )
        for n in walk_nodes(self.graph.nodes):
            if isinstance(n, Const):
                axes = self.fixed.get(n.out.name, n.axes)
                layouts[n.out.name] = dense(axes, self.sizes)
        return layouts

    def _limits(self) -> dict[str, int]:
        """The largest extent that every dim may have."""
        limits: dict[str, int] = {}
        for d, size in self.sizes.items():
            bounds = Index.of(size).bounds(self.symbols)
            limits[d] = bounds[1] if bounds is not None else 1 << 62
        return limits

    def _slicer(self, graph: Graph, layouts: dict[str, Layout]) -> Slicer:
        users: dict[str, set[str]] = {v: set() for v in self.values}
        for n in graph.nodes:
            for v in used_deep(n):
                users[v].add(outs(n)[0].name)
        bound = {*self.fixed, *self.homes, *self.homes.values(), *self.constants, *self.halo}
        bound |= {o.value for o in graph.outputs}
        free = frozenset(self.values) - bound
        names = {v: frozenset(nodes) for v, nodes in users.items()}
        return Slicer(
            self.values,
            layouts,
            self.sizes,
            names,
            free,
            self.constants,
            self.symbols,
            self.machine,
        )

    # -- steps ----------------------------------------------------------------------------------
    def _steps(
        self, nodes: tuple[Node, ...], needed: set[str], prefix: str
    ) -> tuple[PlanStep, ...]:
        fuser = Fuser(
            self.extents,
            self._limits(),
            self.inner,
            self.order,
            self.constants,
            self.homes,
            self.graph.extents,
            self.machine,
            self.steps,
            self.checks,
        )
        steps: list[PlanStep] = []
        fused = fuser.fuse(nodes, needed, prefix)
        self.refusals += fused.refusals
        for item in fused.items:
            if isinstance(item, Group):
                steps += [FillHalo(v) for v in item.stored if self.halo.get(v)]
                steps.append(Run(item))
            elif isinstance(item, Scatter):
                steps.append(Write(item))
            elif isinstance(item, Scan):
                steps.append(self._repeat(item, f"{prefix}s{len(steps)}_"))
            elif isinstance(item, If):
                steps.append(self._choose(item, f"{prefix}i{len(steps)}_"))
            elif isinstance(item, Call) and item.routine == "fail":
                steps.append(Fail(str(dict(item.attributes)["message"])))
                break
            elif isinstance(item, Call):
                steps.append(Invoke(item))
            elif isinstance(item, While):
                steps.append(self._repeat_while(item, f"{prefix}w{len(steps)}_"))
            elif isinstance(item, Bind):
                steps.append(Learn(item))
            else:
                raise InternalError(f"the plan has no step for {type(item).__name__}")
        return tuple(steps)

    def _repeat(self, n: Scan, prefix: str) -> Repeat:
        needed = {c.next for c in n.carries} | set(n.collected)
        steps = self._steps(n.body, needed, prefix)
        count = len(n.carries)
        collect = tuple(
            (name, out.name) for name, out in zip(n.collected, n.outs[count:], strict=True)
        )
        results = tuple(v.name for v in n.outs[:count])
        return Repeat(n.dim, self.sizes[n.dim], n.carries, collect, steps, results, n.origin)

    def _repeat_while(self, n: While, prefix: str) -> RepeatWhile:
        steps = self._steps(n.body, {c.next for c in n.carries}, prefix)
        return RepeatWhile(n.cond, n.carries, steps, tuple(v.name for v in n.outs), n.origin)

    def _choose(self, n: If, prefix: str) -> Choose:
        then = self._steps(n.then.nodes, set(n.then.results), f"{prefix}t")
        orelse = self._steps(n.orelse.nodes, set(n.orelse.results), f"{prefix}e")
        return Choose(
            n.cond,
            then,
            () if fails(then) else n.then.results,
            orelse,
            () if fails(orelse) else n.orelse.results,
            tuple(v.name for v in n.outs),
            n.origin,
        )


def _slug(fill: Lit) -> str:
    return "".join(c if c.isalnum() else "_" for c in str(fill.value))
