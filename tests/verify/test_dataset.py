"""Verification on all cases of a folder."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from rutc.driver.api import compile, verify
from rutc.errors import UserError
from rutc.importer.reading.tensor_file import read_value
from rutc.verify.feeding.dataset import sample_paths
from rutc.verify.judging.compare import OutputComparison, Value
from rutc.verify.judging.tolerance import Level
from rutc.verify.verification import Verification, keep, together
from rutc.verify.verify import RANDOM as RANDOM_OUTPUT
from rutc.verify.verify import expected
from tests.verify.damaged import ARCHIVES

W = np.arange(6, dtype=np.float32).reshape(3, 2)
RANDOM = np.random.default_rng(2)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """y{n, 2} = x{n, 3} w + b{2}, compiled for any n."""
    folder = tmp_path_factory.mktemp("model")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])
    b = helper.make_tensor_value_info("b", TensorProto.FLOAT, [2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2])
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Add", ["p", "b"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "m", [x, b], [y], [numpy_helper.from_array(W, "w")])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(made, folder / "m.onnx")
    compile(folder / "m.onnx", folder / "m.so", verify=False)
    return folder / "m.onnx"


def _case(rows: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    x = RANDOM.standard_normal((rows, 3)).astype(np.float32)
    b = RANDOM.standard_normal(2).astype(np.float32)
    return {"x": x, "b": b}, x @ W + b


def _write_pb(folder: Path, rows: int, wrong: float = 0.0) -> None:
    folder.mkdir(parents=True)
    inputs, y = _case(rows)
    y[0, 1] += wrong
    for number, value in enumerate(inputs.values()):
        data = numpy_helper.from_array(value).SerializeToString()
        (folder / f"input_{number}.pb").write_bytes(data)
    (folder / "output_0.pb").write_bytes(numpy_helper.from_array(y).SerializeToString())


def test_all_npz_files_of_a_folder_are_used(model: Path, tmp_path: Path) -> None:
    for rows in (1, 4, 9):
        np.savez(tmp_path / f"case{rows}.npz", allow_pickle=False, **_case(rows)[0])
    found = verify(model, model.with_suffix(".so"), data=tmp_path)
    assert found.passed
    assert (found.runs, found.with_truth) == (3, 3)
    assert found.inputs == f"the 3 cases of {tmp_path}"
    assert found.outputs[0].case in {"case1.npz", "case4.npz", "case9.npz"}
    assert found.outputs[0].expected_error is None


def test_the_test_data_of_onnx_is_used_with_what_it_expects(model: Path, tmp_path: Path) -> None:
    _write_pb(tmp_path / "test_data_set_0", 2)
    _write_pb(tmp_path / "test_data_set_1", 5)
    found = verify(model, model.with_suffix(".so"), data=tmp_path)
    assert found.passed
    assert found.outputs[0].expected_error is not None
    assert found.outputs[0].expected_error < 1e-6
    single = verify(model, model.with_suffix(".so"), data=tmp_path / "test_data_set_1")
    assert single.outputs[0].shape == (5, 2)


def test_the_worst_case_is_told(model: Path, tmp_path: Path) -> None:
    _write_pb(tmp_path / "test_data_set_0", 2)
    _write_pb(tmp_path / "test_data_set_1", 5, wrong=0.01)
    _write_pb(tmp_path / "test_data_set_2", 3)
    found = verify(model, model.with_suffix(".so"), data=tmp_path)
    assert not found.passed
    assert found.runs == 3
    assert found.outputs[0].case == "test_data_set_1"
    assert found.outputs[0].reason.startswith("not what the data expects: 1 of 10 elements")
    x = found.values["x"]
    assert isinstance(x, np.ndarray)
    assert x.shape == (5, 3)


def _compared(
    wanted: Mapping[str, Value], made: dict[str, np.ndarray], remark: str = ""
) -> tuple[OutputComparison, ...]:
    """What data expects beside outputs that agree with all else."""
    passed = [
        OutputComparison(n, str(y.dtype), y.shape, True, remark=remark) for n, y in made.items()
    ]
    return expected(passed, wanted, made, lambda name: Level.MODEL)


def test_what_is_drawn_at_random_is_not_expected() -> None:
    made, wanted = {"y": W}, {"y": W + 1}
    assert not _compared(wanted, made)[0].passed
    assert _compared(wanted, made, RANDOM_OUTPUT)[0].passed


def test_all_elements_of_a_sequence_that_is_expected_are_there() -> None:
    made = {"y[0]": W}
    assert [o.passed for o in _compared({"y": [W]}, made)] == [True]
    assert [o.passed for o in _compared({"y": [W, W]}, made)] == [True, False]


def test_no_more_elements_of_a_sequence_than_are_expected_are_there() -> None:
    made = {"y[0]": W, "y[1]": W, "z": W}
    assert [o.passed for o in _compared({"y": [W]}, made)] == [True, False, True]
    assert [o.passed for o in _compared({"y": []}, made)] == [False, False, True]
    assert [o.passed for o in _compared({"y": None}, made)] == [False, False, True]
    assert [o.passed for o in _compared({"y": [W, W]}, made)] == [True, True, True]


def test_what_is_expected_counts_where_the_runtimes_contradict_each_other() -> None:
    contradicted = OutputComparison("y", "float32", W.shape, passed=False, contradicted=True)
    level = Level.MODEL
    (found,) = expected([contradicted], {"y": W + 1}, {"y": W}, lambda name: level)
    assert (found.passed, found.contradicted) == (False, False)
    assert found.reason.startswith("not what the data expects")
    (found,) = expected([contradicted], {"y": W}, {"y": W}, lambda name: level)
    assert found.contradicted


def test_types_that_numpy_stores_as_bytes_are_expected_too(tmp_path: Path) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.BFLOAT16, [3])
    y = helper.make_tensor_value_info("y", TensorProto.BFLOAT16, [3])
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "m", [x], [y])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(made, tmp_path / "m.onnx")
    compile(tmp_path / "m.onnx", tmp_path / "m.so", verify=False)
    values = W[:, 0].astype(ml_dtypes.bfloat16)
    np.savez(tmp_path / "a.npz", allow_pickle=False, x=values, y=values)
    assert verify(tmp_path / "m.onnx", tmp_path / "m.so", data=tmp_path).passed
    np.savez(tmp_path / "a.npz", allow_pickle=False, x=values, y=values * 2)
    assert not verify(tmp_path / "m.onnx", tmp_path / "m.so", data=tmp_path).passed


def test_numbers_in_names_are_in_their_order(tmp_path: Path) -> None:
    for number in (10, 2, 1):
        (tmp_path / f"test_data_set_{number}").mkdir()
    names = [path.name for path in sample_paths(tmp_path)]
    assert names == ["test_data_set_1", "test_data_set_2", "test_data_set_10"]


def test_digits_that_are_no_numbers_are_text(tmp_path: Path) -> None:
    for name in ("5\u00b210.npz", "5\u00b22.npz"):
        (tmp_path / name).touch()
    assert [path.name[2:] for path in sample_paths(tmp_path)] == ["2.npz", "10.npz"]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros((2, 3), np.float32)}, "a.npz has no value for input 'b'"),
        ({"x": np.zeros((2, 4), np.float32), "b": W[0]}, "has shape [2, 4]"),
        ({"x": np.zeros((2, 3)), "b": W[0]}, "has dtype float64"),
        (None, "holds no case"),
        ({}, "is no numpy file"),
    ],
)
def test_a_folder_that_does_not_fit_is_refused(
    arrays: dict[str, np.ndarray] | None, message: str, model: Path, tmp_path: Path
) -> None:
    if arrays:
        np.savez(tmp_path / "a.npz", allow_pickle=False, **arrays)
    elif arrays is not None:
        (tmp_path / "a.npz").write_bytes(b"junk")
    with pytest.raises(UserError) as refused:
        verify(model, model.with_suffix(".so"), data=tmp_path)
    assert message in str(refused.value)
    assert str(tmp_path) in str(refused.value)


def test_cases_that_cannot_be_used_are_told_and_the_others_judged(
    model: Path, tmp_path: Path
) -> None:
    good, y = _case(4)
    cases = {
        "named": {"x": good["x"]},
        "shaped": {**good, "x": good["x"][:, :2]},
        "typed": {**good, "b": good["b"].astype(np.float64)},
        "good": {**good, "y": y},
        "unexpected": {**good, "y": np.array(["a"])},
    }
    for name, arrays in cases.items():
        np.savez(tmp_path / f"{name}.npz", allow_pickle=False, **arrays)
    (tmp_path / "junk.npz").write_bytes(b"junk")
    _write_pb(tmp_path / "test_data_set_0", 2)
    (tmp_path / "test_data_set_0" / "input_1.pb").write_bytes(b"junk")
    found = verify(model, model.with_suffix(".so"), data=tmp_path)
    assert found.runs == 2
    assert found.inputs == f"2 of the 7 cases of {tmp_path}"
    assert (found.passed, found.outputs[0].case) == (False, "unexpected.npz")
    junk, *others = found.skipped
    assert junk.startswith(f"{tmp_path}/junk.npz is no numpy file of named arrays: ")
    assert others == [
        f"{tmp_path}/named.npz has no value for input 'b'",
        f"input 'x' from {tmp_path}/shaped.npz has shape [4, 2], the model takes [n, 3]",
        f"{tmp_path}/test_data_set_0/input_1.pb is no ONNX TensorProto",
        f"input 'b' from {tmp_path}/typed.npz has dtype float64, the model takes float32: "
        "convert it with .astype",
    ]


def test_cases_that_a_runtime_refuses_are_told(model: Path, tmp_path: Path) -> None:
    compile(model, tmp_path / "m.so", dims={"n": (1, 8)}, verify=False)
    for rows in (2, 9):
        np.savez(tmp_path / f"case{rows}.npz", allow_pickle=False, **_case(rows)[0])
    found = verify(model, tmp_path / "m.so", data=tmp_path)
    assert (found.passed, found.runs) == (True, 1)
    (line,) = found.skipped
    assert line.startswith(f'{tmp_path / "case9.npz"}: axis 0 of input "x" is n = 9')


def test_a_folder_without_a_case_is_told_before_a_model_is_compiled(
    model: Path, tmp_path: Path
) -> None:
    stages: list[str] = []
    with pytest.raises(UserError, match="holds no case"):
        verify(model, data=tmp_path, on_progress=lambda stage, *_: stages.append(stage))
    assert stages == []


def test_a_folder_of_no_use_is_told_before_much_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The input is a sequence of two tensors, which the graph takes one by one."""
    monkeypatch.setenv("RUTC_CACHE", str(tmp_path / "cache"))
    x = helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, [3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [6])
    node = helper.make_node("ConcatFromSequence", ["x"], ["y"], axis=0)
    graph = helper.make_graph([node], "m", [x], [y])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(made, tmp_path / "m.onnx")
    data = tmp_path / "data"
    for number in range(2):
        (data / f"test_data_set_{number}").mkdir(parents=True)
        (data / f"test_data_set_{number}" / "input_0.pb").write_bytes(b"junk")
    stages: list[str] = []

    def check() -> bool:
        stages.clear()
        found = verify(
            tmp_path / "m.onnx",
            data=data,
            dims={"x": 2},
            on_progress=lambda stage, *_: stages.append(stage),
        )
        return found.passed

    with pytest.raises(UserError, match=r"_0/input_0.pb holds no seq.*\n.*_1/input_0.pb holds"):
        check()
    assert set(stages) == {"import"}
    proto = numpy_helper.from_list([W[:, 0], W[:, 1]])
    (data / "test_data_set_1" / "input_0.pb").write_bytes(proto.SerializeToString())
    assert check()
    assert {"import", "kernels", "verify"} <= set(stages)


