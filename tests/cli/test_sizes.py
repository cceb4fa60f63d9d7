"""Commands on an artifact of any number of rows: which they run at, and what they say of it."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from rutc.driver.compiler import Options, compile_model
from tests.cli.conftest import Rutc, invoke
from tests.refusing import rows_of_48


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Squares of `n` rows, of which there may be none: little work, so that most runs have many."""
    folder = tmp_path_factory.mktemp("sizes")
    ports = [helper.make_tensor_value_info(p, TensorProto.FLOAT, ["n", 3]) for p in "xy"]
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "x"], ["y"])], "g", ports[:1], ports[1:]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    onnx.save(model, folder / "m.onnx")
    compile_model(folder / "m.onnx", folder / "m.so", Options(dims={"n": (0, 64)}))
    return folder / "m.so"


@pytest.mark.parametrize("size", [0, 1, 7, 64])
def test_a_run_has_the_size_that_is_asked_for(rutc: Rutc, library: Path, size: int) -> None:
    result = rutc("run", library, "--dim", f"n={size}", "--json")
    assert result.status == 0, result.stderr
    assert result.json["sizes"] == {"n": size}
    (output,) = result.json["outputs"]  # type: ignore[misc]
    assert output["shape"] == [size, 3]


@pytest.mark.parametrize(
    "command", [("run",), ("bench", "--seconds", "0.1"), ("inspect", "--profile")]
)
def test_the_size_is_told(rutc: Rutc, library: Path, command: tuple[str, ...]) -> None:
    name, *options = command
    assert "at n=64" in rutc(name, library, *options).stdout.splitlines()
    assert "at n=5" in rutc(name, library, *options, "--dim", "n=5").stdout.splitlines()
    assert rutc(name, library, *options, "--dim", "n=5", "--json").json["sizes"] == {"n": 5}


def test_an_artifact_tells_its_sizes(rutc: Rutc, library: Path) -> None:
    shown = rutc("inspect", library).stdout.splitlines()
    assert "sizes that a run chooses: n (0..64, planned for 64)" in shown


@pytest.mark.parametrize("name", ["run", "bench", "inspect"])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["n=65"], "it runs at n 0..64"),
        (["m=2"], "it runs at n 0..64"),
        (["n=1..2"], "write NAME=N with a whole number"),
        (["n=-1"], "write NAME=N with a whole number"),
        (["=1"], "write NAME=N with a whole number"),
        (["n=1", "n=2"], "'n' is given twice"),
    ],
)
def test_sizes_that_cannot_be(
    rutc: Rutc, library: Path, name: str, given: list[str], said: str
) -> None:
    options = [word for item in given for word in ("--dim", item)]
    result = rutc(name, library, *options, *(["--profile"] if name == "inspect" else []))
    assert result.status == 2
    assert said in result.stderr


def test_what_is_given_has_its_own_size(rutc: Rutc, library: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((4, 3), np.float32))
    source = f"x={tmp_path / 'x.npy'}"
    assert "at n=4" in rutc("run", library, "--input", source).stdout
    assert rutc("run", library, "--input", source, "--dim", "n=4").status == 0
    result = rutc("run", library, "--input", source, "--dim", "n=5")
    assert result.status == 2
    assert "--dim n=5: what --input gives has n=4" in result.stderr


def test_inputs_of_different_sizes_are_both_named(rutc: Rutc, tmp_path: Path) -> None:
    ports = [helper.make_tensor_value_info(p, TensorProto.FLOAT, ["n", 3]) for p in "xwy"]
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "w"], ["y"])], "g", ports[:2], ports[2:]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    onnx.save(model, tmp_path / "m.onnx")
    made = tmp_path / "m.so"
    assert rutc("compile", tmp_path / "m.onnx", "-o", made, "--no-verify").status == 0
    for name, rows in (("x", 4), ("w", 5)):
        np.save(tmp_path / f"{name}.npy", np.ones((rows, 3), np.float32))
    given = [f"--input={name}={tmp_path / name}.npy" for name in "xw"]
    result = rutc("run", made, *given)
    assert result.status == 2
    assert "input 'w' has n=5, and input 'x' 4" in result.stderr


