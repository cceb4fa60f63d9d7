"""What reads outside of their values add to a reduction: nothing, where they give its identity."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from math import isfinite

from rutc.tensor_ir.expr import Apply, Cast, Expr, Lit, Read, transform
from rutc.tensor_ir.graph import Const
from rutc.tensor_ir.layout import Layout
from rutc.tensor_ir.reducer import Reducer

Number = int | float | bool | str


def adds_nothing(
    reducer: Reducer, elements: tuple[Expr, ...], read: Read, finite: Callable[[str], bool]
) -> bool:
    """Whether an element is the reducer's identity wherever `read` gives its fill.

    sum{k} %x[y+k-1 else 0.0] * %w[k]      where all elements of %w are finite: 0.0 * inf is NaN
    max{k} %x[y+k-1 else -inf]

    `finite` tells whether all elements of a value are finite numbers.
    """
    if read.fill is None or len(elements) != 1 or len(reducer.identity) != 1:
        return False
    if not reducer.is_fold:
        return False
    found = _known(elements[0], read, finite)
    return found is not None and found == reducer.identity[0].value


def outside_adds_nothing(
    reducer: Reducer,
    elements: tuple[Expr, ...],
    read: Read,
    layout: Layout,
    finite: Callable[[str], bool],
) -> bool:
    """The same of a read of memory: without a test, it gives the fill of the halo outside."""
    if read.fill is not None or layout.fill is None:
        return adds_nothing(reducer, elements, read, finite)
    told = replace(read, fill=layout.fill)
    known = tuple([transform(e, lambda x: told if x == read else x) for e in elements])
    return adds_nothing(reducer, known, told, finite)


def is_finite(e: Expr, finite: Callable[[str], bool], read: Read | None = None) -> bool:
    """Whether an expression is known to be a finite number, where `read` gives its fill, if any."""
    if not e.dtype.is_float:
        return e.dtype.is_int
    known = _known(e, read, finite)
    if known is not None:
        return not isinstance(known, str) and isfinite(known)
    match e:
        case Read():
            return finite(e.value) and (e.fill is None or isfinite(float(e.fill.value)))
        case Cast():
            # Narrower types may not hold the number.
            wide = not e.arg.dtype.is_float or e.dtype.bits >= e.arg.dtype.bits
            return wide and e.dtype.bits >= 32 and is_finite(e.arg, finite, read)
        case _:
            return False


def _known(e: Expr, read: Read | None, finite: Callable[[str], bool]) -> Number | None:
    """The value of an expression where `read` gives its fill; None where it depends on more."""
    if read is not None and e == read:
        return None if read.fill is None else read.fill.value
    match e:
        case Lit():
            return e.value
        case Cast():
            inner = _known(e.arg, read, finite)
            return inner if inner == 0 or (e.dtype.is_float and e.arg.dtype.is_float) else None
        case Apply("mul", (a, b)):
            for one, other in ((a, b), (b, a)):
                if _known(one, read, finite) == 0 and is_finite(other, finite, read):
                    return 0
    return None


def finite_operands(reads: Iterable[Read], constants: Mapping[str, Const]) -> frozenset[str]:
    """The constants among what is read of which all elements are finite numbers.

    Nobody asks, and there are none, where nothing is read outside of its value.
    """
    found = tuple(reads)
    if all(r.fill is None for r in found):
        return frozenset()
    names = dict.fromkeys(r.value for r in found if r.value in constants)
    return frozenset(name for name in names if constants[name].data.is_finite)
