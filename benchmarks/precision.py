"""`python -m benchmarks.precision`: models in float32, in 16-bit weights and in 8 bits, in turns.

Every model is compiled in each precision, for one input in 8 bits calibrated on 8 others, and takes
turns with ONNX Runtime in float32, with OpenVINO in the precision that it chooses by itself, and
with all three on what ONNX Runtime's `quantize_static` makes of the model, of the same inputs. How
far results are off is told beside ONNX Runtime's in float32, on 4 more inputs.
Results go to benchmarks/results/precision.json and docs/precision.md.

To compile takes much longer than to take turns, and does not need the machine for itself:
`--prepare FOLDER` only compiles and finds errors, `--prepared FOLDER` only takes turns with that.
"""

import json
import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import numpy as np
import onnx

from benchmarks import layout
from benchmarks.machine import provenance
from benchmarks.peers import Inputs, installed_peers, prepare_openvino
from benchmarks.protocol import Halves, Page, medians, timed, told, write
from benchmarks.store import Entry, case_of
from benchmarks.zoo import case_name, write_static
from rutc.driver.compiler import compile_model
from rutc.driver.options import CALIBRATED as ON_CASES
from rutc.driver.options import INT8, Calibration, Options
from rutc.emit.targets.select import host_features
from rutc.errors import UserError
from rutc.models.zoo import Model, find
from rutc.runtime import load
from rutc.verify.bench import room_for, run_onnxruntime, rutc_job
from rutc.verify.interleaved import Job
from rutc.verify.judging.budget import relative_error
from rutc.verify.reference import Reference

MODELS = (
    "mobilenet_v2",
    "resnet50",
    "unet",
    "ppocr4_det",
    "ppocr4_rec",
    "bert_base_128",
    "minilm_l6",
    "vit_b16",
    "gpt2",
    "gpt2_6l_past",
    "light_densenet121",
    "light_inception_v1",
)
THREADS = (1, 2)
CASES = {case_name(model, n): (model, n) for model in MODELS for n in THREADS}
CALIBRATED, CHECKED = 8, 4
"""Inputs that ranges are found on, and others that errors are found on."""
PRECISIONS = ("fp32", "bf16", "fp16", INT8)
ONNXRUNTIME, OPENVINO = "onnxruntime", "openvino"
QUANTISED, OPENVINO_QUANTISED = f"{ONNXRUNTIME} int8", f"{OPENVINO} int8"
SAME = "QDQ"
"""rutc on the model that ONNX Runtime's tools quantised."""
COLUMNS = (*PRECISIONS, SAME, ONNXRUNTIME, QUANTISED, OPENVINO, OPENVINO_QUANTISED)
ERRORS = ("bf16", INT8, QUANTISED)
"""The columns whose errors are told."""
COMPARED = (
    (INT8, "fp32", "rutc's own float32"),
    (INT8, QUANTISED, "ONNX Runtime's int8"),
    (INT8, OPENVINO_QUANTISED, "OpenVINO on the same quantised model"),
    (SAME, "fp32", "rutc's own float32"),
    (SAME, QUANTISED, "ONNX Runtime on that file"),
    (SAME, OPENVINO_QUANTISED, "OpenVINO on that file"),
    ("bf16", OPENVINO, "OpenVINO in its own precision"),
    ("bf16", ONNXRUNTIME, "ONNX Runtime in float32"),
)
"""What is compared by a geometric mean: a precision, a column, and what the page calls that."""


def measure(name: str, seconds: float, peers: Sequence[str]) -> Entry:
    """Returns the entry of one model and thread count: times and errors by precision."""
    with tempfile.TemporaryDirectory() as folder:
        prepare(name, Path(folder))
        return take(name, Path(folder), seconds, peers)