def test_a_model_of_one_size_says_nothing(rutc: Rutc, artifact: Path) -> None:
    assert "at " not in rutc("run", artifact).stdout
    result = rutc("run", artifact, "--dim", "n=1")
    assert result.status == 2
    assert "it runs at one size only" in result.stderr


def test_there_is_a_ratio_where_there_are_two(rutc: Rutc, library: Path) -> None:
    alone = rutc("bench", library, "--seconds", "0.1")
    assert "ratio" not in alone.stdout
    peer = ["--against", "onnxruntime", "--model", library.with_suffix(".onnx")]
    assert "ratio" in rutc("bench", library, "--seconds", "0.1", *peer).stdout


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--shape=n=4", "no input but a size (--dim n=1..8); the inputs are x"),
        ("--shape=n=1..8", "sizes that the model names are told by --dim NAME=1..8"),
        ("--dim=x=4", "it is an input (--shape x=...); the symbolic sizes are n"),
    ],
)
def test_sizes_and_shapes_are_told_apart(library: Path, option: str, said: str) -> None:
    made = library.with_name("again.so")
    found = invoke("compile", library.with_name("m.onnx"), "-o", made, option)
    assert found.status == 2
    assert said in found.stderr
    assert not made.exists()


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What runs at 48 to 95 rows, and is compiled for 1 to 95, mostly 5."""
    folder = tmp_path_factory.mktemp("refusing")
    model = rows_of_48(folder / "m.onnx")
    compile_model(model, folder / "m.so", Options(dims={"h": (1, 95, 1, 5)}))
    return folder / "m.so"


COMMANDS = pytest.mark.parametrize(
    "command", [("run",), ("bench", "--seconds", "0.1"), ("inspect", "--profile")]
)


@COMMANDS
def test_other_sizes_than_usual_are_told(
    rutc: Rutc, refusing: Path, command: tuple[str, ...]
) -> None:
    name, *options = command
    shown = rutc(name, refusing, *options).stdout.splitlines()
    assert "at h=64, as it does not run on inputs generated at h=5" in shown
    assert "at h=48" in rutc(name, refusing, *options, "--dim", "h=48").stdout.splitlines()


@COMMANDS
def test_generated_inputs_that_are_refused_have_advice(
    rutc: Rutc, refusing: Path, command: tuple[str, ...], tmp_path: Path
) -> None:
    name, *options = command
    result = rutc(name, refusing, *options, "--dim", "h=5")
    assert result.status == 2
    assert "cannot be reshaped" in result.stderr
    assert "Inputs were generated at h=5. Give real inputs with --input" in result.stderr
    np.save(tmp_path / "x.npy", np.zeros((1, 3, 5, 5), np.float32))
    result = rutc(name, refusing, *options, "--input", tmp_path / "x.npy")
    assert result.status == 2
    assert "cannot be reshaped" in result.stderr
    assert "Give real inputs" not in result.stderr


def test_rates_are_told_at_the_sizes_that_the_work_is_known_of(rutc: Rutc, library: Path) -> None:
    assert "GFLOP/s" in rutc("inspect", library, "--profile").stdout
    assert "GFLOP/s" not in rutc("inspect", library, "--profile", "--dim", "n=5").stdout


def test_memory_is_explained_at_common_sizes(rutc: Rutc, library: Path) -> None:
    """Formulas of open sizes fill screens; `--json` has them."""
    model, asked = library.with_suffix(".onnx"), ("y", "--dim", "n=0..64")
    assert "768 bytes at common sizes in output0" in rutc("explain", model, *asked).stdout
    (part,) = rutc("explain", model, *asked, "--json").json["parts"]  # type: ignore[misc]
    assert part["stored"][0]["bytes"] == "12*n"


@pytest.fixture(scope="module")
def spelt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose size has a name that no symbol has."""
    path = tmp_path_factory.mktemp("spelt") / "m.onnx"
    ports = [helper.make_tensor_value_info(p, TensorProto.FLOAT, ["a.Dim.0", 3]) for p in "xy"]
    node = helper.make_node("Mul", ["x", "x"], ["y"])
    graph = helper.make_graph([node], "g", ports[:1], ports[1:])
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


