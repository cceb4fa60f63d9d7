"""Scheduled kernels as LLVM IR.

The function emitted for a kernel is

    void kernel(ptr bufs, ptr syms, i64 begin, i64 end)

`bufs` holds one pointer per buffer, `syms` the values of the kernel's symbols; the iterations of
the outermost parallel loops, numbered row-major, are the tasks, of which it does [begin, end).
Unrolled and vectorised loops are expanded here: registers become one stack slot per element (or
vector of elements), which LLVM promotes and which is read and written once in a block at most, and
equal loads and addresses in one expansion are emitted once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import assert_never

from rutc.base.record import record
from rutc.emit.dot import DotLoop, has_room, shares_windows
from rutc.emit.expression import ExpressionEmitter
from rutc.emit.frame import Frame, thread_bytes
from rutc.emit.index import IndexEmitter, Lane, Unrolled, chunk
from rutc.emit.invariant import repeats
from rutc.emit.llvm import ir
from rutc.emit.llvm.ir_vectors import I64, i64
from rutc.emit.llvm.opaque import opaque_zero
from rutc.emit.loads.lane_masks import LaneMasks
from rutc.emit.matrix import MatrixEmitter, matrix_shapes
from rutc.emit.numbers import Numbers
from rutc.emit.put import emit_put
from rutc.emit.reduce import ReductionEmitter
from rutc.emit.together import together
from rutc.errors import InternalError
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.facts.narrow_ends import end_lanes, has_narrow_ends
from rutc.tensor_ir.indices.affine import ONE, ZERO, Index, Range, Size, maximum, plain, product
from rutc.tensor_ir.kernel import (
    Assign,
    Branch,
    Init,
    Kernel,
    Kind,
    Loop,
    Merge,
    Prefetch,
    Put,
    Space,
    Stmt,
    Update,
)
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.statements import accesses, walk_loops, walk_stmts

ENTRY = "rutc_kernel"
"""The name that every emitted kernel function has until it is linked."""


@record
class EmittedKernel:
    """A kernel's LLVM module as text, its number of tasks, and the scratch that a thread needs.

    The code reads `numbers` where the pointer behind those to the kernel's buffers points to.
    """

    text: str
    tasks: Size
    thread_bytes: Size = 0
    numbers: bytes = b""


def parallel_loops(kernel: Kernel) -> tuple[Loop, ...]:
    """The outermost directly nested parallel loops: their iterations are the tasks."""
    chain: list[Loop] = []
    body = kernel.body
    symbols = {n for n, _ in kernel.symbols}
    while len(body) == 1 and isinstance(body[0], Loop) and body[0].kind is Kind.PARALLEL:
        loop = body[0]
        if not (loop.lo.is_const and loop.hi.names() <= symbols):
            break
        chain.append(loop)
        body = loop.body
    return tuple(chain)


def tasks_of(kernel: Kernel) -> Size:
    """How many tasks a kernel has."""
    return plain(product(loop.hi - loop.lo for loop in parallel_loops(kernel)))


def emit_kernel(kernel: Kernel, machine: Machine) -> EmittedKernel:
    """The LLVM module of a kernel for a machine."""
    module = ir.Module(name="kernel")
    module.triple = machine.triple
    work = _emit_work(module, kernel, machine)
    types = [ir.PointerType(), ir.PointerType(), I64, I64]
    entry = ir.Function(module, ENTRY, ir.VoidType(), types)
    bufs, syms, begin, end = entry.args
    builder = ir.IRBuilder(entry.append_basic_block())
    assert work.numbers is not None
    numbers = work.numbers.bytes
    pointers: list[ir.Value] = []
    for number in range(len(kernel.args) + bool(numbers)):
        place = builder.gep(bufs, [i64(number)], type_=ir.PointerType(), inbounds=True)
        pointers.append(builder.load(place, type_=ir.PointerType()))
    own = pointers[len(kernel.args) :]
    builder.call(work, [*pointers[: len(kernel.args)], syms, begin, end, *own], tail=True)
    builder.ret_void()
    text = str(module)
    module.drop()
    return EmittedKernel(text, tasks_of(kernel), thread_bytes(kernel), numbers)


def _emit_work(module: ir.Module, kernel: Kernel, machine: Machine) -> ir.Function:
    """The function that does the work: its buffers are arguments, known not to overlap."""
    types = [ir.PointerType()] * (len(kernel.args) + 1) + [I64, I64]
    work = ir.Function(module, f"{ENTRY}_work", ir.VoidType(), types)
    work.internal = work.noinline = True
    work.repeats = repeats(kernel, machine)
    work.noalias = len(kernel.args)
    _KernelEmitter(work, kernel, machine).run()
    return work


@record
class _Facts:
    """What a vector loop does; the loop itself, so that nothing else gets its identity."""

    loop: Loop
    written: frozenset[str]
    """The buffers that it writes."""
    narrow: bool
    """Whether stores may be truncations of wider integers."""
    is_tile: bool
    """Whether it updates states that are not told from those of idle lanes."""
    together: int
    """How many registers' lanes are computed in one."""


