"""Sizes that the user tells to be formulas of others."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import rutc
from rutc.driver.api import compile
from rutc.errors import UserError
from rutc.importer import import_model
from rutc.importer.free_sizes.relations import relations
from rutc.report.arguments import parse_dims
from rutc.runtime import ModelError
from rutc.tensor_ir.indices.affine import Index
from rutc.verify.feeding.session_values import session_values
from tests.onnx_files import write_model


@pytest.fixture
def decoder(tmp_path: Path) -> Path:
    """The elements of mask{batch, total} at the places past .. past + seq - 1 of each row.

    past is that of a cache{batch, past, 2}, seq that of ids{batch, seq}.
    """
    nodes = [
        helper.make_node("Shape", ["cache"], ["past"], start=1, end=2),
        helper.make_node("Shape", ["ids"], ["seq"], start=1, end=2),
        helper.make_node("Add", ["past", "seq"], ["end"]),
        helper.make_node("Squeeze", ["past"], ["from"]),
        helper.make_node("Squeeze", ["end"], ["to"]),
        helper.make_node("Range", ["from", "to", "one"], ["places"]),
        helper.make_node("Gather", ["mask", "places"], ["seen"], axis=1),
        helper.make_node("Mul", ["seen", "ids"], ["y"]),
    ]
    shapes = {"ids": ["batch", "seq"], "mask": ["batch", "total"], "cache": ["batch", "past", 2]}
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
    one = numpy_helper.from_array(np.array(1), "one")
    graph = helper.make_graph(nodes, "g", ports, [onnx.ValueInfoProto(name="y")], [one])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, tmp_path / "decoder.onnx")
    return tmp_path / "decoder.onnx"


@pytest.mark.parametrize("told", ["total=past+seq", "past=total-seq", "seq = total - past"])
def test_a_size_follows_others(decoder: Path, tmp_path: Path, told: str) -> None:
    spelled = parse_dims([told.replace(" = ", "=")])
    made = compile(decoder, tmp_path / "d.so", dims={**spelled, "batch": (1, 4)})
    assert made.verification is not None
    assert made.verification.passed
    with rutc.load(made.library) as session:
        shapes = {port.name: port.shape for port in session.get_inputs()}
        assert shapes["mask"] == ["batch", "past + seq"]
        values = session_values(session, (), dims={"past": 3, "seq": 2})
        mask, ids = values["mask"], values["ids"]
        assert isinstance(mask, np.ndarray)
        assert mask.shape == (1, 5)
        (y,) = session.run(None, values)
        assert np.array_equal(y, mask[:, 3:] * ids)
        with pytest.raises(ModelError, match="mask"):
            session.run(None, {**values, "mask": np.ones((1, 4), np.float32)})


def test_ranges_and_numbers_of_the_parts_hold(decoder: Path) -> None:
    graph = import_model(decoder, dims={"total": "past + seq", "past": (0, 9), "seq": 1})
    assert dict(graph.symbols)["past"] == (0, 9)
    mask = next(i for i in graph.inputs if i.name == "mask")
    assert graph.extents[mask.axes[1]] == Index.of("past") + 1


def test_a_formula_of_a_formula(decoder: Path) -> None:
    graph = import_model(decoder, dims={"total": "2*past", "past": "seq+1"})
    mask = next(i for i in graph.inputs if i.name == "mask")
    assert graph.extents[mask.axes[1]] == Index.of("seq") * 2 + 2


@pytest.mark.parametrize(
    ("dims", "said"),
    [
        ({"total": "past+more"}, "no input has a size 'more'"),
        ({"all": "past+seq"}, "no input has a size 'all'"),
        ({"total": "past+"}, "write a sum of sizes"),
        ({"total": "past/2"}, "write a sum of sizes"),
        ({"total": "past+seq", "past": "total+1"}, "in a circle: "),
        ({"total": "total"}, "in a circle: total -> total"),
        ({"total": "2*past-seq"}, "may be negative"),
        ({"total": "-1"}, "may be negative"),
        ({"past": "total-seq", "total": 4}, "what 'total' is has been told already"),
        ({"past": "total-seq", "total": "2*seq"}, "what 'total' is has been told already"),
    ],
)
def test_formulas_that_cannot_be(
    decoder: Path, dims: dict[str, int | tuple[int, ...] | str], said: str
) -> None:
    with pytest.raises(UserError) as caught:
        import_model(decoder, dims=dims)
    assert said in str(caught.value)


def test_shapes_agree_with_formulas(decoder: Path) -> None:
    shapes = {"ids": (1, 2), "cache": (1, 3, 2), "mask": (1, 5)}
    dims = {"total": "past+seq", "past": 3, "seq": 2}
    assert not import_model(decoder, shapes=shapes, dims=dims).symbols
    with pytest.raises(UserError, match="is given as 6, and told to be past \\+ seq, which is 5"):
        import_model(decoder, shapes={**shapes, "mask": (1, 6)}, dims=dims)


def test_differences_are_turned_round() -> None:
    known = ["a", "b", "c"]
    assert relations({"a": "b-c"}, known) == {"b": Index.of("a") + Index.of("c")}
    assert relations({"a": "b-1"}, known) == {"b": Index.of("a") + 1}
    assert relations({"a": "b-2*c-3"}, known) == {"b": Index.of("a") + Index.of("c") * 2 + 3}
    assert relations({"a": "b+c+1", "c": 4}, known) == {"a": Index.of("b") + Index.of("c") + 1}


def test_spellings() -> None:
    assert parse_dims(["total=past+seq", "b=2"]) == {"total": "past+seq", "b": 2}
    for item in ("total=1..past", "=past", "total=1+2"):
        with pytest.raises(UserError, match="write NAME=N"):
            parse_dims([item])


@pytest.mark.parametrize("told", [{}, {"batch": 1}])
def test_sizes_that_do_not_belong_together_are_told_what_helps(
    decoder: Path, tmp_path: Path, told: dict[str, int]
) -> None:
    dims = {"past": (5, 9), "seq": (1, 7), "total": (1, 4), **told}
    with pytest.raises(UserError) as caught:
        compile(decoder, tmp_path / "d.so", dims=dims)
    assert "out of data bounds" in str(caught.value)
    assert "--input NAME=FILE" in str(caught.value)
    assert "if one of them is a sum of others, tell compile so: --dim NAME=A+B" in str(caught.value)
    assert not (tmp_path / "d.so").exists()


def _cut(path: Path, *, whole: bool = False) -> Path:
    """seq words plus the mask of total positions, from past on or, as a `whole`, all of it."""
    nodes = [
        helper.make_node("Shape", ["cache"], ["past"], start=0, end=1),
        helper.make_node("Slice", ["mask", "past", "far"], ["rest"]),
        helper.make_node("Add", ["mask" if whole else "rest", "ids"], ["y"]),
        helper.make_node("Identity", ["cache"], ["kept"]),
    ]
    shapes = {"ids": ["seq"], "mask": ["total"], "cache": ["past"]}
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
    far = numpy_helper.from_array(np.array([2**62]), "far")
    made = [onnx.ValueInfoProto(name=n) for n in ("y", "kept")]
    graph = helper.make_graph(nodes, "g", ports, made, [far])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, path)
    return path


def test_what_a_cut_leaves_is_as_long_as_what_is_added(tmp_path: Path) -> None:
    made = compile(_cut(tmp_path / "m.onnx"), tmp_path / "m.so")
    assert made.verification is not None
    assert made.verification.passed
    with rutc.load(made.library) as session:
        shapes = {port.name: port.shape for port in session.get_inputs()}
        assert shapes == {"ids": ["seq"], "mask": ["past + seq"], "cache": ["past"]}
        cache, ids = np.zeros(3, np.float32), np.arange(2, dtype=np.float32)
        mask = np.arange(5, dtype=np.float32)
        y, _ = session.run(None, {"cache": cache, "ids": ids, "mask": mask})
        assert np.array_equal(y, mask[3:] + ids)
        with pytest.raises(ModelError, match="mask"):
            session.run(None, {"cache": cache, "ids": ids, "mask": mask[:4]})


@pytest.mark.parametrize(
    ("whole", "dims"), [(True, {}), (False, {"total": (0, 64)}), (False, {"seq": 1})]
)
def test_other_sizes_than_those_of_a_cut_may_be_one(
    tmp_path: Path, whole: bool, dims: dict[str, int | tuple[int, ...] | str]
) -> None:
    """Those of inputs, whose range the user tells, and a row that is repeated in every run."""
    graph = import_model(_cut(tmp_path / "m.onnx", whole=whole), dims=dims)
    mask = next(i for i in graph.inputs if i.name == "mask")
    assert graph.extents[mask.axes[0]] == Index.of("total")


@pytest.mark.parametrize(
    ("dims", "shape", "said"),
    [
        ({"past": (1, 64)}, (1, 2, 2), "is given as 2, and elsewhere as 1..64"),
        ({"past": (8, 64, 8)}, (1, 2, 2), "is given as 2, and elsewhere as 8..64/8"),
        ({"past": (1, 64, 1, 8)}, (1, 2, 2), "is given as 2, and elsewhere as 1..64@8"),
        ({"past": 3}, (1, 2, 2), "is given as 2, and elsewhere as 3"),
        ({}, (1, 3, 5), "does not fit it: axis 2 is 2 in every run, and 5 is given"),
        ({}, (1, 3), "does not fit it: it has 3 axes, and 2 are given"),
    ],
)
def test_a_shape_that_does_not_fit_says_where(
    decoder: Path, dims: dict[str, int | tuple[int, ...]], shape: tuple[int, ...], said: str
) -> None:
    with pytest.raises(UserError) as caught:
        import_model(decoder, shapes={"cache": shape}, dims=dims)
    assert str(caught.value).endswith(said)


def test_a_shape_of_an_input_of_an_open_size_is_told(tmp_path: Path) -> None:
    """Its axis has neither a name nor a size."""
    write_model(
        tmp_path / "m.onnx", [helper.make_node("Neg", ["x"], ["y"])], {"x": [None]}, {"y": [None]}
    )
    with pytest.raises(UserError, match=r"has the shape \[\?\].* it has 1 axis, and 2 are given"):
        import_model(tmp_path / "m.onnx", shapes={"x": (2, 3)})
