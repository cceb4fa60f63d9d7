"""The compiler: a model file in, an artifact out. Wires the stages; each stage knows no other.

import -> optimize -> decide -> build kernels, weights, host program -> link
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from rutc.base.cached import cached_property
from rutc.base.files import check_writable
from rutc.base.progress import Progress, nobody
from rutc.base.record import record
from rutc.driver.dump import Dump
from rutc.driver.options import Options, Report
from rutc.driver.parts.build import Builder, Built, plans_of
from rutc.driver.parts.told_of_inputs import told_of_inputs
from rutc.driver.plans.narrow_weights import StoredAs, stored_types
from rutc.driver.plans.planning import ModelPlan, imported, machine_for, model_plan, versions_for
from rutc.driver.precision.apply_precision import InPrecision, in_precision, precedes_rewrites
from rutc.driver.reuse import Entry
from rutc.emit.linking.host_runtime import (
    HostRuntime,
    calling_units,
    host_runtime_for,
    suffixes,
)
from rutc.emit.linking.library import ArtifactFiles, TargetFacts, build_library
from rutc.emit.linking.manifest import JsonValue
from rutc.emit.targets import Target, targets_named
from rutc.graph_opt.algorithms import Algorithms
from rutc.importer.reading.external import ModelFolder
from rutc.tensor_ir import Graph
from rutc.tensor_ir.indices.affine import Index, typical
from rutc.tensor_ir.indices.ranges import MOST_SIZE, common_sizes, sizes_text
from rutc.tensor_ir.machine import Machine

if TYPE_CHECKING:
    from rutc.driver.tuning.records_in import Records

__all__ = ["Options", "Report", "compile_model"]

COMMON = frozenset({"model", "precision", "tolerance", "interface"})
"""What the manifest tells that is the same for all targets."""


def compile_model(
    model: Path | str,
    output: Path | str,
    options: Options | None = None,
    on_progress: Progress | None = None,
    host: HostRuntime | None = None,
    entry: Entry | None = None,
    on_import: Callable[[Graph], None] | None = None,
    records: Callable[[Options], Records] | None = None,
) -> Report:
    """Compile a model into `output` and the header beside it; nothing appears unless all worked.

    `host` is the host runtime if its compilation has begun already; `entry` is the place in the
    cache where the artifact, which then gets a folder of its own, is kept. `on_import` is given
    the model's graph before anything in it is rewritten. `records` give, for the options of one
    target, the plan and the schedules that are taken instead of the usual ones. Where there are
    several targets, all that follows the import is done for each, and linked together.

    Raises:
        UserError: the model, an option or the machine is at fault.
        InternalError: a bug of rutc.
    """
    options = options or Options()
    model, output = Path(model), Path(output)
    targets = targets_named(options.target)
    several = len(targets) > 1
    check_writable(output)
    stage = _Stages(on_progress or nobody)
    with nullcontext(host) if host else host_runtime_for(options.target) as running:
        folder = ModelFolder(model.parent)
        own = [_own(options, target) for target in targets] if several else [options]
        ends = suffixes(target.machine.features for target in targets)
        works = [
            _Work(each, output, stage, running, end, None if records is None else records(each))
            for each, end in zip(own, ends, strict=True)
        ]
        with entry.hashing() if entry else nullcontext():
            with stage("import"):
                graph = imported(model, options, folder)
            if on_import is not None:
                on_import(graph)
            planned = works[0].planned(graph)
        made = [works[0].made(planned)]
        made += [work.made(work.planned(graph)) for work in works[1:]]
        with stage("link"):
            artifact = _linked(made, targets, model, output, options, running)
    report = made[0].report(artifact, stage.seconds)
    if several:
        names = tuple(target.name for target in targets)
        report = replace(report, weight_bytes=artifact.weight_bytes, targets=names)
    if entry is not None:
        with stage("cache"):
            entry.store(report, folder.used)
    return report


def _own(options: Options, target: Target) -> Options:
    """The options for one of several targets: a folder of its own for what is dumped."""
    dump = None if options.dump is None else options.dump / target.name
    return replace(options, target=target.asked, dump=dump)


def _linked(
    made: Sequence[_Made],
    targets: Sequence[Target],
    model: Path,
    output: Path,
    options: Options,
    host: HostRuntime,
) -> ArtifactFiles:
    """The library of a model's programs, of which there is one for each target."""
    first, *others = made
    # The manifest holds numbers, texts and lists of them, whatever they are here.
    told: list[dict[str, JsonValue]] = [json.loads(json.dumps(m.manifest(model))) for m in made]
    objects = [o for m in made for o in m.built.objects]
    outline, *outlines = (m.built.outline.facts() for m in made)
    common, facts = told[0], list[TargetFacts]()
    if others:
        keys = dict.fromkeys(key for own in told for key in own)
        common = {key: told[0].get(key) for key in keys if key in COMMON}
        facts = [
            TargetFacts(
                target.name,
                {key: own.get(key) for key in keys if key not in COMMON} | {"target": target.name},
            )
            for target, own in zip(targets, told, strict=True)
        ]
        outline = {**outline, "fallbacks": outlines}
    return build_library(
        first.built.program,
        objects,
        output,
        common,
        weights=options.weights,
        fallbacks=[m.built.program for m in others],
        host=host,
        outline=outline,
        targets=facts,
    )


