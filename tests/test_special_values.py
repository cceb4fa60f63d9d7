"""What operators give for NaN, infinities, signed zeros and the ends of types."""

from __future__ import annotations

import numpy as np
import pytest

from tests.fuzz.test_found import gives


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(("element", "kind"), [("float", np.float32), ("double", np.float64)])
def test_a_power_of_a_half_of_minus_infinity_is_no_root(
    element: str, kind: type[np.floating], *, known: bool
) -> None:
    """By the standard of floating-point numbers it is infinite; the root is NaN."""
    x = np.array([-1, 1, 0, -9], kind)
    given = "" if known else f"{element}[4] x"
    constant = f", {element}[4] x = {{-1, 1, 0, -9}}" if known else ""
    text = f"""
    g ({given}) => ({element}[4] y, {element}[4] z)
        <{element} zero = {{0}}, {element} half = {{0.5}}{constant}>
        {{ a = Div (x, zero)  y = Pow (a, half)  b = Neg (a)  z = Pow (b, half) }}
    """
    with np.errstate(all="ignore"):
        a = x / kind(0)
        want = [np.where(np.isnan(a), a, np.inf).astype(kind)] * 2
    gives(text, want, **({} if known else {"x": x}))


@pytest.mark.parametrize(
    ("attributes", "x", "want"),
    [
        (
            'mode = "linear", coordinate_transformation_mode = "align_corners"',
            [np.inf, 1, 2, -np.inf],
            [np.inf, np.inf, 1, 1.5, 2, -np.inf, -np.inf],
        ),
        (
            'mode = "cubic", coordinate_transformation_mode = "asymmetric"',
            [1, 1, np.inf, -4],
            [1, -np.inf, 1, np.inf, np.inf, np.inf, -4, -np.inf],
        ),
        (
            'mode = "linear", antialias = 1',
            [1, 1, np.inf, 1, 1, 1, 1, 1],
            [1, np.inf, np.inf, 1, 1],
        ),
    ],
)
def test_a_resized_image_has_nothing_of_elements_beyond_its_filter(
    attributes: str, x: list[float], want: list[float]
) -> None:
    """An infinite element that has no weight makes nothing NaN."""
    text = f"""
    g (float[{len(x)}] x) => (float[{len(want)}] y) <int64[1] s = {{{len(want)}}}>
        {{ y = Resize <{attributes}> (x, "", "", s) }}
    """
    gives(text, [np.array(want, np.float32)], x=np.array(x, np.float32))
