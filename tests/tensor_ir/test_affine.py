from collections.abc import Iterator, Mapping

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rutc.tensor_ir.indices import division
from rutc.tensor_ir.indices.affine import (
    FloorDiv,
    Index,
    Range,
    Var,
    floordiv,
    maximum,
    minimum,
    mod,
    product,
)
from rutc.tensor_ir.indices.division import at_least, close_bounds
from rutc.tensor_ir.textual.parse import parse_index
from tests.examples import examples
from tests.strategies import indices

NAMES = ("x", "y", "z")
some = examples(300)
spans = st.tuples(st.integers(-6, 6), st.integers(0, 5)).map(lambda t: (t[0], t[0] + t[1]))
dim_spans = st.integers(0, 6).map(lambda n: (0, n))
ranges_of = st.fixed_dictionaries(dict.fromkeys(NAMES, spans | dim_spans))


def points(ranges: Mapping[str, Range]) -> dict[str, np.ndarray]:
    """All points of a box, as broadcastable arrays."""
    grids = np.meshgrid(*(np.arange(lo, hi + 1) for lo, hi in ranges.values()), indexing="ij")
    return dict(zip(ranges, grids, strict=True))


def everywhere(x: Index, ranges: Mapping[str, Range]) -> np.ndarray:
    env = points(ranges)
    return np.broadcast_to(np.asarray(x.evaluate(env)), env["x"].shape)


def assert_bounds_hold(x: Index, ranges: Mapping[str, Range]) -> None:
    found, values = x.bounds(ranges), everywhere(x, ranges)
    assert found is not None
    assert found[0] <= values.min()
    assert values.max() <= found[1]


@some
@given(indices(NAMES), indices(NAMES), ranges_of)
def test_arithmetic_is_pointwise(a: Index, b: Index, ranges: Mapping[str, Range]) -> None:
    p, q = everywhere(a, ranges), everywhere(b, ranges)
    np.testing.assert_array_equal(everywhere(a + b, ranges), p + q)
    np.testing.assert_array_equal(everywhere(a - b, ranges), p - q)
    np.testing.assert_array_equal(everywhere(a * b, ranges), p * q)
    np.testing.assert_array_equal(everywhere(minimum(a, b), ranges), np.minimum(p, q))
    np.testing.assert_array_equal(everywhere(maximum(a, b, ranges), ranges), np.maximum(p, q))


