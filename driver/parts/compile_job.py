"""What decides a kernel's machine code, and the code made from it.

Making code is a function of a `CompileJob` and a machine alone: it may run in another process, and
what it gave is kept in the cache under a hash of both and of the compiler's own sources.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path

from rutc.base.record import record
from rutc.emit import cache
from rutc.emit.cache import key_of
from rutc.emit.frame import thread_bytes
from rutc.emit.kernel import ENTRY, EmittedKernel, emit_kernel, parallel_loops, tasks_of
from rutc.emit.linking.elf import is_object
from rutc.emit.llvm.codegen import VERSION, compile_object
from rutc.emit.matrix import matrix_types
from rutc.errors import InternalError, RutcError
from rutc.tensor_ir.chain import chain
from rutc.tensor_ir.cost import estimate, summarise
from rutc.tensor_ir.indices.affine import Index, Size, plain
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.machine import Machine, matrix_feature
from rutc.tensor_ir.own_sizes import OwnSizes, own_sizes
from rutc.tensor_ir.steps import (
    NotApplicable,
    Pack,
    Schedule,
    apply_schedule,
    parse_schedule,
)
from rutc.tensor_ir.steps.inside import without_fills
from rutc.tensor_ir.textual.parse import parse_index
from rutc.tuner import choose, factors_out, partial_sums
from rutc.tuner.choice import Choice, OnRecord
from rutc.tuner.sharing import Way, stored, ways

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("driver/parts/compile_job.py", "base/record.py", "tensor_ir", "tuner", "emit")
"""The files and folders that decide what code a job becomes."""
SUFFIXES = frozenset({".py", ".json"})
"""Those of sources, and of what estimates were fitted to."""
PARTS = 32
"""Scheduled kernels that are kept: plans of one graph differ in few of their chains' parts."""


Chooser = Callable[[Kernel, frozenset[str], Machine], Choice | None]
"""A schedule for a kernel without names, with these constants, on a machine; None: the default."""


@record
class Slices:
    """Kernels that run one after the other for all values of some symbols.

    `counters` are the symbols, each with its number of values, the outermost first; `private` the
    buffers that pass from one kernel to another within an iteration; `lengths` those of slices.
    """

    counters: tuple[tuple[str, Size], ...]
    private: tuple[str, ...]
    lengths: tuple[Size, ...] = ()

    @property
    def sizes(self) -> tuple[Size, ...]:
        """The numbers of values, and the lengths."""
        return *(count for _, count in self.counters), *self.lengths


@record
class CompileJob:
    """Kernels without names of their own, and which buffers of each may be packed as it likes.

    One kernel, or the parts of a chain, which have the same buffers where they share a name. Those
    with a choice have that schedule, the others the default one. The symbols among `counters` are
    counted by loops around the kernels; the others are sizes.
    """

    kernels: tuple[Kernel, ...]
    constants: tuple[tuple[str, ...], ...]
    slices: Slices | None = None
    choices: tuple[Choice | None, ...] = ()
    counters: tuple[str, ...] = ()

    def chosen(self, choose: Chooser, machine: Machine) -> CompileJob:
        """The same with the schedules that `choose` gives."""
        alone = self.seen(machine)
        pairs = zip(self.kernels, self.constants, strict=True)
        choices = tuple(choose(kernel, frozenset(names), alone) for kernel, names in pairs)
        return replace(self, choices=choices if any(choices) else ())

    @property
    def records(self) -> tuple[OnRecord | None, ...]:
        """What is on record of each schedule; empty where nothing is of any."""
        found = tuple(None if c is None else c.record for c in self.choices)
        return found if any(found) else ()

    def seen(self, machine: Machine) -> Machine:
        """The machine as the kernels see it: those of a chain are whole tasks."""
        return machine.alone() if len(self.kernels) > 1 else machine

    def in_own_sizes(self, kernel: Kernel) -> OwnSizes:
        """The job's kernel, after its schedule, in sizes of its own."""
        lengths = () if self.slices is None else self.slices.sizes
        return own_sizes(kernel, frozenset(self.counters), lengths)


