"""What is shown of an artifact: each plan's graph, memory and time, and all of its kernels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import sqrt
from pathlib import Path
from typing import Any

from rutc.base.record import record
from rutc.driver.parts.outline import Outline, PlanOutline, StepOutline, ValueOutline
from rutc.report.display import StepTime, quantity, shape_text
from rutc.report.page import labels
from rutc.report.page.charts import (
    Extent,
    Span,
    Timeline,
    memory_chart,
    model_parts,
    roofline,
    shares,
    timeline,
)
from rutc.report.page.grouping import parts_graph
from rutc.report.page.values import details, values_on_page, weights_on_page
from rutc.report.page.view import (
    LETTERS,
    Cell,
    Fact,
    Graph,
    Node,
    Row,
    Sheet,
    Table,
    View,
    drawn,
    number_cell,
    optional_cell,
)
from rutc.runtime.ports import NodeArg, Ports

Facts = Mapping[str, object]
KINDS = (
    *("products", "reduction", "elementwise", "copy", "gather", "scatter", "routine", "halo"),
    *("collect", "kernel"),
)
"""Kinds of steps that take time."""
COLOURS = {kind: n for n, kind in enumerate(KINDS)}
ROOFS = {
    "second cache": "l2_bytes_per_cycle",
    "last cache": "l3_bytes_per_cycle",
    "memory": "memory_bytes_per_cycle",
}
"""Levels of memory, and the rates of a machine that they are read at."""


@record
class Profile:
    """What the steps of a run took, by so many threads, and how long a cycle of the clock is.

    The latter is None where it could not be measured.
    """

    steps: tuple[StepTime, ...]
    threads: int
    cycle_ns: float | None

    def cycles(self, us: float) -> float | None:
        """The cycles that all threads together have in a time, if that is known."""
        return us * 1e3 / self.cycle_ns * self.threads if self.cycle_ns else None


@record
class ShownArtifact:
    """All that is known of an artifact; `notes` are lines of what else it tells of itself."""

    name: str
    manifest: Facts
    kernels: Sequence[Facts]
    outline: Outline
    notes: tuple[str, ...]
    profile: Profile | None = None

    def computing(self, time: StepTime) -> float | None:
        """The cycles that the arithmetic of what was measured takes at least, if it is known."""
        if time.flops is None or time.kernel is None:
            return None
        kernel = self.kernels[time.kernel]
        return _whole(kernel.get("computing")) * time.calls / (_whole(kernel.get("turns")) or 1)

    def port_names(self, role: str) -> list[str]:
        """The names of all inputs or outputs, those that are states behind the others."""
        ports: Any = self.manifest.get(f"{role}s", ())
        states: Any = self.manifest.get("states", ())
        return [port["name"] for port in ports] + [state[role]["name"] for state in states]


@record
class Work:
    """What a step does in a run, as far as it is known: estimated cycles, and what was measured.

    Operations and bytes are those at common sizes, or of the run that was measured; `computing` are
    the cycles that the arithmetic takes at least, of one thread.
    """

    cycles: float | None
    us: float | None
    flops: float | None
    bytes: float | None
    computing: float | None

    @property
    def time(self) -> float:
        """What counts as its time: measured if anything was, else estimated."""
        return self.us if self.us is not None else self.cycles or 0.0


def artifact_view(artifact: ShownArtifact) -> View:
    """Returns what is shown of an artifact."""
    sheets = tuple(
        _Plan(artifact, number, plan).sheet() for number, plan in enumerate(artifact.outline.plans)
    )
    manifest = artifact.manifest
    subtitle = f"target {manifest.get('target')}, precision {manifest.get('precision')}"
    facts = tuple(Fact(*fact) for fact in _facts(artifact))
    found = Ports.of(Path(artifact.name), manifest)
    ports = ports_on_page(found.get_inputs(), found.get_outputs())
    return View(artifact.name, subtitle, facts, artifact.notes, ports, sheets)


def ports_on_page(inputs: Sequence[NodeArg], outputs: Sequence[NodeArg]) -> Table:
    """Returns a row for each input and output."""
    rows = tuple(
        Row(None, tuple(map(Cell, (role, p.name, p.type, shape_text(p.shape)))))
        for role, ports in (("input", inputs), ("output", outputs))
        for p in ports
    )
    return Table("Inputs and outputs", "", ("", "name", "type", "shape"), rows)


def without_outline(kernels: Sequence[Facts]) -> Outline:
    """Returns what an older library tells: kernels in their order, and nothing of their values."""
    plans: dict[int, list[StepOutline]] = {}
    for number, kernel in enumerate(kernels):
        own = plans.setdefault(_whole(kernel.get("plan")), [])
        origin = kernel.get("origin")
        names = tuple(map(str, origin)) if isinstance(origin, list) else ()
        name = str(kernel.get("name"))
        own.append(StepOutline(len(own), "kernel", name, 0, 1, number, (), (), (), names, ()))
    found = (PlanOutline("", 0, len(own), (), (), tuple(own)) for own in plans.values())
    return Outline({}, tuple(found))


def _facts(artifact: ShownArtifact) -> Iterator[tuple[str, str]]:
    """The lines of the overview."""
    manifest, kernels, plans = artifact.manifest, artifact.kernels, artifact.outline.plans
    if "model" in manifest:
        yield "model", str(manifest["model"])
    code = len({str(k.get("symbol")) for k in kernels})
    yield "kernels", f"{len(kernels)}, with code for {code} different ones"
    yield "weights", labels.size(_whole(manifest.get("weight_bytes")))
    yield "working memory", labels.size(max((p.arena_bytes for p in plans), default=0))
    flops = _whole(manifest.get("flops"))
    yield "operations of a run", quantity(flops, "FLOP")
    launches = [
        (kernels[s.kernel], s.runs)
        for plan in plans[-1:]
        for s in plan.steps
        if s.kernel is not None
    ]
    estimated, computing = (
        sum(_whole(kernel.get(key)) * runs for kernel, runs in launches)
        for key in ("cycles", "computing")
    )
    if estimated:
        yield "estimated time of a run", f"{labels.cycles(estimated)} of one thread"
    if artifact.profile is not None:
        yield from _measured_facts(artifact, artifact.profile)
    elif estimated:
        yield OF_PEAK, labels.share(computing / estimated)


def _measured_facts(artifact: ShownArtifact, profile: Profile) -> Iterator[tuple[str, str]]:
    """What a profile tells of a whole run."""
    total, known = sum(s.us for s in profile.steps), sum(s.flops or 0 for s in profile.steps)
    computing = sum(artifact.computing(s) or 0.0 for s in profile.steps)
    threads = "one thread" if profile.threads == 1 else f"{profile.threads} threads"
    yield "measured time of a run", f"{labels.us(total)} by {threads}"
    if profile.cycle_ns:
        yield "clock meanwhile", f"{1 / profile.cycle_ns:.2f} GHz"
    if total and known:
        yield "measured rate", f"{known / total / 1e3:.4g} GFLOP/s"
    cycles = profile.cycles(total)
    if cycles:
        yield OF_PEAK, labels.share(computing / cycles)


def _peak(outline: Outline) -> float:
    """The operations in a cycle that a thread does at best in f32; 0 if it is not known."""
    width = float(outline.machine.get("vector_bits", 0)) / 32
    return 2 * width * float(outline.machine.get("fma_per_cycle", 0))


class _Plan:
    """What is shown of one plan of an artifact."""

    def __init__(self, artifact: ShownArtifact, number: int, plan: PlanOutline) -> None:
        self.artifact = artifact
        self.number = number
        self.plan = plan
        self.kernels = artifact.kernels
        self.peak = _peak(artifact.outline)
        self.measured = self._measured()
        self.work = [self._work(n) for n in range(len(plan.steps))]
        self.total = sum(w.time for w in self.work) + sum(s.us for s in self.others)
        self.slowest = max((w.time for w in self.work), default=0.0)

    def _measured(self) -> dict[int, StepTime]:
        """What was measured of steps by number; `others` are copies that are none."""
        self.others: list[StepTime] = []
        self.order: list[tuple[int | None, StepTime]] = []
        """All that was measured, in the order of the run, with the steps' numbers."""
        profile = self.artifact.profile
        if profile is None:
            return {}
        steps = self.plan.steps
        own = {s.kernel: n for n, s in enumerate(steps) if s.kernel is not None}
        routines: dict[tuple[str, str], list[int]] = {}
        for n, s in enumerate(steps):
            if s.kind == "routine":
                routines.setdefault((s.name, ", ".join(s.origin)), []).append(n)
        found: dict[int, StepTime] = {}
        for time in profile.steps:
            step = None if time.kernel is None else own.get(time.kernel)
            if time.kernel is None and routines.get((time.name, time.origin)):
                step = routines[time.name, time.origin].pop(0)
            if time.kernel is not None and step is None:
                continue  # A kernel of another plan.
            self.order.append((step, time))
            if step is None:
                self.others.append(time)
            else:
                found[step] = time
        return found

    def _work(self, number: int) -> Work:
        step = self.plan.steps[number]
        time = self.measured.get(number)
        kernel: Facts = {} if step.kernel is None else self.kernels[step.kernel]
        each = kernel.get("cycles"), kernel.get("computing")
        cycles, computing = (None if n is None else float(_whole(n) * step.runs) for n in each)
        if self.artifact.profile is None:
            own = (kernel.get(key) for key in ("flops", "bytes"))
            flops, bytes_ = (None if n is None else float(_whole(n) * step.runs) for n in own)
            return Work(cycles, None, flops, bytes_, computing)
        if time is None:
            return Work(cycles, 0.0, 0, 0, 0)
        return Work(cycles, time.us, time.flops, time.bytes, self.artifact.computing(time))

    def _cycles(self, work: Work) -> float | None:
        """The cycles that a step took, of all threads together, or is estimated to take."""
        profile = self.artifact.profile
        return work.cycles if profile is None else profile.cycles(work.us or 0.0)

    def _of_peak(self, work: Work) -> float | None:
        cycles = self._cycles(work)
        return work.computing / cycles if cycles and work.computing is not None else None

    # -- the sheet ------------------------------------------------------------------------------
    def sheet(self) -> Sheet:
        """What is shown of the plan."""
        plan, plans = self.plan, self.artifact.outline.plans
        title = ""
        if len(plans) > 1:
            where = f"where {plan.where} > 0" if plan.where else "elsewhere"
            title = f"Plan {self.number}: runs {where}"
        timed = [(s, w.time) for s, w in zip(plan.steps, self.work, strict=True) if _works(s)]
        kinds = [(s.kind, time) for s, time in timed] + [("copy", s.us) for s in self.others]
        parts = [(s.origin[0] if s.origin else s.name, time) for s, time in timed]
        measured = self.artifact.profile is not None
        shown = self._timeline()
        extents = list(self._extents())
        memory = memory_chart(extents, plan.arena_bytes, plan.end) if extents else None
        roofs = {
            name: float(self.artifact.outline.machine.get(key, 0)) for name, key in ROOFS.items()
        }
        of_machine = "measured cycles" if measured else "estimated cycles of one thread"
        return Sheet(
            title,
            COLOURS,
            drawn(*self._graph()),
            ("time", "peak", "kind"),
            shares(kinds),
            model_parts(parts),
            (self._steps(), values_on_page(plan), weights_on_page(plan)),
            details(plan, list(map(self._schedule, plan.steps))),
            "measured time" if measured else "estimated cycles",
            self._groups(),
            memory,
            plan.arena_bytes,
            shown,
            "measured" if measured else "estimated",
            tuple(self._mark(begin) for _, begin in shown.marks),
            roofline(list(self._rated()), self.peak, roofs),
            of_machine,
        )

    def _schedule(self, step: StepOutline) -> tuple[str, ...]:
        if step.kernel is None:
            return ()
        return tuple(str(self.kernels[step.kernel].get("schedule", "")).split("; "))

    def _mark(self, time: float) -> str:
        return labels.us(time) if self.artifact.profile is not None else labels.cycles(time)

    def _timeline(self) -> Timeline:
        steps = self.plan.steps
        if self.artifact.profile is not None:
            return timeline(
                [
                    Span(n, "copy" if n is None else steps[n].kind, self._title(n, t.name), t.us)
                    for n, t in self.order
                ]
            )
        return timeline(
            [
                Span(n, s.kind, self._title(n, s.name), self.work[n].time)
                for n, s in enumerate(steps)
                if _works(s)
            ]
        )

    def _title(self, number: int | None, name: str) -> str:
        step = None if number is None else self.plan.steps[number]
        return labels.title(step.origin if step else (), step.name if step else name, LETTERS)

    def _extents(self) -> Iterator[Extent]:
        kinds = {v: s.kind for s in self.plan.steps for v in s.writes}
        for n, v in enumerate(self.plan.values):
            if v.space == "arena" and v.first is not None and v.last is not None:
                label = labels.short(v.name, LETTERS)
                kind = kinds.get(n, "copy")
                yield Extent(n, label, kind, v.offset, v.bytes, v.first, v.last)

    def _rated(self) -> Iterator[tuple[int, str, float, float, float]]:
        """The kernels whose rates are known."""
        for n, (s, w) in enumerate(zip(self.plan.steps, self.work, strict=True)):
            cycles = self._cycles(w)
            if cycles and w.computing and w.bytes:
                # Operations as if all arithmetic were multiply-adds in f32.
                yield n, s.kind, w.computing * self.peak, w.bytes, cycles

    def _graph(self) -> tuple[list[Node], list[tuple[int, int]]]:
        """The boxes of inputs, steps and outputs, and who reads what whom wrote."""
        steps, values = self.plan.steps, self.plan.values
        nodes: list[Node] = []
        last: dict[int, int] = {}
        written = {v for s in steps for v in s.writes}
        read = {v for s in steps for v in s.reads}
        for n, v in enumerate(values):
            if v.space == "input" and n in read and n not in written:
                last[n] = len(nodes)
                nodes.append(self._port(n, v, "input"))
        edges: dict[tuple[int, int], None] = {}
        for n, s in enumerate(steps):
            if not (s.reads or s.writes or s.kernel is not None):
                continue
            box = len(nodes)
            nodes.append(self._node(n, s))
            edges.update(((last[v], box), None) for v in (*s.reads, *s.writes) if v in last)
            last.update(dict.fromkeys(s.writes, box))
        for n, v in enumerate(values):
            if v.space == "output" and n in last and v.last == self.plan.end:
                edges[last[n], len(nodes)] = None
                nodes.append(self._port(n, v, "output"))
        return nodes, list(edges)

    def _groups(self) -> Graph | None:
        """The graph of the parts of the model."""
        steps = self.plan.steps
        chosen = [n for n, s in enumerate(steps) if _works(s)]
        box, last = {n: b for b, n in enumerate(chosen)}, dict[int, int]()
        edges: list[tuple[int, int]] = []
        for n, s in enumerate(steps):
            sources = [last[v] for v in (*s.reads, *s.writes) if v in last]
            if n in box:
                edges += ((a, box[n]) for a in sources)
            # What organises passes on what it reads.
            last.update((v, box.get(n, max(sources, default=0))) for v in s.writes)
        paths = [steps[n].origin[0] if steps[n].origin else steps[n].name for n in chosen]
        times = [self.work[n].time for n in chosen]
        return parts_graph([self._node(n, steps[n]) for n in chosen], paths, times, edges)

    def _port(self, number: int, v: ValueOutline, role: str) -> Node:
        name = self.artifact.port_names(role)[v.index]
        about = labels.shape(v.dtype, v.extents)
        tip = f"{role} {name}\n{about}"
        return Node("values", number, role, labels.short(name, LETTERS), role, tip)

    def _node(self, number: int, s: StepOutline) -> Node:
        work = self.work[number]
        part = work.time / self.total if self.total else 0.0
        works = _works(s)
        subtitle = f"{s.kind} {labels.share(part)}" if works else s.kind
        heat = sqrt(work.time / self.slowest) if works and self.slowest else None
        tip = "\n".join([s.name, *s.origin[:MOST_TOLD], subtitle])
        title = self._title(number, s.name)
        return Node("steps", number, s.kind, title, subtitle, tip, heat, self._of_peak(work))

    # -- tables ---------------------------------------------------------------------------------
    def _steps(self) -> Table:
        timed = self.artifact.profile is not None
        columns = ("#", "step", "computes", "kind", "cycles est.", *(("µs",) if timed else ()))
        columns += ("share", "FLOP", "bytes", "of peak", "bound by", "tasks")
        rows = []
        for n, (s, w) in enumerate(zip(self.plan.steps, self.work, strict=True)):
            kernel: Facts = {} if s.kernel is None else self.kernels[s.kernel]
            part = w.time / self.total if self.total and _works(s) else None
            of_peak = self._of_peak(w)
            cells = [
                Cell(str(n), n),
                Cell("· " * s.depth + s.name),
                Cell(", ".join(s.origin)),
                Cell(s.kind),
                optional_cell(w.cycles, "{:.0f}"),
            ]
            if timed:
                cells.append(optional_cell(w.us if _works(s) else None, "{:.2f}"))
            cells += [
                number_cell(part, labels.share(part or 0)),
                number_cell(w.flops, quantity(w.flops or 0, "")),
                number_cell(w.bytes, labels.size(w.bytes or 0)),
                number_cell(of_peak, labels.share(of_peak or 0)),
                Cell(str(kernel.get("bound_by", ""))),
                optional_cell(_number(kernel.get("tasks")), "{:.0f}"),
            ]
            rows.append(Row(n, tuple(cells)))
        return Table("Steps", "steps", columns, tuple(rows))


OF_PEAK = "of the peak"
"""The share of the time in which the units for arithmetic are busy."""
MOST_TOLD = 6
"""ONNX nodes that a tip names."""


def _works(s: StepOutline) -> bool:
    return s.kind in COLOURS


def _number(value: object) -> float | None:
    return value if isinstance(value, int | float) else None


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0
