"""Walking and rebuilding expressions: every shared operation once, and what is the same stays."""

import pickle

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.expr import (
    Apply,
    BitCast,
    Cast,
    Expr,
    IndexValue,
    Lit,
    Read,
    map_index,
    map_reads,
    reads,
    transform,
    walk,
)
from rutc.tensor_ir.indices.affine import Index

X = Read("x", (("i", Index.of("i")),), DType.F32)
TWICE = Apply("add", (X, X))
SHARED = Apply("mul", (TWICE, TWICE))


def test_shared_operations_are_walked_once() -> None:
    for _ in range(2):
        assert list(walk(SHARED)) == [SHARED, TWICE, X, X]
        assert list(reads(SHARED)) == [X, X]
        assert list(reads(Cast(SHARED, DType.F64))) == [X, X]
        assert list(walk(X)) == [X]
        assert list(reads(Lit(1, DType.I64))) == []


def test_a_walk_can_be_left() -> None:
    assert next(walk(SHARED)) is SHARED
    assert next(reads(SHARED)) is X
    assert len(list(walk(SHARED))) == 4


def test_equal_expressions_are_equal_after_a_walk() -> None:
    other = Apply("mul", (Apply("add", (X, X)), Apply("add", (X, X))))
    assert len(list(walk(other))) == 7
    assert len(list(walk(SHARED))) == 4
    assert other == SHARED
    assert hash(other) == hash(SHARED)
    assert repr(other) == repr(SHARED)


def of_itself(count: int) -> Expr:
    """Operations of a value with itself, one after the other: 2 ** count paths lead to it."""
    e: Expr = X
    for i in range(count):
        e = Apply("add", (e, Cast(Cast(e, DType.F64), DType.F32) if i % 2 else e))
    return e


def test_operations_of_a_value_with_itself_are_told_apart_as_soon_as_others() -> None:
    a, b = of_itself(150), of_itself(150)
    assert hash(a) == hash(b)
    assert a == b
    assert repr(a) == repr(b)
    other = of_itself(152)
    assert a != other
    assert repr(a) != repr(other)
    assert Apply("neg", (a,)) != Apply("abs", (b,))


def test_texts_of_expressions_tell_all_that_differs() -> None:
    few = [
        TWICE,
        SHARED,
        Apply("add", (TWICE, SHARED)),
        Apply("add", (SHARED, TWICE)),
        Apply("mul", (X, X)),
        Apply("add", (X, Lit(1.0, DType.F32))),
        Apply("add", (X, Lit(2.0, DType.F32))),
        Cast(TWICE, DType.F64),
        Apply("neg", (Cast(TWICE, DType.F64),)),
        Apply("neg", (Cast(TWICE, DType.BF16),)),
        Apply("neg", (BitCast(TWICE, DType.I32),)),
    ]
    assert len({*map(repr, few)}) == len({*few}) == len(few)


def test_a_hash_stays_with_its_process() -> None:
    assert hash(SHARED) == hash(SHARED)
    copy = pickle.loads(pickle.dumps(SHARED))
    assert copy.__dict__.keys() == {"op", "args"}
    assert copy == SHARED
    assert hash(copy) == hash(SHARED)


def test_what_nothing_changes_is_the_same_object() -> None:
    e = Cast(Apply("add", (SHARED, IndexValue(Index.of("i")))), DType.F64)
    assert transform(e, lambda x: x) is e
    assert map_index(e, lambda i: i) is e
    assert map_index(e, lambda i: i.subs({"j": Index.of("k")})) is e
    changed = map_index(e, lambda i: i.subs({"i": Index.of("k")}))
    assert changed != e
    assert len(list(walk(changed))) == len(list(walk(e)))


def test_reads_are_mapped_after_the_indices_in_them() -> None:
    inner = Read("p", (("j", Index.of("i")),), DType.I64)
    gathered = Read("x", (("i", inner), ("k", Index.of("i"))), DType.F32)
    e = Apply("add", (SHARED, gathered))
    seen: list[Read] = []

    def renamed(r: Read) -> Read:
        seen.append(r)
        return Read(f"{r.value}2", r.coords, r.dtype)

    def moved(i: Index) -> Index:
        return i + 1

    def in_turn(x: Expr) -> Expr:
        return renamed(x) if isinstance(x, Read) else x

    found = map_reads(e, moved, renamed)
    once = list(seen)
    assert found == transform(map_index(e, moved), in_turn)
    # Those that the expression shares once.
    assert once == list(dict.fromkeys(seen[len(once) :]))
    assert map_reads(e, lambda i: i, lambda r: r) is e


@given(st.floats(width=64))
@example(3.4028235677973366e38)
@example(-7e-46)
def test_literals_of_f32_are_rounded_as_numpy_rounds(x: float) -> None:
    with np.errstate(all="ignore"):
        wanted = float(np.float64(x).astype(np.float32))
    found = Lit(x, DType.F32).value
    assert isinstance(found, float)
    assert repr(found) == repr(wanted)


@pytest.mark.parametrize("dtype", [d for d in DType if not d.is_opaque], ids=str)
def test_types_know_what_numpy_knows_of_them(dtype: DType) -> None:
    kind = dtype.numpy.kind
    assert dtype.bytes == dtype.numpy.itemsize
    assert dtype.is_int == (kind in "iu" or dtype in (DType.I2, DType.U2, DType.I4, DType.U4))
    assert dtype.is_float == (not dtype.is_int and dtype is not DType.BOOL)
    assert {dtype: 1}[DType(str(dtype))] == 1
