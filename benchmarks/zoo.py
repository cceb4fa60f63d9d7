"""`python -m benchmarks.zoo`: the zoo's models in rutc and its peers, interleaved.

Every model is compiled, checked against ONNX Runtime, and timed in alternation with the peers and
with a loop of multiply-adds in this one process, at each thread count. Results are kept in
benchmarks/results/zoo.json, one entry per model and thread count; docs/benchmarks.md and the plots
in it are made from them. A run replaces what it measures and keeps the rest, so that slow compilers
may be run on some models only:

    python -m benchmarks.zoo --peers onnxruntime openvino
    python -m benchmarks.zoo mobilenet_v2 light_squeezenet --peers onnxruntime iree tvm
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import onnx

from benchmarks import store
from benchmarks.machine import ROOT, provenance
from benchmarks.peak import PeakLoop, measured_peaks
from benchmarks.peers import Inputs, Run, installed_peers, prepare_rutc
from benchmarks.plot import draw
from benchmarks.store import Entry
from benchmarks.zoo_page import milliseconds, page, times
from rutc.compiler import Options, compile_model
from rutc.errors import RutcError, UserError
from rutc.models.zoo import Model, find, zoo
from rutc.runtime import ModelError
from rutc.verify.bench import interleave, latency
from rutc.verify.reference import Reference
from rutc.verify.verify import verify_model

RESULTS = ROOT / "benchmarks" / "results" / "zoo.json"
PAGE = ROOT / "docs" / "benchmarks.md"


def measure(
    model: Model, threads: Sequence[int], seconds: float, peers: Sequence[str], peak: PeakLoop
) -> list[Entry]:
    """Returns one entry per thread count, or one that says why there is none."""
    try:
        inputs: Inputs = model.inputs(0)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{model.name}.onnx"
            write_static(model, path)
            options = Options(shapes=dict(model.shapes))
            report = compile_model(path, Path(folder) / "model.so", options, None)
            compile_s = sum(report.seconds.values())
            return [
                {
                    "model": model.name,
                    "threads": count,
                    "compile_s": round(compile_s, 2),
                    "flops": report.flops,
                    **_timed(path, report.library, count, inputs, seconds, peers, peak),
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
    model: Path,
    library: Path,
    threads: int,
    inputs: Inputs,
    seconds: float,
    peers: Sequence[str],
    peak: PeakLoop,
) -> Entry:
    """Returns medians and all that, and the seconds until each peer was ready to run."""
    agreed = verify_model(model, library, inputs, threads=threads).passed
    runs: dict[str, Run] = {"rutc": prepare_rutc(library, threads, inputs)}
    failed: dict[str, str] = {}
    ready_s: dict[str, float] = {}
    for name, prepare in installed_peers().items():
        if name not in peers:
            continue
        begin = time.perf_counter()
        try:
            runs[name] = prepare(model, threads, inputs)
            runs[name]()
        except Exception as error:  # Peers raise what they like: it counts as "does not run".
            runs.pop(name, None)
            failed[name] = (str(error).splitlines() or [type(error).__name__])[0][:200]
        else:
            ready_s[name] = round(time.perf_counter() - begin, 2)
    runs["peak"] = peak.run
    found = {name: latency(measured) for name, measured in interleave(runs, seconds).items()}
    gflops = peak.flops / found.pop("peak").median_us / 1e3
    return {
        "agrees": agreed,
        "peak_gflops": round(gflops * threads, 1),
        "times": {name: asdict(summary) for name, summary in found.items()},
        "ready_s": ready_s,
        "failed": failed,
    }


def with_others(entry: Entry, before: Entry) -> Entry:
    """Returns the entry with those peers of an earlier one that it lacks.

    Times of different runs do not compare, but their ratios to rutc's do: the earlier times are
    scaled by what rutc took in both.
    """
    now, then = times(entry), times(before)
    if "rutc" not in now or "rutc" not in then:
        return entry
    scale = now["rutc"]["median_us"] / then["rutc"]["median_us"]
    scaled = {
        name: {key: value if key == "runs" else value * scale for key, value in summary.items()}
        for name, summary in then.items()
        if name not in now
    }

    def joined(key: str) -> dict[str, object]:
        parts = [x for x in (before.get(key), entry.get(key)) if isinstance(x, dict)]
        return {name: value for part in parts for name, value in part.items()}

    all_times = {**now, **scaled}
    failed = {name: why for name, why in joined("failed").items() if name not in all_times}
    ready_s = {name: found for name, found in joined("ready_s").items() if name in all_times}
    versions = joined("versions")
    return {**entry, "times": all_times, "ready_s": ready_s, "failed": failed, "versions": versions}


def store_results(entries: Sequence[Entry]) -> None:
    """Writes the entries in the zoo's order, and the page made of them."""
    order = {model.name: index for index, model in enumerate(zoo())}
    ordered = sorted(entries, key=lambda e: (order[str(e["model"])], int(str(e["threads"]))))
    store.save(RESULTS, ordered)
    PAGE.write_text(page(ordered), encoding="utf-8")
    draw(ordered, PAGE.parent)


def main() -> None:
    """Measures the models named on the command line, or all, and stores the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo", description=__doc__)
    parser.add_argument("models", nargs="*", help="names in the zoo; default: all")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=5.0, help="per model and thread count")
    parser.add_argument("--peers", nargs="+", default=list(installed_peers()))
    parser.add_argument("--page", action="store_true", help="only write the page again")
    options = parser.parse_args()
    entries = store.load(RESULTS)
    if options.page:
        store_results(entries)
        return
    chosen = [find(name) for name in options.models] or list(zoo())
    peak = measured_peaks().registers
    kept = {(entry["model"], entry["threads"]): entry for entry in entries}
    for model in chosen:
        for entry in measure(model, options.threads, options.seconds, options.peers, peak):
            place = entry["model"], entry["threads"]
            known = kept.get(place)
            kept[place] = with_others(entry, known) if known is not None else entry
            found = {name: milliseconds(x["median_us"]) for name, x in times(entry).items()}
            print(*place, found or entry.get("error"), entry.get("failed"), file=sys.stderr)
        store_results(list(kept.values()))


if __name__ == "__main__":
    main()
