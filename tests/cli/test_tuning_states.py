"""Models whose sessions keep states are tuned and explained as they are compiled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from rutc.driver.options import Options
from rutc.driver.plans.planning import imported, planned
from rutc.driver.timing.model_bench import Planned
from rutc.driver.tuning.tuning_records import known_of, origin_of
from rutc.graph_opt import versions
from rutc.tuner.database.database import Database
from tests.cli.conftest import Rutc
from tests.cli.records import MACHINE

HOW = ("--state", "past=present", "--dim", "past=0..64", "--dim", "new=1..4")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that appends to its state and multiplies all of it, often too long for another run.

    y = tanh(concat(past, x) w)
    """
    weight = np.random.default_rng(0).standard_normal((64, 256)).astype(np.float32) / 8
    nodes = [
        helper.make_node("Concat", ["past", "x"], ["present"], name="append", axis=1),
        helper.make_node("MatMul", ["present", "w"], ["h"], name="product"),
        helper.make_node("Tanh", ["h"], ["y"], name="curve"),
    ]
    given = {"x": [1, "new", 64], "past": [1, "past", 64]}
    made = {"y": [1, "all", 256], "present": [1, "all", 64]}
    graph = helper.make_graph(
        nodes,
        "cache",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in given.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in made.items()],
        [numpy_helper.from_array(weight, "w")],
    )
    path = tmp_path_factory.mktemp("states") / "cache.onnx"
    opsets = [helper.make_opsetid("", 13)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


def test_states_are_what_they_are_told_in_every_run(
    rutc: Rutc, cache: Path, tmp_path: Path
) -> None:
    db = tmp_path / "records.sqlite"
    # Two runs in a row have no room for what both append.
    sizes = ("--size", "past=60", "--size", "new=4")
    found = rutc("tune", cache, *HOW, *sizes, "--seeds", "--trials", 12, "--db", db, "--json")
    assert found.status == 0, found.stderr
    kernels = found.json["kernels"]
    assert isinstance(kernels, list)
    assert any(k["trials"] > 1 for k in kernels)
    dims: dict[str, int | tuple[int, ...] | str] = {"past": (0, 64), "new": (1, 4)}
    options = Options(dims=dims, states={"past": "present"})
    graph = imported(cache, options)
    own = Planned(
        *planned(versions(graph, MACHINE), MACHINE), MACHINE, {"past": 60, "new": 4}
    ).timed()
    with Database.open(db) as database:
        known = [known_of(s, origin_of(MACHINE), database, at) for s, at in own.items()]
        # The kernels of a compilation with the same states are those that were tuned.
        assert any(len(k) > 1 for k in known)
    compiled = rutc("compile", cache, *HOW, "--db", db, "-o", tmp_path / "cache.so")
    assert compiled.status == 0, compiled.stderr
    assert "verified" in compiled.stdout
    explained = rutc("explain", cache, "product", *HOW, "--db", db)
    assert explained.status == 0, explained.stderr
    assert "tried on" in explained.stdout
