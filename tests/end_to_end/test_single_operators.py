"""Models of one operator, on odd sizes, against ONNX Runtime."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from benchmarks.operator_case import Array, Case, Fixed
from rutc.driver.compiler import Options, compile_model
from rutc.verify.verify import verify_model

RANDOM = np.random.default_rng(7)


def real(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


def ints(*values: int) -> Fixed:
    return Fixed(np.array(values, np.int64))


def layer(gates: int, inputs: int, hidden: int, directions: int = 1) -> list[Fixed]:
    rows = (directions, gates * hidden)
    return [
        Fixed(real(*rows, inputs)),
        Fixed(real(*rows, hidden)),
        Fixed(real(*rows[:1], 2 * rows[1])),
    ]


CASES = (
    # Parts along an outer axis: each has code of its own.
    Case("parts of channels", "Concat", [real(2, 3, 5, 7), real(2, 1, 5, 7)], {"axis": 1}),
    Case("parts of 1 and 0", "Concat", [real(1, 31), real(0, 31), real(5, 31)], {"axis": 0}),
    Case("many parts", "Concat", [real(k % 3 + 1, 19) for k in range(40)], {"axis": 0}),
    Case("parts that threads share", "Concat", [real(64, 1009), real(37, 1009)], {"axis": 0}),
    Case("padded channels", "Pad", [real(1, 3, 5, 17), ints(0, 2, 0, 0, 0, 7, 0, 0)]),
    Case("padded everywhere", "Pad", [real(2, 3, 5, 17), ints(1, 2, 3, 1, 0, 1, 2, 4)]),
    Case("cut and padded", "Pad", [real(9, 33), ints(-2, 0, 3, 0)]),
    # Rows that repeat: longer and shorter than a vector, whole and with a rest.
    *(Case(f"tiles of {n}", "Tile", [real(3, n), ints(2, 5)]) for n in (1, 7, 16, 31, 56)),
    Case("tiles of tiles", "Tile", [real(2, 1, 17), ints(3, 4, 2)]),
    # Weights of which two products read a part each.
    Case("gates", "GRU", [real(5, 1, 7), *layer(3, 7, 19)], {"hidden_size": 19}),
    Case(
        "gates both ways",
        "GRU",
        [real(3, 2, 5), *layer(3, 5, 33, 2)],
        {"hidden_size": 33, "direction": "bidirectional"},
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_agrees_with_onnxruntime(case: Case, tmp_path: Path) -> None:
    path = tmp_path / "operator.onnx"
    onnx.save(case.build(), path)
    report = compile_model(path, path.with_suffix(".so"), Options(), None)
    for threads in (1, 2):
        assert verify_model(path, report.library, case.inputs(), threads=threads).passed
