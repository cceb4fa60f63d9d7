import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rutc.tensor_ir import DType, Reducer, reducer
from rutc.tensor_ir.interpreter.evaluate import evaluate_expr, literal
from rutc.tensor_ir.interpreter.interpret import State, fold, merge
from rutc.tensor_ir.reducer import REDUCERS, as_locals
from rutc.tensor_ir.typecheck import reducer_fault
from tests.close import assert_close
from tests.examples import examples

some = examples(100)
SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0]
numbers = st.floats(-8, 8, width=16)
rows = st.lists(numbers, min_size=0, max_size=12)
NUMERIC = [n for n in REDUCERS if n not in ("any", "all", "bitand")]
FLOATS = [DType.F32, DType.F64, DType.F16, DType.BF16]
ALL = [
    *(reducer(n, t) for n in NUMERIC for t in FLOATS if not n.startswith("arg")),
    *(reducer(n, t, DType.I64) for n in NUMERIC for t in FLOATS if n.startswith("arg")),
    *(reducer(n, t) for n in ("sum", "prod", "max", "min") for t in (DType.I8, DType.U64)),
    *(reducer(n, t, DType.I64) for n in ("argmax", "argmin") for t in (DType.I32, DType.U8)),
    reducer("any", DType.BOOL),
    reducer("all", DType.BOOL),
    *(reducer("bitand", t) for t in (DType.U32, DType.I8, DType.U64)),
]


def lifted(r: Reducer, xs: np.ndarray) -> State:
    """The states of the elements of a row (with their positions)."""
    env = {"x0": xs.astype(r.elements[0].numpy), "x1": np.arange(len(xs))}
    states = (evaluate_expr(e, env, {}) for e in r.lift)
    return tuple(np.broadcast_to(s, xs.shape) for s in states)


def reduce(r: Reducer, xs: np.ndarray) -> list[np.ndarray]:
    """The outputs over a row."""
    state: State = tuple(literal(i) for i in r.identity)
    if len(xs):
        state = merge(r, state, fold(r, lifted(r, xs)))
    return [evaluate_expr(e, {f"s{i}": s for i, s in enumerate(state)}, {}) for e in r.finish]


def check_close(r: Reducer, a: State, b: State) -> None:
    loose = 0.1 if DType.BF16 in r.state else 1e-2 if DType.F16 in r.state else 1e-5
    for x, y in zip(a, b, strict=True):
        wide = [np.asarray(s).astype(np.float64) for s in (x, y)]
        np.testing.assert_allclose(*wide, rtol=loose, atol=loose * 10)


@pytest.mark.parametrize("r", ALL, ids=lambda r: f"{r.name}-{r.elements[0]}")
def test_reducers_are_well_typed(r: Reducer) -> None:
    assert reducer_fault(r) is None
    assert reducer_fault(r.of_states) is None


@pytest.mark.parametrize("r", ALL, ids=lambda r: f"{r.name}-{r.elements[0]}")
@examples(15)
@given(xs=st.lists(st.integers(0, 2), min_size=3, max_size=3))
def test_merge_is_associative_and_commutative_with_identity(r: Reducer, xs: list[int]) -> None:
    states = lifted(r, np.array(xs))
    a, b, c = (tuple(s[i] for s in states) for i in range(3))
    identity: State = tuple(literal(i) for i in r.identity)
    check_close(r, merge(r, a, b), merge(r, b, a))
    check_close(r, merge(r, merge(r, a, b), c), merge(r, a, merge(r, b, c)))
    check_close(r, merge(r, a, identity), a)
    check_close(r, merge(r, identity, a), a)


@some
@given(st.lists(numbers | st.sampled_from(SPECIAL), min_size=1, max_size=12))
def test_extremes_and_their_indices_follow_numpy(row: list[float]) -> None:
    xs = np.array(row, np.float32)
    for name in ("argmax", "argmin"):
        value, index = reduce(reducer(name, DType.F32), xs)
        assert index == getattr(np, name)(xs)
        np.testing.assert_array_equal(value, getattr(xs, name.removeprefix("arg"))())
        _, last = reduce(reducer(f"{name}_last", DType.F32), xs)
        assert last == len(xs) - 1 - getattr(np, name)(xs[::-1])
    for name in ("max", "min"):
        np.testing.assert_array_equal(reduce(reducer(name, DType.F32), xs)[0], getattr(xs, name)())


