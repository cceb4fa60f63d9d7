"""`python -m benchmarks.fit`: fits the constants of `tensor_ir.cost` to measured kernels.

    python -m benchmarks.fit --measure     # times kernels anew on this processor, for its targets
    python -m benchmarks.fit --measure "turned 64x49 f32"    # of this source, beside the others
    python -m benchmarks.fit --measure "resnet50 in bf16"    # in a precision, where it has kernels
    python -m benchmarks.fit --count       # counts what all of them do anew, and keeps the times
    python -m benchmarks.fit               # fits the constants, and writes docs/cost.md

Times lie in benchmarks/results/kernels_timed, a file for each processor, each time with the summary
of its kernel, so that a fit takes seconds. The kernels themselves are kept beside it: to count anew
what all of them do takes a minute or two, whatever the plans of today make of their models. Kernels
are told apart by a hash: those of which it is a multiple of three take no part in the fit, on any
processor, and the errors that count are theirs. What is fitted goes to tensor_ir/cost/fitted.json.
"""

import argparse
import gzip
import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, cast

import numpy as np
from scipy.optimize import least_squares

from benchmarks import cost_page
from benchmarks.in_process import Elementwise
from benchmarks.kept_kernels import Kept, decoded, encoded, read, write
from benchmarks.kernel_source import kernels, sources
from benchmarks.kernel_times import Cycles, Point, digest_of, least_ns, points
from benchmarks.machine import ROOT, provenance
from benchmarks.misjudged import Misjudged
from rutc.driver.timing.trials import Clock
from rutc.emit.llvm import ir
from rutc.emit.scalar import emit_op
from rutc.emit.targets import native_target
from rutc.emit.targets.measured import with_measured_rates
from rutc.emit.targets.x86 import avx2
from rutc.errors import RutcError
from rutc.tensor_ir.cost import Costs, Region, summarise
from rutc.tensor_ir.cost.estimate import (
    Rates,
    blocks_of,
    levels_of,
    norm,
    overhead_of,
    parts_of,
)
from rutc.tensor_ir.cost.fitted import FITTED, FREE
from rutc.tensor_ir.cost.work import KINDS, LEVELS
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.expr import ELEMENTARY, OPS
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import NotApplicable, Pack, Step, apply_schedule, parse_schedule
from rutc.tuner import choose

RESULTS = ROOT / "benchmarks" / "results" / "kernels_timed"
KEPT = ROOT / "benchmarks" / "results" / "kernels_kept.json.gz"
"""The kernels of all of these files."""
CHUNK = 8
"""So many kernels are counted by a process at a time."""
IN_MODELS = "in models"
"""Of times in a file: a search took them in runs of models (`benchmarks.searched`)."""
HELD_OUT = 3
"""One kernel in so many takes no part in the fit."""
SHARPEST = 12.0
"""Beyond that, only the longest of several times counts."""
PRIOR = 0.02
"""How much a constant that changes nothing stays where it was."""
CLEAR, LEAST = 1e-3, 1e-5
"""How far inside its bounds a fit begins, and the relative change at which it ends."""
ELEMENTS, REPEATS = 1024, (100, 200)
"""Arguments of an elementary function whose time is told, and how often they are computed."""
DIGITS = 4
"""Digits that are kept of counts and constants."""


@dataclass(frozen=True)
class Timed:
    """A point, its cycles, and what its kernel does."""

    source: str
    name: str
    digest: str
    target: str
    """And the processor: `znver4 x86-64-v3`."""
    template: str
    number: int
    schedule: str
    cycles: float
    regions: tuple[Region, ...]

    @property
    def kernel(self) -> tuple[str, str]:
        """What tells its kernel from others."""
        return self.target, self.digest

    @property
    def held_out(self) -> bool:
        """Whether it takes no part in the fit."""
        return int(self.digest, 16) % HELD_OUT == 0


