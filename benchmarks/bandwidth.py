"""`python -m benchmarks.bandwidth`: single operators whose operands come from memory.

Every call takes other arrays than the calls before it, `ROTATED_BYTES` of them in turn, so no cache
holds them. A pass over as much memory (`benchmarks.peak`), rotated likewise, takes turns with it on
one core: an operator that memory bounds takes as long as the pass. Results are kept in
benchmarks/results/bandwidth.json, and docs/bandwidth.md is written from them.
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from math import prod
from pathlib import Path
from statistics import geometric_mean

import numpy as np
import onnx
from onnx import NodeProto, helper

from benchmarks import store
from benchmarks.cases import CASES, Case, Shape, aligned, model, random
from benchmarks.machine import ROOT, provenance
from benchmarks.native import native_calls
from benchmarks.peak import Peaks, measured_peaks
from benchmarks.store import Entry
from rutc.compiler import Options, compile_model
from rutc.runtime import load
from rutc.verify.bench import interleave, latency
from rutc.verify.verify import verify_model

RESULTS = ROOT / "benchmarks" / "results" / "bandwidth.json"
PAGE = ROOT / "docs" / "bandwidth.md"
ROTATED_BYTES = 256 << 20
"""Several times the last cache of common processors."""
PARTS = 8
"""A measurement goes over one part of them."""


def cases() -> list[Case]:
    """Returns MobileNetV2's depthwise convolutions, and common operators of little arithmetic."""
    node = helper.make_node
    rows, image = {"x": (1024, 1024)}, {"x": (1, 96, 112, 112)}
    gain = {"g": random(1024), "b": random(1024)}
    pool = node("MaxPool", ["x"], ["y"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    scales = {"scales": np.array([1, 1, 2, 2], np.float32)}
    return [
        *(case for case in CASES if case.name.startswith("depthwise")),
        _case("add", node("Add", ["x", "z"], ["y"]), {**rows, "z": (1024, 1024)}, (1024, 1024)),
        _case("sigmoid", node("Sigmoid", ["x"], ["y"]), rows, (1024, 1024)),
        _case("gelu", node("Gelu", ["x"], ["y"]), rows, (1024, 1024)),
        _case("softmax", node("Softmax", ["x"], ["y"], axis=1), rows, (1024, 1024)),
        _case(
            "layer normalization",
            node("LayerNormalization", ["x", "g", "b"], ["y"]),
            rows,
            (1024, 1024),
            gain,
        ),
        _case("mean of rows", node("ReduceMean", ["x", "a"], ["y"]), rows, (1024, 1), _axis(1)),
        _case("mean of columns", node("ReduceMean", ["x", "a"], ["y"]), rows, (1, 1024), _axis(0)),
        _case("transpose", node("Transpose", ["x"], ["y"]), rows, (1024, 1024)),
        _case("max pool 3x3/2", pool, image, (1, 96, 56, 56)),
        _case("global mean", node("GlobalAveragePool", ["x"], ["y"]), image, (1, 96, 1, 1)),
        _case(
            "resize x2 linear",
            node("Resize", ["x", "", "scales"], ["y"], mode="linear"),
            {"x": (1, 64, 56, 56)},
            (1, 64, 112, 112),
            scales,
        ),
    ]


def _axis(axis: int) -> dict[str, np.ndarray]:
    return {"a": np.array([axis])}


def _case(
    name: str,
    node: NodeProto,
    inputs: Mapping[str, Shape],
    result: Shape,
    weights: Mapping[str, np.ndarray] | None = None,
) -> Case:
    """A case of one node; its name tells the first input's shape."""
    constants = weights or {}
    read = 4 * sum(prod(s) for s in inputs.values()) + sum(w.nbytes for w in constants.values())
    return Case(
        f"{name} {'x'.join(map(str, inputs['x']))}",
        lambda: model([node], inputs, constants),
        inputs,
        0,
        read,
        4 * prod(result),
    )


def measure(case: Case, peaks: Peaks, seconds: float) -> Entry:
    """Returns the entry of one case, on one core."""
    inputs = case.values()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.onnx"
        onnx.save(case.build(), path)
        report = compile_model(path, path.with_suffix(".so"), Options(), None)
        agrees = verify_model(path, report.library, inputs, threads=1).passed
        session = load(report.library, threads=1)
        (output,) = session.get_outputs()
        shape = [int(extent) for extent in output.shape]
        bytes_ = case.read_bytes + case.written_bytes
        count = -(-ROTATED_BYTES // bytes_)
        each = 1 + count // PARTS
        sets = [
            (
                {name: aligned(array) for name, array in inputs.items()},
                {output.name: aligned(np.ones(shape, np.float32))},
            )
            for _ in range(count)
        ]
        runs = {
            "rutc": native_calls(report.library, sets, each),
            "traffic": peaks.traffic(case.read_bytes, case.written_bytes, count, each),
        }
    medians = {
        name: latency(times).median_us / each for name, times in interleave(runs, seconds).items()
    }
    return {
        "case": case.name,
        "agrees": agrees,
        "bytes": bytes_,
        "us": {name: round(median, 1) for name, median in medians.items()},
        **asdict(provenance()),
    }


def _share(entry: Entry) -> float:
    us = entry["us"]
    assert isinstance(us, dict)
    return float(us["traffic"]) / float(us["rutc"])


def page(entries: list[Entry]) -> str:
    """Returns the Markdown page of the entries."""
    lines = [
        "# Operators whose operands come from memory",
        "",
        "Written by `python -m benchmarks.bandwidth`. Every call, from C and on one core, takes",
        "other arrays than the calls before it,",
        f"{ROTATED_BYTES >> 20} MiB of them in turn, so that no cache holds them. A pass that",
        "reads and writes as many bytes, rotated likewise, takes turns with the operator: its rate",
        "is the memory's. An operator's share is the pass's time over its own. `docs/kernels.md`",
        "has the same convolutions with operands in a cache.",
        "",
        "| operator | us | GB/s | memory GB/s | of memory's rate |",
        "|---|---|---|---|---|",
    ]
    for entry in entries:
        us, moved = entry["us"], float(str(entry["bytes"]))
        assert isinstance(us, dict)
        mark = "" if entry["agrees"] else " (does NOT agree)"
        lines.append(
            f"| {entry['case']}{mark} | {us['rutc']} | {moved / us['rutc'] / 1e3:.1f} |"
            f" {moved / us['traffic'] / 1e3:.1f} | {100 * _share(entry):.0f} % |"
        )
    parts = {
        "Depthwise convolutions": [e for e in entries if str(e["case"]).startswith("depthwise")],
        "Others": [e for e in entries if not str(e["case"]).startswith("depthwise")],
    }
    lines.append("")
    for name, own in parts.items():
        if own:
            share = 100 * geometric_mean(_share(e) for e in own)
            lines.append(f"- {name}: {len(own)}; geometric mean of shares: {share:.0f} %.")
    return "\n".join([*lines, "", "Measured on: " + provenance().line() + "."]) + "\n"


def main() -> None:
    """Measures every case and stores the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bandwidth", description=__doc__)
    parser.add_argument("only", nargs="*", help="parts of names of cases; default: all")
    parser.add_argument("--seconds", type=float, default=1.0, help="per case")
    parser.add_argument("--dry", action="store_true", help="print, but store nothing")
    options = parser.parse_args()
    peaks = measured_peaks()
    order = cases()
    entries: list[Entry] = []
    for case in order:
        if options.only and not any(name in case.name for name in options.only):
            continue
        entry = measure(case, peaks, options.seconds)
        entries.append(entry)
        print(case.name, f"{_share(entry):.2f}", entry["us"], entry["agrees"], file=sys.stderr)
    if not options.dry:
        kept = store.merge(RESULTS, entries, [case.name for case in order])
        PAGE.write_text(page(kept), encoding="utf-8")


if __name__ == "__main__":
    main()
