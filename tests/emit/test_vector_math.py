"""The elementary functions against float64 and mpmath, within the bounds they state."""

import math
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import mpmath
import numpy as np
import pytest
from scipy import special

from benchmarks.in_process import Elementwise
from rutc.emit.llvm import ir
from rutc.emit.targets.select import native_target, target_named
from rutc.emit.vector_math import (
    BINARY_OPS,
    ULP_BOUNDS,
    UNARY_OPS,
    coefficients,
    emit_binary,
    emit_unary,
)
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.roots import ROOTS
from tests.close import assert_close
from tests.machines import V4, needs

NATIVE = native_target().machine
AVX2 = target_named("x86-64-v3").machine
WIDTHS = [None, 1, 4, 7, 8, 16, 48, 64]

F64_FUNCTIONS: Mapping[str, Callable[..., np.ndarray]] = {
    "acos": np.arccos, "acosh": np.arccosh, "asin": np.arcsin, "asinh": np.arcsinh,
    "atan": np.arctan, "atan2": np.arctan2, "atanh": np.arctanh, "ceil": np.ceil, "cos": np.cos,
    "cosh": np.cosh, "erf": special.erf, "exp": np.exp, "floor": np.floor, "fmod": np.fmod,
    "log": np.log, "mod": np.mod, "pow": np.power, "round": np.rint, "sin": np.sin,
    "sinh": np.sinh, "sqrt": np.sqrt, "tan": np.tan, "tanh": np.tanh,
}  # fmt: skip
MP_FUNCTIONS: Mapping[str, Callable[..., mpmath.mpf]] = {
    "acos": mpmath.acos, "acosh": mpmath.acosh, "asin": mpmath.asin, "asinh": mpmath.asinh,
    "atan": mpmath.atan, "atan2": mpmath.atan2, "atanh": mpmath.atanh, "cos": mpmath.cos,
    "cosh": mpmath.cosh, "erf": mpmath.erf, "exp": mpmath.exp, "log": mpmath.log,
    "pow": mpmath.power, "sin": mpmath.sin, "sinh": mpmath.sinh, "sqrt": mpmath.sqrt,
    "tan": mpmath.tan, "tanh": mpmath.tanh,
}  # fmt: skip
# Where a real, finite result exists: lowest and highest argument.
DOMAINS = {
    "acos": (-1.0, 1.0), "asin": (-1.0, 1.0), "atanh": (-1.0, 1.0), "acosh": (1.0, math.inf),
    "log": (0.0, math.inf), "sqrt": (0.0, math.inf), "exp": (-746.0, 709.0),
    "sinh": (-710.0, 710.0), "cosh": (-710.0, 710.0),
}  # fmt: skip


@cache
def compiled(
    op: str, dtype: DType, lanes: int | None, machine: Machine, *, generic: bool = False
) -> Elementwise:
    features = frozenset[str]() if generic else machine.features
    if op in UNARY_OPS:
        return Elementwise(
            lambda builder, args: emit_unary(builder, op, args[0], features),
            [dtype], dtype, lanes, machine,
        )  # fmt: skip
    return Elementwise(
        lambda builder, args: emit_binary(builder, op, args[0], args[1], features),
        [dtype, dtype], dtype, lanes, machine,
    )  # fmt: skip


def any_floats(dtype: type, count: int, seed: int) -> np.ndarray:
    """Random bit patterns: every exponent, infinities, NaN and subnormals among them."""
    bits = np.dtype(dtype).itemsize * 8
    rng = np.random.default_rng(seed)
    patterns = rng.integers(0, 1 << bits, count, dtype=f"u{bits // 8}")
    return patterns.view(dtype)