@dataclass(frozen=True)
class Times:
    """Measured points, the rates of the machines that they are for, and where they come from."""

    points: tuple[Timed, ...]
    rates: Mapping[str, Rates]
    functions: Mapping[str, Mapping[str, float]]
    """What elementary functions take, by target."""
    bits: Mapping[str, int]
    """Of the targets' registers."""
    provenance: tuple[Mapping[str, Any], ...]
    """Of each processor's."""
    machines: Mapping[str, Machine] = field(default_factory=dict)
    """What code was for, by target."""


def machines() -> dict[str, Machine]:
    """Returns the processor at hand, as native code sees it, and code for AVX2."""
    native = native_target().machine
    narrow = with_measured_rates(avx2(l1=native.l1, l2=native.l2))
    return {m.name: m for m in (narrow, native)}


def measure(names: Collection[str] = ()) -> None:
    """Times the points of all kernels on this processor, and writes them.

    Of named sources, theirs beside what is known of this processor: all others stay.
    """
    whence = asdict(provenance())
    place = RESULTS / f"{whence['processor']}.json.gz"
    rows: list[Timed] = []
    if names:
        data = _read(place)
        rows += (row for row in map(_decoded, data["points"]) if row.source not in names)
        targets, called = _machines(data), data["functions"]
        added = {"commit": whence["commit"], "date": whence["date"], "sources": [*names]}
        whence = {**data["provenance"], "added": [*data["provenance"].get("added", ()), added]}
    else:
        targets = machines()
        called = {name: functions(machine) for name, machine in targets.items()}
    kept = read(KEPT)
    for target, machine in targets.items():
        clock, seen = Cycles(machine), set[str]()
        for source in [s for s in sources(machine) if not names or s in names]:
            try:
                found = list(points(source, machine, seen))
            except RutcError as error:
                print(f"{source}: {str(error).splitlines()[0]}")
                continue
            for point in found:
                cycles = _cycles(point, clock)
                if cycles is not None:
                    rows.append(timed(point, target, cycles, machine))
                    kept[point.digest] = encoded(point.before), sorted(point.constants)
            print(f"{target}: {source}: {len(rows)} points", flush=True)
    save(place, rows, targets, called, whence)
    write(KEPT, kept)


def count_anew(place: Path, kept: dict[str, Kept]) -> None:
    """Counts what the points of a file do anew, and keeps their times.

    Kernels that are not kept yet are looked for in the plans of today, and kept from now on. Points
    are left out if these have them no more, if their steps do not apply, or if those of a file do
    not tell how constants are laid out, as they did not once.
    """
    data = _read(place)
    rows = [_decoded(row) for row in data["points"]]
    targets = _machines(data)
    of_kernel: dict[tuple[str, str], list[Timed]] = defaultdict(list)
    for row in rows:
        of_kernel[row.kernel].append(row)
    for target, machine in targets.items():
        lacking = {row.source for row in rows if row.target == target and row.digest not in kept}
        _keep(sorted(lacking), machine, {row.digest for row in rows}, kept)
    known = [key for key in of_kernel if key[1] in kept]
    jobs = [
        (kept[digest], targets[target], [row.schedule for row in of_kernel[target, digest]])
        for target, digest in known
    ]
    counted: list[Timed] = []
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        for key, found in zip(known, pool.map(_counted, jobs, chunksize=CHUNK), strict=True):
            pairs = zip(of_kernel[key], found, strict=True)
            counted += [replace(row, regions=own) for row, own in pairs if own is not None]
    print(f"{place.name}: {len(counted)} of {len(rows)} points")
    save(place, counted, targets, data["functions"], data["provenance"])


def _keep(
    names: Iterable[str], machine: Machine, wanted: Collection[str], kept: dict[str, Kept]
) -> None:
    """Keeps those kernels of models that are wanted."""
    for source in names:
        try:
            for _, kernel, constants in kernels(source, machine):
                digest = digest_of(kernel, constants)
                if digest in wanted and digest not in kept:
                    kept[digest] = encoded(kernel), sorted(constants)
        except RutcError as error:
            print(f"{source}: {str(error).splitlines()[0]}")