@record
class Argument:
    """A buffer that the code takes, by its name in the job, and whether it is written to.

    The step `packing` says how it is laid out where that is not as the job says. A call touches
    `touched` bytes of it, at common sizes.
    """

    buffer: str
    packing: Pack | None
    written: bool
    touched: int


@record
class Made:
    """A function in an object file, and how to call it.

    Behind pointers to the arguments it takes one to the `numbers`, if there are any.
    `sizes` are those that it reads, of the job's symbols; `thread_bytes` is what it needs of a
    thread's scratch; `ways` say how threads may share its tasks; `matrices` are the features of
    the matrix registers that it uses, for which a process must ask. It is estimated to take so
    many `cycles`, most of them for one kind of work, and its arithmetic alone those of
    `computing`.
    """

    symbol: str
    arguments: tuple[Argument, ...]
    sizes: tuple[Index, ...]
    tasks: Size
    thread_bytes: Size
    schedule: str
    ways: tuple[Way, ...]
    matrices: tuple[str, ...]
    cycles: float
    computing: float
    bound_by: str
    numbers: bytes
    code: bytes

    def encoded(self) -> bytes:
        """The same as bytes."""
        arguments = [
            [
                a.buffer,
                None if a.packing is None else str(a.packing),
                a.written,
                a.touched,
            ]
            for a in self.arguments
        ]
        facts = {
            "symbol": self.symbol,
            "arguments": arguments,
            "sizes": list(map(str, self.sizes)),
            "tasks": str(self.tasks),
            "thread_bytes": str(self.thread_bytes),
            "schedule": self.schedule,
            "ways": [way.encoded() for way in self.ways],
            "matrices": self.matrices,
            "cycles": self.cycles,
            "computing": self.computing,
            "bound_by": self.bound_by,
            "numbers": self.numbers.hex(),
        }
        return json.dumps(facts).encode() + b"\n" + self.code

    @staticmethod
    def decoded(data: bytes) -> Made:
        """What `encoded` gave."""
        head, _, code = data.partition(b"\n")
        facts = json.loads(head)
        return Made(
            facts["symbol"],
            tuple(
                Argument(name, None if packing is None else _pack(packing), written, touched)
                for name, packing, written, touched in facts["arguments"]
            ),
            tuple(map(parse_index, facts["sizes"])),
            _size(facts["tasks"]),
            _size(facts["thread_bytes"]),
            facts["schedule"],
            tuple(map(Way.decoded, facts["ways"])),
            tuple(facts["matrices"]),
            facts["cycles"],
            facts["computing"],
            facts["bound_by"],
            bytes.fromhex(facts["numbers"]),
            code,
        )

    @staticmethod
    def found(data: bytes) -> Made | None:
        """What `encoded` gave; None if nothing like it could have."""
        try:
            made = Made.decoded(data)
            same = made.encoded() == data and _is_typed(made)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError, RutcError):
            return None
        return made if same and is_object(made.code) else None


def _size(text: str) -> Size:
    """The size that is written so."""
    return int(text) if text.isdecimal() else parse_index(text)


def _pack(text: str) -> Pack:
    """The step that is written so. Raises ValueError for another one, or more of them."""
    match parse_schedule(text):
        case (Pack() as step,):
            return step
    raise ValueError(f"{text} is no packing")


def _is_typed(made: Made) -> bool:
    """Whether all fields have the types that they are declared to have."""
    pieces = [p for way in made.ways for p in way.pieces if p is not None]
    fields: tuple[tuple[tuple[type, ...], list[object]], ...] = (
        ((str,), [made.symbol, made.schedule, made.bound_by]),
        ((str,), [*made.matrices, *(a.buffer for a in made.arguments), *(p.dim for p in pieces)]),
        ((int,), [*(way.count for way in made.ways), *(p.run_bytes for p in pieces)]),
        ((int,), [a.touched for a in made.arguments]),
        ((int, float), [made.cycles, made.computing, *(way.largest for way in made.ways)]),
        ((bool,), [a.written for a in made.arguments]),
        ((bool,), [way.alone for way in made.ways]),
    )
    return all(type(value) in types for types, values in fields for value in values)


def key(job: CompileJob, machine: Machine) -> str:
    """The key in the cache of what a job becomes for a machine."""
    known = repr(job), *_texts(machine), VERSION, code_sources_digest()
    return key_of("kernels", known)


