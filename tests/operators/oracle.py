"""One-node models, imported, interpreted and compiled, against ONNX Runtime.

Where ONNX Runtime has no kernel for the node, or runs no model of its opset, the reference
implementation of the onnx package is the oracle.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import TypeVar

import numpy as np
import onnx
import onnxruntime
from hypothesis import reject, seed
from onnx import NodeProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from rutc.importer import import_model
from rutc.tensor_ir import DType
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.tensor_ir.verifier import verify
from tests.compiled import build, plan_or_reject, run
from tests.examples import DAYS, examples
from tests.machines import RUNNABLE
from tests.reference import exact_options
from tests.sampling import SAMPLE

Arrays = Mapping[str, np.ndarray]
Test = TypeVar("Test", bound=Callable[..., object])
TOLERANCE = {DType.F16: 1e-2, DType.BF16: 5e-2, DType.F32: 3e-5, DType.F64: 1e-10}


def tries(count: int) -> Callable[[Test], Test]:
    """Gives a test `count` examples or a day's share: of a few sets, the one of the date.

    The sets are known to hold no case that an oracle computes otherwise than ONNX says; with
    `RUTC_EXAMPLES` new ones are tried.
    """
    if "RUTC_EXAMPLES" in os.environ:
        return examples(count)
    # Drawn, since what rotates would go in step with the days on which a test runs.
    due = Random(SAMPLE.date.toordinal()).randrange(DAYS)
    return lambda test: seed(due)(examples(count)(test))


@dataclass(frozen=True)
class Case:
    """A node, its operands given at run time, and those known when compiling."""

    node: NodeProto
    inputs: Arrays
    constants: Arrays = field(default_factory=dict)
    opset: int = 21
    reference: bool = False
    """Whether the onnx package's implementation is the oracle whatever ONNX Runtime can do."""

    def model(self) -> onnx.ModelProto:
        """The model, its inputs' shapes fixed."""
        inputs = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in self.inputs.items()
        ]
        outputs = [onnx.ValueInfoProto(name=o) for o in self.node.output]
        data = [numpy_helper.from_array(a, n) for n, a in self.constants.items()]
        graph = helper.make_graph([self.node], "case", inputs, outputs, data)
        opsets = [helper.make_opsetid("", self.opset)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def make(
    op: str,
    inputs: Arrays,
    constants: Arrays | None = None,
    *,
    order: Sequence[str] | None = None,
    outputs: Sequence[str] = ("y",),
    opset: int = 21,
    reference: bool = False,
    **attributes: object,
) -> Case:
    """A case of one operator; `order` names its operands ("" for one left out)."""
    named = order if order is not None else [*inputs, *(constants or {})]
    node = helper.make_node(op, named, outputs, name=op, **attributes)  # type: ignore[arg-type]
    return Case(node, inputs, constants or {}, opset, reference)


def expected_of(case: Case) -> list[np.ndarray]:
    """What the oracle gives; an example that no oracle takes is rejected."""
    model = case.model()
    feeds = {n: np.asarray(a) for n, a in case.inputs.items()}
    if not case.reference:
        try:
            session = onnxruntime.InferenceSession(
                model.SerializeToString(), exact_options(), providers=["CPUExecutionProvider"]
            )
            return list(session.run(None, feeds))
        except Exception as error:
            if "NOT_IMPLEMENTED" not in str(error):
                reject()
    try:
        return [np.asarray(a) for a in ReferenceEvaluator(model).run(None, feeds)]
    except (AssertionError, ValueError, IndexError, NotImplementedError, RuntimeError):
        reject()
        raise


def agree(case: Case, machine: str | None = None, *, reduction: int = 1, size: float = 0.0) -> None:
    """The case interpreted, and compiled for a machine, gives what the oracle does.

    `reduction` scales the tolerance: about how many roundings a result has. `size` is that of the
    numbers which results are differences of, if larger than theirs.
    """
    expected = expected_of(case)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "case.onnx"
        onnx.save(case.model(), path)
        graph = import_model(path)
        verify(graph)
        feeds = {i.name: case.inputs[i.name] for i in graph.inputs}
        found = [interpret(graph, feeds)]
        if machine is not None:
            library = build(plan_or_reject(graph), RUNNABLE[machine], Path(folder))
            found.append(run(library, feeds, 1))
    for got in found:
        for name, want in zip(case.node.output, expected, strict=True):
            _compare(name, got[name], want, reduction, size)


def _compare(name: str, got: np.ndarray, want: np.ndarray, reduction: int, size: float) -> None:
    assert got.shape == want.shape, f"{name}: {got.shape} is not {want.shape}"
    assert got.dtype == want.dtype, f"{name}: {got.dtype} is not {want.dtype}"
    bound = TOLERANCE.get(DType.of(want.dtype), 0.0) * max(1, reduction**0.5)
    if not bound:
        np.testing.assert_array_equal(got, want, err_msg=name)
        return
    left, right = got.astype(np.float64), want.astype(np.float64)
    scale = float(np.abs(right[np.isfinite(right)]).max(initial=size))
    np.testing.assert_allclose(left, right, rtol=bound, atol=bound * scale, err_msg=name)
