"""Compiling looks for no garbage in cycles, and leaves the search as it was."""

import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from onnx import helper

import rutc
from rutc.base.garbage import uncollected
from rutc.driver import api
from rutc.importer import import_model
from rutc.importer.building.builder import Builder
from tests.onnx_files import write_model


@pytest.fixture(params=[True, False])
def searching(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether garbage is looked for before; as it was again afterwards."""
    before = gc.isenabled()
    (gc.enable if request.param else gc.disable)()
    yield request.param
    (gc.enable if before else gc.disable)()


def test_no_garbage_is_looked_for_during_a_call(searching: bool) -> None:
    @uncollected
    def state(x: int, *, y: int) -> tuple[int, bool]:
        """What it says."""
        return x + y, gc.isenabled()

    assert state(1, y=2) == (3, False)
    assert gc.isenabled() is searching
    assert state.__doc__ == "What it says."


def test_an_error_ends_it(searching: bool) -> None:
    @uncollected
    def fails() -> None:
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011
        fails()
    assert gc.isenabled() is searching


def looked_for_in_child() -> bool:
    child = os.fork()
    if child == 0:
        os._exit(gc.isenabled())
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def test_a_child_looks_for_it_whatever_other_threads_did(searching: bool) -> None:
    began, done = threading.Event(), threading.Event()

    @uncollected
    def waits() -> None:
        began.set()
        done.wait()

    calling = threading.Thread(target=waits, daemon=True)
    calling.start()
    began.wait()
    assert looked_for_in_child() is searching
    assert not uncollected(looked_for_in_child)()
    done.set()
    calling.join()
    assert gc.isenabled() is searching


def test_compiling_looks_for_none(
    searching: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    monkeypatch.setattr(api, "limited", lambda *work: seen.append(gc.isenabled()))
    rutc.compile(tmp_path / "m.onnx", tmp_path / "m.so", db="none")
    assert seen == [False]
    assert gc.isenabled() is searching


def test_an_import_leaves_no_garbage(tmp_path: Path) -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    path = write_model(tmp_path / "m.onnx", [node], {"x": [4]}, {"y": [4]})
    gc.collect()
    before = sum(isinstance(o, Builder) for o in gc.get_objects())
    graph = uncollected(import_model)(path)
    assert graph.outputs
    assert sum(isinstance(o, Builder) for o in gc.get_objects()) == before
