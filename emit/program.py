"""The host program of an artifact: what one run does, in order, and in which memory.

    Program = inputs, outputs, states, weights, an arena, a table of kernels, and a tuple of steps
    Step    = Launch a kernel | Launch kernels in turn | Copy bytes | Branch on a bool or a size
            | Repeat a body | Call a routine of the host runtime | While a bool holds
            | Fail with a message | Bind a size | Reserve a block
    Ref     = a byte offset into the arena, the weights, a block, or one input or output

A launch names a kernel by its place in the table, and calls
`void kernel(void *const *bufs, const int64_t *syms, int64_t begin, int64_t end)`:
`bufs` are its `args` in order, `syms` the values of its `sizes` (counters of the enclosing `Repeat`
steps among them), and `[begin, end)` the part of its `tasks` that the thread executes. All sizes
may be expressions of the program's symbols, which the inputs' shapes give values to.
A call names a C file of `runtime/host/routines/`, which is linked into this artifact then.
Steps run one after the other; only the tasks of one launch run at the same time.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from functools import cached_property
from typing import assert_never

import numpy as np
import numpy.typing as npt

from rutc.base.record import record
from rutc.emit.kernel_call import BUFFER_ALIGNMENT, KernelCall, KernelId, Ref
from rutc.errors import InternalError
from rutc.tensor_ir.affine import Index, Range, Size, plain, quoted

Attribute = int | float | str | tuple[int, ...]
WeightData = bytes | bytearray | memoryview | npt.NDArray[np.generic]

POINTER_BYTES = 8


@record
class Launch:
    """Runs a kernel of the program's table."""

    kernel: KernelId


@record
class InTurn:
    """Launches, each with the same number of tasks for each of `trips` indices, index by index.

    Of as many indices as threads have the same number of, a thread does all launches by itself; the
    others are shared out launch by launch. Each has `near_bytes` for what is near. Of a repeat it
    does all trips for a part of the indices, and copies as large a part of bytes.
    """

    trips: Size
    body: tuple["Step", ...]
    near_bytes: Size

    def buffer_count(self, kernels: Sequence[KernelCall]) -> int:
        """The arguments of launches, of which each thread has a table; none of those in a loop."""
        return sum(len(kernels[s.kernel].args) for s in self.body if isinstance(s, Launch))


@record
class Copy:
    """Copies `bytes` bytes from `src` to `dst`; they may overlap."""

    dst: Ref
    src: Ref
    bytes: Size

    def __str__(self) -> str:
        return f"copy {self.dst} <- {self.src} bytes={self.bytes}"


@record
class Branch:
    """Runs `then` if the byte at `cond` is not zero, or the size `cond` positive; else `orelse`."""

    cond: Ref | Size
    then: tuple["Step", ...]
    orelse: tuple["Step", ...] = ()


@record
class Repeat:
    """Runs `body` `trips` times with `symbol` = 0, 1, ..., trips - 1."""

    symbol: str
    trips: Size
    body: tuple["Step", ...]


@record
class While:
    """Runs `body` again and again while the byte at `cond` is not zero, also before the first."""

    cond: Ref
    body: tuple["Step", ...]


@record
class Operand:
    """A tensor that a routine reads or writes: dense, with the dtype's numpy name and the shape."""

    ref: Ref
    dtype: str
    shape: tuple[Size, ...]

    def __str__(self) -> str:
        return f"{self.ref}: {self.dtype}[{', '.join(map(str, self.shape))}]"


@record
class Call:
    """Calls the host runtime's `routine`; `origin` names the ONNX nodes that it computes.

    `depth` is the number of loops around it: boxes of loops are released by it.
    """

    routine: str
    args: tuple[Operand, ...]
    results: tuple[Operand, ...]
    attributes: tuple[tuple[str, Attribute], ...] = ()
    origin: tuple[str, ...] = ()
    depth: int = 0

    def __str__(self) -> str:
        results = "".join(f"{r}, " for r in self.results).removesuffix(", ")
        parts = [*map(str, self.args), *(f"{k}={v!r}" for k, v in self.attributes)]
        origin = f"  # {', '.join(self.origin)}" if self.origin else ""
        return f"{results} = call {self.routine}({', '.join(parts)}){origin}"


@record
class Bind:
    """Makes the i64 at `source` the size `symbol`; a run with one outside of its range fails."""

    symbol: str
    source: Ref
    origin: tuple[str, ...] = ()

    def __str__(self) -> str:
        origin = f"  # {', '.join(self.origin)}" if self.origin else ""
        return f"bind {quoted(self.symbol)} = {self.source}{origin}"


@record
class Reserve:
    """Makes a block hold at least `bytes` bytes; what it holds is lost."""

    block: int
    bytes: Size

    def __str__(self) -> str:
        return f"reserve block{self.block} bytes={self.bytes}"


