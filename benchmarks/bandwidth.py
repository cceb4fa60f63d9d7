"""`python -m benchmarks.bandwidth`: single operators whose operands come from memory.

Every call takes other arrays than the calls before it, `ROTATED_BYTES` of them in turn, so no cache
holds them. A pass over as much memory (`benchmarks.peak`), rotated likewise, takes turns with it on
one core: an operator that memory bounds takes as long as the pass. Results are kept in
benchmarks/results/bandwidth.json, and docs/bandwidth.md is written from them.
"""

import tempfile
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from statistics import geometric_mean

import numpy as np
import onnx
from onnx import NodeProto, helper

from benchmarks import layout
from benchmarks.cases import CASES, Case, Shape, model, random
from benchmarks.native import run_calls
from benchmarks.peak import run_traffic
from benchmarks.protocol import OPERATOR_S, Page, compiled, medians, timed, told, write
from benchmarks.store import Entry, case_of
from rutc.driver.compiler import Options
from rutc.errors import UserError
from rutc.verify.interleaved import Job

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


def measure(name: str, seconds: float, peers: Sequence[str]) -> Entry:
    """Returns the entry of one case, on one core; it has no peers but the pass over memory."""
    case = BY_NAME[name]
    inputs = case.values()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.onnx"
        onnx.save(case.build(), path)
        made = compiled(path, inputs, Options())
        if made.room is None:
            raise UserError("the outputs have no fixed place, which calls from C need")
        bytes_ = case.read_bytes + case.written_bytes
        sets = -(-ROTATED_BYTES // bytes_)
        each = 1 + sets // PARTS
        sizes = (case.read_bytes, case.written_bytes, sets, each)
        jobs = {
            "rutc": Job(run_calls, (made.library, inputs, made.room, sets, each)),
            "traffic": Job(run_traffic, ("native", *sizes)),
        }
        found = timed(jobs, seconds)
    return {
        **made.facts,
        "bytes": bytes_,
        "us": {name: round(median / each, 1) for name, median in medians(found).items()},
        **told(found),
    }


def _share(entry: Entry) -> float:
    us = entry["us"]
    assert isinstance(us, dict)
    return float(us["traffic"]) / float(us["rutc"])


def page(entries: Sequence[Entry]) -> str:
    """Returns the Markdown page of the entries."""
    said = (
        "Written by `python -m benchmarks.bandwidth`. Every call, from C and on one core, takes",
        "other arrays than the calls before it,",
        f"{ROTATED_BYTES >> 20} MiB of them in turn, so that no cache holds them. A pass that",
        "reads and writes as many bytes, rotated likewise, takes turns with the operator: its rate",
        "is the memory's. An operator's share is the pass's time over its own. `docs/kernels.md`",
        "has the same convolutions with operands in a cache.",
    )
    return layout.page("Operators whose operands come from memory", said, entries, _table)


def _table(entries: Sequence[Entry]) -> list[str]:
    titles = "operator | us | GB/s | memory GB/s | of memory's rate | commit: runs"
    lines = layout.table(titles, entries, _row)
    measured = [entry for entry in entries if "us" in entry]
    parts = {
        "Depthwise convolutions": [e for e in measured if str(e["case"]).startswith("depthwise")],
        "Others": [e for e in measured if not str(e["case"]).startswith("depthwise")],
    }
    lines.append("")
    for name, own in parts.items():
        if own:
            share = 100 * geometric_mean(_share(e) for e in own)
            lines.append(f"- {name}: {len(own)}; geometric mean of shares: {share:.0f} %.")
    return lines


def _row(entry: Entry) -> list[object]:
    us, moved = entry["us"], float(str(entry["bytes"]))
    assert isinstance(us, dict)
    rates = (f"{moved / us[key] / 1e3:.1f}" for key in ("rutc", "traffic"))
    return [layout.marked(entry), us["rutc"], *rates, f"{100 * _share(entry):.0f} %"]


BY_NAME = {case.name: case for case in cases()}
PAGE = Page(
    "bandwidth",
    __doc__,
    list(BY_NAME),
    measure,
    case_of,
    lambda entries: write("bandwidth", page(entries)),
    peers=(),
    loops=1,
    seconds=OPERATOR_S,
)

if __name__ == "__main__":
    PAGE.main()
