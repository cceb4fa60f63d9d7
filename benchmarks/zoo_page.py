"""The Markdown page of the zoo's measurements."""

from collections.abc import Mapping, Sequence
from statistics import geometric_mean

from benchmarks import layout
from benchmarks.store import Entry

Summary = dict[str, float]

FEW = 5
"""Geometric means of fewer ratios are not shown."""


def page(entries: Sequence[Entry]) -> str:
    """Returns the page of the entries."""
    said = (
        "Written by `python -m benchmarks.zoo` from `benchmarks/results/zoo.json`. Median latency",
        "in ms of one run with batch 1, float32; (xN) is rutc's time over the peer's: below 1 is",
        "faster. `-`: the peer does not run the model; empty: not measured. Nothing is tuned. The",
        "share of peak is that of the operations of the optimized graph in what a loop of",
        "multiply-adds on vectors does, measured beside. Two things make it more than 100 %: the",
        "tables by which filtering transforms inputs and results count whole, though most of their",
        "elements are 0 or 1 and cost nothing; and rutc multiplies parts of float32 in matrix",
        "registers of models marked `bf16 matrix registers`, which no such loop keeps up with.",
        *layout.LINES,
        "",
        *(
            f"![speed over ONNX Runtime's, {count(n)}](benchmarks-{n}.svg)"
            for n in _counts(entries)
        ),
        "",
        "The plots are of the machine that comes first.",
    )
    return layout.page("Benchmarks", said, entries, _tables)


def count(threads: int) -> str:
    """Returns a number of threads in words."""
    return f"{threads} thread{'s' if threads > 1 else ''}"


def _counts(entries: Sequence[Entry]) -> list[int]:
    return sorted({int(str(entry["threads"])) for entry in entries})


def _tables(entries: Sequence[Entry]) -> list[str]:
    counts = _counts(entries)
    lines: list[str] = []
    for threads in counts:
        lines += _table([e for e in entries if e["threads"] == threads], threads)
    return [*lines, *_ready([e for e in entries if e["threads"] == counts[0]])][:-1]


def _table(entries: Sequence[Entry], threads: int) -> list[str]:
    names = peers(entries)
    lines = [
        f"### {count(threads)}",
        "",
        f"| model | rutc | of peak | {' | '.join(names)} | commit: runs |",
        "|---|---|---|---|" + "---|" * len(names),
    ]
    for entry in entries:
        found = times(entry)
        if not found:
            why = f"| {entry['model']} | {entry.get('error', '')} | |" + " |" * len(names)
            lines.append(f"{why} {layout.origin(entry)} |")
            continue
        cells = [_cell(entry, name) for name in names]
        rutc = f"{milliseconds(found['rutc']['median_us'])}"
        name = f"{entry['model']}{layout.marks(entry)}"
        lines.append(f"| {' | '.join([name, rutc, _share(entry), *cells, layout.origin(entry)])} |")
    means = []
    for name in names:
        ratios = ratios_to(entries, name)
        shown = f"x{geometric_mean(ratios):.2f} (n={len(ratios)})" if len(ratios) >= FEW else ""
        means.append(shown)
    return [*lines, f"| **geometric mean** | | | {' | '.join(means)} | |", ""]


def ratios_to(entries: Sequence[Entry], peer: str) -> list[float]:
    """Returns rutc's time over the peer's, of all models that both run and that agree."""
    return [r for entry in entries if (r := ratio(entry, peer)) is not None]


def _cell(entry: Entry, name: str) -> str:
    found = times(entry)
    if name not in found:
        failed = entry.get("failed")
        return "-" if isinstance(failed, dict) and name in failed else ""
    median = found[name]["median_us"]
    return f"{milliseconds(median)} (x{found['rutc']['median_us'] / median:.2f})"


def _share(entry: Entry) -> str:
    """Returns the share of peak in percent."""
    flops, peak = entry.get("flops"), entry.get("peak_gflops")
    if not isinstance(flops, int) or not isinstance(peak, float):
        return ""
    return f"{100 * flops / times(entry)['rutc']['median_us'] / 1e3 / peak:.0f} %"


def _ready(entries: Sequence[Entry]) -> list[str]:
    """Returns the table of seconds from an ONNX file to the first result."""
    names = peers(entries)
    lines = [
        "### Time to compile",
        "",
        "Seconds from the ONNX file to a first result, for those peers that keep no result of",
        "compilation; rutc's is the time to compile the library, which then loads within 1 ms.",
        "rutc keeps compiled kernels in a cache, which was not emptied before.",
        "",
        f"| model | rutc | {' | '.join(names)} |",
        "|---|---|" + "---|" * len(names),
    ]
    for entry in entries:
        ready = entry.get("ready_s")
        if not isinstance(ready, dict):
            continue
        cells = [f"{ready[name]:.2f}" if name in ready else "" for name in names]
        lines.append(f"| {entry['model']} | {entry['compile_s']} | {' | '.join(cells)} |")
    return [*lines, ""]


def peers(entries: Sequence[Entry]) -> list[str]:
    """Returns the names of the peers that some entry has, ONNX Runtime first."""
    names = {name for entry in entries for name in times(entry) if name != "rutc"}
    return sorted(names, key=lambda name: (name != "onnxruntime", name != "openvino", name))


def times(entry: Mapping[str, object]) -> dict[str, Summary]:
    """Returns the summary of each one's times; none where nothing was measured."""
    found = entry.get("times", {})
    assert isinstance(found, dict)
    return found


def ratio(entry: Entry, peer: str) -> float | None:
    """Returns rutc's time over the peer's, of models whose results agree."""
    found = times(entry)
    if peer not in found or "rutc" not in found or not entry["agrees"]:
        return None
    return found["rutc"]["median_us"] / found[peer]["median_us"]


def milliseconds(microseconds: float) -> str:
    """Returns the time in ms with three digits."""
    return f"{microseconds / 1000:.3g}"
