"""`python -m benchmarks.budget`: whether `--precision auto` stays within its tolerance.

Every model is compiled in float32, in bf16, in 8 bits, and with `auto` within a tolerance of 1 %,
all calibrated on the same inputs, and run on 200 others: how far outputs are off then is told
beside ONNX Runtime's in float32. What was compiled then takes turns.
Results go to benchmarks/results/budget.json and docs/budget.md.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np

from benchmarks import layout
from benchmarks.protocol import Page, medians, timed, told, write
from benchmarks.store import Entry, case_of
from benchmarks.zoo import write_static
from rutc.driver.compiler import compile_model
from rutc.driver.options import AUTO, BF16, FP32, INT8, Calibration, Options
from rutc.driver.options import CALIBRATED as ON_CASES
from rutc.driver.precision.error_bound import errors_of
from rutc.models.digits import BATCH
from rutc.models.zoo import Array, Model, find, zoo
from rutc.runtime import load
from rutc.verify.bench import room_for, rutc_job
from rutc.verify.reference import Reference

MODELS = tuple(model.name for model in zoo())
UNSCORED = ("ppocr4_det", "silero", "unet", "bert", "minilm")
"""What names of models begin with whose first output has no scores: of others, the largest of a row
is a label, or a letter."""
PRECISIONS = (FP32, BF16, AUTO, INT8)
TOLERANCE = 0.01
CALIBRATED, UNSEEN = 16, 200
"""Inputs that precisions are chosen on, and others that errors are found on."""
AS_FAST = 0.95
"""Of the speed in bf16: what `auto` has to have where bf16 is within the tolerance."""


@dataclass
class Seen:
    """The largest error of an output {input}, and how many inputs keep all their labels."""

    errors: list[float] = field(default_factory=list)
    kept: int = 0

    def facts(self) -> Entry:
        """What an entry holds."""
        errors = np.array(self.errors)
        return {
            "median": round(float(np.median(errors)), 6),
            "most": round(float(errors.max()), 6),
            "beyond": int((errors > TOLERANCE).sum()),
            "kept": self.kept,
        }


def measure(name: str, seconds: float, peers: Sequence[str]) -> Entry:
    """Returns the entry of one model: times, seconds of compiling, and errors by precision."""
    model = find(name)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        path, data = folder / f"{name}.onnx", folder / "data"
        write_static(model, path)
        data.mkdir()
        for number in range(CALIBRATED):
            arrays: Any = _inputs(model, number)
            np.savez(data / f"{number}.npz", **arrays)
        libraries: dict[str, Path] = {}
        seconds_of: dict[str, float] = {}
        mix: dict[str, int | None] = {}
        for precision in PRECISIONS:
            options = Options(
                precision=precision,
                shapes=dict(model.shapes),
                tolerance=TOLERANCE,
                calibration=Calibration(data) if precision in ON_CASES else Calibration(),
            )
            report = compile_model(path, folder / f"{precision}.so", options)
            libraries[precision] = report.library
            seconds_of[precision] = round(sum(report.seconds.values()), 1)
            if precision == AUTO:
                mix = {"integers": report.integer_sums, "sums": report.sums}
                mix["in_bf16"] = _in_bf16(report.library)
        errors = {p: seen.facts() for p, seen in _errors(model, path, libraries).items()}
        inputs = _inputs(model, CALIBRATED)
        room = room_for(libraries[FP32], inputs)
        jobs = {p: rutc_job(library, 1, inputs, room) for p, library in libraries.items()}
        jobs["rutc"] = jobs.pop(FP32)
        turns = timed(jobs, seconds)
    us = medians(turns)
    us[FP32] = us.pop("rutc")
    return {"us": us, "errors": errors, "compile_s": seconds_of, "mix": mix, **told(turns)}


def _in_bf16(library: Path) -> int | None:
    """Returns of how many sums a library has factors in bf16; None: of all that gain."""
    with load(library, threads=1) as session:
        facts = session.manifest["eight_bits"]
    assert isinstance(facts, dict)
    rounded = facts["rounded"]
    return None if rounded is None else len(rounded)


def _inputs(model: Model, seed: int) -> dict[str, Array]:
    if model.name == "digits":
        # The model's own images are few: these are all there are.
        images = _digits()
        order = np.random.default_rng(seed).permutation(len(images))[:BATCH]
        return {"image": images[order]}
    return {k: v for k, v in model.inputs(seed).items() if v is not None}


@cache
def _digits() -> Array:
    """Returns handwritten digits {image, 1, 8, 8} in 0..1."""
    from sklearn.datasets import load_digits

    images: Array = load_digits().images[:, None] / 16
    return images.astype(np.float32)


def _errors(model: Model, path: Path, libraries: Mapping[str, Path]) -> dict[str, Seen]:
    """Returns what is seen of each precision on other inputs than those of the calibration."""
    reference = Reference(path, 1)
    found = {precision: Seen() for precision in libraries}
    sessions = {p: load(library, threads=1) for p, library in libraries.items()}
    names = [o.name for o in sessions[FP32].get_outputs()]
    for seed in range(CALIBRATED, CALIBRATED + UNSEEN):
        case = _inputs(model, seed)
        truth = reference.run(case)
        wanted = [truth[name] for name in names]
        for precision, session in sessions.items():
            ours = session.run(None, case)
            found[precision].errors.append(float(errors_of(ours, wanted).max()))
            same = np.asarray(ours[0]).argmax(-1) == np.asarray(wanted[0]).argmax(-1)
            found[precision].kept += bool(np.all(same))
    for session in sessions.values():
        session.close()
    return found


def page(entries: Sequence[Entry]) -> str:
    """Returns the Markdown page of the entries."""
    said = (
        "Written by `python -m benchmarks.budget`. `--precision auto --tolerance 0.01` beside",
        f"others, one thread, calibrated on {CALIBRATED} inputs. *Median* and *most* are errors of",
        f"{UNSEEN} other inputs, relative to the norm of outputs of ONNX Runtime in float32, the",
        "largest of a model's outputs. *Beyond* says of how many inputs they are beyond the",
        "tolerance, *labels* of how many the largest score of each row is where it was: lines of",
        "text are read from these, too. *In 8 bits* are so many of the sums of products that can",
        "be with auto, and of so many others factors are *in bf16*. *Compiled* has the seconds of",
        "compiling without the comparison, which other work beside lengthens; the cache may have",
        "had kernels from before.",
    )
    return layout.page("Within a tolerance", said, entries, _table, ())


def _table(entries: Sequence[Entry]) -> list[str]:
    lines = [
        "| model | fp32, ms | bf16 | auto | int8 | in 8 bits | in bf16 "
        "| fp32: beyond | bf16 | auto | int8 "
        "| bf16: median, most | auto | labels: bf16 | auto | int8 | compiled: fp32 | auto |",
        "|---" * 18 + "|",
    ]
    ratios = []
    for entry in entries:
        us, errors, mix, seconds = (entry.get(k) for k in ("us", "errors", "mix", "compile_s"))
        if not (isinstance(us, dict) and isinstance(errors, dict)):
            lines.append(f"| {case_of(entry)} | {entry.get('error', '')} |" + " |" * 16)
            continue
        assert isinstance(mix, dict)
        assert isinstance(seconds, dict)
        cells = [f"{us[p] / 1e3:.3g}" for p in PRECISIONS]
        cells.append(f"{mix['integers']} of {mix['sums']}")
        cells.append("all" if mix["in_bf16"] is None else str(mix["in_bf16"]))
        cells += [str(errors[p]["beyond"]) for p in PRECISIONS]
        cells += [f"{errors[p]['median']:.2g}, {errors[p]['most']:.2g}" for p in (BF16, AUTO)]
        scores = not case_of(entry).startswith(UNSCORED)
        cells += [str(errors[p]["kept"]) if scores else "-" for p in (BF16, AUTO, INT8)]
        cells += [str(seconds[p]) for p in (FP32, AUTO)]
        lines.append(f"| {case_of(entry)} | {' | '.join(cells)} |")
        if not errors[BF16]["beyond"]:
            ratios.append((us[BF16] / us[AUTO], case_of(entry)))
    if ratios:
        mean, (least, name) = geometric_mean(r for r, _ in ratios), min(ratios)
        slower = sum(r < AS_FAST for r, _ in ratios)
        lines += [
            "",
            f"Where bf16 is within the tolerance, auto is {mean:.2f} times as fast (n={len(ratios)}"
            f"), at least {least:.2f} times ({name}); {slower} are below {AS_FAST:g}.",
        ]
    return lines


PAGE = Page(
    "budget",
    __doc__,
    list(MODELS),
    measure,
    case_of,
    lambda entries: write("budget", page(entries)),
    peers=(),
    prepare_s=120.0,
)

if __name__ == "__main__":
    PAGE.main()
