"""Steps that end a run: where the inputs lead to a part of the model that cannot run."""

import ctypes
from pathlib import Path

import numpy as np
import pytest

from rutc.emit.host_program.host_steps import Branch, Copy, Fail, Repeat, Step
from rutc.emit.host_program.kernel_call import Ref
from rutc.emit.host_program.ports import Port
from rutc.emit.host_program.program import Program
from rutc.emit.linking.library import build_library
from rutc.runtime import ModelError, load
from tests.runtime.conftest import simple

RUN_FAILED = 6
MESSAGE = 'node "If_3" (If): "100 % of this", \\ a branch with a list, cannot run'
X = np.arange(8, dtype=np.float32)
COPY = Copy(Ref("output"), Ref("input"), X.nbytes)


def _build(folder: Path, steps: tuple[Step, ...]) -> Path:
    path = folder / "m.so"
    build_library(simple("m", steps), [], path, {})
    return path


def test_it_says_why_every_time(tmp_path: Path) -> None:
    with load(_build(tmp_path, (COPY, Fail(MESSAGE)))) as session:
        for _ in range(2):
            with pytest.raises(ModelError) as error:
                session.run(None, {"x": X})
            assert str(error.value) == MESSAGE


@pytest.mark.parametrize("profile", [False, True])
def test_it_fails_only_where_the_inputs_lead_there(tmp_path: Path, profile: bool) -> None:
    inputs = (Port("refuse", "bool", ()), Port("x", "float32", (8,)))
    take = Copy(Ref("output"), Ref("input", 1), X.nbytes)
    steps = (Branch(Ref("input"), (Fail(MESSAGE),), (take,)),)
    path = tmp_path / "m.so"
    program = Program("m", inputs, (Port("y", "float32", (8,)),), 0, steps)
    build_library(program, [], path, {})
    with load(path, profile=profile) as session:
        for refuse in (False, True, False):
            feed = {"refuse": np.array(refuse), "x": X}
            if refuse:
                with pytest.raises(ModelError, match="cannot run"):
                    session.run(None, feed)
            else:
                np.testing.assert_array_equal(session.run(None, feed)[0], X)


def test_it_ends_loops(tmp_path: Path) -> None:
    steps = (Repeat("i", 3, (Repeat("j", 2, (Fail("in two loops"),)),)), COPY)
    with load(_build(tmp_path, steps)) as session, pytest.raises(ModelError, match="in two loops"):
        session.run(None, {"x": X})


def test_loops_without_trips_do_not_fail(tmp_path: Path) -> None:
    with load(_build(tmp_path, (Repeat("i", 0, (Fail(MESSAGE),)), COPY))) as session:
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], X)


def test_the_status_is_its_own(tmp_path: Path) -> None:
    build_library(Program("m", (), (), 0, (Fail(MESSAGE),)), [], tmp_path / "m.so", {})
    assert f"RUTC_RUN_FAILED = {RUN_FAILED}, " in (tmp_path / "m.h").read_text()
    library = ctypes.CDLL(str(tmp_path / "m.so"))
    library.m_open.restype = ctypes.c_void_p
    library.m_last_error.restype = ctypes.c_char_p
    session = ctypes.c_void_p(library.m_open(None))
    nothing = (ctypes.c_void_p * 1)()
    assert library.m_run(session, nothing, 0, nothing, 0) == RUN_FAILED
    assert library.m_last_error(session) == MESSAGE.encode()
    library.m_close(session)


def test_the_listing_shows_it() -> None:
    assert f"  fail {MESSAGE!r}\n" in str(simple("m", (Fail(MESSAGE),)))
