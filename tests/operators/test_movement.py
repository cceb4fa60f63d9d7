"""Views, cuts, joins, pads and gathers with random attributes and types."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.machines import RUNNABLE
from tests.operators.oracle import Case, agree, make, tries

pytestmark = pytest.mark.sampled(3, whole=True)

Draw = st.DrawFn
TYPES = ("f4", "f4", "i8", "f8", "f2", "i4", "u1", "?")
machines = st.sampled_from([None, None, None, None, *RUNNABLE])
extents = st.sampled_from([0, 1, 1, 2, 3, 5, 7, 13])


def shape(draw: Draw, least: int = 0, most: int = 4) -> list[int]:
    rank = draw(st.integers(least, most))
    sizes = [draw(extents) for _ in range(rank)]
    return sizes if prod(sizes) <= 2000 else [min(e, 3) for e in sizes]


def values(draw: Draw, shape: list[int], dtype: str | None = None) -> np.ndarray:
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    return rng.integers(0, 100, shape).astype(dtype or draw(st.sampled_from(TYPES)))


def i64(values: list[int]) -> np.ndarray:
    return np.array(values, "i8").reshape(len(values))


@st.composite
def slices(draw: Draw) -> Case:
    sizes = shape(draw, 1)
    x = values(draw, sizes)
    axes = draw(st.lists(st.sampled_from(range(len(sizes))), unique=True, min_size=1))
    steps = [draw(st.sampled_from([1, 1, 2, 3, -1, -2, -3, 100, -100])) for _ in axes]
    bounds = st.integers(-20, 20)
    # The largest number means the far end, which for a negative step is the start.
    ends = [
        draw(st.one_of(bounds, st.sampled_from([2**63 - 1, 2**31 - 1] if s > 0 else [-(2**63)])))
        for s in steps
    ]
    given = {
        "starts": i64([draw(bounds) for _ in axes]),
        "ends": i64(ends),
        "axes": i64([a - len(sizes) * draw(st.integers(0, 1)) for a in axes]),
        "steps": i64(steps),
    }
    return make("Slice", {"x": x}, given)


@tries(150)
@given(slices(), machines)
def test_slices(case: Case, machine: str | None) -> None:
    agree(case, machine)


@st.composite
def pads(draw: Draw) -> Case:
    sizes = shape(draw, 1)
    mode = draw(st.sampled_from(["constant", "reflect", "edge", "wrap"]))
    x = values(draw, sizes, draw(st.sampled_from(("f4", "f8", "i4", "i8", "u1", "?"))))
    axes = draw(st.lists(st.sampled_from(range(len(sizes))), unique=True, min_size=1))
    amounts = []
    for a in axes * 2:
        n = sizes[a]
        most = {"constant": 4, "reflect": max(0, n - 1), "edge": 4, "wrap": n}[mode]
        least = -(n // 2)
        amounts.append(draw(st.integers(least, most if n or mode == "constant" else 0)))
    constants = {"pads": i64(amounts)}
    order = ["x", "pads"]
    given = {"x": x}
    if mode == "constant" and draw(st.booleans()):
        target = given if draw(st.booleans()) else constants
        target["value"] = np.array(1 if x.dtype == bool else 7, x.dtype)
        order.append("value")
    if axes != list(range(len(sizes))) or draw(st.booleans()):
        constants["axes"] = i64([a - len(sizes) * draw(st.integers(0, 1)) for a in axes])
        order += [""] * (3 - len(order)) + ["axes"]
    return make("Pad", given, constants, order=order, mode=mode)


@tries(200)
@given(pads(), machines)
def test_pads(case: Case, machine: str | None) -> None:
    agree(case, machine)


@st.composite
def joins(draw: Draw) -> Case:
    sizes = shape(draw, 1)
    axis = draw(st.integers(0, len(sizes) - 1))
    dtype = draw(st.sampled_from(TYPES))
    given = {}
    for i in range(draw(st.integers(1, 4))):
        own = [draw(extents) if a == axis else e for a, e in enumerate(sizes)]
        given[f"x{i}"] = values(draw, own, dtype)
    constants = {}
    if len(given) > 1 and draw(st.booleans()):
        constants = {"x1": given.pop("x1")}
    order = sorted([*given, *constants])
    return make(
        "Concat", given, constants, order=order, axis=axis - draw(st.sampled_from([0, len(sizes)]))
    )


@tries(100)
@given(joins(), machines)
def test_joins(case: Case, machine: str | None) -> None:
    agree(case, machine)


@st.composite
def splits(draw: Draw) -> Case:
    sizes = shape(draw, 1)
    axis = draw(st.integers(0, len(sizes) - 1))
    n = sizes[axis]
    x = values(draw, sizes)
    count = draw(st.integers(1, 4))
    outputs = [f"y{i}" for i in range(count)]
    if draw(st.booleans()):
        cuts = sorted(draw(st.integers(0, n)) for _ in range(count - 1))
        parts = [b - a for a, b in zip([0, *cuts], [*cuts, n], strict=True)]
        return make("Split", {"x": x}, {"split": i64(parts)}, outputs=outputs, axis=axis)
    return make("Split", {"x": x}, outputs=outputs, axis=axis, num_outputs=count)


@tries(80)
@given(splits(), machines)
def test_splits(case: Case, machine: str | None) -> None:
    agree(case, machine)


@st.composite
def reshapes(draw: Draw) -> Case:
    sizes = shape(draw)
    x = values(draw, sizes)
    factors = list(sizes)
    target: list[int] = []
    for e in factors:
        divisor = draw(st.sampled_from([d for d in range(1, e + 1) if e % d == 0] or [1]))
        target += [divisor, e // divisor] if draw(st.booleans()) and e else [e]
    target = draw(st.permutations(target)) if prod(sizes) else target
    if target and prod(sizes) and draw(st.booleans()):
        target = [*target]
        target[draw(st.integers(0, len(target) - 1))] = -1
    elif sizes and prod(sizes) and draw(st.booleans()) and target[:1] == sizes[:1]:
        target = [0, *target[1:]]
    allowzero = 0 if -1 in target or (0 in target and prod(sizes)) else draw(st.integers(0, 1))
    return make("Reshape", {"x": x}, {"shape": i64(list(target))}, allowzero=allowzero)


@tries(100)
@given(reshapes(), machines)
def test_reshapes(case: Case, machine: str | None) -> None:
    agree(case, machine)


@st.composite
def repeats(draw: Draw) -> Case:
    sizes = shape(draw, 1)
    if draw(st.booleans()):
        times = [draw(st.integers(0, 3)) for _ in sizes]
        return make("Tile", {"x": values(draw, sizes)}, {"repeats": i64(times)})
    lead = [draw(extents) for _ in range(draw(st.integers(0, 2)))]
    target = [draw(st.sampled_from([e, 1])) if e != 1 else draw(extents) for e in sizes]
    kept = draw(st.integers(0, len(target)))
    target = [*lead, *target] if lead else target[kept:]
    return make("Expand", {"x": values(draw, sizes)}, {"shape": i64(target)})


@tries(100)
@given(repeats(), machines)
def test_repeats(case: Case, machine: str | None) -> None:
    agree(case, machine)


@st.composite
def transposes(draw: Draw) -> Case:
    sizes = shape(draw, 1)
    order = draw(st.permutations(range(len(sizes))))
    return make("Transpose", {"x": values(draw, sizes)}, perm=list(order))


@tries(40)
@given(transposes(), machines)
def test_transposes(case: Case, machine: str | None) -> None:
    agree(case, machine)


@st.composite
def gathers(draw: Draw) -> Case:
    sizes = [e or 2 for e in shape(draw, 1, 3)]
    axis = draw(st.integers(0, len(sizes) - 1))
    x = values(draw, sizes)
    n = sizes[axis]
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    dtype = draw(st.sampled_from(["i8", "i4"]))
    op = draw(st.sampled_from(["Gather", "GatherElements", "GatherND"]))
    attributes: dict[str, object] = {}
    if op == "Gather":
        at = rng.integers(-n, n, shape(draw, 0, 2)).astype(dtype)
        attributes["axis"] = axis
    elif op == "GatherElements":
        own = [draw(extents) if a == axis else draw(st.integers(0, e)) for a, e in enumerate(sizes)]
        at = rng.integers(-n, n, own).astype(dtype)
        attributes["axis"] = axis - draw(st.sampled_from([0, len(sizes)]))
    else:
        batch = draw(st.integers(0, len(sizes) - 1))
        depth = draw(st.integers(1, len(sizes) - batch))
        own = [*sizes[:batch], *shape(draw, 0 if batch else 1, 2)]
        chosen = sizes[batch : batch + depth]
        at = np.stack([rng.integers(-e, e, own) for e in chosen], axis=-1)
        attributes["batch_dims"] = batch
    if draw(st.booleans()):
        return make(op, {"x": x}, {"at": at}, **attributes)
    return make(op, {"x": x, "at": at}, **attributes)


@tries(200)
@given(gathers(), machines)
def test_gathers(case: Case, machine: str | None) -> None:
    agree(case, machine)


@st.composite
def scatters(draw: Draw) -> Case:
    sizes = [e or 2 for e in shape(draw, 1, 3)]
    axis = draw(st.integers(0, len(sizes) - 1))
    n = sizes[axis]
    dtype = draw(st.sampled_from(("f4", "i8", "i4", "f8")))
    x = values(draw, sizes, dtype)
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    how = draw(st.sampled_from(["none", "add", "mul", "max", "min"]))
    if draw(st.booleans()):
        own = [
            draw(st.integers(1, 9 if how != "none" else e))
            if a == axis
            else draw(st.integers(1, e))
            for a, e in enumerate(sizes)
        ]
        at = rng.integers(-n, n, own)
        if how == "none":
            at = np.argsort(rng.random([e if a != axis else n for a, e in enumerate(own)]), axis)
            at = at.take(range(own[axis]), axis) - n * rng.integers(0, 2)
        given = {"x": x, "at": at, "u": values(draw, own, dtype) % 4}
        return make("ScatterElements", given, axis=axis, reduction=how)
    depth = draw(st.integers(1, len(sizes)))
    count = draw(st.integers(1, 5 if how != "none" else 1))
    at = np.stack([rng.integers(-e, e, (count,)) for e in sizes[:depth]], axis=-1)
    given = {"x": x, "at": at, "u": values(draw, [count, *sizes[depth:]], dtype) % 4}
    return make("ScatterND", given, reduction=how)


@tries(120)
@given(scatters(), machines)
def test_scatters(case: Case, machine: str | None) -> None:
    agree(case, machine)


@st.composite
def blocks(draw: Draw) -> Case:
    size = draw(st.integers(1, 3))
    mode = draw(st.sampled_from(["DCR", "CRD"]))
    n, c, h, w = draw(st.integers(1, 2)), *(draw(st.integers(1, 3)) for _ in range(3))
    if draw(st.booleans()):
        x = values(draw, [n, c * size * size, h, w], draw(st.sampled_from(("f4", "f8"))))
        return make("DepthToSpace", {"x": x}, blocksize=size, mode=mode)
    x = values(draw, [n, c, h * size, w * size], "f4")
    if draw(st.booleans()):
        return make("SpaceToDepth", {"x": x}, blocksize=size)
    return make("SpaceToDepth", {"x": x}, opset=28, blocksize=size, mode=mode)


@tries(60)
@given(blocks(), machines)
def test_blocks(case: Case, machine: str | None) -> None:
    agree(case, machine)


@st.composite
def reversals(draw: Draw) -> Case:
    sizes = [e or 2 for e in shape(draw, 2, 4)]
    time = draw(st.integers(0, 1))
    lengths = [draw(st.integers(1, sizes[time])) for _ in range(sizes[1 - time])]
    given = {"x": values(draw, sizes, "f4"), "lengths": i64(lengths)}
    return make("ReverseSequence", given, time_axis=time, batch_axis=1 - time)


@tries(40)
@given(reversals(), machines)
def test_reversals(case: Case, machine: str | None) -> None:
    agree(case, machine)


@st.composite
def crops(draw: Draw) -> Case:
    sizes = [e or 2 for e in shape(draw, 1)]
    axes = draw(st.lists(st.sampled_from(range(len(sizes))), unique=True, min_size=1))
    target = [draw(st.integers(1, 8)) for _ in axes]
    if draw(st.booleans()):
        axes = [a - len(sizes) for a in axes]
    wanted = np.array(target, draw(st.sampled_from(("i4", "i8"))))
    data = {"x": values(draw, sizes)}
    return make("CenterCropPad", data, {"shape": wanted}, reference=True, axes=axes)


@tries(60)
@given(crops(), machines)
def test_crops(case: Case, machine: str | None) -> None:
    agree(case, machine)


@st.composite
def prefixes(draw: Draw) -> Case:
    sizes = [e if e != 13 else 70 for e in shape(draw, 1, 3)]
    axis = draw(st.integers(-len(sizes), len(sizes) - 1))
    flags = {"exclusive": draw(st.integers(0, 1)), "reverse": draw(st.integers(0, 1))}
    x = values(draw, sizes, draw(st.sampled_from(("f4", "f8", "i4", "i8"))))
    if draw(st.booleans()):
        return make("CumSum", {"x": x}, {"axis": np.array(axis, "i8")}, **flags)
    x = (x % 3 + 1).astype(x.dtype) if x.dtype.kind == "i" else (x / 50).astype(x.dtype)
    return make(
        "CumProd", {"x": x}, {"axis": np.array(axis, "i8")}, opset=26, reference=True, **flags
    )


@tries(80)
@given(prefixes(), machines)
def test_prefixes(case: Case, machine: str | None) -> None:
    agree(case, machine, reduction=70)


@st.composite
def matrices(draw: Draw) -> Case:
    n = draw(st.integers(1, 7))
    sizes = [draw(st.integers(0, 3)) for _ in range(draw(st.integers(0, 2)))]
    x = values(draw, [*sizes, n, n], draw(st.sampled_from(("f4", "f8"))))
    if draw(st.booleans()) and n > 1:
        x[..., 0, :] = x[..., 1, :]
    return make("Det", {"x": x / 50})


@tries(50)
@given(matrices(), machines)
def test_determinants(case: Case, machine: str | None) -> None:
    agree(case, machine, reduction=1000, size=1.0)