@record
class _Planned:
    """What is to be compiled for one target."""

    machine: Machine
    imported: Graph
    narrow: InPrecision
    graph: Graph
    chosen: ModelPlan
    stored: tuple[StoredAs, ...]


@record
class _Work:
    """What becomes of an imported graph for one target: its plan, then its program and kernels.

    The names of the program's routines end with a `suffix`.
    """

    options: Options
    output: Path
    stage: _Stages
    host: HostRuntime
    suffix: str
    records: Records | None

    def planned(self, graph: Graph) -> _Planned:
        """The plans of the graph's versions, in its precision."""
        options, stage = self.options, self.stage
        machine = machine_for(options)
        with stage("calibrate") if precedes_rewrites(options, machine) else nullcontext():
            narrow = in_precision(graph, machine, options, stage.tell)
        on_step = None if self.dump is None else self.dump.on_step
        algorithms = Algorithms(machine, narrow.options.leeway, on_step)
        with stage("optimize"):
            found = versions_for(narrow.graph, machine, narrow.options, algorithms)
        with stage("plan"):
            recorded = None if self.records is None else self.records.plans
            chosen = model_plan(narrow.graph, found, machine, narrow.options, algorithms, recorded)
            plans = plans_of(chosen.plan, chosen.earlier)
            stored = (*narrow.four_bits, *stored_types(plans))
        return _Planned(machine, graph, narrow, found[-1].graph, chosen, stored)

    def made(self, planned: _Planned) -> _Made:
        """The kernels and the program of what was planned."""
        chosen, machine, dump = planned.chosen, planned.machine, self.dump
        if dump is not None:
            dump.plans(chosen.plan, chosen.earlier)
        with self.stage("kernels"):
            built = Builder(
                chosen.plan,
                machine,
                _identifier(self.output.stem),
                self.options.jobs or len(os.sched_getaffinity(0)),
                self.options.keep_subnormals,
                on_kernel=self.stage.on_kernel,
                on_routines=lambda routines: self.host.begin(
                    calling_units(routines, machine.features, suffix=self.suffix)
                ),
                on_draft=None if dump is None else dump.on_draft,
                earlier=chosen.earlier,
                chooser=None if self.records is None else self.records.schedules,
                once=True,
            ).build()
        if dump is not None:
            dump.program(built.program)
        return _Made(self.options, planned, built)

    @cached_property
    def dump(self) -> Dump | None:
        """The folder of all intermediate forms, if they are asked for."""
        return None if self.options.dump is None else Dump(self.options.dump)


