"""The compiler: a model file in, an artifact out. Wires the stages; each stage knows no other.

import -> optimize -> decide -> build kernels, weights, host program -> link
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from rutc.base.progress import Progress
from rutc.driver.build import Alternative, Builder
from rutc.driver.compile_job import Draft, Made
from rutc.driver.in_precision import in_precision, precedes_rewrites
from rutc.driver.launches import Pending
from rutc.driver.options import Options, Report
from rutc.driver.planning import imported, machine_for, model_plan, versions_for
from rutc.driver.precision import stored_types
from rutc.driver.reuse import Entry
from rutc.emit.files import make_folder, write_file
from rutc.emit.host_runtime import HostRuntime, calling_units
from rutc.emit.library import build_library
from rutc.emit.toolchain import find_toolchain
from rutc.graph_opt import DumpFolder
from rutc.graph_opt.algorithms import Algorithms
from rutc.graph_opt.plan import Plan
from rutc.importer.external import ModelFolder
from rutc.report.arguments import check_writable
from rutc.tensor_ir import Graph
from rutc.tensor_ir.affine import Index, typical

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
    tell = on_progress or (lambda stage, done, total: None)
    model, output = Path(model), Path(output)
    machine = machine_for(options)
    check_writable(output)
    seconds: dict[str, float] = {}
    totals: dict[str, int] = {}

    @contextmanager
    def stage(name: str) -> Iterator[None]:
        tell(name, 0, 1)
        start = perf_counter()
        yield
        seconds[name] = perf_counter() - start
        tell(name, totals.get(name, 1), totals.get(name, 1))

    def on_kernel(done: int, total: int) -> None:
        totals["kernels"] = total
        tell("kernels", done, total)

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
                narrow = in_precision(graph, machine, options, tell)
                graph, own, eight_bits = narrow.graph, narrow.options, narrow.eight_bits
            dump = None
            if options.dump is not None:
                make_folder(options.dump)
                dump = DumpFolder(options.dump, write_file)
            algorithms = Algorithms(machine, own.leeway, dump)
            with stage("optimize"):
                found = versions_for(graph, machine, own, algorithms)
            with stage("plan"):
                recorded = None if records is None else records.plans
                chosen = model_plan(graph, found, machine, own, algorithms, recorded)
                plan, alternatives = chosen.plan, chosen.alternatives
                graph = found[-1].graph
                stored = stored_types([*(a.plan for a in alternatives), plan])
                stored = (*narrow.four_bits, *stored)
        if options.dump is not None:
            write_file(options.dump / "plan.txt", _plans_text(plan, alternatives).encode())
            write_file(options.dump / "assignment.txt", str(plan.assignment).encode())
        with stage("kernels"):
            builder = Builder(
                plan,
                machine,
                _identifier(output.stem),
                options.jobs or len(os.sched_getaffinity(0)),
                options.keep_subnormals,
                on_kernel=on_kernel,
                on_routines=lambda routines: running.begin(
                    calling_units(routines, machine.features)
                ),
                alternatives=alternatives,
                chooser=None if records is None else records.schedules,
                once=True,
            )
            if options.dump is not None:
                builder.on_draft = _KernelDump(options.dump / "kernels")
            built = builder.build()
        if options.dump is not None:
            write_file(options.dump / "program.txt", str(built.program).encode())
        with stage("link"):
            manifest = {
                "model": model.name,
                "target": machine.name,
                "precision": options.precision,
                "kernels": [asdict(f) for f in built.facts],
                "flops": built.flops,
                "algorithms": chosen.algorithms.facts(),
                "plan": chosen.source.facts(),
                "spread": options.spread,
            }
            if eight_bits is not None:
                manifest["eight_bits"] = eight_bits.facts()
                manifest["tolerance"] = options.tolerance
            if stored:
                manifest["stored"] = [asdict(s) for s in stored]
            if alternatives:
                manifest["alternatives"] = [str(a.where) for a in alternatives]
            if graph.interface is not None:
                manifest["interface"] = graph.interface.facts()
            artifact = build_library(
                built.program, built.objects, output, json.loads(json.dumps(manifest)), host=running
            )
    arena = Index.of(built.program.arena_bytes)
    least, most = ({name: r[end] for name, r in graph.symbols} for end in (0, 1))
    report = Report(
        artifact.library,
        artifact.header,
        seconds,
        len(built.facts),
        len(built.objects),
        typical(arena, dict(graph.symbols)),
        built.program.weight_bytes,
        built.flops,
        int(arena.evaluate(least)),
        int(arena.evaluate(most)),
        str(arena) if graph.symbols else None,
        built.program.bytes_of_threads,
        len(stored),
        sum(s.bytes for s in stored),
        sum(s.saved for s in stored),
        options.precision,
        0 if eight_bits is None else len(eight_bits.chosen),
        0 if eight_bits is None else eight_bits.sums,
        sum(bool(f.records) for f in built.facts),
        str(chosen.source),
    )
    if entry is not None:
        with stage("cache"):
            entry.store(report, folder.used)
    return report


class _KernelDump:
    """Writes every distinct kernel: its loops before and after scheduling, and its LLVM IR."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen: set[str] = set()
        make_folder(folder)

    def __call__(self, pending: Pending, made: Made, draft: Draft) -> None:
        if made.symbol in self.seen:
            return
        self.seen.add(made.symbol)
        name = re.sub(r"[^\w.]", "_", pending.name)
        lowered = "\n\n".join(map(str, pending.kernels))
        steps = "\n".join(map(str, draft.schedule))
        text = f"{lowered}\n\n=== schedule ===\n{steps}\n\n=== scheduled ===\n{draft.kernel}\n"
        write_file(self.folder / f"{name}.{made.symbol}.txt", text.encode())
        write_file(self.folder / f"{name}.{made.symbol}.ll", draft.text.encode())


def _plans_text(plan: Plan, alternatives: Sequence[Alternative]) -> str:
    """The plan, or several under what tells which of them runs."""
    if not alternatives:
        return f"{plan}\n"
    parts = [f"where {a.where} > 0:\n{a.plan}\n" for a in alternatives]
    return "\n".join([*parts, f"elsewhere:\n{plan}\n"])


def _identifier(stem: str) -> str:
    name = re.sub(r"\W", "_", stem, flags=re.ASCII) or "model"
    return name if not name[0].isdigit() else f"m_{name}"
