"""`--value`: what inputs hold in every run."""

from pathlib import Path

import numpy as np
import pytest

from rutc.errors import UserError
from rutc.report.arguments import parse_values


def test_what_is_written_becomes_arrays(tmp_path: Path) -> None:
    stored = np.array([[1.5]], np.float32)
    np.save(tmp_path / "x.npy", stored)
    items = ["k=3", "axes=0,-1", "one=3,", "none=", "low=-inf", "flags=true,false"]
    found = parse_values([*items, f"x={tmp_path / 'x.npy'}"])
    expected = {
        "k": np.array(3),
        "axes": np.array([0, -1]),
        "one": np.array([3]),
        "none": np.array([]),
        "low": np.array(-np.inf),
        "flags": np.array([True, False]),
        "x": stored,
    }
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert found[name].shape == array.shape
        np.testing.assert_array_equal(found[name], array)
    assert {n: a.dtype.kind for n, a in found.items() if n != "none"} == {
        "k": "i", "axes": "i", "one": "i", "low": "f", "flags": "b", "x": "f"
    }  # fmt: skip
    assert parse_values(None) == {}


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (["k"], "write NAME=1,2"),
        (["=3"], "write NAME=1,2"),
        (["k=3", "k=4"], "given twice"),
        (["k=3;4"], "write numbers"),
        (["k=1,,2"], "write numbers"),
        (["k=missing.npy"], "cannot read the array"),
    ],
)
def test_what_cannot_be_read(items: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_values(items)
