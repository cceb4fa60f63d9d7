"""The typing rules of scalar expressions and reducers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import assert_never

from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.expr import (
    ARITHMETIC,
    BITWISE,
    LOGIC,
    UNARY_FLOAT,
    Apply,
    BitCast,
    Cast,
    Expr,
    IndexValue,
    Lit,
    Local,
    Read,
    children,
    walk,
)
from rutc.tensor_ir.reducer import Reducer, as_locals

_ON_NUMBERS = ARITHMETIC | {"neg", "abs", "sign", "lt", "le", "gt", "ge"}


def type_fault(e: Expr) -> str | None:
    """What is wrong with the types in `e`, innermost first, or None."""
    for x in reversed(tuple(walk(e))):
        fault = _fault(x)
        if fault is not None:
            return fault
    return None


@lru_cache(maxsize=1024)
def reducer_fault(r: Reducer) -> str | None:
    """What is wrong with a reducer's expressions, or None."""
    states = r.state
    parts: Sequence[tuple[str, tuple[Expr, ...], dict[str, DType], tuple[DType, ...]]] = (
        ("lift", r.lift, as_locals(x=r.elements), states),
        ("merge", r.merge, as_locals(a=states, b=states), states),
        ("finish", r.finish, as_locals(s=states), r.outputs),
    )
    for title, exprs, scope, types in parts:
        if tuple(e.dtype for e in exprs) != types:
            return f"the {title} of {r.name} does not give {', '.join(map(str, types))}"
        for e in exprs:
            fault = type_fault(e) or _scope_fault(e, scope)
            if fault is not None:
                return f"in the {title} of {r.name}: {fault}"
    return None


def _scope_fault(e: Expr, scope: Mapping[str, DType]) -> str | None:
    for x in walk(e):
        if isinstance(x, Read | IndexValue):
            return "it reads values or indices"
        if isinstance(x, Local) and scope.get(x.name) is not x.dtype:
            return f"${x.name} is no local of type {x.dtype}"
    return None


def _fault(e: Expr) -> str | None:
    """What is wrong at the top of `e`."""
    match e:
        case Lit() | IndexValue() | Local() | Read():
            return None
        case Cast():
            opaque = e.dtype.is_opaque or e.arg.dtype.is_opaque
            return f"there is no cast from {e.arg.dtype} to {e.dtype}" if opaque else None
        case BitCast():
            fits = e.dtype.bits == e.arg.dtype.bits > 0
            return None if fits else f"the bits of {e.arg.dtype} are not those of {e.dtype}"
        case Apply():
            return _apply_fault(e)
        case _:
            assert_never(e)


def _apply_fault(e: Apply) -> str | None:
    types = [a.dtype for a in children(e)]
    kin = types[1:] if e.op == "select" else types
    if any(t is not kin[0] for t in kin):
        return f"{e.op!r} has operands of different types: {', '.join(map(str, types))}"
    if e.op == "select":
        fits, wanted = types[0] is DType.BOOL, "a bool first"
    elif e.op in UNARY_FLOAT or e.op in ("isnan", "isinf"):
        fits, wanted = kin[0].is_float, "a float"
    elif e.op in LOGIC or e.op == "not":
        fits, wanted = kin[0] is DType.BOOL, "bools"
    elif e.op in BITWISE or e.op == "bitnot":
        fits, wanted = kin[0].is_int, "integers"
    elif e.op in _ON_NUMBERS:
        fits, wanted = kin[0].is_float or kin[0].is_int, "numbers"
    else:
        return None
    return None if fits else f"{e.op!r} takes {wanted}, not {', '.join(map(str, types))}"
