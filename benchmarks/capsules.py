"""`python -m benchmarks.capsules`: a capsule layer, which no peer has a kernel for.

The layer (Barham and Isard, HotOS 2019, section 2) is written as frameworks write it, in three
spellings that mean the same loop nest. Each is compiled by `rutc compile` in a process of its own
with an empty cache, and timed in alternation with the peers and a loop of multiply-adds. Results
are kept in benchmarks/results/capsules.json, and docs/capsules.md is written from them.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from benchmarks import layout
from benchmarks.cases import Array, random
from benchmarks.compile_time import compiled, write_byte_code
from benchmarks.kernels import SHORT, times_of
from benchmarks.peak import measured_peaks, run_peak
from benchmarks.peers import peer_jobs
from benchmarks.protocol import Page, medians, timed, told, write
from benchmarks.store import Entry
from rutc.runtime import load
from rutc.verify.bench import aligned, room_for, rutc_job
from rutc.verify.interleaved import Job
from rutc.verify.verify import verify_model

SPELLINGS = ("batched", "broadcast", "product")


@dataclass(frozen=True, slots=True)
class Layer:
    """{batch, inputs, size, size, pose, pose} -> {batch, outputs, out, out, pose, pose}.

    A capsule is a matrix of `pose` x `pose`. Every output capsule is the sum of the products of
    the input capsules in a window with the weights {outputs, inputs, window, window, pose, pose}.
    """

    batch: int = 8
    size: int = 16
    inputs: int = 32
    outputs: int = 32
    pose: int = 4
    window: int = 3
    stride: int = 2

    @property
    def out(self) -> int:
        """Positions of the window along either axis."""
        return (self.size - self.window) // self.stride + 1

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of the input."""
        return (self.batch, self.inputs, self.size, self.size, self.pose, self.pose)

    @property
    def reduction(self) -> int:
        """Products that are summed for one number of the output."""
        return self.inputs * self.window**2 * self.pose

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        return 2 * self.reduction * self.batch * self.outputs * (self.out * self.pose) ** 2


def spellings(layer: Layer) -> dict[str, onnx.ModelProto]:
    """Returns models of the layer, x -> y. All gather patches and transpose them.

    Then `batched` multiplies a batch of matrices and sums, `broadcast` multiplies element by
    element and sums, and `product` multiplies one large matrix.
    """
    d, out = layer, layer.out
    weights = random(d.outputs, d.inputs, d.window, d.window, d.pose, d.pose)
    node = helper.make_node
    last = node("Transpose", ["patches"], ["t"], perm=[0, 1, 3, 5, 2, 4, 6, 7])
    batched = _model(
        layer,
        last,
        node("Reshape", ["t", "before"], ["r"]),
        node("MatMul", ["r", "w"], ["m"]),
        node("ReduceSum", ["m", "axes"], ["s"], keepdims=0),
        node("Reshape", ["s", "after"], ["y"]),
        w=weights,
        before=np.array([d.batch, 1, d.inputs, d.window, d.window, out * out * d.pose, d.pose]),
        axes=np.array([2, 3, 4]),
        after=np.array([d.batch, d.outputs, out, out, d.pose, d.pose]),
    )
    broadcast = _model(
        layer,
        last,
        node("Unsqueeze", ["t", "unit"], ["u"]),
        node("Mul", ["u", "w"], ["m"]),
        node("ReduceSum", ["m", "axes"], ["y"], keepdims=0),
        w=weights[None, :, :, :, :, None, None, None, :, :],
        unit=np.array([1, 9]),
        axes=np.array([2, 3, 4, 8]),
    )
    columns = np.ascontiguousarray(weights.transpose(1, 2, 3, 4, 0, 5))
    product = _model(
        layer,
        node("Transpose", ["patches"], ["t"], perm=[0, 2, 4, 6, 1, 3, 5, 7]),
        node("Reshape", ["t", "before"], ["r"]),
        node("MatMul", ["r", "w"], ["m"]),
        node("Reshape", ["m", "after"], ["s"]),
        node("Transpose", ["s"], ["y"], perm=[0, 4, 1, 2, 3, 5]),
        w=columns.reshape(d.reduction, d.outputs * d.pose),
        before=np.array([d.batch * out * out * d.pose, d.reduction]),
        after=np.array([d.batch, out, out, d.pose, d.outputs, d.pose]),
    )
    return {"batched": batched, "broadcast": broadcast, "product": product}


