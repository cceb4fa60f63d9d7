"""Quotients and remainders of coordinates in dims of which only the run knows the extents."""

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rutc.tensor_ir.indices.affine import Index, floordiv, maximum, mod
from rutc.tensor_ir.indices.dim_ranges import DimRange, dim_range, is_positive
from rutc.tensor_ir.indices.ranges import Range
from rutc.tensor_ir.textual.parse import parse_index
from tests.examples import examples
from tests.strategies import indices

H, W = Index.of("h"), Index.of("w")
SYMBOLS: dict[str, Range] = {"h": (0, 4), "w": (0, 4)}
EXTENTS = {"c": Index.of(6), "y": H, "x": W, "k": H * W}
RANGES = SYMBOLS | {d: r for d, e in EXTENTS.items() if (r := dim_range(e, SYMBOLS)) is not None}


def inside() -> Mapping[str, np.ndarray]:
    """Every point of the dims, for all values of the symbols."""
    spans = [range(RANGES[n][1] + 1) for n in RANGES]
    grids = (g.reshape(-1) for g in np.meshgrid(*spans, indexing="ij"))
    every = dict(zip(RANGES, grids, strict=True))
    kept = np.all([every[d] < e.evaluate(every) for d, e in EXTENTS.items()], axis=0)
    return {n: values[kept] for n, values in every.items()}


POINTS = inside()


def at_points(x: Index) -> np.ndarray:
    return np.broadcast_to(np.asarray(x.evaluate(POINTS)), POINTS["h"].shape)


@pytest.mark.parametrize(
    ("divided", "by", "quotient", "rest"),
    [
        ("w*y + x", "w", "y", "x"),
        ("h*w*c + w*y + x", "h*w", "c", "w*y + x"),
        ("h*w*c + w*y + x", "4*h*w", "c // 4", "h*w*(c % 4) + w*y + x"),
        ("h*w*c + w*y + x", "2*w", "(h*c + y) // 2", "w*((h*c + y) % 2) + x"),
        ("h*w*(c % 4) + k", "h*w", "c % 4", "k"),
        ("w*y + x + 1", "w", "y + (x + 1) // w", "(x + 1) % w"),
        ("w*y + c", "w", "y + c // w", "c % w"),
    ],
)
def test_what_lies_below_a_divisor_is_the_remainder(
    divided: str, by: str, quotient: str, rest: str
) -> None:
    a, b = parse_index(divided), parse_index(by)
    assert floordiv(a, b, RANGES) == parse_index(quotient).simplify(RANGES)
    assert mod(a, b, RANGES) == parse_index(rest).simplify(RANGES)


DIVISORS = st.sampled_from([H, W, H * W, 2 * W, 4 * H * W, H + W, Index.of(3)])
TERMS = st.sampled_from([H * W, W, H, Index.of(1), 4 * H * W, 2 * W])


