"""The host runtime's routines against their meaning in numpy."""

import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from rutc.emit.host_program.call_source import call_tables
from rutc.emit.host_program.host_steps import Attribute, Call, Operand
from rutc.emit.host_program.kernel_call import Ref
from rutc.emit.host_program.ports import Port
from rutc.emit.host_program.program import Program
from rutc.emit.host_program.size_source import SizeTable
from rutc.emit.linking.library import build_library
from rutc.emit.targets import target_named
from rutc.errors import InternalError, UserError
from rutc.runtime import ModelError, load
from rutc.tensor_ir import DType
from rutc.tensor_ir.interpreter.routines import ROUTINES, Job, Result

KINDS = ["bool", "u8", "i8", "i16", "u32", "i64", "u64", "f16", "bf16", "f32", "f64"]


class Calling:
    """A library with one call, and its twin."""

    def __init__(
        self,
        folder: Path,
        routine: str,
        args: Sequence[np.ndarray],
        results: Sequence[Result],
        attributes: Mapping[str, Attribute],
        features: Collection[str] = (),
    ) -> None:
        self.job = (args, tuple(results), attributes)
        self.routine = routine
        inputs = tuple(Port(f"x{i}", a.dtype.name, a.shape) for i, a in enumerate(args))
        outputs = tuple(Port(f"y{i}", r.dtype.numpy.name, r.shape) for i, r in enumerate(results))
        call = Call(
            routine,
            tuple(Operand(Ref("input", i), p.dtype, p.shape) for i, p in enumerate(inputs)),
            tuple(Operand(Ref("output", i), p.dtype, p.shape) for i, p in enumerate(outputs)),
            tuple(attributes.items()),
            ("the node",),
        )
        self.path = folder / "m.so"
        program = Program("m", inputs, outputs, 0, (call,), features=tuple(sorted(features)))
        build_library(program, [], self.path, {})

    def runs(self, count: int = 1) -> list[list[np.ndarray]]:
        """The outputs of so many runs of one session."""
        feed = {f"x{i}": a for i, a in enumerate(self.job[0])}
        with load(self.path) as session:
            return [[a.copy() for a in session.run(None, feed)] for _ in range(count)]

    def expected(self, draws: int = 0) -> Sequence[np.ndarray]:
        """What the twin makes of it."""
        args, results, attributes = self.job
        return ROUTINES[self.routine](Job(args, results, attributes, ("the node",), draws))


def _numbers(kind: DType, shape: tuple[int, ...]) -> np.ndarray:
    """Few different numbers, the greatest, the least, both zeros and NaN among them."""
    rng = np.random.default_rng(len(kind.value))
    x = rng.integers(-5 if kind.is_signed else 0, 2 if kind is DType.BOOL else 6, shape)
    x = x.astype(kind.numpy)
    flat = x.reshape(-1)
    if kind.is_float:
        flat[[1, 5, 9, 12]] = [np.nan, -np.inf, np.inf, -0.0]
        flat[13] = -flat[1]
    elif kind is not DType.BOOL:
        flat[[3, 7]] = [np.iinfo(kind.numpy).min, np.iinfo(kind.numpy).max]
    return x


@pytest.mark.parametrize("shape", [(1,) * 65, (-2, -3), (2, 2), (1 << 32, 1 << 32)])
def test_a_box_has_as_many_elements_as_are_put_in(shape: tuple[int, ...], tmp_path: Path) -> None:
    args = [np.zeros(6, np.float32), np.array(shape)]
    calling = Calling(tmp_path, "box", args, [Result(DType.I64, ())], {})
    with pytest.raises(ModelError, match="the node: 6 elements do not have such a shape"):
        calling.runs()


SEPARATED = """
import sys
import numpy as np
from rutc.runtime import load
programs = np.tile(np.array([5, 0, 88, 88, -1, 4]), 200_000)
with load(sys.argv[1]) as session:
    print(*session.run(None, {"x": np.array([1, 2]), "programs": programs})[0])
"""


