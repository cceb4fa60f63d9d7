"""States: what a session keeps from run to run, against ONNX Runtime that is fed it back."""

import re
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from rutc import cli
from rutc.driver.api import compile
from rutc.emit.linking.bundle import write_loader
from rutc.emit.linking.elf import HUGE_PAGE_BYTES, seal
from rutc.errors import UserError
from rutc.runtime import InferenceSession, ModelError, load
from rutc.verify.feeding.whole import WholeSession
from rutc.verify.judging.tolerance import Level
from tests.close import assert_close
from tests.runtime.conftest import run_c

HEADS, SIZE, MOST = 2, 8, 20
FLOAT = TensorProto.FLOAT
Array = np.ndarray
Ports = list[onnx.ValueInfoProto]
AXES: dict[int, list[int | str]] = {
    0: ["t", 1, HEADS, SIZE],
    2: [1, HEADS, "t", SIZE],
    3: [1, HEADS, SIZE, "t"],
}
"""Shapes of caches that grow along an axis."""
ORDERS = {0: (1, 0, 2, 3), 2: (0, 2, 1, 3), 3: (0, 2, 3, 1)}
"""How {1, t, HEADS, SIZE} becomes such a cache."""


def _value(name: str, shape: Sequence[int | str]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, FLOAT, shape)


def _save(
    path: Path,
    nodes: list[onnx.NodeProto],
    inputs: Ports,
    outputs: Ports,
    data: Mapping[str, Array],
) -> Path:
    constants = [numpy_helper.from_array(x, name) for name, x in data.items()]
    graph = helper.make_graph(nodes, "step", inputs, outputs, constants)
    opsets = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


def _decoder(folder: Path, axis: int = 2) -> Path:
    """Attention over a cache of keys and values that a step appends to along `axis`."""
    rng = np.random.default_rng(0)
    width = HEADS * SIZE
    data: dict[str, Array] = {
        f"w{n}": rng.standard_normal((width, width)).astype(np.float32) / 4 for n in "qkv"
    }
    data |= {"split": np.array([1, -1, HEADS, SIZE]), "joined": np.array([1, -1, width])}
    make = helper.make_node
    # From a cache's axes to {1, HEADS, t, SIZE}.
    common = [list(ORDERS[axis]).index(d) for d in (0, 2, 1, 3)]
    nodes = []
    for n in "qkv":
        order = ORDERS[axis] if n != "q" else (0, 2, 1, 3)
        nodes += [
            make("MatMul", ["x", f"w{n}"], [f"{n}0"]),
            make("Reshape", [f"{n}0", "split"], [f"{n}1"]),
            make("Transpose", [f"{n}1"], [n], perm=order),
        ]
    for n in "kv":
        nodes += [
            make("Concat", [f"past.{n}", n], [f"present.{n}"], axis=axis),
            make("Transpose", [f"present.{n}"], [f"{n}2"], perm=common),
        ]
    nodes += [
        make("Transpose", ["k2"], ["k3"], perm=[0, 1, 3, 2]),
        make("MatMul", ["q", "k3"], ["s"]),
        make("Softmax", ["s"], ["p"], axis=-1),
        make("MatMul", ["p", "v2"], ["o"]),
        make("Transpose", ["o"], ["o1"], perm=[0, 2, 1, 3]),
        make("Reshape", ["o1", "joined"], ["y"]),
    ]
    shapes = [["past" if d == "t" else d for d in AXES[axis]] for _ in "kv"]
    grown = [["total" if d == "t" else d for d in AXES[axis]] for _ in "kv"]
    return _save(
        folder / "step.onnx",
        nodes,
        [_value("x", [1, "new", width])]
        + [_value(f"past.{n}", s) for n, s in zip("kv", shapes, strict=True)],
        [_value("y", [1, "new", width])]
        + [_value(f"present.{n}", s) for n, s in zip("kv", grown, strict=True)],
        data,
    )