def test_inputs_and_a_folder_are_not_taken_together(model: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not both"):
        verify(model, model.with_suffix(".so"), inputs=["random:1"], data=tmp_path)
    with pytest.raises(UserError, match="no such folder"):
        verify(model, model.with_suffix(".so"), data=tmp_path / "none")


def _write_strange_tensor(folder: Path, value: onnx.TensorProto) -> None:
    folder.mkdir()
    (folder / "input_0.pb").write_bytes(value.SerializeToString())


@pytest.mark.parametrize("kind", ARCHIVES)
def test_damaged_archives_do_not_end_the_comparison(model: Path, tmp_path: Path, kind: str) -> None:
    np.savez(tmp_path / "good.npz", allow_pickle=False, **_case(4)[0])
    ARCHIVES[kind](tmp_path / "bad.npz")
    found = verify(model, model.with_suffix(".so"), data=tmp_path)
    assert (found.passed, found.runs) == (True, 1)
    (line,) = found.skipped
    assert line.startswith(f"{tmp_path / 'bad.npz'} is no numpy file")


def test_a_tensor_of_an_unknown_type_does_not_end_the_comparison(
    model: Path, tmp_path: Path
) -> None:
    _write_pb(tmp_path / "test_data_set_0", 2)
    _write_strange_tensor(tmp_path / "test_data_set_1", onnx.TensorProto(data_type=99, dims=[2]))
    found = verify(model, model.with_suffix(".so"), data=tmp_path)
    assert (found.passed, found.runs) == (True, 1)
    (line,) = found.skipped
    assert "input_0.pb holds a tensor of the unknown type 99" in line


@pytest.mark.parametrize("kind", ["tensor", "seq", "optional"])
def test_values_do_not_lie_in_other_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret.bin").write_bytes(W.tobytes())
    tensor = numpy_helper.from_array(W)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="secret.bin")
    value: onnx.TensorProto | onnx.SequenceProto | onnx.OptionalProto = tensor
    if kind == "seq":
        value = onnx.SequenceProto(elem_type=onnx.SequenceProto.TENSOR, tensor_values=[tensor])
    elif kind == "optional":
        value = onnx.OptionalProto(elem_type=onnx.OptionalProto.TENSOR, tensor_value=tensor)
    (tmp_path / "a.pb").write_bytes(value.SerializeToString())
    with pytest.raises(UserError, match=r"a.pb keeps its data in another file"):
        read_value(tmp_path / "a.pb", "tensor(float)" if kind == "tensor" else f"{kind}(tensor)")