def samples(dtype: type, count: int, seed: int = 0) -> np.ndarray:
    """Random patterns, and denser values where the functions vary, are steep or cancel."""
    rng = np.random.default_rng(seed)
    info = np.finfo(dtype)
    edges = [0, 1, 2, 0.5, 0.75, 1.5, info.tiny, info.smallest_subnormal, info.max, np.inf]
    edges += [np.pi * k / 2 for k in range(1, 9)] + [2.0**k for k in range(10, 30)]
    edge = np.array(edges, dtype)
    parts = [
        edge, -edge, np.array([np.nan], dtype),
        any_floats(dtype, count // 2, seed),
        rng.uniform(-1, 1, count // 8), rng.uniform(-12, 12, count // 8),
        rng.uniform(-120, 120, count // 8),
        1 + rng.uniform(-1, 1, count // 8) * 2.0 ** rng.integers(-info.nmant, 0, count // 8),
    ]  # fmt: skip
    with np.errstate(invalid="ignore"):
        return np.concatenate([p.astype(dtype) for p in parts])


def pairs(op: str, dtype: type, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Arguments of a function of two, ordinary and arbitrary."""
    x, y = samples(dtype, count, 1), samples(dtype, count, 2)
    np.random.default_rng(3).shuffle(y)
    if op == "pow":
        # Results that neither overflow nor vanish; the arbitrary pairs mostly do.
        rng = np.random.default_rng(4)
        base = np.exp(rng.uniform(-40, 40, count))
        exponent = rng.uniform(-87, 88, count) / np.log(base)
        small = rng.integers(-9, 10, count)
        negative = rng.uniform(-9, 9, count)
        x = np.concatenate([x, base.astype(dtype), negative.astype(dtype)])
        y = np.concatenate([y, exponent.astype(dtype), small.astype(dtype)])
    return x, y


def ulp_errors(got: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Distance of f32 results from f64 ones in units of the last place; 0 for equal specials.

    A result that should be NaN, an infinity or a zero and is not is infinitely wrong, unless
    rounding decides between overflow and the largest float.
    """
    with np.errstate(all="ignore"):
        rounded = exact.astype(np.float32)
        exponent = np.frexp(np.abs(exact))[1]
        unit = np.ldexp(1.0, np.clip(exponent - 24, -149, 104))
        finite = np.clip(got.astype(np.float64), -(2.0**128), 2.0**128)
        error = np.abs(finite - np.clip(exact, -(2.0**128), 2.0**128)) / unit
    same = (np.isnan(rounded) & np.isnan(got)) | (rounded == got) & ~np.isfinite(rounded)
    error = np.where(same, 0.0, error)
    return np.where(np.isnan(rounded) != np.isnan(got), np.inf, error)


def check_f32(
    op: str, inputs: tuple[np.ndarray, ...], lanes: int | None, machine: Machine, *, generic: bool
) -> None:
    got = compiled(op, DType.F32, lanes, machine, generic=generic)(*inputs)
    with np.errstate(all="ignore"):
        if op == "mod":
            # Moving the remainder to the divisor's sign rounds, in f32.
            exact = np.mod(*inputs).astype(np.float64)
        else:
            exact = F64_FUNCTIONS[op](*(x.astype(np.float64) for x in inputs))
    error = ulp_errors(got, exact)
    worst = int(np.argmax(error))
    arguments = ", ".join(repr(x[worst]) for x in inputs)
    bound = ULP_BOUNDS[op, 32]
    assert error[worst] <= bound, (
        f"{op}({arguments}) = {got[worst]!r}, not {exact[worst]!r}: {error[worst]:.2f} ulp"
    )
    zero = (exact == 0) & (got == 0)
    signs = np.signbit(got[zero]) == np.signbit(exact[zero])
    assert signs.all(), f"the sign of {op}'s zeros, first at {[x[zero][~signs][0] for x in inputs]}"


@pytest.mark.parametrize("generic", [False, True], ids=["features", "generic"])
@pytest.mark.parametrize("op", UNARY_OPS)
def test_f32_within_bounds(op: str, generic: bool) -> None:
    check_f32(op, (samples(np.float32, 1_000_000),), NATIVE.width, NATIVE, generic=generic)


@pytest.mark.parametrize("op", BINARY_OPS)
def test_f32_of_two_arguments_within_bounds(op: str) -> None:
    check_f32(op, pairs(op, np.float32, 200_000), NATIVE.width, NATIVE, generic=False)


@pytest.mark.parametrize("lanes", WIDTHS)
def test_f32_at_every_width(lanes: int | None) -> None:
    x = samples(np.float32, 2_000)
    for op in UNARY_OPS:
        check_f32(op, (x,), lanes, NATIVE, generic=False)
    for op in BINARY_OPS:
        check_f32(op, pairs(op, np.float32, 1_000), lanes, NATIVE, generic=False)


@pytest.mark.parametrize("op", [*UNARY_OPS, *BINARY_OPS])
def test_f32_without_avx512(op: str) -> None:
    inputs = (samples(np.float32, 20_000),) if op in UNARY_OPS else pairs(op, np.float32, 9_000)
    check_f32(op, inputs, 8, AVX2, generic=False)


@needs(V4)
@pytest.mark.parametrize("lanes", [16, 64])
@pytest.mark.parametrize("op", ["exp", "erf"])
def test_f32_of_tables_in_registers(op: str, lanes: int) -> None:
    """Where results are neither flat nor overflow: densely, and beside what a table ends at."""
    largest = 104.5 if op == "exp" else 4.0
    steps = np.arange(0, largest, coefficients.ERF_STEP[16] / 2)
    near = [np.nextafter(np.float32(steps), np.float32(to)) for to in (-1, 200)]
    dense = np.random.default_rng(6).uniform(0, largest, 400_000)
    x = np.concatenate([dense.astype(np.float32), *near])
    huge = np.array([3e5, 2e7, 1e30, np.finfo(np.float32).max, np.inf, np.nan], np.float32)
    x = np.concatenate([x, -x, huge, -huge])
    check_f32(op, (x,), lanes, V4, generic=False)
    results = [compiled(op, DType.F32, n, V4)(x) for n in (16, lanes)]
    np.testing.assert_array_equal(*results)


@needs(AVX2)
@pytest.mark.parametrize("lanes", [8, 32])
def test_f32_of_tables_of_eight(lanes: int) -> None:
    """erf up to where it is 1, densely, and beside the ends of the parts around its points."""
    steps = np.arange(0, 4.0, coefficients.ERF_STEP[8] / 2)
    near = [np.nextafter(np.float32(steps), np.float32(to)) for to in (-1, 200)]
    dense = np.random.default_rng(7).uniform(0, 4.0, 400_000)
    tiny = np.float32(10.0) ** np.arange(-44, 0)
    x = np.concatenate([dense.astype(np.float32), *near, tiny])
    beyond = np.array([3.93, 4.2, 5.0, 1e30, np.inf, np.nan], np.float32)
    x = np.concatenate([x, -x, beyond, -beyond])
    check_f32("erf", (x,), lanes, AVX2, generic=False)
    results = [compiled("erf", DType.F32, n, AVX2)(x) for n in (8, lanes)]
    np.testing.assert_array_equal(*results)
    np.testing.assert_array_equal(results[0][-len(beyond) : -1], -1)


@needs(AVX2)
@pytest.mark.parametrize("lanes", [8, 32])
def test_exp_of_a_table_of_eight(lanes: int) -> None:
    """exp where it is a number, densely, and where it overflows and vanishes, gradually."""
    dense = np.random.default_rng(8).uniform(-105, 90, 400_000)
    ends = [-np.log(2) * 2.0**i / 16 for i in range(12)]
    x = np.concatenate([dense, ends, [-104.5, 89.5, 1e30, np.inf, np.nan]]).astype(np.float32)
    x = np.concatenate([x, -x])
    check_f32("exp", (x,), lanes, AVX2, generic=False)
    results = [compiled("exp", DType.F32, n, AVX2)(x) for n in (8, lanes)]
    np.testing.assert_array_equal(*results)


@needs(AVX2)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("lanes", [None, 8, 32])
def test_log_of_vectors_with_and_without_numbers_that_are_not_normal(
    dtype: type, lanes: int | None
) -> None:
    """One of them makes others of its vector no different."""
    rng, info = np.random.default_rng(9), np.finfo(dtype)
    x = np.exp(rng.uniform(-80, 80, 4096)).astype(dtype)
    x[:2] = info.tiny, info.max
    mixed = x.copy()
    some = rng.choice(4096, 40, replace=False)[:36]
    others = [0, -0.0, -1, -info.tiny, info.smallest_subnormal, info.tiny / 4, np.inf, -np.inf]
    mixed[some] = np.tile(np.array([*others, np.nan], dtype), 4)
    function = compiled("log", DType.of(np.dtype(dtype)), lanes, AVX2)
    plain, found = function(x), function(mixed)
    with np.errstate(all="ignore"):
        assert_close(found[some], np.log(mixed[some]))
    kept = np.ones(len(x), np.bool_)
    kept[some] = False
    np.testing.assert_array_equal(found[kept], plain[kept])


def mp_ulp_error(op: str, got: float, arguments: tuple[float, ...]) -> float:
    """Distance of an f64 result from the exact one in units of the last place."""
    exact = MP_FUNCTIONS[op](*(mpmath.mpf(a) for a in arguments))
    if not mpmath.isfinite(exact) or abs(exact) > 2**1024:
        return 0.0 if not math.isfinite(got) else math.inf
    exponent = mpmath.frexp(exact)[1] if exact else -1074
    unit = mpmath.ldexp(1, max(exponent - 53, -1074))
    return float(abs(mpmath.mpf(got) - exact) / unit) if math.isfinite(got) else math.inf


def check_f64(op: str, inputs: tuple[np.ndarray, ...], lanes: int | None, *, generic: bool) -> None:
    got = compiled(op, DType.F64, lanes, NATIVE, generic=generic)(*inputs)
    bound = ULP_BOUNDS[op, 64]
    with mpmath.workprec(300):
        for value, *arguments in zip(got.tolist(), *(x.tolist() for x in inputs), strict=True):
            error = mp_ulp_error(op, value, tuple(arguments))
            assert error <= bound, f"{op}{tuple(arguments)} = {value!r}: {error:.2f} ulp"


@pytest.mark.parametrize("op", sorted(set(UNARY_OPS) & set(MP_FUNCTIONS)))
def test_f64_within_bounds(op: str) -> None:
    low, high = DOMAINS.get(op, (-math.inf, math.inf))
    x = samples(np.float64, 3_000)
    x = x[np.isfinite(x) & (x != 0) & (x >= low) & (x <= high)]
    if op == "atanh":
        x = x[np.abs(x) < 1]
    check_f64(op, (x,), 8, generic=False)
    check_f64(op, (x[::7],), 3, generic=True)


@pytest.mark.parametrize("op", ["pow", "atan2"])
def test_f64_of_two_arguments_within_bounds(op: str) -> None:
    rng = np.random.default_rng(5)
    x = np.exp(rng.uniform(-300, 300, 2_000))
    if op == "pow":
        y = rng.uniform(-700, 700, 2_000) / np.log(x)
        x[:500], y[:500] = 1 + rng.normal(0, 1e-9, 500), rng.normal(0, 1e9, 500)
    else:
        y = rng.normal(size=2_000) * 10.0 ** rng.integers(-9, 10, 2_000) * x
        x *= rng.choice([-1, 1], 2_000)
    check_f64(op, (x, y), 8, generic=False)


@pytest.mark.parametrize("op", ["fmod", "mod", "floor", "ceil", "round"])
def test_f64_remainders_and_rounding_are_exact(op: str) -> None:
    x = samples(np.float64, 20_000)
    inputs = (x,) if op in UNARY_OPS else pairs(op, np.float64, 20_000)
    got = compiled(op, DType.F64, 8, NATIVE)(*inputs)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(got, F64_FUNCTIONS[op](*inputs))


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64], ids=str)
def test_angles_beyond_the_fast_reduction(dtype: DType) -> None:
    """Multiples of pi/2 as near as floats come to them, and the largest floats."""
    near = [
        6381956970095103.0 * 2.0**797, 5319372648326541.0 * 2.0**255, 16367173.0 * 2.0**72,
        float(np.finfo(np.float32).max), 2.0**16 + 0.5, 2.0**28 + 0.5, 1e5, 1e22,
    ]  # fmt: skip
    with np.errstate(over="ignore"):
        x = np.array(near).astype(dtype.numpy)
    x = x[np.isfinite(x)]
    for op in ("sin", "cos", "tan"):
        got = compiled(op, dtype, 4, NATIVE)(x)
        with mpmath.workprec(1200):
            for argument, value in zip(x.tolist(), got.tolist(), strict=True):
                exact = MP_FUNCTIONS[op](mpmath.mpf(argument))
                spacing = abs(float(np.spacing(dtype.numpy.type(float(exact)))))
                error = float(abs(mpmath.mpf(value) - exact)) / spacing
                assert error <= ULP_BOUNDS[op, dtype.bits], f"{op}({argument}): {error:.2f} ulp"


INF, NAN = math.inf, math.nan
SPECIAL_VALUES = {
    "exp": [(-INF, 0.0), (INF, INF), (-0.0, 1.0)],
    "log": [(0.0, -INF), (-0.0, -INF), (-1.0, NAN), (-INF, NAN), (INF, INF), (1.0, 0.0)],
    "tanh": [(INF, 1.0), (-INF, -1.0), (-0.0, -0.0)],
    "erf": [(INF, 1.0), (-INF, -1.0), (-0.0, -0.0)],
    "sin": [(INF, NAN), (-INF, NAN), (-0.0, -0.0)],
    "cos": [(INF, NAN), (0.0, 1.0)],
    "tan": [(INF, NAN), (-0.0, -0.0)],
    "asin": [(1.5, NAN), (-INF, NAN), (-0.0, -0.0), (1.0, math.pi / 2)],
    "acos": [(1.5, NAN), (-INF, NAN), (1.0, 0.0), (-1.0, math.pi)],
    "atan": [(INF, math.pi / 2), (-INF, -math.pi / 2), (-0.0, -0.0)],
    "sinh": [(INF, INF), (-INF, -INF), (-0.0, -0.0)],
    "cosh": [(INF, INF), (-INF, INF), (0.0, 1.0)],
    "asinh": [(INF, INF), (-INF, -INF), (-0.0, -0.0)],
    "acosh": [(INF, INF), (1.0, 0.0), (0.5, NAN), (-5.0, NAN), (-INF, NAN)],
    "atanh": [(1.0, INF), (-1.0, -INF), (1.5, NAN), (INF, NAN), (-0.0, -0.0)],
    "sqrt": [(INF, INF), (-1.0, NAN), (-0.0, -0.0)],
    "floor": [(-0.5, -1.0), (-0.0, -0.0), (INF, INF)],
    "ceil": [(-0.5, -0.0), (0.5, 1.0), (-INF, -INF)],
    "round": [(0.5, 0.0), (1.5, 2.0), (2.5, 2.0), (-0.5, -0.0)],
}
POWERS = [
    (2.0, 0.0, 1.0), (NAN, 0.0, 1.0), (INF, -0.0, 1.0), (1.0, NAN, 1.0), (1.0, INF, 1.0),
    (-1.0, INF, 1.0), (-1.0, -INF, 1.0), (-2.0, 3.0, -8.0), (-2.0, -1.0, -0.5), (-2.0, 0.5, NAN),
    (0.0, 3.0, 0.0), (-0.0, 3.0, -0.0), (-0.0, 2.0, 0.0), (0.0, -1.0, INF), (-0.0, -1.0, -INF),
    (-0.0, -2.0, INF), (0.0, 0.5, 0.0), (INF, 2.0, INF), (INF, -2.0, 0.0), (-INF, 3.0, -INF),
    (-INF, 0.5, INF), (-INF, -3.0, -0.0), (2.0, INF, INF), (2.0, -INF, 0.0), (0.5, INF, 0.0),
    (0.5, -INF, INF), (-2.0, INF, INF), (-0.5, INF, 0.0), (0.0, INF, 0.0), (NAN, 1.0, NAN),
    (3.0, 2.0, 9.0), (10.0, 3.0, 1000.0), (2.0, -1074.0, 2.0**-1074), (2.0, 2000.0, INF),
    (3.0, 1e17, INF), (3.0, -1e30, 0.0), (0.3, 1e30, 0.0), (0.3, -1e17, INF),
    (-1e30, -1e30, 0.0), (-1e30, 2.0**100, INF),
]  # fmt: skip


@pytest.mark.parametrize("lanes", [None, 8, 16])
@pytest.mark.parametrize("dtype", [DType.F32, DType.F64], ids=str)
def test_special_values(dtype: DType, lanes: int | None) -> None:
    for op, table in SPECIAL_VALUES.items():
        x, expected = np.array([*table, (NAN, NAN)]).T.astype(dtype.numpy)
        got = compiled(op, dtype, lanes, NATIVE)(x)
        np.testing.assert_array_equal(got, expected, err_msg=op)
        signs = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(got[signs]), np.signbit(expected[signs]), op)


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64], ids=str)
def test_special_powers(dtype: DType) -> None:
    with np.errstate(under="ignore"):
        x, y, expected = np.array(POWERS).T.astype(dtype.numpy)
    got = compiled("pow", dtype, 8, NATIVE)(x, y)
    np.testing.assert_array_equal(got, expected)
    signs = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(got[signs]), np.signbit(expected[signs]))


