"""`python -m benchmarks.coefficients`: what the numbers of decisions are worth, one by one.

Each number of `tensor_ir/coefficients.json` is halved and doubled. Of schedules, all kernels of
single operators and layers get their default schedules anew; of graphs, layers and models of the
zoo are planned anew. Some of those whose code changes take turns with what they were, on one core.
The ratio is the time with the other number over that with the one in use, its geometric mean over
those that were measured: above 1 the number in use is better. Results go to
benchmarks/results/coefficients.json and docs/coefficients.md.
"""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from math import inf
from pathlib import Path
from random import Random
from statistics import geometric_mean
from typing import Any

import numpy as np
import onnx

from benchmarks import layers, layout
from benchmarks.decisions import MODELS, SECONDS, different
from benchmarks.kernel_source import BUILDERS, kernels
from benchmarks.kernel_times import digest_of
from benchmarks.machine import provenance
from benchmarks.protocol import Page, case_of, write
from benchmarks.ratios import LONG, Ratios
from benchmarks.regret import FEWEST_NS
from benchmarks.store import Entry
from rutc.driver.launch_times import in_turns, written
from rutc.driver.trials import Timer
from rutc.driver.tuning import scheduled
from rutc.emit.targets import native_target
from rutc.errors import InternalError
from rutc.graph_opt import versions
from rutc.graph_opt.decide.greedy import greedy
from rutc.graph_opt.decide.prepared import prepare
from rutc.graph_opt.plan import Plan
from rutc.importer import import_model
from rutc.models.zoo import find
from rutc.tensor_ir.coefficients import COEFFICIENTS, Coefficients
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.machine import Machine
from rutc.tuner import choose

OF_SCHEDULES = ("tiles", "blocks", "windows", "vectors", "matrices")
OF_GRAPHS = ("layouts", "fusion", "slices", "filtering", "split_precision", "remainders")
MOST_KERNELS, MOST_MODELS = 16, 6
"""Of those that a number changes, so many are measured."""
SAMPLES = LONG
"""Of a kernel with either number."""
CLEAR = 0.02
"""Ratios that differ less from 1 say nothing."""
NAMES = tuple(
    f"{group}.{f.name}"
    for group in (*OF_SCHEDULES, *OF_GRAPHS)
    for f in fields(getattr(COEFFICIENTS, group))
)


def number_of(name: str) -> float:
    """Returns the number in use, an int where it is whole."""
    group, _, own = name.partition(".")
    found: float = getattr(getattr(COEFFICIENTS, group), own)
    return found


def others_of(name: str) -> list[float]:
    """Returns the numbers to try: half and twice as much, whole where the one in use is."""
    value = number_of(name)
    if not value:
        return [1.0]
    half = value // 2 if isinstance(value, int) else value / 2
    return [x for x in (half, value * 2) if x > 0]


def changed(machine: Machine, name: str, value: float) -> Machine:
    """Returns the machine with another number."""
    group, _, own = name.partition(".")
    every: dict[str, Any] = {group: replace(getattr(COEFFICIENTS, group), **{own: value})}
    found: Coefficients = replace(COEFFICIENTS, **every)
    return replace(machine, coefficients=found)


# -- schedules ----------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Subject:
    """A kernel before its schedule, and where it is from."""

    name: str
    kernel: Kernel
    constants: frozenset[str]


@cache
def subjects() -> tuple[Subject, ...]:
    """Returns the kernels of single operators and layers that have a schedule to choose."""
    machine = native_target().machine
    found: dict[str, Subject] = {}
    for source in BUILDERS:
        for name, kernel, constants in kernels(source, machine):
            if not kernel.symbols:
                own = Subject(f"{source}: {name}", kernel, constants)
                found.setdefault(digest_of(kernel, constants), own)
    return tuple(found.values())


def of_schedules(name: str, value: float) -> Entry:
    """Returns how many default schedules change, and what those that were measured take."""
    machine = native_target().machine.alone()
    varied = changed(machine, name, value)
    rng, differ = Random(name), []
    for s in subjects():
        usual, instead = (choose(s.kernel, m, s.constants) for m in (machine, varied))
        if usual != instead:
            differ.append((s, usual, instead))
    rng.shuffle(differ)
    ratios: list[tuple[float, str]] = []
    for s, usual, instead in differ:
        if len(ratios) == MOST_KERNELS:
            break
        with suppress(InternalError):
            default, other = (scheduled(s.kernel, choice) for choice in (usual, instead))
            took = Timer(machine).timed(default, None, ("near",)).near
            if took is None or took.ns < FEWEST_NS:
                continue
            with Ratios(default, machine) as bench:
                ratio = bench.of(other, inf, SAMPLES).ratio
            if ratio is not None:
                ratios.append((ratio, s.name))
    return _told(value, len(differ), ratios)


# -- graphs -------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Network:
    """A layer or a model: its graph as it is imported, and inputs."""

    name: str
    graph: Any
    inputs: dict[str, np.ndarray]