def _counted(job: tuple[Kept, Machine, Sequence[str]]) -> list[tuple[Region, ...] | None]:
    """What a kernel does under each of some schedules; None of one that is left out."""
    (table, constants), machine, schedules = job
    kernel, steps = decoded(table), [parse_schedule(text) for text in schedules]
    if not any(map(_packs, steps)) and _packs(
        choose(kernel, machine, frozenset(constants)).schedule
    ):
        return [None for _ in steps]
    found: list[tuple[Region, ...] | None] = []
    for each in steps:
        try:
            found.append(summarise(apply_schedule(kernel, each), machine).regions)
        except NotApplicable:
            found.append(None)
    return found


def _packs(steps: Iterable[Step]) -> bool:
    return any(isinstance(step, Pack) for step in steps)


def _cycles(point: Point, clock: Cycles) -> float | None:
    try:
        return clock.of(point)
    except RutcError as error:
        print(f"{point.source} {point.name}: {str(error).splitlines()[0]}")
        return None


def timed(point: Point, target: str, cycles: float, machine: Machine) -> Timed:
    """Returns the row of a point."""
    regions = summarise(point.kernel, machine).regions
    return Timed(
        point.source,
        point.name,
        point.digest,
        target,
        point.template,
        point.number,
        point.schedule,
        cycles,
        regions,
    )


# -- the file -----------------------------------------------------------------------------------
def save(
    place: Path,
    rows: Iterable[Timed],
    targets: Mapping[str, Machine],
    called: Mapping[str, Mapping[str, float]],
    whence: Mapping[str, Any],
) -> None:
    """Writes the points measured on one processor."""
    data = {
        "provenance": dict(whence),
        "machines": {n: {**_plain(m), "features": sorted(m.features)} for n, m in targets.items()},
        "rates": {n: asdict(Rates.of(m)) for n, m in targets.items()},
        "functions": called,
        "points": [_encoded(row) for row in rows],
    }
    text = json.dumps(data, separators=(",", ":"))
    place.parent.mkdir(exist_ok=True)
    place.write_bytes(gzip.compress(text.encode(), mtime=0))


def _plain(machine: Machine) -> dict[str, object]:
    return {f.name: getattr(machine, f.name) for f in fields(machine) if f.name != "coefficients"}


def _machines(data: Mapping[str, Any]) -> dict[str, Machine]:
    """Returns what code was for, of the contents of a file."""
    return {
        name: Machine(**{**facts, "features": frozenset(facts["features"])})
        for name, facts in data["machines"].items()
    }


def _read(place: Path) -> dict[str, Any]:
    return cast(dict[str, Any], json.loads(gzip.decompress(place.read_bytes())))


def load(folder: Path = RESULTS, *, shared: bool = False, in_models: bool = False) -> Times:
    """Returns the points measured so far on all processors.

    Where other tasks had the last cache and memory at the same time (`shared` in the provenance),
    or operands lay as runs had left them (`in_models`), only the order of a kernel's schedules
    counts: such points are left out unless asked for. So are those that constants are not fitted to
    (`held_out`), asked for with the shared ones, which tell what constants are worth elsewhere.
    """
    points: list[Timed] = []
    rates: dict[str, Rates] = {}
    functions: dict[str, Mapping[str, float]] = {}
    bits: dict[str, int] = {}
    known: dict[str, Machine] = {}
    whence: list[Mapping[str, Any]] = []
    for place in sorted(folder.glob("*.json.gz")):
        data = _read(place)
        said = data["provenance"]
        where = f" {IN_MODELS}" if said.get("operands") == IN_MODELS else ""
        if not (in_models if where else shared or fitted_to(said)):
            continue
        own = str(said["processor"])
        whence.append(said)
        rows = map(_decoded, data["points"])
        points += (replace(row, target=f"{own} {row.target}{where}") for row in rows)
        for name, r in data["rates"].items():
            target = f"{own} {name}{where}"
            rates[target] = Rates(**{**r, "level_bytes": tuple(r["level_bytes"])})
            functions[target] = data["functions"][name]
        for name, machine in _machines(data).items():
            known[f"{own} {name}{where}"] = machine
            bits[f"{own} {name}{where}"] = machine.vector_bits
    return Times(tuple(points), rates, functions, bits, tuple(whence), known)


