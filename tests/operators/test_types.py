"""Elementwise operators and reductions on every type they take, compiled, against the interpreter.

All operators of a type make one model. Its inputs hold the values at which types differ: limits,
infinities, NaN and zeros of both signs; their lengths are odd, one and none.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import NodeProto, defs, helper, numpy_helper

from rutc.graph_opt import optimize
from rutc.graph_opt.decide import decide
from rutc.importer import import_model
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.tensor_ir.machine import Machine
from tests.compiled import build, run
from tests.machines import on_machines

pytestmark = pytest.mark.sampled(10)

OPSET = 28
INTS = [np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)]
FLOATS = [np.dtype(t) for t in (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)]
BOOL = np.dtype(np.bool_)

_UNARY = """
    Abs Acos Acosh Asin Asinh Atan Atanh BitwiseNot Ceil Cos Cosh Erf Exp Floor IsNaN IsInf Log Neg
    Not Round Sign Sin Sinh Sqrt Tan Tanh Reciprocal Sigmoid Relu Softplus Softsign LeakyRelu Elu
    ThresholdedRelu Selu Celu HardSigmoid HardSwish Mish Swish Gelu Shrink Softmax LogSoftmax
    Hardmax LpNormalization ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2
    ReduceSumSquare ReduceLogSumExp ArgMax ArgMin Trilu Clip
"""
_BINARY = """
    Add And BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less LessOrEqual Mul Or
    Sub Xor Mod Pow BitShift Max Min Sum Mean PRelu SwiGLU MatMul Gemm
"""
UNARY, BINARY = _UNARY.split(), _BINARY.split()
VARIANTS: dict[str, list[dict[str, object]]] = {
    "ArgMax": [{"axis": 1}, {"axis": 1, "select_last_index": 1}],
    "ArgMin": [{"axis": 1, "keepdims": 0}, {"axis": 0, "select_last_index": 1}],
    "BitShift": [{"direction": "LEFT"}, {"direction": "RIGHT"}],
    "Gelu": [{}, {"approximate": "tanh"}],
    "IsInf": [{}, {"detect_negative": 0}, {"detect_positive": 0}],
    "Mod": [{"fmod": 0}, {"fmod": 1}],
    "ReduceSum": [{}, {"keepdims": 0}],
}


def takes(op: str, dtype: np.dtype) -> bool:
    schema = defs.get_schema(op, OPSET)
    names = {np.dtype(np.float32): "float", np.dtype(np.float64): "double"}
    wanted = f"tensor({names.get(dtype, dtype.name)})"
    variable = schema.inputs[0].type_str
    return any(
        c.type_param_str == variable and wanted in c.allowed_type_strs
        for c in schema.type_constraints
    )


def elements(dtype: np.dtype, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Small numbers, and the type's limits in the beginning, at other places for other seeds."""
    rng = np.random.default_rng(seed)
    if dtype == BOOL:
        return rng.random(shape) < 0.5
    if dtype in INTS:
        limits = np.iinfo(dtype)
        low = max(limits.min, -9)
        found = rng.integers(low, 9, shape).astype(dtype)
        special = [limits.min, limits.max, 0, limits.max // 2, 1]
    else:
        found = (rng.standard_normal(shape) * 3).astype(dtype)
        special = [np.nan, np.inf, -np.inf, -0.0, 0.0, 0.5]
    flat = found.reshape(-1)
    count = min(len(special), flat.size // 4)
    flat[seed : seed + count] = np.array(special[:count]).astype(dtype)
    return found


def nodes_for(dtype: np.dtype, shape: tuple[int, ...]) -> Iterator[NodeProto]:
    count = 0
    for op in [*UNARY, *BINARY]:
        if not takes(op, dtype) or (0 in shape and op.startswith(("Arg", "ReduceM", "Hard"))):
            continue
        operands = ["x"] if op in UNARY else ["x", "y"]
        if op in ("MatMul", "Gemm"):
            operands = ["x", "t"]
        for attributes in VARIANTS.get(op, [{}]):
            given = [*operands, *(["axes"] if op.startswith("Reduce") else [])]
            yield helper.make_node(op, given, [f"{op}_{count}"], **attributes)  # type: ignore[arg-type]
            count += 1


@on_machines
@pytest.mark.parametrize("shape", [(3, 13), (1, 1), (2, 0)], ids=str)
@pytest.mark.parametrize("dtype", [BOOL, *INTS, *FLOATS], ids=str)
def test_operators(
    dtype: np.dtype, shape: tuple[int, int], machine: Machine, tmp_path: Path
) -> None:
    kind = helper.np_dtype_to_tensor_dtype(dtype)
    inputs = {
        "x": elements(dtype, shape, 0),
        "y": elements(dtype, shape, 7),
        "t": np.arange(shape[1] * 2).reshape(shape[1], 2).astype(dtype),
    }
    nodes = list(nodes_for(dtype, shape))
    infos = [helper.make_tensor_value_info(n, kind, a.shape) for n, a in inputs.items()]
    outputs = [onnx.ValueInfoProto(name=n.output[0]) for n in nodes]
    axes = numpy_helper.from_array(np.array([1]), "axes")
    graph = helper.make_graph(nodes, "all", infos, outputs, [axes])
    opset = helper.make_opsetid("", OPSET)
    path = tmp_path / "all.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=13), path)

    imported = import_model(path)
    expected = interpret(imported, inputs)
    got = run(build(decide(optimize(imported), machine), machine, tmp_path), inputs, threads=1)
    for name, wanted in expected.items():
        assert got[name].dtype == wanted.dtype, name
        assert got[name].shape == wanted.shape, name
        if dtype not in FLOATS or wanted.dtype != dtype:
            np.testing.assert_array_equal(got[name], wanted, err_msg=name)
            continue
        step = float(ml_dtypes.finfo(dtype).eps)
        np.testing.assert_allclose(
            got[name].astype(np.float64),
            wanted.astype(np.float64),
            rtol=64 * step if dtype.itemsize >= 4 else 2 * step,
            atol=64 * step if dtype.itemsize >= 4 else float(ml_dtypes.finfo(dtype).tiny),
            err_msg=name,
        )
