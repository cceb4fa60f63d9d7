"""The plan: everything decided about a graph before code is made, as printable data.

    plan   := graph, step*, layout of every stored value, place of every stored value, refusal*
    step   := group (one kernel) | write (a scatter's kernel) | fill of a halo
            | in turn (kernels over the indices of a dim) | repeat (a scan)
            | repeat while (a while) | choose (an if) | invoke (a call) | learn (a bind) | fail
            | joined (a value whose parts lie where it does)

The plan's graph is the optimized graph plus the copies that layouts ask for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rutc.base.record import record
from rutc.graph_opt.assignment import Assignment
from rutc.tensor_ir.graph import Bind, Call, Carry, Graph, Nest, Scatter, Value, used
from rutc.tensor_ir.indices.affine import Size, quoted
from rutc.tensor_ir.indices.ranges import range_text
from rutc.tensor_ir.layout import Layout
from rutc.tensor_ir.lower import Group
from rutc.tensor_ir.textual.text import value_name


class Illegal(Exception):
    """No plan has been assigned so; the message says why."""


@record
class Run:
    """Run the kernel of one fusion group."""

    group: Group


@record
class Write:
    """Run the kernel of a scatter, whose output lies in the memory of its base."""

    node: Scatter


@record
class FillHalo:
    """Fill the halo of a stored value, before anything reads it.

    With a `turn` (dim, symbol) only that around the index of the dim which the symbol has.
    """

    value: str
    turn: tuple[str, str] | None = None


@record
class Repeat:
    """A scan: `steps` once per trip; the carried values move on after each trip.

    `collect` pairs each collected value with the output that gains the scanned dim. `parts` are
    the values that each trip computes a part of.
    """

    dim: str
    trips: Size
    carries: tuple[Carry, ...]
    collect: tuple[tuple[str, str], ...]
    steps: tuple[PlanStep, ...]
    results: tuple[str, ...]
    origin: tuple[str, ...]
    parts: tuple[str, ...] = ()


@record
class Near:
    """A value that only kernels in turn read: `bytes` of one index, at an offset in a thread's."""

    value: str
    offset: Size
    bytes: Size


@record
class InTurn:
    """Kernels over indices of a dim: each over all of them, or all over one, and then the next.

    `steps` are repeats of parts, of which each counts `trips` of the symbol `dim`. A thread that
    does all for one index has `near_bytes` for the values that are `near`. Or the only step is a
    loop whose body they are: a thread does all trips for its part of the indices.
    """

    dim: str
    trips: Size
    steps: tuple[Repeat, ...]
    near: tuple[Near, ...]
    near_bytes: Size

    @property
    def loop(self) -> Repeat | None:
        """The loop of which a thread does all trips; None where kernels alone take turns."""
        return None if self.steps[0].parts else self.steps[0]

    @property
    def parts(self) -> tuple[str, ...]:
        """The values that are computed in parts."""
        steps = self.steps if self.loop is None else self.loop.steps
        return tuple(v for s in steps if isinstance(s, Repeat) for v in s.parts)


@record
class RepeatWhile:
    """A while: `steps` as long as `cond`, a carried parameter, holds before them."""

    cond: str
    carries: tuple[Carry, ...]
    steps: tuple[PlanStep, ...]
    results: tuple[str, ...]
    origin: tuple[str, ...]


@record
class Invoke:
    """Call a routine of the host runtime."""

    call: Call


@record
class Learn:
    """Give a size its value, which the steps before have computed."""

    bind: Bind


@record
class Choose:
    """An if: one of two step lists; `results` are copied from the branch's values.

    A branch that ends in `Fail` has no values.
    """

    cond: str
    then: tuple[PlanStep, ...]
    then_values: tuple[str, ...]
    orelse: tuple[PlanStep, ...]
    orelse_values: tuple[str, ...]
    results: tuple[str, ...]
    origin: tuple[str, ...]


@record
class Joined:
    """A value all of whose elements lie already where it has them: nothing is to be done.

    What its nest reads lies in its memory, every element at the place of the one that it makes.
    """

    node: Nest


@record
class Fail:
    """The run ends here with an error message (a branch that cannot be taken at these sizes)."""

    message: str


PlanStep = (
    Run | Write | FillHalo | InTurn | Repeat | RepeatWhile | Choose | Invoke | Learn | Joined | Fail
)


def fails(steps: tuple[PlanStep, ...]) -> bool:
    """Whether a run that takes these steps ends in them; what they compute after that is none."""
    return bool(steps) and isinstance(steps[-1], Fail)


@record
class Place:
    """Where a stored value lies: `space` is arena, block, input or output; `offset` in bytes.

    What is near has the offset in a thread's memory for one index of kernels in turn.

    `index` numbers the block, input or output. A block holds one value at a time, of a size that
    the program computes.
    """

    space: str
    index: int
    offset: Size
    bytes: Size

    def __str__(self) -> str:
        number = "" if self.space == "arena" else str(self.index)
        return f"{self.space}{number}+{self.offset}"


