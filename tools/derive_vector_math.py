"""Derives the polynomial coefficients of `rutc.emit.vector_math` and prints them as a module.

    python tools/derive_vector_math.py > emit/vector_math/coefficients.py

Every table is the weighted minimax polynomial of one function on one interval, found by the second
Remez algorithm [Remez 1934; Muller, Elementary Functions, 2016, ch. 3] in 80 decimal digits on a
Chebyshev grid, then rounded to the format. The weight turns the polynomial's error into the
relative error of the final function, so the error printed above each table bounds what the
approximation contributes, before rounding errors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import mpmath
import numpy as np
from mpmath import mp, mpf

mp.dps = 80

Real: TypeAlias = mpmath.mpf
Function: TypeAlias = Callable[[Real], Real]
TINY = mpf(10) ** -12


def remez(
    f: Function, weight: Function, low: Real, high: Real, degree: int
) -> tuple[list[Real], Real]:
    """Minimax coefficients, lowest first, and the largest weighted error.

    Args:
        f: The function to approximate.
        weight: Positive on the interval; the error measured is `weight(x) * (f(x) - p(x))`.
        low: Left end of the interval.
        high: Right end.
        degree: Degree of the polynomial.
    """
    intervals = 24 * (degree + 2)
    centre, radius = (low + high) / 2, (high - low) / 2
    xs = [centre - radius * mp.cos(mp.pi * i / intervals) for i in range(intervals + 1)]
    fs = [f(x) for x in xs]
    ws = [weight(x) for x in xs]
    size = degree + 2
    reference = [round(i * intervals / (size - 1)) for i in range(size)]
    best: tuple[list[Real], Real] = ([], mp.inf)
    for _ in range(40):
        matrix, right = mp.matrix(size, size), mp.matrix(size, 1)
        for row, i in enumerate(reference):
            for column in range(degree + 1):
                matrix[row, column] = xs[i] ** column * ws[i]
            matrix[row, degree + 1] = (-1) ** row
            right[row] = fs[i] * ws[i]
        solution = mp.lu_solve(matrix, right)
        coefficients = [solution[j] for j in range(degree + 1)]
        errors = [
            w * (value - mp.polyval(coefficients[::-1], x))
            for x, value, w in zip(xs, fs, ws, strict=True)
        ]
        largest = max(abs(e) for e in errors)
        if largest < best[1]:
            best = (coefficients, largest)
        if largest <= abs(solution[degree + 1]) * mpf("1.0005"):
            break
        exchanged = alternation(errors, size)
        if exchanged is None:
            break
        reference = exchanged
    return best


def alternation(errors: list[Real], size: int) -> list[int] | None:
    """Grid points of `size` alternating extrema of the error, or None when there are fewer."""
    runs = [[0]]
    for i in range(1, len(errors)):
        if (errors[i] > 0) == (errors[runs[-1][-1]] > 0):
            runs[-1].append(i)
        else:
            runs.append([i])
    extrema = [max(run, key=lambda i: abs(errors[i])) for run in runs]
    while len(extrema) > size:
        first, last = abs(errors[extrema[0]]), abs(errors[extrema[-1]])
        del extrema[0 if first < last else -1]
    return extrema if len(extrema) == size else None


@dataclass(frozen=True)
class Table:
    """One polynomial: `f` weighted by `weight` on `[low, high]`, a degree per float width."""

    name: str
    meaning: str
    f: Function
    weight: Function
    low: Real
    high: Real
    degrees: dict[int, int]


def near_zero(limit: Function, f: Function) -> Function:
    """`f` away from zero and `limit`, its expansion, where `f` would cancel or divide by zero."""
    return lambda x: limit(x) if abs(x) < TINY else f(x)


LN2 = mp.log(2)
HALF_LN2 = LN2 / 2 * mpf("1.001")
LARGEST_S2 = mpf("0.0401")
QUARTER_PI2 = (mp.pi / 4 * mpf("1.01")) ** 2
TAN_PI_8_2 = (mp.tan(mp.pi / 8) * mpf("1.0001")) ** 2
ERF_SLOPE = 2 / mp.sqrt(mp.pi)


def odd_core(f: Function, first: Real) -> Function:
    """`z -> (f(s) - s) / s**3` with `z = s**2`; `first` is its value at zero."""

    def core(z: Real) -> Real:
        s = mp.sqrt(z)
        return (f(s) - s) / s**3 if z > mpf(10) ** -20 else first

    return core


def odd_weight(f: Function) -> Function:
    """Relative error of `f(s)` made by an absolute error of its `odd_core`."""
    return lambda z: mp.sqrt(z) ** 3 / f(mp.sqrt(z)) if z > TINY else TINY


def log_erfc_slope(t: Real) -> Real:
    """`log(erfc(t)) / t`."""
    return mp.log(mp.erfc(t)) / t


def erf_weight(t: Real) -> Real:
    """Relative error of `erf(t)` made by an absolute error of `log_erfc_slope`."""
    return t * mp.erfc(t) / mp.erf(t) if t > TINY else 1 / ERF_SLOPE


def log_erfc_curve(t: Real) -> Real:
    """`(log(erfc(t)) + 2/sqrt(pi)*t) / t**2`."""
    return (log_erfc_slope(t) + ERF_SLOPE) / t


def cos_core(z: Real) -> Real:
    """`(cos(s) - 1 + z / 2) / z**2` with `z = s**2`."""
    return (mp.cos(mp.sqrt(z)) - 1 + z / 2) / z**2 if z > mpf(10) ** -20 else mpf(1) / 24


def atanh_tail(z: Real) -> Real:
    """`(2 * atanh(s) - 2 * s - 2/3 * s**3) / s**5` with `z = s**2`."""
    if z < mpf(10) ** -12:
        return mpf(2) / 5 + z * 2 / 7
    s = mp.sqrt(z)
    return (2 * mp.atanh(s) - 2 * s - 2 * s**3 / 3) / s**5


TABLES = (
    Table(
        "EXPM1",
        "exp(r) = 1 + r + r**2 * P(r), |r| <= log(2)/2",
        near_zero(lambda r: mpf(1) / 2 + r / 6, lambda r: (mp.expm1(r) - r) / r**2),
        lambda r: max(r**2 / abs(mp.expm1(r)) if r else TINY, TINY),
        -HALF_LN2,
        HALF_LN2,
        {32: 4, 64: 9},
    ),
    Table(
        "EXPM1_NEAR_ZERO",
        "exp(r) = 1 + r + r**2 * P(r), |r| <= log(2)/32",
        near_zero(lambda r: mpf(1) / 2 + r / 6, lambda r: (mp.expm1(r) - r) / r**2),
        lambda r: max(r**2 / mp.exp(r), TINY),
        -HALF_LN2 / 16,
        HALF_LN2 / 16,
        {32: 1},
    ),
    Table(
        "EXPM1_OF_SIXTEENTH",
        "exp(r) = 1 + r + r**2 * P(r), |r| <= log(2)/16",
        near_zero(lambda r: mpf(1) / 2 + r / 6, lambda r: (mp.expm1(r) - r) / r**2),
        lambda r: max(r**2 / mp.exp(r), TINY),
        -HALF_LN2 / 8,
        HALF_LN2 / 8,
        {32: 1},
    ),
    Table(
        "LOG1P",
        "log(1 + f) = f - f**2/2 + f**3 * P(f), -1/4 <= f <= 1/2",
        near_zero(lambda f: mpf(1) / 3 - f / 4, lambda f: (mp.log1p(f) - f + f**2 / 2) / f**3),
        lambda f: max(f**2, TINY),
        mpf("-0.25"),
        mpf("0.5"),
        {32: 7},
    ),
    Table(
        "EXP2M1",
        "2**r = 1 + r * P(r), |r| <= 1/2",
        near_zero(lambda r: LN2 + r * LN2**2 / 2, lambda r: mp.expm1(r * LN2) / r),
        lambda r: mpf(1),
        mpf("-0.501"),
        mpf("0.501"),
        {32: 5},
    ),
    Table(
        "LOG2_1P",
        "log2(1 + f) = f * P(f), -1/4 <= f <= 1/2; enough for pow of f32",
        near_zero(lambda f: (1 - f / 2) / LN2, lambda f: mp.log1p(f) / LN2 / f),
        lambda f: LN2,
        mpf("-0.25"),
        mpf("0.5"),
        {64: 13},
    ),
    Table(
        "ATANH",
        "2 * atanh(s) = 2 * s + s**3 * P(s**2), |s| <= 1/5",
        lambda z: 2 * odd_core(mp.atanh, mpf(1) / 3)(z),
        lambda z: odd_weight(mp.atanh)(z) / 2,
        mpf(0),
        LARGEST_S2,
        {64: 6},
    ),
    Table(
        "ATANH_TAIL",
        "2 * atanh(s) = 2 * s + 2/3 * s**3 + s**5 * P(s**2), |s| <= 1/5",
        atanh_tail,
        lambda z: max(z**2 / 2, TINY),
        mpf(0),
        LARGEST_S2,
        {64: 7},
    ),
    Table(
        "SIN",
        "sin(r) = r + r**3 * P(r**2), |r| <= pi/4",
        odd_core(mp.sin, mpf(-1) / 6),
        odd_weight(mp.sin),
        mpf(0),
        QUARTER_PI2,
        {32: 2, 64: 5},
    ),
    Table(
        "COS",
        "cos(r) = 1 - r**2/2 + r**4 * P(r**2), |r| <= pi/4",
        cos_core,
        lambda z: max(z**2 / mp.cos(mp.sqrt(z)), TINY),
        mpf(0),
        QUARTER_PI2,
        {32: 2, 64: 5},
    ),
    Table(
        "ASIN",
        "asin(s) = s + s**3 * P(s**2), |s| <= 1/2",
        odd_core(mp.asin, mpf(1) / 6),
        odd_weight(mp.asin),
        mpf(0),
        mpf("0.2501"),
        {32: 4, 64: 11},
    ),
    Table(
        "ATAN",
        "atan(s) = s + s**3 * P(s**2), |s| <= tan(pi/8)",
        odd_core(mp.atan, mpf(-1) / 3),
        odd_weight(mp.atan),
        mpf(0),
        TAN_PI_8_2,
        {32: 3, 64: 10},
    ),
    Table(
        "LOG_ERFC",
        "log(erfc(t)) = -2/sqrt(pi) * t + t**2 * P(t), 0 <= t <= 3.93",
        near_zero(lambda t: -(ERF_SLOPE**2) / 2, log_erfc_curve),
        lambda t: max(t, TINY) * erf_weight(t),
        mpf(0),
        mpf("3.93"),
        {32: 7},
    ),
    Table(
        "ERF",
        "erf(t) = t * P(t**2), |t| <= 1",
        lambda z: mp.erf(mp.sqrt(z)) / mp.sqrt(z) if z > TINY else 2 / mp.sqrt(mp.pi),
        lambda z: mp.sqrt(z) / mp.erf(mp.sqrt(z)) if z > TINY else mp.sqrt(mp.pi) / 2,
        mpf(0),
        mpf(1),
        {64: 11},
    ),
    Table(
        "LOG_ERFC_TAIL",
        "log(erfc(t)) = t * P(t - 3), 1 <= t <= 5.95",
        lambda u: log_erfc_slope(u + 3),
        lambda u: erf_weight(u + 3),
        mpf(-2),
        mpf("2.95"),
        {64: 16},
    ),
)


ERF_STEPS = {16: mpf("0.25390625"), 8: mpf("0.52734375")}
"""By the number of points, how far they are from each other: the last one's part ends behind 3.93,
and few bits make multiples exact."""
ERF_DEGREES = {16: 5, 8: 6}


def erf_near(points: int, number: int) -> tuple[list[Real], Real]:
    """Coefficients of `erf(k + t)` around a multiple `k` of the step, and the relative error.

    Around zero, the first two are those of its expansion.
    """
    step, degree = ERF_STEPS[points], ERF_DEGREES[points]
    centre, radius = number * step, step / 2 * mpf("1.001")
    if number:
        weight = lambda t: 1 / mp.erf(centre + t)  # noqa: E731
        return remez(lambda t: mp.erf(centre + t), weight, -radius, radius, degree)
    curve = near_zero(lambda t: -ERF_SLOPE * t / 3, lambda t: (mp.erf(t) / t - ERF_SLOPE) / t)
    weight = near_zero(lambda t: TINY, lambda t: t**2 / mp.erf(t))
    coefficients, error = remez(curve, weight, mpf(0), radius, degree - 2)
    return [mpf(0), ERF_SLOPE, *coefficients], error


def print_erf_steps() -> None:
    """Prints the tables of erf: of every power of `t` the coefficients around all multiples."""
    steps = ", ".join(f"{points}: {float(step)!r}" for points, step in ERF_STEPS.items())
    print()
    print("# By the number n of points: erf(k*STEP[n] + t) = sum(ERF_STEPS[n][i][k] * t**i), for")
    print("# |t| <= STEP[n]/2")
    print(f"ERF_STEP: Mapping[int, float] = {{{steps}}}")
    print("ERF_STEPS: Mapping[int, tuple[Polynomial, ...]] = {")
    for points, degree in ERF_DEGREES.items():
        found = [erf_near(points, number) for number in range(points)]
        print(f"    # error 2**{float(mp.log(max(error for _, error in found), 2)):.1f}")
        print(f"    {points}: (")
        for power in range(degree + 1):
            print("        (")
            for coefficients, _ in found:
                print(f'            float.fromhex("{rounded(coefficients[power], 32)}"),')
            print("        ),")
        print("    ),")
    print("}")


def rounded(value: Real, bits: int) -> str:
    """The nearest float of the width as an exact hexadecimal literal."""
    nearest = float(value) if bits == 64 else float(np.float32(float(value)))
    return nearest.hex()


def main() -> None:
    """Prints the module of tables."""
    print('"""Polynomial coefficients, lowest power first, per float width.')
    print()
    print("Written by `tools/derive_vector_math.py`, which says how they are found. `error` is the")
    print("largest relative error of the function named, before rounding errors.")
    print('"""')
    print()
    print("from collections.abc import Mapping")
    print()
    print("Polynomial = tuple[float, ...]")
    for table in TABLES:
        print()
        print(f"# {table.meaning}")
        print(f"{table.name}: Mapping[int, Polynomial] = {{")
        for bits, degree in table.degrees.items():
            coefficients, error = remez(table.f, table.weight, table.low, table.high, degree)
            print(f"    # error 2**{float(mp.log(error, 2)):.1f}")
            print(f"    {bits}: (")
            for c in coefficients:
                print(f'        float.fromhex("{rounded(c, bits)}"),')
            print("    ),")
        print("}")
    print_erf_steps()


if __name__ == "__main__":
    main()