@examples(300)
@given(
    st.lists(st.tuples(TERMS, indices(("c", "y", "x", "k"), depth=1)), min_size=1, max_size=3),
    DIVISORS,
)
def test_division_is_right_at_every_point(terms: list[tuple[Index, Index]], by: Index) -> None:
    total = Index.of(0)
    for scale, x in terms:
        total = total + scale * x
    divisor = maximum(by, 1) if by == H + W else by
    p, q = at_points(total), at_points(divisor)
    np.testing.assert_array_equal(at_points(floordiv(total, divisor, RANGES)), p // q)
    np.testing.assert_array_equal(at_points(mod(total, divisor, RANGES)), p % q)
    whole = floordiv(total, divisor, {}) * divisor + mod(total, divisor, {})
    np.testing.assert_array_equal(at_points(whole.simplify(RANGES)), p)


SUM = parse_index("h//2 + w + 1")
SIZES = SYMBOLS | {"c": (0, 5), "z": DimRange(6, SUM)}


@pytest.mark.parametrize(
    ("divided", "quotient", "rest"),
    [
        ("c*(h//2) + c*w + c + z", "c", "z"),
        ("c*(h//2) + c*w + c + z + h//2 + w + 1", "c + 1", "z"),
        ("3*(h//2) + 3*w + 3", "3", "0"),
        ("w", "0", "w"),
    ],
)
def test_what_lies_below_a_sum_is_the_remainder(divided: str, quotient: str, rest: str) -> None:
    a = parse_index(divided)
    assert floordiv(a, SUM, SIZES) == parse_index(quotient)
    assert mod(a, SUM, SIZES) == parse_index(rest)


@pytest.mark.parametrize(
    ("divided", "by", "quotient", "rest"),
    [
        ("c*(h - 2)*(w - 2) + y*(w - 2) + x", "4*(h - 2)*(w - 2)", "c//4", None),
        ("c*(h - 2)*(w - 2) + y*(w - 2) + x", "w - 2", "c*(h - 2) + y", "x"),
        ("4*c*(h - 2)*(w - 2) + t", "w - 2", "4*c*(h - 2) + t//(w - 2)", "t % (w - 2)"),
    ],
)
def test_windows_that_lie_inside_are_taken_apart(
    divided: str, by: str, quotient: str, rest: str | None
) -> None:
    """Of images that an unpadded window makes smaller, rows and columns are found again."""
    symbols: dict[str, Range] = {"h": (3, 9), "w": (3, 9)}
    extents = {"y": "h - 2", "x": "w - 2", "t": "4*(h - 2)*(w - 2)"}
    dims = {d: dim_range(parse_index(e), symbols) for d, e in extents.items()}
    ranges = symbols | {"c": (0, 15)} | {d: r for d, r in dims.items() if r is not None}
    a, b = parse_index(divided), parse_index(by)
    assert floordiv(a, b, ranges) == parse_index(quotient)
    if rest is not None:
        assert mod(a, b, ranges) == parse_index(rest)


@examples(200)
@given(indices(("c", "z", "h", "w"), depth=1), indices(("c", "z", "h", "w"), depth=1))
def test_division_by_a_sum_is_right_at_every_point(x: Index, y: Index) -> None:
    total = SUM * x + y
    grids = np.meshgrid(*[range(r[1] + 1) for r in SIZES.values()], indexing="ij")
    env = {n: g.reshape(-1) for n, g in zip(SIZES, grids, strict=True)}
    env = {n: g[env["z"] < SUM.evaluate(env)] for n, g in env.items()}
    p, q = (np.asarray(v.evaluate(env)) for v in (total, SUM))
    np.testing.assert_array_equal(np.asarray(floordiv(total, SUM, SIZES).evaluate(env)), p // q)
    np.testing.assert_array_equal(np.asarray(mod(total, SUM, SIZES).evaluate(env)), p % q)


@examples(300)
@given(indices(("c", "y", "x", "k", "h", "w"), depth=2))
def test_what_is_called_positive_is(x: Index) -> None:
    if is_positive(x, RANGES):
        assert (at_points(x) > 0).all()


def test_ranges_of_known_extents_are_plain() -> None:
    assert type(RANGES["c"]) is tuple
    assert RANGES["y"] == DimRange(3, H)
    assert RANGES["y"] != (0, 3)
    assert RANGES["y"] != DimRange(3, W)


@pytest.mark.parametrize(
    ("x", "simpler"),
    [
        ("(i - j + t) // (2*t)", "0"),
        ("j + ((i - j) // t + 1) // 2", "j"),
        ("(i - j) % t + t*(((i - j) // t + 1) % 2) - 1", "i - j + t - 1"),
    ],
)
def test_what_lies_less_than_a_divisor_below_0_has_a_quotient_of_minus_1(
    x: str, simpler: str
) -> None:
    symbols: dict[str, Range] = {"t": (1, 5)}
    below = dim_range(Index.of("t"), symbols)
    assert below is not None
    ranges = symbols | {"i": below, "j": below}
    assert parse_index("(i - j) // t").bounds(ranges) == (-1, 0)
    found = parse_index(x).simplify(ranges)
    assert found == parse_index(simpler)
    for t in range(1, 6):
        i, j = np.indices((t, t))
        env = {"t": t, "i": i, "j": j}
        np.testing.assert_array_equal(
            np.broadcast_to(np.asarray(found.evaluate(env)), (t, t)),
            np.broadcast_to(np.asarray(parse_index(x).evaluate(env)), (t, t)),
        )
