"""Every operator and cast on every type, against the meaning that `tensor_ir` gives them."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from benchmarks.in_process import Elementwise
from rutc.emit.cast import splat_int
from rutc.emit.llvm import ir
from rutc.emit.scalar import emit_bit_cast, emit_cast, emit_op
from rutc.emit.short_quotient import EXACT_BITS
from rutc.emit.targets.select import native_target, target_named
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.expr import BITWISE, COMPARE, UNARY_FLOAT, Local, apply
from rutc.tensor_ir.interpreter.evaluate import convert, evaluate_expr, reinterpret
from rutc.tensor_ir.machine import Machine
from tests.machines import V3, V4, lacking

pytestmark = pytest.mark.sampled(5)

MACHINE = native_target().machine
INTS = [d for d in DType if d.is_int]
FLOATS = [d for d in DType if d.is_float]
# Types that operators compute in or are likely to be asked for; casts cover all of them.
OPERAND_FLOATS = [DType.F64, DType.F32, DType.F16, DType.BF16, DType.F8E4M3FN]
EXACT_FLOAT_OPS = (
    "neg",
    "abs",
    "sign",
    "floor",
    "ceil",
    "round",
    "sqrt",
    "add",
    "sub",
    "mul",
    "div",
    "mod",
    "fmod",
    "min",
    "max",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "isnan",
    "isinf",
)
INT_OPS = (
    "neg",
    "abs",
    "sign",
    "add",
    "sub",
    "mul",
    "div",
    "mod",
    "fmod",
    "pow",
    "min",
    "max",
    "bitnot",
    "shl",
    "shr",
)
BOOL_OPS = ("not", "and", "or", "xor", "eq", "ne", "lt", "le", "gt", "ge", "min", "max")
UNARY = {"neg", "abs", "sign", "bitnot", "not", "isnan", "isinf", *UNARY_FLOAT}
LANES = [None, 5]


def edge_values(dtype: DType) -> np.ndarray:
    """Limits, signs, zeros and a few ordinary values; all of them for types of a byte."""
    if dtype is DType.BOOL:
        return np.array([False, True])
    if dtype.bits <= 8:
        count = 1 << dtype.bits
        if dtype.is_int and dtype.bits == 8:
            return np.arange(count, dtype=np.uint8).view(dtype.numpy)
        if dtype.is_int:
            low = -(count >> 1) if dtype.is_signed else 0
            return np.arange(low, low + count).astype(dtype.numpy)
        return np.arange(count, dtype=np.uint8).view(dtype.numpy)
    if dtype.is_int:
        low = -(1 << (dtype.bits - 1)) if dtype.is_signed else 0
        high = low + (1 << dtype.bits) - 1
        values = {low, low + 1, high, high - 1, 0, 1, 2, 3, 7, 31, 32, 63, 64, 100, high // 3}
        values |= {-v for v in values if dtype.is_signed and v > 0}
        return np.array(sorted(values), dtype.numpy)
    with np.errstate(over="ignore"):
        return np.array(
            [0.0, -0.0, 1, -1, 0.5, -0.5, 1.5, 2.5, -2.5, 3, -3, 7.3, -7.3, 1e-3, 255.5, 65504,
             1e9, -1e9, 3e38, 1e-40, -1e-40, 6e-8, np.inf, -np.inf, np.nan],
            np.float64,
        ).astype(dtype.numpy)  # fmt: skip


def pairs(dtype: DType) -> list[np.ndarray]:
    values = edge_values(dtype)
    if len(values) > 64:
        values = values[:: len(values) // 51]
    left, right = zip(*itertools.product(range(len(values)), repeat=2), strict=True)
    return [values[list(left)], values[list(right)]]


def assert_same(got: np.ndarray, expected: np.ndarray, inputs: Sequence[np.ndarray]) -> None:
    """Equal, a NaN equal to any NaN, zeros with their signs."""
    assert got.dtype == expected.dtype
    if DType.of(got.dtype).is_float:
        nan = np.isnan(got.astype(np.float64)) & np.isnan(expected.astype(np.float64))
        integer = np.dtype(f"u{got.dtype.itemsize}")
        same = nan | (got.view(integer) == expected.view(integer))
    else:
        same = got == expected
    if not same.all():
        i = int(np.argmin(same))
        arguments = ", ".join(str(x[i]) for x in inputs)
        pytest.fail(f"{(~same).sum()} wrong: f({arguments}) = {got[i]}, not {expected[i]}")


def check_op(op: str, dtype: DType, lanes: int | None, *, signed_zeros: bool = True) -> None:
    inputs = [edge_values(dtype)] if op in UNARY else pairs(dtype)
    names = "abc"[: len(inputs)]
    expression = apply(op, *(Local(n, dtype) for n in names))
    expected = evaluate_expr(expression, dict(zip(names, inputs, strict=True)), {})
    compiled = Elementwise(
        lambda builder, args: emit_op(builder, op, args, dtype, MACHINE.features),
        [dtype] * len(inputs), expression.dtype, lanes, MACHINE,
    )  # fmt: skip
    got = compiled(*inputs)
    if not signed_zeros:
        # Which of two equal zeros is the smaller is not defined.
        got, expected = got + got.dtype.type(0), expected + expected.dtype.type(0)
    assert_same(got, expected, inputs)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_integer_operators(dtype: DType, lanes: int | None) -> None:
    for op in (*INT_OPS, *sorted(BITWISE), *sorted(COMPARE)):
        check_op(op, dtype, lanes)


@pytest.mark.parametrize("machine", [MACHINE, target_named("x86-64-v3").machine], ids=str)
@pytest.mark.parametrize("by", [None, 1, -1, 7, -12, 64, 1000003])
@pytest.mark.parametrize("dtype", [DType.I32, DType.U32, DType.I64, DType.U64], ids=str)
@pytest.mark.parametrize("op", ["div", "mod", "fmod"])
def test_quotients_of_few_and_of_many_bits(
    op: str, dtype: DType, by: int | None, machine: Machine
) -> None:
    """Vectors of small numbers are divided as floats, up to where these tell quotients exactly."""
    if lacking(machine):
        pytest.skip("another processor's code")
    rng, lanes, bits = np.random.default_rng(2), 8, EXACT_BITS[dtype.bits]
    edges = [(1 << bits) + i for i in range(-3, 3)]
    small = rng.integers(0, 1 << bits, 40) >> rng.integers(0, bits, 40)
    numbers = np.array([*edges, *range(9), *small], np.int64)
    # Each vector holds small numbers, or some beyond.
    x, y = (np.repeat(numbers, lanes), np.tile(numbers, lanes)[: len(numbers) * lanes])
    if dtype.is_signed:
        x, y = (a * rng.choice([-1, 1], len(a)) for a in (x, y))
    x, y = x.astype(dtype.numpy), y.astype(dtype.numpy)
    if by is not None:
        by = by if dtype.is_signed else abs(by)
        y = np.full_like(y, by)
    expected = evaluate_expr(apply(op, Local("a", dtype), Local("b", dtype)), {"a": x, "b": y}, {})

    def body(builder: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        b = args[1] if by is None else splat_int(args[1].type, by)
        return emit_op(builder, op, [args[0], b], dtype, machine.features)

    got = Elementwise(body, [dtype] * 2, dtype, lanes, machine)(x, y)
    assert_same(got, expected, [x, y])


@pytest.mark.parametrize("machine", [V3, V4], ids=["AVX2", "AVX-512"])
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("dtype", [DType.I32, DType.U32, DType.I64, DType.U64], ids=str)
@pytest.mark.parametrize("op", ["div", "mod", "fmod"])
def test_quotients_of_numbers_at_the_limits(
    op: str, dtype: DType, mixed: bool, machine: Machine
) -> None:
    """Each by each, in vectors of its own or among others: all signs, 0, and the extremes."""
    if lacking(machine):
        pytest.skip("another processor's code")
    lanes, info = 8, np.iinfo(dtype.numpy)
    near = (1 << n for n in (0, 22, 23, 24, 31, 50, 51, 52, 53, 62, 63))
    limits = {0, 7, info.min, info.min + 1, info.max - 1, info.max}
    limits |= {s * (n + i) for n in near for i in (-1, 0, 1) for s in (1, -1)}
    numbers = np.array(sorted(n for n in limits if info.min <= n <= info.max), dtype.numpy)
    x, y = (a.ravel() for a in np.meshgrid(numbers, numbers))
    if mixed:
        order = np.random.default_rng(3).permutation(len(x) // lanes * lanes)
        x, y = x[order], y[order]
    else:
        x, y = np.repeat(x, lanes), np.repeat(y, lanes)
    expected = evaluate_expr(apply(op, Local("a", dtype), Local("b", dtype)), {"a": x, "b": y}, {})

    def body(builder: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        return emit_op(builder, op, list(args), dtype, machine.features)

    got = Elementwise(body, [dtype] * 2, dtype, lanes, machine)(x, y)
    assert_same(got, expected, [x, y])


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", OPERAND_FLOATS, ids=str)
def test_float_operators_without_rounding_freedom(dtype: DType, lanes: int | None) -> None:
    for op in EXACT_FLOAT_OPS:
        check_op(op, dtype, lanes, signed_zeros=op not in ("min", "max"))


@pytest.mark.parametrize("lanes", LANES)
def test_bool_operators(lanes: int | None) -> None:
    for op in BOOL_OPS:
        check_op(op, DType.BOOL, lanes)


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16], ids=str)
def test_narrow_functions_are_rounded_results_of_f32(dtype: DType) -> None:
    x = edge_values(dtype)
    for op in ("exp", "tanh", "erf", "sin"):
        compiled = Elementwise(
            lambda builder, args, op=op: emit_op(builder, op, args, dtype, MACHINE.features),
            [dtype], dtype, 8, MACHINE,
        )  # fmt: skip
        expected = evaluate_expr(apply(op, Local("a", dtype)), {"a": x}, {}).astype(np.float64)
        got = compiled(x).astype(np.float64)
        step = 2.0**-10 if dtype is DType.F16 else 2.0**-7
        np.testing.assert_allclose(got, expected, rtol=step, atol=1e-7)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", [DType.BOOL, DType.I64, DType.F32, DType.BF16], ids=str)
def test_select(dtype: DType, lanes: int | None) -> None:
    a, b = pairs(dtype)
    condition = np.arange(len(a)) % 3 == 0
    compiled = Elementwise(
        lambda builder, args: emit_op(builder, "select", args, dtype),
        [DType.BOOL, dtype, dtype], dtype, lanes, MACHINE,
    )  # fmt: skip
    assert_same(compiled(condition, a, b), np.where(condition, a, b), [a, b])


@pytest.mark.parametrize("lanes", [None, 5])
@pytest.mark.parametrize("src", [DType.BOOL, *INTS, *FLOATS], ids=str)
def test_casts(src: DType, lanes: int | None) -> None:
    x = edge_values(src)
    for dst in (DType.BOOL, *INTS, *FLOATS):
        if dst.is_float and dst.bits < 8:
            # They have no NaN, and nothing says what one becomes.
            x = x[x == x]
        with np.errstate(all="ignore"):
            expected = convert(x, dst)
        compiled = Elementwise(
            lambda builder, args, dst=dst: emit_cast(builder, args[0], src, dst),
            [src], dst, lanes, MACHINE,
        )  # fmt: skip
        try:
            assert_same(compiled(x), expected, [x])
        except pytest.fail.Exception as failure:
            pytest.fail(f"{src} to {dst}: {failure}")


@pytest.mark.parametrize("lanes", [None, 5])
@pytest.mark.parametrize("src", [DType.BOOL, *INTS, *FLOATS], ids=str)
def test_bit_casts(src: DType, lanes: int | None) -> None:
    x = edge_values(src)
    for dst in (DType.BOOL, *INTS, *FLOATS):
        if dst.bits != src.bits:
            continue
        compiled = Elementwise(
            lambda builder, args, dst=dst: emit_bit_cast(builder, args[0], src, dst),
            [src], dst, lanes, MACHINE,
        )  # fmt: skip
        assert_same(compiled(x), reinterpret(x, dst), [x])
        if dst is not DType.BOOL:
            back = reinterpret(reinterpret(x, dst), src)
            np.testing.assert_array_equal(back.tobytes(), x.tobytes())


def test_bits_follow_ieee_754() -> None:
    assert reinterpret(np.float32([1, -0.0]), DType.U32).tolist() == [0x3F800000, 0x80000000]
    assert reinterpret(np.uint16([0x3C00]), DType.F16).tolist() == [1.0]
    assert reinterpret(np.uint8([0, 1, 2]), DType.BOOL).tolist() == [False, True, True]


@pytest.mark.parametrize("dtype", [d for d in FLOATS if d.bits <= 16], ids=str)
def test_narrowing_rounds_every_f32_neighbourhood_correctly(dtype: DType) -> None:
    """All finite values, their midpoints, and the f32 on both sides of those."""
    count = 1 << dtype.bits
    pattern = np.arange(count, dtype=np.uint16 if dtype.bits == 16 else np.uint8)
    values = pattern.view(dtype.numpy).astype(np.float32)
    values = np.sort(values[np.isfinite(values)])
    middle = (values[1:].astype(np.float64) + values[:-1].astype(np.float64)) / 2
    points = np.concatenate([values, middle.astype(np.float32)])
    x = np.concatenate(
        [
            points,
            np.nextafter(points, np.float32(np.inf)),
            np.nextafter(points, np.float32(-np.inf)),
        ]
    )
    if dtype is DType.F8E8M0:
        # numpy's type rounds subnormal floats up.
        x = x[x >= np.finfo(np.float32).tiny]
    compiled = Elementwise(
        lambda builder, args: emit_cast(builder, args[0], DType.F32, dtype),
        [DType.F32], dtype, 16, MACHINE,
    )  # fmt: skip
    with np.errstate(all="ignore"):
        assert_same(compiled(x), x.astype(dtype.numpy), [x])


def test_f64_is_narrowed_in_one_rounding() -> None:
    # Just above a tie of f16, by less than f32 can tell.
    x = np.array([1 + 2.0**-11 + 2.0**-40, -(1 + 2.0**-11 + 2.0**-40), 1e300, np.nan])
    compiled = Elementwise(
        lambda builder, args: emit_cast(builder, args[0], DType.F64, DType.F16),
        [DType.F64], DType.F16, 4, MACHINE,
    )  # fmt: skip
    with np.errstate(over="ignore"):
        assert_same(compiled(x), x.astype(np.float16), [x])
