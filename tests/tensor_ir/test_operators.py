"""Every operator on every type against plain Python, with the values at which they differ."""

import warnings

import numpy as np
import pytest

from rutc.tensor_ir import DType, Local, apply
from rutc.tensor_ir.expr import OPS
from rutc.tensor_ir.interpreter.evaluate import convert, evaluate_expr
from rutc.tensor_ir.typecheck import type_fault
from tests.close import assert_close
from tests.tensor_ir import naive

INTS = [t for t in DType if t.is_int]
FLOATS = [DType.F64, DType.F32, DType.F16, DType.BF16, DType.F8E4M3FN, DType.F8E5M2]
REALS = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 1.5, 3.0, 7.0, -7.0, np.inf, -np.inf, np.nan]


def operands(dtype: DType) -> np.ndarray:
    if dtype is DType.BOOL:
        return np.array([False, True])
    if dtype.is_float:
        return np.array(REALS).astype(dtype.numpy)
    low = -(1 << (dtype.bits - 1)) if dtype.is_signed else 0
    high = low + (1 << dtype.bits) - 1
    chosen = [low, low + 1, high - 1, high, 0, 1, 2, 3, 5, 31, 32, 63, 64, -1, -2, -3, -7]
    fitting = sorted({x for x in chosen if low <= x <= high})
    return np.array([np.array(x).astype(dtype.numpy) for x in fitting], dtype.numpy)


CASES = [
    (op, t)
    for op in sorted(OPS)
    for t in [*INTS, *FLOATS, DType.BOOL]
    if op != "select" and type_fault(apply(op, *[Local("a", t)] * OPS[op])) is None
]


@pytest.mark.parametrize(("op", "dtype"), CASES, ids=lambda x: str(x))
def test_operator_follows_python(op: str, dtype: DType) -> None:
    xs = operands(dtype)
    a, b = xs[:, None], xs[None, :]
    names = ["a", "b"][: OPS[op]]
    e = apply(op, *(Local(n, dtype) for n in names))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = evaluate_expr(e, {"a": a, "b": b}, {})
    assert got.dtype == e.dtype.numpy
    got = np.broadcast_to(got, (len(xs), len(xs)))
    for i, x in enumerate(xs.tolist() if dtype.bits > 8 else xs):
        for j, y in enumerate(xs.tolist() if dtype.bits > 8 else xs):
            plain = float if dtype.is_float else int
            args = [plain(x), plain(y)][: OPS[op]]
            try:
                wanted = naive.operate(op, args, dtype, e.dtype)
            except (ValueError, OverflowError):
                continue
            assert_close(got[i, j], wanted, reduction=16, err_msg=f"{op}{args}")


def test_selection_takes_an_arm() -> None:
    c, a, b = Local("c", DType.BOOL), Local("a", DType.F32), Local("b", DType.F32)
    env = {"c": np.array([True, False]), "a": np.float32([1, 2]), "b": np.float32([3, 4])}
    assert evaluate_expr(apply("select", c, a, b), env, {}).tolist() == [1, 4]


@pytest.mark.parametrize("source", [*INTS, *FLOATS, DType.BOOL], ids=str)
@pytest.mark.parametrize("target", [*INTS, *FLOATS, DType.BOOL], ids=str)
def test_casts_follow_python(source: DType, target: DType) -> None:
    xs = operands(source)
    with np.errstate(all="ignore"):
        got = convert(xs, target)
    assert got.dtype == target.numpy
    for x, y in zip(xs, got, strict=True):
        plain = float(x) if source.is_float else int(x)
        wanted = naive.convert(plain, target)
        if target in (DType.F8E4M3FN, DType.F8E5M2) and source.is_int:
            # A large integer meets the end of the range, which infinity and NaN mark differently.
            continue
        np.testing.assert_equal(float(y), float(wanted), err_msg=f"{source}({x}) to {target}")


@pytest.mark.parametrize(
    ("x", "dtype", "wanted"),
    [
        (np.float32(3e9), DType.I32, 2**31 - 1),
        (np.float64(-1e300), DType.I64, -(2**63)),
        (np.float64(2.0**63), DType.I64, 2**63 - 1),
        (np.float32(-1), DType.U8, 0),
        (np.float32(np.nan), DType.I8, 0),
        (np.float32(-1.9), DType.I8, -1),
        (np.int64(300), DType.U8, 44),
        (np.int32(-9), DType.I4, 7),
        (np.float32(np.nan), DType.BOOL, True),
    ],
)
def test_casts_at_the_limits(x: np.generic, dtype: DType, wanted: int) -> None:
    assert convert(np.asarray(x), dtype).item() == wanted
