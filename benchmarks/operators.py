"""`python -m benchmarks.operators`: single operators against ONNX Runtime.

Each operator is an ONNX model of its own. rutc, ONNX Runtime and a pass over as much memory take
turns on one core. Results go to benchmarks/results/operators.json and docs/operators_speed.md; a
run of some cases replaces theirs only.
"""

from collections.abc import Mapping, Sequence
from statistics import geometric_mean

import numpy as np

from benchmarks import layout
from benchmarks.operator_cases import CASES
from benchmarks.peak import run_traffic
from benchmarks.protocol import (
    OPERATOR_S,
    Compiled,
    Page,
    beside,
    write,
)
from benchmarks.store import Entry, case_of
from rutc.runtime import load
from rutc.verify.interleaved import Job

BY_NAME = {case.name: case for case in CASES}


def measure(name: str, seconds: float, peers: Sequence[str]) -> Entry:
    """Returns the entry of one case: medians on one core.

    `traffic_us` is the time of one pass over operands and results.
    """
    case = BY_NAME[name]
    inputs = case.inputs()

    def traffic(made: Compiled) -> Mapping[str, Job]:
        with load(made.library, threads=1) as session:
            written = sum(np.asarray(y).nbytes for y in session.run(None, inputs))
        return {"traffic": Job(run_traffic, ("native", case.read_bytes, written))}

    return beside(case.build(), inputs, 1, seconds, peers, traffic)


def page(entries: Sequence[Entry]) -> str:
    """Returns the Markdown page of the entries."""
    said = (
        "Written by `python -m benchmarks.operators`. Each operator is a model of its own, on one",
        "core, in turns with ONNX Runtime; times are of whole calls from Python, which take about",
        "4 us by themselves. Below 1 rutc is faster. The share of the bandwidth is that of a pass",
        "that reads as many bytes as the operands have and writes as many as the results, in turns",
        "with the two. What computes much stays below it, and what reads a part of its operands is",
        "beyond it.",
    )
    return layout.page("Single operators", said, entries, _table)


def _table(entries: Sequence[Entry]) -> list[str]:
    lines = []
    ratios = [float(str(entry["ratio"])) for entry in entries if "ratio" in entry]
    if ratios:
        lines += [
            f"Geometric mean of the {len(ratios)} ratios: "
            f"{geometric_mean(max(r, 0.01) for r in ratios):.2f}; "
            f"{sum(r > 1.1 for r in ratios)} are above 1.1.",
            "",
        ]
    titles = "operator | rutc us | ORT us | rutc/ORT | of bandwidth | commit: runs"
    return lines + layout.table(titles, entries, lambda e: [*layout.beside(e), _share(e)])


def _share(entry: Entry) -> str:
    return f"{100 * float(str(entry['traffic_us'])) / float(str(entry['rutc_us'])):.0f} %"


PAGE = Page(
    "operators",
    __doc__,
    list(BY_NAME),
    measure,
    case_of,
    lambda entries: write("operators_speed", page(entries)),
    loops=1,
    seconds=OPERATOR_S,
)

if __name__ == "__main__":
    PAGE.main()