def test_more_separators_than_the_stack_has_room_for(tmp_path: Path) -> None:
    """Each a regular expression, X, with which what is between all others is cut further."""
    inputs = (Port("x", "int64", (2,)), Port("programs", "int64", (1_200_000,)))
    operands = tuple(Operand(Ref("input", i), p.dtype, p.shape) for i, p in enumerate(inputs))
    result = Operand(Ref("output"), "int64", (2,))
    call = Call("string_token_counts", operands, (result,), (("least", 1), ("between", 1)))
    outputs, strings = (Port("y", "int64", (2,)),), ("", "aXbX", "XcXXdeXf")
    program = Program("m", inputs, outputs, 0, (call,), strings=strings)
    build_library(program, [], tmp_path / "m.so", {})
    command = [sys.executable, "-c", SEPARATED, str(tmp_path / "m.so")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "2 3\n"


WAYS = [(1, 3, 1), (1, 40, 0), (0, 2, 0), (2, 1, 1)]


@pytest.mark.parametrize(
    ("kind", "axis", "k", "largest"),
    [*((DType(k), *WAYS[i % 2]) for i, k in enumerate(KINDS)), *((DType.F32, *w) for w in WAYS)],
)
def test_topk(kind: DType, axis: int, k: int, largest: int, tmp_path: Path) -> None:
    x = _numbers(kind, (3, 40, 2))
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    results = [Result(kind, shape), Result(DType.I64, shape)]
    calling = Calling(tmp_path, "topk", [x], results, {"axis": axis, "largest": largest})
    (got,) = calling.runs()
    for a, b in zip(got, calling.expected(), strict=True):
        assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize(
    ("kind", "shape", "k"),
    [
        (DType.F32, (1, 15), 15),
        (DType.F32, (1, 3000), 16),
        (DType.F32, (1, 3000), 17),
        (DType.F32, (3, 3000), 24),
        (DType.BF16, (1, 3000), 700),
        (DType.U8, (1, 3000), 40),
        (DType.I64, (1, 3000), 300),
        (DType.F32, (2, 100, 21), 40),
        (DType.U8, (2, 300, 21), 2),
        (DType.I32, (2, 65, 16), 65),
        (DType.F64, (1, 3000), 40),
        (DType.F64, (1, 900), 900),
        (DType.F32, (35, 70), 5),
        (DType.F32, (35, 7), 7),
        (DType.I64, (21, 40), 3),
        (DType.F16, (7, 50, 5), 4),
        (DType.F64, (3, 50, 21), 16),
        (DType.F32, (2, 600, 35), 2),
        (DType.U8, (2, 9, 21), 1),
        (DType.F32, (40, 3), 3),
        (DType.U8, (1, 130, 16), 4),
        (DType.I64, (2, 6, 17), 6),
        (DType.F32, (2, 9, 21), 8),
        (DType.F32, (20, 12), 9),
        (DType.F32, (2, 2000, 3), 300),
    ],
)
@pytest.mark.parametrize("largest", [0, 1])
def test_topk_of_many(
    kind: DType, shape: tuple[int, ...], k: int, largest: int, tmp_path: Path
) -> None:
    rng = np.random.default_rng(k)
    values = (rng.standard_normal(shape) * 40).astype(kind.numpy)
    rising = np.sort(values, axis=1)
    if kind.is_float:
        # Few numbers, and what has no place among them.
        odd = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1.5, -2.0]).astype(kind.numpy)
        values = np.where(rng.random(shape) < 0.5, rng.choice(odd, shape), values)
    results = [Result(t, (shape[0], k, *shape[2:])) for t in (kind, DType.I64)]
    calling = Calling(tmp_path, "topk", [values], results, {"axis": 1, "largest": largest})
    for x in (values, rising, np.flip(rising, 1).copy(), np.zeros_like(values)):
        calling.job = ([x], *calling.job[1:])
        for a, b in zip(calling.runs()[0], calling.expected(), strict=True):
            assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize(
    ("kind", "shape", "k"),
    [
        (DType.F32, (3, 9, 21), 3),
        (DType.F32, (2, 100, 35), 2),
        (DType.F32, (33, 60, 1), 8),
        (DType.F32, (33, 60, 1), 9),
        (DType.U64, (3, 9, 21), 2),
        (DType.U64, (2, 100, 35), 8),
        (DType.F32, (2, 60, 149), 5),
        (DType.F32, (1, 200, 69), 12),
        (DType.U64, (2, 31, 277), 4),
    ],
)
def test_topk_in_vectors_of_this_processor(
    kind: DType, shape: tuple[int, ...], k: int, tmp_path: Path
) -> None:
    """Rows have fewer keys than are passed over at once, or many; the last key of all is common.

    Those that lie side by side make several blocks, of one register or more, and rows are left.
    """
    results = [Result(t, (shape[0], k, shape[2])) for t in (kind, DType.I64)]
    rng = np.random.default_rng(k)
    few, many = (rng.integers(0, count, shape).astype(kind.numpy) for count in (3, 1000))
    last = kind.numpy.type(np.iinfo(np.uint64).max if kind is DType.U64 else np.nan)
    given = [few], results, {"axis": 1, "largest": 0}
    calling = Calling(tmp_path, "topk", *given, target_named("native").machine.features)
    for x in (few, many, np.where(rng.random(shape) < 0.2, few, last)):
        calling.job = ([x], *calling.job[1:])
        for a, b in zip(calling.runs()[0], calling.expected(), strict=True):
            assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("k", [1, 5, 8])