class _KernelEmitter:
    def __init__(self, function: ir.Function, kernel: Kernel, machine: Machine) -> None:
        self.kernel = kernel
        self.machine = machine
        self.function = function
        self.entry = function.append_basic_block("entry")
        function.numbers = Numbers(function, self.entry)
        self.builder = ir.IRBuilder(function.append_basic_block("body"))
        loops = walk_loops(kernel.body)
        # Tiles of rows have long loops inside; elsewhere most divisions cancel.
        tiled = any(s.kind is Kind.UNROLL for s in loops)
        self.index = IndexEmitter(self.builder, hide_divisions=tiled)
        self.buffers = {b.name: b for b in (*kernel.args, *kernel.locals)}
        frame = Frame(function, self.entry, kernel)
        # Loops over lanes that are merged all have the merge's vectors, however few lanes they use.
        self.merged = {s.var: s.extent for s in walk_stmts(kernel.body) if isinstance(s, Merge)}
        self.narrow_ends = has_narrow_ends(kernel, machine)
        self.expressions = ExpressionEmitter(
            self.builder,
            self.index,
            self.buffers,
            frame.pointer,
            frame.register,
            machine,
            frozenset(a.buffer for s in walk_stmts(kernel.body) for a in accesses(s)),
        )

        self.masks = LaneMasks(self.builder, machine)
        self._known: dict[int, _Facts] = {}
        self.reductions = ReductionEmitter(self.expressions)
        shapes = matrix_shapes(kernel)
        self.matrix = MatrixEmitter(self.expressions, shapes) if shapes else None

    def run(self) -> None:
        syms, begin, end = self.function.args[len(self.kernel.args) :]
        with ExitStack() as stack:
            for number, (name, (low, high)) in enumerate(self.kernel.symbols):
                place = self.builder.gep(syms, [i64(number)], type_=I64, inbounds=True)
                value = self.builder.load(place, type_=I64)
                stack.enter_context(self.index.counter(name, value, (low, high)))
            if self.matrix is not None:
                self.matrix.begin()
            self._tasks(parallel_loops(self.kernel), begin, end)
            if self.matrix is not None:
                self.matrix.end()
        self.builder.ret_void()
        self.expressions.registers.store()
        self.expressions.drop()
        body = self.function.blocks[1]
        ir.IRBuilder(self.entry).branch(body)

    # -- loops ----------------------------------------------------------------------------------
    def _tasks(self, loops: tuple[Loop, ...], begin: ir.Value, end: ir.Value) -> None:
        if not loops:
            self._stmts(self.kernel.body)
            return
        extents = [x.hi - x.lo for x in loops]
        if any(e == ZERO for e in extents):
            return
        inner = product(extents[1:])
        if not inner.is_const or (inner.value > 1 and not extents[0].is_const):
            self._within_first(loops, inner, begin, end)
            return
        counts = [self.index.emit(e) for e in extents]
        with self._counted(begin, end) as task, ExitStack() as stack:
            rest = task
            values: list[ir.Value] = []
            for count in reversed(counts[1:]):
                values.append(self.index.rest(rest, count))
                rest = self.index.quotient(rest, count)
            values.append(rest)
            for x, value in zip(loops, reversed(values), strict=True):
                low = x.lo.value
                moved = self.builder.add(value, i64(low)) if low else value
                high = x.hi.bounds(self.index.ranges)
                bound = (low, high[1] - 1) if high is not None else None
                stack.enter_context(self.index.counter(x.var, moved, bound, x.hi))
            self._stmts(loops[-1].body)

    def _within_first(
        self, loops: tuple[Loop, ...], inner: Index, begin: ir.Value, end: ir.Value
    ) -> None:
        """The tasks, iteration by iteration of a first loop, where only the run knows all ends.

        What depends on it alone is computed once for all of its `inner` tasks, and which
        iterations the others are takes no division for each.
        """
        b = self.builder
        inner = maximum(inner, ONE, self.index.ranges)
        count = self.index.emit(inner)
        first, low = loops[0], loops[0].lo.value
        last = b.udiv(b.add(end, self.index.emit(inner - 1)), count)
        with self._counted(b.udiv(begin, count), last) as number:
            before = b.mul(number, count)
            own_begin, own_end = b.sub(begin, before), b.sub(end, before)
            from_start = b.icmp_signed("<", own_begin, i64(0))
            to_end = b.icmp_signed("<", count, own_end)
            moved = b.add(number, i64(low)) if low else number
            high = first.hi.bounds(self.index.ranges)
            bound = (low, high[1] - 1) if high is not None else None
            with self.index.counter(first.var, moved, bound, first.hi):
                self._tasks(
                    loops[1:],
                    b.select(from_start, i64(0), own_begin),
                    b.select(to_end, count, own_end),
                )

    @contextmanager
    def _counted(self, lo: ir.Value, hi: ir.Value, *, some: bool = False) -> Iterator[ir.Value]:
        """A loop from lo below hi, known to have `some` iterations; its body is emitted inside."""
        b = self.builder
        before = b.block
        head = self.function.append_basic_block("loop")
        done = self.function.append_basic_block("done")
        if some:
            b.branch(head)
        else:
            b.cbranch(b.icmp_signed("<", lo, hi), head, done)
        b.position_at_end(head)
        counter = b.phi(I64)
        counter.add_incoming(lo, before)
        with self.index.scope(), self.expressions.region():
            yield counter
        following = b.add(counter, i64(1), nsw=True)
        counter.add_incoming(following, b.block)
        b.cbranch(b.icmp_signed("<", following, hi), head, done)
        b.position_at_end(done)
        self.expressions.forget_loads()

    def _loop(self, loop: Loop) -> None:
        lo, hi = self._bound(loop.lo), self._bound(loop.hi)
        match loop.kind:
            case Kind.UNROLL:
                unrolled = Unrolled(lo.value, hi.value, self.builder.block)
                self.index.unrolled[loop.var] = unrolled
                for i in range(lo.value, hi.value):
                    with self.index.constant(loop.var, i):
                        self._stmts(loop.body)
                del self.index.unrolled[loop.var]
                self.expressions.transposes.store_deferred(loop.var)
            case Kind.VECTOR:
                self._vector(loop, lo, hi)
            case Kind.MATRIX:
                assert self.matrix is not None
                self.matrix.emit(loop)
            case Kind.DOT:
                # Windows share neighbours with those of other steps, which LLVM would all keep.
                away = opaque_zero(self.builder) if shares_windows(loop) else None
                room = has_room(loop, self.machine)
                self.reductions.dot_loop = DotLoop(loop.var, hi.value, away, room=room)
                self._stmts(loop.body)
                self.reductions.dot_loop = None
            case Kind.SERIAL | Kind.PARALLEL:
                parts = self._parted(loop, lo, hi)
                if parts:
                    for part in parts:
                        self._loop(part)
                    return
                low, high = lo.bounds(self.index.ranges), hi.bounds(self.index.ranges)
                bound = None
                if low is not None and high is not None:
                    if high[1] <= low[0]:
                        return
                    bound = (low[0], high[1] - 1)
                if lo.is_const and hi == lo + 1:
                    with self.index.constant(loop.var, lo.value):
                        self._stmts(loop.body)
                    return
                least = (hi - lo).bounds(self.index.ranges)
                some = least is not None and least[0] > 0
                with (
                    self._counted(self.index.emit(lo), self.index.emit(hi), some=some) as counter,
                    self.index.counter(loop.var, counter, bound),
                ):
                    self._stmts(loop.body)
            case _:
                assert_never(loop.kind)

    def _parted(self, loop: Loop, lo: Index, hi: Index) -> tuple[Loop, ...]:
        """The loop as two, where all that it does is to ask how far it is; else nothing.

        for v in [lo, hi) { if v < n { S } else { T } }  ->  for v in [lo, n) { S }
                                                             for v in [n, hi) { T }
        """
        match loop.body:
            case (Branch(left, right, then, orelse),) if left.as_var == loop.var:
                at = self.index.resolve(right)
            case _:
                return ()
        if loop.var in at.names():
            return ()
        for least in (at - lo, hi - at):
            bounds = least.bounds(self.index.ranges)
            if bounds is None or bounds[0] < 0:
                return ()
        return Loop(loop.var, lo, at, loop.kind, then), Loop(loop.var, at, hi, loop.kind, orelse)

    def _bound(self, index: Index) -> Index:
        """A loop's bound, a constant where it has one value only."""
        if index.is_const:
            return index
        resolved = self.index.resolve(index)
        bounds = resolved.bounds(self.index.ranges)
        known = bounds is not None and bounds[0] == bounds[1]
        return Index.of(bounds[0]) if bounds is not None and known else resolved

    def _vector(self, loop: Loop, lo: Index, hi: Index) -> None:
        bounds = hi.bounds(self.index.ranges)
        if bounds is None or not lo.is_const:
            raise InternalError(f"vector loop {loop.var} has no constant bound")
        first, extent = lo.value, bounds[1] - lo.value
        if extent == 1 and hi.is_const and loop.var not in self.merged:
            with self.index.constant(loop.var, first):
                self._stmts(loop.body)
            return
        lanes = self.machine.lanes(self.merged.get(loop.var, extent))
        facts = self._facts(loop, (first, first + extent - 1))
        # In a register tile the branches would cost more than the idle lanes do.
        skippable = not hi.is_const and not facts.is_tile
        at_once = lanes * facts.together if hi.is_const else lanes
        narrow = hi.is_const and self.narrow_ends
        least = end_lanes(self.machine, extent, lanes) if narrow else lanes
        for base, count in _chunks(first, first + extent, at_once, least):
            if hi.is_const:
                self.index.lane = chunk(loop.var, base, count, hi)
            elif base + lanes <= bounds[0]:
                self.index.lane = Lane(loop.var, base, lanes, None, hi)
            else:
                end = self.index.emit(hi)
                mask = self.masks.below(end, base, lanes, truncated=facts.narrow)
                self.index.lane = Lane(loop.var, base, lanes, mask, hi)
            self.index.ranges[loop.var] = (first, first + extent - 1)
            self.expressions.registers.private = facts.written
            if base >= max(bounds[0], first + 1) and skippable:
                self._where(self.index.emit(hi), base, loop.body)
            else:
                self._stmts(loop.body)
            self.expressions.registers.private = frozenset()
            self.index.lane = None
            del self.index.ranges[loop.var]

    def _facts(self, loop: Loop, iterations: Range) -> _Facts:
        """What a vector loop does, which unrolled loops around it ask again and again."""
        found = self._known.get(id(loop))
        if found is None:
            stmts = list(walk_stmts(loop.body))
            written = frozenset(a.buffer for s in stmts for a in accesses(s))
            narrow = any(self._stores_truncated(name) for name in written)
            tile = any(
                isinstance(s, Init) or (isinstance(s, Update) and s.lanes is None) for s in stmts
            )
            ranges = {**self.index.ranges, loop.var: iterations}
            number = together(loop, self.buffers, ranges, self.machine)
            found = _Facts(loop, written, narrow, tile, number)
            self._known[id(loop)] = found
        return found

    def _is_register(self, name: str) -> bool:
        return self.buffers[name].space is Space.REGISTER

    def _where(self, hi: ir.Value, base: int, body: tuple[Stmt, ...]) -> None:
        """The body, for a chunk of lanes of which the first is an iteration; else nothing."""
        b = self.builder
        chunk = self.function.append_basic_block("chunk")
        done = self.function.append_basic_block("done")
        b.cbranch(b.icmp_signed("<", i64(base), hi), chunk, done)
        b.position_at_end(chunk)
        with self.index.scope(), self.expressions.region():
            self._stmts(body)
        b.branch(done)
        b.position_at_end(done)
        self.expressions.forget_loads()

    def _stores_truncated(self, name: str) -> bool:
        """Whether stores to the buffer may be truncations of wider integers."""
        buffer = self.buffers[name]
        wide = buffer.dtype in (DType.F32, DType.F64, DType.I64, DType.U64)
        return buffer.space is not Space.REGISTER and not wide

    # -- statements -----------------------------------------------------------------------------
    def _stmts(self, body: tuple[Stmt, ...]) -> None:
        for s in body:
            match s:
                case Loop():
                    self._loop(s)
                case Assign():
                    self.expressions.store(s.target, self.expressions.emit(s.value))
                case Put():
                    emit_put(self.expressions, s)
                    self.expressions.forget_loads()
                case Init():
                    self.reductions.init(s)
                case Update():
                    self.reductions.update(s)
                case Merge():
                    self.reductions.merge(s)
                case Branch():
                    self._branch(s)
                case Prefetch():
                    self.expressions.prefetch(s)
                case _:
                    assert_never(s)

    def _branch(self, s: Branch) -> None:
        left, right = self.index.resolve(s.left), self.index.resolve(s.right)
        difference = (left - right).bounds(self.index.ranges)
        if difference is not None and difference[1] < 0:
            self._stmts(s.then)
            return
        if difference is not None and difference[0] >= 0:
            self._stmts(s.orelse)
            return
        b = self.builder
        then = self.function.append_basic_block("then")
        orelse = self.function.append_basic_block("else")
        done = self.function.append_basic_block("done")
        b.cbranch(b.icmp_signed("<", self.index.emit(left), self.index.emit(right)), then, orelse)
        below, from_there = _narrowed(left, right, self.index.ranges)
        for block, stmts, bound in ((then, s.then, below), (orelse, s.orelse, from_there)):
            b.position_at_end(block)
            with self.index.scope(), self.expressions.region(), ExitStack() as stack:
                if bound is not None:
                    stack.enter_context(self.index.narrowed(*bound))
                self._stmts(stmts)
            b.branch(done)
        b.position_at_end(done)
        self.expressions.forget_loads()


def _chunks(first: int, end: int, together: int, least: int) -> Iterator[tuple[int, int]]:
    """(iteration, lanes) of the vectors of a loop: of `together` lanes, or fewer at its end.

    `together` is a power of two times `least`, of which no fewer are taken.
    """
    width = together
    while first < end:
        while width > least and width > end - first:
            width //= 2
        yield first, width
        first += width


Narrowed = tuple[str, tuple[int, int]] | None


def _narrowed(
    left: Index, right: Index, ranges: dict[str, tuple[int, int]]
) -> tuple[Narrowed, Narrowed]:
    """The ranges that `left < right`, and its opposite, leave for a single variable on the left."""
    name = left.as_var
    if name is None or not right.is_const or name not in ranges:
        return None, None
    low, high = ranges[name]
    end = right.value
    return (name, (low, max(low, min(high, end - 1)))), (name, (min(high, max(low, end)), high))