def _compiled(model: Path, **more: object) -> Path:
    dims = {"past": (0, MOST), "new": (1, 6)}
    states = {"past": "present"}
    library = model.with_suffix(".so")
    compile(model, library, dims=dims, states=states, **more)  # type: ignore[arg-type]
    return library


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library; the model lies beside it."""
    return _compiled(_decoder(tmp_path_factory.mktemp("decoder")))


class Fed:
    """ONNX Runtime, fed its caches back."""

    def __init__(self, model: Path, axis: int = 2) -> None:
        self.session = onnxruntime.InferenceSession(str(model))
        empty = np.zeros([d if isinstance(d, int) else 0 for d in AXES[axis]], np.float32)
        self.cache = {"k": empty, "v": empty}

    def step(self, x: Array) -> Array:
        feed = {"x": x, **{f"past.{n}": c for n, c in self.cache.items()}}
        y, self.cache["k"], self.cache["v"] = self.session.run(None, feed)
        return np.asarray(y)


def _tokens(seed: int, new: int) -> Array:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((1, new, HEADS * SIZE)).astype(np.float32)


def _step(session: InferenceSession, fed: Fed, x: Array) -> None:
    """A step of both gives the same, the caches included."""
    (y,) = session.run(None, {"x": x})
    assert_close(y, fed.step(x), level=Level.MODEL)
    for n in "kv":
        assert_close(session.get_state(f"past.{n}"), fed.cache[n], level=Level.MODEL)


def test_a_state_of_another_type_than_its_manifest_says_is_not_read(
    tmp_path: Path, decoder: Path
) -> None:
    """Elements of twice the size would be read beyond its memory."""
    said = re.compile(rb'("name":\s*"past.k",\s*"dtype":\s*"float)32')
    changed, count = said.subn(rb"\g<1>64", decoder.read_bytes())
    assert count == 1
    (tmp_path / "step.so").write_bytes(changed)
    seal(tmp_path / "step.so")
    with load(tmp_path / "step.so") as session:
        assert session.get_state("past.v").size == 0
        session.run(None, {"x": _tokens(0, 2)})
        assert session.get_state("past.v").size == 2 * HEADS * SIZE
        with pytest.raises(ModelError, match=r"another type of 'past.k' than float64"):
            session.get_state("past.k")


@pytest.mark.parametrize("axis", sorted(AXES))
@pytest.mark.parametrize("threads", [1, 2])
def test_steps_agree_with_feeding_back(tmp_path: Path, axis: int, threads: int) -> None:
    model = _decoder(tmp_path, axis)
    found = compile(
        model,
        tmp_path / "step.so",
        dims={"past": (0, MOST), "new": (1, 6)},
        states={"past.*": "present.*"},
    )
    assert found.verification is not None
    assert found.verification.passed
    assert "step 3" in found.verification.inputs
    fed = Fed(model, axis)
    with load(tmp_path / "step.so", threads=threads) as session:
        assert [port.name for port in session.get_inputs()] == ["x"]
        assert [port.name for port in session.get_outputs()] == ["y"]
        listed = session.manifest["states"]
        assert isinstance(listed, list)
        assert all(s["in_place"] and s["capacity"] == MOST for s in listed)
        for seed, new in enumerate((3, 1, 1, 6, 2, 1, 1)):
            _step(session, fed, _tokens(seed, new))


GROUPED, GROUPS, WIDE = 4, 2, 16
"""Heads of queries, and of keys and values, of grouped attention, and their size."""


def _grouped(folder: Path) -> Path:
    """GroupQueryAttention over a cache, told by a mask how long it is with the new tokens."""
    rng = np.random.default_rng(0)
    angles = rng.uniform(0, 6, (MOST, WIDE // 2))
    data: dict[str, Array] = {
        "cos": np.cos(angles).astype(np.float32),
        "sin": np.sin(angles).astype(np.float32),
        "axis": np.array([1]),
        "one": np.array(1),
    }
    make = helper.make_node
    names = ["x", "", "", "past.k", "past.v", "last", "total", "cos", "sin"]
    nodes = [
        make("ReduceSum", ["mask", "axis"], ["count"], keepdims=0),
        make("Sub", ["count", "one"], ["end"]),
        make("Cast", ["end"], ["last"], to=TensorProto.INT32),
        make("Shape", ["mask"], ["shape"]),
        make("Gather", ["shape", "one"], ["length"]),
        make("Cast", ["length"], ["total"], to=TensorProto.INT32),
        make(
            "GroupQueryAttention",
            names,
            ["y", "present.k", "present.v"],
            domain="com.microsoft",
            num_heads=GROUPED,
            kv_num_heads=GROUPS,
            do_rotary=1,
        ),
    ]
    mask = helper.make_tensor_value_info("mask", TensorProto.INT64, [1, "all"])
    cache = [1, GROUPS, "past", WIDE]
    inputs = [_value("x", [1, "new", (GROUPED + 2 * GROUPS) * WIDE]), mask]
    inputs += [_value(f"past.{n}", cache) for n in "kv"]
    outputs = [_value("y", [1, "new", GROUPED * WIDE])]
    outputs += [_value(f"present.{n}", [1, GROUPS, "all", WIDE]) for n in "kv"]
    path = _save(folder / "grouped.onnx", nodes, inputs, outputs, data)
    model = onnx.load(path)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    onnx.save(model, path)
    return path


def test_grouped_attention_appends_where_caches_lie(tmp_path: Path) -> None:
    model = _grouped(tmp_path)
    dims: dict[str, int | tuple[int, int] | str] = {
        "past": (0, MOST),
        "new": (1, 6),
        "all": "past+new",
    }
    library = tmp_path / "grouped.so"
    found = compile(model, library, dims=dims, states={"past.*": "present.*"})
    assert found.verification is not None
    assert found.verification.passed
    reference = onnxruntime.InferenceSession(str(model))
    cache = {n: np.zeros((1, GROUPS, 0, WIDE), np.float32) for n in "kv"}
    rng = np.random.default_rng(1)
    with load(library, threads=1) as session:
        listed = session.manifest["states"]
        assert isinstance(listed, list)
        assert all(s["in_place"] for s in listed)
        held = 0
        for new in (3, 1, 5, 1):
            x = rng.standard_normal((1, new, (GROUPED + 2 * GROUPS) * WIDE)).astype(np.float32)
            held += new
            feed = {"x": x, "mask": np.ones((1, held), np.int64)}
            (y,) = session.run(None, feed)
            told = {**feed, **{f"past.{n}": c for n, c in cache.items()}}
            expected, cache["k"], cache["v"] = reference.run(None, told)
            assert_close(y, np.asarray(expected), level=Level.MODEL)
            for n in "kv":
                assert_close(session.get_state(f"past.{n}"), cache[n], level=Level.MODEL)
        mask = np.ones((1, held + 1), np.int64)
        mask[0, 2] = 0
        with pytest.raises(ModelError, match="does not end with the last of its keys"):
            session.run(None, {"x": x[:, :1], "mask": mask})
        assert session.get_state("past.k").shape[2] == held


def test_a_full_state_is_an_error_that_loses_nothing(decoder: Path) -> None:
    fed = Fed(decoder.with_suffix(".onnx"))
    with load(decoder) as session:
        for seed, new in enumerate((6, 6, 6)):
            _step(session, fed, _tokens(seed, new))
        with pytest.raises(ModelError, match=f"has 18 of at most {MOST} along axis 2, and what"):
            session.run(None, {"x": _tokens(9, 3)})
        _step(session, fed, _tokens(10, 2))
        with pytest.raises(ModelError, match=f"has {MOST} of at most {MOST} along axis 2"):
            session.run(None, {"x": _tokens(9, 1)})
        assert_close(session.get_state("past.k"), fed.cache["k"], level=Level.MODEL)
        session.reset()
        assert session.get_state("past.v").shape == (1, HEADS, 0, SIZE)
        _step(session, Fed(decoder.with_suffix(".onnx")), _tokens(11, 4))


def test_states_that_are_alike_are_shown_in_a_line(decoder: Path) -> None:
    shown = CliRunner().invoke(cli.app, ["inspect", str(decoder)]).output
    (line,) = (x for x in shown.splitlines() if "state" in x)
    assert line.startswith("2 states past.k .. past.v [")
    assert "] = present.k .. present.v, axis 2 up to " in line


def test_sessions_keep_their_own_states(decoder: Path) -> None:
    with load(decoder, threads=2) as a, load(decoder, threads=1) as b:
        feds = [Fed(decoder.with_suffix(".onnx")) for _ in "ab"]
        for seed in range(5):
            _step(a, feds[0], _tokens(seed, 1))
            _step(b, feds[1], _tokens(100 + seed, 2))


def test_a_state_is_forked_and_cut(decoder: Path) -> None:
    with load(decoder) as a, load(decoder) as b:
        a.run(None, {"x": _tokens(0, 5)})
        for n in "kv":
            b.set_state(f"past.{n}", a.get_state(f"present.{n}"))
        (y,) = a.run(None, {"x": _tokens(1, 2)})
        np.testing.assert_array_equal(b.run(None, {"x": _tokens(1, 2)})[0], y)
        a.shorten(5)
        np.testing.assert_array_equal(a.run(None, {"x": _tokens(1, 2)})[0], y)
        a.shorten(100)
        assert a.get_state("past.k").shape[2] == 7


def test_states_are_set_from_strided_arrays_and_from_themselves(decoder: Path) -> None:
    with load(decoder) as session:
        wide = np.random.default_rng(0).standard_normal((1, HEADS, 8, 2 * SIZE)).astype(np.float32)
        session.set_state("past.k", wide[:, :, ::2, ::2])
        np.testing.assert_array_equal(session.get_state("past.k"), wide[:, :, ::2, ::2])


def test_states_that_do_not_belong_together_are_refused(decoder: Path) -> None:
    with load(decoder) as session:
        session.run(None, {"x": _tokens(0, 2)})
        before = session.get_state("past.k")
        session.set_state("past.v", np.zeros((1, HEADS, 5, SIZE), np.float32))
        with pytest.raises(ModelError, match="is past"):
            session.run(None, {"x": _tokens(0, 1)})
        np.testing.assert_array_equal(session.get_state("past.k"), before)


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "why"),
    [
        ("past.x", (1, HEADS, 1, SIZE), "float32", "no state 'past.x'"),
        ("past.k", (1, HEADS, MOST + 1, SIZE), "float32", f"room for {MOST} along axis 2"),
        ("past.k", (1, HEADS, SIZE), "float32", "must have shape"),
        ("past.k", (1, HEADS, 1, SIZE), "float64", "must have dtype float32"),
    ],
)
def test_what_no_state_can_be(
    decoder: Path, name: str, shape: tuple[int, ...], dtype: str, why: str
) -> None:
    with load(decoder) as session, pytest.raises(ModelError, match=why):
        session.set_state(name, np.zeros(shape, dtype))


def test_several_threads_use_one_session(decoder: Path) -> None:
    with load(decoder, threads=2) as session:

        def work() -> None:
            for _ in range(4):
                session.run(None, {"x": np.ones((1, 1, HEADS * SIZE), np.float32)})

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        keys = session.get_state("past.k")
        assert keys.shape[2] == 12
        assert (keys == keys[:, :, :1]).all()


def test_the_whole_session_takes_and_gives_states(decoder: Path) -> None:
    rng = np.random.default_rng(3)
    cache = {f"past.{n}": rng.standard_normal((1, HEADS, 7, SIZE)).astype(np.float32) for n in "kv"}
    x = _tokens(0, 2)
    reference = onnxruntime.InferenceSession(str(decoder.with_suffix(".onnx")))
    with WholeSession(decoder) as session:
        for found, expected in zip(
            session.run(None, {"x": x, **cache}),
            reference.run(None, {"x": x, **cache}),
            strict=True,
        ):
            assert_close(found, expected, level=Level.MODEL)
        (only,) = session.run(["present.v"], {"x": x, **cache})
        assert only.shape == (1, HEADS, 9, SIZE)


def test_the_single_file_runtime_keeps_states(decoder: Path, tmp_path: Path) -> None:
    write_loader(tmp_path)
    program = f"""
