"""The arguments and options that several commands have, as `typer` reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

import typer

if TYPE_CHECKING:
    import numpy as np

SIZES = "Sizes and inputs"
NUMBERS = "Precision"
SPEED = "Code and plan"
OUTPUTS = "Output"
LIMITS = "Threads and limits"
SHOWN = "Display"

Model = Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="The ONNX model.")]
Library = Annotated[Path, typer.Argument(metavar="OUT.so", help="What `rutc compile` wrote.")]
AsJson = Annotated[
    bool, typer.Option("--json", help="Write the result to stdout as JSON.", rich_help_panel=SHOWN)
]
Debug = Annotated[
    bool, typer.Option("--debug", help="Show the traceback of an error.", rich_help_panel=SHOWN)
]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads",
        metavar="N",
        min=1,
        help="Threads of a run; default: all CPUs.",
        rich_help_panel=LIMITS,
    ),
]
Target = Annotated[
    str,
    typer.Option(
        metavar="NAME|FILE.json",
        help="The processor to compile for: native, x86-64-v4 (AVX-512), x86-64-v3 (AVX2), "
        "aarch64, or a file that doctor --save-target wrote.",
        rich_help_panel=SPEED,
    ),
]
Targets = Annotated[
    str,
    typer.Option(
        "--target",
        metavar="NAME|FILE.json[,...]",
        help="The processor to compile for: native, x86-64-v4 (AVX-512), x86-64-v3 (AVX2), "
        "aarch64, or a file that doctor --save-target wrote. With several, a session runs the code "
        "of the best one that its CPU supports.",
        rich_help_panel=SPEED,
    ),
]
OneTarget = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="NAME",
        help="The code to run, of a library for several targets; default: what RUTC_TARGET names, "
        "or the best that the CPU supports.",
    ),
]
VerifiedTarget = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="NAME|FILE.json[,...]",
        help="Without OUT.so, the processor to compile for. Of a library for several targets, the "
        "one to compare; default: all that this CPU supports.",
    ),
]
Precision = Annotated[
    str,
    typer.Option(
        metavar="TYPE",
        help="fp32, as the model says; bf16, fp16, w8 or w4: weights are stored in fewer bits "
        "where that is faster, with bf16 factors of products are rounded, too, where the CPU "
        "multiplies bf16; int8: products are summed in 8 bits where that is faster; auto: int8 as "
        "far as --tolerance allows.",
        rich_help_panel=NUMBERS,
    ),
]
Calibrate = Annotated[
    Path | None,
    typer.Option(
        "--calibrate",
        metavar="DIR",
        help="A folder of typical inputs for --precision int8, auto or bf16, which tell the ranges "
        "of values; default: generated inputs, good enough to try it.",
        rich_help_panel=NUMBERS,
    ),
]
CalibrateBy = Annotated[
    str | None,
    typer.Option(
        metavar="minmax|percentile|mse",
        help="How ranges are found from the calibration inputs; default: mse.",
        rich_help_panel=NUMBERS,
    ),
]
States = Annotated[
    list[str] | None,
    typer.Option(
        "--state",
        metavar="INPUT=OUTPUT",
        help="An output that is an input of the next run, and that the session keeps: "
        "past=present, or 'past.*=present.*' for all with such names. Repeatable.",
        rich_help_panel=SIZES,
    ),
]
Dims = Annotated[
    list[str] | None,
    typer.Option(
        "--dim",
        metavar="NAME=SIZE",
        help="A size that the model leaves open. One size: batch=1. A range: batch=1..64, or "
        "batch=1..64@8 if 8 is the most common. Multiples of 32: height=32..1024/32. A sum of "
        "others: total=past+seq. Repeatable.",
        rich_help_panel=SIZES,
    ),
]
Sizes = Annotated[
    list[str] | None,
    typer.Option(
        "--dim",
        metavar="NAME=N",
        help="A size that the library leaves open, for generated inputs: batch=8. Repeatable.",
        rich_help_panel=SIZES,
    ),
]
Shapes = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        metavar="NAME=1,3,...",
        help="The shape of an input: x=1,3,224,224. Repeatable.",
        rich_help_panel=SIZES,
    ),
]
Values = Annotated[
    list[str] | None,
    typer.Option(
        "--value",
        metavar="NAME=1,2,...",
        help="An input that is the same in every run: numbers, or a .npy file. Repeatable.",
        rich_help_panel=SIZES,
    ),
]
Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        metavar="NAME=SOURCE",
        help="An input: a .npy, .npz, .pb or image file, or random:SEED. Without NAME= it is for "
        "every input. Inputs that are not given are generated. Repeatable.",
        rich_help_panel=SIZES,
    ),
]
LimitTime = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS", help="Stop with an error if it takes longer.", rich_help_panel=LIMITS
    ),
]
LimitMemory = Annotated[
    str | None,
    typer.Option(
        metavar="BYTES",
        help="Stop with an error if it takes more memory: 8G, 512M.",
        rich_help_panel=LIMITS,
    ),
]
Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet", "-q", help="Show no progress, only the result and errors.", rich_help_panel=SHOWN
    ),
]
ExactAlgorithms = Annotated[
    bool,
    typer.Option(
        "--exact-algorithms",
        help="Use no algorithms that round otherwise than the model's operations; only sums may be "
        "reordered and multiply-adds fused. Without it, convolutions may round more where "
        "inputs differ much in size, overflow sooner, and one NaN or infinity may spoil more "
        "outputs: docs/filtering.md.",
        rich_help_panel=NUMBERS,
    ),
]
PlanBy = Annotated[
    str,
    typer.Option(
        "--plan",
        metavar="HOW",
        help="greedy, or search: try changes of that plan for a while, and keep those that are "
        "estimated to be faster. Nothing is timed; rutc tune does that.",
        rich_help_panel=SPEED,
    ),
]
PlanTime = Annotated[
    float | None,
    typer.Option(
        "--plan-time",
        metavar="SECONDS",
        help="How long --plan search takes; default: 10. With 0 it tries a fixed number of "
        "changes, the same on every machine.",
        rich_help_panel=SPEED,
    ),
]
Tolerance = Annotated[
    float | None,
    typer.Option(
        metavar="X",
        help="The largest relative error with --precision int8 or auto; default: 0.1.",
        rich_help_panel=NUMBERS,
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Kernels compiled at once; default: all CPUs.",
        rich_help_panel=LIMITS,
    ),
]
Placement = Annotated[
    str,
    typer.Option(
        "--weights",
        metavar="auto|embed|external",
        help="Where weights are stored: in the library (embed), in OUT.weights beside it "
        "(external), or in the library up to 1 GiB (auto).",
        rich_help_panel=OUTPUTS,
    ),
]
Bundle = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Write the library into a folder together with rutc_runtime.py, which runs it with "
        "Python and numpy alone.",
        rich_help_panel=OUTPUTS,
    ),
]
Dump = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Write the graph after every step, the plan, kernels and program into a folder.",
        rich_help_panel=OUTPUTS,
    ),
]
KeepSubnormals = Annotated[
    bool,
    typer.Option(
        "--keep-subnormals",
        help="Compute with numbers below 1.2e-38, which may be slow. Without it they count as "
        "zeros: docs/numerics.md.",
        rich_help_panel=NUMBERS,
    ),
]
Db = Annotated[
    str | None,
    typer.Option(
        "--db",
        metavar="URL",
        help="The database of tuning records: a file or a URL; default: $RUTC_DB, or the user's "
        "own.",
        rich_help_panel=SPEED,
    ),
]
Schedules = Annotated[
    str | None,
    typer.Option(
        "--db",
        metavar="URL|none",
        help="The database whose plans and schedules to use, which rutc tune found: a file or a "
        "URL; default: $RUTC_DB, or the user's own.",
        rich_help_panel=SPEED,
    ),
]
Tune = Annotated[
    str | None,
    typer.Option(
        metavar="60s|TRIALS",
        help="Search for a faster plan and schedules first, as rutc tune does.",
        rich_help_panel=SPEED,
    ),
]


class CompileFlags(TypedDict):
    """What the options mean that `compile`, `explain` and `tune` have in common."""

    shapes: Mapping[str, Sequence[int]]
    dims: Mapping[str, int | tuple[int, ...] | str]
    values: Mapping[str, np.ndarray]
    states: Mapping[str, str]
    precision: str
    calibrate: Path | None
    calibrate_by: str | None
    tolerance: float | None
    exact_algorithms: bool
    keep_subnormals: bool


def compile_flags(
    *,
    dim: Dims = None,
    shape: Shapes = None,
    value: Values = None,
    state: States = None,
    precision: Precision = "fp32",
    calibrate: Calibrate = None,
    calibrate_by: CalibrateBy = None,
    tolerance: Tolerance = None,
    exact_algorithms: ExactAlgorithms = False,
    keep_subnormals: KeepSubnormals = False,
) -> CompileFlags:
    """What those options say, for `driver.check_options.asked`.

    Raises:
        UserError: what is written is no such thing.
    """
    from rutc.report.arguments import parse_dims, parse_shapes, parse_states, parse_values

    return CompileFlags(
        shapes=parse_shapes(shape),
        dims=parse_dims(dim),
        values=parse_values(value),
        states=parse_states(state),
        precision=precision,
        calibrate=calibrate,
        calibrate_by=calibrate_by,
        tolerance=tolerance,
        exact_algorithms=exact_algorithms,
        keep_subnormals=keep_subnormals,
    )
