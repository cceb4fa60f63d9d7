"""`python -m benchmarks.zoo`: the zoo's models in rutc and its peers, interleaved.

Every model is compiled, checked against ONNX Runtime, and timed in alternation with the peers in
this one process, at each thread count. Results are kept in benchmarks/results/zoo.json, one entry
per model and thread count, and docs/benchmarks.md is written from them.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import geometric_mean

import onnx

from benchmarks.machine import ROOT, provenance
from benchmarks.peers import Inputs, Run, installed_peers, prepare_rutc
from rutc.compiler import Options, compile_model
from rutc.errors import RutcError, UserError
from rutc.models.zoo import Model, find, zoo
from rutc.runtime import ModelError
from rutc.verify.bench import interleave, latency
from rutc.verify.reference import Reference
from rutc.verify.verify import verify_model

RESULTS = ROOT / "benchmarks" / "results" / "zoo.json"
PAGE = ROOT / "docs" / "benchmarks.md"
Entry = dict[str, object]


def measure(
    model: Model, threads: Sequence[int], seconds: float, peers: Sequence[str]
) -> list[Entry]:
    """Returns one entry per thread count, or one that says why there is none."""
    try:
        inputs: Inputs = model.inputs(0)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            write_static(model, path)
            options = Options(shapes=dict(model.shapes))
            report = compile_model(path, Path(folder) / "model.so", options, None)
            compile_s = sum(report.seconds.values())
            return [
                {
                    "model": model.name,
                    "threads": count,
                    "compile_s": round(compile_s, 2),
                    **_timed(path, report.library, count, inputs, seconds, peers),
                    **asdict(provenance()),
                }
                for count in threads
            ]
    except (RutcError, ModelError) as error:
        failure = str(error).splitlines()[0]
        return [{"model": model.name, "threads": count, "error": failure} for count in threads]


def write_static(model: Model, path: Path) -> None:
    """Writes the model with the shapes of its inputs fixed, which every peer may then use.

    A model that ONNX Runtime does not load so (a branch for other sizes contradicts them) is
    written as it is.
    """
    proto = onnx.load(model.obtain())
    for value in proto.graph.input:
        if value.name in model.shapes:
            tensor = value.type.tensor_type
            tensor.shape.CopyFrom(onnx.TensorShapeProto())
            for extent in model.shapes[value.name]:
                tensor.shape.dim.add(dim_value=extent)
    path.write_bytes(proto.SerializeToString())
    try:
        Reference(path, 1, optimise=False)
    except UserError:
        path.write_bytes(model.obtain().read_bytes())


def _timed(
    model: Path, library: Path, threads: int, inputs: Inputs, seconds: float, peers: Sequence[str]
) -> Entry:
    agreed = verify_model(model, library, inputs, threads=threads).passed
    runs: dict[str, Run] = {"rutc": prepare_rutc(library, threads, inputs)}
    failed: dict[str, str] = {}
    for name, prepare in installed_peers().items():
        if name not in peers:
            continue
        try:
            runs[name] = prepare(model, threads, inputs)
            runs[name]()
        except Exception as error:  # Peers raise what they like: it counts as "does not run".
            runs.pop(name, None)
            failed[name] = (str(error).splitlines() or [type(error).__name__])[0][:200]
    times = {name: asdict(latency(found)) for name, found in interleave(runs, seconds).items()}
    return {"agrees": agreed, "times": times, "failed": failed}


def load_results() -> list[Entry]:
    """Returns the entries measured so far."""
    if not RESULTS.exists():
        return []
    entries = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert isinstance(entries, list)
    return entries


def store_results(entries: Sequence[Entry]) -> None:
    """Writes the entries in the zoo's order, and the page made of them."""
    order = {model.name: index for index, model in enumerate(zoo())}
    ordered = sorted(entries, key=lambda e: (order[str(e["model"])], int(str(e["threads"]))))
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(ordered), encoding="utf-8")


