"""Small ONNX models, imported, interpreted and compared with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, helper, numpy_helper

from rutc.importer import import_model
from rutc.tensor_ir import DType, Graph
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.tensor_ir.verifier import verify
from tests.reference import oracle

OPSET, IR = 21, 10

Arrays = Mapping[str, np.ndarray]
Check = Callable[..., Graph]


def build(
    nodes: Sequence[NodeProto],
    inputs: Arrays,
    outputs: Sequence[str],
    constants: Arrays,
    opset: int = OPSET,
) -> ModelProto:
    """A model with the inputs' shapes fixed."""
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in inputs.items()
    ]
    results = [onnx.ValueInfoProto(name=o) for o in outputs]
    data = [numpy_helper.from_array(a, n) for n, a in constants.items()]
    graph = helper.make_graph(nodes, "test", infos, results, data)
    imports = [helper.make_opsetid("", opset)]
    imports += [helper.make_opsetid(d, 1) for d in sorted({n.domain for n in nodes} - {""})]
    return helper.make_model(graph, opset_imports=imports, ir_version=IR)


def tolerance(kind: DType) -> float:
    """Relative tolerance for results of a type: some hundred roundings."""
    return {DType.F16: 5e-3, DType.F32: 2e-5, DType.F64: 1e-10}.get(kind, 0.0)


@pytest.fixture
def check(tmp_path: Path) -> Check:
    """`check(nodes, inputs, constants=..)`: import, verify, interpret, compare; the graph.

    The error may be a part of the largest result, or with `relative=True` of each one; integers
    may differ by `steps`.
    """

    def run(
        nodes: Sequence[NodeProto] | NodeProto,
        inputs: Arrays,
        constants: Arrays | None = None,
        outputs: Sequence[str] = ("y",),
        opset: int = OPSET,
        expected: Sequence[np.ndarray] | None = None,
        *,
        relative: bool = False,
        steps: int = 0,
    ) -> Graph:
        listed = [nodes] if isinstance(nodes, NodeProto) else list(nodes)
        model = build(listed, inputs, outputs, constants or {}, opset)
        path = tmp_path / "model.onnx"
        onnx.save(model, path)
        graph = import_model(path)
        verify(graph)
        got = interpret(graph, {i.name: inputs[i.name] for i in graph.inputs})
        if expected is None:
            session = oracle(model.SerializeToString())
            expected = session.run(list(outputs), {n: np.asarray(a) for n, a in inputs.items()})
        for name, want in zip(outputs, expected, strict=True):
            assert got[name].shape == want.shape, name
            assert got[name].dtype == want.dtype, name
            bound = tolerance(DType.of(want.dtype))
            finite = want[np.isfinite(want)] if bound and not relative else np.zeros(0)
            scale = float(np.abs(finite).max(initial=0))
            absolute = steps if DType.of(want.dtype).is_int else bound * scale
            exact = got[name].astype("i8") if steps else got[name]
            np.testing.assert_allclose(exact, want, rtol=bound, atol=absolute, err_msg=name)
        return graph

    return run


def node(
    op: str, inputs: Sequence[str], outputs: Sequence[str] = ("y",), **attributes: Any
) -> NodeProto:
    """One ONNX node."""
    return helper.make_node(op, inputs, outputs, name=f"{op}_{outputs[0]}", **attributes)


@pytest.fixture
def make_node() -> Callable[..., NodeProto]:
    """`make_node(op, inputs, outputs=("y",), **attributes)`."""
    return node


@pytest.fixture
def make_model() -> Callable[..., ModelProto]:
    """`make_model(nodes, inputs, outputs, constants)`."""
    return build


@pytest.fixture
def rng() -> np.random.Generator:
    """A seeded generator."""
    return np.random.default_rng(0)
