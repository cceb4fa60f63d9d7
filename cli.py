"""The command line: arguments become options and calls; what is done is done elsewhere.

Exit status: 0 done; 1 a check failed; 2 the user's input is at fault; 3 a bug of rutc.
Every command takes `--json`: the result on stdout as JSON, everything else on stderr.
"""

import gc
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import rutc
from rutc.base import interrupts
from rutc.base.room import with_room
from rutc.errors import CheckFailed, UserError
from rutc.report import db_commands, explain_command, inspect_command, tune_command
from rutc.report.command import command
from rutc.report.console import Screen, standard_streams, survived
from rutc.report.flags import (
    OUTPUTS,
    Bundle,
    CompileFlags,
    Dims,
    Dump,
    Inputs,
    Jobs,
    Library,
    LimitMemory,
    LimitTime,
    Model,
    OneTarget,
    Placement,
    PlanBy,
    PlanTime,
    Schedules,
    Shapes,
    Sizes,
    States,
    Targets,
    Threads,
    Tune,
    Values,
    VerifiedTarget,
    compile_flags,
)

if TYPE_CHECKING:
    from rutc.verify import Verification

app = typer.Typer(
    name="rutc",
    help="Compile ONNX models ahead of time into standalone shared libraries.",
    epilog="To begin: `rutc compile model.onnx` writes model.so and model.h after checking what "
    "they compute. `rutc COMMAND --help` lists a command's options.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(db_commands.app, name="db")


def _version(asked: bool) -> None:
    if asked:
        print(f"rutc {rutc.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Compile ONNX models ahead of time into standalone shared libraries."""


@app.command("compile")
@command(flags=compile_flags)
def compile_command(
    screen: Screen,
    model: Model,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="OUT.so",
            help="The library to write; default: MODEL.so.",
            rich_help_panel=OUTPUTS,
        ),
    ] = None,
    *,
    flags: CompileFlags,
    inputs: Inputs = None,
    target: Targets = "native",
    no_verify: Annotated[
        bool,
        typer.Option(
            "--no-verify",
            help="Write the library without checking what it computes.",
            rich_help_panel=OUTPUTS,
        ),
    ] = False,
    threads: Threads = None,
    jobs: Jobs = None,
    plan: PlanBy = "greedy",
    plan_time: PlanTime = None,
    weights: Placement = "auto",
    bundle: Bundle = None,
    dump: Dump = None,
    db: Schedules = None,
    tune: Tune = None,
    limit_time: LimitTime = None,
    limit_memory: LimitMemory = None,
) -> None:
    """Compile a model into a shared library and a C header, and check what it computes.

    OUT.so is written only if its outputs agree with the model evaluated in float64 and with ONNX
    Runtime.
    """
    from rutc.driver.api import compile
    from rutc.driver.check_options import asked

    if tune is not None:
        tune_command.search_before(screen, model, tune, db, asked(target=target, **flags))
    try:
        with screen.progress() as on_progress:
            compiled = compile(
                model,
                output,
                target=target,
                **flags,
                inputs=inputs or (),
                verify=not no_verify,
                threads=threads,
                weights=weights,
                bundle=bundle,
                dump=dump,
                jobs=jobs,
                plan=plan,
                plan_time=plan_time,
                limit_time=limit_time,
                limit_memory=limit_memory,
                db=db,
                on_progress=on_progress,
            )
    except CheckFailed as failure:
        from rutc.report import display
        from rutc.verify import VerificationFailed

        if not isinstance(failure, VerificationFailed):
            raise
        details = {"verification": display.verification_json(failure.verification)}
        if not screen.as_json:
            screen.result(
                {},
                display.verification_table(failure.verification),
                display.verification_text(failure.verification),
            )
        raise screen.fail(str(failure), failure.exit_status, details) from failure
    from rutc.report import display

    checked = compiled.verification
    screen.result(
        {
            **display.report_json(compiled.report),
            "verification": None if checked is None else display.verification_json(checked),
            "spread": [str(r) for r in compiled.refusals],
            "bundle": None if bundle is None else str(bundle),
        },
        display.report_text(compiled.report),
        *([] if bundle is None else [display.bundle_text(compiled.report, bundle)]),
        *(f"filtered less, for accuracy: {r}" for r in compiled.refusals),
        "not verified (--no-verify)"
        if checked is None
        else f"verified: {display.verification_text(checked)}",
    )


