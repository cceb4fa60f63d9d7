"""Graphs compiled into libraries and run."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from hypothesis import reject

from rutc.driver.parts.build import Builder, PlanVersion
from rutc.driver.parts.compile_job import Chooser
from rutc.emit.kernel import ENTRY
from rutc.emit.linking.library import build_library
from rutc.emit.llvm.codegen import compile_object
from rutc.errors import UserError
from rutc.graph_opt import optimize
from rutc.graph_opt.decide import decide
from rutc.graph_opt.plan import Plan
from rutc.runtime import InferenceSession
from rutc.tensor_ir import Graph
from rutc.tensor_ir.machine import Machine
from tests import tiles
from tests.machines import NATIVE, emulated
from tests.tiles import without_tiles


def plan_or_reject(graph: Graph, limit: int | None = None) -> Plan:
    """The optimized graph's plan; rejects the example if it holds what no code is made for yet."""
    try:
        return decide(optimize(graph, limit=limit), NATIVE)
    except UserError as error:
        if "cannot generate code for" not in str(error):
            raise
        reject()
        raise


def build(
    plan: Plan,
    machine: Machine,
    folder: Path,
    *earlier: PlanVersion,
    chooser: Chooser | None = None,
) -> Path:
    """The library of a plan, in a new file; a `chooser` gives kernels other schedules.

    What the processor lacks is emulated, as far as it can be.
    """
    builder = Builder(plan, machine, "model", 1, keep_subnormals=True, chooser=chooser)
    builder.earlier = earlier
    builder.code = not emulated(machine)
    texts: dict[str, str] = {}
    if not builder.code:
        builder.on_draft = lambda _, made, draft: texts.update({made.symbol: draft.text})
    built = builder.build()
    library = folder / "model.so"
    program, objects = built.program, built.objects
    if not builder.code:
        program = replace(program, features=tuple(sorted(without_tiles(machine))))
        objects = [
            compile_object(tiles.calling_functions(text), machine, symbol=symbol, entry=ENTRY)
            for symbol, text in texts.items()
        ]
        objects.append(tiles.compiled())
    build_library(program, objects, library, {})
    return library


def run(library: Path, inputs: Mapping[str, np.ndarray], threads: int) -> dict[str, np.ndarray]:
    """The outputs by name."""
    with InferenceSession(library, threads=threads) as session:
        names = [o.name for o in session.get_outputs()]
        return dict(zip(names, session.run(None, inputs), strict=True))
