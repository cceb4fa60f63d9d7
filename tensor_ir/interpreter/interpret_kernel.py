"""The meaning of the kernel language: one iteration and one element at a time.

Every loop runs in order, whatever its kind; buffers are flat arrays addressed by their layouts.
What the language forbids is an error: places outside of a buffer, and reads of locals before they
were written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import assert_never

import numpy as np

from rutc.errors import InternalError
from rutc.tensor_ir.expr import (
    Apply,
    BitCast,
    Cast,
    Coord,
    Expr,
    IndexValue,
    Lit,
    Local,
    Read,
)
from rutc.tensor_ir.indices.affine import Index
from rutc.tensor_ir.interpreter.evaluate import convert, literal, operate, reinterpret
from rutc.tensor_ir.kernel import (
    Access,
    Assign,
    Branch,
    Buffer,
    Init,
    Kernel,
    Loop,
    Merge,
    Prefetch,
    Put,
    Stmt,
    Update,
)
from rutc.tensor_ir.layout import from_nibbles
from rutc.tensor_ir.reducer import Reducer, as_locals

Locals = Mapping[str, np.ndarray]


def interpret_kernel(
    kernel: Kernel,
    buffers: Mapping[str, np.ndarray],
    symbols: Mapping[str, int] | None = None,
) -> None:
    """Runs the kernel on its arguments' memory.

    Args:
        kernel: The kernel.
        buffers: The flat array of every argument, `layout.size` elements each, or the bytes of
            those in nibbles; changed in place.
        symbols: The kernel's sizes and the host program's loop counters.

    Raises:
        InternalError: The kernel does what the language forbids, or an argument does not fit.
    """
    run = _Run(kernel, buffers, symbols or {})
    with np.errstate(all="ignore"):
        run.stmts(kernel.body)


class _Run:
    """One run: where every buffer's elements are, and what the loop variables stand at."""

    def __init__(
        self, kernel: Kernel, buffers: Mapping[str, np.ndarray], symbols: Mapping[str, int]
    ) -> None:
        self.buffers: dict[str, Buffer] = {}
        self.extents: dict[str, dict[str, int]] = {}
        self.memory: dict[str, np.ndarray] = {}
        self.written: dict[str, set[int]] = {}
        self.env: dict[str, int] = dict(symbols)
        for b in (*kernel.args, *kernel.locals):
            if b.name in self.buffers:
                raise InternalError(f"two buffers are named %{b.name}")
            layout = b.layout.at(symbols)
            self.buffers[b.name] = replace(b, layout=layout)
            self.extents[b.name] = {d: Index.of(e).value for d, e in layout.extents}
        for b in map(self.buffers.__getitem__, (b.name for b in kernel.args)):
            array = buffers[b.name]
            if b.layout.nibbles and array.dtype == np.uint8 and array.size == b.bytes:
                array = from_nibbles(array, b.dtype)[: b.layout.elements]
            if array.dtype != b.dtype.numpy or array.shape != (b.layout.elements,):
                raise InternalError(
                    f"%{b.name} takes {b.layout.size} elements of {b.dtype}, "
                    f"not {array.dtype}{list(array.shape)}"
                )
            self.memory[b.name] = array
        for b in map(self.buffers.__getitem__, (b.name for b in kernel.locals)):
            self.memory[b.name] = np.zeros(b.layout.elements, b.dtype.numpy)
            self.written[b.name] = set()

    # -- statements -----------------------------------------------------------------------------
    def stmts(self, body: tuple[Stmt, ...]) -> None:
        for s in body:
            match s:
                case Loop():
                    self.loop(s)
                case Assign():
                    self.store(s.target, self.value(s.value, {}))
                case Put():
                    self.put(s)
                case Init():
                    for a, identity in zip(s.states, s.reducer.identity, strict=True):
                        self.store(a, literal(identity))
                case Update():
                    self.update(s)
                case Merge():
                    self.merge(s)
                case Branch():
                    holds = self.index(s.left) < self.index(s.right)
                    self.stmts(s.then if holds else s.orelse)
                case Prefetch():
                    pass
                case _:
                    assert_never(s)

    def loop(self, loop: Loop) -> None:
        shadowed = self.env.get(loop.var)
        for i in range(self.index(loop.lo), self.index(loop.hi)):
            self.env[loop.var] = i
            self.stmts(loop.body)
        self.env.pop(loop.var, None)
        if shadowed is not None:
            self.env[loop.var] = shadowed

    def put(self, s: Put) -> None:
        b = self.buffers[s.target.buffer]
        at = self.place(s.target)
        if not all(0 <= at[d] < extent for d, extent in self.extents[b.name].items()):
            return
        new = self.value(s.value, {})
        if s.reducer is not None:
            r = s.reducer
            mine = [self.value(e, {"x0": self.element(b, at)}) for e in r.lift]
            other = [self.value(e, {"x0": new}) for e in r.lift]
            env = as_locals(a=mine, b=other)
            states = [self.value(e, env) for e in r.merge]
            new = self.value(r.finish[0], as_locals(s=states))
        self.store(s.target, new)

    def update(self, s: Update) -> None:
        elements = as_locals(x=[self.value(e, {}) for e in s.elements])
        lifted = [self.value(e, elements) for e in s.reducer.lift]
        self.join(s.reducer, s.states, lifted)

    def merge(self, s: Merge) -> None:
        shadowed = self.env.get(s.var)
        for i in range(s.extent):
            self.env[s.var] = i
            self.join(s.reducer, s.states, [self.load_state(a) for a in s.sources])
        self.env.pop(s.var, None)
        if shadowed is not None:
            self.env[s.var] = shadowed

    def join(self, r: Reducer, states: tuple[Access, ...], other: list[np.ndarray]) -> None:
        """The states become the states merged with `other`."""
        env = as_locals(a=map(self.load_state, states), b=other)
        for a, x in zip(states, [self.value(e, env) for e in r.merge], strict=True):
            self.store(a, x)

    # -- expressions ----------------------------------------------------------------------------
    def value(self, e: Expr, env: Locals) -> np.ndarray:
        match e:
            case Lit():
                return literal(e)
            case IndexValue():
                return np.asarray(self.index(e.index), np.int64)
            case Local():
                return env[e.name]
            case Read():
                return self.read(e, env)
            case Cast():
                return convert(self.value(e.arg, env), e.dtype)
            case BitCast():
                return reinterpret(self.value(e.arg, env), e.dtype)
            case Apply():
                return operate(e.op, [self.value(a, env) for a in e.args])
            case _:
                assert_never(e)

    def index(self, i: Index) -> int:
        missing = i.names() - self.env.keys()
        if missing:
            raise InternalError(f"{i} uses {sorted(missing)} outside of their loops")
        return int(i.evaluate(self.env))

    # -- elements -------------------------------------------------------------------------------
    def read(self, r: Read, env: Locals) -> np.ndarray:
        b = self.buffers[r.value]
        extents = self.extents[r.value]
        at: dict[str, int] = {}
        for d, c in r.coords:
            at[d] = self.coord(c, env)
            if d not in extents:
                continue
            inside = 0 <= at[d] < extents[d]
            if not inside and r.fill is not None:
                return literal(r.fill)
            if isinstance(c, Index):
                low, high = -b.layout.before.get(d, 0), extents[d] + b.layout.after.get(d, 0)
                if not low <= at[d] < high:
                    raise InternalError(f"%{r.value}[{d}={c}] is read at {at[d]} of {extents[d]}")
            elif extents[d] == 0:
                return np.zeros((), b.dtype.numpy)
            else:
                at[d] = min(max(at[d], 0), extents[d] - 1)
        if b.layout.size == 0:
            return np.zeros((), b.dtype.numpy)
        return self.element(b, at)

    def coord(self, c: Coord, env: Locals) -> int:
        return self.index(c) if isinstance(c, Index) else int(self.value(c, env))

    def load_state(self, a: Access) -> np.ndarray:
        return self.element(self.buffers[a.buffer], self.place(a))

    def element(self, b: Buffer, at: Mapping[str, int]) -> np.ndarray:
        position = self.position(b, at)
        if b.name in self.written and position not in self.written[b.name]:
            raise InternalError(f"%{b.name}{dict(at)} is read before it was written")
        return np.asarray(self.memory[b.name][position])

    def store(self, a: Access, x: np.ndarray) -> None:
        b = self.buffers[a.buffer]
        at = self.place(a)
        if b.layout.nibbles:
            raise InternalError(f"%{b.name}, which is in nibbles, is written")
        for d, extent in self.extents[b.name].items():
            low, high = -b.layout.before.get(d, 0), extent + b.layout.after.get(d, 0)
            if not low <= at[d] < high:
                raise InternalError(f"%{b.name} is written at {d}={at[d]} of {extent}")
        if x.dtype != b.dtype.numpy:
            raise InternalError(f"{x.dtype} is stored to %{b.name} of {b.dtype}")
        position = self.position(b, at)
        self.memory[b.name][position] = x
        if b.name in self.written:
            self.written[b.name].add(position)

    def place(self, a: Access) -> dict[str, int]:
        return {d: self.coord(c, {}) for d, c in a.coords}

    def position(self, b: Buffer, at: Mapping[str, int]) -> int:
        position = b.layout.position(at)
        if not 0 <= position < b.layout.elements:
            raise InternalError(f"%{b.name}{dict(at)} is element {position} of {b.layout.size}")
        return position
