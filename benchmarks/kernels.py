"""`python -m benchmarks.kernels`: single operators, as a share of the machine's measured peak.

Each operator is an ONNX model of its own. rutc, ONNX Runtime and a loop of nothing but fused
multiply-adds take turns on one core, so that the share is of the peak at that moment. Results go
to benchmarks/results/kernels.json and docs/kernels.md.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.machine import ROOT, provenance
from benchmarks.peak import PeakLoop, fma_peak
from rutc.compiler import Options, compile_model
from rutc.errors import RutcError
from rutc.runtime import ModelError, load
from rutc.verify.bench import interleave, latency
from rutc.verify.reference import Reference
from rutc.verify.verify import verify_model

RESULTS = ROOT / "benchmarks" / "results" / "kernels.json"
PAGE = ROOT / "docs" / "kernels.md"
Array = np.ndarray[tuple[int, ...], np.dtype[np.float32]]


@dataclass(frozen=True, slots=True)
class Case:
    """One operator: its name in the table, a function that builds the model, and its work.

    The work is that of the operator's definition; with `exact` no algorithm may save any of it.
    """

    name: str
    build: Callable[[], onnx.ModelProto]
    input_shape: tuple[int, ...]
    flops: int
    exact: bool = False


def _random(*shape: int) -> Array:
    values: Array = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    return values


def _model(
    node: onnx.NodeProto, shape: tuple[int, ...], weight: Array, channels_last: bool = False
) -> onnx.ModelProto:
    nodes = [node]
    if channels_last:
        node.input[0], node.output[0] = "x_first", "y_first"
        nodes = [
            helper.make_node("Transpose", ["x"], ["x_first"], perm=[0, 3, 1, 2]),
            node,
            helper.make_node("Transpose", ["y_first"], ["y"], perm=[0, 2, 3, 1]),
        ]
    graph = helper.make_graph(
        nodes,
        "kernel",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def convolution(
    size: int,
    channels: int,
    outputs: int,
    kernel: int,
    stride: int = 1,
    groups: int = 1,
    channels_last: bool = False,
    exact: bool = False,
) -> Case:
    """Returns a square convolution {1, channels, size, size} -> {1, outputs, ...}, same padding.

    With `channels_last` the model's input and output are {1, size, size, channels} and ONNX
    Transpose nodes stand around the convolution: so it stands inside a network, where the
    neighbours' layout is the compiler's choice.
    """
    shape = (1, size, size, channels) if channels_last else (1, channels, size, size)
    result = size // stride
    node = helper.make_node(
        "Conv",
        ["x", "w"],
        ["y"],
        name="conv",
        kernel_shape=[kernel, kernel],
        strides=[stride, stride],
        pads=[kernel // 2] * 4,
        group=groups,
    )
    products = channels // groups * kernel * kernel
    weight_shape = (outputs, channels // groups, kernel, kernel)
    kind = "depthwise" if groups == channels else "conv"
    step = f"/{stride}" if stride > 1 else ""
    return Case(
        f"{kind} {kernel}x{kernel}{step} {size}x{size} {channels}->{outputs}"
        + (" (channels last)" if channels_last else "")
        + (", direct" if exact else ""),
        lambda: _model(node, shape, _random(*weight_shape), channels_last),
        shape,
        2 * result * result * outputs * products,
        exact,
    )


def product(rows: int, columns: int, inner: int) -> Case:
    """Returns a product {rows, inner} x {inner, columns}."""
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="product")
    return Case(
        f"product {rows}x{columns}x{inner}",
        lambda: _model(node, (rows, inner), _random(inner, columns)),
        (rows, inner),
        2 * rows * columns * inner,
    )


CASES = (
    convolution(56, 64, 64, 3),
    convolution(28, 128, 128, 3),
    convolution(14, 256, 256, 3),
    convolution(7, 512, 512, 3),
    convolution(56, 64, 64, 3, channels_last=True),
    convolution(28, 128, 128, 3, channels_last=True),
    convolution(14, 256, 256, 3, channels_last=True),
    convolution(7, 512, 512, 3, channels_last=True),
    convolution(56, 64, 64, 3, channels_last=True, exact=True),
    convolution(28, 128, 128, 3, channels_last=True, exact=True),
    convolution(14, 256, 256, 3, channels_last=True, exact=True),
    convolution(7, 512, 512, 3, channels_last=True, exact=True),
    convolution(224, 3, 64, 7, stride=2),
    convolution(56, 128, 128, 3, stride=2),
    convolution(56, 64, 256, 1),
    convolution(14, 1024, 256, 1),
    convolution(7, 512, 2048, 1),
    convolution(112, 32, 32, 3, groups=32),
    convolution(14, 576, 576, 3, groups=576),
    product(384, 768, 768),
    product(384, 3072, 768),
    product(384, 768, 3072),
    product(16, 3072, 768),
    product(1, 4096, 4096),
    product(509, 511, 513),
    product(1024, 1024, 1024),
)


def measure(case: Case, peak: PeakLoop, seconds: float) -> dict[str, object]:
    """Returns the entry of one case: GFLOP/s and shares of the peak, on one core."""
    entry: dict[str, object] = {"case": case.name, "flops": case.flops}
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "kernel.onnx"
            onnx.save(case.build(), path)
            options = Options(exact_algorithms=case.exact)
            report = compile_model(path, path.with_suffix(".so"), options, None)
            x = _random(*case.input_shape)
            agrees = verify_model(path, report.library, {"x": x}, threads=1).passed
            session = load(report.library, threads=1)
            (output,) = session.get_outputs()
            y = np.empty([int(extent) for extent in output.shape], np.float32)
            times = interleave(
                {
                    "rutc": partial(session.run_into, {"x": x}, {output.name: y}),
                    "onnxruntime": partial(Reference(path, 1, optimise=True).run, {"x": x}),
                    "peak": peak.run,
                },
                seconds,
            )
    except (RutcError, ModelError) as error:
        return {**entry, "error": str(error).splitlines()[0]}
    medians = {name: latency(found).median_us for name, found in times.items()}
    peak_gflops = peak.flops / medians["peak"] / 1e3
    rates = {name: case.flops / medians[name] / 1e3 for name in ("rutc", "onnxruntime")}
    return {
        **entry,
        "agrees": agrees,
        "peak_gflops": round(peak_gflops, 1),
        **{f"{name}_us": round(medians[name], 1) for name in rates},
        **{f"{name}_gflops": round(rate, 1) for name, rate in rates.items()},
        **{f"{name}_share": round(rate / peak_gflops, 3) for name, rate in rates.items()},
        **asdict(provenance()),
    }


def page(entries: list[dict[str, object]]) -> str:
    """Returns the Markdown page of the entries."""
    lines = [
        "# Kernels",
        "",
        "Written by `python -m benchmarks.kernels`. Single float32 operators on one core; shares",
        "are of the fused multiply-add peak measured in alternation with them. Times are of whole",
        "calls from Python. The work is that of the operator's definition: where rutc computes the",
        "same result with fewer multiplications, its share may exceed 100 %; the rows marked",
        "`direct` are compiled with `--exact-algorithms` and do all of them.",
        "",
        "| operator | rutc us | ORT us | rutc GFLOP/s | rutc of peak | ORT of peak |",
        "|---|---|---|---|---|---|",
    ]
    for entry in entries:
        if "error" in entry:
            lines.append(f"| {entry['case']} | {entry['error']} | | | | |")
            continue
        mark = "" if entry["agrees"] else " (does NOT agree)"
        shares = [f"{100 * float(str(entry[f'{n}_share'])):.0f} %" for n in ("rutc", "onnxruntime")]
        lines.append(
            f"| {entry['case']}{mark} | {entry['rutc_us']} | {entry['onnxruntime_us']} | "
            f"{entry['rutc_gflops']} | {shares[0]} | {shares[1]} |"
        )
    return "\n".join([*lines, "", "Measured on: " + provenance().line() + "."]) + "\n"


def main() -> None:
    """Measures every case and stores the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels", description=__doc__)
    parser.add_argument("only", nargs="*", help="parts of names of cases; default: all")
    parser.add_argument("--seconds", type=float, default=2.0, help="per case")
    parser.add_argument("--dry", action="store_true", help="print, but store nothing")
    options = parser.parse_args()
    peak = fma_peak()
    entries = []
    for case in CASES:
        if options.only and not any(part in case.name for part in options.only):
            continue
        entry = measure(case, peak, options.seconds)
        entries.append(entry)
        shares = {key: entry[key] for key in entry if key.endswith(("_share", "_us", "error"))}
        print(case.name, shares, f"peak {entry.get('peak_gflops')} GFLOP/s", file=sys.stderr)
    if options.dry:
        return
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(entries), encoding="utf-8")


if __name__ == "__main__":
    main()
