"""`python -m benchmarks.kernels`: single operators, as a share of what the machine can do.

Each operator is an ONNX model of its own, compiled for this machine and for vectors of 256 bits.
rutc, its peers, two loops of multiply-adds and a pass over as much memory take turns on one core,
so that shares are of the machine at that moment. Results go to benchmarks/results/kernels.json and
docs/kernels.md; a run of some cases replaces theirs only.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean

import onnx

from benchmarks import layout
from benchmarks.cases import CASES, MORE, Case
from benchmarks.native import run_calls
from benchmarks.peak import measured_peaks, run_fed, run_peak, run_traffic
from benchmarks.peers import peer_jobs
from benchmarks.protocol import OPERATOR_S, Page, compiled, medians, timed, told, write
from benchmarks.store import Entry
from rutc.driver.compiler import Options
from rutc.errors import UserError
from rutc.verify.bench import rutc_job
from rutc.verify.interleaved import Job

SHORT = {"onnxruntime": "ORT", "openvino": "OV", "iree": "IREE", "tvm": "TVM"}
"""The peers that compile an ONNX file, and what the page's columns call them."""
FAST_FLOPS_PER_US = 2e5
"""A core's rate, roughly: how many calls to time together is told from it."""
TIMED_US = 100.0
"""What is timed together takes about so long: clocks and the turns of the runs cost little then."""
NARROW = "x86-64-v3"
"""The target of the second table: vectors of 256 bits."""
WITH_NARROW = f", {NARROW}"


BY_NAME = {case.name: case for case in (*CASES, *MORE)}


