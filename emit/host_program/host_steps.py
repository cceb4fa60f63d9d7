"""The steps of a host program: what one run does, in order.

    Step = Launch a kernel | Launch kernels in turn | Copy bytes | Branch on a bool or a size
         | Repeat a body | Call a routine of the host runtime | While a bool holds
         | Fail with a message | Bind a size | Reserve a block

A launch names a kernel by its place in the program's table, and calls
`void kernel(void *const *bufs, const int64_t *syms, int64_t begin, int64_t end)`:
`bufs` are its `args` in order, `syms` the values of its `sizes` (counters of the enclosing `Repeat`
steps among them), and `[begin, end)` the part of its `tasks` that the thread executes.
A call names a C file of `runtime/host/routines/`, which is linked into this artifact then.
Steps run one after the other; only the tasks of one launch run at the same time.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import assert_never

from rutc.base.record import record
from rutc.emit.host_program.kernel_call import KernelCall, KernelId, Ref
from rutc.tensor_ir.indices.affine import Size, quoted

Attribute = int | float | str | tuple[int, ...]


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


def routines(steps: Iterable[Step]) -> tuple[str, ...]:
    """Returns the names of the routines that steps call, sorted."""
    return tuple(sorted({s.routine for s in walk(steps) if isinstance(s, Call)}))


def listing(steps: Iterable[Step], kernels: Sequence[KernelCall], indent: str) -> Iterator[str]:
    """Yields the steps as text, a line each; those inside of others further in."""
    for step in steps:
        match step:
            case Launch():
                known = 0 <= step.kernel < len(kernels)
                yield f"{indent}{kernels[step.kernel] if known else step}"
            case Copy() | Call() | Bind() | Reserve() | Fail():
                yield f"{indent}{step}"
            case Branch(cond):
                yield f"{indent}branch {cond if isinstance(cond, Ref) else f'size {cond}'}"
                yield from listing(step.then, kernels, indent + "  ")
                if step.orelse:
                    yield f"{indent}else"
                    yield from listing(step.orelse, kernels, indent + "  ")
            case Repeat():
                yield f"{indent}repeat {quoted(step.symbol)} trips={step.trips}"
                yield from listing(step.body, kernels, indent + "  ")
            case InTurn():
                near = f" near={step.near_bytes}" if step.near_bytes else ""
                yield f"{indent}in turn trips={step.trips}{near}"
                yield from listing(step.body, kernels, indent + "  ")
            case While():
                yield f"{indent}while {step.cond}"
                yield from listing(step.body, kernels, indent + "  ")
            case _:
                assert_never(step)
