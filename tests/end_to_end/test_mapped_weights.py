"""Weights that are mapped from a model's file: memory holds one at a time, till it is written."""

import re
import subprocess
import sys
from itertools import pairwise
from mmap import ACCESS_COPY, PAGESIZE, mmap
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from rutc.base.mapped import drop_pages, is_mapped
from rutc.driver.parts.weights import Weights
from rutc.emit.host_program.program import Program
from rutc.emit.linking.elf import replace_bytes
from rutc.emit.linking.weight_data import Late, byte_count, byte_view
from rutc.emit.linking.weight_image import weight_image
from rutc.errors import InternalError
from rutc.runtime import load
from rutc.tensor_ir.data import Data
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.graph import Const
from rutc.tensor_ir.layout import Axis, Layout, dense, in_nibbles
from rutc.tensor_ir.nodes import Value
from rutc.verify.judging.tolerance import Level
from tests.close import assert_close

DEEP, LAYERS = 2048, 8
MODEL_BYTES = LAYERS * DEEP * DEEP * 4


def mapped(path: Path, array: np.ndarray) -> np.ndarray:
    """An equal array that is mapped from a new file, a few bytes after its beginning."""
    path.write_bytes(bytes(192) + array.tobytes())
    bytes_ = np.memmap(path, np.uint8, mode="r")[192:]
    return np.frombuffer(bytes_, array.dtype).reshape(array.shape)


def resident(path: Path) -> int:
    """The bytes of a file that this process has in memory."""
    text = Path("/proc/self/smaps").read_text(encoding="utf-8")
    found = re.findall(rf" {re.escape(str(path))}\n(?:.*\n)*?Rss: +(\d+) kB", text)
    return 1024 * sum(map(int, found))


def test_pages_that_are_dropped_are_read_again(tmp_path: Path) -> None:
    numbers = np.random.default_rng(0).integers(0, 256, 64 * PAGESIZE, np.uint8).reshape(64, -1)
    array = mapped(tmp_path / "w", numbers)
    assert is_mapped(array)
    assert is_mapped(array.T[3:])
    for part in (array, array.T, array[::-1], array[:, ::3]):
        assert np.array_equal(array, numbers)
        assert resident(tmp_path / "w") > 60 * PAGESIZE
        drop_pages(part)
        assert resident(tmp_path / "w") <= 2 * PAGESIZE, "those at the ends hold other bytes, too"
    drop_pages(array[:0])
    assert np.array_equal(array, numbers)


