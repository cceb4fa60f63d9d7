"""Walking and rebuilding expressions: every shared operation once, and what is the same stays."""

from rutc.tensor_ir.affine import Index
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.expr import (
    Apply,
    Cast,
    IndexValue,
    Lit,
    Read,
    map_index,
    reads,
    transform,
    walk,
)

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


def test_what_nothing_changes_is_the_same_object() -> None:
    e = Cast(Apply("add", (SHARED, IndexValue(Index.of("i")))), DType.F64)
    assert transform(e, lambda x: x) is e
    assert map_index(e, lambda i: i) is e
    assert map_index(e, lambda i: i.subs({"j": Index.of("k")})) is e
    changed = map_index(e, lambda i: i.subs({"i": Index.of("k")}))
    assert changed != e
    assert len(list(walk(changed))) == len(list(walk(e)))
