"""`python -m benchmarks.kernels`: single operators, as a share of what the machine can do.

Each operator is an ONNX model of its own. rutc, its peers, two loops of multiply-adds and a pass
over as much memory take turns on one core, so that shares are of the machine at that moment.
Results go to benchmarks/results/kernels.json and docs/kernels.md; a run of some cases replaces
theirs only.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import geometric_mean

import numpy as np
import onnx

from benchmarks import store
from benchmarks.cases import CASES, MORE, Case, aligned
from benchmarks.machine import ROOT, provenance
from benchmarks.native import native_calls
from benchmarks.peak import Peaks, measured_peaks
from benchmarks.peers import Run, installed_peers
from benchmarks.store import Entry
from rutc.compiler import Options, compile_model
from rutc.errors import RutcError
from rutc.runtime import ModelError, load
from rutc.verify.bench import interleave, latency
from rutc.verify.verify import verify_model

RESULTS = ROOT / "benchmarks" / "results" / "kernels.json"
PAGE = ROOT / "docs" / "kernels.md"
SHORT = {"onnxruntime": "ORT", "openvino": "OV", "iree": "IREE", "tvm": "TVM"}
"""The peers that compile an ONNX file, and what the page's columns call them."""
FAST_FLOPS_PER_US = 2e5
"""A core's rate, roughly: how many calls to time together is told from it."""
TIMED_US = 100.0
"""What is timed together takes about so long: clocks and the turns of the runs cost little then."""
NARROW = "x86-64-v3"
"""The target of the second table: vectors of 256 bits."""


def measure(case: Case, target: str, peaks: Peaks, seconds: float, peers: Sequence[str]) -> Entry:
    """Returns the entry of one case, on one core.

    `bound_us` is the least time that the machine takes, by its peak or by a pass over memory;
    shares are of that time, and `native_us` is that of a call from C.
    """
    entry: Entry = {"case": case.name, "target": target, "flops": case.flops}
    inputs = case.values()
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "kernel.onnx"
            onnx.save(case.build(), path)
            options = Options(target=target, exact_algorithms=case.exact)
            report = compile_model(path, path.with_suffix(".so"), options, None)
            agrees = verify_model(path, report.library, inputs, threads=1).passed
            session = load(report.library, threads=1)
            (output,) = session.get_outputs()
            y = aligned(np.empty([int(extent) for extent in output.shape], np.float32))
            runs: dict[str, Run] = {"rutc": partial(session.run_into, inputs, {output.name: y})}
            runs |= {name: installed_peers()[name](path, 1, inputs) for name in peers}
            runs["peak"] = peaks.registers.run
            runs["fed"] = peaks.fed.run
            count = _calls(case)
            runs["from C"] = native_calls(report.library, [(inputs, {output.name: y})], count)
            runs["traffic"] = peaks.traffic(case.read_bytes, case.written_bytes, count=count)
            times = interleave(runs, seconds)
    except (RutcError, ModelError) as error:
        return {**entry, "error": str(error).splitlines()[0]}
    medians = {name: latency(found).median_us for name, found in times.items()}
    peak = peaks.registers.flops / medians.pop("peak") / 1e3
    fed = peaks.fed.flops / medians.pop("fed") / 1e3
    traffic_us = medians.pop("traffic") / count
    native_us = medians.pop("from C") / count
    compute_us = case.flops / peak / 1e3
    return {
        **entry,
        "agrees": agrees,
        "peak_gflops": round(peak, 1),
        "fed_gflops": round(fed, 1),
        "traffic_us": round(traffic_us, 1),
        "bound": "compute" if compute_us >= traffic_us else "memory",
        "bound_us": round(max(compute_us, traffic_us), 1),
        "us": {name: round(median, 1) for name, median in medians.items()},
        "native_us": round(native_us, 2),
        **asdict(provenance()),
    }


def _calls(case: Case) -> int:
    """How many calls from C are timed at once: of small operators, as many as take a while."""
    least_us = max(case.flops / FAST_FLOPS_PER_US, (case.read_bytes + case.written_bytes) / 1e5)
    return max(1, int(TIMED_US / least_us))


def times_of(entry: Entry) -> dict[str, float]:
    """Returns the median microseconds of rutc and the peers."""
    times = entry["us"]
    assert isinstance(times, dict)
    return times


def _share(entry: Entry, name: str) -> float:
    """The bound's time over that of rutc, called from C, or of a peer."""
    took = entry.get("native_us") if name == "rutc" else None
    return float(str(entry["bound_us"])) / float(str(took or times_of(entry)[name]))


def page(entries: Sequence[Entry]) -> str:
    """Returns the Markdown page of the entries."""
    lines = [
        "# Kernels",
        "",
        "Written by `python -m benchmarks.kernels`. Single float32 operators on one core, times of",
        "whole calls from Python, all measured in alternation. The *bound* is the least time that",
        "the machine takes: by its peak of fused multiply-adds (a loop of nothing else), or, where",
        "that takes longer, by one pass over the operator's inputs, weights and output, which lie",
        "in the cache that holds them (`docs/bandwidth.md` has those that come from memory).",
        "Shares are of the bound; rutc's is of calls from C, as Python takes microseconds a call",
        "that no kernel can save. The work is that of the operator's definition: where rutc",
        "computes the same result with fewer multiplications, its share may exceed 100 %; rows",
        "marked `direct` are",
        "compiled with `--exact-algorithms` and do all of them.",
        "",
        "The peak is reached by a loop that loads nothing. Where a register tile's operands come",
        "from the first cache, as every product's must, the same processor lowers its clock: the",
        "*fed* peak is that of such a loop. Shares are of the higher one.",
        "",
    ]
    targets = list(dict.fromkeys(str(entry["target"]) for entry in entries))
    for target in targets:
        chosen = [entry for entry in entries if entry["target"] == target]
        names = [c.name for c in CASES]
        lines += _section(
            f"{target}: products, attention, convolutions of ResNet-50 and MobileNetV2",
            [entry for entry in chosen if entry["case"] in names],
        )
        lines += _section(
            f"{target}: more shapes", [entry for entry in chosen if entry["case"] not in names]
        )
    return "\n".join([*lines, "Measured on: " + provenance().line() + "."]) + "\n"


