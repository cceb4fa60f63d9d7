"""`python -m benchmarks.agreement`: every model of the zoo beside float64 and ONNX Runtime.

Each model is compiled and compared on its realistic inputs, once with one thread and once with two;
the two must also be bit-equal to each other. Results are kept in benchmarks/results/agreement.json,
and docs/agreement.md is written from them.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks import layout
from benchmarks.machine import provenance
from benchmarks.protocol import Page, write
from benchmarks.store import Entry, case_of
from rutc.driver.compiler import Options, compile_model
from rutc.models.zoo import find, zoo
from rutc.runtime import load
from rutc.verify.judging.compare import OutputComparison, Value, compare_outputs
from rutc.verify.judging.tolerance import Level
from rutc.verify.verify import verify_model

THREADS = (1, 2)
SEED = 0


def measure(name: str, seconds: float, peers: Sequence[str]) -> Entry:
    """Returns how a model agrees with ONNX Runtime; how long it runs does not matter."""
    model = find(name)
    path, inputs = model.obtain(), model.inputs(SEED)
    with tempfile.TemporaryDirectory() as folder:
        options = Options(shapes=dict(model.shapes))
        library = compile_model(path, Path(folder) / "model.so", options, None).library
        outputs: list[OutputComparison] = []
        results: list[dict[str, Value]] = []
        for threads in THREADS:
            outputs += verify_model(path, library, inputs, threads=threads).outputs
            with load(library, threads=threads) as session:
                names = [output.name for output in session.get_outputs()]
                results.append(dict(zip(names, session.run(None, inputs), strict=True)))
    one, two = results
    worst = max(outputs, key=lambda output: output.share)
    return {
        "outputs": len(one),
        "difference": worst.error,
        "onnxruntime_difference": worst.reference_error,
        "share": worst.share,
        "equal": all(output.passed for output in compare_outputs(two, one, Level.EXACT)),
        "agrees": all(output.passed for output in outputs),
        "reasons": sorted({output.reason for output in outputs if output.reason}),
        **asdict(provenance()),
    }


def page(entries: Sequence[Entry]) -> str:
    """Returns the Markdown page of the entries."""
    said = (
        "Written by `python -m benchmarks.agreement` from `benchmarks/results/agreement.json`:",
        f"every model of the zoo, float32, on realistic inputs (seed {SEED}), with 1 and 2",
        "threads. Errors are distances from float64 of the worst output and thread count, relative",
        "to the output's largest magnitude; beside them is how near the worst slice is to its",
        "limit ([verification.md](verification.md)).",
    )
    return layout.page("Agreement with float64 and ONNX Runtime", said, entries, _table, ())


def _table(entries: Sequence[Entry]) -> list[str]:
    passed = sum(bool(entry.get("agrees") and entry.get("equal")) for entry in entries)
    titles = "model | outputs | error | ONNX Runtime's error | of the limit "
    titles += "| 1 and 2 threads bit-equal | agrees | commit"
    return [
        f"**{passed} of {len(entries)} models agree.**",
        "",
        *layout.table(titles, entries, _row),
    ]


def _row(entry: Entry) -> list[object]:
    reasons = entry["reasons"]
    assert isinstance(reasons, list)
    return [
        entry["case"],
        entry["outputs"],
        _number(entry["difference"]),
        _number(entry["onnxruntime_difference"]),
        f"{entry['share']:.0%}",
        "yes" if entry["equal"] else "no",
        "yes" if entry["agrees"] else "; ".join(["no", *reasons]),
    ]


def _number(error: object) -> str:
    return "" if error is None else f"{error:.2g}"


PAGE = Page(
    "agreement",
    __doc__,
    [model.name for model in zoo()],
    measure,
    case_of,
    lambda entries: write("agreement", page(entries)),
    prepare_s=20.0,
    seconds=None,
)

if __name__ == "__main__":
    PAGE.main()
