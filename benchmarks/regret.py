"""`python -m benchmarks.regret`: how much slower default schedules are than the best of others.

Each kernel of single operators and layers that may have a tiled schedule is timed with its default
one and with others of its space: neighbours of the best so far, and random ones that the model of
the machine likes. The best of them and the default then take turns once more, on one core with
everything in its caches.
The regret of a kernel is the default's time over the least, less 1: a lower bound, as no search is
complete. Results go to benchmarks/results/regret.json and docs/regret.md.
"""

import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from random import Random
from statistics import median, quantiles
from time import perf_counter_ns

import numpy as np
import onnx

from benchmarks import layout
from benchmarks.cases import CASES, MORE
from benchmarks.layers import MODELS
from benchmarks.machine import provenance
from benchmarks.protocol import Page, case_of, write
from benchmarks.store import Entry
from rutc.driver.compiler import planned
from rutc.driver.plan_steps import PlanSteps
from rutc.driver.recipe import with_schedule
from rutc.driver.weights import Weights
from rutc.emit.jit import KernelCode
from rutc.emit.targets import native_target
from rutc.errors import RutcError
from rutc.graph_opt import versions
from rutc.importer import import_model
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.machine import Machine
from rutc.tuner import choose
from rutc.tuner.choice import Choice
from rutc.tuner.heuristic import tiling_space

BUILDERS: dict[str, Callable[[], onnx.ModelProto]] = {
    **{case.name: case.build for case in (*CASES, *MORE)},
    **{case.name: case.build for case in MODELS},
}
TRIALS = 60
"""Schedules that are tried of a kernel."""
RANDOM_EVERY = 4
"""One in so many is drawn at random, the others are neighbours of the best before."""
LIKED = 6
"""A random one is that of so many whose tile the model of the machine likes most."""
TRIAL_NS = 4_000_000
"""A trial runs for so long, or three times."""
TURNS = 7
"""Of the default and the best of the others."""
FEWEST_NS = 2_000
"""Kernels that take less say little of schedules."""


class Timed:
    """A scheduled kernel as code of this process, on arguments of its own."""

    def __init__(self, kernel: Kernel, choice: Choice, machine: Machine) -> None:
        """Compile it, and fill its arguments."""
        scheduled = with_schedule(kernel, choice).kernel
        self._code = KernelCode(scheduled, machine)
        rng = np.random.default_rng(0)
        self._memory = [_filled(rng, b.dtype.numpy, b.layout.elements) for b in scheduled.args]
        (self._run,) = self._code.runs([_aligned(m) for m in self._memory], {})

    def once_ns(self) -> float:
        """The least time of a run, of as many as `TRIAL_NS` has."""
        self._run()
        least, spent, runs = float("inf"), 0, 0
        while spent < TRIAL_NS or runs < 3:
            start = perf_counter_ns()
            self._run()
            took = perf_counter_ns() - start
            least, spent, runs = min(least, took), spent + took, runs + 1
        return least


def _filled(rng: np.random.Generator, dtype: np.dtype, elements: int) -> np.ndarray:
    """Small numbers in memory that has room for one line before and behind them."""
    room = elements + 256 // dtype.itemsize
    if dtype.kind == "f":
        return rng.standard_normal(room, np.float32).astype(dtype)
    return rng.integers(0, 3, room).astype(dtype)


