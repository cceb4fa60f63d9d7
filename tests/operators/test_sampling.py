"""Interpolation with random attributes: Resize, GridSample, regions, LRN, MaxUnpool, caches."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rutc.importer import import_model
from rutc.tensor_ir.interpreter.interpret import interpret
from tests.compiled import build, plan_or_reject, run
from tests.machines import RUNNABLE
from tests.operators.oracle import Case, agree, expected_of, make, tries

pytestmark = pytest.mark.sampled(3, whole=True)

Draw = st.DrawFn
machines = st.sampled_from([None, None, None, None, *RUNNABLE])


def values(draw: Draw, shape: list[int], dtype: str = "f4") -> np.ndarray:
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    return rng.standard_normal(shape).astype(dtype)


@st.composite
def resizes(draw: Draw) -> Case:
    mode = draw(st.sampled_from(["nearest", "linear", "cubic"]))
    spatial = 2 if mode == "cubic" else draw(st.integers(1, 3 if mode == "linear" else 2))
    rank = spatial + 2
    x = values(
        draw, [1, draw(st.integers(1, 2)), *(draw(st.integers(1, 9)) for _ in range(spatial))]
    )
    coordinates = draw(
        st.sampled_from(
            [
                "half_pixel",
                "half_pixel_symmetric",
                "pytorch_half_pixel",
                "align_corners",
                "asymmetric",
                "tf_crop_and_resize",
            ]
        )
    )
    if mode == "nearest" and coordinates == "half_pixel_symmetric":
        # Many of its positions are ties, which each implementation's roundings decide.
        coordinates = "half_pixel"
    attributes: dict[str, object] = {
        "mode": mode,
        "coordinate_transformation_mode": coordinates,
    }
    axes = list(range(rank))
    if draw(st.booleans()):
        axes = list(range(2, rank))
        attributes["axes"] = axes
    if mode == "nearest":
        attributes["nearest_mode"] = draw(
            st.sampled_from(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
        )
    if mode == "cubic":
        attributes["cubic_coeff_a"] = draw(st.sampled_from([-0.75, -0.5]))
        attributes["exclude_outside"] = draw(st.integers(0, 1))
    crop = coordinates == "tf_crop_and_resize"
    if mode != "nearest" and spatial == 2 and not crop:
        attributes["antialias"] = draw(st.integers(0, 1))
    constants: dict[str, np.ndarray] = {}
    order = ["x", "", "", ""]
    if crop:
        low = [draw(st.sampled_from([0.0, 0.1, 0.4])) if a > 1 else 0.0 for a in axes]
        high = [draw(st.sampled_from([1.0, 0.9, 0.5, 1.2])) if a > 1 else 1.0 for a in axes]
        constants["roi"] = np.array([*low, *high], "f4")
        order[1] = "roi"
        attributes["extrapolation_value"] = 5.0
    sizes = [x.shape[a] if a < 2 else draw(st.integers(1, 14)) for a in axes]
    if draw(st.booleans()):
        if mode == "nearest":
            # Others have positions half-way, which ONNX Runtime computes in f32.
            sizes = [x.shape[a] * (1 if a < 2 else draw(st.integers(1, 3))) for a in axes]
        constants["sizes"] = np.array(sizes, "i8")
        order[3] = "sizes"
        if not crop and len(axes) == spatial:
            policies = ["stretch", "not_larger", "not_smaller"]
            attributes["keep_aspect_ratio_policy"] = draw(st.sampled_from(policies))
    else:
        scales = [
            1.0 if a < 2 else draw(st.sampled_from([0.5, 0.6, 1.0, 1.5, 2.0, 3.0])) for a in axes
        ]
        if any(int(x.shape[a] * s) < 1 for a, s in zip(axes, scales, strict=True)):
            scales = [1.0 if a < 2 else 2.0 for a in axes]
        constants["scales"] = np.array(scales, "f4")
        order[2] = "scales"
    while order[-1] == "":
        order.pop()
    # Between corners ONNX Runtime 1.31 counts whole elements where ONNX counts n * scale.
    stretched = attributes.get("keep_aspect_ratio_policy", "stretch") == "stretch"
    reference = coordinates == "align_corners" and ("scales" in constants or not stretched)
    if crop:
        # It leaves an axis of scale 1 as it is even where a part of it is cut out.
        for i, a in enumerate(axes):
            if constants.get("scales", [0.0] * rank)[i] == 1 or sizes[i] == x.shape[a]:
                constants["roi"][[i, i + len(axes)]] = 0, 1
    return make("Resize", {"x": x}, constants, order=order, reference=reference, **attributes)


@tries(200)
@given(resizes(), machines)
def test_resizes(case: Case, machine: str | None) -> None:
    agree(case, machine, reduction=30, size=1.0)


@st.composite
def grids(draw: Draw) -> Case:
    spatial = draw(st.sampled_from([2, 2, 3]))
    mode = draw(st.sampled_from(["linear", "nearest"] + (["cubic"] if spatial == 2 else [])))
    x = values(draw, [2, 2, *(draw(st.integers(1, 6)) for _ in range(spatial))])
    grid = values(draw, [2, *(draw(st.integers(1, 5)) for _ in range(spatial)), spatial])
    return make(
        "GridSample",
        {"x": x, "grid": grid},
        opset=20,
        mode=mode,
        padding_mode=draw(st.sampled_from(["zeros", "border", "reflection"])),
        align_corners=draw(st.integers(0, 1)),
    )


@tries(150)
@given(grids(), machines)
def test_grids(case: Case, machine: str | None) -> None:
    agree(case, machine, reduction=100, size=1.0)


@pytest.mark.parametrize("machine", [None, *RUNNABLE])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_samples_of_half_precision_are_rounded_once(
    mode: str, machine: str | None, tmp_path: Path
) -> None:
    """Positions and weights are computed in float32: at column 500 float16 has steps of 1/4."""
    rng = np.random.default_rng(0)
    x = (1 + rng.random((1, 2, 3, 701))).astype(np.float16)
    grid = rng.uniform(-0.9, 0.9, (1, 5, 7, 2)).astype(np.float16)
    case = make("GridSample", {"x": x, "grid": grid}, opset=20, mode=mode, padding_mode="border")
    wide = {"x": x.astype(np.float64), "grid": grid.astype(np.float32)}
    (want,) = expected_of(replace(case, inputs=wide))
    onnx.save(case.model(), tmp_path / "case.onnx")
    graph = import_model(tmp_path / "case.onnx")
    if machine is None:
        got = interpret(graph, case.inputs)["y"]
    else:
        library = build(plan_or_reject(graph), RUNNABLE[machine], tmp_path)
        got = run(library, case.inputs, 1)["y"]
    assert got.dtype == np.float16
    # Half a step of float16, and as much of float32 as positions are off at 700 columns.
    assert (np.abs(got - want) <= 2.0**-11 * np.abs(want) + 700 * 2.0**-22).all()


@st.composite
def regions(draw: Draw) -> Case:
    n, height, width = draw(st.integers(1, 2)), draw(st.integers(2, 9)), draw(st.integers(2, 9))
    x = values(draw, [n, draw(st.integers(1, 3)), height, width])
    count = draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    reach = draw(st.sampled_from([1.0, 1.0, 3.0]))
    corners = np.sort(rng.uniform(-2, 20 * reach, (count, 2, 2)), axis=1).reshape(count, 4)
    scale = draw(st.sampled_from([1.0, 0.5, 0.25]))
    bins = [draw(st.integers(1, 4)) for _ in range(2)]
    batch = rng.integers(0, n, count)
    if draw(st.booleans()):
        rois = np.concatenate([batch[:, None], corners], axis=1).astype("f4")
        given = {"x": x, "rois": rois}
        return make("MaxRoiPool", given, pooled_shape=bins, spatial_scale=scale)
    given = {"x": x, "rois": corners.astype("f4"), "batch": batch}
    return make(
        "RoiAlign",
        given,
        opset=16,
        mode=draw(st.sampled_from(["avg", "avg", "max"])),
        output_height=bins[0],
        output_width=bins[1],
        sampling_ratio=draw(st.integers(0, 3)),
        spatial_scale=scale,
        coordinate_transformation_mode=draw(st.sampled_from(["half_pixel", "output_half_pixel"])),
    )


@tries(150)
@given(regions(), machines)
def test_regions(case: Case, machine: str | None) -> None:
    agree(case, machine, reduction=100, size=1.0)


@st.composite
def responses(draw: Draw) -> Case:
    x = values(draw, [2, draw(st.integers(1, 9)), *(draw(st.integers(1, 5)) for _ in range(2))])
    size = draw(st.sampled_from([1, 3, 5, 7]))
    return make("LRN", {"x": x}, size=size, alpha=0.01, beta=0.7, bias=2.0)


@tries(30)
@given(responses(), machines)
def test_responses(case: Case, machine: str | None) -> None:
    agree(case, machine, reduction=30)


@st.composite
def unpooled(draw: Draw) -> Case:
    rank = draw(st.integers(1, 3))
    sizes = [1, 2, *(draw(st.integers(1, 3)) for _ in range(rank))]
    kernel = [draw(st.integers(1, 3)) for _ in range(rank)]
    whole = [e * k for e, k in zip(sizes[2:], kernel, strict=True)]
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    at = rng.permutation(2 * prod(whole))[: prod(sizes)].reshape(sizes)
    given = {"x": values(draw, sizes), "at": at}
    constants = {}
    if draw(st.booleans()):
        constants["shape"] = np.array([1, 2, *(e + draw(st.integers(0, 2)) for e in whole)])
    # With a shape ONNX Runtime 1.31 takes the positions to be in the larger output.
    reference = bool(constants)
    geometry = {"kernel_shape": kernel, "strides": kernel}
    return make("MaxUnpool", given, constants, reference=reference, **geometry)


@tries(60)
@given(unpooled(), machines)
def test_unpooled(case: Case, machine: str | None) -> None:
    agree(case, machine)


@st.composite
def caches(draw: Draw) -> Case:
    mode = draw(st.sampled_from(["linear", "circular"]))
    rank = draw(st.integers(3, 4))
    axis = draw(st.integers(1, rank - 1))
    sizes = [draw(st.integers(1, 7)) for _ in range(rank)]
    n = sizes[axis]
    part = draw(st.integers(1, n))
    own = [part if i == axis else e for i, e in enumerate(sizes)]
    given = {"x": values(draw, sizes), "u": values(draw, own)}
    if draw(st.booleans()):
        rng = np.random.default_rng(draw(st.integers(0, 99)))
        most = n - part if mode == "linear" else n - 1
        given["w"] = rng.integers(0, most + 1, sizes[:1])
    return make("TensorScatter", given, opset=24, reference=True, axis=axis - rank, mode=mode)


@tries(50)
@given(caches(), machines)
def test_caches(case: Case, machine: str | None) -> None:
    agree(case, machine)


@st.composite
def affine_grids(draw: Draw) -> Case:
    spatial = draw(st.integers(2, 3))
    theta = values(draw, [2, spatial, spatial + 1])
    size = np.array([2, 3, *(draw(st.integers(2, 5)) for _ in range(spatial))])
    flag = draw(st.integers(0, 1))
    return make("AffineGrid", {"theta": theta}, {"size": size}, opset=20, align_corners=flag)


@tries(30)
@given(affine_grids(), machines)
def test_affine_grids(case: Case, machine: str | None) -> None:
    agree(case, machine, reduction=10, size=1.0)


@st.composite
def upsampled(draw: Draw) -> Case:
    mode = draw(st.sampled_from(["nearest", "linear"]))
    x = values(draw, [1, 2, draw(st.integers(1, 6)), draw(st.integers(1, 6))])
    scales = [1.0, 1.0, *(draw(st.sampled_from([1.0, 1.5, 2.0, 3.0])) for _ in range(2))]
    if draw(st.booleans()):
        return make("Upsample", {"x": x}, opset=7, mode=mode, scales=scales)
    return make("Upsample", {"x": x}, {"s": np.array(scales, "f4")}, opset=9, mode=mode)


@tries(40)
@given(upsampled(), machines)
def test_upsampled(case: Case, machine: str | None) -> None:
    agree(case, machine, reduction=10, size=1.0)


@tries(40)
@given(resizes(), machines)
def test_resizes_to_sizes_of_the_run(case: Case, machine: str | None) -> None:
    if prod(case.constants.get("sizes", [1])) == 0:
        return
    inputs = {**case.inputs, **case.constants}
    agree(replace(case, inputs=inputs, constants={}), machine, reduction=100, size=1.0)
