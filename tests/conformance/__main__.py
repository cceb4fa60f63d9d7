"""Runs ONNX's backend suite through compiled artifacts.

python -m tests.conformance                      all tests in all modes
python -m tests.conformance --mode plain REGEX   some tests in one mode, each shown
"""

import argparse
import json
import os
import re
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from time import monotonic

from tests.conformance.adapter import OnStage, Result, run_case
from tests.conformance.expected import judge, read_expected, revised, write_expected
from tests.conformance.modes import MODES
from tests.conformance.report import DOCUMENT, operators_document
from tests.conformance.results import ROOT, ResultFile
from tests.conformance.suite import Case, load_cases
from tests.conformance.workers import run_all

SHOWN = 60
"""Runs of at most so many tests show those that pass, too."""


def main() -> int:
    """Runs what the command line says; 1 where the lists of expected failures are not true."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("regex", nargs="?", default="", help="which tests; default: all")
    parser.add_argument("--mode", choices=[*MODES, "all"], default="all")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--timeout", type=float, default=60, metavar="SECONDS", help="per test")
    parser.add_argument("--interpret", action="store_true", help="run the interpreter as well")
    parser.add_argument("--fresh", action="store_true", help="forget results of the same sources")
    parser.add_argument("--json", type=Path, help="write all results there")
    parser.add_argument("--update", action="store_true", help="make the expected failures true")
    parser.add_argument("--report", action="store_true", help=f"write docs/{DOCUMENT.name}")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    cases = load_cases()
    chosen = [c for c in cases if re.search(arguments.regex, c.name)]
    found: dict[str, list[Result]] = {}
    held = True
    for mode in MODES if arguments.mode == "all" else [arguments.mode]:
        results = found[mode] = _run(mode, chosen, arguments)
        expected = read_expected(mode)
        verdict = judge(results, expected)
        held &= verdict.holds or arguments.update
        if arguments.update:
            write_expected(mode, revised(expected, results, [c.name for c in cases]))
        print(verdict, end="\n" if str(verdict) else "")
        counts = Counter(r.passed for r in results)
        frozen = sum(r.passed and bool(r.frozen) for r in results)
        print(
            f"{mode}: {counts[True]} of {len(results)} pass, {frozen} of them with fixed operands; "
            f"{counts[False] - len(verdict.failures)} fail as expected"
        )
        print(f"{mode}: {compile_times(results)}")
    if arguments.json is not None:
        everything = {
            mode: [{**asdict(r), "compile_s": r.compile_s} for r in results]
            for mode, results in found.items()
        }
        arguments.json.write_text(json.dumps({"commit": _commit(), "modes": everything}, indent=1))
    if arguments.report:
        DOCUMENT.write_text(operators_document(cases), encoding="utf-8")
    return 0 if held else 1


def _run(mode: str, cases: list[Case], arguments: argparse.Namespace) -> list[Result]:
    """The results of one mode: those on disk, and the others run now."""
    file = ResultFile(mode)
    if arguments.fresh:
        file.clear()
    known = file.read()
    todo = [
        n
        for n, c in enumerate(cases)
        if (c.kind, c.name) not in known
        or (arguments.interpret and not known[c.kind, c.name].interpreted)
        or len(cases) <= SHOWN
    ]

    def work(number: int, on_stage: OnStage) -> Result:
        return run_case(cases[number], mode, on_stage, interpreted=arguments.interpret)

    def lost(number: int, stage: str, reason: str) -> Result:
        case = cases[number]
        return Result(case.name, case.kind, stage=stage, reason=reason)

    start = monotonic()
    made = run_all(todo, work, lost, jobs=arguments.jobs, timeout=arguments.timeout)
    for done, r in enumerate(made, 1):
        file.add(r)
        known[r.kind, r.name] = r
        if len(cases) <= SHOWN:
            print(_line(r), flush=True)
        elif done % 100 == 0 or done == len(todo):
            spent = monotonic() - start
            print(f"{mode}: {done} of {len(todo)} run in {spent:.0f} s", file=sys.stderr)
    return [known[c.kind, c.name] for c in cases]


def compile_times(results: Sequence[Result]) -> str:
    """Says how long the models took to compile that ran."""
    compiled = sorted((r for r in results if "open" in r.seconds), key=lambda r: r.compile_s)
    if not compiled:
        return "nothing was compiled"
    middle, longest = median(r.compile_s for r in compiled), compiled[-1]
    return (
        f"compiled {len(compiled)} models in {middle:.2f} s (median), "
        f"at most {longest.compile_s:.2f} s ({longest.name})"
    )


def _line(r: Result) -> str:
    parts = ["pass" if r.passed else "FAIL", r.name]
    if not r.passed:
        parts.append(f"in {r.stage or 'the worker'}: {r.reason}")
    if r.frozen:
        parts.append(f"(fixed: {', '.join(r.frozen)})")
    if r.variant:
        parts.append(f"(sizes: {r.variant})")
    if r.interpreted not in {"", "pass"}:
        parts.append(f"(interpreter: {r.interpreted})")
    parts.append(f"{sum(r.seconds.values()):.2f} s")
    return " ".join(parts)


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
