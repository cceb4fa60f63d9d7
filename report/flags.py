"""The arguments and options that several commands have, as `typer` reads them."""

from pathlib import Path
from typing import Annotated

import typer

SIZES = "Sizes and inputs"
NUMBERS = "What numbers are computed in"
SPEED = "What code is made"
OUTPUTS = "What is written"
LIMITS = "Work and memory"
SHOWN = "What is shown"

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
        help="native, x86-64-v4, x86-64-v3, aarch64 or a file of doctor --save-target: "
        "what to compile for.",
        rich_help_panel=SPEED,
    ),
]
Targets = Annotated[
    str,
    typer.Option(
        "--target",
        metavar="NAME|FILE.json[,...]",
        help="native, x86-64-v4, x86-64-v3, aarch64 or a file of doctor --save-target: "
        "what to compile for. Of several, a session runs the best one that its CPU can.",
        rich_help_panel=SPEED,
    ),
]
OneTarget = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="NAME",
        help="Which code to take of a library for several targets; default: the best that the "
        "CPU can run, or what RUTC_TARGET names.",
    ),
]
VerifiedTarget = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="NAME|FILE.json[,...]",
        help="What to compile for, as compile does; of a library for several targets the one to "
        "compare, default: all that this CPU can run.",
    ),
]
Precision = Annotated[
    str,
    typer.Option(
        metavar="fp32|bf16|fp16|w8|w4|int8|auto",
        help="bf16, fp16, w8, w4: what weights are stored in where that is faster. int8: products "
        "are summed in 8 bits where that is faster; auto: as far as the tolerance allows.",
        rich_help_panel=NUMBERS,
    ),
]
Calibrate = Annotated[
    Path | None,
    typer.Option(
        "--calibrate",
        metavar="DIR",
        help="With --precision int8, auto or bf16: a folder of typical inputs, which tell the "
        "ranges of values, and what filters lose; default: generated ones.",
        rich_help_panel=NUMBERS,
    ),
]
CalibrateBy = Annotated[
    str | None,
    typer.Option(
        metavar="minmax|percentile|mse",
        help="How the range of a value is found from these.",
        rich_help_panel=NUMBERS,
    ),
]
States = Annotated[
    list[str] | None,
    typer.Option(
        "--state",
        metavar="INPUT=OUTPUT",
        help="An output that the session keeps as an input of the next run; * stands for any text.",
        rich_help_panel=SIZES,
    ),
]
Dims = Annotated[
    list[str] | None,
    typer.Option(
        "--dim",
        metavar="NAME=N|LOW..HIGH[/STEP][@COMMON]|SUM",
        help="A size that the model leaves open: batch=1, a range batch=1..64, which of it is the "
        "commonest batch=1..64@8, or a sum of others total=past+seq; repeatable.",
        rich_help_panel=SIZES,
    ),
]
Sizes = Annotated[
    list[str] | None,
    typer.Option(
        "--dim",
        metavar="NAME=N",
        help="A size that the artifact leaves open, for what is generated; repeatable.",
        rich_help_panel=SIZES,
    ),
]
Shapes = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        metavar="NAME=1,3,...",
        help="Shape of an input; repeatable.",
        rich_help_panel=SIZES,
    ),
]
Values = Annotated[
    list[str] | None,
    typer.Option(
        "--value",
        metavar="NAME=1,2,...",
        help="What an input holds in every run: numbers or a .npy file; repeatable.",
        rich_help_panel=SIZES,
    ),
]
Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        metavar="NAME=SOURCE",
        help="A .npy, .npz, .pb or image file, or random:SEED; repeatable. Without a name it "
        "serves every input. What is not given is generated.",
        rich_help_panel=SIZES,
    ),
]
LimitTime = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS", help="End with an error if it takes longer.", rich_help_panel=LIMITS
    ),
]
LimitMemory = Annotated[
    str | None,
    typer.Option(
        metavar="BYTES",
        help="End with an error if it takes more memory: 8G, 512M.",
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
        help="Keep the model's operations; only sums may be reordered and multiply-adds fused. "
        "Without it, convolutions may round more where inputs lie far apart, overflow sooner, and "
        "one NaN or infinity may spoil more outputs: docs/filtering.md.",
        rich_help_panel=NUMBERS,
    ),
]
PlanBy = Annotated[
    str,
    typer.Option(
        "--plan",
        metavar="HOW",
        help="greedy, or search: from there on for a plan that is estimated to be faster.",
        rich_help_panel=SPEED,
    ),
]
PlanTime = Annotated[
    float | None,
    typer.Option(
        "--plan-time",
        metavar="SECONDS",
        help="How long --plan search takes; default: 10. 0: the same changes on every machine.",
        rich_help_panel=SPEED,
    ),
]
Tolerance = Annotated[
    float | None,
    typer.Option(
        metavar="X",
        help="With int8 or auto: the largest relative error; default: 0.1.",
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
        help="Where weights are: embed, in the library; external, in OUT.weights beside it; auto: "
        "embedded up to 1 GiB.",
        rich_help_panel=OUTPUTS,
    ),
]
Bundle = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Write the library and a Python runtime of one file into a folder, for servers with "
        "numpy alone.",
        rich_help_panel=OUTPUTS,
    ),
]
Dump = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="Write every step's form into a folder.", rich_help_panel=OUTPUTS
    ),
]
KeepSubnormals = Annotated[
    bool,
    typer.Option(
        "--keep-subnormals",
        help="Compute with numbers below 1.2e-38, slowly; else they are zeros: "
        "docs/numerics.md says what that changes.",
        rich_help_panel=NUMBERS,
    ),
]
Db = Annotated[
    str | None,
    typer.Option(
        "--db",
        metavar="URL",
        help="The database: a file or a URL; default: $RUTC_DB, or the user's own.",
        rich_help_panel=SPEED,
    ),
]
Schedules = Annotated[
    str | None,
    typer.Option(
        "--db",
        metavar="URL|none",
        help="The database of tuning records whose schedules to take: a file or a URL; "
        "default: $RUTC_DB, or the user's own.",
        rich_help_panel=SPEED,
    ),
]
Tune = Annotated[
    str | None,
    typer.Option(
        metavar="60s|TRIALS",
        help="Search for faster schedules first, as rutc tune does.",
        rich_help_panel=SPEED,
    ),
]
