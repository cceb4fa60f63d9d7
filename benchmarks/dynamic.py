"""`python -m benchmarks.dynamic`: models of varying sizes, one artifact for all sizes of each.

Each model is compiled once for its ranges of sizes. At every size the results, be they of one run
or of many that follow each other, are compared with ONNX Runtime's; then single runs are timed with
one thread, in alternation with ONNX Runtime and with an artifact compiled for that size alone.
Results are kept in benchmarks/results/dynamic.json, and docs/dynamic.md is written from them.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks import store
from benchmarks.machine import ROOT, provenance
from benchmarks.store import Entry
from rutc.compiler import Options, compile_model
from rutc.errors import RutcError
from rutc.models.dynamic import Case, DynamicModel, dynamic_models, find
from rutc.models.stateful import Run
from rutc.runtime import InferenceSession, ModelError, load
from rutc.verify.bench import interleave, latency
from rutc.verify.compare import OutputComparison, compare_outputs
from rutc.verify.reference import Reference
from rutc.verify.tolerance import Level

RESULTS = ROOT / "benchmarks" / "results" / "dynamic.json"
PAGE = ROOT / "docs" / "dynamic.md"


@dataclass(frozen=True)
class Artifacts:
    """A folder of compiled models; what is in it already is taken as it is."""

    folder: Path

    def library(self, model: DynamicModel, case: Case | None = None) -> Path:
        """Returns the artifact of all sizes, or of one case's size alone."""
        size = "" if case is None else "".join(f"-{extent}" for extent in case.dims.values())
        path = self.folder / f"{model.name}{size}.so"
        if not path.exists():
            dims = model.dims if case is None else {**model.dims, **case.dims}
            compile_model(model.source.obtain(), path, Options(dims=dims))
        return path


def compiled(session: InferenceSession) -> Run:
    """Returns runs of an artifact."""
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(None, inputs), strict=True))


def referred(reference: Reference) -> Run:
    """Returns runs of ONNX Runtime."""
    return lambda inputs: {n: np.asarray(v) for n, v in reference.run(inputs).items()}


def agreement(
    model: DynamicModel, library: Path, cases: Sequence[Case]
) -> list[tuple[OutputComparison, ...]]:
    """Returns how one session's results agree with ONNX Runtime's, for each case."""
    theirs = referred(Reference(model.source.obtain(), 1))
    with load(library, threads=1) as session:
        ours = compiled(session)
        return [
            compare_outputs(case.results(ours), case.results(theirs), Level.MODEL) for case in cases
        ]


def times(
    model: DynamicModel, artifacts: Artifacts, case: Case, seconds: float
) -> dict[str, float]:
    """Returns the median milliseconds of a single run: of all sizes, of this one, and the peer."""
    inputs = case.inputs()
    peer = Reference(model.source.obtain(), 1, optimise=True)
    with (
        load(artifacts.library(model), threads=1) as dynamic,
        load(artifacts.library(model, case), threads=1) as static,
    ):
        runs: dict[str, Callable[[], object]] = {
            "dynamic": partial(dynamic.run, None, inputs),
            "static": partial(static.run, None, inputs),
            "onnxruntime": partial(peer.run, inputs),
        }
        found = interleave(runs, seconds)
    return {name: latency(taken).median_us / 1000 for name, taken in found.items()}


def examine(model: DynamicModel, artifacts: Artifacts) -> list[Entry]:
    """Returns an entry for each size, without times, or one that says why there is none."""
    try:
        found = agreement(model, artifacts.library(model), model.cases)
    except (RutcError, ModelError) as error:
        return [{"model": model.name, "size": "", "problem": str(error).splitlines()[0]}]
    return [_entry(model, case, outputs) for case, outputs in zip(model.cases, found, strict=True)]


def _entry(model: DynamicModel, case: Case, outputs: Sequence[OutputComparison]) -> Entry:
    worst = max(outputs, key=_share)
    return {
        "model": model.name,
        "size": case.label,
        "outputs": len(outputs),
        "difference": _share(worst),
        "allowed": worst.tolerance.scale,
        "agrees": all(output.passed for output in outputs),
        **asdict(provenance()),
    }


def _share(output: OutputComparison) -> float:
    return output.max_abs / (output.largest or 1.0)


def store_results(entries: Sequence[Entry]) -> None:
    """Writes the entries in the order of the models, and the page made of them."""
    models = [model.name for model in dynamic_models()]
    ordered = sorted(entries, key=lambda e: models.index(str(e["model"])))
    store.save(RESULTS, ordered)
    PAGE.write_text(page(ordered), encoding="utf-8")


