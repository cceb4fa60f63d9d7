"""`--precision int8` of models that have no sums for 8 bits: nothing is tried, and it says why."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from rutc.driver.options import Calibration
from rutc.driver.precision import eight_bits
from rutc.driver.precision.eight_bits import in_eight_bits
from rutc.importer import import_model
from tests.cli.conftest import invoke
from tests.graph_opt.networks import Net
from tests.machines import NATIVE

SAID = "no sums of products in 8 bits: the model has none of f32 values and constants"


def product(path: Path, kind: type[np.floating]) -> Path:
    """A row multiplied by a constant of its type, which then is converted where it is read."""
    random = np.random.default_rng(3)
    weights = numpy_helper.from_array(random.standard_normal((256, 512)).astype(kind), "w")
    info = helper.make_tensor_value_info
    x, y = (info(n, weights.data_type, (1, e)) for n, e in (("x", 256), ("y", 512)))
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    graph = helper.make_graph(nodes, "product", [x], [y], [weights])
    opsets = [helper.make_opsetid("", 21)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


@pytest.mark.parametrize(
    ("kind", "said"),
    [(np.float16, f"{SAID}, but of f16\n"), (np.float64, f"{SAID}, but of f64\n"), (None, SAID)],
)
def test_nothing_is_calibrated_or_estimated(
    kind: type[np.floating] | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tried(*parts: object, **named: object) -> None:
        raise AssertionError("there is nothing to choose from")

    monkeypatch.setattr(eight_bits, "spans", tried)
    monkeypatch.setattr(eight_bits, "estimate_plan", tried)
    if kind is None:
        n = Net()
        path = n.save(tmp_path / "m.onnx", n("Relu", n.input(8, 64)))
    else:
        path = product(tmp_path / "m.onnx", kind)
    options = ("--precision", "int8", "--no-verify", "-o", tmp_path / "m.so")
    done = invoke("compile", path, *options)
    assert done.status == 0, done.stderr
    assert said in done.stdout


def test_what_is_left_is_rounded_as_where_sums_were_chosen_from(tmp_path: Path) -> None:
    """No sums of 8 bits, factors of all others in bf16 where that is faster."""
    path = product(tmp_path / "m.onnx", np.float64)
    found = in_eight_bits(import_model(path), NATIVE, Calibration())
    assert (found.sums, found.chosen, found.choice.only) == (0, (), None)
    assert found.graph == import_model(path)