@functools.lru_cache
def _texts(machine: Machine) -> tuple[str, str]:
    """All that is known of a machine, which is the same for all kernels of a model."""
    return str(machine), repr(machine.coefficients)


@functools.cache
def code_sources_digest() -> str:
    """A hash of what decides what code a job becomes: sources, and the numbers that they load."""
    found = (f for part in SOURCES for f in (ROOT / part, *(ROOT / part).rglob("*")))
    counted = (f for f in found if f.suffix in SUFFIXES and f.is_file())
    return cache.digest_of_files(ROOT, counted)


@record
class Scheduled:
    """A kernel after its schedule."""

    schedule: Schedule
    kernel: Kernel

    @property
    def packings(self) -> Mapping[str, Pack]:
        """How arguments are packed that do not lie as the kernel had them before."""
        return {s.buffer: s for s in self.schedule if isinstance(s, Pack)}


def scheduled(job: CompileJob, machine: Machine) -> tuple[Scheduled, ...]:
    """The kernels of a job, each with its schedule."""
    alone = job.seen(machine)
    choices = job.choices or (None,) * len(job.kernels)
    return tuple(
        _part(kernel, alone, tuple(constants), choice)
        for kernel, constants, choice in zip(job.kernels, job.constants, choices, strict=True)
    )


@functools.lru_cache(PARTS)
def _part(
    kernel: Kernel, machine: Machine, constants: tuple[str, ...], choice: Choice | None
) -> Scheduled:
    """A kernel with its schedule; chains that differ in some of their kernels share the others."""
    return with_schedule(kernel, choice or choose(kernel, machine, frozenset(constants)), constants)


@record
class Joined:
    """The kernel of a job after its schedules, the parts of a chain as one.

    `packings` has for every argument the job's buffer, and how that is packed.
    """

    kernel: Kernel
    schedule: Schedule
    packings: Mapping[str, tuple[str, Pack | None]]


def joined(job: CompileJob, machine: Machine) -> Joined:
    """The scheduled kernel of a job."""
    packings: dict[str, tuple[str, Pack | None]] = {}
    parts = scheduled(job, machine)
    if job.slices is None:
        (part,) = parts
        kernel = part.kernel
        packings = {b.name: (b.name, part.packings.get(b.name)) for b in kernel.args}
    else:
        for number, (part, constants) in enumerate(zip(parts, job.constants, strict=True)):
            # Each part has its own packing of a constant.
            packings |= {
                f"{b.name}.{number}" if b.name in constants else b.name: (
                    b.name,
                    part.packings.get(b.name),
                )
                for b in part.kernel.args
            }
        slices = job.slices
        private, kernels = frozenset(slices.private), [part.kernel for part in parts]
        # Around the parts there are loops now, which tell more of what is read.
        kernel = without_fills(chain("kernel", kernels, slices.counters, private, job.constants))
    return Joined(kernel, tuple(step for part in parts for step in part.schedule), packings)


@record
class Draft:
    """The scheduled kernel of a job, the same in sizes of its own, and its LLVM module."""

    joined: Joined
    own: OwnSizes
    text: str
    numbers: bytes = b""

    @property
    def kernel(self) -> Kernel:
        """The scheduled kernel, in the job's sizes."""
        return self.joined.kernel

    @property
    def schedule(self) -> Schedule:
        """The steps that made it."""
        return self.joined.schedule


@record
class MachineCode:
    """A function in an object file; none of it where only its name is known.

    Kernels that differ in their `numbers` alone have one function.
    """

    symbol: str
    numbers: bytes
    code: bytes

    def encoded(self) -> bytes:
        """The same as bytes."""
        return f"{self.symbol} {self.numbers.hex()}\n".encode() + self.code

    @staticmethod
    def found(data: bytes) -> MachineCode | None:
        """What `encoded` gave; None if nothing like it could have."""
        head, _, code = data.partition(b"\n")
        if not re.fullmatch(rb"k_[0-9a-f]{24} ([0-9a-f]{8})*", head) or not is_object(code):
            return None
        symbol, numbers = head.decode().split(" ")
        return MachineCode(symbol, bytes.fromhex(numbers), code)