@some
@given(indices(NAMES), st.integers(1, 24), ranges_of)
def test_division_is_pointwise(a: Index, d: int, ranges: Mapping[str, Range]) -> None:
    p = everywhere(a, ranges)
    for known in ({}, ranges):
        quotient, rest = floordiv(a, Index.of(d), known), mod(a, Index.of(d), known)
        np.testing.assert_array_equal(everywhere(quotient, ranges), p // d)
        np.testing.assert_array_equal(everywhere(rest, ranges), p % d)


@some
@given(indices(NAMES), indices(NAMES), ranges_of)
def test_division_by_an_expression_is_pointwise(
    a: Index, b: Index, ranges: Mapping[str, Range]
) -> None:
    divisor = maximum(b, 1)
    p, q = everywhere(a, ranges), everywhere(divisor, ranges)
    for known in ({}, ranges):
        np.testing.assert_array_equal(everywhere(floordiv(a, divisor, known), ranges), p // q)
        np.testing.assert_array_equal(everywhere(mod(a, divisor, known), ranges), p % q)


@some
@given(indices(NAMES, depth=4), ranges_of)
def test_simplify_keeps_the_value_and_settles(a: Index, ranges: Mapping[str, Range]) -> None:
    simple = a.simplify(ranges)
    np.testing.assert_array_equal(everywhere(simple, ranges), everywhere(a, ranges))
    assert simple.simplify(ranges) == simple


class _Unwalked(dict[str, Index]):
    """Replacements, of which only those of asked names are looked at."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("a substitution goes through all replacements")


def test_a_substitution_takes_no_longer_for_replacements_of_other_names() -> None:
    env = _Unwalked({f"d{k}": Index.of("e") for k in range(9)})
    a = Index.of("x") + 1
    assert a.subs(env) is a
    assert Index.of("d3").subs(env) == Index.of("e")


@some
@given(indices(NAMES), indices(NAMES), indices(NAMES), ranges_of)
def test_substitution_is_composition(
    a: Index, b: Index, c: Index, ranges: Mapping[str, Range]
) -> None:
    env = points(ranges)
    inner = {"x": b.evaluate(env), "y": c.evaluate(env), "z": env["z"]}
    wanted = np.broadcast_to(np.asarray(a.evaluate(inner)), env["x"].shape)
    np.testing.assert_array_equal(everywhere(a.subs({"x": b, "y": c}), ranges), wanted)


@some
@given(indices(NAMES, depth=4), ranges_of)
def test_bounds_hold(a: Index, ranges: Mapping[str, Range]) -> None:
    assert_bounds_hold(a, ranges)


@some
@given(indices(NAMES), indices(NAMES), st.integers(1, 9), st.integers(1, 9), ranges_of)
def test_close_bounds_hold(a: Index, b: Index, d: int, e: int, ranges: Mapping[str, Range]) -> None:
    x = (a // d) * 3 - (b // e) * 2 + a + b // d
    found, plain = close_bounds(x, ranges), x.bounds(ranges)
    assert found is not None
    assert plain is not None
    values = everywhere(x, ranges)
    assert plain[0] <= found[0] <= values.min()
    assert values.max() <= found[1] <= plain[1]


def test_quotients_of_the_same_terms_are_near_each_other() -> None:
    """A window of 3 in steps of 2 goes beyond an image by one, however wide the image is."""
    w = Index.of("w")
    ranges = {"w": (0, 1 << 31)}
    known = {
        2 * ((w + 7) // 8) - (w + 3) // 4: (0, 1),
        2 * ((w + 1) // 2) - w: (0, 1),
        (w + 3) // 4 - 2 * ((w + 7) // 8) + 5: (4, 5),
    }
    for x, wanted in known.items():
        assert close_bounds(x, ranges) == wanted


@some
@given(indices(NAMES), st.integers(0, 40), st.integers(-2, 3), ranges_of)
def test_bounds_of_products_that_share_what_there_is_hold(
    a: Index, total: int, k: int, ranges: Mapping[str, Range]
) -> None:
    n, m = Index.of("x"), Index.of("y")
    shared = minimum(total // maximum(n * m * k + n + 1, 1), maximum(a, 1))
    x = n * m * shared
    assert_bounds_hold(x, ranges)


def test_a_product_with_what_fits_is_bounded_by_what_there_is() -> None:
    n, m = Index.of("n"), Index.of("m")
    ranges = {"n": (1, 100), "m": (1, 1000)}
    fits = Index.of(4096) // (8 * n + 16)
    most = {
        n * fits: 512,
        n * minimum(fits, m): 512,
        n * maximum(minimum(fits, m), 1): 512,
        n * n * fits: 51200,
        n * (4096 // maximum(8 * n, 1)): 512,
        n * (4096 // maximum(8 * n - 8, 1)): 409600,
    }
    for x, high in most.items():
        found = x.bounds(ranges)
        assert found is not None
        assert found[1] == high


@some
@given(
    st.integers(-3, 9),
    st.integers(-4, 9),
    st.integers(-9, 9),
    st.integers(1, 9),
    st.integers(-9, 20),
    st.integers(0, 30),
)
def test_what_is_divided_by_a_part_of_itself_is_no_less_than_its_bound(
    times: int, more: int, rest: int, part: int, low: int, count: int
) -> None:
    n, ranges = Index.of("x"), {"x": (low, low + count)}
    divisor = (n + rest) // part
    lowest = divisor.bounds(ranges)
    assume(lowest is not None and lowest[0] > 0)
    x = (times * n + more) // divisor
    assert_bounds_hold(x, ranges)


@some
@given(indices(NAMES, depth=4))
def test_what_stands_beside_atoms_is_told_from_the_rest(a: Index) -> None:
    beside, inside = a.apart()
    assert beside + inside == a
    assert beside.is_polynomial
    assert inside.const == 0
    atoms = [x for mono, _ in inside.terms for x in mono if not isinstance(x, Var)]
    assert beside.names().isdisjoint(n for x in atoms for n in x.names)


@pytest.mark.parametrize(
    ("text", "least"),
    [
        ("(8*n - 1) // ((n + 7) // 8)", 7),
        ("(4*n + 30) // ((n + 3) // 4)", 16),
        # The divisor may be 0, or what is divided negative.
        ("(8*n - 1) // ((n + 6) // 8)", None),
        ("(8*n - 9) // ((n + 7) // 8)", -1),
    ],
)
def test_what_is_divided_by_a_part_of_itself_has_a_close_bound(
    text: str, least: int | None
) -> None:
    found = parse_index(text).bounds({"n": (1, 1000)})
    assert (None if found is None else found[0]) == least


@some
@given(indices(NAMES, depth=4), ranges_of, ranges_of)
def test_bounds_are_those_of_the_ranges_at_hand(
    a: Index, first: Mapping[str, Range], second: Mapping[str, Range]
) -> None:
    alone = parse_index(str(a)).bounds(second)
    a.bounds(first)
    assert a.bounds(second) == alone


def test_bounds_of_an_atom_are_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    x = Index.of("x")
    for step in range(8):
        # Each contains the one before twice.
        x = minimum(x, (x + step) // 2 + step) + 1
    found: list[object] = []
    bounds_of = FloorDiv.bounds_of
    monkeypatch.setattr(
        FloorDiv, "bounds_of", staticmethod(lambda p, q: found.append(p) or bounds_of(p, q))
    )
    assert x.bounds({"x": (2, 77)}) is not None
    assert len(found) == 8


@some
@given(indices(NAMES, depth=4), indices(NAMES, depth=4), ranges_of)
def test_what_is_at_least_another_is_their_maximum(
    a: Index, b: Index, ranges: Mapping[str, Range]
) -> None:
    a = maximum(a, a - 1, ranges)
    assert at_least(a, b, ranges) == (maximum(a, b, ranges) == a)


@some
@given(indices(NAMES, depth=4), ranges_of)
def test_text_parses_back(a: Index, ranges: Mapping[str, Range]) -> None:
    assert parse_index(str(a)) == a
    assert parse_index(str(a.simplify(ranges))) == a.simplify(ranges)


@some
@given(st.lists(st.integers(-9, 9), min_size=3, max_size=3), st.integers(-9, 9))
def test_coefficients_of_linear_expressions(coefficients: list[int], const: int) -> None:
    x = sum((Index.of(n) * c for n, c in zip(NAMES, coefficients, strict=True)), Index.of(const))
    assert [x.coefficient(n) for n in NAMES] == coefficients
    assert (x * Index.of("x")).coefficient("x") == (None if any(coefficients) else const)


RANGES: dict[str, Range] = {
    "a": (0, 9), "b": (0, 63), "c": (0, 7), "d": (0, 7), "i": (0, 1023), "n": (1, 1 << 31),
    "s": (0, 999),
}  # fmt: skip
SIMPLER = """
(64*a + b) // 64                            -> a
(64*a + b) % 64                             -> b
(64*a + 8*c + d) // 8                       -> 8*a + c
(64*a + 8*c + d) // 64                      -> a
(64*a + 8*c + d) % 64                       -> 8*c + d
((64*a + 8*c + d) % 64) // 8                -> c
64*(i // 64) + i % 64                       -> i
8*(i // 64) + (i % 64) // 8                 -> i // 8
64*(i // 64) + 8*((i % 64) // 8) + i % 8    -> i
8*((i // 8) % 8) + i % 8                    -> i % 64
8*((i // 8 + 3) % 8) + i % 8                -> (i + 24) % 64
100*(((a - b) // 100 + 1) % 2) + (a - b) % 100 -> a - b + 100
100*(((a - i) // 100 + 1) % 2) + (a - i) % 100 -> (a - i + 100) % 200
(i // 8) // 8                               -> i // 64
(i % 64) % 8                                -> i % 8
(i % 64) // 64                              -> 0
(2*a + 4*c) // 2                            -> a + 2*c
(6*i) % 4                                   -> 2*(i % 2)
(i + 64) // 64                              -> i // 64 + 1
(i - 1 + 64) % 64                           -> (i + 63) % 64
min(b, 63)                                  -> b
max(b, 0)                                   -> b
a + max(b - a, 7)                           -> max(a + 7, b)
a + max(8 - a, 0) - max(8, a) + 16          -> 16
2*a + 2*min(3 - a, b) + c                   -> c + 2*min(3, a + b)
max(a - 3, 0) + min(a, 3)                   -> a
c - 2*min(a, b) - 2*max(b - 5, a - 5)       -> -2*a - 2*b + c + 10
max(a, b)*c + min(a, b)*c                   -> c*max(a, b) + c*min(a, b)
min(b + 64, a)                              -> a
i - 64*(i // 64)                            -> i % 64
i - i % 64                                  -> 64*(i // 64)
(64*(i // 64)) // 64                        -> i // 64
(i // 64 + 64*a) % 64                       -> i // 64
(n*a + n) // n                              -> a + 1
(n*s) % n                                   -> 0
min(min(i, b), i)                           -> min(b, i)
(i % 64 + 64*a) % 64                        -> i % 64
(7*a + c // 2) // 7                         -> a
(-i) % 1                                    -> 0
(3*b + 2*c) // 400                          -> 0
(127*b + a + 64) // 128                     -> b
(63*a + b) % 64 + 64*(a + (63*a + b) // 64) -> 127*a + b
(63*b + a) % 64 + 64*((b + (63*b + a) // 64 + 1) % 2) -> a - b + 64
(3*c + d) // 4                              -> (3*c + d) // 4
"""


@pytest.mark.parametrize("line", SIMPLER.strip().splitlines())
def test_simpler_forms(line: str) -> None:
    before, after = line.split("->")
    found = parse_index(before).simplify(RANGES)
    assert str(found) == after.strip()


def test_products_and_constants() -> None:
    assert product([Index.of("x"), 2, 3]) == Index.of("x") * 6
    assert (Index.of("x") - Index.of("x")).value == 0
    with pytest.raises(ValueError, match="not a constant"):
        _ = Index.of("x").value


def test_multiples_of_sums_are_divided() -> None:
    n, p, h = map(Index.of, ("new", "past", "h"))
    total = n + p
    assert (total * 768) // total == Index.of(768)
    assert (total * total * h * 12) // (total * 4) == total * h * 3
    assert ((total + 1) * (n + 2)) // (total + 1) == n + 2
    assert (total * 768) % total == Index.of(0)
    for a, b in ((total * 768 + 1, total), (total, total * 2), (n * 6, total)):
        for new, past in ((1, 5), (3, 0), (7, 7)):
            env = {"new": new, "past": past}
            assert (a // b).evaluate(env) == a.evaluate(env) // b.evaluate(env)
            assert (a % b).evaluate(env) == a.evaluate(env) % b.evaluate(env)


def test_what_is_divided_is_made_again_only_where_terms_can_be_nearer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[Index] = []
    nearer = division._nearer

    def counted(x: Index, ranges: Mapping[str, Range]) -> Index:
        looked.append(x)
        return nearer(x, ranges)

    monkeypatch.setattr(division, "_nearer", counted)
    ranges = {"rows": (0, 1 << 31), "columns": (0, 1 << 31), "row": (0, 500)}
    parse_index("(min((rows + 7) // 8 - row, 3) * columns + 5) // 16").simplify(ranges)
    assert not looked
    parse_index("(min((rows + 7) // 8 - row, 3) * 15 + columns) // 16").simplify(ranges)
    assert looked
