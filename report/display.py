"""How results look: a JSON payload and tables for a terminal, for each thing that is shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rutc.driver.options import EIGHT_BITS, FP32, USUAL
from rutc.report.listing import Table, numeral
from rutc.report.printable import counted

if TYPE_CHECKING:
    from rutc.driver.bisect import Divergence
    from rutc.driver.options import Report
    from rutc.emit.cache import Usage
    from rutc.runtime import NodeArg, ProfileEntry
    from rutc.verify import Verification
    from rutc.verify.bench import BenchTiming
    from rutc.verify.interleaved import Latency

Json = dict[str, object]
BYTES = 1024.0
NO_SUMS = "no sums of products in 8 bits"
LONGEST_FORMULA = 60
"""Characters of a formula of sizes, more of which tell a reader nothing; `--json` has all."""


def quantity(value: float, unit: str, step: float = 1000.0) -> str:
    """Returns a number with a prefix: `quantity(2.5e9, "FLOP")` -> `"2.5 GFLOP"`."""
    prefixes = ["", "k", "M", "G", "T"] if step == 1000.0 else ["", "Ki", "Mi", "Gi", "Ti"]
    for prefix in prefixes[:-1]:
        if abs(value) < step:
            whole = value % 1 == 0 or abs(value) >= 1000
            return f"{value:.0f} {prefix}{unit}" if whole else f"{value:.3g} {prefix}{unit}"
        value /= step
    return f"{value:.3g} {prefixes[-1]}{unit}"


def report_json(report: Report) -> Json:
    """Returns what a compilation made, as JSON."""
    return asdict(report)


def bundle_text(report: Report, folder: Path) -> str:
    """Returns what a folder is for that has a library and its loader."""
    return (
        f"{folder}: all that a server with Python and numpy needs: "
        f'rutc_runtime.load("{report.library.name}")'
    )


def report_text(report: Report) -> str:
    """Returns what a compilation made, in two lines, and what is said of its precision and plan."""
    return (
        f"{report.library}: {counted(report.kernels, 'kernel')}, {_of_a_run(report)}\n"
        f"{_targets(report)}{_precision(report)}{_records(report)}"
        f"compiled in {sum(report.seconds.values()):.2f} s; C header: {report.header}"
    )


def _of_a_run(report: Report) -> str:
    """Returns what a run takes; of a model of many sizes at which, and what it takes at most."""
    where = "" if report.weights is None else f" in {report.weights.name}"
    weights = f"{quantity(report.weight_bytes, 'B', BYTES)} of weights{where}"
    flops = f"{quantity(report.flops, 'FLOP')} per run"
    memory = f"{quantity(report.arena_bytes, 'B', BYTES)} of working memory"
    threads = for_each_thread(report.thread_bytes)
    if not report.sizes:
        return f"{flops}, {weights}, {memory}{threads}"
    most = f", {quantity(report.arena_most, 'B', BYTES)} at {report.largest}"
    return f"{weights}{threads}; at {report.sizes} {flops}, {memory}" + most * bool(report.largest)


def _targets(report: Report) -> str:
    """Returns a line on the targets that a library has code for; "" where it is one."""
    if not report.targets:
        return ""
    told = f"weights are those of all, what else is told that of {report.targets[0]}"
    return f"targets: {', '.join(report.targets)}; {told}\n"


def _precision(report: Report) -> str:
    """Returns a line on what is not stored in float32; "" where that was not asked for."""
    if report.precision == FP32:
        return ""
    if report.precision in EIGHT_BITS:
        if not report.sums:
            others = f", but of {report.other_types}" * bool(report.other_types)
            return f"{NO_SUMS}: the model has none of f32 values and constants{others}\n"
        own = "; --calibrate DIR takes typical inputs" * ("generated" in report.calibration)
        on = f", calibrated on {report.calibration}{own}" * bool(report.calibration)
        return f"{report.integer_sums} of {report.sums} sums of products in 8 bits{on}\n"
    if not report.narrow_values:
        return f"no values stored as {report.precision}: no kernel would be faster by it\n"
    sizes = instead(report.narrow_bytes, report.narrow_saved)
    values = counted(report.narrow_values, "value")
    return f"{values} stored as {report.precision}: {sizes}\n"


def _records(report: Report) -> str:
    """Returns a line on what was measured of a model; "" where nothing was, or is looked for."""
    parts = []
    if report.plan_source not in ("", USUAL):
        parts.append(f"plan: {report.plan_source}")
    if report.recorded:
        parts.append(
            f"schedules on record: {report.recorded} of {counted(report.kernels, 'kernel')}"
        )
    return "; ".join(parts) + "\n" if parts else ""


def instead(own: int, saved: int) -> str:
    """Returns what values take, and what they would take in the type that they are computed in."""
    return f"{quantity(own, 'B', BYTES)} instead of {quantity(own + saved, 'B', BYTES)}"


def usage_json(usage: Usage) -> Json:
    """Returns how large the cache is, as JSON."""
    return asdict(usage)


def usage_text(usage: Usage) -> str:
    """Returns how large the cache is, in a line."""
    return (
        f"{usage.folder}: {quantity(usage.bytes, 'B', BYTES)} in {usage.artifacts} artifacts and "
        f"{usage.objects} compiled parts, at most {quantity(usage.limit_bytes, 'B', BYTES)}"
    )


def for_each_thread(size: int) -> str:
    """Returns the memory that each thread has for itself, behind other memory; "" if it is none."""
    return f", {quantity(size, 'B', BYTES)} for each thread" if size else ""


def verification_json(verification: Verification) -> Json:
    """Returns a verification as JSON."""
    return {
        "passed": verification.passed,
        "model": verification.model,
        "library": verification.library,
        "level": verification.level.value,
        "inputs": verification.inputs,
        "threads": verification.threads,
        "onnxruntime": verification.reference_version,
        "runs": verification.runs,
        "runs_with_float64": verification.with_truth,
        "unverified": list(verification.unverified),
        "skipped": list(verification.skipped),
        "lossy": list(verification.lossy),
        "related": list(verification.related),
        "targets": list(verification.targets),
        "outputs": [asdict(output) for output in verification.outputs],
    }


def verification_table(verification: Verification) -> Table:
    """Returns one row per output: rutc beside ONNX Runtime, and both beside float64."""
    table = Table(
        *("output", "shape", "max abs", "max ULP", "of largest", "error", "ORT's error", "agrees"),
        names=("output", "shape"),
    )
    for output in verification.outputs:
        share = output.max_abs / output.largest if output.largest else 0.0
        table.add(
            output.name,
            f"{output.dtype}{list(output.shape)}",
            f"{output.max_abs:.3g}",
            str(output.max_ulp),
            f"{share:.2g}",
            "-" if output.error is None else f"{output.error:.2g}",
            "-" if output.reference_error is None else f"{output.reference_error:.2g}",
            ("?" if output.remark else "yes") if output.passed else "NO",
        )
    return table


def verification_text(verification: Verification) -> str:
    """Returns the summary, what was skipped or not verified, and why outputs do not agree."""
    reasons = [f"{o.name}: {o.reason}" for o in verification.outputs if not o.passed]
    unverified = [f"unverified: {text}" for text in verification.unverified]
    skipped = [f"skipped: {text}" for text in verification.skipped]
    which = f"the inputs of {verification.brief}" if verification.brief else "these inputs"
    lossy = [
        f"filtering costs accuracy in {text}; compile with {which}" for text in verification.lossy
    ]
    related = [
        f"sizes belong together: compile with --dim {text}, which makes faster code"
        for text in verification.related
    ]
    return "\n".join([verification.summary(), *skipped, *unverified, *reasons, *lossy, *related])


def divergence_json(divergence: Divergence | None) -> Json | None:
    """Returns where a model diverges, as JSON."""
    return None if divergence is None else asdict(divergence)


def divergence_text(divergence: Divergence | None) -> str:
    """Returns where a model diverges, in a few lines."""
    if divergence is not None:
        return str(divergence)
    return (
        "no node could be named: every value that could be observed agrees, though the model's "
        "outputs do not"
    )


def shape_text(shape: Sequence[int | str]) -> str:
    """Returns a shape, the sizes in it by their names: `[batch, 3, 4*h]`; long formulas as `…`."""
    told = (str(size) if len(str(size)) <= LONGEST_FORMULA else "…" for size in shape)
    return f"[{', '.join(told)}]"


def ports_table(inputs: Iterable[NodeArg], outputs: Iterable[NodeArg]) -> Table:
    """Returns one row per input and output."""
    table = Table("", "name", "type", "shape", names=("name", "type", "shape"))
    for role, ports in (("input", inputs), ("output", outputs)):
        for port in ports:
            # A sequence has a length that each run tells, and its elements shapes of their own.
            shape = "" if port.type.startswith("seq(") else shape_text(port.shape)
            table.add(role, port.name, port.type, shape)
    return table


def targets_table(rows: Iterable[Sequence[str]]) -> Table:
    """Returns one row per target: its name, kernels, memory, and whether it runs here."""
    table = Table(
        *("target", "kernels", "memory", "on this CPU"), names=("target", "memory", "on this CPU")
    )
    for row in rows:
        table.add(*row)
    return table


def operators_table(operators: Mapping[str, int]) -> Table:
    """Returns one row per operator of a model, those of most nodes first."""
    table = Table("operator", "nodes", names=("operator",))
    for name, count in sorted(operators.items(), key=lambda item: (-item[1], item[0])):
        table.add(name, str(count))
    return table


def timings_json(timings: Sequence[BenchTiming]) -> list[Json]:
    """Returns timings as JSON."""
    return [
        {
            "threads": timing.threads,
            "rutc": _latency(timing.rutc),
            "onnxruntime": _latency(timing.reference),
            "onnxruntime_exact": _latency(timing.exact),
            "ratio": timing.ratio,
        }
        for timing in timings
    ]


def _latency(measured: Latency | None) -> Json | None:
    if measured is None:
        return None
    return {**asdict(measured), "per_second": measured.per_second}


def timings_table(timings: Sequence[BenchTiming]) -> Table:
    """Returns one row per thread count and runtime; times in microseconds.

    The ratio to ONNX Runtime's median has a column where that was measured.
    """
    columns = ["threads", "", "median us", "p10", "p90", "p99", "min", "runs/s", "runs"]
    compared = any(timing.reference is not None for timing in timings)
    table = Table(*columns, *(["ratio"] if compared else []), names=("",))
    for timing in timings:
        for name, latency in timing.latencies.items():
            ratio = f"{timing.ratio:.3f}" if name == "rutc" and timing.ratio is not None else ""
            table.add(
                str(timing.threads),
                name,
                numeral(latency.median_us),
                numeral(latency.p10_us),
                numeral(latency.p90_us),
                numeral(latency.p99_us),
                numeral(latency.minimum_us),
                numeral(latency.per_second),
                str(latency.runs),
                *([ratio] if compared else []),
            )
    return table


def algorithms_table(algorithms: Sequence[Mapping[str, object]]) -> Table:
    """Returns one row per sum of a manifest that another algorithm computes, with its bounds."""
    table = Table(
        *("algorithm", "computes", "tile", "error", "at most", "largest input", "NaN spoils"),
        names=("algorithm", "computes"),
    )
    for a in algorithms:
        tile, reach = a["outputs"], a["reach"]
        table.add(
            str(a["name"]),
            _origin(a),
            _extents(tile),
            f"x{a['typical']:.2g}",
            f"x{a['growth']:.3g}",
            f"{a['largest']:.1e}",
            _extents(reach),
        )
    return table


def _extents(listed: object) -> str:
    return "x".join(map(str, listed)) if isinstance(listed, list | tuple) else ""


def kernels_table(kernels: Sequence[Mapping[str, object]]) -> Table:
    """Returns one row per kernel of a manifest, with its plan if there are several.

    Where schedules are on record, it tells how many times as fast as the default ones they are.
    """
    several = any(_whole(kernel.get("plan")) for kernel in kernels)
    recorded = any(kernel.get("records") for kernel in kernels)
    titles = ("kernel", "computes", "flops", "bytes", *["on record"] * recorded)
    table = Table(*["plan"] * several, *titles, names=("computes", "on record"))
    for kernel in kernels:
        table.add(
            *[str(_whole(kernel.get("plan")))] * several,
            str(kernel.get("name", "")),
            _origin(kernel),
            quantity(_whole(kernel.get("flops")), "FLOP"),
            quantity(_whole(kernel.get("bytes")), "B", BYTES),
            *[_gains(kernel.get("records"))] * recorded,
        )
    return table


def _gains(records: object) -> str:
    """Returns what is on record of the schedules of a kernel, or of the parts of a chain."""
    listed = records if isinstance(records, list) else []
    gains = (f"x{1 / r['ratio']:.2f}" if isinstance(r, Mapping) else "" for r in listed)
    return ", ".join(gain or "default" for gain in gains)


@dataclass(frozen=True, slots=True)
class StepTime:
    """One step: its name in the manifest, what it computes, and of a run its calls, time and work.

    The work is None where it depends on the run's sizes, or nothing is told of it.
    """

    name: str
    origin: str
    us: float
    flops: int | None
    bytes: int | None
    calls: int = 1
    """Of a run; more than one in loops, and where kernels take turns."""
    kernel: int | None = None
    """The kernel's number in the manifest; None of other steps."""
    least_us: float | None = None
    """What it takes at least on this machine, by all threads, if that is known."""
    limit: str = ""
    """Why: arithmetic, or the level of memory that its bytes come from."""

    @property
    def gflops(self) -> float | None:
        """Billions of floating-point operations per second."""
        return _rate(self.flops, self.us)

    @property
    def gbytes(self) -> float | None:
        """Billions of bytes per second."""
        return _rate(self.bytes, self.us)


