"""Minimal filtering: exact over the rationals, accurate in float32, used only where it pays."""

from fractions import Fraction
from math import inf, prod, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rutc.graph_opt.alternatives.filtering import MOST_GROWTH, MinimalFiltering, Window, filters_of
from rutc.graph_opt.editor import Editor
from rutc.graph_opt.minimal_filter import PIECE_BYTES, POINTS, Filter, transform_weights
from rutc.graph_opt.pipeline import optimize
from rutc.graph_opt.rewrite import Sweep, why_not
from rutc.tensor_ir import (
    Const,
    Data,
    DType,
    Graph,
    Index,
    Input,
    Lit,
    Nest,
    Output,
    Read,
    Value,
    apply,
    reducer,
)
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.tensor_ir.verifier import verify
from rutc.verify.judging.tolerance import Level, tolerance
from tests.examples import examples

ALWAYS = MinimalFiltering(inf, -inf)
FILTERS = [Filter(n - taps + 1, taps) for n in POINTS for taps in range(2, n)]
STRIDED = [Filter(2, taps, s) for s in (2, 3) for taps in range(s + 1, 2 * s + 1)]


@pytest.mark.parametrize(
    "f", [*FILTERS, *STRIDED], ids=lambda f: f"F({f.outputs},{f.taps},{f.stride})"
)
def test_filters_are_exact(f: Filter) -> None:
    rng = np.random.default_rng(0)
    inputs = [Fraction(int(v)) for v in rng.integers(-99, 99, f.inputs)]
    taps = [Fraction(int(v)) for v in rng.integers(-99, 99, f.taps)]

    def times(matrix: tuple[tuple[Fraction, ...], ...], x: list[Fraction]) -> list[Fraction]:
        return [sum((c * v for c, v in zip(row, x, strict=True)), Fraction(0)) for row in matrix]

    pairs = zip(times(f.of_input, inputs), times(f.of_weights, taps), strict=True)
    products = [a * b for a, b in pairs]
    wanted = [
        sum((inputs[f.stride * i + k] * taps[k] for k in range(f.taps)), Fraction(0))
        for i in range(f.outputs)
    ]
    assert f.points == len(f.of_weights) < f.outputs * f.taps
    assert times(f.of_output, products) == wanted


@pytest.mark.parametrize("axes", [(2, 3), (0, 1), (0,)], ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.int8])
def test_weights_are_transformed_whatever_pieces_they_are_taken_in(
    axes: tuple[int, ...], dtype: type[np.generic]
) -> None:
    shape = [3 if axis in axes else 120 if axis in (0, 1) else 2 for axis in range(4)]
    weights = np.random.default_rng(0).integers(-9, 9, shape).astype(dtype)
    filters = {axis: Filter(4, 3) for axis in axes}
    found = transform_weights(filters, weights)
    wanted = weights.astype(np.float64)
    for axis, f in filters.items():
        matrix = np.array(f.of_weights, np.float64)
        wanted = np.moveaxis(np.tensordot(matrix, wanted, (1, axis)), 0, axis)
    if dtype is np.int8:
        wanted *= prod(f.denominator for f in filters.values())
    assert found.dtype.kind == np.dtype(dtype).kind
    np.testing.assert_array_equal(found, wanted.astype(found.dtype))
    assert found.flags.c_contiguous
    assert (found.nbytes > 2 * PIECE_BYTES) == (axes == (2, 3))


def convolution(
    sizes: tuple[int, ...],
    windows: tuple[int, ...],
    before: tuple[int, ...],
    after: tuple[int, ...],
    *,
    channels: int = 3,
    outputs: int = 4,
    groups: int = 1,
    batch: int = 1,
) -> Graph:
    """y{b,g,o,y0,..} = sum{c,k0,..} x[b, g, c, x0=y0+k0-before, ..] * w[g, o, c, k0, ..]."""
    dims = {"b": batch, "g": groups, "c": channels, "o": outputs}
    coords = {d: Index.of(d) for d in "bgc"}
    names = range(len(sizes))
    for i in names:
        dims[f"x{i}"], dims[f"k{i}"] = sizes[i], windows[i]
        dims[f"y{i}"] = sizes[i] + before[i] + after[i] - windows[i] + 1
        coords[f"x{i}"] = Index.of(f"y{i}") + Index.of(f"k{i}") - before[i]
    x_axes = ("b", "g", "c", *(f"x{i}" for i in names))
    w_axes = ("g", "o", "c", *(f"k{i}" for i in names))
    y_axes = ("b", "g", "o", *(f"y{i}" for i in names))
    weights = np.random.default_rng(1).standard_normal([dims[d] for d in w_axes])
    f32 = DType.F32
    fill = Lit(0.0, f32) if any((*before, *after)) else None
    x_read = Read("x", tuple(sorted(coords.items())), f32, fill)
    w_read = Read("w", tuple((d, Index.of(d)) for d in sorted(w_axes)), f32)
    bound = tuple(sorted({*x_axes, *w_axes} - {*y_axes, *(f"x{i}" for i in names)}))
    total = reducer("sum", f32)
    graph = Graph(
        "convolution",
        tuple((d, Index.of(e)) for d, e in dims.items()),
        (
            Input(Value("x", f32, tuple(sorted(x_axes))), "x", x_axes),
            Const(Value("w", f32, tuple(sorted(w_axes))), w_axes, Data(weights.astype(np.float32))),
            Nest(
                (Value("y", f32, tuple(sorted(y_axes))),),
                bound,
                total,
                (apply("mul", x_read, w_read),),
            ),
        ),
        (Output("y", "y", y_axes),),
    )
    verify(graph)
    return graph