def page(entries: Sequence[Entry]) -> str:
    """Returns the Markdown page of the entries."""
    agreeing = sum(bool(entry.get("agrees")) for entry in entries)
    lines = [
        "# Models of varying sizes",
        "",
        "Written by `python -m benchmarks.dynamic` from `benchmarks/results/dynamic.json`. Each",
        "model is compiled once; that artifact serves every size below. Differences from ONNX",
        "Runtime are of the worst output, relative to its largest magnitude; the allowed ones are",
        "in `verify/tolerance.py`, and whole numbers must be equal. Times are medians of a single",
        "run at 1 thread, in ms, taken in alternation: of this artifact, of one compiled for that",
        "size alone, and of ONNX Runtime; (xN) is this artifact's time over theirs.",
        "",
        f"**{agreeing} of {len(entries)} sizes agree.**",
        "",
    ]
    for model in dynamic_models():
        own = [entry for entry in entries if entry["model"] == model.name]
        if own:
            lines += _section(model, own)
    measured = sorted({_measured_on(entry) for entry in entries if "cpu" in entry})
    return "\n".join([*lines, "## Measured on", "", *(f"- {line}" for line in measured)]) + "\n"


def _section(model: DynamicModel, entries: Sequence[Entry]) -> list[str]:
    lines = [
        f"## {model.name}",
        "",
        f"{model.summary.capitalize()}; {model.source.describe()}. Sizes: {_ranges(model)}.",
        "",
        "| size | largest difference | allowed | agrees | ms | static | ONNX Runtime |",
        "|---|---|---|---|---|---|---|",
    ]
    for entry in entries:
        if "problem" in entry:
            lines.append(f"| | | | no: {entry['problem']} | | | |")
            continue
        row = [
            str(entry["size"]),
            f"{entry['difference']:.2g}",
            f"{entry['allowed']:.2g}",
            "yes" if entry["agrees"] else "no",
            *_cells(entry.get("times")),
        ]
        lines.append(f"| {' | '.join(row)} |")
    return [*lines, ""]


def _ranges(model: DynamicModel) -> str:
    ranges = (
        (name, value if isinstance(value, tuple) else (value,))
        for name, value in model.dims.items()
    )
    return ", ".join(
        f"`{name}` = {'..'.join(map(str, r[:2]))}{f' in steps of {r[2]}' if len(r) > 2 else ''}"
        for name, r in ranges
    )


def _cells(found: object) -> list[str]:
    if not isinstance(found, Mapping):
        return ["", "", ""]
    own = found["dynamic"]
    others = (found["static"], found["onnxruntime"])
    return [f"{own:.3g}", *(f"{other:.3g} (x{own / other:.2f})" for other in others)]


def _measured_on(entry: Entry) -> str:
    versions = entry["versions"]
    assert isinstance(versions, dict)
    return (
        f"{entry['cpu']}, {entry['cpus']} CPUs; rutc at commit {entry['commit']}; "
        f"onnxruntime {versions['onnxruntime']}; {entry['date']}"
    )


def main() -> None:
    """Examines the models named on the command line, or all, and stores the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dynamic", description=__doc__)
    parser.add_argument("models", nargs="*", help="names of models; default: all")
    parser.add_argument("--seconds", type=float, default=3.0, help="to time each size; 0: none")
    parser.add_argument("--folder", type=Path, help="keep artifacts here, use those that are here")
    parser.add_argument("--times", action="store_true", help="only measure times again")
    options = parser.parse_args()
    entries = store.load(RESULTS)
    with tempfile.TemporaryDirectory() as temporary:
        artifacts = Artifacts(options.folder or Path(temporary))
        for model in [find(name) for name in options.models] or list(dynamic_models()):
            if not options.times:
                entries = [e for e in entries if e["model"] != model.name]
                entries += examine(model, artifacts)
            for entry in entries:
                case = next((c for c in model.cases if c.label == entry["size"]), None)
                if entry["model"] != model.name or case is None:
                    continue
                if case.timed and options.seconds > 0:
                    entry["times"] = times(model, artifacts, case, options.seconds)
                    entry |= asdict(provenance())
                print(model.name, case.label, entry.get("agrees"), entry.get("times"), flush=True)
            store_results(entries)
    if not all(entry.get("agrees") for entry in entries):
        sys.exit(1)


if __name__ == "__main__":
    main()