@pytest.mark.parametrize("name", ["a.Dim.0", "a_Dim_0"])
def test_sizes_may_be_named_as_by_the_model_or_as_they_are_shown(
    rutc: Rutc, spelt: Path, name: str
) -> None:
    output = spelt.with_suffix(".so")
    result = rutc("compile", spelt, "-o", output, "--no-verify", "--dim", f"{name}=2..8@4")
    assert result.status == 0, result.stderr
    assert "at a_Dim_0=4" in rutc("run", output).stdout
    assert "at a_Dim_0=3" in rutc("run", output, "--dim", f"{name}=3").stdout
    assert rutc("run", output, "--dim", f"{name}=9").status == 2


@pytest.mark.parametrize("size", ["-1", "1..4", "two"])
def test_what_no_run_can_have_as_a_size_is_told(rutc: Rutc, spelt: Path, size: str) -> None:
    output = spelt.with_suffix(".so")
    assert rutc("compile", spelt, "-o", output, "--no-verify").status == 0
    result = rutc("run", output, "--dim", f"a.Dim.0={size}")
    wanted = f"--dim a.Dim.0={size}: a run has one size: write NAME=N with a whole number from 0 on"
    assert (result.status, wanted in " ".join(result.stderr.split())) == (2, True)


def test_a_size_has_one_name_at_a_time(rutc: Rutc, spelt: Path) -> None:
    result = rutc("inspect", spelt, "--dim", "a.Dim.0=3", "--dim", "a_Dim_0=3")
    assert result.status == 2
    assert "the size 'a.Dim.0' is given twice" in result.stderr


def test_what_is_given_is_not_said_to_be_generated(rutc: Rutc, tmp_path: Path) -> None:
    """A given index is out of range: the numbers that it picks from are generated."""
    ports = [
        helper.make_tensor_value_info("table", TensorProto.FLOAT, ["n", 3]),
        helper.make_tensor_value_info("rows", TensorProto.INT64, [2]),
    ]
    node = helper.make_node("Gather", ["table", "rows"], ["y"])
    graph = helper.make_graph([node], "g", ports, [onnx.ValueInfoProto(name="y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    onnx.save(model, tmp_path / "m.onnx")
    compile_model(tmp_path / "m.onnx", tmp_path / "m.so", Options(dims={"n": (1, 8)}))
    np.save(tmp_path / "rows.npy", np.array([0, 9]))
    result = rutc("run", tmp_path / "m.so", "--input", f"rows={tmp_path / 'rows.npy'}")
    assert result.status == 2
    assert "out of range" in result.stderr
    assert ". All inputs but 'rows' were generated at n=" in result.stderr


def test_sizes_that_the_program_makes_are_told_as_those_that_a_run_chooses(
    rutc: Rutc, tmp_path: Path
) -> None:
    """Of sizes that must be equal the program makes one of its own."""
    ports = [helper.make_tensor_value_info(p, TensorProto.FLOAT, [p, "n"]) for p in "abc"]
    out = helper.make_tensor_value_info("d", TensorProto.FLOAT, None)
    nodes = [
        helper.make_node("Add", ["a", "b"], ["sum"]),
        helper.make_node("Add", ["sum", "c"], ["whole"]),
        helper.make_node("Concat", ["whole", "a"], ["d"], axis=0),
    ]
    graph = helper.make_graph(nodes, "g", ports, [out])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    onnx.save(model, tmp_path / "m.onnx")
    library = tmp_path / "m.so"
    sizes = [option for p in "abc" for option in ("--dim", f"{p}=2..8")]
    made = rutc("compile", tmp_path / "m.onnx", "-o", library, "--no-verify", *sizes)
    assert made.status == 0, made.stderr
    assert '"d", float32 [2*a, n]' in (tmp_path / "m.h").read_text()
    assert "[2*a, n]" in rutc("inspect", library).stdout
    assert "[2*a, n]" in rutc("inspect", tmp_path / "m.onnx", *sizes).stdout
    three, four = np.ones((3, 2), np.float32), np.ones((4, 2), np.float32)
    np.savez(tmp_path / "x.npz", a=three, b=three, c=three)
    run = rutc("run", library, "--input", tmp_path / "x.npz", "--json")
    assert [o["shape"] for o in run.json["outputs"]] == [[6, 2]]  # type: ignore[attr-defined]
    np.savez(tmp_path / "x.npz", a=three, b=three, c=four)
    refused = rutc("run", library, "--input", tmp_path / "x.npz")
    assert refused.status != 0
    assert "the sizes a and c differ" in refused.stderr