def prepare(name: str, folder: Path) -> None:
    """Leaves in a folder, once for each model, what turns are taken with, errors and the commit."""
    found, _ = CASES[name]
    files = _Files(folder / found)
    if files.facts.exists():
        return
    model = find(found)
    files.data.mkdir(parents=True, exist_ok=True)
    write_static(model, files.model)
    for number in range(CALIBRATED):
        arrays: Any = _inputs(model, 1 + number)
        np.savez(files.data / f"{number}.npz", **arrays)
    failed = _quantised(files.model, files.quantised, model)
    for precision in PRECISIONS:
        _compiled(files, precision, model)
    if not failed:
        options = Options(shapes=dict(model.shapes))
        compile_model(files.quantised, files.library(SAME), options)
    facts = {
        "errors": _errors(files, None if failed else files.quantised, model),
        "commit": provenance().commit,
        **({"unquantised": failed} if failed else {}),
    }
    files.facts.write_text(json.dumps(facts), encoding="utf-8")


def take(name: str, folder: Path, seconds: float, peers: Sequence[str]) -> Entry:
    """Returns the entry of a case that `prepare` was asked for, in turns.

    Raises:
        UserError: it was not.
    """
    found, threads = CASES[name]
    files = _Files(folder / found)
    if not files.facts.exists():
        raise UserError(f"{name} is not prepared in {folder}")
    facts = json.loads(files.facts.read_text(encoding="utf-8"))
    failed = "unquantised" in facts
    inputs = _inputs(find(found), 0)
    room = room_for(files.library("fp32"), inputs)
    own = {"rutc": "fp32"} | {p: p for p in (*PRECISIONS[1:], *(() if failed else (SAME,)))}
    jobs = {k: rutc_job(files.library(p), threads, inputs, room) for k, p in own.items()}
    models = {"": files.model} | ({} if failed else {" int8": files.quantised})
    for kind, file in models.items():
        given = file, threads, inputs, room
        jobs[ONNXRUNTIME + kind] = Job(run_onnxruntime, given)
        if OPENVINO in peers and OPENVINO in installed_peers():
            jobs[OPENVINO + kind] = Job(prepare_openvino, (*given, ""), OPENVINO)
    turns = timed(jobs, seconds)
    us = medians(turns)
    us["fp32"] = us.pop("rutc")
    return {"us": us, **told(turns), **facts}


@dataclass(frozen=True, slots=True)
class _Files:
    """The files of one model."""

    folder: Path

    @property
    def model(self) -> Path:
        return self.folder / "model.onnx"

    @property
    def quantised(self) -> Path:
        return self.folder / "quantised.onnx"

    @property
    def data(self) -> Path:
        """A folder of the inputs that ranges are found on."""
        return self.folder / "data"

    @property
    def facts(self) -> Path:
        """What is told beside times; written last."""
        return self.folder / "facts.json"

    def library(self, precision: str) -> Path:
        return self.folder / f"{precision}.so"


def _inputs(model: Model, seed: int) -> dict[str, np.ndarray]:
    return {k: v for k, v in model.inputs(seed).items() if v is not None}


def _compiled(files: _Files, precision: str, model: Model) -> None:
    options = Options(
        precision=precision,
        shapes=dict(model.shapes),
        calibration=Calibration(files.data) if precision in ON_CASES else Calibration(),
    )
    compile_model(files.model, files.library(precision), options)


def _quantised(path: Path, result: Path, model: Model) -> str:
    """Quantises as ONNX Runtime's tools do; returns why they do not, or ""."""
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.rest: Iterator[Inputs] = (_inputs(model, 1 + n) for n in range(CALIBRATED))

        def get_next(self) -> Mapping[str, np.ndarray] | None:
            return next(self.rest, None)

    logging.getLogger().setLevel(logging.ERROR)
    sums = not {"avxvnni", "avx512vnni"} & host_features()
    try:
        quantize_static(
            path,
            result,
            Reader(),
            per_channel=True,
            # Pairs of products of 8 bits do not fit 16 otherwise, and are cut off.
            reduce_range=sums,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )
        onnx.checker.check_model(str(result))
        Reference(result, 1)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"[:200]
    return ""