@pytest.mark.parametrize("kind", [DType.F16, DType.BF16])
@pytest.mark.parametrize("name", ["max", "min", "maxnum", "minmax", "argmax", "argmin_last"])
def test_extremes_of_narrow_floats_have_states_of_32_bits(name: str, kind: DType) -> None:
    """They are widened once, and the result is an element, exactly: also where it is NaN."""
    index = [DType.I64] if name.startswith("arg") else []
    r = reducer(name, kind, *index)
    assert r.elements[0] is r.outputs[0] is kind
    assert r.state[0] is DType.F32
    assert r.is_fold == (name in ("max", "min", "maxnum", "argmax", "argmin_last"))
    assert not reducer("logsumexp", kind).is_fold
    row = np.array([0.1, -7.3, 6e-8, -np.inf, 65504.0], np.float32).astype(kind.numpy)
    elements = as_locals(x=(row, *(np.arange(5) for _ in index)))
    states = fold(r, tuple(evaluate_expr(e, elements, {}) for e in r.lift))
    found = evaluate_expr(r.finish[0], as_locals(s=states), {})
    assert found.dtype == kind.numpy
    assert found == (row.min() if name in ("min", "minmax", "argmin_last") else row.max())


@some
@given(rows)
def test_moments_are_mean_and_variance(row: list[float]) -> None:
    xs = np.array(row, np.float64)
    mean, variance = reduce(reducer("moments", DType.F64), xs)
    assert_close(mean, xs.mean() if len(xs) else 0, reduction=1024, dtype=np.float64)
    assert_close(variance, xs.var() if len(xs) else 0, reduction=1024, dtype=np.float64)


def test_moments_are_stable_far_from_zero() -> None:
    xs = np.array([1e8, 1e8 + 1, 1e8 + 2])
    _, variance = reduce(reducer("moments", DType.F64), xs)
    assert_close(variance, 2 / 3, reduction=16)


@pytest.mark.parametrize("row", [[np.inf, 1.0, 2.0], [1.0, 2.0, -np.inf], [np.inf, -np.inf]])
def test_nothing_has_a_distance_from_an_infinite_mean(row: list[float]) -> None:
    with np.errstate(invalid="ignore"):
        _, variance = reduce(reducer("moments", DType.F64), np.array(row))
    assert np.isnan(variance)


def test_states_are_elements_of_the_same_monoid() -> None:
    for r in (reducer("sum", DType.F32), reducer("max", DType.I32)):
        assert r.of_states == r
    r = reducer("moments", DType.F64).of_states
    parts = np.array([2.0, 4.0]), np.array([1.0, 4.0]), np.array([6.0, 2.0])
    state = merge(r, *(tuple(p[i] for p in parts) for i in range(2)))
    np.testing.assert_allclose(state, [6.0, 3.0, 6.0 + 2.0 + 9.0 * 8 / 6])


@some
@given(st.lists(numbers | st.just(-np.inf), min_size=1, max_size=12))
def test_logsumexp_gives_maximum_and_scaled_sum(row: list[float]) -> None:
    xs = np.array(row)
    high, total = reduce(reducer("logsumexp", DType.F64), xs)
    assert high == xs.max()
    if high > -np.inf:
        assert_close(total, np.exp(xs - high).sum(), reduction=1024, dtype=np.float64)


@some
@given(rows)
def test_sums_products_and_tests(row: list[float]) -> None:
    xs = np.array(row)
    assert_close(
        reduce(reducer("sum", DType.F64), xs)[0], xs.sum(), reduction=1024, dtype=np.float64
    )
    assert_close(
        reduce(reducer("prod", DType.F64), xs)[0], xs.prod(), reduction=1024, dtype=np.float64
    )
    assert reduce(reducer("any", DType.BOOL), xs > 0)[0] == (xs > 0).any()
    assert reduce(reducer("all", DType.BOOL), xs > 0)[0] == (xs > 0).all()


@pytest.mark.parametrize("kind", [DType.U8, DType.I32, DType.U64])
def test_bits_that_all_elements_have(kind: DType) -> None:
    rows = ([], [0b1101], [0b1101, 0b0111], [0b1101, 0b0111, 0b1010])
    every = np.array(-1).astype(kind.numpy)
    found = [reduce(reducer("bitand", kind), np.array(row, int))[0] for row in rows]
    assert [int(x) for x in found] == [int(every), 0b1101, 0b0101, 0]
