"""`python -m benchmarks.agreement`: every model of the zoo beside float64 and ONNX Runtime.

Each model is compiled and compared on its realistic inputs, once with one thread and once with two;
the two must also be bit-equal to each other. Writes docs/agreement.md.
"""

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.machine import ROOT, provenance
from rutc.compiler import Options, compile_model
from rutc.errors import RutcError
from rutc.models.zoo import Model, find, zoo
from rutc.runtime import ModelError, load
from rutc.verify.compare import OutputComparison, Value, compare_outputs
from rutc.verify.tolerance import Level
from rutc.verify.verify import verify_model

PAGE = ROOT / "docs" / "agreement.md"
THREADS = (1, 2)


@dataclass(frozen=True, slots=True)
class Agreement:
    """The outputs of one model per thread count; `problem` says why there are none."""

    model: Model
    outputs: dict[int, tuple[OutputComparison, ...]]
    equal: bool = False
    problem: str = ""

    @property
    def passed(self) -> bool:
        """Whether all outputs agree and do not depend on the thread count."""
        return (
            not self.problem
            and self.equal
            and all(output.passed for found in self.outputs.values() for output in found)
        )


def examine(model: Model, seed: int) -> Agreement:
    """Returns how a model agrees with ONNX Runtime."""
    try:
        path = model.obtain()
        inputs = model.inputs(seed)
        with tempfile.TemporaryDirectory() as folder:
            options = Options(shapes=dict(model.shapes))
            library = compile_model(path, Path(folder) / "model.so", options, None).library
            outputs = {
                threads: verify_model(path, library, inputs, threads=threads).outputs
                for threads in THREADS
            }
            results: list[dict[str, Value]] = []
            for threads in THREADS:
                with load(library, threads=threads) as session:
                    names = [output.name for output in session.get_outputs()]
                    results.append(dict(zip(names, session.run(None, inputs), strict=True)))
    except (RutcError, ModelError) as error:
        return Agreement(model, {}, problem=str(error).splitlines()[0])
    one, two = results
    equal = all(output.passed for output in compare_outputs(two, one, Level.EXACT))
    return Agreement(model, outputs, equal)


def page(agreements: list[Agreement], seed: int) -> str:
    """Returns the Markdown page."""
    passed = sum(agreement.passed for agreement in agreements)
    lines = [
        "# Agreement with float64 and ONNX Runtime",
        "",
        "Written by `python -m benchmarks.agreement`: every model of the zoo, float32, on",
        f"realistic inputs (seed {seed}), with 1 and 2 threads. Errors are distances from float64",
        "of the worst output and thread count, relative to the output's largest magnitude; beside",
        "them is how near the worst slice is to its limit ([verification.md](verification.md)).",
        "",
        f"**{passed} of {len(agreements)} models agree.**",
        "",
        "| model | outputs | error | ONNX Runtime's error | of the limit "
        "| 1 and 2 threads bit-equal | agrees |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [_row(agreement) for agreement in agreements]
    return "\n".join([*lines, "", "Measured on: " + provenance().line() + "."]) + "\n"


def _row(agreement: Agreement) -> str:
    name = agreement.model.name
    if agreement.problem:
        return f"| {name} | | | | | | no: {agreement.problem} |"
    found = [output for outputs in agreement.outputs.values() for output in outputs]
    worst = max(found, key=lambda output: output.share)
    reasons = sorted({output.reason for output in found if output.reason})
    verdict = "yes" if agreement.passed else "no" + "".join(f"; {reason}" for reason in reasons)
    return (
        f"| {name} | {len(found) // len(THREADS)} | {_number(worst.error)} | "
        f"{_number(worst.reference_error)} | {worst.share:.0%} | "
        f"{'yes' if agreement.equal else 'no'} | {verdict} |"
    )


def _number(error: float | None) -> str:
    return "" if error is None else f"{error:.2g}"


def main() -> None:
    """Examines the models named on the command line, or all; writes the page when all were."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.agreement", description=__doc__)
    parser.add_argument("models", nargs="*", help="names in the zoo; default: all")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chosen = [find(name) for name in options.models] or list(zoo())
    agreements = []
    for model in chosen:
        agreements.append(examine(model, options.seed))
        print(_row(agreements[-1]), file=sys.stderr, flush=True)
    if not options.models:
        PAGE.write_text(page(agreements, options.seed), encoding="utf-8")
    if not all(agreement.passed for agreement in agreements):
        sys.exit(1)


if __name__ == "__main__":
    main()
