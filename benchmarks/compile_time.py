"""`python -m benchmarks.compile_time`: how long `rutc compile` takes, and its memory.

The command runs as a process of its own, Python's start included: with an empty cache, with what
that run left there, both with `--no-verify`, and with an empty cache and verification. It finds
byte code of its sources, as in a user's installation. Models have the zoo's fixed sizes, or are
compiled as their files are, with free sizes, and exports of any batch size for one image as well.
Two are chains of element-wise operators. Results are kept in benchmarks/results/compile_time.json,
and docs/compile_time.md is written from them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx

from benchmarks import layout
from benchmarks.machine import ROOT, provenance
from benchmarks.store import Entry

if TYPE_CHECKING:
    from benchmarks.protocol import Page

FREE = ", free sizes"
"""What follows a model's name whose file is compiled as it is."""
FREE_MODELS = (
    "ppocr4_det", "ppocr4_rec", "magika", "silero_vad_half", "minilm_l6_dynamic",
    "bert_base_dynamic", "gpt2_dynamic",
)  # fmt: skip
EXPORTS = {
    "densenet121": "torchvision",
    "swin_t": "torchvision",
    "deeplabv3_mobilenet": "torchvision",
    "inception_v3": "torchvision",
    "segformer_b0": "transformers",
}
"""Exports of any batch size, and the library that has the network."""
ONE = ", batch 1"
"""What follows the name of one that is compiled for one image."""
CHAIN = " operators in a chain"
CHAINS = (1_000, 100_000)
"""The operators of chains that are compiled."""
MIB = float(1 << 20)


def cases() -> list[str]:
    """Returns the names of all cases."""
    from rutc.models.zoo import zoo

    exports = [name + sizes for name in EXPORTS for sizes in (FREE, ONE)]
    chains = [f"{operators}{CHAIN}" for operators in CHAINS]
    free = [name + FREE for name in FREE_MODELS]
    return [*(model.name for model in zoo()), *free, *exports, *chains]


