"""Calls that end their process end none of rutc's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from onnx import parser

import rutc
from rutc.errors import UserError
from rutc.importer import import_model
from rutc.importer.opsets.isolated import EndedError, isolated
from tests.signals import is_gone

FIRST = '<ir_version: 7, opset_import: ["" : {}]> '
WINDOW = (
    "g (float[1, 1, 3, 3] x, float[1, 1, 7, 7] w) => (float[a, b, c, d] y)"
    " <int64[1] z = {2}, int64[1] o = {3}> { t = Conv (x, w) y = Slice (t, z, o, z) }"
)
PAD = (
    "g (float[2, 3] x) => (float[a, b] y) <int64[1] z = {1}, int64[1] o = {2}>"
    " { r = Relu (x) t = Pad <pads = [0, -3, 0, -3]> (r) u = Slice (t, z, o, z) y = Neg (u) }"
)


@contextmanager
def another_thread() -> Iterator[None]:
    """A thread beside this one, as notebooks and servers have them."""
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


@contextmanager
def no_other_thread() -> Iterator[None]:
    assert threading.active_count() == 1
    yield


BOTH = pytest.mark.parametrize("way", [no_other_thread, another_thread])


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def saved(path: Path, source: str, opset: int) -> Path:
    model = parser.parse_model(FIRST.format(opset) + source)
    (path / "m.onnx").write_bytes(model.SerializeToString())
    return path / "m.onnx"


@BOTH
def test_what_a_call_returns_and_raises(way) -> None:
    with way():
        assert isolated(divmod, 7, 2) == (3, 1)
        assert isolated(print, "x" * 100_000) is None
        with pytest.raises(ZeroDivisionError, match="division"):
            isolated(divmod, 7, 0)


@BOTH
def test_a_call_that_ends_its_process(way) -> None:
    with way():
        with pytest.raises(EndedError, match="SIGABRT"):
            isolated(os.abort)
        with pytest.raises(EndedError, match="exit status 7"):
            isolated(os._exit, 7)


def test_a_call_that_the_system_kills() -> None:
    with pytest.raises(UserError, match="memory is short"):
        isolated(_kill)


WAITING = """
import os, threading, time
from rutc.importer.opsets.isolated import isolated
from tests.importer.test_isolated import {way}, wait
with {way}():
    isolated(wait, {file!r})
"""


def wait(file: str) -> None:
    Path(file).write_text(str(os.getpid()))
    time.sleep(600)


@pytest.mark.parametrize("way", ["no_other_thread", "another_thread"])
def test_a_call_does_not_go_on_without_who_asked_for_it(way, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    code = WAITING.format(way=way, file=str(file))
    asking = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[2])
    while not file.exists() or not file.read_text():
        assert asking.poll() is None
        time.sleep(0.05)
    calling = int(file.read_text())
    asking.kill()
    asking.wait()
    deadline = time.monotonic() + 30
    while not is_gone(calling) and time.monotonic() < deadline:
        time.sleep(0.05)
    gone = is_gone(calling)
    if not gone:
        os.kill(calling, signal.SIGKILL)
    assert gone


@BOTH
@pytest.mark.parametrize(
    ("source", "opset", "words"),
    [
        (WINDOW, 12, r"Conv \(node 't'\).* a window of 7 elements does not fit 3"),
        (PAD, 10, r"Slice \(node 'u'\) ends the conversion \(SIGABRT\)"),
    ],
)
def test_extents_that_the_conversion_infers_negative(
    way, source, opset, words, tmp_path: Path
) -> None:
    with way(), pytest.raises(UserError, match=words):
        import_model(saved(tmp_path, source, opset))


@pytest.mark.parametrize(
    "source",
    [
        "g (float[2] x) => (float[2] y) <float[2, -1] w = {1, 2}> { y = Add (x, w) }",
        "g (float[2] x) => (float[2] y)"
        " { w = Constant <value = float[2, -1] {1, 2}> () y = Add (x, w) }",
    ],
)
def test_tensors_of_negative_extents_are_refused(source, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"'(w|value)'.*\[2, -1\].* an extent is negative"):
        import_model(saved(tmp_path, source, 12))


def test_an_extent_of_minus_1_is_open(tmp_path: Path) -> None:
    source = (
        "g (float[-1, 3] x) => (float[-1, 3] y) <int64[1] z = {0}, int64[1] o = {2}>"
        " { y = Slice (x, z, o, z) }"
    )
    rutc.compile(saved(tmp_path, source, 12), tmp_path / "m.so", verify=False)
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    (y,) = rutc.load(tmp_path / "m.so").run(None, {"x": x})
    np.testing.assert_array_equal(y, x[:2])
