"""Generated inputs, and inputs from files."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from rutc.driver.api import compile, verify
from rutc.errors import UserError
from rutc.runtime import load
from rutc.verify.feeding.input_files import read
from rutc.verify.feeding.input_spec import InputSpec, spec
from rutc.verify.feeding.input_values import gather, generate
from rutc.verify.feeding.npz import open_npz
from rutc.verify.feeding.session_values import session_values

X = InputSpec("x", np.dtype(np.float32), (1, 3, 4, 5))
IDS = InputSpec("ids", np.dtype(np.int64), ("batch", 7))


def test_the_seed_decides_the_values() -> None:
    first, again, other = generate([X], 1), generate([X], 1), generate([X], 2)
    np.testing.assert_array_equal(first["x"], again["x"])
    assert not np.array_equal(first["x"], other["x"])


def test_an_input_has_the_same_values_whatever_else_the_model_takes() -> None:
    np.testing.assert_array_equal(generate([IDS, X])["x"], generate([X])["x"])


@pytest.mark.parametrize(
    "onnx_type",
    ["float", "double", "float16", "bfloat16", "bool", "int8", "uint8", "int32", "int64", "string",
     "complex64", "float8e4m3fn", "int4", "uint16"],
)  # fmt: skip
def test_every_dtype_is_generated(onnx_type: str) -> None:
    item = spec("x", f"tensor({onnx_type})", [2, None, "n"])
    values = generate([item], dims={"n": 3})["x"]
    assert values.dtype == item.dtype
    assert values.shape == (2, 2, 3)


def test_masks_of_caches_hide_nothing() -> None:
    sizes = {"past": 90, "new": 9}
    mask = spec("mask", "tensor(int64)", [1, "past + new"])
    assert generate([mask], dims=sizes)["mask"].all()
    ids = spec("ids", "tensor(int64)", [1, "past"])
    assert not generate([ids], dims=sizes)["ids"].all()


@pytest.mark.parametrize("shape", [[], [50, 4]])
def test_strings_are_of_those_that_the_model_knows_and_others(shape: list[int]) -> None:
    item = spec("s", "tensor(string)", shape, texts=("the cat", "sat"))
    drawn = [generate([item], seed)["s"] for seed in range(40)]
    assert {(x.dtype.kind, x.shape) for x in drawn} == {("O", tuple(shape))}
    found = [text for x in drawn for text in x.reshape(-1).tolist()]
    assert {"the cat", "sat"} < set(found)
    assert all(text in item.texts or text.isdecimal() for text in found)


def test_strings_of_sequences_are_of_those_that_the_model_knows() -> None:
    item = spec("s", "seq(tensor(string))", [2, 30], texts=("a",))
    (first, second) = generate([item])["s"]
    assert "a" in first
    assert "a" in second


def test_elements_of_sequences_are_generated() -> None:
    some = spec("s", "seq(tensor(float))", ["s", 3])
    (value,) = generate([some], dims={"s": 4}).values()
    assert [(e.shape, e.dtype) for e in value] == [((3,), np.float32)] * 4
    inner = spec("s", "optional(seq(tensor(int64)))", [1, "k"])
    ((element,),) = generate([inner]).values()
    assert [e.dtype for e in element] == [np.int64]
    with pytest.raises(UserError, match="can be read from files where their number is fixed"):
        read(some, "x.npy")
    with pytest.raises(UserError, match="only tensors"):
        spec("m", "map(string,tensor(float))", [])


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".pb"])
def test_arrays_are_read_from_files(tmp_path: Path, suffix: str) -> None:
    value = generate([X])["x"]
    path = tmp_path / f"a{suffix}"
    if suffix == ".npy":
        np.save(path, value)
    elif suffix == ".npz":
        np.savez(path, x=value, other=np.zeros(3))
    else:
        path.write_bytes(numpy_helper.from_array(value).SerializeToString())
    np.testing.assert_array_equal(read(X, str(path)), value)


def test_narrow_dtypes_survive_npy(tmp_path: Path) -> None:
    item = InputSpec("x", np.dtype(ml_dtypes.bfloat16), (3,))
    value = np.array([1, 2, 3], ml_dtypes.bfloat16)
    np.save(tmp_path / "a.npy", value)
    np.testing.assert_array_equal(read(item, str(tmp_path / "a.npy")), value)


@pytest.mark.parametrize("shape", [(1, 3, 6, 5), (1, 6, 5, 3)])
def test_images_become_arrays(tmp_path: Path, shape: tuple[int, ...]) -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = np.zeros((6, 5, 3), np.uint8)
    pixels[:, :, 0] = 255
    image.fromarray(pixels).save(tmp_path / "a.png")
    value = read(InputSpec("x", np.dtype(np.float32), shape), str(tmp_path / "a.png"))
    red = value[:, 0] if shape[1] == 3 else value[..., 0]
    assert value.shape == shape
    assert red.min() == 1
    assert value.sum() == red.size


def test_what_is_not_given_is_generated(tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", np.arange(14).reshape(2, 7))
    values = gather([X, IDS], [f"ids={tmp_path / 'ids.npy'}"])
    np.testing.assert_array_equal(values["ids"], np.arange(14).reshape(2, 7))
    np.testing.assert_array_equal(values["x"], generate([X])["x"])


def test_one_seed_serves_every_input() -> None:
    np.testing.assert_array_equal(gather([X, IDS], ["random:5"])["x"], generate([X], 5)["x"])


def test_a_seed_of_one_input_has_the_sizes_of_the_others() -> None:
    names = InputSpec("names", np.dtype(np.int64), ("batch", 3))
    some = spec("s", "seq(tensor(float))", ["s", "s.0", 2])
    dims = {"batch": 16, "s": 5}
    values = gather([IDS, names, some], ["names=random:7", "s=random:8"], dims=dims)
    np.testing.assert_array_equal(values["names"], generate([names], 7, dims)["names"])
    np.testing.assert_array_equal(values["ids"], generate([IDS], 0, dims)["ids"])
    assert [e.shape for e in values["s"]] == [(2, 2)] * 5
    np.testing.assert_array_equal(values["s"][4], generate([some], 8, dims)["s"][4])


def test_a_seed_of_one_input_has_the_sizes_of_a_file(tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", np.zeros((9, 7), np.int64))
    names = InputSpec("names", np.dtype(np.int64), ("batch", 3))
    sources = ["names=random:7", f"ids={tmp_path / 'ids.npy'}"]
    assert gather([IDS, names], sources, dims={"batch": 16})["names"].shape == (9, 3)


def test_names_and_paths_may_hold_equals_signs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "date=2024"
    folder.mkdir()
    for name, number in (("x", 1.0), ("x=y", 2.0)):
        np.save(folder / f"{name}.npy", np.full(2, number, np.float32))
    plain, other = (InputSpec(n, np.dtype(np.float32), (2,)) for n in ("x", "x=y"))
    sources = ["x=date=2024/x.npy", "x=y=date=2024/x=y.npy"]
    values = gather([plain, other], sources)
    assert [values[n].tolist() for n in ("x", "x=y")] == [[1, 1], [2, 2]]
    assert gather([plain], ["date=2024/x=y.npy"])["x"].tolist() == [2, 2]
    with pytest.raises(UserError, match="no input 'z'"):
        gather([plain], ["z=date=2024/x.npy"])


def test_a_file_of_one_array_serves_one_input(tmp_path: Path) -> None:
    first, second = (InputSpec(n, np.dtype(np.float32), (2,)) for n in "xy")
    path = tmp_path / "one.npz"
    np.savez(path, a=np.ones(2, np.float32))
    assert gather([first], [str(path)])["x"].tolist() == [1, 1]
    assert gather([first, second], [f"x={path}"])["x"].tolist() == [1, 1]
    with pytest.raises(UserError, match="has no array 'x'; it has 'a'"):
        gather([first, second], [str(path)])
    np.savez(path, x=np.zeros(2, np.float32), y=np.zeros(2, np.float32))
    values = gather([first, second], [str(path), "x=random:3"])
    assert values["x"].all()
    assert not values["y"].any()


def _write_bad_files(folder: Path) -> None:
    (folder / "bad.npy").write_bytes(b"no numpy file")
    (folder / "bad.npz").write_bytes(b"PK no archive")
    (folder / "bad.pb").write_bytes(b"\xff\xff no tensor")
    (folder / "bad.png").write_bytes(b"no image")
    (folder / "a.txt").write_text("1")
    np.save(folder / "f64.npy", np.zeros((1, 3, 4, 5)))
    np.save(folder / "small.npy", np.zeros((1, 3), np.float32))
    np.savez(folder / "two.npz", a=np.zeros(1), b=np.zeros(1))


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("x=missing.npy", "no such file"),
        ("x=bad.npy", "is no numpy file"),
        ("x=bad.npz", "is no numpy file"),
        ("x=bad.pb", "is no ONNX TensorProto"),
        ("x=a.txt", "rutc reads .npy"),
        ("x=f64.npy", "has dtype float64, the model takes float32"),
        ("x=small.npy", r"has shape \[1, 3\], the model takes \[1, 3, 4, 5\]"),
        ("x=two.npz", "has no array 'x'"),
        ("x=random:a", "--input x=random:a: write random:SEED"),
        ("z=random:1", "no input 'z'"),
        ("f64.npy", "has 2 inputs"),
    ],
)
def test_bad_sources_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argument: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    _write_bad_files(tmp_path)
    with pytest.raises(UserError, match=message):
        gather([X, IDS], [argument])


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("x=missing.npy", "no such file"),
        ("missing.npz", "no such file"),
        ("x=bad.npy", "is no numpy file"),
        ("x=bad.npz", "is no numpy file"),
        ("x=a.txt", "rutc reads .npy"),
        ("x=random:a", "random:SEED"),
        ("z=random:1", "no input 'z'; it has 'x', 'b'"),
        ("small.npy", "has 2 inputs"),
        ("x=f64.npy", "has dtype float64"),
        ("x=small.npy", "has shape"),
    ],
)
@pytest.mark.parametrize("command", [compile, verify])
def test_sources_are_checked_before_much_is_compiled(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: Callable[..., object],
    argument: str,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    _write_bad_files(tmp_path)
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [3]) for n in ("x", "b", "y")]
    node = helper.make_node("Add", ["x", "b"], ["y"])
    graph = helper.make_graph([node], "m", ports[:2], ports[2:])
    onnx.save(helper.make_model(graph, ir_version=10), tmp_path / "m.onnx")
    stages: list[str] = []
    with pytest.raises(UserError, match=message):
        command("m.onnx", inputs=[argument], on_progress=lambda stage, *_: stages.append(stage))
    assert set(stages) == {"import"}


def test_strings_that_an_input_may_not_be_held_to_are_told_beside_given_ones(
    tmp_path: Path,
) -> None:
    source = """<ir_version: 9, opset_import: ["" : 20]>
        g (string[2] x, string[2] z) => (string[2] y) { y = StringConcat (x, z) }"""
    onnx.save(parser.parse_model(source), tmp_path / "m.onnx")
    np.save(tmp_path / "z.npy", np.array(["a", "b"]))
    with pytest.raises(UserError, match="input 'x' is of strings"):
        compile(
            tmp_path / "m.onnx",
            tmp_path / "m.so",
            values={"x": np.array(["a", "b"], object)},
            inputs=[f"z={tmp_path / 'z.npy'}"],
        )


def test_an_input_is_given_once() -> None:
    with pytest.raises(UserError, match="given twice"):
        gather([X], ["x=random:1", "x=random:2"])


def test_pickled_arrays_are_not_loaded(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(UserError, match="is no numpy file"):
        read(X, str(tmp_path / "a.npy"))


def test_images_that_are_too_large_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = pytest.importorskip("PIL.Image")
    image.fromarray(np.zeros((6, 5, 3), np.uint8)).save(tmp_path / "a.png")
    monkeypatch.setattr(image, "MAX_IMAGE_PIXELS", 4)
    with pytest.raises(UserError, match=r"a.png is no image that pillow can read: .*exceeds limit"):
        read(X, str(tmp_path / "a.png"))


@pytest.mark.parametrize("onnx_type", ["float", "double", "int8", "int64", "complex64", "string"])
def test_inputs_that_do_not_fit_in_memory_while_they_are_drawn_are_refused(
    monkeypatch: pytest.MonkeyPatch, onnx_type: str
) -> None:
    items = [spec(name, f"tensor({onnx_type})", [100, 100]) for name in "ab"]
    tracemalloc.start()
    held = generate(items)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(held) == 2

    def machine_of(memory: float) -> None:
        sizes = {"SC_PHYS_PAGES": int(memory), "SC_PAGE_SIZE": 1}
        monkeypatch.setattr("os.sysconf", sizes.__getitem__)

    machine_of(0.9 * peak)
    with pytest.raises(UserError, match="inputs of random numbers would take"):
        generate(items)
    machine_of(2.5 * peak)
    generate(items)


def test_a_file_of_all_inputs_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "all.npz"
    np.savez(path, allow_pickle=False, x=np.ones(3, np.float32), b=np.zeros(3, np.float32))
    opened: list[Path] = []

    def opening(path: Path) -> dict[str, np.ndarray]:
        opened.append(path)
        return open_npz(path)

    monkeypatch.setattr("rutc.verify.feeding.input_files.open_npz", opening)
    items = [InputSpec(name, np.dtype(np.float32), (3,)) for name in "xb"]
    found = gather(items, [str(path)])
    assert (found["x"].sum(), found["b"].sum()) == (3, 0)
    assert opened == [path]


def test_lengths_are_those_of_sequences_and_last_positions() -> None:
    ints, mask = np.dtype(np.int32), InputSpec("m", np.dtype(np.bool_), ())
    single = [InputSpec("a", ints, ()), InputSpec("b", ints, (1,))]
    rows = InputSpec("c", ints, ("batch",))
    others = [IDS, InputSpec("d", np.dtype(np.int8), ()), mask, X]
    made = generate([*single, rows, *others], dims={"batch": 3}, length=18)
    for item in single:
        np.testing.assert_array_equal(made[item.name], np.full(item.shape, 18))
    np.testing.assert_array_equal(made["c"], [17, 17, 17])
    plain = generate(others, dims={"batch": 3})
    for item in others:
        np.testing.assert_array_equal(made[item.name], plain[item.name])


def test_floats_that_divide_as_integers_are_none_that_become_zero(tmp_path: Path) -> None:
    text = (
        "g (int64[n] x, float[n] d, float16[1] e, double f) => (int64[n] y)"
        " { c = Cast <to = 7> (d) k = Cast <to = 7> (e) l = Cast <to = 7> (f)"
        " q = Div (x, c) r = Mod (q, k) y = Div (r, l) }"
    )
    header = '<ir_version: 10, opset_import: ["" : 17]> '
    onnx.save(parser.parse_model(header + text), tmp_path / "m.onnx")
    library = compile(tmp_path / "m.onnx", tmp_path / "m.so").library
    assert verify(tmp_path / "m.onnx", library).passed
    with load(library) as session:
        for seed in range(8):
            given = session_values(session, [f"random:{seed}"], {"n": 99})
            for name in "def":
                assert (np.abs(given[name]) >= 1).all()


@pytest.mark.parametrize("kind", ["int64", "int32", "uint8", "int8"])
def test_nothing_is_divided_by_zero(tmp_path: Path, kind: str) -> None:
    """ONNX Runtime ends where it is."""
    text = (
        f"g ({kind}[n, 3] x, {kind}[n, 3] d, {kind}[1] e) => ({kind}[n, 3] q, {kind}[n, 3] r)"
        " { q = Div (x, d) r = Mod (x, e) }"
    )
    header = '<ir_version: 10, opset_import: ["" : 17]> '
    onnx.save(parser.parse_model(header + text), tmp_path / "m.onnx")
    library = compile(tmp_path / "m.onnx", tmp_path / "m.so").library
    assert verify(tmp_path / "m.onnx", library).passed
    with load(library) as session:
        given = session_values(session, ["random:7"])
        (q, r) = session.run(None, given)
    assert given["d"].all()
    assert given["e"].all()
    assert (given["x"] == 0).any()
    exact = given["x"].astype(object)
    np.testing.assert_array_equal(r, exact % given["e"].astype(object))
    assert q.any()
