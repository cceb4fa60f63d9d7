"""`python -m benchmarks.operators`: single operators against ONNX Runtime.

Each operator is an ONNX model of its own. rutc, ONNX Runtime and a pass over as much memory take
turns on one core. Results go to benchmarks/results/operators.json and docs/operators_speed.md; a
run of some cases replaces theirs only.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import geometric_mean

import onnx

from benchmarks import store
from benchmarks.cases import aligned
from benchmarks.machine import ROOT, provenance
from benchmarks.operator_cases import CASES, Case
from benchmarks.peak import Peaks, measured_peaks
from benchmarks.peers import Run
from benchmarks.store import Entry
from rutc.compiler import Options, compile_model
from rutc.errors import RutcError
from rutc.runtime import ModelError, load
from rutc.verify.bench import interleave, latency
from rutc.verify.reference import Reference
from rutc.verify.verify import verify_model

RESULTS = ROOT / "benchmarks" / "results" / "operators.json"
PAGE = ROOT / "docs" / "operators_speed.md"


def measure(case: Case, peaks: Peaks, seconds: float) -> Entry:
    """Returns the entry of one case: medians on one core.

    `traffic_us` is the time of one pass over operands and results.
    """
    entry: Entry = {"case": case.name}
    inputs = case.inputs()
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "operator.onnx"
            onnx.save(case.build(), path)
            report = compile_model(path, path.with_suffix(".so"), Options(), None)
            agrees = verify_model(path, report.library, inputs, threads=1).passed
            session = load(report.library, threads=1)
            values = session.run(None, inputs)
            ports = session.get_outputs()
            run: Run = partial(session.run, None, inputs)
            if all(isinstance(extent, int) for port in ports for extent in port.shape):
                room = {p.name: aligned(y) for p, y in zip(ports, values, strict=True)}
                run = partial(session.run_into, inputs, room)
            peer = partial(Reference(path, 1, optimise=True).run, inputs)
            traffic = peaks.traffic(case.read_bytes, sum(y.nbytes for y in values))
            times = interleave({"rutc": run, "onnxruntime": peer, "traffic": traffic}, seconds)
    except (RutcError, ModelError) as error:
        return {**entry, "error": str(error).splitlines()[0]}
    medians = {name: round(latency(found).median_us, 1) for name, found in times.items()}
    return {
        **entry,
        "agrees": agrees,
        **{f"{name}_us": us for name, us in medians.items()},
        "ratio": round(medians["rutc"] / medians["onnxruntime"], 2),
        **asdict(provenance()),
    }


def page(entries: Sequence[Entry]) -> str:
    """Returns the Markdown page of the entries."""
    measured = [entry for entry in entries if "ratio" in entry]
    ratios = [float(str(entry["ratio"])) for entry in measured]
    lines = [
        "# Single operators",
        "",
        "Written by `python -m benchmarks.operators`. Each operator is a model of its own, on one",
        "core, in turns with ONNX Runtime; times are of whole calls from Python, which take about",
        "4 us by themselves. Below 1 rutc is faster. The share of the bandwidth is that of a pass",
        "that reads as many bytes as the operands have and writes as many as the results, in turns",
        "with the two. What computes much stays below it, and what reads a part of its operands is",
        "beyond it.",
        "",
    ]
    if ratios:
        lines += [
            f"Geometric mean of the {len(ratios)} ratios: "
            f"{geometric_mean(max(r, 0.01) for r in ratios):.2f}; "
            f"{sum(r > 1.1 for r in ratios)} are above 1.1.",
            "",
        ]
    lines += ["| operator | rutc us | ORT us | rutc/ORT | of bandwidth |", "|---|---|---|---|---|"]
    for entry in entries:
        if "error" in entry:
            lines.append(f"| {entry['case']} | {entry['error']} | | | |")
            continue
        mark = "" if entry["agrees"] else " (does NOT agree)"
        share = float(str(entry["traffic_us"])) / float(str(entry["rutc_us"]))
        lines.append(
            f"| {entry['case']}{mark} | {entry['rutc_us']} | {entry['onnxruntime_us']} | "
            f"{entry['ratio']} | {100 * share:.0f} % |"
        )
    return "\n".join([*lines, "", "Measured on: " + provenance().line() + "."]) + "\n"


def main() -> None:
    """Measures every case and stores the results; a part of them replaces its own entries."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.operators", description=__doc__)
    parser.add_argument("only", nargs="*", help="parts of names of cases; default: all")
    parser.add_argument("--seconds", type=float, default=0.5, help="per case")
    parser.add_argument("--part", default="1/1", help="I/N: only the I-th of N parts of the cases")
    parser.add_argument("--dry", action="store_true", help="print, but store nothing")
    options = parser.parse_args()
    measured: list[Entry] = []
    chosen = [c for c in CASES if not options.only or any(p in c.name for p in options.only)]
    part, parts = map(int, options.part.split("/"))
    peaks = measured_peaks()
    for case in chosen[part - 1 :: parts]:
        entry = measure(case, peaks, options.seconds)
        measured.append(entry)
        facts = {k: entry[k] for k in entry if k.endswith(("_us", "ratio", "error", "agrees"))}
        print(case.name, facts, file=sys.stderr, flush=True)
    if options.dry:
        return
    entries = store.merge(RESULTS, measured, [case.name for case in CASES])
    PAGE.write_text(page(entries), encoding="utf-8")


if __name__ == "__main__":
    main()