def _shown(share: float, *, contradicted: bool = False) -> Verification:
    output = OutputComparison(
        "y", "float32", (1,), passed=not contradicted, share=share, contradicted=contradicted
    )
    at = Path("m.onnx"), Path("m.so"), Level.MODEL, "generated", "", 1
    return Verification(*at, (output,), 0.0, 0.0, values={"x": W})


def test_only_the_inputs_of_the_worst_case_are_held() -> None:
    found: list[Verification] = []
    for share in (0.1, 0.5, 0.3):
        keep(found, _shown(share))
    assert [bool(v.values) for v in found] == [False, True, False]
    # What is contradicted may be the worst case, or none that fails.
    keep(found, _shown(0.2, contradicted=True))
    assert [bool(v.values) for v in found] == [False, True, False, True]
    assert together(found).values


def test_the_inputs_of_a_folder_are_not_all_held(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rows in (1, 4, 9):
        np.savez(tmp_path / f"case{rows}.npz", allow_pickle=False, **_case(rows)[0])
    held: list[int] = []

    def looking(found: Sequence[Verification]) -> Verification:
        held.append(sum(bool(v.values) for v in found))
        return together(found)

    monkeypatch.setattr("rutc.verify.verify.together", looking)
    worst = verify(model, model.with_suffix(".so"), data=tmp_path)
    assert held == [1]
    x = worst.values["x"]
    assert isinstance(x, np.ndarray)
    assert worst.outputs[0].case == f"case{len(x)}.npz"
