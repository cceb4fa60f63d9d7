"""`rutc.compile`: compiles a model, checks it against ONNX Runtime, and only then publishes it.

The artifact is built and checked in a temporary folder beside its destination, so that a file with
the name that was asked for is always complete and, unless verification was declined, verified:

    compiled, verified            -> OUT.so and OUT.h appear (an older OUT.so is replaced)
    compiled, not agreeing        -> OUT.unverified/OUT.so and its header; OUT.so stays as it was
    not compiled, interrupted     -> nothing appears, nothing changes
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, TypeVar

from rutc.base.files import Workplace, check_folder, sweep
from rutc.base.garbage import uncollected
from rutc.base.progress import Progress
from rutc.base.record import record
from rutc.base.room import with_room
from rutc.driver.check_inputs import Given
from rutc.driver.check_options import asked, check_number
from rutc.driver.destination import bundle_folder, check_destination, keep_unverified, publish
from rutc.driver.options import GREEDY, Options, Report
from rutc.emit.linking.bundle import write_loader
from rutc.emit.linking.host_runtime import HostRuntime, host_runtime_for
from rutc.errors import TOO_DEEP, OutOfMemory, UserError

if TYPE_CHECKING:
    import numpy as np

    from rutc.tensor_ir import Graph
    from rutc.verify import Refusal, Verification

# What is imported here delays the C compiler, which takes as long as compiling a small model.
# The rest is imported where it is needed, while the C compiler runs.

T = TypeVar("T")

MAX_THREADS = 4096
"""As many as a session takes."""


@record
class Compiled:
    """A compiled model: where it is, how it was made, and what the verification found."""

    report: Report
    verification: Verification | None
    refusals: tuple[Refusal, ...] = ()
    """Layers that filters would have cost accuracy, and that are computed without them."""

    @property
    def library(self) -> Path:
        """The shared library."""
        return self.report.library

    @property
    def header(self) -> Path:
        """Its C header."""
        return self.report.header

    @property
    def weights(self) -> Path | None:
        """Its file of weights; None: the library has them."""
        return self.report.weights


@with_room
@uncollected
def compile(
    model: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    target: str = "native",
    precision: str = "fp32",
    calibrate: str | os.PathLike[str] | None = None,
    calibrate_by: str | None = None,
    tolerance: float | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int | tuple[int, ...] | str] | None = None,
    values: Mapping[str, np.ndarray] | None = None,
    states: Mapping[str, str] | None = None,
    inputs: Sequence[str] = (),
    verify: bool = True,
    threads: int | None = None,
    weights: str = "auto",
    bundle: str | os.PathLike[str] | None = None,
    dump: str | os.PathLike[str] | None = None,
    jobs: int | None = None,
    exact_algorithms: bool = False,
    plan: str = GREEDY,
    plan_time: float | None = None,
    keep_subnormals: bool = False,
    limit_time: float | None = None,
    limit_memory: int | str | None = None,
    db: str | os.PathLike[str] | None = None,
    on_progress: Progress | None = None,
) -> Compiled:
    """Compiles an ONNX model into a shared library and a header beside it.

    Args:
        model: The ONNX file.
        output: The library; None: the model's name with `.so`, in the current directory, or in that
            of the `bundle`.
        target: The machine: `native`, the name of a target or a file that describes one, or several
            of them with commas between, of which a session runs the code of the best one that its
            CPU can (docs/command_line.md).
        precision: `fp32`; with `bf16`, `fp16`, `w8`, `w4` weights are stored in 16, 8, 4 bits where
            kernels are faster by it, and all is computed in float32, but for `bf16` on processors
            that multiply it; with `int8` products of weights are summed in 8 bits where that is
            faster, with `auto` those of which results stay within the tolerance
            (docs/numerics.md).
        calibrate: A folder of inputs as of `rutc verify --data`, with `int8` or `auto`: the ranges
            of values are those that they have on these; with `bf16` the first tells what filters
            lose. None: on generated inputs.
        calibrate_by: How ranges are found: `minmax`, `percentile` or `mse` (docs/numerics.md).
        tolerance: How far outputs may be from ONNX Runtime's with `int8` or `auto`: the norm of the
            difference by that of the output; None: 0.1.
        shapes: Extents of inputs by name, for models that leave them open.
        dims: Extents of symbolic dims by name, like `{"batch": 1}`, or ranges: `(1, 64)`, of
            multiples `(32, 640, 32)`, and of which 8 is the most common `(1, 64, 1, 8)`; or
            formulas of others: `"past + seq"`.
        values: What inputs hold in every run, by name, for operands that decide how to compute
            (axes, a count, a shape); a run with anything else fails.
        states: Outputs that are inputs of the next run: `{"past.*": "present.*"}` (docs/states.md).
        inputs: `NAME=SOURCE` items as of `rutc verify --input`, to verify on, and to decide by
            which layers are filtered how; what is not given is generated.
        verify: Whether to compare with ONNX Runtime on these inputs.
        threads: Threads of the verification; None leaves the choice to each runtime.
        weights: Where they are: `embed`, in the library; `external`, in OUT.weights beside it;
            `auto`: embedded up to 1 GiB.
        bundle: A folder for the library and `rutc_runtime.py`, the Python runtime in one file: all
            that a server with numpy needs.
        dump: A folder for the intermediate forms of every step.
        jobs: How many kernels to compile at once; None: as many as there are CPUs.
        exact_algorithms: Whether to compute what the model states, operation by operation, but for
            the order of sums and fused multiply-adds (docs/filtering.md).
        plan: `greedy`, or `search`: from that plan on a faster one is searched for by estimates.
        plan_time: How many seconds the search takes; None: 10. With 0 it tries a number of changes
            instead, and finds the same on every machine.
        keep_subnormals: Whether to compute with subnormal numbers, slowly; else they are zeros.
        limit_time: The most seconds that compiling and the comparison may take; None: any.
        limit_memory: The most memory that they may hold, in bytes or like `"8G"`; None: any. With
            either limit another process does the work, which is ended at the limit.
        db: The database of tuning records, a file or a URL, of which kernels get the fastest
            schedules that are known; None: `$RUTC_DB`, or the user's own, where there is one;
            `"none"`: only default schedules.
        on_progress: Called with a stage, how many of its steps are done, and how many there are.

    Raises:
        UserError: the model, an option or the output path is at fault, or the work took more than
            a limit; nothing was written.
        VerificationFailed: the result does not agree with ONNX Runtime; it is kept in
            the folder OUT.unverified.
    """
    source = Path(model)
    if inputs and not verify:
        raise UserError(
            "inputs are for the verification, which --no-verify leaves out: drop one of the two"
        )
    folder = None if bundle is None else Path(bundle)
    place = Path(output) if output else None
    with nullcontext() if folder is None else bundle_folder(folder, place):
        place = place or Path(folder or "", source.stem + ".so")
        destination = check_destination(place, source)
        check_number("threads", threads, MAX_THREADS)
        check_number("jobs", jobs)
        if dump is not None:
            check_folder(Path(dump))
        options = asked(
            target=target,
            precision=precision,
            calibrate=calibrate,
            calibrate_by=calibrate_by,
            tolerance=tolerance,
            shapes=shapes,
            dims=dims,
            values=values,
            states=states,
            dump=dump,
            jobs=jobs,
            exact_algorithms=exact_algorithms,
            plan=plan,
            plan_time=plan_time,
            keep_subnormals=keep_subnormals,
            weights=weights,
            db=db,
        )
        given = Given(tuple(inputs), None if inputs else options.calibration.data)
        work = (_compiled, source, destination, options, given, verify, threads)
        try:
            compiled = limited(limit_time, limit_memory, on_progress, *work)
        finally:
            if limit_time is not None or limit_memory is not None:
                sweep(destination.parent)
        if folder is not None:
            write_loader(folder)
    return compiled


def limited(
    seconds: float | None,
    memory: int | str | None,
    on_progress: Progress | None,
    call: Callable[..., T],
    *args: object,
) -> T:
    """What `call(*args, on_progress)` returns; within limits, if there are any.

    Raises:
        UserError: a limit is none, or the work took more.
    """
    if seconds is None and memory is None:
        return call(*args, on_progress)
    from rutc.driver.limits import Limits, within

    return within(Limits.of(seconds, memory), on_progress, call, *args)


def _compiled(
    source: Path,
    destination: Path,
    options: Options,
    given: Given,
    verify: bool,
    threads: int | None,
    on_progress: Progress | None,
) -> Compiled:
    """What `compile` returns.

    Raises:
        OutOfMemory: besides all that `compile` raises, the machine has not enough memory.
        UserError: an expression is nested too deeply.
    """
    try:
        with host_runtime_for(options.target) as host:
            return _made(source, destination, options, host, given, verify, threads, on_progress)
    except MemoryError as error:
        raise OutOfMemory(
            f"{source}: this machine has not enough memory to compile it ({error}); fix the "
            "model's sizes, or narrow their ranges, with --dim or --shape"
        ) from error
    except RecursionError as error:
        raise UserError(f"{source}: {TOO_DEEP}") from error


def _made(
    source: Path,
    destination: Path,
    options: Options,
    host: HostRuntime,
    given: Given,
    verify: bool,
    threads: int | None,
    on_progress: Progress | None,
) -> Compiled:
    """A compiled model at its place, or beside it where it does not agree."""
    with Workplace(destination.parent) as place:
        imported: list[Graph] = []

        def on_import(graph: Graph) -> None:
            """Check the inputs before there is much work in vain."""
            given.check(graph)
            imported.append(graph)

        def made(refused: Sequence[Refusal] = ()) -> Report:
            """Compile without filters in these layers, in the place of what was made before."""
            for file in place.path.iterdir():
                file.unlink()
            own = replace(options, spread=tuple(r.name for r in refused)) if refused else options
            output = place.path / destination.name
            return _artifact(source, output, own, host, on_progress, on_import)

        first = made()
        if not verify:
            return Compiled(publish(place, first, destination), None)
        graph = imported[0] if imported else None
        found = _checked(source, first, made, given, graph, threads, on_progress)
        if not found.verification.passed:
            from rutc.verify import VerificationFailed

            kept = keep_unverified(place, found.report, destination)
            raise VerificationFailed(
                f"{source} was compiled, but the result does not agree with ONNX Runtime. "
                f"It is kept as {kept} for a closer look; {destination} was not written.",
                replace(found.verification, library=kept),
            )
        published = publish(place, found.report, destination)
    verification = replace(found.verification, library=published.library)
    return Compiled(published, verification, found.refused)


@record
class _Checked:
    """What was made, how it compares with its model, and the layers that are not filtered."""

    report: Report
    verification: Verification
    refused: tuple[Refusal, ...]


def _checked(
    source: Path,
    report: Report,
    made: Callable[[Sequence[Refusal]], Report],
    given: Given,
    graph: Graph | None,
    threads: int | None,
    on_progress: Progress | None,
) -> _Checked:
    """What was made compared with its model, after it was made again without lossy filters.

    Those go first that lose too much of their own outputs. What they lose may be little of these
    and much of what is made of them: where the model's outputs do not agree, all others that lose
    anything go, too.

    Raises:
        UserError: this machine cannot run it.
    """
    from rutc.driver.verify_library import refusals_of
    from rutc.runtime import ModelError
    from rutc.verify import BRIEF, targets_in, verify_model, verify_targets

    def verified(library: Path, target: str | None) -> Verification:
        return verify_model(
            source,
            library,
            inputs=values,
            data=given.data,
            threads=threads,
            graph=graph,
            effort=BRIEF,
            on_progress=on_progress,
            target=target,
        )

    refused: tuple[Refusal, ...] = ()
    try:
        values = given.values(report.library)
        targets = targets_in(report.library)
        for every in (False, True):
            found = refusals_of(source, report.library, values, threads, targets.here, every)
            if every and not found:
                break
            if found:
                refused += found
                report = made(refused)
            verification = verify_targets(targets, partial(verified, report.library))
            if verification.passed:
                break
    except ModelError as error:
        raise UserError(
            f"{source} was compiled, but cannot be checked here: {error}. "
            "To write it unchecked, compile with --no-verify."
        ) from error
    return _Checked(report, verification, refused)


def _artifact(
    source: Path,
    output: Path,
    options: Options,
    host: HostRuntime,
    on_progress: Progress | None,
    on_import: Callable[[Graph], None],
) -> Report:
    """Writes the artifact, which is all that its folder holds: one made before, or a new one."""
    from rutc.driver.reuse import entry

    start = perf_counter()
    place = entry(source, output.name, options, host.toolchain)
    found = place.fetch(output) if place is not None else None
    if found is not None:
        if on_progress is not None:
            on_progress("found in the cache", 1, 1)
        seconds = {"cache": perf_counter() - start}
        return replace(found, seconds=seconds, precision=options.precision)
    from rutc.driver.compiler import compile_model

    if options.db is None:
        return compile_model(source, output, options, on_progress, host, place, on_import)
    from rutc.driver.tuning.records_in import records_in
    from rutc.tuner.database.database import Database

    with Database.open(options.db, create=False) as database:
        records = partial(records_in, database)
        return compile_model(source, output, options, on_progress, host, place, on_import, records)


def verify(
    model: str | os.PathLike[str],
    library: str | os.PathLike[str] | None = None,
    *,
    inputs: Sequence[str] = (),
    data: str | os.PathLike[str] | None = None,
    target: str | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int | tuple[int, ...] | str] | None = None,
    values: Mapping[str, np.ndarray] | None = None,
    states: Mapping[str, str] | None = None,
    threads: int | None = None,
    limit_time: float | None = None,
    limit_memory: int | str | None = None,
    on_progress: Progress | None = None,
) -> Verification:
    """Compares a compiled model with float64 and with ONNX Runtime.

    Args:
        model: The ONNX file.
        library: What was compiled from it; None compiles it now, into a temporary folder.
        inputs: `NAME=SOURCE` items as of `rutc verify --input`; what is not given is generated.
        data: A folder of `.npz` files or `test_data_set_*` folders instead: all of it is used.
            What of it cannot be is told in `Verification.skipped`.
        target: The target, or several, of a library that is compiled now; of a library that has
            several the one that is compared, None: all that this machine can run.
        shapes: See `compile`; for a library that is compiled now.
        dims: See `compile`; beside a library the sizes that generated inputs have.
        values: See `compile`; for a library that is compiled now.
        states: See `compile`; for a library that is compiled now.
        threads: Threads of both; None leaves the choice to each.
        limit_time: See `compile`.
        limit_memory: See `compile`.
        on_progress: See `compile`.

    Raises:
        UserError: the model or an input is at fault, or the work took more than a limit.
    """
    how = asked(target=target or "native", shapes=shapes, dims=dims, values=values, states=states)
    given = Given(tuple(inputs), None if data is None else Path(data))
    work = (Path(model), None if library is None else Path(library), how, given, threads, target)
    return limited(limit_time, limit_memory, on_progress, _verified, *work)


def _verified(
    source: Path,
    library: Path | None,
    how: Options,
    given: Given,
    threads: int | None,
    target: str | None,
    on_progress: Progress | None,
) -> Verification:
    """What `verify` returns."""
    from rutc.driver.verify_library import compared
    from rutc.verify.feeding.dataset import sample_paths

    if not source.is_file():
        raise UserError(f"there is no file {source}")
    if given.inputs and given.data is not None:
        raise UserError("give inputs or a folder of them (--data), not both")
    if given.data is not None:
        sample_paths(given.data)
    if library is None:
        with Workplace() as place:
            made = place.path / "model.so"
            _compiled(source, made, how, given, False, threads, on_progress)
            return compared(source, made, given, threads, on_progress)
    return compared(source, library, given, threads, on_progress, how, target)