def _rate(work: int | None, us: float) -> float | None:
    if work is None:
        return None
    return work / us / 1e3 if us else 0.0


def step_times(
    entries: Sequence[ProfileEntry],
    kernels: Sequence[Mapping[str, object]],
    *,
    usual: bool = False,
) -> list[StepTime]:
    """Returns the steps of a run with what the manifest says of each, in their order.

    A `usual` run has the common sizes, for which the manifest tells the work of kernels.
    """
    facts: dict[tuple[str, str], list[int]] = {}
    for place, kernel in enumerate(kernels):
        key = (str(kernel.get("symbol")), _origin(kernel))
        facts.setdefault(key, []).append(place)
    times = []
    for entry in entries:
        known = facts.get((entry.name, entry.origin))
        number = known.pop(0) if known else None
        fact: Mapping[str, object] = {} if number is None else kernels[number]
        if entry.calls == 0:
            continue
        told = number is not None and (usual or not fact.get("symbols"))
        trips = entry.calls / max(_whole(fact.get("turns")), 1)
        times.append(
            StepTime(
                name=str(fact.get("name", entry.name)),
                origin=entry.origin,
                us=entry.total_us,
                flops=round(trips * _whole(fact.get("flops"))) if told else None,
                bytes=round(trips * _whole(fact.get("bytes"))) if told else None,
                calls=entry.calls,
                kernel=number,
            )
        )
    return times


