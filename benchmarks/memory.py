"""`python -m benchmarks.memory`: the peak memory of the zoo's models in rutc and ONNX Runtime.

Every model is loaded and run a few times in a process of its own for each peer. What is measured is
the largest resident size of that process, less what it had with Python, numpy and the inputs
loaded: code, weights, working memory, threads and outputs, whether mapped from a file or not.
Results are kept in benchmarks/results/memory.json, and docs/memory.md is written from them.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING

import numpy as np

from benchmarks import layout
from benchmarks.machine import ROOT, provenance
from benchmarks.store import Entry

if TYPE_CHECKING:
    from benchmarks.protocol import Page

RUNS = 3
MIB = float(1 << 20)


def resident() -> int:
    """Returns the bytes of this process that are in memory now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


def peak() -> int:
    """Returns the most bytes of this process that were in memory at once."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) << 10


def child(peer: str, model: str, inputs: Path, threads: int) -> dict[str, int]:
    """Returns what this process takes to load and run a model in one of the peers."""
    with np.load(inputs, allow_pickle=False) as stored:
        values = {name: stored[name] for name in stored.files}
    before = resident()
    if peer == "rutc":
        from rutc.runtime import load

        session = load(model, threads=threads)
        for _ in range(RUNS):
            session.run(None, values)
    else:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 4
        reference = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        for _ in range(RUNS):
            reference.run(None, values)
    return {"peak_bytes": peak() - before, "end_bytes": resident() - before}


def measure(name: str, seconds: float, peers: Sequence[str]) -> Entry:
    """Returns the entry of one model and thread count; how long it runs does not matter."""
    from benchmarks.zoo import CASES, write_static
    from rutc.driver.compiler import Options, compile_model
    from rutc.models.zoo import find
    from rutc.verify.feeding.npz import save_npz

    model, threads = find(CASES[name][0]), CASES[name][1]
    with tempfile.TemporaryDirectory() as folder:
        path, library = Path(folder) / "model.onnx", Path(folder) / "model.so"
        write_static(model, path)
        report = compile_model(path, library, Options(shapes=dict(model.shapes)))
        inputs = Path(folder) / "inputs.npz"
        save_npz(inputs, model.inputs(0))
        files = {"rutc": library, **dict.fromkeys(peers, path)}
        return {
            "model": model.name,
            "threads": threads,
            "model_bytes": path.stat().st_size,
            "weight_bytes": report.weight_bytes,
            "arena_bytes": report.arena_bytes,
            "memory": {
                peer: _in_child(peer, file, inputs, threads) for peer, file in files.items()
            },
            **asdict(provenance()),
        }


def _in_child(peer: str, model: Path, inputs: Path, threads: int) -> Mapping[str, int]:
    command = [sys.executable, "-m", "benchmarks.memory", "--child", peer, model, inputs, threads]
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=True, cwd=ROOT
    )
    found: dict[str, int] = json.loads(done.stdout)
    return found


def page(entries: Sequence[Entry]) -> str:
    """Returns the Markdown page of the entries."""
    said = (
        "Written by `python -m benchmarks.memory` from `benchmarks/results/memory.json`. The peak",
        "of the resident memory, in MiB, of a process that loads a model and runs it three times,",
        "less what Python, numpy and the inputs take; (xN) is rutc's share of ONNX Runtime's.",
        "Weights that are mapped from the library count like any others, although processes share",
        "them.",
    )
    return layout.page("Memory", said, entries, _tables, ())


def _tables(entries: Sequence[Entry]) -> list[str]:
    lines = []
    titles = "model | ONNX file | rutc's weights | working memory | rutc | onnxruntime | commit"
    for threads in sorted({int(str(entry["threads"])) for entry in entries if "memory" in entry}):
        own = [e for e in entries if e.get("threads") == threads and "memory" in e]
        mean = geometric_mean(ours / theirs for ours, theirs in map(peaks, own))
        lines += [
            f"### {threads} thread{'s' if threads > 1 else ''}",
            "",
            *layout.table(titles, own, _row),
            f"| **geometric mean** | | | | | x{mean:.2f} | |",
            "",
        ]
    lines += [f"- {entry['case']}: {entry['error']}" for entry in entries if "error" in entry]
    return lines


def _row(entry: Entry) -> list[str]:
    ours, theirs = peaks(entry)
    sizes = (entry["model_bytes"], entry["weight_bytes"], entry["arena_bytes"], ours)
    cells = (f"{int(str(size)) / MIB:.1f}" for size in sizes)
    return [str(entry["model"]), *cells, f"{theirs / MIB:.1f} (x{ours / theirs:.2f})"]


def peaks(entry: Entry) -> tuple[int, int]:
    """Returns the peak bytes of rutc and of ONNX Runtime."""
    memory = entry["memory"]
    assert isinstance(memory, dict)
    return memory["rutc"]["peak_bytes"], memory["onnxruntime"]["peak_bytes"]


def key(entry: Entry) -> str:
    """Returns the case of an entry."""
    if "case" in entry:
        return str(entry["case"])
    return f"{entry['model']}, {entry['threads']} thread{'s' if entry['threads'] != 1 else ''}"


def pages() -> Page:
    """Returns the page; its cases are the zoo's, whose modules a measured process goes without."""
    from benchmarks.protocol import Page, write
    from benchmarks.zoo import CASES

    return Page(
        "memory",
        __doc__,
        list(CASES),
        measure,
        key,
        lambda entries: write("memory", page(entries)),
        prepare_s=15.0,
        seconds=None,
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        peer, model, inputs, threads = sys.argv[2:]
        print(json.dumps(child(peer, model, Path(inputs), int(threads))))
    else:
        pages().main()
