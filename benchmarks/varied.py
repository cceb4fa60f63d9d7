"""Numbers of decisions changed one at a time: what reads them, and what is decided otherwise.

*Subjects* are what is decided about. A kernel's decision is its default schedule, and the code that
is made of it; a network's is its plan. Which numbers a decision reads is noted while it is made, so
that only those are made anew that read the number that is changed. What no decision for the
processor at hand reads may be read by those for others.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx

from benchmarks import decisions
from benchmarks.kernel_source import BUILDERS, kernels
from benchmarks.kernel_times import bytes_of, digest_of
from rutc.driver.tuning.schedule_search import kernel_after
from rutc.emit.kernel import emit_kernel
from rutc.emit.targets import native_target
from rutc.emit.targets.measured import with_measured_rates
from rutc.emit.targets.x86 import avx2
from rutc.errors import InternalError
from rutc.graph_opt import versions
from rutc.graph_opt.decide.greedy import greedy
from rutc.graph_opt.decide.prepared import prepare
from rutc.graph_opt.plan import Plan
from rutc.graph_opt.versions import Version
from rutc.importer import import_model
from rutc.models.zoo import find
from rutc.tensor_ir.coefficients import COEFFICIENTS, GROUPS, Coefficients
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.machine import Machine
from rutc.tuner import Choice, choose

LIKE_OTHERS = ("light_densenet121", "light_inception_v1", "bert_base_128")
MODELS = tuple(model for model in decisions.MODELS if model not in LIKE_OTHERS)
"""Of the zoo: one or two of each family."""
SYMBOLIC = ("minilm_l6", "gpt2_6l_past", "ppocr4_det", "ppocr4_rec")
"""Those that are looked at with sizes that a run tells, too."""
OF_MODEL = 10
"""Kernels of each model that are looked at."""
OPERATOR = "operator "
"""So begin the names of single operators whose graphs leave little to decide."""
MOST_BYTES = 1 << 27
"""Kernels with larger arguments are left out."""
NAMES = tuple(f"{g}.{f.name}" for g in GROUPS for f in fields(getattr(COEFFICIENTS, g)))


AMX = frozenset({"amx-tile", "amx-bf16", "amx-int8"})


@dataclass(frozen=True, slots=True)
class Processor:
    """A kind of processor that decisions are made for, and whether its code runs here."""

    name: str
    machine: Machine
    runs: bool


@cache
def processors() -> tuple[Processor, ...]:
    """Returns the one at hand, and others: without its AVX-512, and with registers for matrices."""
    native = native_target().machine
    narrow = with_measured_rates(avx2(l1=native.l1, l2=native.l2))
    tiles = replace(native, features=native.features | AMX)
    return (
        Processor("", native, runs=True),
        Processor("AVX2", narrow, runs=True),
        Processor("AMX", tiles, native.features >= AMX),
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


@lru_cache(maxsize=4)
def varied(machine: Machine, name: str, value: float) -> Machine:
    """Returns the machine with another number."""
    group, _, own = name.partition(".")
    every: dict[str, Any] = {group: replace(getattr(COEFFICIENTS, group), **{own: value})}
    found: Coefficients = replace(COEFFICIENTS, **every)
    return replace(machine, coefficients=found)


class _Noted:
    """A group of coefficients, and the names of those that were read of all groups."""

    def __init__(self, group: str, read: set[str]) -> None:
        self._group, self._read = group, read

    def __getattr__(self, name: str) -> Any:
        self._read.add(f"{self._group}.{name}")
        return getattr(getattr(COEFFICIENTS, self._group), name)


def read_by(decide: Callable[[Machine], object], machine: Machine) -> frozenset[str]:
    """Returns the names of the numbers that a decision reads."""
    read: set[str] = set()
    groups: dict[str, Any] = {group: _Noted(group, read) for group in GROUPS}
    decide(replace(machine, coefficients=Coefficients(**groups)))
    return frozenset(read)


# -- kernels ------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """A kernel before its schedule, where it is from, and what its decisions read."""

    name: str
    kernel: Kernel
    constants: frozenset[str]
    machine: Machine
    """One core of a processor."""
    choice: Choice
    reads: frozenset[str]
    """What the choice of its schedule reads,"""
    emitted: frozenset[str]
    """and what making code of it reads besides."""

    def chosen(self, name: str, machine: Machine) -> Choice | None:
        """Returns the schedule on a machine with another number; None if its code is the same."""
        if name not in self.reads | self.emitted:
            return None
        choice = choose(self.kernel, machine, self.constants)
        if choice != self.choice:
            return choice
        if name not in self.emitted:
            return None
        own = kernel_after(self.kernel, choice)
        texts = {emit_kernel(own, m).text for m in (machine, self.machine)}
        return choice if len(texts) > 1 else None


@cache
def subjects(machine: Machine, share: int = 1) -> tuple[Subject, ...]:
    """Returns the kernels of single operators and layers, and some of models, equal ones once.

    Only one in a `share` of operators, layers and models is taken.
    """
    alone = machine.alone()
    found: dict[str, Subject] = {}
    every = [(s, False) for s in (*BUILDERS, *MODELS)] + [(s, True) for s in SYMBOLIC]
    for source, symbolic in every[::share]:
        own = {
            digest_of(kernel, constants): (name, kernel, constants)
            for name, kernel, constants in kernels(source, machine, symbolic=symbolic)
            if bytes_of(kernel) <= MOST_BYTES
        }
        new = sorted(own.keys() - found.keys())
        if source in MODELS:
            new = Random(0).sample(new, min(len(new), OF_MODEL))
        for digest in new:
            with suppress(InternalError):
                where = f"{source} of any size" if symbolic else source
                found[digest] = _subject(where, *own[digest], alone)
    return tuple(found.values())


def _subject(
    source: str, name: str, kernel: Kernel, constants: frozenset[str], machine: Machine
) -> Subject:
    choice = choose(kernel, machine, constants)
    own = kernel_after(kernel, choice)
    reads = read_by(lambda m: choose(kernel, m, constants), machine)
    emitted = read_by(lambda m: emit_kernel(own, m), machine)
    return Subject(f"{source}: {name}", kernel, constants, machine, choice, reads, emitted)


# -- networks -----------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """A layer or a model as it is imported, with inputs, its plan, and what that reads."""

    name: str
    graph: Any
    inputs: dict[str, np.ndarray] | None
    machine: Machine
    versions: tuple[Version, ...]
    plan: Plan
    rewriting: frozenset[str]
    """What rewriting of the graph reads,"""
    planning: frozenset[str]
    """and what its plan does."""

    @property
    def reads(self) -> frozenset[str]:
        """All numbers that its decisions read."""
        return self.rewriting | self.planning

    def planned(self, name: str, machine: Machine) -> Plan | None:
        """Returns the plan for a machine with another number; None if it is the same."""
        if name not in self.reads:
            return None
        own = self.versions
        if name in self.rewriting:
            own = versions(self.graph, machine)
        plan = _planned(own, machine)
        return None if str(plan) == str(self.plan) else plan


def _planned(own: tuple[Version, ...], machine: Machine) -> Plan:
    return greedy(prepare(own[-1].graph), machine).realisation.plan


@cache
def networks(machine: Machine, share: int = 1) -> tuple[Network, ...]:
    """Returns layers and models whose plans are made, or one in a `share` of them."""
    return tuple(_networks(machine, share))


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Where files of graphs lie while this process lives: their weights are mapped."""
    return tempfile.TemporaryDirectory()


def _networks(machine: Machine, share: int) -> Iterator[Network]:
    layers = [n for n in BUILDERS if not n.startswith(OPERATOR)]
    for number, name in enumerate(layers[::share]):
        path = Path(_folder().name) / f"{share}.{number}.onnx"
        if not path.exists():
            onnx.save(BUILDERS[name](), path)
        yield _network(name, import_model(path), None, machine)
    every = [(m, False) for m in MODELS] + [(m, True) for m in SYMBOLIC]
    for name, symbolic in every[::share]:
        model = find(name)
        graph = import_model(model.source.obtain(), shapes={} if symbolic else model.shapes)
        inputs = {k: v for k, v in model.inputs(0).items() if v is not None}
        yield _network(f"{name} of any size" if symbolic else name, graph, inputs, machine)


def _network(
    name: str, graph: Any, inputs: dict[str, np.ndarray] | None, machine: Machine
) -> Network:
    own = versions(graph, machine)
    rewriting = read_by(lambda m: versions(graph, m), machine)
    planning = read_by(lambda m: _planned(own, m), machine)
    plan = _planned(own, machine)
    return Network(name, graph, inputs, machine, own, plan, rewriting, planning)
