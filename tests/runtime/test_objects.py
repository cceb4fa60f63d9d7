"""Strings and maps of Python that a library reads and makes, in the first run and later ones."""

import ctypes
import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import rutc
from rutc.runtime import InferenceSession, ModelError

STRING, FLOAT, INT64 = TensorProto.STRING, TensorProto.FLOAT, TensorProto.INT64
ODD = ["", "a", "b\0c", "déjà vu", "日本", "\U0001f600", "x" * 1000, "a"]
Session = Callable[..., InferenceSession]


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    """Compiles one node whose inputs have a first axis of any extent, and opens it."""
    opened: list[InferenceSession] = []

    def fn(
        operator: str, inputs: dict[str, tuple[int, list[Any]]], outputs: int = 1, **attributes: Any
    ) -> InferenceSession:
        ml = operator in ("ZipMap", "LabelEncoder")
        names = [f"y{i}" for i in range(outputs)]
        domain = "ai.onnx.ml" if ml else ""
        node = helper.make_node(operator, list(inputs), names, domain=domain, **attributes)
        ports = [helper.make_tensor_value_info(n, k, s) for n, (k, s) in inputs.items()]
        results = [onnx.ValueInfoProto(name=n) for n in names]
        imports = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 3)]
        graph = helper.make_graph([node], "g", ports, results)
        model = helper.make_model(graph, opset_imports=imports, ir_version=9)
        onnx.save(model, tmp_path / "m.onnx")
        rutc.compile(tmp_path / "m.onnx", tmp_path / "m.so", verify=False)
        opened.append(rutc.load(tmp_path / "m.so", threads=1))
        return opened[-1]

    yield fn
    for made in opened:
        made.close()


def joined(session: Session) -> InferenceSession:
    return session("StringConcat", {"p": (STRING, ["n"]), "q": (STRING, ["n"])})


def test_strings_of_all_lengths_come_back(session: Session) -> None:
    model = joined(session)
    for count in (1, 8, 17, 300, 8, 1, 0, 300):
        p = np.array((ODD * 40)[:count], object)
        q = np.array([str(k % 7) for k in range(count)], object)
        for _ in range(3):
            (found,) = model.run(None, {"p": p, "q": q})
            assert found.tolist() == [a + b for a, b in zip(p, q, strict=True)]
        assert model.run(["y0"], {"p": p, "q": q})[0].tolist() == found.tolist()
        room = np.full((2, count), None, object)[0][::-1]
        model.run_into({"p": p, "q": q}, {"y0": room})
        assert room.tolist() == found.tolist()


def test_arrays_of_all_kinds_of_strings(session: Session) -> None:
    model = joined(session)
    wide = np.array([["a", "b"], ["c", "d"], ["e", "f"]], object)
    kinds = [
        wide[:, 1],
        np.array(["b", "d", "f"]),
        np.array([b"b", b"d", b"f"]),
        np.array([b"b", "d", b"f"], object),
        np.array(["b", "d", "f"], np.dtypes.StringDType()),
        wide[:, 1].copy()[::-1][::-1],
    ]
    end = np.array(["1", "2", "3"], object)
    for _ in range(3):
        for p in kinds:
            assert model.run(None, {"p": p, "q": end})[0].tolist() == ["b1", "d2", "f3"]


@pytest.mark.parametrize("wrong", [None, 1.5, float("nan"), ["a"]])
def test_what_is_no_string_is_told_in_every_run(session: Session, wrong: object) -> None:
    model = joined(session)
    good, bad = np.array(["a", "b"], object), np.array(["a", None], object)
    bad[1] = wrong
    for _ in range(3):
        assert model.run(None, {"p": good, "q": good})[0].tolist() == ["aa", "bb"]
        with pytest.raises(ModelError, match=f"'q' must be strings, not {type(wrong).__name__}"):
            model.run(None, {"p": good, "q": bad})


@pytest.mark.parametrize("kind", [object, "U"])
def test_half_a_surrogate_pair_is_told_in_every_run(session: Session, kind: Any) -> None:
    model = joined(session)
    good, bad = np.array(["a", "b"], object), np.array(["a", "b\udc00"], kind)
    for _ in range(3):
        assert model.run(None, {"p": good, "q": good})[0].tolist() == ["aa", "bb"]
        with pytest.raises(ModelError, match=r"'q' must be text: '\\udc00', character 1 of"):
            model.run(None, {"p": good, "q": bad})


def test_places_without_an_object_hold_none(session: Session) -> None:
    model = joined(session)
    good, bad = np.array(["a", "b"], object), np.array(["a", None], object)
    ctypes.memset(bad.ctypes.data + bad.itemsize, 0, bad.itemsize)
    for _ in range(3):
        model.run(None, {"p": good, "q": good})
        with pytest.raises(ModelError, match="'q' must be strings, not NoneType"):
            model.run(None, {"p": good, "q": bad})