import numpy as np
import rutc_runtime
session = rutc_runtime.load({str(decoder)!r})
for _ in range(3):
    session.run(None, {{"x": np.ones((1, 2, {HEADS * SIZE}), np.float32)}})
print(session.get_state("past.k").shape)
session.reset()
print(session.get_state("past.k").shape)
"""
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}){program}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split("\n")[:2] == ["(1, 2, 6, 8)", "(1, 2, 0, 8)"]


def test_states_that_huge_pages_hold_together_share_them(tmp_path: Path) -> None:
    """Caches of layers are often smaller than such a page each: it is asked for all of them."""
    most = (HUGE_PAGE_BYTES - 64) // (HEADS * SIZE * 4)
    dims = {"past": (0, most), "new": (1, 6)}
    library = tmp_path / "model.so"
    compile(_decoder(tmp_path), library, dims=dims, states={"past": "present"}, verify=False)
    main = """int main(void) {
  rutc_session *session = model_open(NULL);
  DLTensor keys, values;
  printf("%d ", model_get_state(session, "past.k", &keys));
  printf("%d ", model_get_state(session, "past.v", &values));
  printf("%zu ", (size_t)keys.data % PAGE);
  printf("%zu\\n", (size_t)((char *)values.data - (char *)keys.data));
  model_close(session);
  return 0;
}
"""
    head = '#include <stdio.h>\n#include "model.h"\n'
    printed = run_c(tmp_path, head + main.replace("PAGE", str(HUGE_PAGE_BYTES)))
    assert printed.split() == ["0", "0", "0", str(most * HEADS * SIZE * 4)]


# -- states of one shape ------------------------------------------------------------------------
def _cell(folder: Path) -> Path:
    """A cell whose states change places: h' = tanh(x w + c), c' = h + c."""
    make = helper.make_node
    nodes = [
        make("MatMul", ["x", "w"], ["a"]),
        make("Add", ["a", "c"], ["b"]),
        make("Tanh", ["b"], ["h.next"]),
        make("Add", ["h", "c"], ["c.next"]),
        make("Sub", ["h.next", "h"], ["y"]),
    ]
    w = np.random.default_rng(1).standard_normal((4, 4)).astype(np.float32)
    names = ("x", "h", "c"), ("y", "h.next", "c.next")
    inputs, outputs = ([_value(n, [2, 4]) for n in group] for group in names)
    return _save(folder / "cell.onnx", nodes, inputs, outputs, {"w": w})


def test_states_of_one_shape_replace_each_other(tmp_path: Path) -> None:
    model = _cell(tmp_path)
    found = compile(model, tmp_path / "cell.so", states={"h": "h.next", "c": "c.next"})
    assert found.verification is not None
    assert found.verification.passed
    reference = onnxruntime.InferenceSession(str(model))
    h = c = np.zeros((2, 4), np.float32)
    with load(tmp_path / "cell.so") as session:
        for seed in range(5):
            x = np.random.default_rng(seed).standard_normal((2, 4)).astype(np.float32)
            y, h, c = reference.run(None, {"x": x, "h": h, "c": c})
            assert_close(session.run(None, {"x": x})[0], y, level=Level.MODEL)
            assert_close(session.get_state("h"), h, level=Level.MODEL)
            assert_close(session.get_state("c.next"), c, level=Level.MODEL)
        session.reset()
        assert not session.get_state("c").any()


def test_states_that_swap_places_are_read_before_they_are_written(tmp_path: Path) -> None:
    """Each state becomes the other: what wrote one in place would read it afterwards."""
    make = helper.make_node
    nodes = [make("Neg", ["a"], ["b.next"]), make("Abs", ["b"], ["a.next"])]
    nodes.append(make("Add", ["x", "a"], ["y"]))
    names = ("x", "a", "b"), ("y", "a.next", "b.next")
    inputs, outputs = ([_value(n, [3]) for n in group] for group in names)
    model = _save(tmp_path / "swap.onnx", nodes, inputs, outputs, {})
    compile(model, tmp_path / "swap.so", states={"a": "a.next", "b": "b.next"})
    with load(tmp_path / "swap.so") as session:
        session.set_state("a", np.array([1, 2, 3], np.float32))
        session.set_state("b", np.array([-4, -5, -6], np.float32))
        (y,) = session.run(None, {"x": np.zeros(3, np.float32)})
        assert y.tolist() == [1, 2, 3]
        assert session.get_state("a").tolist() == [4, 5, 6]
        assert session.get_state("b").tolist() == [-1, -2, -3]


def test_a_model_is_compiled_with_states_to_be_verified(tmp_path: Path) -> None:
    states = ["--state", "h=h.next", "--state", "c=c.next"]
    done = CliRunner().invoke(cli.app, ["verify", str(_cell(tmp_path)), *states])
    assert done.exit_code == 0, done.stderr
    assert "step 1; step 2" in " ".join(done.stdout.split())


# -- what is refused ----------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--state", "past=present"], "nothing bounds past"),
        (["--state", "past.k=present.k", "--dim", "past=5"], "leave what grows open"),
        (["--state", "present.k=past.k"], "the input comes first: write --state past.k=present.k"),
        (["--state", "past.k=y", "--dim", "past=0..9"], "is no input of the next run"),
        (["--state", "past.q=present.q"], "there is no input 'past.q'"),
        (["--state", "past.*=later.*"], "there is no output 'later.k'"),
        (["--state", "past.*=present"], "both names have one"),
        (["--state", "past.k"], "write INPUT=OUTPUT"),
        (["--state", "past.k=present.k", "--state", "past=present"], "'past.k' is a state already"),
        (["--state", "x=y"], "fix new with --dim new=N"),
    ],
)
def test_what_cannot_be_a_state(tmp_path: Path, options: list[str], why: str) -> None:
    model = _decoder(tmp_path)
    done = CliRunner().invoke(
        cli.app, ["compile", str(model), *options, "-o", str(tmp_path / "x.so")]
    )
    assert done.exit_code == UserError.exit_status
    assert why in " ".join(done.stderr.split())
    assert not (tmp_path / "x.so").exists()


C_PROGRAM = r"""
#include <stdio.h>
#include <string.h>

