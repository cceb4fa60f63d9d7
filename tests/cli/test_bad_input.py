"""What is the user's fault gives exit status 2, one clear message, and no file."""

import io
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.cli.conftest import Rutc, build, weight, write_small
from tests.onnx_files import write_model

MakeModel = Callable[[Path], Path]


def _text(folder: Path) -> Path:
    (folder / "m.onnx").write_text("this is no model, but a line of text\n")
    return folder / "m.onnx"


def _truncated(folder: Path) -> Path:
    whole = write_small(folder / "m.onnx").read_bytes()
    (folder / "m.onnx").write_bytes(whole[: len(whole) // 2])
    return folder / "m.onnx"


def _empty(folder: Path) -> Path:
    (folder / "m.onnx").touch()
    return folder / "m.onnx"


def _directory(folder: Path) -> Path:
    (folder / "m.onnx").mkdir()
    return folder / "m.onnx"


def _missing(folder: Path) -> Path:
    return folder / "m.onnx"


def _external(folder: Path, location: str) -> Path:
    """The small model with its weight in another file, whatever the location is."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")]
    model = build(nodes, {"w": weight()})
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    path = folder / "m.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def _external_missing(folder: Path) -> Path:
    return _external(folder, "weights.bin")


def _external_truncated(folder: Path) -> Path:
    (folder / "weights.bin").write_bytes(weight().tobytes()[:-4])
    return _external(folder, "weights.bin")


def _external_above(folder: Path) -> Path:
    (folder.parent / "secret.bin").write_bytes(weight().tobytes())
    return _external(folder, "../secret.bin")


def _external_absolute(folder: Path) -> Path:
    secret = folder.parent / "secret.bin"
    secret.write_bytes(weight().tobytes())
    return _external(folder, str(secret))


def _external_link(folder: Path) -> Path:
    (folder.parent / "secret.bin").write_bytes(weight().tobytes())
    (folder / "weights.bin").symlink_to(folder.parent / "secret.bin")
    return _external(folder, "weights.bin")


def _unsupported(folder: Path) -> Path:
    nodes = [
        helper.make_node("Sparkle", ["x"], ["a"], name="first", domain="com.example"),
        helper.make_node("Sparkle", ["a"], ["b"], name="second", domain="com.example"),
        helper.make_node("Twinkle", ["b"], ["y"], name="third", domain="com.example"),
    ]
    path = folder / "m.onnx"
    onnx.save(build(nodes, {}), path)
    return path


def _cyclic(folder: Path) -> Path:
    nodes = [helper.make_node("Add", ["x", "y"], ["y"], name="itself")]
    path = folder / "m.onnx"
    path.write_bytes(build(nodes, {}).SerializeToString())
    return path


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (_text, ["m.onnx"]),
        (_truncated, ["m.onnx"]),
        (_empty, ["m.onnx", "empty"]),
        (_directory, ["m.onnx", "directory"]),
        (_missing, ["m.onnx", "no such file"]),
        (_external_missing, ["weights.bin"]),
        (_external_truncated, ["weights.bin"]),
        (_external_above, ["secret.bin"]),
        (_external_absolute, ["secret.bin"]),
        (_external_link, ["weights.bin", "link"]),
        (_unsupported, ["Sparkle", "2", "first", "second", "Twinkle", "third"]),
        (_cyclic, ["itself"]),
    ],
)
def test_bad_models(rutc: Rutc, tmp_path: Path, make: MakeModel, words: list[str]) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    path = make(folder)
    before = sorted(tmp_path.rglob("*"))
    result = rutc("compile", path, "-o", folder / "out.so")
    assert result.status == 2, result.stderr
    assert result.stdout == ""
    assert result.stderr.count("error:") == 1
    assert "Traceback" not in result.stderr
    for word in words:
        assert word in result.stderr
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("command", ["verify", "inspect"])
def test_other_commands_refuse_bad_models_too(rutc: Rutc, tmp_path: Path, command: str) -> None:
    result = rutc(command, _text(tmp_path))
    assert result.status == 2
    assert result.stderr.count("error:") == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--target", "pdp11"], ["pdp11"]),
        (["--precision", "fp3"], ["fp3", "fp32"]),
        (["--precision", "int4"], ["int4", "fp32, bf16, fp16, w8, w4, int8, auto"]),
        (["--plan", "best"], ["--plan best", "greedy, search"]),
        (["--plan-time", "3"], ["--plan-time is for --plan search"]),
        (["--plan", "search", "--plan-time", "-1"], ["--plan-time -1", "seconds"]),
        (["--dim", "batch"], ["--dim batch", "NAME=N"]),
        (["--dim", "batch=0"], ["--dim batch=0"]),
        (["--dim", "batch=4..2"], ["the range is empty"]),
        (["--dim", "batch=2..4/0"], ["the step must be positive"]),
        (["--dim", "batch=2..4/x"], ["NAME=LOW..HIGH/STEP"]),
        (["--dim", "n=1", "--dim", "n=2"], ["given twice"]),
        (["--dim", "n=" + "9" * 5000], ["NAME=N"]),
        (["--dim", f"n=1..{1 << 63}"], ["NAME=LOW..HIGH"]),
        (["--shape", "x=4," + "9" * 5000], ["NAME=N,N"]),
        (["--dim", "nonsense=3"], ["nonsense"]),
        (["--shape", "x=1,b"], ["--shape x=1,b"]),
        (["--shape", "z=4,8"], ["z"]),
        (["--shape", "x=4,9"], ["x"]),
        (["--threads", "0"], ["--threads"]),
        (["--no-such-option"], ["--no-such-option"]),
    ],
)
def test_bad_options(
    rutc: Rutc, tmp_path: Path, model: Path, options: list[str], words: list[str]
) -> None:
    result = rutc("compile", model, "-o", tmp_path / "out.so", *options)
    assert result.status == 2, result.stderr
    for word in words:
        assert word in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_output_in_a_missing_folder(rutc: Rutc, tmp_path: Path, model: Path) -> None:
    result = rutc("compile", model, "-o", tmp_path / "no" / "out.so")
    assert result.status == 2
    assert "there is no directory" in result.stderr


def test_output_is_a_folder(rutc: Rutc, tmp_path: Path, model: Path) -> None:
    result = rutc("compile", model, "-o", tmp_path)
    assert result.status == 2
    assert "is a directory" in result.stderr


def test_output_folder_is_not_writable(
    rutc: Rutc, tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Permissions do not stop the super-user, so the answer of the system is replaced.
    monkeypatch.setattr("rutc.base.files.os.access", lambda path, mode: not mode & os.W_OK)
    result = rutc("compile", model, "-o", tmp_path / "out.so")
    assert result.status == 2
    assert "not writable" in result.stderr


@pytest.mark.parametrize(
    ("name", "output"), [("m.onnx", "m.onnx"), ("m.h", "m.so"), ("m.weights", "m.so")]
)
def test_the_model_is_not_overwritten(rutc: Rutc, tmp_path: Path, name: str, output: str) -> None:
    path = write_small(tmp_path / name)
    before = path.read_bytes()
    result = rutc("compile", path, "-o", tmp_path / output)
    assert result.status == 2
    assert "it is the file to compile itself; give another name with -o" in result.stderr
    assert path.read_bytes() == before


def test_a_header_is_not_taken_for_the_model_that_it_was_written_for(
    rutc: Rutc, tmp_path: Path, model: Path
) -> None:
    assert rutc("compile", model, "-o", tmp_path / "m.so", "--no-verify").status == 0
    result = rutc("compile", tmp_path / "m.h", "-o", tmp_path / "m.so")
    assert result.status == 2
    assert "m.h: it is the file to compile itself" in result.stderr
    assert "give the model that it was written for" in result.stderr
    for command in ("inspect", "explain", "verify", "tune"):
        result = rutc(command, tmp_path / "m.h")
        assert result.status == 2
        assert "give the model that it was written for" in result.stderr
        assert "truncated" not in result.stderr
    for arguments in (["run"], ["bench"], ["verify", model]):
        result = rutc(*arguments, tmp_path / "m.h")
        assert result.status == 2
        assert "give the library that it was written with" in result.stderr


def test_no_c_compiler(
    rutc: Rutc, tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.delenv("RUTC_CC", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = rutc("compile", model, "-o", tmp_path / "out.so")
    assert result.status == 2
    for word in ("no C compiler found", "RUTC_CC", "ziglang"):
        assert word in result.stderr
    assert list(tmp_path.iterdir()) == []


def _other_dtype(folder: Path) -> str:
    np.save(folder / "a.npy", np.zeros((4, 8)))
    return f"x={folder / 'a.npy'}"


def _other_shape(folder: Path) -> str:
    np.save(folder / "a.npy", np.zeros((4, 9), np.float32))
    return f"x={folder / 'a.npy'}"


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("z=random:1", ["no input 'z'", "'x'"]),
        ("x=missing.npy", ["missing.npy", "no such file"]),
        (_other_dtype, ["'x'", "float64", "float32"]),
        (_other_shape, ["'x'", "[4, 9]", "[4, 8]"]),
    ],
)
def test_bad_inputs_to_run(
    rutc: Rutc,
    tmp_path: Path,
    artifact: Path,
    argument: str | Callable[[Path], str],
    words: list[str],
) -> None:
    written = argument if isinstance(argument, str) else argument(tmp_path)
    output = tmp_path / "y.npz"
    result = rutc("run", artifact, "--input", written, "--output", output)
    assert result.status == 2, result.stderr
    assert result.stderr.count("error:") == 1
    for word in words:
        assert word in result.stderr
    assert not output.exists()


def _npy(header: str, data: bytes = b"") -> bytes:
    text = f"{header}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


def _npz(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return buffer.getvalue()


HEADER = "{'descr': '<f4', 'fortran_order': False, 'shape': %s}"
WHOLE = _npy(HEADER % "(4, 8)", bytes(128))


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.npy", b""),
        ("a.npy", WHOLE[:-1]),
        ("a.npy", WHOLE[:20]),
        ("a.npy", _npy(HEADER % "(1099511627776, 1048576)")),
        ("a.npy", _npy(HEADER % "(-4, 8)", bytes(128))),
        ("a.npy", _npy(HEADER % "'x'")),
        ("a.npy", _npy("(" * 5000)),
        ("a.npy", _npy("{'descr': __import__('os'), 'fortran_order': False, 'shape': (4, 8)}")),
        ("a.npy", _npy(HEADER.replace("'<f4'", "[('a', '<f4')]") % "(4, 8)", bytes(128))),
        ("a.npy", WHOLE.replace(b"\x01", b"\x09", 1)),
        ("a.npz", _npz(x=WHOLE)[:-30]),
        ("a.npz", _npz(x=WHOLE).replace(bytes(50), b"\xff" * 50, 1)),
        ("a.npz", _npz(x=b"text")),
        ("a.npz", _npz()),
        ("a.npz", _npz(y=WHOLE, z=WHOLE)),
        ("a.pb", b"no"),
        ("a.pb", b""),
        ("a.png", b"no"),
        ("a.txt", b"no"),
    ],
)
def test_files_that_are_no_arrays(
    rutc: Rutc, tmp_path: Path, artifact: Path, name: str, data: bytes
) -> None:
    (tmp_path / name).write_bytes(data)
    for source in (tmp_path / name, f"x={tmp_path / name}"):
        result = rutc("run", artifact, "--input", source)
        assert result.status == 2, result.stderr
        assert result.stderr.count("error:") == 1
        assert name in result.stderr or "input 'x' has shape" in result.stderr


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
@pytest.mark.parametrize("suffix", [".npy", ".npz", ".pb", ".png"])
def test_inputs_are_files(
    rutc: Rutc, tmp_path: Path, artifact: Path, make: Callable[[Path], None], suffix: str
) -> None:
    make(tmp_path / f"a{suffix}")
    result = rutc("run", artifact, "--input", tmp_path / f"a{suffix}")
    assert result.status == 2
    assert "it is no regular file" in result.stderr


@pytest.mark.parametrize("command", ["run", "bench", "inspect"])
@pytest.mark.parametrize(
    ("make", "told"), [(Path.mkdir, "it is a directory"), (os.mkfifo, "it is no regular file")]
)
def test_artifacts_are_files(
    rutc: Rutc, tmp_path: Path, command: str, make: Callable[[Path], None], told: str
) -> None:
    make(tmp_path / "a.so")
    result = rutc(command, tmp_path / "a.so")
    assert result.status == 2
    assert told in result.stderr


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--seconds", "nan"], "--seconds nan"),
        (["--seconds", "inf"], "--seconds inf"),
        (["--seconds", "0"], "--seconds"),
        (["--threads", "4097"], "from 1 to 4096"),
        (["--threads", str(2**70)], "from 1 to 4096"),
        (["--threads", "1.5"], "1.5"),
        (["--against", "onnxruntime", "--model", "none.onnx"], "--model none.onnx"),
        (["--against", "onnxruntime", "--model", "."], "there is no such file"),
    ],
)
def test_bad_options_of_bench(rutc: Rutc, artifact: Path, options: list[str], told: str) -> None:
    result = rutc("bench", artifact, *options)
    assert result.status == 2, result.stderr
    assert told in result.stderr


@pytest.mark.parametrize(
    ("command", "place"),
    [
        ("compile", "rutc.driver.plans.planning.decide"),
        ("inspect", "rutc.report.inside_model.import_model"),
    ],
)
def test_what_is_nested_too_deep(
    rutc: Rutc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, place: str
) -> None:
    def deep(*_: object, **__: object) -> None:
        raise RecursionError("maximum recursion depth exceeded")

    monkeypatch.setattr(place, deep)
    numbers = np.random.default_rng().standard_normal((8, 16)).astype(np.float32)
    path = tmp_path / "m.onnx"
    onnx.save(build([helper.make_node("MatMul", ["x", "w"], ["y"])], {"w": numbers}), path)
    result = rutc(command, path)
    assert result.status == 2, result.stderr
    assert result.stderr.count("error:") == 1
    assert "too many steps" in result.stderr
    assert list(tmp_path.iterdir()) == [path]


def test_outputs_are_written_as_npz(rutc: Rutc, tmp_path: Path, artifact: Path) -> None:
    result = rutc("run", artifact, "--output", tmp_path / "y.txt")
    assert result.status == 2
    assert ".npz" in result.stderr


@pytest.mark.parametrize("command", ["run", "bench", "inspect"])
@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"no library"])
def test_what_is_no_artifact(rutc: Rutc, tmp_path: Path, command: str, content: bytes) -> None:
    path = tmp_path / "a.so"
    path.write_bytes(content)
    result = rutc(command, path)
    assert result.status == 2, result.stderr
    assert "a.so" in result.stderr
    assert result.stderr.count("error:") == 1


def test_a_missing_artifact(rutc: Rutc, tmp_path: Path) -> None:
    result = rutc("run", tmp_path / "a.so")
    assert result.status == 2
    assert "a.so" in result.stderr


def test_errors_are_json_too(rutc: Rutc, tmp_path: Path) -> None:
    result = rutc("compile", tmp_path / "m.onnx", "--json")
    assert result.status == 2
    assert result.json["exit_status"] == 2
    assert "m.onnx" in str(result.json["error"])


def test_an_artifact_of_another_model_is_told(rutc: Rutc, tmp_path: Path, artifact: Path) -> None:
    node = helper.make_node("Relu", ["pixels"], ["y"])
    write_model(tmp_path / "other.onnx", [node], {"pixels": [2]}, {"y": [2]})
    result = rutc("verify", tmp_path / "other.onnx", artifact)
    assert result.status == 2
    said = " ".join(result.stderr.split())
    assert "was compiled from another model, small.onnx: its inputs are 'x'" in said
    assert "are 'pixels'" in said
    result = rutc("bench", artifact, "--against", "onnxruntime", "--model", tmp_path / "other.onnx")
    assert result.status == 2
    said = " ".join(result.stderr.split())
    assert "compiled from another model: its inputs are 'x', and those of" in said
    assert "are 'pixels'" in said


@pytest.mark.parametrize(
    ("given", "options", "words"),
    [
        ("artifact", ["--dim", "n=2", "--threads", "2"], "--dim, --threads: nothing is run"),
        ("artifact", ["--input", "random:1"], "--input: nothing is run without --profile"),
        ("artifact", ["--shape", "x=4,8", "--profile"], "--shape: "),
        ("model", ["--kernels", "--integrity"], "--kernels, --integrity: "),
        ("model", ["--profile"], "is a model: compile it, then look at the artifact"),
        ("model", ["--threads", "1", "--target", "native"], "--target, --threads: "),
    ],
)
def test_options_that_would_change_nothing_of_an_inspection(
    rutc: Rutc, request: pytest.FixtureRequest, given: str, options: list[str], words: str
) -> None:
    result = rutc("inspect", request.getfixturevalue(given), *options)
    assert result.status == 2
    assert words in " ".join(result.stderr.split())
    assert result.stderr.count("error:") == 1


def test_a_library_is_told_from_a_model(rutc: Rutc, model: Path, artifact: Path) -> None:
    result = rutc("explain", artifact)
    assert (result.status, "is a library, not an ONNX model" in result.stderr) == (2, True)
    result = rutc("compile", artifact, "-o", artifact)
    assert (result.status, "give the model that it was compiled from" in result.stderr) == (2, True)
    result = rutc("run", model)
    assert (result.status, "; compile the model first" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    "command",
    [
        ["db", "stats"],
        ["db", "export", "FILE"],
        ["db", "import", "FILE"],
        ["db", "merge", "FILE"],
        ["tune", "MODEL", "--trials", "1"],
        ["compile", "MODEL", "--tune", "1"],
    ],
)
def test_what_needs_a_database_is_refused_none(
    rutc: Rutc, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    """`none` is no file's name: `rutc compile` would not look for records there."""
    monkeypatch.chdir(tmp_path)
    places = {"MODEL": str(model), "FILE": str(tmp_path / "file")}
    result = rutc(*(places.get(word, word) for word in command), "--db", "none")
    assert result.status == 2
    assert "--db none: this command needs a database" in " ".join(result.stderr.split())
    assert list(tmp_path.iterdir()) == []
