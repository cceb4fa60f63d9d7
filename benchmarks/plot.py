"""Plots of the zoo's measurements, drawn from the results alone."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean

from benchmarks.store import Entry
from benchmarks.zoo_page import peers, times

REFERENCE = "onnxruntime"
INCHES_PER_MODEL = 0.24
COLOURS = {
    "rutc": "#c2410c",
    "openvino": "#2563eb",
    "iree": "#15803d",
    "tvm": "#7e22ce",
    "torch.compile": "#57534e",
}
MARKS = {"rutc": "o", "openvino": "s", "iree": "^", "tvm": "v", "torch.compile": "D"}


def speeds(entries: Sequence[Entry]) -> dict[str, list[tuple[str, float]]]:
    """Returns, for rutc and each peer, (model, speed over ONNX Runtime's) of what it runs."""
    found: dict[str, list[tuple[str, float]]] = {}
    for name in ("rutc", *(peer for peer in peers(entries) if peer != REFERENCE)):
        for entry in entries:
            measured = times(entry)
            if name in measured and REFERENCE in measured:
                speed = measured[REFERENCE]["median_us"] / measured[name]["median_us"]
                found.setdefault(name, []).append((str(entry["model"]), speed))
    return found


def draw(entries: Sequence[Entry], folder: Path) -> list[Path]:
    """Writes `benchmarks-N.svg` for each thread count N; nothing where matplotlib is missing.

    A row per model, a mark per peer; the fastest models of rutc come first.
    """
    if importlib.util.find_spec("matplotlib") is None:
        return []
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    written = []
    for threads in sorted({int(str(entry["threads"])) for entry in entries}):
        found = speeds([entry for entry in entries if entry["threads"] == threads])
        if not found.get("rutc"):
            continue
        order = [model for model, _ in sorted(found["rutc"], key=lambda pair: pair[1])]
        with mpl.rc_context({"svg.hashsalt": "rutc", "svg.fonttype": "none", "font.size": 9}):
            figure, axes = plt.subplots(
                figsize=(8, 1.4 + INCHES_PER_MODEL * len(order)), layout="constrained"
            )
            axes.hlines(range(len(order)), 0.02, 8, color="#e7e5e4", linewidth=0.6, zorder=0)
            for name, points in found.items():
                mean = geometric_mean(speed for _, speed in points)
                axes.scatter(
                    [speed for _, speed in points],
                    [order.index(model) for model, _ in points],
                    s=34 if name == "rutc" else 22,
                    marker=MARKS.get(name, "o"),
                    color=COLOURS.get(name),
                    label=f"{name}: {mean:.2f} (n={len(points)})",
                    zorder=3 if name == "rutc" else 2,
                )
            axes.axvline(1, color="#1c1917", linewidth=1)
            axes.set_xscale("log")
            lowest = min(speed for points in found.values() for _, speed in points)
            axes.set_xlim(min(0.4, lowest / 1.2), 8)
            ticks = [t for t in (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 4, 8) if t >= lowest / 1.2]
            axes.set_xticks(ticks, [f"{t:g}x" for t in ticks])
            axes.minorticks_off()
            axes.set_yticks(range(len(order)), order)
            axes.set_ylim(-0.8, len(order) - 0.2)
            count = f"{threads} thread{'s' if threads > 1 else ''}"
            axes.set_title(f"Speed over ONNX Runtime's, {count}: right is faster", loc="left")
            axes.legend(title="geometric mean", loc="lower right", framealpha=0.95)
            for side in ("top", "right"):
                axes.spines[side].set_visible(False)
            path = folder / f"benchmarks-{threads}.svg"
            figure.savefig(path, metadata={"Date": None, "Creator": None})
            plt.close(figure)
        written.append(path)
    return written