def _section(title: str, entries: Sequence[Entry]) -> list[str]:
    if not entries:
        return []
    measured = [entry for entry in entries if "us" in entry]
    peers = [n for n in SHORT if any(n in times_of(entry) for entry in measured)]
    titles = " from C us |" + "".join(f" {SHORT[n]} us |" for n in peers)
    titles += " bound | rutc of bound |"
    titles += "".join(f" {SHORT[n]} of bound |" for n in peers)
    lines = [
        f"## {title}",
        "",
        f"| operator | rutc us | GFLOP/s |{titles}",
        "|---|---|---|" + "---|" * (2 * len(peers) + 3),
    ]
    for entry in entries:
        if "error" in entry:
            lines.append(f"| {entry['case']} | {entry['error']} |" + " |" * (2 * len(peers) + 4))
            continue
        us = times_of(entry)
        native = entry.get("native_us", us["rutc"])
        rate = float(str(entry["flops"])) / float(str(native)) / 1e3
        mark = "" if entry["agrees"] else " (does NOT agree)"
        others = "".join(f" {us.get(n, '')} |" for n in peers)
        shares = "".join(
            f" {100 * _share(entry, n):.0f} % |" if n in us else " |" for n in ("rutc", *peers)
        )
        lines.append(
            f"| {entry['case']}{mark} | {us['rutc']} | {rate:.1f} | {native} |{others}"
            f" {entry['bound']} |"
            f"{shares}"
        )
    return [*lines, "", *_summary(measured, peers), ""]


def _summary(entries: Sequence[Entry], peers: Sequence[str]) -> list[str]:
    if not entries:
        return []
    lines = []
    for bound in ("compute", "memory"):
        own = [entry for entry in entries if entry["bound"] == bound]
        if own:
            shares = {n: [_share(e, n) for e in own if n in times_of(e)] for n in ("rutc", *peers)}
            means = ", ".join(
                f"{SHORT.get(n, n)} {100 * geometric_mean(found):.0f} %"
                for n, found in shares.items()
                if found
            )
            lines.append(f"- Bound by {bound}: {len(own)}; geometric mean of shares: {means}.")
    slower = [
        f"{entry['case']} ({ratio:.2f})"
        for entry in entries
        if peers and (ratio := _slowdown(entry, peers)) > 1.1
    ]
    if peers:
        lines.append(
            "- Slower than the fastest peer by more than 10 % (time over its time): "
            + (", ".join(slower) or "none")
            + "."
        )
    for name, key in (("peak", "peak_gflops"), ("fed peak", "fed_gflops")):
        rates = sorted(float(str(entry[key])) for entry in entries)
        lines.append(f"- Median {name}: {rates[len(rates) // 2]:.0f} GFLOP/s.")
    return lines


def _slowdown(entry: Entry, peers: Sequence[str]) -> float:
    us = times_of(entry)
    return us["rutc"] / min(us[n] for n in peers if n in us)


def store_results(entries: Sequence[Entry]) -> None:
    """Merges the entries with those measured before, and writes the page."""
    known = [e for e in store.load(RESULTS) if "target" in e]
    merged = {(e["target"], e["case"]): e for e in (*known, *entries)}
    order = {case.name: number for number, case in enumerate((*CASES, *MORE))}
    kept = [e for (_, name), e in merged.items() if name in order]
    kept.sort(key=lambda e: (str(e["target"]) == NARROW, order[str(e["case"])]))
    store.save(RESULTS, kept)
    PAGE.write_text(page(kept), encoding="utf-8")


def main() -> None:
    """Measures every case and stores the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels", description=__doc__)
    parser.add_argument("only", nargs="*", help="parts of names of cases; default: all")
    parser.add_argument("--seconds", type=float, default=1.0, help="per case")
    parser.add_argument(
        "--avx2", action="store_true", help="compile for AVX2, and measure against its peak"
    )
    parser.add_argument(
        "--peers",
        nargs="*",
        choices=[name for name in installed_peers() if name in SHORT],
        default=["onnxruntime", "openvino"],
        help="the peers to measure; default: %(default)s",
    )
    parser.add_argument("--part", default="1/1", help="I/N: only the I-th of N parts of the cases")
    parser.add_argument("--dry", action="store_true", help="print, but store nothing")
    options = parser.parse_args()
    target = NARROW if options.avx2 else "native"
    # The peers have no such switch: they would be measured with wider vectors.
    peers = [] if options.avx2 else options.peers
    peaks = measured_peaks(NARROW if options.avx2 else "native")
    part, parts = map(int, options.part.split("/"))
    chosen = [
        case
        for case in (*CASES, *MORE)
        if not options.only or any(name in case.name for name in options.only)
    ]
    entries = []
    for case in chosen[part - 1 :: parts]:
        entry = measure(case, target, peaks, options.seconds, peers)
        entries.append(entry)
        shares = {n: round(_share(entry, n), 2) for n in ("rutc", *peers)} if "us" in entry else {}
        facts = {key: entry.get(key) for key in ("us", "bound", "peak_gflops", "error", "agrees")}
        print(case.name, shares, facts, file=sys.stderr)
        if not options.dry:
            store_results(entries)


if __name__ == "__main__":
    main()
