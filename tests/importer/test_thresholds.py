"""Features of f64 beside thresholds of f32: compared as f32, and told apart as exactly."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import rutc
from rutc.importer import import_model
from rutc.importer.ops.sieves import SHORT, SieveTables
from rutc.importer.ops.thresholds import passes
from rutc.runtime import load
from rutc.tensor_ir.graph import Const, Graph
from rutc.tensor_ir.interpreter.interpret import interpret

TINY, LARGEST = (float(x) for x in (np.finfo(np.float32).tiny, np.finfo(np.float32).max))
THRESHOLDS = (0.0, -0.0, TINY, -TINY, 1.0, -1.0, 3e-30, LARGEST, -LARGEST, np.inf, -np.inf)
COMPARE = {
    "BRANCH_LEQ": np.less_equal,
    "BRANCH_LT": np.less,
    "BRANCH_GTE": np.greater_equal,
    "BRANCH_GT": np.greater,
    "BRANCH_EQ": np.equal,
    "BRANCH_NEQ": np.not_equal,
}


def edges() -> np.ndarray:
    """Numbers beside thresholds, halfway to the next ones of f32, tiny and huge ones, and NaN."""
    limits = np.array(THRESHOLDS, np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        beside = [np.nextafter(limits, np.float32(to)) for to in (-np.inf, np.inf)]
        singles = [x.astype(np.float64) for x in (limits, *beside)]
        halfway = [(singles[0] + x) / 2 for x in singles[1:]]
    known = [x[np.isfinite(x)] for x in (*singles, *halfway)]
    around = [np.nextafter(x, to) for x in known for to in (-np.inf, np.inf)]
    some = [1e-300, 1e-60, 1e-45, 1e-39, 1e39, 1e300, np.inf, np.nan, 0.1, 1 + 1e-12]
    found = np.concatenate((*known, *around, some, np.negative(some)))
    # Of f64, too, subnormal numbers may count as zeros.
    return np.where((found != 0) & (np.abs(found) < np.finfo(np.float64).tiny), 0.0, found)


def stumps(
    path: Path,
    modes: tuple[str, ...],
    thresholds: tuple[float, ...],
    missing: tuple[int, ...] = (0,),
    of: int = TensorProto.DOUBLE,
) -> Path:
    """A model of rows: which of the tests hold, each a tree of its own.

    `missing` says, over and over, which of them hold for NaN.
    """
    count = len(thresholds)
    trees = np.repeat(np.arange(count), 3).tolist()
    node = helper.make_node(
        "TreeEnsembleRegressor",
        ["x"],
        ["y"],
        domain="ai.onnx.ml",
        n_targets=count,
        nodes_treeids=trees,
        nodes_nodeids=[0, 1, 2] * count,
        nodes_featureids=[0] * (3 * count),
        nodes_modes=[m for i in range(count) for m in (modes[i % len(modes)], "LEAF", "LEAF")],
        nodes_missing_value_tracks_true=[
            m for i in range(count) for m in (missing[i % len(missing)], 0, 0)
        ],
        nodes_values=[v for t in thresholds for v in (t, 0.0, 0.0)],
        nodes_truenodeids=[1, 0, 0] * count,
        nodes_falsenodeids=[2, 0, 0] * count,
        target_treeids=list(range(count)),
        target_nodeids=[1] * count,
        target_ids=list(range(count)),
        target_weights=[1.0] * count,
    )
    x = helper.make_tensor_value_info("x", of, [None, 1])
    graph = helper.make_graph([node], "stumps", [x], [onnx.ValueInfoProto(name="y")])
    opsets = [helper.make_opsetid("", 19), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


def held(modes: tuple[str, ...], thresholds: tuple[float, ...], x: np.ndarray) -> np.ndarray:
    """Which tests hold, {n, threshold}, in f64."""
    limits = np.array(thresholds, np.float32).astype(np.float64)
    tests = [COMPARE[modes[i % len(modes)]](x, limit) for i, limit in enumerate(limits)]
    return np.stack(tests, axis=1).astype(np.float32)


def widens_thresholds(graph: Graph) -> bool:
    """Whether thresholds are compared as f64."""
    text = str(graph)
    constants = [n.out.name for n in graph.nodes if isinstance(n, Const)]
    return any(f"f64(%{name}[" in text for name in constants)


SINGLE = [("BRANCH_LEQ",), ("BRANCH_GT", "BRANCH_LEQ"), ("BRANCH_LT",), ("BRANCH_GTE", "BRANCH_LT")]


SUBNORMAL = (1.0, 1e-40)


@pytest.mark.parametrize(
    ("modes", "thresholds", "narrow"),
    [
        *((modes, THRESHOLDS, True) for modes in SINGLE),
        (("BRANCH_EQ",), THRESHOLDS, False),
        (("BRANCH_NEQ", "BRANCH_LEQ"), THRESHOLDS, False),
        (("BRANCH_LT", "BRANCH_LEQ"), THRESHOLDS, False),
        (("BRANCH_LEQ",), SUBNORMAL, False),
    ],
)
def test_tests_of_doubles_hold_as_in_f64(
    modes: tuple[str, ...], thresholds: tuple[float, ...], narrow: bool, tmp_path: Path
) -> None:
    graph = import_model(stumps(tmp_path / "m.onnx", modes, thresholds))
    assert widens_thresholds(graph) is not narrow
    x = edges()
    (found,) = interpret(graph, {"x": x[:, None]}).values()
    np.testing.assert_array_equal(found, held(modes, thresholds, x))


@pytest.mark.parametrize("modes", SINGLE)
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("target", ["native", "x86-64-v3"])
def test_libraries_tell_doubles_apart(
    modes: tuple[str, ...], keep: bool, target: str, tmp_path: Path
) -> None:
    """Subnormal numbers count as zeros or not: both tell numbers beside the thresholds apart."""
    path = stumps(tmp_path / "m.onnx", modes, THRESHOLDS)
    library = tmp_path / "m.so"
    rutc.compile(path, library, verify=False, db="none", keep_subnormals=keep, target=target)
    x = edges()
    with load(library, threads=1) as session:
        (found,) = session.run(None, {"x": x[:, None]})
    np.testing.assert_array_equal(found, held(modes, THRESHOLDS, x))


TRACKED = (0.0, 1.0, -1.0, 3e-30, -0.0, LARGEST)


@pytest.mark.parametrize("thresholds", [TRACKED, (*TRACKED, np.inf, -np.inf), (*TRACKED, np.nan)])
@pytest.mark.parametrize("modes", [*((mode,) for mode in COMPARE), tuple(COMPARE)])
@pytest.mark.parametrize("of", [np.float32, np.float64])
def test_nan_passes_the_tests_that_it_does(
    modes: tuple[str, ...], thresholds: tuple[float, ...], of: type, tmp_path: Path
) -> None:
    """The tests of each mode, some of which NaN passes and some not, in one tree each."""
    thresholds = tuple(np.repeat(thresholds, 2 * len(modes)).tolist())
    missing = (1,) * len(modes) + (0,) * len(modes)
    dtype = helper.np_dtype_to_tensor_dtype(np.dtype(of))
    path, library = (
        stumps(tmp_path / "m.onnx", modes, thresholds, missing, dtype),
        tmp_path / "m.so",
    )
    x = np.array([np.nan, -np.nan, 0.0, -0.0, 1.0, -1.0, 2.0, np.inf, -np.inf, LARGEST], of)
    tracks = np.resize(np.array(missing, bool), len(thresholds))
    wanted = np.maximum(held(modes, thresholds, x), np.isnan(x)[:, None] & tracks)
    (found,) = interpret(import_model(path), {"x": x[:, None]}).values()
    np.testing.assert_array_equal(found, wanted)
    for target in ("native", "x86-64-v3"):
        rutc.compile(path, library, verify=False, db="none", target=target)
        with load(library, threads=1) as session:
            (found,) = session.run(None, {"x": x[:, None]})
        np.testing.assert_array_equal(found, wanted)


def test_numbers_pass_instead_of_nan() -> None:
    """No truth value of NaN is part of a sieve where every test has a number that passes it."""
    modes = np.arange(6)
    tests = SieveTables(
        np.zeros((1, 6), np.int64),
        np.array([[1, 2, 3, 4, 5, 0]], np.float32),
        modes[None],
        np.array([[True] * 6]),
        np.zeros((1, 6), np.uint32),
        SHORT,
    )
    instead = passes(tests)
    assert instead is not None
    np.testing.assert_array_equal(instead, [[1, -np.inf, 3, np.inf, 5, 1]])
    some = passes(replace(tests, missing=np.array([[True, False] * 3])))
    assert some is not None
    np.testing.assert_array_equal(some, [[1, np.nan, 3, np.nan, 5, np.nan]])
    assert passes(replace(tests, threshold=np.full((1, 6), -np.inf, np.float32))) is None