@record
class Refusal:
    """Why the nest that defines `reader` does not share a kernel with `value`, which it reads."""

    reader: str
    value: str
    reason: str

    def __str__(self) -> str:
        return f"{value_name(self.reader)} not with {value_name(self.value)}: {self.reason}"


@record
class Plan:
    """What to run, in which order, in which layouts and where in memory."""

    graph: Graph
    values: Mapping[str, Value]
    steps: tuple[PlanStep, ...]
    layouts: Mapping[str, Layout]
    places: Mapping[str, Place]
    arena_bytes: Size
    refusals: tuple[Refusal, ...] = ()
    strings: tuple[str, ...] = ()
    """The strings that the graph's numbers name; empty where it has none."""
    boxes: frozenset[str] = frozenset()
    """The values whose elements are numbers of boxes."""
    assignment: Assignment | None = None
    """What was chosen of which this is the plan."""

    def groups(self) -> Iterator[Group]:
        """All fusion groups, those inside of bodies included."""
        return groups_of(self.steps)

    def __str__(self) -> str:
        lines = [f"plan {self.graph.name}: arena {self.arena_bytes} bytes"]
        lines += [f"  size {quoted(s)} = {range_text(r)}" for s, r in self.graph.symbols]
        _print(self, self.steps, 1, lines)
        if self.refusals:
            lines += ["not fused:", *(f"  {r}" for r in self.refusals)]
        return "\n".join(lines)


def groups_of(steps: tuple[PlanStep, ...]) -> Iterator[Group]:
    """All fusion groups of a step list, those inside of bodies included."""
    for s in steps:
        match s:
            case Run():
                yield s.group
            case Repeat() | RepeatWhile() | InTurn():
                yield from groups_of(s.steps)
            case Choose():
                yield from groups_of(s.then)
                yield from groups_of(s.orelse)
            case Write() | FillHalo() | Invoke() | Learn() | Joined() | Fail():
                pass


def launched_groups(steps: tuple[PlanStep, ...]) -> Iterator[tuple[Group, ...]]:
    """The groups of each launch: a chain's together, of others one each."""
    for s in steps:
        match s:
            case Run():
                yield (s.group,)
            case Repeat() if s.parts:
                yield tuple(groups_of((s,)))
            case Repeat() | RepeatWhile() | InTurn():
                yield from launched_groups(s.steps)
            case Choose():
                yield from launched_groups(s.then)
                yield from launched_groups(s.orelse)
            case Write() | FillHalo() | Invoke() | Learn() | Joined() | Fail():
                pass


def _print(plan: Plan, steps: tuple[PlanStep, ...], depth: int, lines: list[str]) -> None:
    pad = "  " * depth
    for s in steps:
        match s:
            case Run(group):
                inner = ", ".join(value_name(v.name) for n in group.stages for v in n.outs)
                stored = ", ".join(
                    f"{value_name(v)} {plan.layouts[v]} @{plan.places[v]}" for v in group.stored
                )
                shared = ", ".join(map(quoted, group.shared))
                lines.append(f"{pad}{group.name} for {{{shared}}}: {inner} -> {stored}")
            case Write(n):
                over = ", ".join(map(quoted, n.dims))
                out = f"{value_name(n.out.name)} {plan.layouts[n.out.name]}"
                place = plan.places[n.out.name]
                lines.append(
                    f"{pad}scatter for {{{over}}} into {value_name(n.base)}: {out} @{place}"
                )
            case FillHalo(value, _):
                lines.append(f"{pad}fill the halo of {value_name(value)}")
            case Joined(n):
                out = f"{value_name(n.out.name)} {plan.layouts[n.out.name]}"
                parts = ", ".join(
                    f"{value_name(v)} @{plan.places[v]}" for v in dict.fromkeys(used(n))
                )
                lines.append(f"{pad}joined: {out} @{plan.places[n.out.name]} of {parts}")
            case Fail(message):
                lines.append(f"{pad}fail: {message}")
            case Repeat():
                lines.append(f"{pad}repeat {quoted(s.dim)} {s.trips} times")
                _print(plan, s.steps, depth + 1, lines)
            case InTurn():
                names = ", ".join(value_name(x.value) for x in s.near)
                near = f", {s.near_bytes} bytes near: {names}" if s.near else ""
                lines.append(f"{pad}in turn {quoted(s.dim)} of {s.trips}{near}")
                _print(plan, s.steps, depth + 1, lines)
            case RepeatWhile():
                lines.append(f"{pad}while {value_name(s.cond)}")
                _print(plan, s.steps, depth + 1, lines)
            case Learn(bind):
                lines.append(f"{pad}size {quoted(bind.symbol)} = {value_name(bind.value)}")
            case Invoke(call):
                results = ", ".join(
                    f"{value_name(v.name)} {plan.layouts[v.name]} @{plan.places[v.name]}"
                    for v in call.outs
                )
                args = ", ".join(map(value_name, call.args))
                lines.append(f"{pad}call {call.routine}({args}) -> {results}")
            case Choose():
                lines.append(f"{pad}if {value_name(s.cond)}")
                _print(plan, s.then, depth + 1, lines)
                lines.append(f"{pad}else")
                _print(plan, s.orelse, depth + 1, lines)
