"""The host program of an artifact: what one run does, and in which memory.

    Program = inputs, outputs, states, weights, an arena, a table of kernels, and a tuple of steps
    Ref     = a byte offset into the arena, the weights, a block, or one input or output

The steps are those of `host_steps.py`. All sizes may be expressions of the program's symbols, which
the inputs' shapes give values to. A program is checked when it is made.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import field
from typing import assert_never

from rutc.base.cached import cached_property
from rutc.base.record import record
from rutc.emit.host_program.host_steps import (
    Bind,
    Branch,
    Call,
    Copy,
    Fail,
    InTurn,
    Launch,
    Repeat,
    Reserve,
    Step,
    While,
    listing,
    routines,
    walk,
)
from rutc.emit.host_program.kernel_call import BUFFER_ALIGNMENT, KernelCall, Ref
from rutc.emit.host_program.ports import Port, State
from rutc.emit.linking.weight_data import WeightData, byte_count
from rutc.errors import InternalError
from rutc.tensor_ir.indices.affine import Index, Range, Size, plain, quoted

POINTER_BYTES = 8


@record
@record
class Program:
    """Everything the host runtime needs besides the kernels' code.

    `weights` are pairs (offset, data) inside `weight_bytes` bytes; gaps read as zero. `symbols` are
    the sizes that inputs have as extents, each with the range that a run accepts; `bound` those
    that the steps compute. `features` names the CPU features that the kernels need, as LLVM spells
    them (`'avx2'`); opening a session checks them. Subnormal numbers count as zeros in runs unless
    `keep_subnormals` is set. Threads take part in runs that are `small` (1) while they are awake.
    Steps know `strings` and `kernels` by number. The last inputs and outputs are the `states`.

    Raises:
        InternalError: an offset, index or count lies outside its range.
    """

    name: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    arena_bytes: Size
    steps: tuple[Step, ...]
    weights: tuple[tuple[int, WeightData], ...] = field(default=(), compare=False, repr=False)
    weight_bytes: int = 0
    features: tuple[str, ...] = ()
    keep_subnormals: bool = False
    small: Size = 0
    symbols: tuple[tuple[str, Range], ...] = ()
    strings: tuple[str, ...] = ()
    bound: tuple[tuple[str, Range], ...] = ()
    kernels: tuple[KernelCall, ...] = ()
    states: tuple[State, ...] = ()

    @property
    def taken(self) -> tuple[Port, ...]:
        """The inputs that the caller gives."""
        return self.inputs[: len(self.inputs) - len(self.states)]

    @property
    def given(self) -> tuple[Port, ...]:
        """The outputs that the caller gets."""
        return self.outputs[: len(self.outputs) - len(self.states)]

    @property
    def kept(self) -> tuple[tuple[State, Port, Port], ...]:
        """The states, each with the input and the output that it is."""
        inputs, outputs = self.inputs[len(self.taken) :], self.outputs[len(self.given) :]
        return tuple(zip(self.states, inputs, outputs, strict=True))

    @property
    def routines(self) -> tuple[str, ...]:
        """The routines that the steps call."""
        return routines(self.steps)

    @cached_property
    def counters(self) -> tuple[str, ...]:
        """The symbols that the steps count with, each once."""
        return tuple(dict.fromkeys(s.symbol for s in walk(self.steps) if isinstance(s, Repeat)))

    @cached_property
    def thread_bytes(self) -> int:
        """The scratch that each thread has for itself, but what a run tells the size of."""
        sizes = (k.thread_bytes for k in self.kernels)
        return max((n for n in sizes if isinstance(n, int)), default=0)

    @cached_property
    def turn_bytes(self) -> int:
        """What each has besides for launches in turn: buffers, and what of known size is near."""
        turns = (s for s in walk(self.steps) if isinstance(s, InTurn))
        sizes = ((s.buffer_count(self.kernels) * POINTER_BYTES, s.near_bytes) for s in turns)
        return max((padded(n) + (m if isinstance(m, int) else 0) for n, m in sizes), default=0)

    @property
    def bytes_of_threads(self) -> int:
        """All that each thread has for itself, but what a run tells the size of."""
        return self.thread_bytes + self.turn_bytes

    @cached_property
    def blocks(self) -> int:
        """The number of blocks."""
        return 1 + max((s.block for s in walk(self.steps) if isinstance(s, Reserve)), default=-1)

    def __post_init__(self) -> None:
        problems = list(_problems(self))
        if problems:
            raise InternalError(f"host program {self.name!r}: " + "; ".join(problems[:5]))

    def __str__(self) -> str:
        features = f" features={','.join(self.features)}" if self.features else ""
        lines = [
            f"program {self.name} arena={self.arena_bytes} weights={self.weight_bytes}{features}"
        ]
        lines += [f"  symbol {quoted(name)} = {lo}..{hi}" for name, (lo, hi) in self.symbols]
        lines += [f"  computes {quoted(name)} = {lo}..{hi}" for name, (lo, hi) in self.bound]
        lines += [f"  input{i} {port}" for i, port in enumerate(self.inputs)]
        lines += [f"  output{i} {port}" for i, port in enumerate(self.outputs)]
        lines += [f"  {s} {i.name} = {o.name}" for s, i, o in self.kept]
        lines += listing(self.steps, self.kernels, "  ")
        return "\n".join(lines) + "\n"


def padded(size: int) -> int:
    """Returns the size in whole blocks of memory, whose begin is aligned."""
    return -(-size // BUFFER_ALIGNMENT) * BUFFER_ALIGNMENT


def told_by(inputs: Iterable[Port], symbol: str) -> tuple[int, int, int] | None:
    """Returns (input, axis, factor): the extent of that axis is factor * symbol."""
    found: tuple[int, int, int] | None = None
    for number, port in enumerate(inputs):
        for axis, extent in enumerate(port.shape):
            multiple = extent.as_multiple if isinstance(extent, Index) else None
            if multiple is None or multiple[1] != symbol:
                continue
            if found is None or multiple[0] < found[2]:
                found = (number, axis, multiple[0])
    return found


def _problems(program: Program) -> Iterator[str]:
    """Yields what is wrong with the program, one clause each."""
    for name, _ in program.symbols:
        if told_by(program.inputs, name) is None:
            yield f"no input tells the size {name}"
    for name, (low, high) in program.symbols:
        if not 0 <= low <= high:
            yield f"the range {low}..{high} of {name} is empty or negative"
    shapes = [extent for port in (*program.inputs, *program.outputs) for extent in port.shape]
    yield from _size_problems(program, (program.arena_bytes, program.weight_bytes, *shapes))
    yield from _size_problems(program, (program.small,))
    for offset, data in program.weights:
        end = offset + byte_count(data)
        if offset < 0 or end > program.weight_bytes:
            yield f"weights [{offset}, {end}) lie outside the {program.weight_bytes} weight bytes"
        if offset % BUFFER_ALIGNMENT:
            yield f"weight offset {offset} is not a multiple of {BUFFER_ALIGNMENT}"
    for step in walk(program.steps):
        yield from (
            f"{problem} in '{_head(program, step)}'" for problem in _step_problems(program, step)
        )


def _head(program: Program, step: Step) -> str:
    return next(iter(listing((step,), program.kernels, "")))


def _step_problems(program: Program, step: Step) -> Iterator[str]:
    match step:
        case Launch():
            if not 0 <= step.kernel < len(program.kernels):
                yield f"there is no kernel {step.kernel}"
                return
            yield from _call_problems(program, program.kernels[step.kernel])
        case InTurn():
            yield from _size_problems(program, (step.trips, step.near_bytes))
            loop = isinstance(step.body[0], Repeat)
            for s in walk(step.body):
                if not isinstance(s, Launch):
                    if not loop or not isinstance(s, Copy | Repeat):
                        yield "only launches take turns"
                    continue
                if loop and isinstance(program.kernels[s.kernel].thread_bytes, Index):
                    yield "the scratch of launches in turn has no known size"
                for n in program.kernels[s.kernel].near:
                    yield from _size_problems(program, (step.near_bytes - n.offset - n.bytes,))
        case Copy():
            yield from _size_problems(program, (step.bytes,))
            if step.dst.space == "weights":
                yield "weights are read-only"
            yield from _ref_problems(program, (step.dst, step.src))
        case Branch(cond):
            if isinstance(cond, Ref):
                yield from _ref_problems(program, (cond,))
            else:
                yield from _size_problems(program, (cond,))
        case While():
            yield from _ref_problems(program, (step.cond,))
        case Call():
            if not re.fullmatch(r"[a-z_][a-z0-9_]*", step.routine):
                yield f"routine name {step.routine!r} is not a C identifier"
            operands = (*step.args, *step.results)
            yield from _size_problems(program, (x for o in operands for x in o.shape))
            if any(o.ref.space == "weights" for o in step.results):
                yield "weights are read-only"
            yield from _ref_problems(program, (o.ref for o in (*step.args, *step.results)))
        case Bind():
            if step.symbol not in dict(program.bound):
                yield f"{step.symbol} is not a size that the program computes"
            yield from _ref_problems(program, (step.source,))
        case Reserve():
            yield from _size_problems(program, (step.bytes,))
        case Fail():
            pass
        case Repeat():
            if step.symbol in dict(program.symbols):
                yield f"{step.symbol} is a size, not a counter"
            yield from _size_problems(program, (step.trips,))
        case _:
            assert_never(step)


def _call_problems(program: Program, call: KernelCall) -> Iterator[str]:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", call.function):
        yield f"kernel name {call.function!r} is not a C identifier"
    if call.function.startswith("rutc_"):
        yield "kernel names must not begin with rutc_ (the host runtime's prefix)"
    yield from _size_problems(program, (call.tasks, call.turns, call.thread_bytes))
    yield from _ref_problems(program, call.args)
    known = {*dict(program.symbols), *dict(program.bound), *program.counters}
    for name in dict.fromkeys(n for size in call.sizes for n in size.ordered_names()):
        if name not in known:
            yield f"{name} is no symbol of the program"
    for n in call.near:
        if not 0 <= n.argument < len(call.args):
            yield f"argument {n.argument} is none"


def _size_problems(program: Program, sizes: Iterable[Size]) -> Iterator[str]:
    known = dict(program.symbols).keys() | dict(program.bound).keys()
    for size in sizes:
        if isinstance(size, int):
            if size < 0:
                yield "a negative size"
        elif not size.names() <= known:
            yield f"{size} uses unknown symbols"


def _ref_problems(program: Program, refs: Iterable[Ref]) -> Iterator[str]:
    counts = {"input": len(program.inputs), "output": len(program.outputs)}
    counts["block"] = program.blocks
    sizes = {"arena": program.arena_bytes, "weights": program.weight_bytes}
    for ref in refs:
        if not 0 <= ref.index < counts.get(ref.space, 1):
            yield f"{ref} names no {ref.space}"
        yield from _size_problems(program, (ref.offset,))
        end = sizes.get(ref.space, ref.offset)
        if isinstance(ref.offset, int) and isinstance(end, int) and ref.offset > end:
            yield f"{ref} lies outside its space"
        if ref.space in sizes and plain(ref.offset % BUFFER_ALIGNMENT) != 0:
            yield f"{ref} is not aligned to {BUFFER_ALIGNMENT} bytes"