@pytest.mark.parametrize("kind", [DType(k) for k in KINDS if k != "bool"])
def test_topk_of_short_rows(kind: DType, k: int, largest: int, tmp_path: Path) -> None:
    """Rows that places tell in order, the least and the greatest keys among them, and the rest.

    The first rows have keys that are far apart, later ones neighbours, in the last bits of keys.
    """
    rng = np.random.default_rng(k)
    n, columns = 29, 140
    bits = np.dtype(f"u{kind.bytes}")
    values = (rng.permuted(np.tile(np.arange(n), (columns, 1)), axis=1).T + 1).astype(kind.numpy)
    near = values.view(bits)[:1] ^ rng.integers(0, 4, (n, columns)).astype(bits)
    late = np.arange(columns) >= 64
    values = np.where(late, near.view(kind.numpy), values)
    if kind.is_float:
        odd = np.array([np.nan, -np.nan, np.inf, -np.inf]).astype(kind.numpy)
    else:
        limits = np.iinfo(kind.numpy)
        odd = np.array([limits.min, limits.max, limits.max, limits.min], kind.numpy)
    values[:4] = np.where(rng.random(columns) < 0.3, odd[:, None], values[:4])
    results = [Result(t, (k, columns)) for t in (kind, DType.I64)]
    given = [values], results, {"axis": 0, "largest": largest}
    for features in ((), target_named("native").machine.features):
        calling = Calling(tmp_path, "topk", *given, features)
        for a, b in zip(calling.runs()[0], calling.expected(), strict=True):
            assert a.tobytes() == b.tobytes()


def test_topk_of_too_few_elements_names_the_node(tmp_path: Path) -> None:
    results = [Result(DType.F32, (4,)), Result(DType.I64, (4,))]
    x = np.zeros(3, np.float32)
    calling = Calling(tmp_path, "topk", [x], results, {"axis": 0, "largest": 1})
    with pytest.raises(ModelError, match="the node: k = 4 of 3 elements along axis 0"):
        calling.runs()


@pytest.mark.parametrize("bits", [1, 24, 31, 53, None])
@pytest.mark.parametrize("shape", [(0,), (1,), (128,), (257,), (700,), (3, 5)])
def test_random_numbers(bits: int | None, shape: tuple[int, ...], tmp_path: Path) -> None:
    """None: those of numpy's generator."""
    how: dict[str, Attribute] = {"seed": 3}
    if bits is not None:
        how = {"seed": (1 << 55) + 12345678901234567, "bits": bits}
    routine = "numpy_uniform" if bits is None else "uniform"
    calling = Calling(tmp_path, routine, [], [Result(DType.F64, shape)], how)
    for draws, (got,) in enumerate(calling.runs(3)):
        np.testing.assert_array_equal(got, calling.expected(draws)[0])


@pytest.mark.parametrize("true", [0.02, 0.5, 1])
@pytest.mark.parametrize("shape", [(7,), (3, 4, 2), (0, 3), (), (203,), (5, 67), (2, 90, 1)])
def test_nonzero(shape: tuple[int, ...], true: float, tmp_path: Path) -> None:
    x = np.random.default_rng(1).random(shape) < true
    results = [Result(DType.I64, (len(shape), int(x.sum())))]
    calling = Calling(tmp_path, "nonzero", [x], results, {})
    np.testing.assert_array_equal(calling.runs()[0][0], calling.expected()[0])


