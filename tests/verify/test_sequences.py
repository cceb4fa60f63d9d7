"""Models that take or give sequences and optionals whose structure the run tells."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import GraphProto, helper, numpy_helper

from rutc.driver.api import compile, verify
from rutc.importer import import_model
from rutc.runtime import load
from rutc.verify import Verification
from rutc.verify.feeding.input_values import check_sources
from rutc.verify.feeding.ports import input_specs, ports_of
from rutc.verify.feeding.session_values import session_values
from tests.run_time_structure.models import (
    BOOL,
    PAIRS,
    floats,
    graph,
    ints,
    node,
    optional,
    rows,
    sequence,
)

SOME = optional(floats("k"))
ELEMENT = node("OptionalGetElement", ["o"], ["a"])


def _joined(op: str = "Tanh") -> GraphProto:
    nodes = [
        node("ConcatFromSequence", ["s"], ["all"], axis=0, name="join"),
        node(op, ["all"], ["y"], name="squash"),
        node("SequenceLength", ["s"], ["n"]),
    ]
    return graph(nodes, {"s": PAIRS}, {"y": floats(None, 2), "n": ints()})


def _perhaps(op: str = "Tanh") -> GraphProto:
    then = graph([ELEMENT, node(op, ["a"], ["b"])], {}, {"b": floats("k")})
    orelse = graph([node("Neg", ["x"], ["c"])], {}, {"c": floats("k")})
    nodes = [
        node("OptionalHasElement", ["o"], ["has"]),
        node("If", ["has"], ["y"], then_branch=then, else_branch=orelse),
    ]
    return graph(nodes, {"o": SOME, "x": floats("k")}, {"has": BOOL, "y": floats("k")})


def _cut(op: str = "Tanh") -> GraphProto:
    nodes = [node(op, ["x"], ["h"]), node("SplitToSequence", ["h"], ["y"])]
    return graph(nodes, {"x": floats("n", 2)}, {"y": PAIRS})


def _scalars(op: str = "Tanh") -> GraphProto:
    nodes = [node(op, ["x"], ["h"]), node("SplitToSequence", ["h"], ["y"], keepdims=0)]
    return graph(nodes, {"x": floats("n")}, {"y": sequence(floats())})


def _given_back(op: str = "Tanh") -> GraphProto:
    then = graph([node(op, ["x"], ["h"]), node("Optional", ["h"], ["a"])], {}, {"a": SOME})
    orelse = graph([node("Optional", [], ["b"], type=floats("k"))], {}, {"b": SOME})
    nodes = [node("If", ["c"], ["p"], then_branch=then, else_branch=orelse)]
    return graph(nodes, {"c": BOOL, "x": floats("k")}, {"p": SOME})


def _longer(op: str = "Tanh") -> GraphProto:
    nodes = [node(op, ["x"], ["h"]), node("SequenceInsert", ["s", "h"], ["t"])]
    return graph(nodes, {"s": PAIRS, "x": floats("n", 2)}, {"t": PAIRS})


KINDS = {
    "a sequence taken": _joined,
    "an optional taken": _perhaps,
    "a sequence given": _cut,
    "scalars in a sequence": _scalars,
    "an optional given": _given_back,
    "a sequence taken and given": _longer,
}


def _save(path: Path, inner: GraphProto) -> Path:
    model = helper.make_model(inner, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    onnx.save(model, path)
    return path


def _told_by_truth(found: Verification | None) -> None:
    assert found is not None
    assert found.passed
    assert found.with_truth == found.runs > 1
    assert found.unverified == ()
    assert {o.judged.partition(" ")[0] for o in found.outputs} == {"float64"}


@pytest.mark.parametrize("kind", KINDS)
def test_values_whose_structure_the_run_tells_are_verified(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUTC_CACHE", str(tmp_path / "cache"))
    path = _save(tmp_path / "m.onnx", KINDS[kind]())
    library = path.with_suffix(".so")
    first, again = (compile(path, library) for _ in range(2))
    assert set(again.report.seconds) == {"cache"}
    _told_by_truth(first.verification)
    _told_by_truth(again.verification)
    _told_by_truth(verify(path, library))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_wrong_in_them_is_found(kind: str, tmp_path: Path) -> None:
    path = _save(tmp_path / "m.onnx", KINDS[kind]())
    other = _save(tmp_path / "other.onnx", KINDS[kind]("Sigmoid"))
    compile(other, path.with_suffix(".so"), verify=False)
    found = verify(path, path.with_suffix(".so"))
    assert [o.name.partition("[")[0] for o in found.outputs if not o.passed]


@pytest.mark.parametrize(
    ("kind", "dims"),
    [
        ("an optional taken", {"o?": 0}),
        ("an optional taken", {"o?": 1}),
        ("a sequence taken", {"s": 2}),
        ("a sequence taken and given", {"s": 0}),
    ],
)
def test_numbers_of_elements_may_be_fixed(kind: str, dims: dict[str, int], tmp_path: Path) -> None:
    path = _save(tmp_path / "m.onnx", KINDS[kind]())
    _told_by_truth(compile(path, path.with_suffix(".so"), dims=dims).verification)
    _told_by_truth(verify(path, path.with_suffix(".so")))


def test_recorded_sequences_are_verified(tmp_path: Path) -> None:
    path = _save(tmp_path / "m.onnx", _joined())
    compile(path, path.with_suffix(".so"), verify=False)
    for number, lengths in enumerate([(3, 1), (2,), (1, 4, 2)]):
        folder = tmp_path / "data" / f"test_data_set_{number}"
        folder.mkdir(parents=True)
        stored = numpy_helper.from_list([rows(n, 2) for n in lengths], "s")
        (folder / "input_0.pb").write_bytes(stored.SerializeToString())
    found = verify(path, path.with_suffix(".so"), data=tmp_path / "data")
    assert (found.runs, found.with_truth, found.skipped) == (3, 3, ())
    assert found.passed


def test_a_sequence_may_have_a_seed_of_its_own(tmp_path: Path) -> None:
    path = _save(tmp_path / "m.onnx", _longer())
    dims = {"n": (16, 512, 8), "s": (3, 40)}
    compile(path, path.with_suffix(".so"), dims=dims, verify=False)
    check_sources(input_specs(ports_of(import_model(path, dims=dims))), ["s=random:3"])
    with load(path.with_suffix(".so")) as session:
        values = session_values(session, ["s=random:3", "x=random:4"])
        others = session_values(session, ["s=random:4"])
        longer = session.run(None, values)[0]
    assert len(values["s"]) == 20
    assert len(longer) == 21
    assert not np.array_equal(values["s"][0], others["s"][0])
    found = verify(path, path.with_suffix(".so"), inputs=["s=random:3"])
    assert found.passed
    assert found.with_truth == 1


def test_the_elements_of_an_optional_sequence_are_told(tmp_path: Path) -> None:
    """Whether there is one is fixed, how many elements it has is not."""
    held = optional(PAIRS)
    nodes = [node("OptionalGetElement", ["o"], ["s"]), node("SequenceLength", ["s"], ["n"])]
    path = _save(tmp_path / "m.onnx", graph(nodes, {"o": held}, {"n": ints()}))
    ports = ports_of(import_model(path, dims={"o?": 1}))
    assert [(p.name, p.type, p.shape) for p in ports.get_ports()] == [
        ("o", "seq(tensor(float))", ["o", "o.0", 2])
    ]


def test_an_optional_is_verified_with_its_element_and_without(tmp_path: Path) -> None:
    path = _save(tmp_path / "m.onnx", _perhaps())
    other = _perhaps()
    orelse = helper.get_attribute_value(other.node[1].attribute[0])
    orelse.node[0].op_type = "Exp"
    compile(_save(tmp_path / "other.onnx", other), path.with_suffix(".so"), verify=False)
    found = verify(path, path.with_suffix(".so"))
    assert [o.name for o in found.outputs if not o.passed] == ["y"]
    assert found.values["o"] is None
