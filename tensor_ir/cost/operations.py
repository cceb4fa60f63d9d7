"""The operations of expressions: their kinds, and how long they wait for each other."""

from __future__ import annotations

from rutc.base.record import record
from rutc.tensor_ir.cost.work import Tally
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.expr import (
    ELEMENTARY,
    Apply,
    BitCast,
    Cast,
    Expr,
    Lit,
    Local,
    Read,
    children,
)
from rutc.tensor_ir.facts.clamped import clamped, rounded
from rutc.tensor_ir.kernel import Assign, Kind, Loop, Merge, Stmt
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.roots import ROOTS, roots_taken
from rutc.tensor_ir.statements import reads_in, walk_stmts

FUNCTION_STEPS, DIVISION_STEPS = 10, 3
"""Multiply-adds, one after the other, that elementary functions and divisions take as long as."""
DIVIDED = 4.0
"""Instructions of a quotient or remainder of integers by a number that is known."""
EXTREMES = 3.0
"""Those of a minimum or maximum of floats, which is NaN where an operand is."""
JOINED = 3.0
"""Those that put one of several neighbours in its place in a lane."""


def kind_of(e: Apply) -> tuple[str, float]:
    """The kind of an operation and how many instructions it is; elementary ones are functions."""
    dtype = e.args[-1].dtype
    match e:
        case Apply(op="pow", args=(_, Lit(exponent))) if exponent in ROOTS:
            return "divisions", float(roots_taken(float(exponent)))
        case _:
            pass
    if e.op in ELEMENTARY:
        return "function", 1.0
    if e.op in ("div", "mod", "fmod", "sqrt"):
        known = not dtype.is_float and isinstance(e.args[-1], Lit)
        return ("arithmetic", DIVIDED) if known else ("divisions", 1.0)
    if e.op in ("min", "max") and dtype.is_float:
        return "arithmetic", EXTREMES
    if e.op in ("sign", "isinf"):
        return "arithmetic", 2.0
    return "arithmetic", 1.0


def is_larger(e: Apply) -> bool:
    """Whether it is the larger of two numbers, whatever there is of a NaN: one instruction."""
    match e:
        case Apply(op="select", args=(Apply(op="lt", args=(a, b)), c, d)):
            return a.dtype.is_float and (a, b) == (d, c)
        case _:
            return False


def is_added_to(product: Expr, op: str, machine: Machine) -> bool:
    """Whether one instruction multiplies and adds (`op`): of floats, and of some integers.

    Of narrow integers it is the one that adds up products of neighbours, every other one a zero,
    where one factor has no sign.
    """
    match product:
        case Apply(op="mul", args=(a, b)):
            pass
        case _:
            return False
    if product.dtype in (DType.F32, DType.F64):
        return True
    if product.dtype is not DType.I32 or op != "add":
        return False
    if machine.architecture != "x86_64":
        return True
    narrow = (_widened(a), _widened(b))
    signs = {d.is_signed for d in narrow if d is not None}
    return machine.adds_products and None not in narrow and False in signs


def _widened(e: Expr) -> DType | None:
    """The type of a narrow integer whose numbers all are some of i16, as an i32."""
    match e:
        case Cast(arg) if arg.dtype.is_int and (arg.dtype.bits <= 8 or arg.dtype is DType.I16):
            return arg.dtype
        case _:
            return None


@record
class Bounded:
    """A number that is kept within literal bounds while it becomes an integer.

    So many conversions, and so many other instructions do that.
    """

    number: Expr
    conversions: float
    instructions: float


def whole_within(e: Cast, machine: Machine) -> Bounded | None:
    """A conversion to integers with literal bounds, and what the code has for it.

    A bound is an instruction, where neither is NaN. Conversions of f32 round by themselves, and
    then those to bytes have one of the bounds. A comparison makes 0 of NaN, where no bound does.

        u8(i32(min(max(round(%x) + 130.0, 0.0), 255.0)))    2 conversions, a bound, and the shift
    """
    found = clamped(e)
    if found is None:
        return None
    in_bytes = found.by_i32 and (machine.saturates or machine.packs)
    nearest = rounded(found.number)
    if found.by_i32 and not (in_bytes and nearest):
        return None
    number, shift = nearest or (found.number, 0.0)
    bounds = 1.0 if in_bytes else 2.0
    of_nan = 1.0 if machine.has_masks else 2.0
    if not found.low and e.dtype is not DType.I8:
        of_nan = 0.0
    conversions = 2.0 if found.by_i32 else 1.0
    return Bounded(number, conversions, bounds + of_nan + (1.0 if shift else 0.0))


def reads_of(elements: tuple[Expr, ...]) -> list[Read]:
    """The reads of expressions, those of coordinates left out."""
    found: list[Read] = []
    waiting = list(elements)
    while waiting:
        e = waiting.pop()
        if isinstance(e, Read):
            found.append(e)
        elif isinstance(e, Apply):
            waiting += e.args
        elif isinstance(e, Cast | BitCast):
            waiting.append(e.arg)
    return found


def add_operations(e: Expr, tally: Tally, count: float) -> None:
    """Count the operations of a whole expression so many times."""
    if not isinstance(e, Apply):
        return
    if is_larger(e):
        tally.add("arithmetic", count)
        for a in e.args[1:]:
            add_operations(a, tally, count)
        return
    kind, each = kind_of(e)
    if kind == "function":
        tally.call(e.op, count)
    else:
        tally.add(kind, count * each)
    for a in e.args:
        add_operations(a, tally, count)


def depth_of(e: Expr, own: set[str], machine: Machine) -> float | None:
    """Cycles from the reads or locals of these names to the value; None where none is in it."""
    match e:
        case Read(value=name) | Local(name=name) if name in own:
            return 0.0
        case Apply():
            operands = e.args[1:] if is_larger(e) else e.args
            depths = [depth_of(a, own, machine) for a in operands]
            if e.op in ("add", "sub"):
                # A multiply-add waits for its factors no longer than for its product.
                depths = [
                    _longest([depth_of(x, own, machine) for x in children(a)])
                    if _is_product(a)
                    else d
                    for a, d in zip(children(e), depths, strict=True)
                ]
            inner = _longest(depths)
            return None if inner is None else inner + _latency(e, machine)
        case Cast() | BitCast():
            inner = depth_of(e.arg, own, machine)
            return None if inner is None else inner + machine.fma_latency
        case _:
            return None


def _longest(depths: list[float | None]) -> float | None:
    return max((d for d in depths if d is not None), default=None)


def _is_product(e: Expr) -> bool:
    return isinstance(e, Apply) and e.op == "mul"


def _latency(e: Apply, machine: Machine) -> float:
    """Cycles until an operation has its result."""
    fma = float(machine.fma_latency)
    match kind_of(e)[0]:
        case "function":
            return FUNCTION_STEPS * fma
        case "divisions":
            return DIVISION_STEPS * fma
        case _:
            waits = e.args[-1].dtype.is_float and e.op in ("add", "sub", "mul")
            return fma if waits else fma / 2


def is_waited_for(merge: Merge, behind: tuple[Stmt, ...]) -> bool:
    """Whether a loop behind reads what is merged: else the next row is begun meanwhile."""
    known = {a.buffer for a in merge.states}
    for s in behind:
        inside = tuple(walk_stmts((s,)))
        if not any(r.value in known for r in reads_in((s,))):
            continue
        if any(isinstance(x, Loop) and x.kind in (Kind.SERIAL, Kind.PARALLEL) for x in inside):
            return True
        known |= {x.target.buffer for x in inside if isinstance(x, Assign)}
    return False
