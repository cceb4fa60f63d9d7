"""Resize to sizes against the standard's formulas in exact arithmetic, for all small sizes."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from itertools import product
from math import floor
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from rutc.importer import import_model
from rutc.importer.ops.resize_positions import Scheme
from rutc.runtime import InferenceSession
from rutc.tensor_ir.interpreter.interpret import interpret
from tests.compiled import build, plan_or_reject
from tests.examples import DAYS
from tests.machines import NATIVE
from tests.sampling import SAMPLE

COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_crop_and_resize",
)
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
MODES = tuple(product(COORDINATES, NEAREST))
SIZES = range(1, 64)
HALF = Fraction(1, 2)


def position(coordinates: str, o: int, n: int, size: int, scale: Fraction) -> Fraction:
    """Where the standard says that output element `o` lies."""
    centered = (o + HALF) / scale - HALF
    match coordinates:
        case "half_pixel":
            return centered
        case "half_pixel_symmetric":
            return Fraction(n, 2) * (1 - size / (scale * n)) + centered
        case "pytorch_half_pixel":
            return centered if size > 1 else Fraction(0)
        case "asymmetric":
            return o / scale
        case "align_corners":
            length = n * scale
            return o * (n - 1) / (length - 1) if length > 1 else Fraction(0)
        case _:
            return Fraction(o * (n - 1), size - 1) if size > 1 else HALF * (n - 1)


def nearest(at: Fraction) -> tuple[int, ...]:
    """The nearest whole number in each mode of `NEAREST`."""
    below, rest = divmod(at, 1)
    return below + (rest > HALF), below + (rest >= HALF), below, below + (rest > 0)


@cache
def elements(coordinates: str, n: int, size: int, scale: Fraction) -> dict[str, list[int]]:
    """Which elements the outputs are, for each mode of `NEAREST`."""
    found = (nearest(position(coordinates, o, n, size, scale)) for o in range(size))
    chosen = ([min(max(i, 0), n - 1) for i in row] for row in zip(*found, strict=True))
    return dict(zip(NEAREST, chosen, strict=True))


@pytest.mark.parametrize("coordinates", COORDINATES)
def test_fixed_sizes(coordinates: str) -> None:
    scheme = Scheme(coordinates, "nearest", "", -0.75, exclude_outside=False, antialias=False)
    for n, size in product(SIZES, SIZES):
        scale = Fraction(size, n)
        places = scheme.places(n, size, scale, (0.0, 1.0))
        for mode, wanted in elements(coordinates, n, size, scale).items():
            got = np.clip(places.nearest(mode), 0, n - 1).tolist()
            assert got == wanted, (mode, n, size)


@pytest.mark.parametrize("coordinates", COORDINATES)
def test_linear_weights_are_those_of_exact_positions(coordinates: str) -> None:
    scheme = Scheme(coordinates, "linear", "floor", -0.75, exclude_outside=False, antialias=False)
    for n, size in ((7, 4), (4, 7), (1000, 7777), (4099, 513)):
        scale = Fraction(size, n)
        places = scheme.places(n, size, scale, (0.0, 1.0))
        where, weights = scheme.taps(places, n, scale)
        got = (np.sum(where * weights, axis=1)).tolist()
        for o, at in enumerate(got):
            wanted = float(min(max(position(coordinates, o, n, size, scale), 0), n - 1))
            # Regions are given in f32, and what follows from them is.
            exact = coordinates != "tf_crop_and_resize"
            assert abs(at - wanted) <= (1e-13 if exact else 1e-7) * n


def model(path: Path, axes: list[int | str], policy: str, sizes: np.ndarray | None) -> None:
    """One Resize of x {axes} in each mode, to sizes that are known or that a run gives."""
    nodes = [
        helper.make_node(
            "Resize",
            ["x", "roi" if c == "tf_crop_and_resize" else "", "", "sizes"],
            [f"y{i}"],
            coordinate_transformation_mode=c,
            nearest_mode=m,
            keep_aspect_ratio_policy=policy,
        )
        for i, (c, m) in enumerate(MODES)
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, axes)]
    if sizes is None:
        inputs.append(helper.make_tensor_value_info("sizes", TensorProto.INT64, [len(axes)]))
    roi = np.repeat(np.array([0, 1], np.float32), len(axes))
    data = [numpy_helper.from_array(roi, "roi")]
    data += [numpy_helper.from_array(sizes, "sizes")] if sizes is not None else []
    outputs = [onnx.ValueInfoProto(name=f"y{i}") for i in range(len(MODES))]
    graph = helper.make_graph(nodes, "model", inputs, outputs, data)
    opsets = [helper.make_opsetid("", 19)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)


def test_sizes_of_the_run(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    model(path, ["n"], "stretch", None)
    plan = plan_or_reject(import_model(path, dims={"n": (1, 64)}))
    library = build(plan, NATIVE, tmp_path)
    with InferenceSession(library, threads=1) as session:
        for n, size in SAMPLE.share(list(product(SIZES, SIZES)), DAYS, "sizes of the run"):
            x = np.arange(n, dtype=np.float32)
            found = session.run(None, {"x": x, "sizes": np.array([size])})
            for (coordinates, mode), got in zip(MODES, found, strict=True):
                wanted = elements(coordinates, n, size, Fraction(size, n))[mode]
                assert got.tolist() == wanted, (coordinates, mode, n, size)


def shapes() -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Pairs of sizes before and after, of two axes."""
    rng = np.random.default_rng(0)
    for _ in range(12):
        a, b, c, d = (int(i) for i in rng.integers(1, 40, 4))
        yield (a, b), (c, d)


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
def test_sizes_that_keep_proportions(tmp_path: Path, policy: str) -> None:
    run_time = tmp_path / "run.onnx"
    model(run_time, ["n", "m"], policy, None)
    dynamic = import_model(run_time, dims={"n": (1, 64), "m": (1, 64)})
    pick = min if policy == "not_larger" else max
    for number, (old, sizes) in enumerate(shapes()):
        scale = pick(Fraction(s, n) for s, n in zip(sizes, old, strict=True))
        new = [floor(n * scale + HALF) for n in old]
        if 0 in new:
            continue
        x = np.arange(old[0] * old[1], dtype=np.float32).reshape(old)
        found = [interpret(dynamic, {"x": x, "sizes": np.array(sizes)})]
        if number % 5 == 0:
            path = tmp_path / "model.onnx"
            model(path, [*old], policy, np.array(sizes))
            found.append(interpret(import_model(path), {"x": x}))
        for i, (coordinates, mode) in enumerate(MODES):
            rows, columns = (
                elements(coordinates, n, size, scale)[mode]
                for n, size in zip(old, new, strict=True)
            )
            wanted = x[np.ix_(rows, columns)]
            for got in found:
                np.testing.assert_array_equal(got[f"y{i}"], wanted, f"{coordinates} {mode}")