def _model(layer: Layer, *nodes: NodeProto, **constants: np.ndarray) -> onnx.ModelProto:
    """The layer's model: its patches gathered, and the nodes that make y of them."""
    positions = layer.stride * np.arange(layer.out)[:, None] + np.arange(layer.window)
    patches = [
        helper.make_node("Gather", ["x", "index"], ["rows"], axis=2),
        helper.make_node("Gather", ["rows", "index"], ["patches"], axis=4),
    ]
    constants = {"index": positions, **constants}
    graph = helper.make_graph(
        [*patches, *nodes],
        "capsules",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, layer.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(c, name) for name, c in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def measure(name: str, seconds: float, peers: Sequence[str]) -> Entry:
    """Returns the entry of one spelling, on one core. A peer that fails has no time."""
    layer = Layer()
    inputs: Mapping[str, Array] = {"x": aligned(random(*layer.shape))}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "capsules.onnx"
        onnx.save(spellings(layer)[name], path)
        write_byte_code(path)
        building = compiled(path, Path(folder) / "cache")
        library = path.with_suffix(".so")
        agrees = verify_model(path, library, inputs, threads=1).passed
        room = room_for(library, inputs)
        jobs = {
            "rutc": rutc_job(library, 1, inputs, room),
            **peer_jobs(peers, path, 1, inputs, room),
            "peak": Job(run_peak, ("native",)),
        }
        found = timed(jobs, seconds)
        with load(library, threads=1) as session:
            manifest = session.manifest
            (y,) = session.run(None, inputs)
    us = medians(found)
    kernels = manifest["kernels"]
    assert isinstance(kernels, list)
    return {
        "spelling": name,
        "flops": layer.flops,
        "peak_gflops": round(measured_peaks().registers.flops / us.pop("peak") / 1e3, 1),
        "us": {n: round(median, 1) for n, median in us.items()},
        "agrees": agrees,
        "bound": room is not None,
        "compile": building,
        "kernels": [str(kernel["symbol"]) for kernel in kernels],
        "arena_bytes": manifest["arena_bytes"],
        "tensor_bytes": inputs["x"].nbytes + np.asarray(y).nbytes,
        **told(found),
    }


def page(entries: Sequence[Entry]) -> str:
    """Returns the Markdown page of the entries."""
    layer = Layer()
    said = (
        "Written by `python -m benchmarks.capsules`. Each output capsule, a matrix of 4 x 4, is a",
        "sum of products of the 3 x 3 x 32 input capsules in a window with weights: eight dims and",
        f"{layer.flops / 1e6:.0f} million operations for a batch of {layer.batch}. Frameworks have",
        "no operator for it (Barham and Isard, *Machine Learning Systems are Stuck in a Rut*,",
        "HotOS 2019, section 2), so it is spelled with others: `batched` products and a sum, a",
        "`broadcast` multiplication and a sum, or one `product` of gathered patches. rutc makes",
        "the same loop nest of all three. Times on one core are of whole calls from Python, in",
        "alternation; the share is of a loop of multiply-adds. Compile time is that of the whole",
        "process with an empty cache, and with byte code of the sources, as in a user's",
        "installation. Working memory is what a session allocates beside input and output.",
    )
    return layout.page("A capsule layer", said, entries, _table)


def _table(entries: Sequence[Entry]) -> list[str]:
    measured = [entry for entry in entries if "us" in entry]
    peers = [p for p in SHORT if any(p in times_of(entry) for entry in measured)]
    compared = "".join(f" | {SHORT[p]} us" for p in peers)
    titles = f"spelling | rutc us | GFLOP/s | of peak{compared} | compiled in | kernels | input and"
    titles += " output | working memory | commit: runs"
    same = len({tuple(_kernels(entry)) for entry in measured}) == 1
    return [
        *layout.table(titles, entries, lambda entry: _row(entry, peers), key),
        "",
        "The spellings' kernels are " + ("the same." if same else "NOT the same."),
    ]


def _row(entry: Entry, peers: Sequence[str]) -> list[object]:
    us, building = times_of(entry), entry["compile"]
    assert isinstance(building, dict)
    rate = float(str(entry["flops"])) / us["rutc"] / 1e3
    return [
        key(entry) + layout.marks(entry),
        us["rutc"],
        f"{rate:.1f}",
        f"{100 * rate / float(str(entry['peak_gflops'])):.0f} %",
        *(f"{us[p]} (x{us['rutc'] / us[p]:.2f})" if p in us else "" for p in peers),
        f"{building['seconds']} s",
        len(_kernels(entry)),
        f"{int(str(entry['tensor_bytes'])) / 1e6:.1f} MB",
        f"{int(str(entry['arena_bytes'])) / 1e6:.1f} MB",
    ]


def _kernels(entry: Entry) -> list[str]:
    kernels = entry["kernels"]
    assert isinstance(kernels, list)
    return [str(kernel) for kernel in kernels]


def key(entry: Entry) -> str:
    """Returns the spelling of an entry."""
    return str(entry.get("spelling", entry.get("case")))


PAGE = Page(
    "capsules",
    __doc__,
    SPELLINGS,
    measure,
    key,
    lambda entries: write("capsules", page(entries)),
    peers=("onnxruntime", "openvino"),
    loops=1,
)

if __name__ == "__main__":
    PAGE.main()
