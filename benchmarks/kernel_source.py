"""Kernels of single operators, layers and models before their schedules."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx

from benchmarks.cases import CASES, MORE
from benchmarks.layers import MODELS
from benchmarks.operator_cases import CASES as OPERATORS
from benchmarks.strided import STRIDED
from rutc.driver.parts.plan_steps import PlanSteps
from rutc.driver.parts.weights import Weights
from rutc.driver.plans.planning import planned
from rutc.driver.tuning.schedule_search import kernel_after
from rutc.emit.targets import native_target
from rutc.errors import UserError
from rutc.graph_opt import versions
from rutc.importer import import_model
from rutc.models.zoo import find
from rutc.tensor_ir.cost import estimate, summarise
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.textual.parse import parse
from rutc.tuner.analysis import analyse
from rutc.tuner.heuristic import spaces, usual

BUILDERS: dict[str, Callable[[], onnx.ModelProto]] = {
    **{case.name: case.build for case in (*CASES, *MORE)},
    **{case.name: case.build for case in MODELS},
    **{f"operator {case.name}": case.build for case in OPERATORS},
}


def kernels(
    source: str, machine: Machine, *, symbolic: bool = False
) -> Iterator[tuple[str, Kernel, frozenset[str]]]:
    """Yields the kernels of a model before their schedules, with their constants.

    A `symbolic` model of the zoo keeps the sizes that a run tells.
    """
    with tempfile.TemporaryDirectory() as folder:
        if source in STRIDED:
            graph = parse(STRIDED[source])
        elif source in BUILDERS:
            path = Path(folder) / "kernel.onnx"
            onnx.save(BUILDERS[source](), path)
            graph = import_model(path)
        else:
            model = find(source)
            shapes = {} if symbolic else {n: tuple(s) for n, s in model.shapes.items()}
            graph = import_model(model.obtain(), shapes=shapes)
        plan, earlier = planned(versions(graph, machine), machine)
        for each in (plan, *(a.plan for a in earlier)):
            for pending in PlanSteps(each, Weights()).pending:
                job = pending.job
                pairs = zip(pending.kernels, job.kernels, job.constants, strict=True)
                for own, kernel, constants in pairs:
                    yield own.name, kernel, frozenset(constants)


def largest(name: str, machine: Machine) -> tuple[Kernel, frozenset[str]]:
    """Returns the kernel of a case that the estimate gives most cycles, and its constants.

    Raises:
        UserError: none has a schedule to search.
    """
    best: tuple[float, Kernel, frozenset[str]] | None = None
    for _, kernel, constants in kernels(name, native_target().machine):
        own = spaces(kernel, machine, constants)
        if not own or analyse(kernel, constants).symbolic:
            continue
        found = usual(own)
        if found is None:
            continue
        space, point = found
        made = kernel_after(kernel, space.choice(point))
        cycles = estimate(summarise(made, machine), machine).cycles
        if best is None or cycles > best[0]:
            best = cycles, kernel, constants
    if best is None:
        raise UserError(f"no kernel of {name} has a schedule to search")
    return best[1:]
