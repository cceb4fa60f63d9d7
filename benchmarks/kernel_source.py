"""Kernels of single operators, layers and models before their schedules, in some precision.

The name of a source tells the precision where it is not float32: `resnet50 in bf16`.
"""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx

from benchmarks.cases import CASES, MORE
from benchmarks.layers import MODELS
from benchmarks.matrices import BF16
from benchmarks.matrices import CASES as PRODUCTS
from benchmarks.operator_cases import CASES as OPERATORS
from benchmarks.strided import STRIDED
from rutc.driver.options import FP32, INT8, Options
from rutc.driver.parts.plan_steps import PlanSteps
from rutc.driver.parts.weights import Weights
from rutc.driver.plans.planning import planned, versions_for
from rutc.driver.precision.apply_precision import in_precision
from rutc.driver.tuning.schedule_search import kernel_after
from rutc.emit.targets import native_target
from rutc.errors import UserError
from rutc.importer import import_model
from rutc.models.zoo import find, zoo
from rutc.tensor_ir.cost import estimate, summarise
from rutc.tensor_ir.dtype import DType
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
IN = " in "
"""Between the name of a model and the precision."""
NARROW: dict[str, Callable[[], onnx.ModelProto]] = {
    **{case.name: case.build for case in PRODUCTS if case.kind == BF16},
    **{case.name: case.build for case in CASES},
    **{case.name: case.build for case in MODELS},
}
"""What is looked at in precisions, beside models of the zoo."""
PRODUCTS_IN_BF16 = [f"{case.name}{IN}{BF16}" for case in PRODUCTS if case.kind == BF16]


def in_parts(source: str) -> tuple[str, str]:
    """Returns the name of a model, and the precision."""
    name, _, precision = source.rpartition(IN)
    return (name, precision) if precision in (BF16, INT8) else (source, FP32)


def sources(machine: Machine) -> list[str]:
    """Returns the names of the models whose kernels are measured: those that can be had.

    Precisions are for processors with registers for matrices.
    """
    models = [m.name for m in zoo()]
    found = [*BUILDERS, *STRIDED, *models]
    if machine.has_matrices(DType.BF16):
        found += (f"{name}{IN}{kind}" for name in (*NARROW, *models) for kind in (BF16, INT8))
    return found


def kernels(
    source: str, machine: Machine, *, symbolic: bool = False
) -> Iterator[tuple[str, Kernel, frozenset[str]]]:
    """Yields the kernels of a model before their schedules, with their constants.

    A `symbolic` model of the zoo keeps the sizes that a run tells.
    """
    name, precision = in_parts(source)
    build = (BUILDERS if precision == FP32 else NARROW).get(name)
    with tempfile.TemporaryDirectory() as folder:
        if name in STRIDED:
            graph = parse(STRIDED[name])
        elif build is not None:
            path = Path(folder) / "kernel.onnx"
            onnx.save(build(), path)
            graph = import_model(path)
        else:
            model = find(name)
            shapes = {} if symbolic else {n: tuple(s) for n, s in model.shapes.items()}
            graph = import_model(model.obtain(), shapes=shapes)
        narrow = in_precision(graph, machine, Options(precision=precision))
        found = versions_for(narrow.graph, machine, narrow.options)
        plan, earlier = planned(found, machine, narrow.options.precision)
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