def _origin(kernel: Mapping[str, object]) -> str:
    origin = kernel.get("origin", ())
    return ", ".join(map(str, origin)) if isinstance(origin, list) else str(origin)


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0


def profile_table(times: Sequence[StepTime]) -> Table:
    """Returns one row per step of a run, the slowest first; calls in loops, rates where known."""
    total = sum(time.us for time in times) or 1.0
    rated = any(time.flops is not None for time in times)
    bounded = any(time.least_us is not None for time in times)
    repeated = any(time.calls != 1 for time in times)
    columns = (*(("calls",) if repeated else ()), "us", "share")
    table = Table(
        *("kernel", "computes", *columns, *(("GFLOP/s", "GB/s") if rated else ())),
        *(("least us", "reached", "limit") if bounded else ()),
        names=("kernel", "computes", "limit"),
    )
    for time in sorted(times, key=lambda time: -time.us):
        table.add(
            time.name,
            time.origin,
            *((str(time.calls),) if repeated else ()),
            f"{time.us:.2f}",
            f"{100 * time.us / total:.1f} %",
            *("" if r is None else f"{r:.1f}" for r in (time.gflops, time.gbytes) if rated),
            *(_reached(time.least_us, time.us, time.limit) if bounded else ()),
        )
    least = least_of(times)
    rest = ("", *(("", "") if rated else ()), *_reached(least, total, "")) if bounded else ()
    table.add("total", "", *(("",) if repeated else ()), f"{total:.2f}", *rest)
    return table


def least_of(times: Sequence[StepTime]) -> float | None:
    """Returns the microseconds that steps take at least; None where that is known of none.

    Those of which it is not known count for nothing.
    """
    known = [time.least_us for time in times if time.least_us is not None]
    return sum(known) if known else None


def _reached(least_us: float | None, us: float, limit: str) -> tuple[str, str, str]:
    """The least time of a step, its share of what the step took, and what limits it.

    Nothing is told where it is not known, or where the step computes nothing on what lies near.
    """
    if not least_us:
        return "", "", ""
    return f"{least_us:.2f}", f"{100 * least_us / us:.0f} %" if us else "", limit