def _errors(files: _Files, quantised: Path | None, model: Model) -> dict[str, float]:
    """The median relative error of outputs by precision, and that of the quantised model."""
    cases = [_inputs(model, 1 + CALIBRATED + number) for number in range(CHECKED)]
    exact = Reference(files.model, 1)
    truth = [exact.run(case) for case in cases]
    found: dict[str, float] = {}
    for name in PRECISIONS:
        with load(files.library(name)) as session:
            outputs = [o.name for o in session.get_outputs()]
            runs = [dict(zip(outputs, session.run(None, c), strict=True)) for c in cases]
        found[name] = _median_error(runs, truth)
    if quantised is not None:
        reference = Reference(quantised, 1)
        found[QUANTISED] = _median_error([reference.run(c) for c in cases], truth)
    return found


def _median_error(
    runs: Sequence[Mapping[str, object]], truth: Sequence[Mapping[str, object]]
) -> float:
    errors = [
        relative_error(np.asarray(run[name]), np.asarray(wanted))
        for run, right in zip(runs, truth, strict=True)
        for name, wanted in right.items()
    ]
    return round(median(errors), 5)


def page(entries: Sequence[Entry]) -> str:
    """Returns the Markdown page of the entries."""
    said = (
        "Written by `python -m benchmarks.precision`. Milliseconds of a run, in turns. In `bf16`",
        "and `fp16` weights are stored in 16 bits where that is estimated to be faster, in `bf16`",
        "what they are multiplied by is rounded, too, where the processor multiplies it, and with",
        f"`int8` products are summed in 8 bits where it is; ranges are of {CALIBRATED} inputs.",
        "What filters lose in `bf16` is found on the first.",
        "*ORT int8* is what `quantize_static` of ONNX Runtime makes of the model (per channel, 7",
        "bits where the processor adds up pairs in 16), from the same inputs. *QDQ* is rutc and",
        "*OV int8* OpenVINO on that same file, *OV* OpenVINO on the model itself in the precision",
        "that it chooses. *Error* is that of outputs beside ONNX Runtime's in float32, relative to",
        f"their norm, the median of {CHECKED} other inputs; weights of exported models are random,",
        "so that their errors are larger than those of trained ones.",
    )
    return layout.page("Precisions", said, entries, _table, ())


def _table(entries: Sequence[Entry]) -> list[str]:
    lines = [
        "| model | fp32 | bf16 | fp16 | int8 | QDQ | ORT fp32 | ORT int8 | OV | OV int8 "
        "| bf16: error | int8 | ORT int8 |",
        "|---" * (len(COLUMNS) + len(ERRORS) + 1) + "|",
    ]
    told_times = []
    for entry in entries:
        us, errors = entry.get("us"), entry.get("errors")
        if not isinstance(us, dict) or not isinstance(errors, dict):
            lines.append(
                f"| {case_of(entry)} | {entry.get('error', '')} |"
                + " |" * (len(COLUMNS) + len(ERRORS) - 1)
            )
            continue
        cells = [f"{us[c] / 1e3:.2f}" if c in us else "-" for c in COLUMNS]
        cells += [f"{errors[c]:.3f}" if c in errors else "-" for c in ERRORS]
        lines.append(f"| {case_of(entry)} | {' | '.join(cells)} |")
        told_times.append(us)
    for own, other, name in COMPARED:
        gains = [us[other] / us[own] for us in told_times if other in us and own in us]
        if gains:
            mean = geometric_mean(gains)
            lines += ["", f"{own} is {mean:.2f} times as fast as {name} (n={len(gains)})."]
    return lines


PAGE = Page(
    "precision",
    __doc__,
    list(CASES),
    measure,
    case_of,
    lambda entries: write("precision", page(entries)),
    peers=("onnxruntime", "openvino"),
    prepare_s=60.0,
    halves=Halves(prepare, take),
)

if __name__ == "__main__":
    PAGE.main()