@cache
def networks() -> tuple[Network, ...]:
    """Returns the layers and models whose plans are made anew."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for case in layers.MODELS:
            path = Path(folder) / "layer.onnx"
            onnx.save(case.build(), path)
            found.append(Network(case.name, import_model(path), {"x": case.input}))
    for name in MODELS:
        model = find(name)
        graph = import_model(model.source.obtain(), shapes=model.shapes)
        inputs = {k: v for k, v in model.inputs(0).items() if v is not None}
        found.append(Network(name, graph, inputs))
    return tuple(found)


def plan_of(network: Network, machine: Machine) -> Plan:
    """Returns the plan of a network for a machine."""
    graph = versions(network.graph, machine)[-1].graph
    return greedy(prepare(graph), machine).realisation.plan


@cache
def usual_plans() -> dict[str, Plan]:
    """Returns the plans of all networks with the numbers in use."""
    machine = native_target().machine
    return {n.name: plan_of(n, machine) for n in networks()}


def of_graphs(name: str, value: float) -> Entry:
    """Returns how many plans change, and what those that were measured take."""
    machine = native_target().machine
    other = changed(machine, name, value)
    rng, differ = Random(name), []
    for n in networks():
        plan = plan_of(n, other)
        if str(plan) != str(usual_plans()[n.name]):
            differ.append((n, plan))
    rng.shuffle(differ)
    ratios: list[tuple[float, str]] = []
    for n, plan in differ:
        if len(ratios) == MOST_MODELS:
            break
        with suppress(InternalError), tempfile.TemporaryDirectory() as folder:
            base, artifact = (
                written(p, machine, Path(folder) / f"{name}.so", keep_subnormals=True)
                for name, p in (("base", usual_plans()[n.name]), ("other", plan))
            )
            us = in_turns([base, artifact], SECONDS, n.inputs)
            whole = [sum(own.values()) for own in us]
            mine, others = different(base, artifact, us)
            if mine and others:
                ratios.append((whole[1] / whole[0], n.name))
    return _told(value, len(differ), ratios)


# -- the page -----------------------------------------------------------------------------------
def _told(value: float, differ: int, ratios: Sequence[tuple[float, str]]) -> Entry:
    entry: Entry = {"value": value, "changed": differ, "measured": len(ratios)}
    if ratios:
        entry["ratio"] = round(geometric_mean(r for r, _ in ratios), 4)
        entry["least"], entry["most"] = (
            [round(r, 3), subject] for r, subject in (min(ratios), max(ratios))
        )
    return entry


def measure(name: str, seconds: float, peers: Sequence[str]) -> Entry:
    """Returns the entry of a number: what others in its place would change."""
    told = of_schedules if name.partition(".")[0] in OF_SCHEDULES else of_graphs
    tried = [told(name, value) for value in others_of(name)]
    return {"value": number_of(name), "tried": tried, **asdict(provenance())}


def page(entries: Sequence[Entry]) -> str:
    """Returns the Markdown page of the entries."""
    said = (
        "Written by `python -m benchmarks.coefficients`. Each number of decisions is halved and",
        "doubled. *Changed* are the kernels, or the layers and models, that get other code; up to",
        f"{MOST_KERNELS} kernels or {MOST_MODELS} models of them are measured on one core, either",
        "code in turn. The ratio is the time with the other number over that with the one in use,",
        "of whole models where plans change: above 1 the number in use is better. What each one",
        "is stands in `tensor_ir/coefficients.py`.",
    )
    return layout.page("The numbers of decisions", said, entries, _table, ())


def _table(entries: Sequence[Entry]) -> list[str]:
    rows = list(_rows(entries))
    better = [r for r in rows if r[-1] is not None and r[-1] < 1 - CLEAR]
    clear = {r[0] for r in rows if r[-1] is not None and r[-1] > 1 + CLEAR}
    idle = {r[0] for r in rows} - {r[0] for r in rows if r[3]}
    lines = [
        f"{len(entries)} numbers: another one is more than {100 * CLEAR:.0f} % better for "
        f"{len(better)}, and worse for {len(clear)}; {len(idle)} change nothing here.",
        "",
        "| number | in use | tried | changed | measured | ratio | least | most |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, used, tried, many, measured, least, most, ratio in rows:
        shown = "" if ratio is None else f"{ratio:.3f}"
        lines.append(
            f"| {name} | {used:g} | {tried:g} | {many} | {measured} | {shown} | {least} | {most} |"
        )
    return lines


def _rows(entries: Sequence[Entry]) -> Iterator[tuple[Any, ...]]:
    for entry in entries:
        for t in entry.get("tried", ()):  # type: ignore[attr-defined]
            ends = ("{0[0]} {0[1]}".format(t[end]) if end in t else "" for end in ("least", "most"))
            kept = case_of(entry), entry["value"], t["value"], t["changed"], t["measured"]
            yield *kept, *ends, t.get("ratio")


PAGE = Page(
    "coefficients",
    __doc__,
    NAMES,
    measure,
    case_of,
    lambda entries: write("coefficients", page(entries)),
    peers=(),
    prepare_s=40.0,
    seconds=None,
)

if __name__ == "__main__":
    PAGE.main()