def test_closed_sessions_read_no_strings(session: Session) -> None:
    """What reads them is code of the library, which may have left the process."""
    model = joined(session)
    x = np.array(["a", "b"], object)
    for _ in range(3):
        model.run(None, {"p": x, "q": x})
    model.close()
    with pytest.raises(ModelError, match="closed"):
        model.run(None, {"p": x, "q": x})
    with pytest.raises(ModelError, match="closed"):
        model.run_into({"p": x, "q": x}, {"y0": x.copy()})


def test_rows_of_other_lengths_are_no_array(session: Session) -> None:
    model = joined(session)
    with pytest.raises(ModelError, match=r"'p' must be an array: .*inhomogeneous"):
        model.run(None, {"p": [["a"], ["b", "c"]], "q": ["a"]})


def test_strings_go_into_arrays_of_other_classes(session: Session) -> None:
    class Own(np.ndarray):
        pass

    model = joined(session)
    x, room = np.array(["a", "b"], object), np.full((2, 2), None, object).view(Own)
    model.run_into({"p": x.view(Own), "q": x[::-1]}, {"y0": room[:, 1]})
    assert room.tolist() == [[None, "ab"], [None, "ba"]]
    room.flags.writeable = False
    for other in (room[:, 1], ["a", "b"], np.array(["a", "b"])):
        with pytest.raises(ModelError, match="'y0' must be a writeable array of objects"):
            model.run_into({"p": x, "q": x}, {"y0": other})


@pytest.mark.parametrize("kinds", [1, 20, 700, 5000])
def test_many_elements_of_some_strings(session: Session, kinds: int) -> None:
    model = joined(session)
    p = np.array([f"{k % kinds}" for k in range(6000)], object)
    q = np.full(6000, "", object)
    for _ in range(3):
        assert model.run(None, {"p": p, "q": q})[0].tolist() == p.tolist()


def test_no_string_is_held_or_lost(session: Session) -> None:
    model = joined(session)
    p = np.array([f"only here {k}" for k in range(50)], object)
    before = [sys.getrefcount(text) for text in p]
    for _ in range(5):
        (found,) = model.run(None, {"p": p, "q": p})
    assert [sys.getrefcount(text) for text in p] == before
    other = np.empty(50, object)
    other[:] = [a + a for a in p]
    assert [sys.getrefcount(a) for a in found] == [sys.getrefcount(a) for a in other]


def test_a_string_of_the_model_is_one_object(session: Session) -> None:
    keys, values = [1, 2], ["one ", "two "]
    model = session("LabelEncoder", {"x": (INT64, ["n"])}, keys_int64s=keys, values_strings=values)
    x = np.array([1, 2, 3] * 20)
    for _ in range(3):
        (found,) = model.run(None, {"x": x})
        assert found.tolist() == ["one ", "two ", "_Unused"] * 20
        assert len({id(text) for text in found}) == 3


@pytest.mark.parametrize("names", [["b", "a", "ü"], [7, -1, 1 << 40], ["a", "b", "a"]])
def test_maps_of_rows(session: Session, names: list[Any]) -> None:
    kind = "classlabels_strings" if isinstance(names[0], str) else "classlabels_int64s"
    model = session("ZipMap", {"x": (FLOAT, ["n", 3])}, **{kind: names})
    for count in (1, 5, 1, 5, 0, 200, 200):
        x = np.linspace(-1, 1, 3 * count, dtype=np.float32).reshape(count, 3)
        if count:
            x[0, 0] = np.nan
        for chosen in (None, ["y0"]):
            (found,) = model.run(chosen, {"x": x})
            wanted = [dict(zip(names, row, strict=True)) for row in x.tolist()]
            assert repr(found) == repr(wanted)
            assert all(type(m) is dict for m in found)
            if count:
                found[0][names[0]] = 5.0


def test_maps_do_not_share_what_they_hold(session: Session) -> None:
    names = ["first of them", "second of them"]
    model = session("ZipMap", {"x": (FLOAT, ["n", 2])}, classlabels_strings=names)
    x = np.zeros((3, 2), np.float32)
    gc.collect()
    for _ in range(4):
        (found,) = model.run(None, {"x": x})
    found[0]["first of them"] = 1.0
    found[1].clear()
    assert found[2] == dict.fromkeys(names, 0.0)
    before = sys.getrefcount(next(iter(found[2])))
    del found
    model.run(None, {"x": x})
    (again,) = model.run(None, {"x": x})
    assert again == [dict.fromkeys(names, 0.0)] * 3
    assert sys.getrefcount(next(iter(again[2]))) <= before + 2


def test_unknown_outputs_are_told_after_runs(session: Session) -> None:
    model = joined(session)
    x = np.array(["a"], object)
    for _ in range(3):
        model.run(None, {"p": x, "q": x})
        with pytest.raises(ModelError, match="no output 'z'"):
            model.run(["z"], {"p": x, "q": x})
        with pytest.raises(ModelError, match="missing input 'q'"):
            model.run(None, {"p": x})