def fitted_to(whence: Mapping[str, Any]) -> bool:
    """Returns whether constants are fitted to what was timed there, as its provenance tells."""
    return not {"shared", "held_out", "operands"} & set(whence)


def rounded(x: float) -> float:
    """Returns a number of few digits."""
    return float(f"{x:.{DIGITS}g}")


def _encoded(row: Timed) -> list[object]:
    """Returns a row as JSON; regions that only loop are one."""
    idle = [r for r in row.regions if not r.work and not r.functions and not r.chain]
    busy = [r for r in row.regions if r not in idle]
    times, entries = sum(r.times for r in idle), sum(r.entries for r in idle)
    kept = [*busy, Region("", times, entries, {})] if idle else busy
    regions = [
        [
            rounded(r.times),
            rounded(r.entries),
            {k: rounded(v) for k, v in r.work.items()},
            {k: rounded(v) for k, v in r.functions.items()},
            rounded(r.chain),
            [rounded(x) for pair in r.moved for x in pair] if any(map(any, r.moved)) else [],
            rounded(r.evicted),
        ]
        for r in kept
    ]
    facts = [row.source, row.name, row.digest, row.target, row.template, row.number, row.schedule]
    return [*facts, rounded(row.cycles), regions]


def _decoded(data: Sequence[Any]) -> Timed:
    source, name, digest, target, template, number, schedule, cycles, regions = data
    found = []
    for times, entries, work, called, chain, moved, evicted in regions:
        pairs = zip(moved[::2], moved[1::2], strict=True) if moved else [(0.0, 0.0)] * LEVELS
        found.append(Region("", times, entries, work, called, chain, 0, tuple(pairs), evicted))
    kernel = source, name, digest, target, template
    return Timed(*kernel, number, schedule, cycles, tuple(found))


def functions(machine: Machine) -> dict[str, float]:
    """Returns how many multiply-adds each elementary function takes as long as."""
    clock, found = Clock(machine), dict[str, float]()
    for op in sorted(ELEMENTARY):

        def body(builder: ir.IRBuilder, values: Sequence[ir.Value], op: str = op) -> ir.Value:
            return emit_op(builder, op, list(values), DType.F32, machine.features)

        code = Elementwise(body, [DType.F32] * OPS[op], DType.F32, machine.width, machine)
        # From 1 on acosh is real, and all others are below it.
        least = 1.1 if op == "acosh" else 0.1
        arrays = [np.linspace(least, least + 0.8, ELEMENTS, dtype=np.float32)] * OPS[op]
        runs = [least_ns(partial(code, *arrays, repeats=n)) for n in REPEATS]
        cycles = (runs[1] - runs[0]) / (REPEATS[1] - REPEATS[0]) / clock.cycle_ns()
        found[op] = rounded(cycles / (ELEMENTS / machine.width) * machine.fma_per_cycle)
    return found


