"""A program's steps as rows of tables in C."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

from rutc.base.record import record
from rutc.emit.host_program.c_text import c_string
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
)
from rutc.emit.host_program.kernel_call import KernelCall, Ref
from rutc.emit.host_program.size_source import SizeTable
from rutc.errors import UserError
from rutc.tensor_ir.indices.affine import Index, Size

MAX_SYMBOLS = 64
"""The most sizes that the host runtime hands to a kernel."""
SCRATCH = -1
"""In the place of a block's number: the scratch of threads."""


@record
class Row:
    """One entry of the flattened steps; fields as in `rutc_step`."""

    op: str
    kernel: str = ""
    buffer: int = 0
    count: int = 0
    target: int = 0
    symbol: int = 0
    symbols: int = 0
    name: str = ""
    origin: str = ""

    def __str__(self) -> str:
        fields = [f"RUTC_{self.op}", self.kernel or "NULL"]
        fields += map(str, (self.buffer, self.count, self.target, self.symbol, self.symbols))
        fields += [c_string(self.name), c_string(self.origin)]
        return f"{{{', '.join(fields)}}}"


@dataclass
class Tables:
    """The flattened program while it is being built."""

    sizes: SizeTable
    kernels: Sequence[KernelCall]
    rows: list[Row] = field(default_factory=list)
    buffers: list[Ref] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    launch_symbols: list[int] = field(default_factory=list)
    turns: list[str] = field(default_factory=list)
    nears: list[str] = field(default_factory=list)
    bound: dict[str, int] = field(default_factory=dict)

    def add_buffers(self, *refs: Ref) -> int:
        """Adds places of memory; returns the number of the first one."""
        first = len(self.buffers)
        self.buffers.extend(refs)
        return first

    def reserve(self) -> int:
        """Takes the place of a row whose target is not known yet."""
        self.rows.append(Row("JUMP"))
        return len(self.rows) - 1

    def add_steps(self, steps: tuple[Step, ...]) -> None:
        """Adds the rows of steps, those of bodies and branches in their places.

        Raises:
            UserError: a kernel needs more sizes than one can be told.
        """
        for step in steps:
            match step:
                case Launch():
                    call = self.kernels[step.kernel]
                    self.add_scratch(call.thread_bytes)
                    self.add_call(call)
                case InTurn():
                    self.add_turns(step)
                case Copy():
                    first = self.add_buffers(step.dst, step.src)
                    count = self.sizes.code(step.bytes)
                    self.rows.append(Row("COPY", buffer=first, count=count, name="copy"))
                case Branch():
                    self.add_branch(step)
                case Repeat():
                    self.add_repeat(step)
                case While():
                    self.add_while(step)
                case Call():
                    refs = [o.ref for o in (*step.args, *step.results)]
                    name, origin = step.routine, ", ".join(step.origin)
                    first, number = self.add_buffers(*refs), len(self.calls)
                    self.calls.append(step)
                    self.rows.append(Row("CALL", "", first, 0, number, step.depth, 0, name, origin))
                case Bind():
                    place, target = self.sizes.places[step.symbol], self.bound[step.symbol]
                    first, origin = self.add_buffers(step.source), ", ".join(step.origin)
                    self.rows.append(
                        Row("BIND", "", first, 0, target, place, 0, step.symbol, origin)
                    )
                case Reserve():
                    self.add_reserve(step.block, step.bytes)
                case Fail():
                    self.rows.append(Row("FAIL", name=step.message))
                case _:
                    assert_never(step)

    def add_reserve(self, block: int, size: Size) -> None:
        """Adds the row that makes a block large enough, or the scratch of threads."""
        if isinstance(size, Index):
            self.sizes.reserved[size] = None
        self.rows.append(Row("RESERVE", count=self.sizes.code(size), target=block))

    def add_scratch(self, size: Size) -> None:
        """Adds the row that makes scratch of a size that a run tells large enough."""
        if isinstance(size, Index):
            self.add_reserve(SCRATCH, size)

    def add_call(self, call: KernelCall) -> None:
        """Adds the row of a launch.

        Raises:
            UserError: the kernel needs more sizes than one can be told.
        """
        first = self.add_buffers(*call.args)
        origin = ", ".join(call.origin)
        if len(call.sizes) > MAX_SYMBOLS:
            raise UserError(
                f"{origin} needs {len(call.sizes)} symbolic sizes, and no more than "
                f"{MAX_SYMBOLS} can be told to one kernel: fix some with --dim"
            )
        row = Row(
            "LAUNCH",
            call.function,
            first,
            self.sizes.code(call.tasks),
            self.sizes.code(call.turns),
            len(self.launch_symbols),
            len(call.sizes),
            call.function,
            origin,
        )
        self.launch_symbols += [self.sizes.place(s) for s in call.sizes]
        self.rows.append(row)

    def add_turns(self, step: InTurn) -> None:
        """`in turn n; launches` -> `IN_TURN n, L; launches; L:`; so of a loop of them."""
        calls = [self.kernels[s.kernel] for s in step.body if isinstance(s, Launch)]
        for size in dict.fromkeys(step.near_bytes + call.thread_bytes for call in calls):
            self.add_scratch(size)
        place, first, near = self.reserve(), len(self.buffers), len(self.nears)
        for call in calls:
            begin, code = len(self.buffers) - first, self.sizes.code
            self.nears += [
                f"{{{begin + n.argument}, {code(n.offset)}, {code(n.bytes)}}}" for n in call.near
            ]
            self.add_call(call)
        if not calls:
            self.add_steps(step.body)
        row = Row("IN_TURN", "", first, self.sizes.code(step.trips), len(self.rows))
        self.rows[place] = replace(row, symbol=len(self.turns))
        self.turns.append(
            f"{{{step.buffer_count(self.kernels)}, {near}, {len(self.nears) - near}, "
            f"{self.sizes.code(step.near_bytes)}}}"
        )

    def add_branch(self, step: Branch) -> None:
        """`branch c; then; else; orelse` -> `BRANCH c, L1; then; JUMP L2; L1: orelse; L2:`.

        On a size it is `UNLESS`, which goes on at L1 as `BRANCH` does.
        """
        if isinstance(step.cond, Ref):
            row = Row("BRANCH", buffer=self.add_buffers(step.cond))
        else:
            row = Row("UNLESS", count=self.sizes.code(step.cond))
        branch = self.reserve()
        self.add_steps(step.then)
        if step.orelse:
            jump = self.reserve()
            self.rows[branch] = replace(row, target=len(self.rows))
            self.add_steps(step.orelse)
            self.rows[jump] = Row("JUMP", target=len(self.rows))
        else:
            self.rows[branch] = replace(row, target=len(self.rows))

    def add_repeat(self, step: Repeat) -> None:
        """`repeat s n; body` -> `REPEAT s, n, L2; L1: body; NEXT s, n, L1; L2:`."""
        repeat = self.reserve()
        self.add_steps(step.body)
        trips, symbol = self.sizes.code(step.trips), self.sizes.places[step.symbol]
        self.rows.append(Row("NEXT", count=trips, target=repeat + 1, symbol=symbol))
        self.rows[repeat] = Row("REPEAT", count=trips, target=len(self.rows), symbol=symbol)

    def add_while(self, step: While) -> None:
        """`while c; body` -> `L1: BRANCH c, L2; body; JUMP L1; L2:`."""
        condition = self.add_buffers(step.cond)
        branch = self.reserve()
        self.add_steps(step.body)
        self.rows.append(Row("JUMP", target=branch))
        self.rows[branch] = Row("BRANCH", "", condition, 0, len(self.rows))
