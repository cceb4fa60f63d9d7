"""The plan of an assignment: a pure function that makes no choice of its own.

    recomputed values -> copies -> types -> joins -> layouts -> groups -> slices and turns -> places

Every assignment that is legal for a graph has a plan, and all of them compute the same.
"""

from __future__ import annotations

from dataclasses import replace

from rutc.base.cached import cached_property
from rutc.base.record import record
from rutc.errors import InternalError
from rutc.graph_opt.assignment import Arrangement, Assignment, Grouping
from rutc.graph_opt.decide.copies import with_copies
from rutc.graph_opt.decide.groups import Groups, Operands, reads_at_its_own_place
from rutc.graph_opt.decide.joins import NEIGHBOURS, Joins, with_joins
from rutc.graph_opt.decide.likeness import Found
from rutc.graph_opt.decide.loop_turns import LoopTurns
from rutc.graph_opt.decide.memory import place_values
from rutc.graph_opt.decide.own_lines import ALIGNMENT
from rutc.graph_opt.decide.prepared import Prepared
from rutc.graph_opt.decide.recompute import without_recomputed
from rutc.graph_opt.decide.slices import Slicer
from rutc.graph_opt.decide.stored_types import with_types
from rutc.graph_opt.decide.turns import Turns
from rutc.graph_opt.plan import (
    Choose,
    Fail,
    FillHalo,
    Illegal,
    Invoke,
    Joined,
    Learn,
    Plan,
    PlanStep,
    Repeat,
    RepeatWhile,
    Run,
    Write,
    fails,
)
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.expr import reads
from rutc.tensor_ir.graph import (
    Bind,
    Call,
    Graph,
    If,
    Nest,
    Node,
    Scan,
    Scatter,
    While,
    bound_symbols,
    outs,
    used,
    used_deep,
    walk_nodes,
)
from rutc.tensor_ir.indices.affine import ZERO, Size, plain
from rutc.tensor_ir.layout import Layout, dense, in_nibbles
from rutc.tensor_ir.lower import Group
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.textual.text import value_name
from rutc.tensor_ir.verifier import verify

_STAGES = {
    "computed": ("recomputed",),
    "copied": ("copies",),
    "typed": ("types",),
    "joined": ("joins",),
    "known": (),
    "layouts": ("arrangements",),
    "turns": (),
    "steps": ("groups",),
    "plan": ("slices", "turns"),
}
"""The stages in order, and what each adds to that on which those before it depend."""


def realise(prepared: Prepared, assignment: Assignment, machine: Machine) -> Plan:
    """The plan of an assignment.

    Raises:
        Illegal: The graph has no such plan; the message says why.
    """
    return Realisation(prepared, assignment, machine).plan


