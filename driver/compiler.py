"""The compiler: a model file in, an artifact out. Wires the stages; each stage knows no other.

import -> optimize -> decide -> build kernels, weights, host program -> link
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from rutc.base.progress import Progress, nobody
from rutc.base.record import record
from rutc.driver.build import Builder, Built, plans_of
from rutc.driver.dump import Dump
from rutc.driver.in_precision import InPrecision, in_precision, precedes_rewrites
from rutc.driver.options import Options, Report
from rutc.driver.planning import ModelPlan, imported, machine_for, model_plan, versions_for
from rutc.driver.precision import StoredAs, stored_types
from rutc.driver.reuse import Entry
from rutc.emit.host_runtime import HostRuntime, calling_units
from rutc.emit.library import Artifact, build_library
from rutc.emit.toolchain import find_toolchain
from rutc.graph_opt.algorithms import Algorithms
from rutc.importer.external import ModelFolder
from rutc.report.arguments import check_writable
from rutc.tensor_ir import Graph
from rutc.tensor_ir.affine import Index, typical
from rutc.tensor_ir.machine import Machine

if TYPE_CHECKING:
    from rutc.driver.on_record import Records

__all__ = ["Options", "Report", "compile_model"]


def compile_model(
    model: Path | str,
    output: Path | str,
    options: Options | None = None,
    on_progress: Progress | None = None,
    host: HostRuntime | None = None,
    entry: Entry | None = None,
    on_import: Callable[[Graph], None] | None = None,
    records: Records | None = None,
) -> Report:
    """Compile a model into `output` and the header beside it; nothing appears unless all worked.

    `host` is the host runtime if its compilation has begun already; `entry` is the place in the
    cache where the artifact, which then gets a folder of its own, is kept. `on_import` is given
    the model's graph before anything in it is rewritten. `records` have the plan and the
    schedules that are taken instead of the usual ones.

    Raises:
        UserError: the model, an option or the machine is at fault.
        InternalError: a bug of rutc.
    """
    options = options or Options()
    model, output = Path(model), Path(output)
    machine = machine_for(options)
    check_writable(output)
    stage = _Stages(on_progress or nobody)
    with (
        nullcontext(host) if host else HostRuntime(find_toolchain(machine.architecture)) as running
    ):
        folder = ModelFolder(model.parent)
        with entry.hashing() if entry else nullcontext():
            with stage("import"):
                graph = imported(model, options, folder)
            if on_import is not None:
                on_import(graph)
            with stage("calibrate") if precedes_rewrites(options, machine) else nullcontext():
                narrow = in_precision(graph, machine, options, stage.tell)
            dump = None if options.dump is None else Dump(options.dump)
            on_step = None if dump is None else dump.on_step
            algorithms = Algorithms(machine, narrow.options.leeway, on_step)
            with stage("optimize"):
                found = versions_for(narrow.graph, machine, narrow.options, algorithms)
            with stage("plan"):
                recorded = None if records is None else records.plans
                chosen = model_plan(
                    narrow.graph, found, machine, narrow.options, algorithms, recorded
                )
                plans = plans_of(chosen.plan, chosen.earlier)
                stored = (*narrow.four_bits, *stored_types(plans))
        if dump is not None:
            dump.plans(chosen.plan, chosen.earlier)
        with stage("kernels"):
            built = Builder(
                chosen.plan,
                machine,
                _identifier(output.stem),
                options.jobs or len(os.sched_getaffinity(0)),
                options.keep_subnormals,
                on_kernel=stage.on_kernel,
                on_routines=lambda routines: running.begin(
                    calling_units(routines, machine.features)
                ),
                on_draft=None if dump is None else dump.on_draft,
                earlier=chosen.earlier,
                chooser=None if records is None else records.schedules,
                once=True,
            ).build()
        if dump is not None:
            dump.program(built.program)
        made = _Made(options, machine, narrow, found[-1].graph, chosen, stored, built)
        with stage("link"):
            manifest = json.loads(json.dumps(made.manifest(model)))
            artifact = build_library(
                built.program,
                built.objects,
                output,
                manifest,
                weights=options.weights,
                host=running,
                outline=built.outline.facts(),
            )
    report = made.report(artifact, stage.seconds)
    if entry is not None:
        with stage("cache"):
            entry.store(report, folder.used)
    return report


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
        self.seconds[name] = perf_counter() - start
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
    machine: Machine
    narrow: InPrecision
    graph: Graph
    chosen: ModelPlan
    stored: tuple[StoredAs, ...]
    built: Built

    def manifest(self, model: Path) -> dict[str, object]:
        """What the artifact tells, besides what any artifact does."""
        found: dict[str, object] = {
            "model": model.name,
            "target": self.machine.name,
            "precision": self.options.precision,
            "keep_subnormals": self.options.keep_subnormals,
            "kernels": [asdict(f) for f in self.built.facts],
            "flops": self.built.flops,
            "algorithms": self.chosen.algorithms.facts(),
            "plan": self.chosen.source.facts(),
            "spread": self.options.spread,
        }
        if self.narrow.eight_bits is not None:
            found["eight_bits"] = self.narrow.eight_bits.facts()
            found["tolerance"] = self.options.tolerance
        if self.stored:
            found["stored"] = [asdict(s) for s in self.stored]
        if self.chosen.earlier:
            found["versions"] = [str(a.where) for a in self.chosen.earlier]
        if self.graph.interface is not None:
            found["interface"] = self.graph.interface.facts()
        return found

    def report(self, artifact: Artifact, seconds: Mapping[str, float]) -> Report:
        """What the command tells."""
        program, symbols = self.built.program, self.graph.symbols
        arena = Index.of(program.arena_bytes)
        least, most = ({name: r[end] for name, r in symbols} for end in (0, 1))
        eight_bits = self.narrow.eight_bits
        return Report(
            artifact.library,
            artifact.header,
            seconds,
            len(self.built.facts),
            len(self.built.objects),
            typical(arena, dict(symbols)),
            program.weight_bytes,
            self.built.flops,
            int(arena.evaluate(least)),
            int(arena.evaluate(most)),
            str(arena) if symbols else None,
            program.bytes_of_threads,
            len(self.stored),
            sum(s.bytes for s in self.stored),
            sum(s.saved for s in self.stored),
            self.options.precision,
            0 if eight_bits is None else len(eight_bits.chosen),
            0 if eight_bits is None else eight_bits.sums,
            sum(bool(f.records) for f in self.built.facts),
            str(self.chosen.source),
            artifact.weights,
        )


def _identifier(stem: str) -> str:
    name = re.sub(r"\W", "_", stem, flags=re.ASCII) or "model"
    return name if not name[0].isdigit() else f"m_{name}"
