"""Files of named arrays: what is written is read back, without pickle."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from rutc.errors import UserError
from rutc.verify.feeding import npz
from rutc.verify.feeding.npz import open_npz, save_npz
from tests.verify.damaged import ARCHIVES

TEXTS = [["", "a"], ["\0b", "längeres \U0001f600"]]


def _same(found: np.ndarray, wanted: np.ndarray) -> None:
    assert found.shape == wanted.shape
    assert found.tolist() == wanted.tolist()


@pytest.mark.parametrize(
    "value",
    [
        np.array(TEXTS, object),
        np.array("alone", object),
        np.array([""], object),
        np.zeros((2, 0), object),
        np.array([1.5, np.inf], np.float32),
        np.array(7),
    ],
    ids=["texts", "scalar", "empty text", "no text", "floats", "number"],
)
def test_values_are_read_back_without_pickle(tmp_path: Path, value: np.ndarray) -> None:
    save_npz(tmp_path / "a.npz", {"file": value})
    _same(open_npz(tmp_path / "a.npz")["file"], value)


def test_sequences_and_maps_have_a_name_for_each_part(tmp_path: Path) -> None:
    texts = [np.array(["one"], object), np.array(["two", "more"], object)]
    save_npz(tmp_path / "a.npz", {"s": texts, "m": {"key": 1.5, "longer": 2.5}, "none": None})
    found = open_npz(tmp_path / "a.npz")
    assert {name: array.tolist() for name, array in found.items()} == {
        "s[0]": ["one"],
        "s[1]": ["two", "more"],
        "m.keys": ["key", "longer"],
        "m.values": [1.5, 2.5],
    }


def test_dtypes_that_numpy_does_not_know_keep_their_bytes(tmp_path: Path) -> None:
    value = np.array([1.5, -2], ml_dtypes.bfloat16)
    save_npz(tmp_path / "a.npz", {"x": value})
    _same(open_npz(tmp_path / "a.npz")["x"].view(ml_dtypes.bfloat16), value)


def test_texts_that_end_in_nuls_are_not_cut(tmp_path: Path) -> None:
    value = np.array(["a\0", "b"], object)
    save_npz(tmp_path / "a.npz", {"y": value, "m": {"k\0": 1.0}})
    with np.load(tmp_path / "a.npz", allow_pickle=True) as stored:
        _same(stored["y"], value)
        assert stored["m.keys"].tolist() == ["k\0"]
    with pytest.raises(UserError, match="is no numpy file of named arrays"):
        open_npz(tmp_path / "a.npz")


def test_one_long_text_among_many_does_not_widen_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(npz, "MOST_BYTES", 1 << 16)
    value = np.array(["x" * 1000, *["y"] * 100], object)
    save_npz(tmp_path / "a.npz", {"y": value})
    assert (tmp_path / "a.npz").stat().st_size < 1 << 16
    with np.load(tmp_path / "a.npz", allow_pickle=True) as stored:
        _same(stored["y"], value)


@pytest.mark.parametrize("kind", ARCHIVES)
def test_damaged_archives_are_told(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.npz"
    ARCHIVES[kind](path)
    with pytest.raises(UserError, match=r"a.npz is no numpy file of named arrays: ."):
        open_npz(path)


def test_strings_that_were_saved_as_objects_have_advice(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", allow_pickle=True, x=np.array(["a", "b"], object))
    with pytest.raises(UserError, match=r"pickled objects \(save strings as .astype\(str\)\)"):
        open_npz(tmp_path / "a.npz")
