"""Kernels of single operators, layers and models before their schedules, and memory for them."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx

from benchmarks.cases import CASES, MORE
from benchmarks.layers import MODELS
from benchmarks.operator_cases import CASES as OPERATORS
from rutc.driver.compiler import planned
from rutc.driver.plan_steps import PlanSteps
from rutc.driver.weights import Weights
from rutc.graph_opt import versions
from rutc.importer import import_model
from rutc.models.zoo import find
from rutc.tensor_ir.affine import typical
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.machine import Machine

BUILDERS: dict[str, Callable[[], onnx.ModelProto]] = {
    **{case.name: case.build for case in (*CASES, *MORE)},
    **{case.name: case.build for case in MODELS},
    **{f"operator {case.name}": case.build for case in OPERATORS},
}


def kernels(source: str, machine: Machine) -> Iterator[tuple[str, Kernel, frozenset[str]]]:
    """Yields the kernels of a model before their schedules, with their constants."""
    with tempfile.TemporaryDirectory() as folder:
        if source in BUILDERS:
            path, shapes = Path(folder) / "kernel.onnx", {}
            onnx.save(BUILDERS[source](), path)
        else:
            model = find(source)
            path, shapes = model.obtain(), {n: tuple(s) for n, s in model.shapes.items()}
        graph = import_model(path, shapes=shapes)
        plan, alternatives = planned(versions(graph, machine), machine)
        for each in (plan, *(a.plan for a in alternatives)):
            for pending in PlanSteps(each, Weights()).pending:
                job = pending.job
                pairs = zip(pending.kernels, job.kernels, job.constants, strict=True)
                for own, kernel, constants in pairs:
                    yield own.name, kernel, frozenset(constants)


def arguments_of(kernel: Kernel) -> list[np.ndarray]:
    """Returns memory for a kernel's arguments at common sizes, filled with small numbers.

    There is room for one line before and behind each, from `first_line` on.
    """
    rng, symbols = np.random.default_rng(0), dict(kernel.symbols)
    return [_filled(rng, b.dtype.numpy, typical(b.layout.size, symbols)) for b in kernel.args]


def _filled(rng: np.random.Generator, dtype: np.dtype, elements: int) -> np.ndarray:
    room = elements + 256 // dtype.itemsize
    if dtype.kind == "b":
        return np.zeros(room, dtype)
    if dtype.kind in "iu":
        return rng.integers(0, 3, room).astype(dtype)
    return rng.standard_normal(room, np.float32).astype(dtype)


def first_line(memory: np.ndarray) -> int:
    """Returns the first address of a line in memory."""
    return -(-memory.ctypes.data // 64) * 64
