"""The host runtime's routines against their meaning in numpy."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from rutc.emit.library import build_library
from rutc.emit.program import Attribute, Call, Operand, Port, Program, Ref
from rutc.runtime import ModelError, load
from rutc.tensor_ir import DType
from rutc.tensor_ir.routines import ROUTINES, Job, Result

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
        build_library(Program("m", inputs, outputs, 0, 0, (call,)), [], self.path, {})

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


def test_topk_of_too_few_elements_names_the_node(tmp_path: Path) -> None:
    results = [Result(DType.F32, (4,)), Result(DType.I64, (4,))]
    x = np.zeros(3, np.float32)
    calling = Calling(tmp_path, "topk", [x], results, {"axis": 0, "largest": 1})
    with pytest.raises(ModelError, match="the node: k = 4 of 3 elements along axis 0"):
        calling.runs()


@pytest.mark.parametrize("routine", ["uniform", "normal", "numpy_uniform"])
@pytest.mark.parametrize("shape", [(0,), (1,), (700,), (3, 5)])
def test_random_numbers(routine: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    seed = 3 if routine == "numpy_uniform" else (1 << 55) + 12345678901234567
    calling = Calling(tmp_path, routine, [], [Result(DType.F64, shape)], {"seed": seed})
    for draws, (got,) in enumerate(calling.runs(3)):
        (want,) = calling.expected(draws)
        np.testing.assert_allclose(got, want, rtol=1e-13, atol=1e-15)
