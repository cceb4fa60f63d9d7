"""Models with constants of 4 bits through libraries, beside ONNX Runtime, and what they take."""

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import rutc
from rutc.driver.parts.compile_job import draft, make
from rutc.driver.parts.plan_steps import PlanSteps
from rutc.driver.parts.weights import Weights
from rutc.emit.linking.elf import is_object
from rutc.emit.targets import target_named
from rutc.graph_opt import optimize
from rutc.graph_opt.decide import decide
from rutc.tensor_ir import Data, DType
from rutc.tensor_ir.textual.parse import parse
from tests.machines import NATIVE

KINDS = {"int4": (ml_dtypes.int4, -8), "uint4": (ml_dtypes.uint4, 0)}


def numbers(kind: str, *shape: int) -> np.ndarray:
    """Random numbers of 4 bits, extremes among them."""
    dtype, low = KINDS[kind]
    return np.random.default_rng(len(shape)).integers(low, low + 16, shape).astype(dtype)


def compiled(
    folder: Path, nodes: list[onnx.NodeProto], x: np.ndarray, constants: dict[str, np.ndarray]
) -> rutc.Compiled:
    """The model of nodes from %x to %y, compiled and compared with ONNX Runtime."""
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        nodes,
        "narrow",
        [helper.make_tensor_value_info("x", kind, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    path = folder / "narrow.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return rutc.compile(path, folder / "narrow.so")


@pytest.mark.parametrize(
    ("n", "k", "block"), [(64, 128, 32), (33, 75, 16), (7, 31, 32), (1, 16, 16)]
)
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("m", [1, 5])
def test_products_of_blocks(
    n: int, k: int, block: int, zeros: bool, m: int, tmp_path: Path
) -> None:
    rng, blocks = np.random.default_rng(n), -(-k // block)
    constants = {
        "w": rng.integers(0, 256, (n, blocks, block // 2)).astype(np.uint8),
        "s": rng.standard_normal((n, blocks)).astype(np.float32),
    }
    if zeros:
        constants["z"] = rng.integers(0, 256, (n, (blocks + 1) // 2)).astype(np.uint8)
    node = helper.make_node(
        "MatMulNBits",
        ["x", *constants],
        ["y"],
        domain="com.microsoft",
        K=k,
        N=n,
        bits=4,
        block_size=block,
    )
    compiled(tmp_path, [node], rng.standard_normal((m, k)).astype(np.float32), constants)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("k", "n"), [(64, 96), (33, 7), (5, 1)])
@pytest.mark.parametrize("turned", [False, True])
def test_dequantised_weights(kind: str, k: int, n: int, turned: bool, tmp_path: Path) -> None:
    shape = (n, k) if turned else (k, n)
    constants = {
        "w": numbers(kind, *shape),
        "s": np.linspace(0.5, 2, n, dtype=np.float32),
        "z": numbers(kind, n),
    }
    wide = helper.make_node("DequantizeLinear", ["w", "s", "z"], ["d"], axis=0 if turned else 1)
    nodes = [wide, helper.make_node("MatMul", ["x", "d"], ["y"])]
    if turned:
        nodes[1:] = [helper.make_node("Gemm", ["x", "d"], ["y"], transB=1)]
    x = np.random.default_rng(0).standard_normal((3, k)).astype(np.float32)
    compiled(tmp_path, nodes, x, constants)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_data_choose(kind: str, tmp_path: Path) -> None:
    constants = {"w": numbers(kind, 50, 37), "s": np.float32(0.25)}
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["d"]),
        helper.make_node("Gather", ["d", "x"], ["y"]),
    ]
    compiled(tmp_path, nodes, np.array([3, 49, 0, 7], np.int64), constants)


@pytest.mark.parametrize("kind", KINDS)
def test_libraries_hold_two_to_a_byte(kind: str, tmp_path: Path) -> None:
    constants = {"w": numbers(kind, 512, 640), "s": np.ones(640, np.float32)}
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["d"], axis=1),
        helper.make_node("MatMul", ["x", "d"], ["y"]),
    ]
    made = compiled(tmp_path, nodes, np.ones((1, 512), np.float32), constants)
    weights = made.report.weight_bytes
    assert 512 * 640 // 2 <= weights <= 512 * 640 // 2 + 640 * 4 + 4096


READ = """
graph "read"
dims k = 6, n = 5
%w : u4{k,n} = const [k, n] [{numbers}]
%x : f32{k} = input "x" [k]
%y : f32{n} = sum{k} %x[k] * f32(%w[k, n])
output "y" [n] = %y
"""
CALLED = """%b : tensor{} = call box(%w[k, n])
%z : u4{k,n} = call unbox(%b) -> [k, n]
%v : i32{k,n} = i32(%z[k, n])
output "v" [k, n] = %v
"""


@pytest.mark.parametrize(("more", "layout"), [("", "[k, n] nibbles"), (CALLED, "[k, n]")])
def test_what_routines_read_is_a_byte_each(more: str, layout: str) -> None:
    text = READ.replace("{numbers}", ", ".join(str(i % 16) for i in range(30)))
    graph = parse(text.replace('output "y"', more + 'output "y"'))
    assert str(decide(optimize(graph), NATIVE).layouts["w"]) == layout


PACKED = """
graph "packed"
dims m = {m}, n = 70, k = 96, g = 3
%w : {t}{{k,n}} = const [k, n] data "{w}"
%x : f32{{k,m}} = input "x" [m, k]
%s : f32{{g,n}} = const [g, n] data "{s}"
%y : f32{{m,n}} = sum{{k}} %x[k, m] * (f32(%w[k, n]) * %s[g=k // 32, n])
output "y" [m, n] = %y
"""


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4", "aarch64"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("m", [1, 4, 40])
def test_all_targets_have_code(kind: str, m: int, target: str) -> None:
    machine = target_named(target).machine
    w, s = Data(numbers(kind, 96, 70)), Data(np.ones((3, 70), np.float32))
    text = PACKED.format(m=m, t=DType.of(w.array.dtype), w=w.digest, s=s.digest)
    graph = optimize(parse(text, {w.digest: w, s.digest: s}))
    steps = PlanSteps(decide(graph, machine), Weights())
    (job,) = [p.job for p in steps.pending]
    drafted = draft(job, machine)
    assert any(b.layout.nibbles for b in drafted.kernel.args)
    assert is_object(make(job, machine).code)