@record
class Realisation:
    """What an assignment makes of a graph, stage by stage."""

    prepared: Prepared
    assignment: Assignment
    machine: Machine

    def but(self, assignment: Assignment) -> Realisation:
        """That of another assignment; the stages for which it says the same are not done again."""
        other = Realisation(self.prepared, assignment, self.machine)
        vars(other)["chains"] = self.chains
        before = self.assignment
        for stage, said in _STAGES.items():
            if any(getattr(before, name) != getattr(assignment, name) for name in said):
                break
            if stage in vars(self):
                vars(other)[stage] = vars(self)[stage]
        return other

    @cached_property
    def chains(self) -> Found:
        """What was found of the chains of this plan, and of those that it was made from."""
        return Found()

    @cached_property
    def computed(self) -> Graph:
        """The graph without the values that are computed where they are read."""
        before = self.prepared.graph
        return _with(before, without_recomputed(self.prepared, self.assignment.recomputed))

    @cached_property
    def copied(self) -> Graph:
        """That graph with copies of operands."""
        before = self.computed
        return _with(before, with_copies(before.nodes, self.assignment.copies, before.values))

    @cached_property
    def typed(self) -> Graph:
        """That graph with the types that values are stored in."""
        before = self.copied
        return _with(before, with_types(self.prepared, before, self.assignment.types))

    @cached_property
    def joined(self) -> Joins:
        """That graph with concatenations that are no work."""
        return with_joins(self.prepared, self.typed, self.assignment.joins)

    @property
    def graph(self) -> Graph:
        """What is planned."""
        return self.joined.graph

    @cached_property
    def known(self) -> Prepared:
        """What about the memory of what is planned is not for choice any more."""
        return self.joined.prepared(self.prepared)

    @cached_property
    def layouts(self) -> dict[str, Layout]:
        """Where the elements of every value lie."""
        known, values = self.known, self.graph.values
        strange = self.assignment.arrangements.keys() - values.keys()
        if strange:
            raise Illegal(f"no value {value_name(min(strange))} is there to be arranged")
        found: dict[str, Layout] = {}
        constants, whole = self.graph.constants, self._read_whole()
        parts = self.joined.parts
        for name, v in values.items():
            if name in parts:
                continue
            if name in constants:
                axes = known.fixed.get(name, constants[name].axes)
                found[name] = dense(axes, known.sizes)
                if v.dtype in (DType.I4, DType.U4) and name not in whole:
                    found[name] = in_nibbles(found[name])
                continue
            given = self.arrangement(name)
            fixed = name in known.fixed
            narrow = not fixed and v.dtype in (DType.I8, DType.U8)
            found[name] = dense(
                given.order,
                known.sizes,
                halo={d: (lo, hi) for d, lo, hi in given.halo},
                fill=given.fill,
                blocks=dict(given.blocks),
                line=0 if fixed else self.machine.line_bytes // v.dtype.bytes,
                whole=NEIGHBOURS if narrow else 1,
                capacity=known.kept.capacity.get(name),
            )
        for name in parts:
            self._place_part(name, found)
        return found

    def _place_part(self, name: str, found: dict[str, Layout]) -> None:
        """Add the layout of a part to those that are `found`, and of what it is a part of."""
        part = self.joined.parts[name]
        if name in self.assignment.arrangements:
            raise Illegal(f"{value_name(name)} lies in the memory of {value_name(part.whole)}")
        if part.whole not in found:
            self._place_part(part.whole, found)
        dims = self.graph.values[name].dims
        found[name] = part.layout(found[part.whole], dims, self.known.sizes)

    @cached_property
    def starts(self) -> dict[str, Size]:
        """The elements in the memory of its home before each value that lies in another one's."""
        found = dict(self.known.kept.starts)
        parts = self.joined.parts
        for name in parts:
            total, at = ZERO, name
            while at in parts:
                total += parts[at].offset(self.layouts[parts[at].whole])
                at = parts[at].whole
            if not (total * self.graph.values[name].dtype.bytes).is_multiple(ALIGNMENT):
                raise Illegal(f"{value_name(name)} does not begin at a cache line")
            found[name] = plain(total)
        return found

    def _read_whole(self) -> set[str]:
        """The values that something else than nests reads, which knows of no nibbles."""
        nodes = walk_nodes(self.graph.nodes)
        found = {v for n in nodes if not isinstance(n, Nest) for v in used(n)}
        return found | {o.value for o in self.graph.outputs}

    def arrangement(self, name: str) -> Arrangement:
        """How a value that is no constant lies in memory.

        Raises:
            Illegal: That is not said, or does not fit the value.
        """
        known, v = self.known, self.graph.values[name]
        home = known.home(name)
        given = self.assignment.arrangements.get(home)
        if home in known.fixed or name in known.fixed:
            if given is not None:
                raise Illegal(f"{value_name(home)} lies in memory as the interface says")
            return Arrangement(tuple(known.fixed[name if name in known.fixed else home]))
        if given is None:
            raise Illegal(f"nothing says how {value_name(home)} lies in memory")
        if home != name and name in self.assignment.arrangements:
            raise Illegal(f"{value_name(name)} lies in the memory of {value_name(home)}")
        if tuple(sorted(given.order)) != v.dims:
            raise Illegal(f"{value_name(home)} {given}: its dims are {', '.join(v.dims)}")
        inside = {d for d, _, _ in given.halo} | dict(given.blocks).keys()
        if not inside <= set(v.dims):
            raise Illegal(f"{value_name(home)} {given}: it has no dim {min(inside - set(v.dims))}")
        if bool(given.halo) != (given.fill is not None):
            raise Illegal(f"{value_name(home)} {given}: a halo has a fill")
        if given.fill is not None and given.fill.dtype is not v.dtype:
            raise Illegal(f"{value_name(home)} {given}: the fill is no {v.dtype}")
        return given

    @cached_property
    def steps(self) -> tuple[PlanStep, ...]:
        """The steps before any are sliced or take turns."""
        computed = {n for g in self.assignment.groups for n in g.nests}
        if len(computed) < sum(len(g.nests) for g in self.assignment.groups):
            raise Illegal("a nest is of one group")
        outputs = {o.value for o in self.graph.outputs}
        grouped: set[str] = set()
        steps = self._steps(self.graph.nodes, outputs, "g", grouped)
        if missing := computed - grouped:
            raise Illegal(f"{value_name(min(missing))} is in a group and no nest of the graph")
        return steps

    @cached_property
    def turns(self) -> Turns:
        """What finds sections of steps that take turns, and steps that run over slices."""
        known, graph, layouts = self.known, self.graph, self.layouts
        users: dict[str, set[str]] = {v: set() for v in graph.values}
        for n in graph.nodes:
            for v in used_deep(n):
                users[v].add(outs(n)[0].name)
        outputs = {o.value for o in graph.outputs}
        homes = frozenset({*known.homes, *known.homes.values()})
        halos = {v for v, x in layouts.items() if x.halo}
        constants = frozenset(graph.constants)
        bound = {*known.fixed, *homes, *constants, *outputs}
        slicer = Slicer(
            graph.values,
            layouts,
            known.sizes,
            {v: frozenset(nodes) for v, nodes in users.items()},
            frozenset(graph.values) - bound - halos,
            constants,
            known.symbols,
            self.machine,
            found=self.chains,
        )
        first = (layouts[i.name].axes[:1] for i in graph.inputs if i.name in layouts)
        sizes = (a.extent for axes in first for a in axes)
        batches = frozenset(n for n in sizes if isinstance(n, int) and n > 1)
        computed = frozenset(bound_symbols(graph.nodes))
        return Turns(slicer, frozenset(graph.values) - bound, homes, computed, batches)

    @cached_property
    def loop_turns(self) -> LoopTurns:
        """What finds loops of which a thread does all trips for some rows."""
        return LoopTurns(self.turns, self.graph.constants)

    def in_turn(self) -> Realisation:
        """The same with the sections, the chains and the loops in turn that pay, instead of its."""
        turns, slices = self.turns.chosen(self.steps)
        turns += self.loop_turns.chosen(self.steps)
        return self.but(replace(self.assignment, turns=turns, slices=slices))

    @cached_property
    def plan(self) -> Plan:
        """The whole plan."""
        known, graph = self.known, self.graph
        given = self.assignment
        looped, others = self.loop_turns.arranged(self.steps, given.turns)
        arranged = self.turns.arranged(looped, others, given.slices)
        steps, layouts = arranged.steps, arranged.layouts
        places, arena = place_values(
            graph, steps, graph.values, layouts, known.homes, self.starts, self.machine.cores
        )
        return Plan(
            graph,
            graph.values,
            steps,
            layouts,
            places,
            arena,
            (),
            known.strings,
            known.boxes,
            given,
        )

    # -- steps ----------------------------------------------------------------------------------
    def _steps(
        self, nodes: tuple[Node, ...], needed: set[str], prefix: str, grouped: set[str]
    ) -> tuple[PlanStep, ...]:
        groups = _GivenGroups(self.known, self._groupings)
        groups.grow(nodes)
        items = groups.finished(needed, self._orders, prefix)
        grouped.update(groups.home)
        steps: list[PlanStep] = []
        for item in items:
            match item:
                case Group():
                    steps += [FillHalo(v) for v in item.stored if self.layouts[v].halo]
                    steps.append(Run(item))
                case Scatter():
                    steps.append(Write(item))
                case Scan():
                    steps.append(self._repeat(item, f"{prefix}s{len(steps)}_", grouped))
                case If():
                    steps.append(self._choose(item, f"{prefix}i{len(steps)}_", grouped))
                case Call(routine="fail"):
                    steps.append(Fail(str(dict(item.attributes)["message"])))
                    break
                case Call():
                    steps.append(Invoke(item))
                case While():
                    steps.append(self._repeat_while(item, f"{prefix}w{len(steps)}_", grouped))
                case Bind():
                    steps.append(Learn(item))
                case Nest():
                    steps.append(Joined(item))
                case _:
                    raise InternalError(f"the plan has no step for {type(item).__name__}")
        return tuple(steps)

    @cached_property
    def _orders(self) -> dict[str, tuple[str, ...]]:
        """The dims of every value as they lie."""
        return {v: tuple(dict.fromkeys(a.dim for a in x.axes)) for v, x in self.layouts.items()}

    @cached_property
    def _groupings(self) -> dict[str, Grouping]:
        return {n: g for g in self.assignment.groups for n in g.nests}

    def _repeat(self, n: Scan, prefix: str, grouped: set[str]) -> Repeat:
        needed = {c.next for c in n.carries} | set(n.collected)
        steps = self._steps(n.body, needed, prefix, grouped)
        count = len(n.carries)
        collect = tuple(
            (name, out.name) for name, out in zip(n.collected, n.outs[count:], strict=True)
        )
        results = tuple(v.name for v in n.outs[:count])
        trips = self.known.sizes[n.dim]
        return Repeat(n.dim, trips, n.carries, collect, steps, results, n.origin)

    def _repeat_while(self, n: While, prefix: str, grouped: set[str]) -> RepeatWhile:
        steps = self._steps(n.body, {c.next for c in n.carries}, prefix, grouped)
        return RepeatWhile(n.cond, n.carries, steps, tuple(v.name for v in n.outs), n.origin)

    def _choose(self, n: If, prefix: str, grouped: set[str]) -> Choose:
        then = self._steps(n.then.nodes, set(n.then.results), f"{prefix}t", grouped)
        orelse = self._steps(n.orelse.nodes, set(n.orelse.results), f"{prefix}e", grouped)
        return Choose(
            n.cond,
            then,
            () if fails(then) else n.then.results,
            orelse,
            () if fails(orelse) else n.orelse.results,
            tuple(v.name for v in n.outs),
            n.origin,
        )