@record
class Fail:
    """Ends the run with an error that says `message`."""

    message: str

    def __str__(self) -> str:
        return f"fail {self.message!r}"


Step = Launch | InTurn | Copy | Branch | Repeat | While | Call | Bind | Reserve | Fail


@record
class Fixed:
    """The bytes that alone an input may hold, last dimension fastest, and how to show them."""

    data: bytes
    text: str


@record
class Port:
    """One input or output of the model: its ONNX name, dtype (as `'float32'`) and shape.

    An input with `fixed` has to hold that. An output whose shape the program computes is a `block`.
    """

    name: str
    dtype: str
    shape: tuple[Size, ...]
    fixed: Fixed | None = None
    block: int | None = None

    def __str__(self) -> str:
        fixed = f" fixed {self.fixed.text}" if self.fixed is not None else ""
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]{fixed}"


@record
class State:
    """An input that has in the next run what an output has in this one; a session keeps it.

    It has memory of `bytes` bytes. Of one that `grows` along an axis that is enough for so many
    elements along it. Where both are `together` in one memory, the strides are those of an array
    with that many; otherwise each has its own, dense, and they change places after a run.
    """

    bytes: int
    grows: tuple[int, int] | None
    together: bool

    def __str__(self) -> str:
        grows = "" if self.grows is None else f" up to {self.grows[1]} along axis {self.grows[0]}"
        return f"state of {self.bytes} bytes{grows}{' in place' if self.together else ''}"


@record
class Program:
    """Everything the host runtime needs besides the kernels' code.

    `weights` are pairs (offset, data) inside `weight_bytes` bytes; gaps read as zero. `symbols` are
    the sizes that inputs have as extents, each with the range that a run accepts; `bound` those
    that the steps compute. `features` names the CPU features that the kernels need, as LLVM spells
    them (`'avx2'`); opening a session checks them. Subnormal numbers count as zeros in runs unless
    `keep_subnormals` is set. Threads take part in runs of a `small` program while they are awake.
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
    small: bool = False
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
        lines += _listing(self.steps, self.kernels, "  ")
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


def routines(steps: Iterable[Step]) -> tuple[str, ...]:
    """Returns the names of the routines that steps call, sorted."""
    return tuple(sorted({s.routine for s in walk(steps) if isinstance(s, Call)}))


def walk(steps: Iterable[Step]) -> Iterator[Step]:
    """Yields every step in order; those inside a branch or repeat come after it."""
    for step in steps:
        yield step
        match step:
            case Launch() | Copy() | Call() | Bind() | Reserve() | Fail():
                pass
            case Branch():
                yield from walk(step.then)
                yield from walk(step.orelse)
            case Repeat() | While() | InTurn():
                yield from walk(step.body)
            case _:
                assert_never(step)


def _listing(steps: tuple[Step, ...], kernels: Sequence[KernelCall], indent: str) -> Iterator[str]:
    for step in steps:
        match step:
            case Launch():
                known = 0 <= step.kernel < len(kernels)
                yield f"{indent}{kernels[step.kernel] if known else step}"
            case Copy() | Call() | Bind() | Reserve() | Fail():
                yield f"{indent}{step}"
            case Branch(cond):
                yield f"{indent}branch {cond if isinstance(cond, Ref) else f'size {cond}'}"
                yield from _listing(step.then, kernels, indent + "  ")
                if step.orelse:
                    yield f"{indent}else"
                    yield from _listing(step.orelse, kernels, indent + "  ")
            case Repeat():
                yield f"{indent}repeat {quoted(step.symbol)} trips={step.trips}"
                yield from _listing(step.body, kernels, indent + "  ")
            case InTurn():
                near = f" near={step.near_bytes}" if step.near_bytes else ""
                yield f"{indent}in turn trips={step.trips}{near}"
                yield from _listing(step.body, kernels, indent + "  ")
            case While():
                yield f"{indent}while {step.cond}"
                yield from _listing(step.body, kernels, indent + "  ")
            case _:
                assert_never(step)


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
    for offset, data in program.weights:
        end = offset + (data.nbytes if isinstance(data, np.ndarray) else memoryview(data).nbytes)
        if offset < 0 or end > program.weight_bytes:
            yield f"weights [{offset}, {end}) lie outside the {program.weight_bytes} weight bytes"
        if offset % BUFFER_ALIGNMENT:
            yield f"weight offset {offset} is not a multiple of {BUFFER_ALIGNMENT}"
    for step in walk(program.steps):
        yield from (
            f"{problem} in '{_head(program, step)}'" for problem in _step_problems(program, step)
        )


def _head(program: Program, step: Step) -> str:
    return next(iter(_listing((step,), program.kernels, "")))


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