@app.command()
@command()
def run(
    screen: Screen,
    library: Library,
    inputs: Inputs = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="Y.npz", help="Write the outputs.")
    ] = None,
    dim: Sizes = None,
    target: OneTarget = None,
    threads: Threads = None,
) -> None:
    """Run a compiled model once and show a summary of its outputs."""
    from rutc.report.arguments import check_npz, parse_sizes
    from rutc.report.shown_values import values_json, values_table
    from rutc.verify.feeding.npz import save_npz
    from rutc.verify.feeding.session_values import run_once
    from rutc.verify.feeding.whole import WholeSession

    if output is not None:
        check_npz(output)
    dims = parse_sizes(dim)
    with WholeSession(library, threads=threads, check_integrity=True, target=target) as session:
        ran = run_once(session, inputs or (), dims)
    if output is not None:
        save_npz(output, ran.outputs)
    screen.result(
        {
            "outputs": values_json(ran.outputs),
            "sizes": ran.sizes,
            "refused": ran.refused,
            "generated": ran.generated,
            "written": output,
        },
        *ran.drawn,
        *ran.lines,
        values_table(ran.outputs),
    )


@app.command()
@command()
def verify(
    screen: Screen,
    model: Model,
    library: Annotated[
        Path | None,
        typer.Argument(metavar="[OUT.so]", help="The library; default: compile the model now."),
    ] = None,
    inputs: Inputs = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Compare on all .npz files or test_data_set_* folders of a folder."
        ),
    ] = None,
    bisect: Annotated[
        bool, typer.Option("--bisect", help="Name the first node whose result differs.")
    ] = False,
    dim: Dims = None,
    shape: Shapes = None,
    value: Values = None,
    state: States = None,
    target: VerifiedTarget = None,
    threads: Threads = None,
    limit_time: LimitTime = None,
    limit_memory: LimitMemory = None,
) -> None:
    """Compare a compiled model with float64 and ONNX Runtime, output by output."""
    from rutc.driver.api import verify as verify_now
    from rutc.report import display
    from rutc.report.arguments import parse_dims, parse_shapes, parse_states, parse_values

    with screen.progress() as on_progress:
        verification = verify_now(
            model,
            library,
            inputs=inputs or (),
            data=data,
            target=target,
            shapes=parse_shapes(shape),
            dims=parse_dims(dim),
            values=parse_values(value),
            states=parse_states(state),
            threads=threads,
            limit_time=limit_time,
            limit_memory=limit_memory,
            on_progress=on_progress,
        )
    payload = display.verification_json(verification)
    shown = display.verification_table(verification), display.verification_text(verification)
    if not bisect or verification.passed:
        screen.result(payload, *shown)
    else:
        if not screen.as_json:
            # What is known is shown before what takes long, and may fail.
            screen.result(payload, *shown)
        more, told = _bisected(screen, verification, (limit_time, limit_memory))
        screen.result({**payload, **more}, told)
    if not verification.passed:
        raise typer.Exit(CheckFailed.exit_status)
    if verification.skipped:
        raise typer.Exit(UserError.exit_status)