@pytest.mark.parametrize("lanes", [None, 16])
@pytest.mark.parametrize("exponent", [*ROOTS, -0.75, 1.75])
def test_powers_whose_exponent_is_known(exponent: float, lanes: int | None) -> None:
    x = samples(np.float32, 20_000)
    power = Elementwise(
        lambda builder, args: emit_binary(
            builder, "pow", args[0], constant(args[0].type, exponent), NATIVE.features
        ),
        [DType.F32], DType.F32, lanes, NATIVE,
    )  # fmt: skip
    got = power(x)
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(np.float64), np.full(x.shape, exponent))
    error = ulp_errors(got, exact)
    worst = int(np.argmax(error))
    assert error[worst] <= ULP_BOUNDS["pow", 32], f"{x[worst]!r} ** {exponent} = {got[worst]!r}"
    assert not np.signbit(got[got == 0]).any()


def constant(type_: ir.Type, number: float) -> ir.Constant:
    """A number in every lane of such a type."""
    if not isinstance(type_, ir.VectorType):
        return ir.Constant(type_, number)
    return ir.Constant.splat(type_, ir.Constant(type_.element, number))


def test_every_function_states_a_bound() -> None:
    assert set(ULP_BOUNDS) == {(op, b) for op in (*UNARY_OPS, *BINARY_OPS) for b in (32, 64)}


def test_coefficients_are_those_that_the_tool_derives() -> None:
    tool = Path(__file__).resolve().parents[2] / "tools" / "derive_vector_math.py"
    derived = subprocess.run(
        [sys.executable, str(tool)], check=True, capture_output=True, text=True
    ).stdout
    assert Path(coefficients.__file__).read_text(encoding="utf-8") == derived