def _with(before: Graph, nodes: tuple[Node, ...]) -> Graph:
    """A graph with other nodes, verified; itself if they are its own."""
    if nodes is before.nodes:
        return before
    graph = replace(before, nodes=nodes)
    verify(graph, since=before)
    return graph


class _GivenGroups(Groups):
    """The groups of an assignment."""

    def __init__(self, prepared: Prepared, groupings: dict[str, Grouping]) -> None:
        """Group nests as `groupings` says, by the names of their first results."""
        super().__init__(prepared)
        self.groupings = groupings
        self.begun_already: dict[Grouping, int] = {}

    def joins(self, n: Nest, operands: Operands) -> tuple[int, ...]:
        """The group that a nest is assigned to, if it has begun."""
        grouping = self.groupings.get(n.out.name)
        number = None if grouping is None else self.begun_already.get(grouping)
        if number is not None:
            self._check(n, number, operands)
        return () if number is None else (number,)

    def begun(self, n: Nest, number: int) -> frozenset[str]:
        """The assigned shared dims."""
        grouping = self.groupings.get(n.out.name)
        if grouping is None:
            return self.dims(n)
        self.begun_already[grouping] = number
        self._check_dims(n, frozenset(grouping.shared))
        return frozenset(grouping.shared)

    def _check(self, n: Nest, number: int, operands: Operands) -> None:
        """Raises Illegal where a nest cannot run within a group's loops."""
        draft = self.drafts[number]
        self._check_dims(n, draft.shared)
        if any(h != number and self.leads_to(h, number) for h in operands.needs):
            raise Illegal(
                f"{value_name(n.out.name)} cannot join a group of whose results another of its "
                "operands is computed"
            )
        for r in (r for e in n.body for r in reads(e)):
            if self.home.get(r.value) == number and not reads_at_its_own_place(r, draft.shared):
                raise Illegal(
                    f"{value_name(n.out.name)} reads {value_name(r.value)}, of its own group, at "
                    "another place than it writes"
                )

    def _check_dims(self, n: Nest, shared: frozenset[str]) -> None:
        if not shared <= self.dims(n):
            missing = min(shared - self.dims(n))
            raise Illegal(f"{value_name(n.out.name)} has no loop over {missing}, as its group has")