class _Stages:
    """The seconds of the stages, of which progress is told: `with stage("import"): ...`."""

    def __init__(self, tell: Progress) -> None:
        self.tell = tell
        self.seconds: dict[str, float] = {}
        self._kernels = 1

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        self.tell(name, 0, 1)
        start = perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + perf_counter() - start
        total = self._kernels if name == "kernels" else 1
        self.tell(name, total, total)

    def on_kernel(self, done: int, total: int) -> None:
        """Tell how many kernels are done."""
        self._kernels = total
        self.tell("kernels", done, total)


@record
class _Made:
    """What a model has become, and how: all that is told of it."""

    options: Options
    planned: _Planned
    built: Built

    def manifest(self, model: Path) -> dict[str, object]:
        """What the artifact tells, besides what any artifact does."""
        planned = self.planned
        found: dict[str, object] = {
            "model": model.name,
            "target": planned.machine.name,
            "precision": self.options.precision,
            "keep_subnormals": self.options.keep_subnormals,
            "kernels": [asdict(f) for f in self.built.facts],
            "flops": self.built.flops,
            "algorithms": planned.chosen.algorithms.facts(),
            "plan": planned.chosen.source.facts(),
            "spread": self.options.spread,
        }
        if planned.narrow.eight_bits is not None:
            found["eight_bits"] = planned.narrow.eight_bits.facts()
            found["tolerance"] = self.options.tolerance
        if planned.stored:
            found["stored"] = [asdict(s) for s in planned.stored]
        if planned.chosen.earlier:
            earlier = planned.chosen.earlier
            found["versions"] = [str(a.where) for a in earlier]
            sizes = [common_sizes(dict(a.plan.graph.symbols)) for a in earlier]
            found["version_sizes"] = list(map(sizes_text, sizes))
        found |= told_of_inputs(planned.graph, planned.imported)
        if planned.graph.interface is not None:
            found["interface"] = planned.graph.interface.facts()
        return found

    def report(self, artifact: ArtifactFiles, seconds: Mapping[str, float]) -> Report:
        """What the command tells."""
        planned = self.planned
        program, symbols = self.built.program, planned.graph.symbols
        arena = Index.of(program.arena_bytes)
        least, most = ({name: r[end] for name, r in symbols} for end in (0, 1))
        told = dict(program.symbols)
        known = all(high < MOST_SIZE for _, high in told.values())
        eight_bits = planned.narrow.eight_bits
        return Report(
            artifact.library,
            artifact.header,
            seconds,
            kernels=len(self.built.facts),
            arena_bytes=typical(arena, dict(symbols)),
            weight_bytes=program.weight_bytes,
            flops=self.built.flops,
            arena_least=int(arena.evaluate(least)),
            arena_most=int(arena.evaluate(most)),
            arena_formula=str(arena) if symbols else None,
            sizes=sizes_text(common_sizes(told)),
            largest=sizes_text({name: high for name, (_, high) in told.items()}) if known else "",
            thread_bytes=program.bytes_of_threads,
            narrow_values=len(planned.stored),
            narrow_bytes=sum(s.bytes for s in planned.stored),
            narrow_saved=sum(s.saved for s in planned.stored),
            precision=self.options.precision,
            integer_sums=0 if eight_bits is None else len(eight_bits.chosen),
            sums=0 if eight_bits is None else eight_bits.sums,
            recorded=sum(bool(f.records) for f in self.built.facts),
            plan_source=str(planned.chosen.source),
            weights=artifact.weights,
            calibration="" if eight_bits is None else eight_bits.cases,
            other_types="" if eight_bits is None else ", ".join(map(str, eight_bits.others)),
        )


def _identifier(stem: str) -> str:
    name = re.sub(r"\W", "_", stem, flags=re.ASCII) or "model"
    return name if not name[0].isdigit() else f"m_{name}"
