"""Whether a kernel's loops compute again and again what does not change in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rutc.tensor_ir.expr import Apply, Expr, IndexValue, Local, Read, children
from rutc.tensor_ir.facts.gradual import row_chosen
from rutc.tensor_ir.indices.affine import ONE, Index
from rutc.tensor_ir.kernel import Branch, Kernel, Kind, Loop, Stmt
from rutc.tensor_ir.machine import WORD, Machine
from rutc.tensor_ir.statements import accesses, exprs, walk_stmts

COUNTED = (Kind.SERIAL, Kind.PARALLEL)
"""The kinds of loops that stay loops of the code."""


def repeats(kernel: Kernel, machine: Machine) -> bool:
    """Whether an operation, or a place that data tell, is the same in all iterations of a loop.

    for i in [0, n) { %y[i] = %x[i] + log(%s) }

    Or a row of which lanes pick what data choose: its registers are loaded before the loop.

    for i in [0, n) { for k in [0, 16) vector { %y[i, k] = %x[%at[i, k]] } }

    What literals and iterations of unrolled loops tell is no operation of the code, and what is
    done in the last iteration alone is not repeated.
    """
    buffers = {b.name: b for b in (*kernel.args, *kernel.locals)}

    def in_registers(r: Read) -> bool:
        b = buffers[r.value]
        row = row_chosen(r.coords, b.layout)
        if row is None:
            return False
        lanes = max(WORD // b.dtype.bytes, 1) * machine.width
        return machine.picks(b.dtype.bytes, row[1], lanes) > 0

    found = _innermost(kernel.body)
    return any(_repeated(loop, stmts, in_registers) for loop, stmts in found)


def _innermost(
    body: tuple[Stmt, ...], around: tuple[Loop, ...] = (), unrolled: frozenset[str] = frozenset()
) -> Iterator[tuple[Loop, list[tuple[Stmt, frozenset[str]]]]]:
    """The counted loops, each with the statements of which it is the innermost one around.

    With every statement stand the variables of `unrolled` loops around it.
    """
    own: list[tuple[Stmt, frozenset[str]]] = []
    waiting = [(s, unrolled) for s in body]
    while waiting:
        s, copies = waiting.pop()
        if isinstance(s, Branch):
            waiting += [(x, copies) for x in s.then]
            if around and _is_last(s, around[-1]):
                yield from _innermost(s.orelse, around[:-1], copies)
            else:
                waiting += [(x, copies) for x in s.orelse]
        elif not isinstance(s, Loop):
            own.append((s, copies))
        elif s.kind in COUNTED and s.hi - s.lo != ONE:
            yield from _innermost(s.body, (*around, s), copies)
        else:
            inside = copies | {s.var} if s.kind is Kind.UNROLL else copies
            waiting += [(x, inside) for x in s.body]
    if around:
        yield around[-1], own


def _is_last(s: Branch, loop: Loop) -> bool:
    """Whether the second arm is that of a loop's last iteration, as peeling gives it code."""
    return s.left.as_var == loop.var and loop.hi - s.right == ONE


def _repeated(
    loop: Loop,
    stmts: list[tuple[Stmt, frozenset[str]]],
    in_registers: Callable[[Read], bool],
) -> bool:
    """Whether some of the statements compute in all iterations of a loop the same."""
    written = frozenset(a.buffer for s in walk_stmts(loop.body) for a in accesses(s))
    parts: dict[frozenset[str], _Parts] = {}
    for s, copies in stmts:
        if copies not in parts:
            parts[copies] = _Parts(loop.var, copies, written, in_registers)
        for e in exprs(s):
            parts[copies].changes(e)
    return any(x.repeated for x in parts.values())


class _Parts:
    """The parts of expressions in a loop, of which each is looked at once."""

    def __init__(
        self,
        var: str,
        copies: frozenset[str],
        written: frozenset[str],
        in_registers: Callable[[Read], bool],
    ) -> None:
        """Of a loop over `var` that writes these buffers; what tells rows that registers hold.

        The variables of `copies` are known while code is emitted.
        """
        self.var = var
        self.copies = copies
        self.in_registers = in_registers
        self.written = written
        self.repeated = False
        """Whether an operation, or a place that data tell, was the same in all iterations."""
        self._known: dict[int, bool] = {}
        self._told: dict[int, bool] = {}

    def changes(self, e: Expr) -> bool:
        """Whether an expression is another from one iteration to the next."""
        found = self._known.get(id(e))
        if found is None:
            found = self._known[id(e)] = self._changes(e)
        return found

    def _changes(self, e: Expr) -> bool:
        inside = [self.changes(x) for x in children(e)]
        match e:
            case Apply():
                self.repeated |= not any(inside) and not self._is_told(e)
            case Read():
                self.repeated |= not all(inside)
                own = (c for _, c in e.coords if isinstance(c, Index))
                if e.value in self.written or any(self.var in c.names() for c in own):
                    return True
                self.repeated |= self.in_registers(e)
            case IndexValue(index):
                return self.var in index.names()
            case _:
                pass
        return any(inside)

    def _is_told(self, e: Expr) -> bool:
        """Whether literals and numbers of copies alone tell an expression's value."""
        found = self._told.get(id(e))
        if found is None:
            match e:
                case Read() | Local():
                    found = False
                case IndexValue(index):
                    found = index.names() <= self.copies
                case _:
                    found = all(map(self._is_told, children(e)))
            self._told[id(e)] = found
        return found