def draft(job: CompileJob, machine: Machine) -> Draft:
    """The scheduled kernel of a job, and its LLVM module."""
    found = joined(job, machine)
    own = job.in_own_sizes(found.kernel)
    emitted = emit_kernel(own.kernel, machine)
    return Draft(found, own, emitted.text, emitted.numbers)


def make(job: CompileJob, machine: Machine) -> Made:
    """What a job becomes; its code is that of other jobs where their scheduled kernels are equal.

    Kernels are equal here in sizes of their own: those of the maps of a pyramid are made once.
    """
    found = joined(job, machine)
    own = job.in_own_sizes(found.kernel)
    known = repr(own.kernel), *_texts(machine), VERSION, code_sources_digest()
    name = key_of("code", known)
    data = cache.lookup(name)
    code = None if data is None else MachineCode.found(data)
    if code is None:
        emitted = emit_kernel(own.kernel, machine)
        code = _shared(emitted, machine) if emitted.numbers else _compiled(emitted.text, machine)
        cache.store(name, code.encoded())
    return _made(found, own, code, machine)


def _shared(emitted: EmittedKernel, machine: Machine) -> MachineCode:
    """The code of a kernel; others that differ from it in their numbers alone may have made it."""
    known = emitted.text, *_texts(machine), VERSION, code_sources_digest()
    name = key_of("numbered", known)
    data = cache.lookup(name)
    code = None if data is None else MachineCode.found(data)
    if code is None:
        code = _compiled(emitted.text, machine)
        cache.store(name, code.encoded())
    return replace(code, numbers=emitted.numbers)


def made_of(made: Draft, machine: Machine, *, code: bool = True) -> Made:
    """What a draft becomes; without `code` all but that is known."""
    found = replace(_compiled(made.text, machine, code=code), numbers=made.numbers)
    return _made(made.joined, made.own, found, machine)


def _compiled(text: str, machine: Machine, *, code: bool = True) -> MachineCode:
    """The code of a module, whatever the numbers are."""
    digest = hashlib.sha256(f"{text}\n{machine}\n{VERSION}".encode()).hexdigest()
    symbol = f"k_{digest[:24]}"
    made = compile_object(text, machine, symbol=symbol, entry=ENTRY) if code else b""
    return MachineCode(symbol, b"", made)


def _made(found: Joined, own: OwnSizes, code: MachineCode, machine: Machine) -> Made:
    kernel, loops = found.kernel, parallel_loops(found.kernel)
    written = stored(kernel)
    names = (n for n, _ in own.kernel.symbols)
    scratch = Index.of(thread_bytes(own.kernel)).subs(dict(zip(names, own.sizes, strict=True)))
    summary = summarise(kernel, machine)
    took = estimate(summary, machine)
    touched = {b.name: round(summary.arguments.get(b.name, 0)) for b in kernel.args}
    return Made(
        code.symbol,
        tuple(
            Argument(*found.packings[b.name], b.name in written, touched[b.name])
            for b in kernel.args
        ),
        own.sizes,
        tasks_of(kernel),
        plain(scratch),
        "; ".join(map(str, found.schedule)),
        ways(kernel, loops, machine.cores),
        tuple(sorted({matrix_feature(dtype) for dtype in matrix_types(kernel)})),
        took.cycles,
        took.computing,
        took.bound_by,
        code.numbers,
        code.code,
    )


def with_schedule(
    kernel: Kernel, choice: Choice, constants: Collection[str] | None = None
) -> Scheduled:
    """A kernel after a schedule, and after the steps that follow from what became of it.

    Raises:
        InternalError: a step does not apply, or packs what is not one of the `constants`.
    """
    packed = {s.buffer for s in choice.schedule if isinstance(s, Pack)}
    if constants is not None and not packed.issubset(constants):
        raise InternalError(f"%{min(packed.difference(constants))} is packed, which is no constant")
    try:
        factors, result = factors_out(apply_schedule(kernel, choice.schedule))
        sums, result = partial_sums(result)
    except NotApplicable as e:
        raise InternalError(f"the schedule does not apply: {e}\n{kernel}") from e
    return Scheduled((*choice.schedule, *factors, *sums), result)