def page(entries: Sequence[Entry]) -> str:
    """Returns the Markdown page of the entries."""
    lines = [
        "# Benchmarks",
        "",
        "Written by `python -m benchmarks.zoo` from `benchmarks/results/zoo.json`. Median latency",
        "in ms of one run with batch 1, float32, measured in alternation in one process; (xN) is",
        "rutc's time over the peer's: below 1 is faster. `-`: the peer does not run the model.",
        "",
    ]
    for threads in sorted({int(str(entry["threads"])) for entry in entries}):
        lines += _table([entry for entry in entries if entry["threads"] == threads], threads)
    lines += ["## Measured on", ""]
    measured = sorted({_measured_on(entry) for entry in entries if "cpu" in entry})
    return "\n".join([*lines, *(f"- {line}" for line in measured)]) + "\n"


def _table(entries: Sequence[Entry], threads: int) -> list[str]:
    names = sorted({name for entry in entries for name in _medians(entry) if name != "rutc"})
    lines = [
        f"## {threads} thread{'s' if threads > 1 else ''}",
        "",
        "| model | rutc | " + " | ".join(names) + " | compiled in |",
        "|---|---|" + "---|" * (len(names) + 1),
    ]
    ratios: dict[str, list[float]] = {name: [] for name in names}
    for entry in entries:
        medians = _medians(entry)
        if not medians:
            empty = " | ".join("" for _ in names)
            lines.append(f"| {entry['model']} | {entry.get('error', '')} | {empty} | |")
            continue
        agrees = "" if entry["agrees"] else " (does NOT agree)"
        cells = []
        for name in names:
            if name not in medians:
                cells.append("-")
                continue
            ratio = medians["rutc"] / medians[name]
            if entry["agrees"]:
                ratios[name].append(ratio)
            cells.append(f"{_ms(medians[name])} (x{ratio:.2f})")
        rutc = f"{_ms(medians['rutc'])}{agrees}"
        row = [str(entry["model"]), rutc, *cells, f"{entry['compile_s']} s"]
        lines.append(f"| {' | '.join(row)} |")
    means = [
        f"x{geometric_mean(found):.2f} (n={len(found)})" if found else "-"
        for found in ratios.values()
    ]
    return [*lines, f"| **geometric mean** | | {' | '.join(means)} | |", ""]


def _medians(entry: Entry) -> dict[str, float]:
    times = entry.get("times", {})
    assert isinstance(times, dict)
    return {name: found["median_us"] for name, found in times.items()}


def _ms(microseconds: float) -> str:
    return f"{microseconds / 1000:.3g}"


def _measured_on(entry: Entry) -> str:
    versions = entry["versions"]
    assert isinstance(versions, dict)
    peers = ", ".join(f"{name} {version}" for name, version in versions.items())
    return (
        f"{entry['cpu']}, {entry['cpus']} CPUs; rutc at commit {entry['commit']}; {peers}; "
        f"{entry['date']}"
    )


def main() -> None:
    """Measures the models named on the command line, or all, and stores the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo", description=__doc__)
    parser.add_argument("models", nargs="*", help="names in the zoo; default: all")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=5.0, help="per model and thread count")
    parser.add_argument("--peers", nargs="+", default=list(installed_peers()))
    parser.add_argument("--page", action="store_true", help="only write the page again")
    options = parser.parse_args()
    entries = load_results()
    if options.page:
        store_results(entries)
        return
    chosen = [find(name) for name in options.models] or list(zoo())
    for model in chosen:
        new = measure(model, options.threads, options.seconds, options.peers)
        replaced = {(entry["model"], entry["threads"]) for entry in new}
        entries = [e for e in entries if (e["model"], e["threads"]) not in replaced] + new
        store_results(entries)
        for entry in new:
            medians = {name: _ms(us) for name, us in _medians(entry).items()}
            print(entry["model"], entry["threads"], medians or entry.get("error"), file=sys.stderr)


if __name__ == "__main__":
    main()