def measure(target: str, name: str, seconds: float, peers: Sequence[str]) -> Entry:
    """Returns the entry of one case, on one core.

    `bound_us` is the least time that the machine takes, by its peak or by a pass over memory;
    shares are of that time, and `native_us` is that of a call from C.
    """
    case = BY_NAME[name.removesuffix(WITH_NARROW)]
    inputs = case.values()
    peaks = measured_peaks(target)
    count = _calls(case)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.onnx"
        onnx.save(case.build(), path)
        made = compiled(path, inputs, Options(target=target, exact_algorithms=case.exact))
        if made.room is None:
            raise UserError("the outputs have no fixed place, which calls from C need")
        jobs = {
            "rutc": rutc_job(made.library, 1, inputs, made.room),
            **peer_jobs(peers, path, 1, inputs, made.room),
            "peak": Job(run_peak, (target,)),
            "fed": Job(run_fed, (target,)),
            "from C": Job(run_calls, (made.library, inputs, made.room, 1, count)),
            "traffic": Job(run_traffic, (target, case.read_bytes, case.written_bytes, 1, count)),
        }
        found = timed(jobs, seconds)
    us = medians(found)
    peak = peaks.registers.flops / us.pop("peak") / 1e3
    fed = peaks.fed.flops / us.pop("fed") / 1e3
    traffic_us = us.pop("traffic") / count
    native_us = us.pop("from C") / count
    compute_us = case.flops / peak / 1e3
    return {
        "target": target,
        "flops": case.flops,
        **made.facts,
        "peak_gflops": round(peak, 1),
        "fed_gflops": round(fed, 1),
        "traffic_us": round(traffic_us, 1),
        "bound_by": "compute" if compute_us >= traffic_us else "memory",
        "bound_us": round(max(compute_us, traffic_us), 1),
        "us": {name: round(median, 1) for name, median in us.items()},
        "native_us": round(native_us, 2),
        **told(found),
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
    said = (
        "Written by `python -m benchmarks.kernels`. Single float32 operators on one core, times of",
        "whole calls from Python, all measured in alternation. The *bound* is the least time that",
        "the machine takes: by its peak of fused multiply-adds (a loop of nothing else), or, where",
        "that takes longer, by one pass over the operator's inputs, weights and output, which lie",
        "in the cache that holds them (`docs/bandwidth.md` has those that come from memory).",
        "Shares are of the bound; rutc's is of calls from C, as Python takes microseconds a call",
        "that no kernel can save. The work is that of the operator's definition: where rutc",
        "computes the same result with fewer multiplications, its share may exceed 100 %; rows",
        "marked `direct` are compiled with `--exact-algorithms` and do all of them. Rows marked",
        "`bf16 matrix registers` multiply parts of float32 there, several times as fast as any",
        "loop of multiply-adds on vectors, which the peak is.",
        "",
        "The peak is reached by a loop that loads nothing. Where a register tile's operands come",
        "from the first cache, as every product's must, the same processor lowers its clock: the",
        "*fed* peak is that of such a loop. Shares are of the higher one. Tables of",
        f"`{NARROW}` are code for vectors of 256 bits on the same machine, beside loops compiled",
        "likewise, and no measurement of a processor with AVX2 only.",
        "",
    )
    return layout.page("Kernels", said, entries, _tables)


def _tables(entries: Sequence[Entry]) -> list[str]:
    lines: list[str] = []
    names = {case.name for case in CASES}
    for target in dict.fromkeys(str(entry["target"]) for entry in entries):
        chosen = [entry for entry in entries if entry["target"] == target]
        first = [entry for entry in chosen if _case(entry) in names]
        title = f"{target}: products, attention, convolutions of ResNet-50 and MobileNetV2"
        lines += _section(title, first)
        rest = [entry for entry in chosen if _case(entry) not in names]
        lines += _section(f"{target}: more shapes", rest)
    return lines


def _case(entry: Entry) -> str:
    return str(entry["case"]).removesuffix(WITH_NARROW)


def _section(title: str, entries: Sequence[Entry]) -> list[str]:
    if not entries:
        return []
    measured = [entry for entry in entries if "us" in entry]
    peers = [n for n in SHORT if any(n in times_of(entry) for entry in measured)]
    compared = "".join(f" | {SHORT[n]} us" for n in peers)
    shares = "".join(f" | {SHORT[n]} of bound" for n in peers)
    titles = f"operator | rutc us | GFLOP/s | from C us{compared} | bound | rutc of bound{shares}"
    lines = layout.table(
        f"{titles} | commit: runs", entries, lambda entry: _row(entry, peers), _case
    )
    return [f"### {title}", "", *lines, "", *_summary(measured, peers), ""]


def _row(entry: Entry, peers: Sequence[str]) -> list[object]:
    us = times_of(entry)
    native = entry.get("native_us", us["rutc"])
    return [
        _case(entry) + layout.marks(entry),
        us["rutc"],
        f"{float(str(entry['flops'])) / float(str(native)) / 1e3:.1f}",
        native,
        *(us.get(n, "") for n in peers),
        entry["bound_by"],
        *(f"{100 * _share(entry, n):.0f} %" if n in us else "" for n in ("rutc", *peers)),
    ]


def _summary(entries: Sequence[Entry], peers: Sequence[str]) -> list[str]:
    if not entries:
        return []
    lines = []
    for bound in ("compute", "memory"):
        own = [entry for entry in entries if str(entry["bound_by"]) == bound]
        if own:
            shares = {n: [_share(e, n) for e in own if n in times_of(e)] for n in ("rutc", *peers)}
            means = ", ".join(
                f"{SHORT.get(n, n)} {100 * geometric_mean(found):.0f} %"
                for n, found in shares.items()
                if found
            )
            lines.append(f"- Bound by {bound}: {len(own)}; geometric mean of shares: {means}.")
    slower = [
        f"{_case(entry)} ({ratio:.2f})"
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


def key(entry: Entry) -> str:
    """Returns the case of an entry."""
    return _case(entry) + (WITH_NARROW if entry.get("target") == NARROW else "")


PAGE = Page(
    "kernels",
    __doc__,
    [*BY_NAME, *(name + WITH_NARROW for name in BY_NAME)],
    lambda name, seconds, peers: (
        measure(NARROW, name, seconds, ())
        if name.endswith(WITH_NARROW)
        else measure("native", name, seconds, peers)
    ),
    key,
    lambda entries: write("kernels", page(entries)),
    peers=("onnxruntime", "openvino"),
    loops=4,
    seconds=OPERATOR_S,
)

if __name__ == "__main__":
    PAGE.main()