# -- the fit ------------------------------------------------------------------------------------
class Model:
    """Estimates of many points at once: `tensor_ir.cost.estimate` on arrays."""

    def __init__(self, times: Times) -> None:
        """Put what all regions do into arrays."""
        pairs = [(i, r) for i, row in enumerate(times.points) for r in row.regions]
        regions = [r for _, r in pairs]
        own = [times.rates[times.points[i].target] for i, _ in pairs]
        self.count = len(times.points)
        self.owner = np.array([i for i, _ in pairs])
        self.work = {k: np.array([r.work.get(k, 0.0) for r in regions]) for k in KINDS}
        shared = functions_by_bits(times)
        called = [shared[times.bits[times.points[i].target]] for i, _ in pairs]
        self.polynomial = np.array(
            [
                sum(n * own[f] for f, n in r.functions.items())
                for r, own in zip(regions, called, strict=True)
            ]
        )
        self.chain = np.array([r.chain for r in regions])
        moved = np.array([r.moved for r in regions])
        self.moved: Any = [(moved[:, k, 0], moved[:, k, 1]) for k in range(LEVELS)]
        self.evicted: Any = np.array([r.evicted for r in regions])
        self.times = np.array([r.times for r in regions])
        self.entries = np.array([r.entries for r in regions])
        names = [f.name for f in fields(Rates) if f.name != "level_bytes"]
        rates: dict[str, Any] = {n: np.array([getattr(r, n) for r in own]) for n in names}
        levels: Any = tuple(np.array([r.level_bytes[k] for r in own]) for k in range(LEVELS))
        self.rates = Rates(**rates, level_bytes=levels)

    def logarithms(self, costs: Costs) -> np.ndarray:
        """Returns the logarithms of all points' estimated cycles."""

        def work(kind: str) -> Any:
            return self.work[kind]

        chain: Any = self.chain
        parts = parts_of(work, self.polynomial, chain, self.rates, costs)  # type: ignore[arg-type]
        levels = levels_of(self.moved, work("waiting"), self.rates, costs)
        core: Any = norm({"core": norm(parts, costs.ports), **levels}, costs.levels)
        times, entries, evicted = (cast(Any, x) for x in (self.times, self.entries, self.evicted))
        core = core + blocks_of(work, costs) + overhead_of(work, times, entries, evicted, costs)
        cycles: np.ndarray = np.bincount(self.owner, core, self.count) + costs.call
        return cast(np.ndarray, np.log(cycles))


def fit(times: Times, model: Model) -> Costs:
    """Returns the constants that fit the points of kernels that are not held out.

    What is made small, and how points count, says `Misjudged`.
    """
    start = Costs()
    misjudged = Misjudged(times.points)
    usual = np.log([getattr(start, name) for name in FREE])
    sharp = np.array([name in ("ports", "levels") for name in FREE])
    low, high = np.where(sharp, 0.0, -7.0), np.where(sharp, np.log(SHARPEST), 7.0)
    # An operation on integers is an instruction at most.
    high[FREE.index("scalar")] = 0.0

    def errors(x: np.ndarray) -> np.ndarray:
        found = misjudged(model.logarithms(_costs(start, x)))
        return np.concatenate([found, PRIOR * (x - usual)])

    inside = np.clip(usual, low + CLEAR, high - CLEAR)
    done = least_squares(errors, inside, bounds=(low, high), ftol=LEAST, xtol=LEAST)
    found = _costs(start, done.x)
    return replace(found, **{name: rounded(getattr(found, name)) for name in FREE})


def _costs(start: Costs, x: np.ndarray) -> Costs:
    return replace(start, **dict(zip(FREE, map(float, np.exp(x)), strict=True)))


def functions_by_bits(times: Times) -> dict[int, dict[str, float]]:
    """What elementary functions take in registers of so many bits: the mean of all processors."""
    found: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for target, each in times.functions.items():
        for name, value in each.items():
            found[times.bits[target]][name].append(value)
    return {
        bits: {name: rounded(float(np.mean(values))) for name, values in each.items()}
        for bits, each in sorted(found.items())
    }


def main() -> None:
    """Measures, or fits and writes the constants and their page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--measure", nargs="*", metavar="SOURCE", help="time kernels; of some sources beside others"
    )
    parser.add_argument("--count", action="store_true", help="count what kernels do anew")
    options = parser.parse_args()
    if options.measure is not None:
        measure(options.measure)
    elif options.count:
        kernels = read(KEPT)
        for place in sorted(RESULTS.glob("*.json.gz")):
            count_anew(place, kernels)
        write(KEPT, kernels)
    times = load()
    model = Model(times)
    costs = fit(times, model)
    estimates = np.exp(model.logarithms(costs))
    errors = cost_page.errors(times.points, estimates)
    kept = ("cpu", "processor", "date", "commit")
    data = {
        "costs": asdict(costs),
        "functions": functions_by_bits(times),
        "provenance": {"machines": [{n: p[n] for n in kept} for p in times.provenance], **errors},
    }
    FITTED.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    page = cost_page.page(times.points, estimates, costs, times.provenance)
    (ROOT / "docs" / "cost.md").write_text(page, encoding="utf-8")
    print(json.dumps(errors, indent=1))


if __name__ == "__main__":
    main()
