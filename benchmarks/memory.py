"""`python -m benchmarks.memory`: the peak memory of the zoo's models in rutc and ONNX Runtime.

Every model is loaded and run a few times in a process of its own for each peer. What is measured is
the largest resident size of that process, less what it had with Python, numpy and the inputs
loaded: code, weights, working memory, threads and outputs, whether mapped from a file or not.
Results are kept in benchmarks/results/memory.json, and docs/memory.md is written from them.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import geometric_mean

import numpy as np

from benchmarks import store
from benchmarks.machine import ROOT, provenance
from benchmarks.store import Entry

RESULTS = ROOT / "benchmarks" / "results" / "memory.json"
PAGE = ROOT / "docs" / "memory.md"
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


def measure(name: str, threads: Sequence[int]) -> list[Entry]:
    """Returns one entry per thread count."""
    from benchmarks.zoo import write_static
    from rutc.arguments import save_npz
    from rutc.compiler import Options, compile_model
    from rutc.models.zoo import find

    model = find(name)
    with tempfile.TemporaryDirectory() as folder:
        path, library = Path(folder) / "model.onnx", Path(folder) / "model.so"
        write_static(model, path)
        report = compile_model(path, library, Options(shapes=dict(model.shapes)))
        inputs = Path(folder) / "inputs.npz"
        save_npz(inputs, model.inputs(0))
        entries: list[Entry] = []
        for count in threads:
            found = {
                peer: _in_child(peer, file, inputs, count)
                for peer, file in (("rutc", library), ("onnxruntime", path))
            }
            entry: Entry = {
                "model": name,
                "threads": count,
                "model_bytes": path.stat().st_size,
                "weight_bytes": report.weight_bytes,
                "arena_bytes": report.arena_bytes,
                "memory": found,
            }
            entries.append(entry | asdict(provenance()))
    return entries


def _in_child(peer: str, model: Path, inputs: Path, threads: int) -> Mapping[str, int]:
    command = [sys.executable, "-m", "benchmarks.memory", "--child", peer, model, inputs]
    command += ["--threads", str(threads)]
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=True, cwd=ROOT
    )
    found: dict[str, int] = json.loads(done.stdout)
    return found


def store_results(entries: Sequence[Entry]) -> None:
    """Writes the entries in the zoo's order, and the page made of them."""
    from rutc.models.zoo import zoo

    order = {model.name: index for index, model in enumerate(zoo())}
    ordered = sorted(entries, key=lambda e: (int(str(e["threads"])), order[str(e["model"])]))
    store.save(RESULTS, ordered)
    PAGE.write_text(page(ordered), encoding="utf-8")


def page(entries: Sequence[Entry]) -> str:
    """Returns the Markdown page of the entries."""
    lines = [
        "# Memory",
        "",
        "Written by `python -m benchmarks.memory` from `benchmarks/results/memory.json`. The peak",
        "of the resident memory, in MiB, of a process that loads a model and runs it three times,",
        "less what Python, numpy and the inputs take; (xN) is rutc's share of ONNX Runtime's.",
        "Weights that are mapped from the library count like any others, although processes share",
        "them.",
        "",
    ]
    for threads in sorted({int(str(entry["threads"])) for entry in entries}):
        lines += [
            f"## {threads} thread{'s' if threads > 1 else ''}",
            "",
            "| model | ONNX file | rutc's weights | working memory | rutc | onnxruntime |",
            "|---|---|---|---|---|---|",
        ]
        ratios = []
        for entry in entries:
            if entry["threads"] != threads:
                continue
            ours, theirs = peaks(entry)
            ratios.append(ours / theirs)
            sizes = (entry["model_bytes"], entry["weight_bytes"], entry["arena_bytes"], ours)
            cells = [f"{int(str(size)) / MIB:.1f}" for size in sizes]
            cells.append(f"{theirs / MIB:.1f} (x{ratios[-1]:.2f})")
            lines.append(f"| {entry['model']} | {' | '.join(cells)} |")
        lines += [f"| **geometric mean** | | | | | x{geometric_mean(ratios):.2f} |", ""]
    lines += ["## Measured on", ""]
    measured = sorted(
        {
            f"{e['cpu']}, {e['cpus']} CPUs; rutc at commit {e['commit']}; {e['date']}"
            for e in entries
        }
    )
    return "\n".join([*lines, *(f"- {line}" for line in measured)]) + "\n"


def peaks(entry: Entry) -> tuple[int, int]:
    """Returns the peak bytes of rutc and of ONNX Runtime."""
    memory = entry["memory"]
    assert isinstance(memory, dict)
    return memory["rutc"]["peak_bytes"], memory["onnxruntime"]["peak_bytes"]


def main() -> None:
    """Measures the models named on the command line, or all, and stores the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__)
    parser.add_argument("models", nargs="*", help="names in the zoo; default: all")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--page", action="store_true", help="only write the page again")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        peer, model, inputs = options.models
        print(json.dumps(child(peer, model, Path(inputs), options.threads[0])))
        return
    entries = store.load(RESULTS)
    if options.page:
        store_results(entries)
        return
    from rutc.models.zoo import zoo

    for name in options.models or [model.name for model in zoo()]:
        new = measure(name, options.threads)
        kept = [e for e in entries if e["model"] != name or e["threads"] not in options.threads]
        entries = kept + new
        store_results(entries)
        for entry in new:
            ours, theirs = peaks(entry)
            text = f"{ours / MIB:.1f} of {theirs / MIB:.1f} MiB"
            print(name, entry["threads"], text, file=sys.stderr)


if __name__ == "__main__":
    main()