@pytest.mark.parametrize("room", [2, 9, 31, 33])
def test_nonzero_of_another_number_names_the_node(room: int, tmp_path: Path) -> None:
    results = [Result(DType.I64, (1, room))]
    calling = Calling(tmp_path, "nonzero", [np.arange(40) % 5 > 0], results, {})
    with pytest.raises(ModelError, match=f"the node: 32 elements, not {room}"):
        calling.runs()
    with pytest.raises(UserError, match=f"the node: 32 elements, not {room}"):
        calling.expected()


@pytest.mark.parametrize("kind", [DType(k) for k in KINDS])
@pytest.mark.parametrize("ascending", [0, 1])
def test_unique(kind: DType, ascending: int, tmp_path: Path) -> None:
    x = _numbers(kind, (15, 2) if ascending else (30,))
    n = (len(x),)
    results = [*(Result(DType.I64, n) for _ in range(3)), Result(DType.I64, ())]
    calling = Calling(tmp_path, "unique", [x], results, {"sorted": ascending})
    for got, want in zip(calling.runs()[0], calling.expected(), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("shape", [(3000,), (700, 3)])
@pytest.mark.parametrize("kind", [DType.F32, DType.I64, DType.F64, DType.I16, DType.BF16])
@pytest.mark.parametrize("ascending", [0, 1])
def test_unique_of_many(
    kind: DType, shape: tuple[int, ...], ascending: int, tmp_path: Path
) -> None:
    rng = np.random.default_rng(3)
    x = (rng.integers(-400, 400, shape) * (100 if kind.is_float else 1)).astype(kind.numpy)
    if kind.is_float:
        odd = np.array([np.nan, -np.nan, 0.0, -0.0, np.inf]).astype(kind.numpy)
        x = np.where(rng.random(shape) < 0.1, rng.choice(odd, shape), x)
    results = [*(Result(DType.I64, shape[:1]) for _ in range(3)), Result(DType.I64, ())]
    calling = Calling(tmp_path, "unique", [x], results, {"sorted": ascending})
    for got, want in zip(calling.runs()[0], calling.expected(), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("boxes", "most", "centered", "filtered", "apart"),
    [
        (20, 20, 0, 1, 0),
        (20, 2, 1, 0, 0),
        (0, 3, 0, 1, 0),
        (20, 0, 0, 0, 0),
        (150, 150, 0, 0, 6),
        (150, 150, 1, 0, 2),
        (200, 33, 0, 0, 60),
    ],
)
def test_non_max_suppression(
    boxes: int, most: int, centered: int, filtered: int, apart: int, tmp_path: Path
) -> None:
    rng = np.random.default_rng(2)
    places = rng.integers(0, 8, (2, boxes, 4)) + rng.integers(0, apart + 1, (2, boxes, 1)) * [
        [[1, 1, 0 if centered else 1, 0 if centered else 1]]
    ]
    places = places.astype(np.float32)
    if apart:
        # What no number tells the place of meets nothing.
        odd = rng.random(places.shape) < 1 / boxes
        places[odd] = rng.choice([np.nan, np.inf, -np.inf], np.count_nonzero(odd))
    args = [
        places,
        rng.integers(0, 5, (2, 3, boxes)).astype(np.float32),
        np.array(most),
        np.array(0.3, np.float32),
        np.array(1, np.float32),
    ]
    room = 6 * min(most, boxes)
    results = [Result(DType.I64, (room, 3)), Result(DType.I64, ())]
    attributes = {"center_point_box": centered, "filtered": filtered}
    calling = Calling(tmp_path, "non_max_suppression", args, results, attributes)
    got, want = calling.runs()[0], calling.expected()
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)
    assert (int(got[1]) > 0) == (room > 0)


def test_operands_of_more_axes_than_there_is_room_for() -> None:
    operand = Operand(Ref("arena"), "bool", (1,) * 65)
    call = Call("nonzero", (operand,), (Operand(Ref("arena"), "int64", (65, 1)),))
    with pytest.raises(InternalError, match="more than 64 dimensions"):
        list(call_tables([call], SizeTable(())))
