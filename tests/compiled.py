"""Graphs compiled into libraries and run."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from hypothesis import reject

from rutc.driver.build import Alternative, Builder
from rutc.driver.recipe import Chooser
from rutc.emit.library import build_library
from rutc.errors import UserError
from rutc.graph_opt import optimize
from rutc.graph_opt.decide import decide
from rutc.graph_opt.plan import Plan
from rutc.runtime import InferenceSession
from rutc.tensor_ir import Graph
from rutc.tensor_ir.machine import Machine
from tests.machines import NATIVE


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
    *alternatives: Alternative,
    chooser: Chooser | None = None,
) -> Path:
    """The library of a plan, in a new file; a `chooser` gives kernels other schedules."""
    builder = Builder(plan, machine, "model", 1, keep_subnormals=True, chooser=chooser)
    builder.alternatives = alternatives
    built = builder.build()
    library = folder / "model.so"
    build_library(built.program, built.objects, library, {})
    return library


def run(library: Path, inputs: Mapping[str, np.ndarray], threads: int) -> dict[str, np.ndarray]:
    """The outputs by name."""
    with InferenceSession(library, threads=threads) as session:
        names = [o.name for o in session.get_outputs()]
        return dict(zip(names, session.run(None, inputs), strict=True))