def test_memory_that_is_no_file_keeps_what_was_written(tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(bytes(4 * PAGESIZE))
    with (tmp_path / "w").open("rb") as file:
        own = np.frombuffer(mmap(file.fileno(), 0, access=ACCESS_COPY), np.uint8)
    usual = np.zeros(4 * PAGESIZE, np.uint8)
    for array in (own, usual):
        array[:] = 7
        assert not is_mapped(array)
        drop_pages(array)
        assert (array == 7).all()


def test_constants_of_files_let_go_of_their_pages(tmp_path: Path) -> None:
    numbers = np.arange(64 * PAGESIZE, dtype=np.float32)
    data = Data(mapped(tmp_path / "w", numbers))
    for find in (lambda: data.is_finite, lambda: hash(data), lambda: data.digest, lambda: data.few):
        assert find()
        assert resident(tmp_path / "w") <= 2 * PAGESIZE
    assert np.array_equal(data.array, numbers)
    assert resident(tmp_path / "w") > 60 * PAGESIZE
    data.forget()
    assert resident(tmp_path / "w") <= 2 * PAGESIZE


LAYOUTS = {
    "as it is": dense(("a", "b"), {"a": 37, "b": 53}),
    "turned": dense(("b", "a"), {"a": 37, "b": 53}),
    "in panels": Layout((Axis("b", 7, 37 * 8, 8), Axis("a", 37, 8), Axis("b", 8, 1)), (), None, ()),
    "in nibbles": in_nibbles(dense(("a", "b"), {"a": 37, "b": 53})),
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_what_is_laid_out_late_is_what_it_is_at_once(tmp_path: Path, layout: Layout) -> None:
    small = np.random.default_rng(0).integers(-8, 8, (37, 53)).astype(np.int8)
    images = []
    for array in (small, mapped(tmp_path / "w", small)):
        weights, value = Weights(), Value("w", DType.I8, ("a", "b"))
        const = Const(value, ("a", "b"), Data(array))
        weights.pack(const, layout)
        weights.place(const, layout)
        images.append(weights)
    (((_, eager),), ((_, late),)) = (w.images for w in images)
    assert not isinstance(eager, Late)
    assert isinstance(late, Late)
    assert byte_count(late) == byte_count(eager)
    assert bytes(byte_view(late)) == bytes(byte_view(eager))
    assert images[0].bytes == images[1].bytes


def test_late_weights_are_made_in_order_and_forgotten_once_written() -> None:
    told: list[str] = []

    def late(name: str, fill: int, count: int) -> Late:
        def make() -> np.ndarray:
            told.append(f"make {name}")
            return np.full(count, fill, np.uint8)

        return Late(count, make, lambda: told.append(f"forget {name}"))

    weights = ((64, late("b", 2, 7)), (0, late("a", 1, 33)))
    image = weight_image([Program("m", (), (), 0, (), weights, 128)])
    assert not told, "a program by itself shares nothing"
    assert b"".join(image.parts()) == b"\1" * 33 + bytes(31) + b"\2" * 7 + bytes(57)
    assert told == ["make a", "forget a", "make b", "forget b"]
    shared = weight_image([Program("m", (), (), 0, (), (w,), 128) for w in weights[::-1]])
    assert len(told) == 8, "programs are compared by what they have"
    assert [p.place(64 * n) for n, p in enumerate(shared.placed)] == [0, 4096]


def test_bytes_are_replaced_where_they_are(tmp_path: Path) -> None:
    from rutc.emit.linking.library import build_library

    data = np.frombuffer(b"other bytes" * 9, np.uint8)
    program = Program("m", (), (), 0, (), ((0, data),), 128)
    library = build_library(program, [], tmp_path / "m.so", {"told": "some bytes, some bytes"})
    before = library.library.read_bytes()
    replace_bytes(library.library, b"some bytes", b"same bytes")
    assert library.library.read_bytes() == before.replace(b"some bytes", b"same bytes")
    with pytest.raises(InternalError, match=r"m\.so lacks the bytes"):
        replace_bytes(library.library, b"other bytes", b"OTHER bytes")


PEAK = """
import sys
from pathlib import Path
import rutc
rutc.compile(sys.argv[1], sys.argv[2], weights=sys.argv[3], verify=False, db="none")
status = Path("/proc/self/status").read_text(encoding="utf-8")
print(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))
"""


def products(path: Path, deep: int, *, beside: bool) -> Path:
    """Products by one matrix after another, which lie in the model's file or beside it."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((deep, deep), np.float32) / deep for _ in range(LAYERS)]
    weights = [numpy_helper.from_array(a, f"w{n}") for n, a in enumerate(arrays)]
    names = ["x", *(f"x{n}" for n in range(LAYERS - 1)), "y"]
    nodes = [
        helper.make_node("MatMul", [a, f"w{n}"], [b]) for n, (a, b) in enumerate(pairwise(names))
    ]
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [9, deep]) for n in ("x", "y")]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    path.parent.mkdir()
    onnx.save(model, path, save_as_external_data=beside, location="data")
    return path


@pytest.mark.parametrize("beside", [False, True], ids=["one file", "data beside it"])
@pytest.mark.parametrize("placement", ["embed", "external"])
def test_a_compilation_has_no_room_for_all_weights(
    tmp_path: Path, placement: str, beside: bool
) -> None:
    peaks = []
    for deep in (16, DEEP):
        model = products(tmp_path / f"{deep}" / "m.onnx", deep, beside=beside)
        library = model.with_name("m.so")
        command = [sys.executable, "-c", PEAK, model, library, placement]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        peaks.append(1024 * int(done.stdout))
    assert peaks[1] - peaks[0] < MODEL_BYTES // 2
    x = np.random.default_rng(1).standard_normal((9, DEEP)).astype(np.float32)
    expected = x
    for w in onnx.load(model).graph.initializer:
        expected = expected @ numpy_helper.to_array(w)
    with load(library, check_integrity=True) as session:
        (y,) = session.run(None, {"x": x})
    assert_close(y, expected, reduction=DEEP, level=Level.MODEL)
