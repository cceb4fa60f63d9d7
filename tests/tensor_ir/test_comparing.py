"""Comparisons of indices with numbers: what ranges tell is what every value gives."""

import operator
from collections.abc import Callable

import pytest

from rutc.tensor_ir import Apply, DType, Expr, Index, Lit
from rutc.tensor_ir.expr import IndexValue, Local
from rutc.tensor_ir.indices.comparing import chosen, compared

OPS: dict[str, Callable[[int, int], bool]] = {
    name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")
}
X, Y, Z = (Local(name, DType.F32) for name in "xyz")


@pytest.mark.parametrize("op", OPS)
def test_a_comparison_is_known_where_all_values_give_the_same(op: str) -> None:
    for low in range(-2, 3):
        for high in range(low, 3):
            for edge in range(-3, 5):
                given = {OPS[op](x, edge) for x in range(low, high + 1)}
                assert compared(op, (low, high), edge) == (given.pop() if len(given) == 1 else None)


def test_what_is_no_comparison_is_not_known() -> None:
    assert compared("add", (0, 0), 0) is None


def _below(limit: int, yes: Expr, no: Expr) -> Expr:
    at = IndexValue(Index.of("v"))
    return Apply("select", (Apply("lt", (at, Lit(limit, at.dtype))), yes, no))


def test_choices_that_ranges_decide_are_taken() -> None:
    row = _below(4, X, _below(8, Y, Z))
    assert chosen(row, {"v": (0, 3)}) == X
    assert chosen(row, {"v": (4, 7)}) == Y
    assert chosen(row, {"v": (8, 11)}) == Z
    assert chosen(Apply("add", (row, X)), {"v": (4, 7)}) == Apply("add", (Y, X))


def test_choices_that_ranges_leave_open_stay() -> None:
    row = _below(4, X, _below(8, Y, Z))
    assert chosen(row, {"v": (0, 7)}) == _below(4, X, Y)
    assert chosen(row, {"w": (0, 3)}) is row
    assert chosen(row, {}) is row