#include "step.h"
#include "tensors.h"

static int step(rutc_session *session, int64_t new, float value) {
  float data[6 * 16];
  for (int i = 0; i < 6 * 16; i++) data[i] = value;
  int64_t shape[3] = {1, new, 16};
  DLTensor x = floats(data, 3, shape), y = {0};
  const DLTensor *inputs[] = {&x};
  DLTensor *outputs[] = {&y};
  return step_run(session, inputs, step_INPUTS, outputs, step_OUTPUTS);
}

int main(void) {
  rutc_session *session = step_open(NULL);
  DLTensor keys;
  for (int i = 0; i < 3; i++) printf("%d ", step(session, 6, 1));
  printf("%d %s\n", step(session, 6, 1), step_last_error(session));
  step_get_state(session, "past.k", &keys);
  printf("%d %d %d\n", (int)keys.shape[2], (int)keys.strides[1], (int)keys.strides[2]);
  int64_t shape[4];
  memcpy(shape, keys.shape, sizeof shape);
  shape[2] = 4;
  keys.shape = shape;
  printf("%d ", step_set_state(session, "past.k", &keys));
  step_get_state(session, "past.v", &keys);
  keys.shape = shape;
  printf("%d ", step_set_state(session, "past.v", &keys));
  printf("%d\n", step(session, 1, 1));
  step_get_state(session, "past.k", &keys);
  /* Of one token and of six: sums may be in other orders. */
  const float *first = keys.data, off = first[0] - first[4 * keys.strides[2]];
  printf("%d %d\n", (int)keys.shape[2], off < 1e-5f && off > -1e-5f && first[0] != 0);
  printf("%d %s\n", step_get_state(session, "x", &keys), step_last_error(session));
  printf("%d ", step_set_state(session, "past.k", NULL));
  printf("%d ", step_reset(session));
  step_get_state(session, "past.k", &keys);
  printf("%d\n", (int)keys.shape[2]);
  step_close(session);
  return 0;
}
"""


def test_the_example_of_the_docs_forgets(decoder: Path, tmp_path: Path) -> None:
    for suffix, name in ((".so", "model.so"), (".h", "step.h")):
        (tmp_path / name).write_bytes(decoder.with_suffix(suffix).read_bytes())
    page = (Path(__file__).resolve().parents[2] / "docs" / "c_api.md").read_text()
    (forget,) = (b for b in re.findall(r"```c\n(.*?)```", page, re.S) if "forget(" in b)
    main = """int main(void) {
  rutc_session *session = step_open(NULL);
  printf("%d ", step(session, 5, 1));
  printf("%d ", forget(session, 2));
  printf("%d ", step(session, 1, 1));
  DLTensor keys;
  printf("%d ", step_get_state(session, "past.k", &keys));
  printf("%d\\n", (int)keys.shape[2]);
  step_close(session);
  return 0;
}
"""
    head = C_PROGRAM[: C_PROGRAM.index("int main")]
    printed = run_c(tmp_path, head + forget.replace("model_", "step_") + main)
    assert printed.split() == ["0", "0", "0", "0", "3"]


def test_c_programs_reset_read_and_set_states(decoder: Path, tmp_path: Path) -> None:
    for suffix, name in ((".so", "model.so"), (".h", "step.h")):
        (tmp_path / name).write_bytes(decoder.with_suffix(suffix).read_bytes())
    lines = run_c(tmp_path, C_PROGRAM).splitlines()
    assert lines[0].startswith('0 0 0 7 state "past.k" has 18 of at most 20')
    assert lines[1:] == [
        f"18 {MOST * SIZE} {SIZE}",
        "0 0 0",
        "5 1",
        '1 the model has no state "x"',
        "1 0 0",
    ]