def _bisected(
    screen: Screen,
    verification: "Verification",
    limits: tuple[float | None, str | None],
) -> tuple[dict[str, object], str]:
    """Returns where a model diverges as JSON and as text, or why that could not be found."""
    from rutc.driver.api import limited
    from rutc.driver.bisect import bisect
    from rutc.report import display

    v = verification
    given = (v.model, v.values, Path(), v.threads, v.level)
    try:
        with screen.progress() as on_progress:
            found = limited(*limits, on_progress, bisect, *given)
    except Exception as error:
        why = survived(error, debug=screen.debug)
        return {"divergence": None, "bisect_error": why}, f"not bisected: {why}"
    return {"divergence": display.divergence_json(found)}, display.divergence_text(found)


@app.command()
@command()
def bench(
    screen: Screen,
    library: Library,
    against: Annotated[
        str | None, typer.Option(metavar="onnxruntime", help="What to take turns with.")
    ] = None,
    model: Annotated[
        Path | None, typer.Option(metavar="MODEL.onnx", help="The model that ONNX Runtime runs.")
    ] = None,
    inputs: Inputs = None,
    dim: Sizes = None,
    target: OneTarget = None,
    threads: Annotated[
        list[int] | None,
        typer.Option(
            "--threads", metavar="N", min=1, help="A thread count; repeatable. Default: 1."
        ),
    ] = None,
    seconds: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=0.1, help="How long to measure, for each thread count."
        ),
    ] = 3.0,
) -> None:
    """Measure latency and throughput, in turns with ONNX Runtime if asked for."""
    from rutc.report import display
    from rutc.report.arguments import check_bench, parse_sizes
    from rutc.verify.bench import bench as measure
    from rutc.verify.feeding.session_values import run_once
    from rutc.verify.feeding.whole import WholeSession

    check_bench(against, model, seconds)
    dims = parse_sizes(dim)
    with WholeSession(library, threads=1, check_integrity=True, target=target) as session:
        ran = run_once(session, inputs or (), dims)
    with screen.progress() as on_progress:
        timings = measure(
            library,
            ran.values,
            threads=threads or (1,),
            model=model,
            seconds=seconds,
            on_progress=on_progress,
            target=target,
        )
    screen.result(
        {"timings": display.timings_json(timings), "sizes": ran.sizes, "refused": ran.refused},
        *ran.lines,
        display.timings_table(timings),
    )


app.command()(inspect_command.inspect)
app.command()(explain_command.explain)
app.command()(tune_command.tune)


@app.command()
@command()
def doctor(
    screen: Screen,
    remeasure: Annotated[
        bool, typer.Option("--remeasure", help="Measure the processor's rates anew.")
    ] = False,
    save_target: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json", help="Write what describes this processor, for compile --target."
        ),
    ] = None,
) -> None:
    """Show what rutc finds on this machine: compiler, CPU features and rates, versions, cache."""
    from rutc.report.doctor import examine

    findings = examine(remeasure=remeasure, save_target=save_target)
    width = max(len(finding.name) for finding in findings)
    screen.result(
        {finding.name: finding.value for finding in findings}
        | {"problems": [f.problem for f in findings if f.problem]},
        *(f"{finding.name:<{width}}  {finding.value}" for finding in findings),
    )
    for finding in findings:
        if finding.problem:
            screen.note(f"{finding.name}: {finding.problem}")
    if any(finding.problem for finding in findings):
        raise typer.Exit(1)


@app.command()
@command()
def cache(
    screen: Screen,
    clear: Annotated[bool, typer.Option("--clear", help="Remove all of it.")] = False,
) -> None:
    """Show how large the cache of compiled parts is, or clear it."""
    from rutc.emit import cache as objects
    from rutc.report import display

    if clear:
        objects.clear()
    screen.result(display.usage_json(objects.usage()), display.usage_text(objects.usage()))


@with_room
def main() -> None:
    """Runs the command line."""
    # As in `base/garbage.py`, to the end of the process.
    gc.disable()
    interrupts.install()
    try:
        with standard_streams():
            app()
    finally:
        # The process ends: nothing that is left need be searched for garbage, or ended.
        interrupts.ignore()
        gc.freeze()


if __name__ == "__main__":
    main()