def measure(name: str, seconds: float, peers: Sequence[str]) -> Entry:
    """Returns the times of a model with an empty and with a full cache, once each."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        # In a process of its own: what this one has in memory counts for those that it starts.
        writing = [sys.executable, "-m", "benchmarks.compile_time", "--write", str(path), name]
        subprocess.run(writing, cwd=ROOT, check=True)
        write_byte_code(path)
        entry: Entry = {"model": name, "model_bytes": path.stat().st_size}
        options = ("--dim", "batch=1") if name.endswith(ONE) else ()
        for kind in ("empty", "full"):
            entry[kind] = compiled(path, Path(folder) / "cache", "--no-verify", *options)
        entry["verified"] = compiled(path, Path(folder) / "second cache", *options)
    return entry | asdict(provenance())


def write_model(name: str, path: Path) -> None:
    """Writes the model of a case."""
    from benchmarks.zoo import write_static
    from rutc.models import dynamic, zoo
    from rutc.models.export_source import Export
    from rutc.models.sources import Source

    if name.endswith(CHAIN):
        path.write_bytes(chain(int(name.removesuffix(CHAIN))).SerializeToString())
        return
    if not name.endswith((FREE, ONE)):
        write_static(zoo.find(name), path)
        return
    sources: dict[str, Source] = {model.name: model.source for model in zoo.zoo()}
    sources |= {model.name: model.source for model in dynamic.dynamic_models()}
    sources |= {export: Export(export, library) for export, library in EXPORTS.items()}
    path.write_bytes(sources[name.removesuffix(FREE).removesuffix(ONE)].obtain().read_bytes())


def chain(operators: int) -> onnx.ModelProto:
    """Returns a chain of element-wise operators on {batch, 256}, in turn of five kinds."""
    from onnx import helper, numpy_helper

    kinds = ("Add", "Relu", "Mul", "Tanh", "Sub")
    constant = numpy_helper.from_array(np.array(0.5, np.float32), "half")
    nodes = []
    for number in range(operators):
        kind = kinds[number % len(kinds)]
        read = [f"v{number}"] if kind in ("Relu", "Tanh") else [f"v{number}", constant.name]
        nodes.append(helper.make_node(kind, read, [f"v{number + 1}"]))
    ends = [
        helper.make_tensor_value_info(value, onnx.TensorProto.FLOAT, ["batch", 256])
        for value in ("v0", f"v{operators}")
    ]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], [constant])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


STARTER = """
import os, sys, time
start = time.perf_counter()
process = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
_, status, usage = os.wait4(process, 0)
seconds = time.perf_counter() - start
print(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10, file=sys.stderr)
sys.exit(os.waitstatus_to_exitcode(status))
"""
"""Runs a command, and writes seconds, CPU seconds and peak bytes as the last line of stderr."""


def write_byte_code(model: Path) -> None:
    """Compiles a model once, so that there is byte code of all that it takes."""
    with tempfile.TemporaryDirectory() as cache:
        compiled(model, Path(cache), "--no-verify")


def compiled(model: Path, cache: Path, *options: str) -> dict[str, float]:
    """Seconds, CPU seconds of all processes, and the most bytes that one of them had in memory."""
    output = model.with_suffix(".so")
    # As on a machine that has tuned nothing: there is no such database.
    environment = {**os.environ, "RUTC_CACHE": str(cache), "RUTC_DB": str(cache / "none.sqlite")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    arguments = ["-m", "rutc", "compile", *options, str(model), "-o", str(output)]
    # A process begins with the memory of the one that starts it, so a small one does.
    starter = [sys.executable, "-S", "-c", STARTER, sys.executable, *arguments]
    done = subprocess.run(starter, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"rutc compile {model} ended with {done.returncode}")
    seconds, cpu_seconds, peak_bytes = done.stderr.splitlines()[-1].split()
    return {
        "seconds": round(float(seconds), 2),
        "cpu_seconds": round(float(cpu_seconds), 2),
        "peak_bytes": int(peak_bytes),
    }


def page(entries: Sequence[Entry]) -> str:
    """Returns the Markdown page of the entries."""
    said = (
        "Written by `python -m benchmarks.compile_time`; the numbers are in",
        "`benchmarks/results/compile_time.json`. Seconds of the whole process",
        "`rutc compile --no-verify`, Python's start included, with an empty cache and with a full",
        "one, and the CPU seconds of all its processes; *verified* is with an empty cache and",
        "without `--no-verify`. There is byte code of the sources, as in a user's installation.",
        "Memory is the peak of the largest process; while a model is verified ONNX Runtime holds",
        "it as well. Models of *free sizes* are compiled as their files are, those of *batch 1*",
        "with `--dim batch=1`; a chain's operators are element-wise, one after the other.",
    )
    return layout.page("Compile time", said, entries, _table, ())


def _table(entries: Sequence[Entry]) -> list[str]:
    titles = "model | ONNX file | empty cache | CPU | full cache | CPU | peak memory | verified "
    titles += "| peak memory | commit"
    return layout.table(titles, entries, _row, key)


def _row(entry: Entry) -> list[str]:
    empty, full = entry["empty"], entry["full"]
    assert isinstance(empty, dict)
    assert isinstance(full, dict)
    cells = [key(entry), f"{int(str(entry['model_bytes'])) / MIB:.1f} MiB"]
    for found in (empty, full):
        cells += [f"{found['seconds']:.2f} s", f"{found['cpu_seconds']:.2f} s"]
    cells.append(f"{max(empty['peak_bytes'], full['peak_bytes']) / MIB:.0f} MiB")
    verified = entry.get("verified")
    if not isinstance(verified, dict):
        return [*cells, "", ""]
    return [*cells, f"{verified['seconds']:.2f} s", f"{verified['peak_bytes'] / MIB:.0f} MiB"]


def key(entry: Entry) -> str:
    """Returns the model of an entry."""
    return str(entry.get("model", entry.get("case")))


def pages() -> Page:
    """Returns the page; a process that writes a model goes without its modules."""
    from benchmarks.protocol import Page, write

    return Page(
        "compile_time",
        __doc__ or "",
        cases(),
        measure,
        key,
        lambda entries: write("compile_time", page(entries)),
        peers=(),
        prepare_s=60.0,
        seconds=None,
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--write"]:
        write_model(sys.argv[3], Path(sys.argv[2]))
    else:
        pages().main()
