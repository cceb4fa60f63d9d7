"""`python -m benchmarks.dynamic`: models of varying sizes, one artifact for all sizes of each.

Each model is compiled for its ranges of sizes. At every size the results, be they of one run or of
many that follow each other, are compared with ONNX Runtime's; then single runs are timed with one
thread, in turns with ONNX Runtime and with an artifact compiled for that size alone.
Results are kept in benchmarks/results/dynamic.json, and docs/dynamic.md is written from them.
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks import layout
from benchmarks.peers import peer_jobs
from benchmarks.protocol import Page, medians, timed, told, write
from benchmarks.store import Entry
from rutc.driver.compiler import Options, compile_model
from rutc.models.dynamic import Case, DynamicModel, dynamic_models
from rutc.models.stateful import Run
from rutc.runtime import InferenceSession, load
from rutc.verify.bench import room_for, rutc_job
from rutc.verify.judging.compare import OutputComparison, compare_outputs
from rutc.verify.judging.tolerance import Level
from rutc.verify.reference import Reference

CASES = {f"{m.name}: {case.label}": (m, case) for m in dynamic_models() for case in m.cases}


def ours(session: InferenceSession) -> Run:
    """Returns runs of an artifact."""
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(None, inputs), strict=True))


def referred(reference: Reference) -> Run:
    """Returns runs of ONNX Runtime."""
    return lambda inputs: {n: np.asarray(v) for n, v in reference.run(inputs).items()}


def measure(name: str, seconds: float, peers: Sequence[str]) -> Entry:
    """Returns the entry of one size of a model; those that are not to be timed have no times."""
    model, case = CASES[name]
    path = model.source.obtain()
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "dynamic.so"
        compile_model(path, library, Options(dims=model.dims))
        entry: Entry = {"model": model.name, "size": case.label, **agreement(case, path, library)}
        if not case.timed:
            return entry | told({})
        static = Path(folder) / "static.so"
        compile_model(path, static, Options(dims={**model.dims, **case.dims}))
        inputs = case.inputs()
        room = room_for(library, inputs)
        jobs = {
            "rutc": rutc_job(library, 1, inputs, room),
            "static": rutc_job(static, 1, inputs, room),
            **peer_jobs(peers, path, 1, inputs, room),
        }
        found = timed(jobs, seconds)
    times = {n: us / 1000 for n, us in medians(found).items()}
    times["dynamic"] = times.pop("rutc")
    return entry | {"bound": room is not None, "times": times} | told(found)


def agreement(case: Case, model: Path, library: Path) -> Entry:
    """Returns how one session's results agree with ONNX Runtime's."""
    theirs = referred(Reference(model, 1))
    with load(library, threads=1) as session:
        outputs = compare_outputs(case.results(ours(session)), case.results(theirs), Level.MODEL)
    worst = max(outputs, key=_share)
    return {
        "outputs": len(outputs),
        "difference": _share(worst),
        "allowed": worst.tolerance.scale,
        "agrees": all(output.passed for output in outputs),
    }


def _share(output: OutputComparison) -> float:
    return output.max_abs / (output.largest or 1.0)


def page(entries: Sequence[Entry]) -> str:
    """Returns the Markdown page of the entries."""
    said = (
        "Written by `python -m benchmarks.dynamic` from `benchmarks/results/dynamic.json`. Each",
        "model is compiled for its ranges; such an artifact serves every size below. Differences",
        "from ONNX Runtime are of the worst output, relative to its largest magnitude; the allowed",
        "ones are in `verify/judging/tolerance.py`, and whole numbers must be equal. Times are",
        "medians of a single run at 1 thread, in ms, taken in turns: of this artifact, of one",
        "compiled for that size alone, and of ONNX Runtime;",
        "(xN) is this artifact's time over theirs.",
    )
    return layout.page("Models of varying sizes", said, entries, _tables)


def _tables(entries: Sequence[Entry]) -> list[str]:
    agreeing = sum(bool(entry.get("agrees")) for entry in entries)
    lines = [f"**{agreeing} of {len(entries)} sizes agree.**", ""]
    for model in dynamic_models():
        own = [entry for entry in entries if key(entry).startswith(f"{model.name}: ")]
        if own:
            lines += _section(model, own)
    return lines[:-1]


def key(entry: Entry) -> str:
    """Returns the model and the size of an entry."""
    return str(entry.get("case", f"{entry.get('model')}: {entry.get('size')}"))


def _section(model: DynamicModel, entries: Sequence[Entry]) -> list[str]:
    titles = "size | largest difference | allowed | agrees | ms | static | ONNX Runtime "
    titles += "| commit: runs"
    return [
        f"### {model.name}",
        "",
        f"{model.summary.capitalize()}; {model.source.describe()}. Sizes: {_ranges(model)}.",
        "",
        *layout.table(titles, entries, _row, key),
        "",
    ]


def _row(entry: Entry) -> list[str]:
    return [
        str(entry["size"]) + (" (unbound)" if entry.get("bound") is False else ""),
        f"{entry['difference']:.2g}",
        f"{entry['allowed']:.2g}",
        "yes" if entry["agrees"] else "no",
        *_cells(entry.get("times")),
    ]


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
    others = (found.get("static"), found.get("onnxruntime"))
    return [f"{own:.3g}", *(f"{o:.3g} (x{own / o:.2f})" if o else "-" for o in others)]


PAGE = Page(
    "dynamic",
    __doc__,
    list(CASES),
    measure,
    key,
    lambda entries: write("dynamic", page(entries)),
    loops=1,
    prepare_s=6.0,
)

if __name__ == "__main__":
    PAGE.main()