def compare(graph: Graph, seed: int) -> float:
    """The filtered graph's error as a share of what the table allows one kernel.

    The sums of K products of normal numbers are about sqrt(K), though a few of them may cancel.
    """
    filtered = optimize(graph, pipeline=(Sweep("filter", (ALWAYS,)),))
    assert filtered is not graph
    verify(filtered)
    rng = np.random.default_rng(seed)
    (x,) = graph.inputs
    shape = [graph.extent(d) for d in x.axes]
    inputs = {"x": rng.standard_normal(shape).astype(np.float32)}
    wanted = interpret(graph, inputs)["y"].astype(np.float64)
    got = interpret(filtered, inputs)["y"]
    (nest,) = (n for n in graph.nodes if isinstance(n, Nest))
    reduction = prod(graph.extent(d) for d in nest.bound)
    usual = np.append(wanted, sqrt(reduction))
    allowed = tolerance(Level.KERNEL, np.float32, reduction).allowed(usual)[:-1]
    return float((np.abs(got - wanted).ravel() / allowed).max())


@examples(40)
@given(st.data())
def test_filtering_keeps_every_output(data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, 2))
    pick = lambda values: tuple(data.draw(values) for _ in range(rank))  # noqa: E731
    windows = pick(st.sampled_from([2, 3, 5]))
    before, after = pick(st.integers(0, 3)), pick(st.integers(0, 3))
    sizes = tuple(
        max(1, w - a - b) + data.draw(st.integers(0, 6))
        for w, a, b in zip(windows, before, after, strict=True)
    )
    graph = convolution(
        sizes,
        windows,
        before,
        after,
        channels=data.draw(st.integers(1, 3)),
        groups=data.draw(st.integers(1, 2)),
        batch=data.draw(st.integers(1, 3)),
    )
    # Sums of a few products do not average their errors, which filtering makes larger.
    assert compare(graph, data.draw(st.integers(0, 9))) < MOST_GROWTH


@pytest.mark.parametrize("channels", [16, 256])
def test_errors_stay_below_half_of_what_is_allowed(channels: int) -> None:
    graph = convolution((13, 13), (3, 3), (1, 1), (1, 1), channels=channels, outputs=16)
    assert compare(graph, 0) < 0.5


@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        ((56, 56), {"channels": 4, "outputs": 8}),
        ((2, 2), {"channels": 512, "outputs": 512}),
        ((1, 1), {"channels": 64, "outputs": 64}),
        ((56, 56), {"channels": 1, "outputs": 1, "groups": 64}),
    ],
    ids=["few channels", "small image", "one pixel", "one channel per group"],
)
def test_it_is_left_where_it_does_not_pay(sizes: tuple[int, int], options: dict[str, int]) -> None:
    graph = convolution(sizes, (3, 3), (1, 1), (1, 1), **options)
    assert "it saves too little" in (why_not(MinimalFiltering(), graph, "y") or "")


@pytest.mark.parametrize(("size", "channels"), [(56, 64), (28, 128), (14, 256)])
def test_it_is_used_where_it_pays(size: int, channels: int) -> None:
    graph = convolution((size, size), (3, 3), (1, 1), (1, 1), channels=channels, outputs=channels)
    assert why_not(MinimalFiltering(), graph, "y") is None


def test_equal_windows_share_a_filter() -> None:
    """Its matrices are computed once, however many sums have such windows."""
    windows = [Window("k", "z", "x", -1, "k"), Window("l", "y", "v", 0, "l")]
    graph = Graph("g", (("k", Index.of(3)), ("l", Index.of(3))), (), ())
    chosen = [filters_of([w], Editor(graph)) for w in windows]
    first, second = ([f for each in c for f in each.values()] for c in chosen)
    assert len(first) > 1
    assert all(a is b for a, b in zip(first, second, strict=True))
