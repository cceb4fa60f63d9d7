"""Group normalisation of images of any size: its reshapes leave no division by a size behind."""

from pathlib import Path

import numpy as np
from onnx import helper

from rutc.graph_opt import optimize
from rutc.graph_opt.decide import decide
from rutc.graph_opt.exprs import indices
from rutc.importer import import_model
from rutc.tensor_ir import Graph, Index, Nest
from rutc.tensor_ir.indices.affine import FloorDiv, Mod
from rutc.tensor_ir.machine import Machine
from rutc.verify.judging.tolerance import Level
from tests.close import assert_close
from tests.compiled import build, run
from tests.machines import on_native_and_v3
from tests.onnx_files import write_model

GROUPS, CHANNELS = 4, 12
RNG = np.random.default_rng(0)
SCALE, SHIFT = RNG.random((2, CHANNELS, 1, 1), np.float32)


def model(folder: Path) -> Graph:
    """As exporters write it: an instance normalisation of rows that are groups of channels."""
    nodes = [
        helper.make_node("Reshape", ["x", "rows"], ["r"]),
        helper.make_node("InstanceNormalization", ["r", "ones", "zeros"], ["n"]),
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Reshape", ["n", "shape"], ["m"]),
        helper.make_node("Mul", ["m", "scale"], ["s"]),
        helper.make_node("Add", ["s", "shift"], ["y"]),
    ]
    constants = {
        "rows": np.array([0, GROUPS, -1]),
        "ones": np.ones(GROUPS, np.float32),
        "zeros": np.zeros(GROUPS, np.float32),
        "scale": SCALE,
        "shift": SHIFT,
    }
    shape = ["b", CHANNELS, "h", "w"]
    path = folder / "groups.onnx"
    return import_model(write_model(path, nodes, {"x": shape}, {"y": shape}, constants, opset=17))


def normalised(x: np.ndarray) -> np.ndarray:
    rows = x.astype(np.float64).reshape(len(x), GROUPS, -1)
    if rows.size == 0:
        return x
    centred = rows - rows.mean(axis=2, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(axis=2, keepdims=True) + 1e-5)
    return np.asarray(scaled.reshape(x.shape) * SCALE + SHIFT)


def test_no_coordinate_is_divided_by_a_size(tmp_path: Path) -> None:
    graph = optimize(model(tmp_path))
    coordinates = [
        i for n in graph.nodes if isinstance(n, Nest) for e in n.body for i in indices(e)
    ]
    dims = graph.extents.keys()
    divided = {a for i in coordinates for mono, _ in i.terms for a in mono}
    found = [a for a in divided if isinstance(a, FloorDiv | Mod) and a.num.names() & dims]
    assert {a.den for a in found} == {Index.of(CHANNELS // GROUPS)}


@on_native_and_v3
def test_groups_of_images_of_any_size(machine: Machine, tmp_path: Path) -> None:
    library = build(decide(optimize(model(tmp_path)), machine), machine, tmp_path)
    rng = np.random.default_rng(1)
    for b, h, w in (
        (1, 1, 1),
        (2, 1, 3),
        (1, 7, 11),
        (3, 13, 2),
        (1, 64, 33),
        (1, 0, 3),
        (2, 5, 0),
    ):
        x = rng.standard_normal((b, CHANNELS, h, w)).astype(np.float32)
        for threads in (1, 2):
            got = run(library, {"x": x}, threads)["y"]
            assert_close(got, normalised(x), level=Level.MODEL)
