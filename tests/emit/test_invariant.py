"""What loops compute again and again: operations, and places that data tell."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from rutc.emit.invariant import repeats
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.expr import Coord, Expr, IndexValue, Lit, Read, apply
from rutc.tensor_ir.indices.affine import ZERO, Index
from rutc.tensor_ir.kernel import Access, Assign, Branch, Buffer, Kernel, Kind, Loop
from rutc.tensor_ir.layout import dense
from rutc.tensor_ir.machine import Machine
from tests.machines import V3, V4

OUTER, INNER = (Index.of(name) for name in "ij")


def _at(value: str, *coords: Coord, dtype: DType = DType.F32) -> Read:
    return Read(value, tuple((f"d{n}", c) for n, c in enumerate(coords)), dtype)


def _loops(value: Expr, kind: Kind = Kind.SERIAL, count: int = 8, row: int = 80) -> Kernel:
    """for i { for j { %y[i, j] = value } }; rows of what is read have so many elements."""
    target = Access("y", (("d0", OUTER), ("d1", INNER)))
    inner = Loop("j", ZERO, Index.of(count), kind, (Assign(target, value),))
    dims = {"d0": 4, "d1": row}
    args = [Buffer(name, DType.F32, dense(["d0", "d1"], dims)) for name in ("x", "y")]
    args.append(Buffer("s", DType.F32, dense(["d0"], dims)))
    args.append(Buffer("places", DType.I64, dense(["d0"], dims)))
    return Kernel("k", tuple(args), (), (Loop("i", ZERO, Index.of(4), Kind.PARALLEL, (inner,)),))


ROW = apply("log", _at("s", OUTER))
"""The same for all j."""


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (apply("log", _at("x", OUTER, INNER)), False),
        (apply("add", _at("x", OUTER, INNER), ROW), True),
        # A value that is only read costs a load.
        (apply("add", _at("x", OUTER, INNER), _at("s", OUTER)), False),
        # What is read there is written by the loop.
        (apply("add", _at("x", OUTER, INNER), apply("log", _at("y", OUTER, ZERO))), False),
        (_at("x", _at("places", OUTER, dtype=DType.I64), INNER), True),
        (_at("x", _at("places", INNER, dtype=DType.I64), INNER), False),
    ],
)
def test_what_is_the_same_in_all_iterations_repeats(value: Expr, found: bool) -> None:
    assert repeats(_loops(value), V4) is found


def test_loops_of_one_iteration_and_lanes_repeat_nothing() -> None:
    value = apply("add", _at("x", OUTER, INNER), ROW)
    assert not repeats(_loops(value, Kind.VECTOR), V4)
    assert not repeats(_loops(value, count=1), V4)


def _within(kernel: Kernel, change: Callable[[Loop], tuple[Loop | Branch, ...]]) -> Kernel:
    """The kernel with something else in its outer loop."""
    (outer,) = kernel.body
    assert isinstance(outer, Loop)
    (inner,) = outer.body
    assert isinstance(inner, Loop)
    return replace(kernel, body=(replace(outer, body=change(inner)),))


def test_what_copies_of_unrolled_loops_tell_repeats_nothing() -> None:
    first = apply("eq", IndexValue(Index.of("c")), Lit(0, DType.I64))
    value = apply("select", first, _at("x", OUTER, INNER), _at("s", OUTER))

    def copied(kind: Kind) -> Callable[[Loop], tuple[Loop]]:
        return lambda inner: (
            replace(inner, body=(Loop("c", ZERO, Index.of(2), kind, inner.body),)),
        )

    kernel = _loops(value)
    assert not repeats(_within(kernel, copied(Kind.UNROLL)), V4)
    # A comparison of a number that the run counts is one of the code.
    outside = replace(kernel, body=(Loop("c", ZERO, Index.of(2), Kind.SERIAL, kernel.body),))
    assert repeats(outside, V4)


@pytest.mark.parametrize(("edge", "found"), [(7, False), (6, True)])
def test_what_the_last_iteration_does_is_not_repeated(edge: int, found: bool) -> None:
    plain = _loops(_at("x", OUTER, INNER)).body
    kernel = _loops(apply("add", _at("x", OUTER, INNER), ROW))

    def peeled(inner: Loop) -> tuple[Loop]:
        (outer,) = plain
        assert isinstance(outer, Loop)
        (main,) = outer.body
        assert isinstance(main, Loop)
        arms = Branch(INNER, Index.of(edge), main.body, inner.body)
        return (replace(inner, body=(arms,)),)

    assert repeats(_within(kernel, peeled), V4) is found


def test_what_the_last_iteration_does_may_be_the_same_for_all_of_a_loop_around() -> None:
    kernel = _loops(apply("log", _at("s", ZERO)))

    def peeled(inner: Loop) -> tuple[Loop]:
        return (replace(inner, body=(Branch(INNER, Index.of(7), (), inner.body),)),)

    assert repeats(_within(kernel, peeled), V4)


@pytest.mark.parametrize(
    ("at", "row", "machine", "found"),
    [
        (OUTER, 20, V4, True),
        (OUTER, 64, V4, True),
        # Registers hold no more: lanes are gathered.
        (OUTER, 65, V4, False),
        (OUTER, 32, V3, True),
        (OUTER, 33, V3, False),
        # Another row in each iteration.
        (INNER, 20, V4, False),
    ],
)
def test_a_row_of_which_lanes_pick_is_loaded_before_loops(
    at: Index, row: int, machine: Machine, found: bool
) -> None:
    value = _at("x", at, _at("places", INNER, dtype=DType.I64))
    assert repeats(_loops(value, row=row), machine) is found