def _aligned(memory: np.ndarray) -> int:
    return -(-memory.ctypes.data // 64) * 64


def kernels(name: str, machine: Machine) -> Iterator[tuple[str, Kernel, frozenset[str]]]:
    """Yields the kernels of a case that a tiled schedule may have, with their constants."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.onnx"
        onnx.save(BUILDERS[name](), path)
        plan, _ = planned(versions(import_model(path), machine), machine)
        for pending in PlanSteps(plan, Weights()).pending:
            recipe = pending.recipe
            pairs = zip(pending.kernels, recipe.kernels, recipe.constants, strict=True)
            for own, kernel, constants in pairs:
                space = tiling_space(kernel, machine, frozenset(constants))
                if space is not None and len(space) > 0 and not kernel.symbols:
                    yield own.name, kernel, frozenset(constants)


def measured(kernel: Kernel, constants: frozenset[str], machine: Machine, rng: Random) -> Entry:
    """Returns the default's time, and the least of those of other schedules."""
    space = tiling_space(kernel, machine, constants)
    assert space is not None
    default = Timed(kernel, choose(kernel, machine, constants), machine)
    usual = default.once_ns()
    if usual < FEWEST_NS:
        return {}
    best, least, tried = space.default(), float("inf"), 0
    if best is not None:
        least, tried = Timed(kernel, best[1], machine).once_ns(), 1
    for number in range(TRIALS):
        if best is None or number % RANDOM_EVERY == 0:
            drawn = [x for x in (space.draw(rng) for _ in range(LIKED)) if x is not None]
            found = min(drawn, key=lambda x: x[0].tile.cost, default=None)
        else:
            found = space.near(best[0], rng)
        if found is None:
            continue
        tried += 1
        took = Timed(kernel, found[1], machine).once_ns()
        if took < least:
            best, least = found, took
    if best is None:
        return {}
    other = Timed(kernel, best[1], machine)
    turns = [(default.once_ns(), other.once_ns()) for _ in range(TURNS)]
    mine, others = (median(t) for t in zip(*turns, strict=True))
    return {
        "default_us": round(mine / 1e3, 2),
        "best_us": round(others / 1e3, 2),
        "regret": round(max(mine / others - 1, 0.0), 3),
        "tried": tried,
        "best": str(best[0]),
    }


def measure(name: str, seconds: float, peers: Sequence[str]) -> Entry:
    """Returns the entry of a case: its kernels' times."""
    machine = native_target().machine
    alone = machine.alone()
    rng = Random(zlib.crc32(name.encode()))
    found: dict[str, Entry] = {}
    for own, kernel, constants in kernels(name, machine):
        try:
            entry = measured(kernel, constants, alone, rng)
        except RutcError as error:
            entry = {"error": str(error).splitlines()[0]}
        if entry:
            found[own] = entry
    return {"kernels": found, **asdict(provenance())}


def page(entries: Sequence[Entry]) -> str:
    """Returns the Markdown page of the entries."""
    said = (
        "Written by `python -m benchmarks.regret`. Default schedules against others of their",
        f"spaces, {TRIALS} of each kernel, most of them neighbours of the best before. On one",
        "core, with all operands near; the default and the best of the others in turns. The regret",
        "is the default's time over the least, less 1. The search is short: others may be better",
        "still.",
    )
    return layout.page("Regret of default schedules", said, entries, _table, ())


def _table(entries: Sequence[Entry]) -> list[str]:
    rows: list[tuple[float, str, Entry]] = []
    for entry in entries:
        known = entry.get("kernels")
        assert isinstance(known, dict)
        rows += [
            (k["regret"], f"{case_of(entry)}: {n}", k) for n, k in known.items() if "regret" in k
        ]
    if len(rows) < 2:
        return []
    rows.sort(key=lambda row: -row[0])
    regrets = [regret for regret, _, _ in rows]
    high = quantiles(regrets, n=20)[-1]
    lines = [
        f"{len(rows)} kernels: median regret {100 * median(regrets):.1f} %, 95th percentile "
        f"{100 * high:.0f} %; {sum(r > 0.05 for r in regrets)} above 5 %.",
        "",
        "| kernel | default us | best us | regret | best known |",
        "|---|---|---|---|---|",
    ]
    for regret, name, k in rows:
        if regret >= 0.02:
            lines.append(
                f"| {name} | {k['default_us']} | {k['best_us']} | {100 * regret:.0f} % | "
                f"`{k['best']}` |"
            )
    return lines


PAGE = Page(
    "regret",
    __doc__,
    list(BUILDERS),
    measure,
    case_of,
    lambda entries: write("regret", page(entries)),
    peers=(),
    prepare_s=12.0,
    seconds=None,
)

if __name__ == "__main__":
    PAGE.main()
