"""`python -m benchmarks.matrices`: products that registers for matrices (AMX) take.

Each is an ONNX model of one operator: products and convolutions of float32 that `--precision bf16`
multiplies in bf16, products of two inputs, and products of bytes. rutc, OpenVINO in the precision
that it chooses, and a loop of products of blocks in registers take turns on one core. Results go to
benchmarks/results/matrices.json and docs/matrices.md.
"""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from benchmarks import layout
from benchmarks.matrix_peak import matrix_flops, run_matrix_peak
from benchmarks.narrow import integer_product, random
from benchmarks.peers import Inputs, prepare_openvino
from benchmarks.protocol import OPERATOR_S, Page, compiled, medians, timed, told, write
from benchmarks.store import Entry, case_of
from rutc.driver.compiler import Options
from rutc.tensor_ir.dtype import DType
from rutc.verify.bench import rutc_job
from rutc.verify.interleaved import Job

BF16, INT8 = "bf16", "int8"
OPENVINO = "openvino"


@dataclass(frozen=True, slots=True)
class Case:
    """A model: its name, how it is built, its inputs, its operations, and what it multiplies."""

    name: str
    build: Callable[[], onnx.ModelProto]
    inputs: Inputs
    operations: int
    kind: str = BF16


def _of_nodes(nodes: Sequence[NodeProto], inputs: Inputs, **constants: np.ndarray) -> Case:
    """A case of nodes, x (and z) -> y, without its name and operations."""

    def build() -> onnx.ModelProto:
        given = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape)
            for name, array in inputs.items()
        ]
        out = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
        known = [numpy_helper.from_array(array, name) for name, array in constants.items()]
        graph = helper.make_graph(nodes, "matrices", given, out, known)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)

    return Case("", build, inputs, 0)


def _named(case: Case, name: str, operations: int) -> Case:
    return Case(name, case.build, case.inputs, operations, case.kind)


def product(m: int, n: int, k: int) -> Case:
    """Returns {m, k} by a constant {k, n}."""
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    case = _of_nodes([node], {"x": random(np.float32, m, k)}, w=random(np.float32, k, n))
    return _named(case, f"MatMul {m}x{n}x{k}", 2 * m * n * k)


def convolution(size: int, channels: int, outputs: int, kernel: int) -> Case:
    """Returns {1, channels, size, size} in windows of `kernel`, same padding."""
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[kernel // 2] * 4)
    x = random(np.float32, 1, channels, size, size)
    w = random(np.float32, outputs, channels, kernel, kernel)
    name = f"Conv {kernel}x{kernel} {size}x{size} {channels}->{outputs}"
    return _named(_of_nodes([node], {"x": x}, w=w), name, 2 * w.size * size * size)


def scores(heads: int, queries: int, keys: int, width: int) -> Case:
    """Returns queries by keys: both are inputs."""
    nodes = [
        helper.make_node("Transpose", ["z"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["x", "t"], ["y"]),
    ]
    x, z = random(np.float32, heads, queries, width), random(np.float32, heads, keys, width)
    operations = 2 * heads * queries * keys * width
    return _named(_of_nodes(nodes, {"x": x, "z": z}), f"scores {queries} by {keys}", operations)


def weighted(heads: int, queries: int, keys: int, width: int) -> Case:
    """Returns weights by values: both are inputs."""
    node = helper.make_node("MatMul", ["x", "z"], ["y"])
    x, z = random(np.float32, heads, queries, keys), random(np.float32, heads, keys, width)
    operations = 2 * heads * queries * keys * width
    return _named(_of_nodes([node], {"x": x, "z": z}), f"{queries} sums of {keys}", operations)


def of_bytes(m: int, n: int, k: int) -> Case:
    """Returns MatMulInteger of {m, k} by a constant {k, n}."""
    case = integer_product(m, n, k)
    return Case(f"MatMulInteger {m}x{n}x{k}", case.build, {"x": case.input}, case.operations, INT8)


SIZES = (
    (256, 256, 256),
    (512, 512, 512),
    (1024, 1024, 1024),
    (2048, 2048, 2048),
    (384, 3072, 768),
    (384, 768, 768),
    (384, 768, 3072),
)
CASES = (
    *(product(*size) for size in SIZES),
    product(197, 768, 768),
    product(49, 768, 768),
    product(384, 768, 765),
    convolution(56, 64, 64, 3),
    convolution(28, 128, 128, 3),
    convolution(14, 256, 256, 3),
    convolution(7, 512, 512, 3),
    convolution(56, 64, 256, 1),
    convolution(14, 1024, 256, 1),
    scores(12, 128, 128, 64),
    scores(12, 384, 384, 64),
    weighted(12, 128, 128, 64),
    weighted(12, 197, 197, 64),
    weighted(12, 384, 384, 64),
    *(of_bytes(*size) for size in SIZES),
)
BY_NAME = {case.name: case for case in CASES}


def measure(name: str, seconds: float, peers: Sequence[str]) -> Entry:
    """Returns the entry of one case: medians on one core, and the loop's rate in turns with them.

    Raises:
        UserError: the processor has no registers for matrices.
    """
    case = BY_NAME[name]
    options = Options(precision=DType.BF16.value) if case.kind == BF16 else Options()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(case.build(), path)
        made = compiled(path, case.inputs, options)
        jobs = {
            "rutc": rutc_job(made.library, 1, case.inputs, made.room),
            "peak": Job(run_matrix_peak, (case.kind,)),
        }
        if OPENVINO in peers:
            arguments = (path, 1, case.inputs, made.room, "")
            jobs[OPENVINO] = Job(prepare_openvino, arguments, OPENVINO)
        found = timed(jobs, seconds)
    us = medians(found)
    return {
        "operations": case.operations,
        "peak_gops": round(matrix_flops(case.kind) / us.pop("peak") / 1e3),
        **made.facts,
        **{f"{peer}_us": round(median, 1) for peer, median in us.items()},
        **told(found),
    }


def page(entries: Sequence[Entry]) -> str:
    """Returns the Markdown page of the entries."""
    said = (
        "Written by `python -m benchmarks.matrices`. Single operators on one core, on processors",
        "with registers for matrices (AMX). Inputs and outputs are float32, and `--precision bf16`",
        "multiplies them in bf16; MatMulInteger multiplies bytes. *OV* is OpenVINO in the",
        "precision that it chooses. The share is of what a loop does that multiplies random blocks",
        "in registers and loads none, in turns with the others. Times are of whole calls from",
        "Python, which read inputs and store outputs that the second cache may not hold.",
    )
    return layout.page("Registers for matrices", said, entries, _table)


def _table(entries: Sequence[Entry]) -> list[str]:
    titles = "operator | rutc us | OV us | rutc/OV | Gop/s | of peak | commit: runs"
    return layout.table(titles, entries, _row)


def _row(entry: Entry) -> list[object]:
    us = float(str(entry["rutc_us"]))
    rate = float(str(entry["operations"])) / us / 1e3
    other = float(str(entry[f"{OPENVINO}_us"])) if f"{OPENVINO}_us" in entry else None
    return [
        case_of(entry),
        us,
        "" if other is None else other,
        "" if other is None else f"{us / other:.2f}",
        f"{rate:.0f}",
        f"{100 * rate / float(str(entry['peak_gops'])):.0f} %",
    ]


PAGE = Page(
    "matrices",
    __doc__,
    list(BY_NAME),
    measure,
    case_of,
    lambda entries: write("matrices", page(entries)),
    peers=(OPENVINO,),
    loops=1,
    seconds=OPERATOR_S,
)

if __name__ == "__main__":
    PAGE.main()
