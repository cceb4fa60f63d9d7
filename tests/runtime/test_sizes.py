"""Programs of symbolic sizes: what the inputs' shapes tell, and what they must not."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rutc.emit.host_program.host_steps import Branch, Copy, Repeat
from rutc.emit.host_program.kernel_call import Ref
from rutc.emit.host_program.ports import Port
from rutc.emit.host_program.program import Program
from rutc.emit.host_program.size_source import SizeTable
from rutc.emit.linking.library import build_library
from rutc.errors import InternalError
from rutc.runtime import ModelError, load
from rutc.tensor_ir.indices.affine import Index, maximum, minimum
from tests.launches import Launches
from tests.runtime.conftest import kernel

BATCH, SEQ = Index.of("batch"), Index.of("seq")
ROWS = BATCH * SEQ


@pytest.fixture
def library(tmp_path: Path, compile_c: Callable[[str], bytes]) -> Path:
    """y[batch, 2*seq] = x and x again, w[batch] = its row sums by way of the arena, + trips."""
    double = (
        "const float *x = bufs[0]; float *y = bufs[1]; int64_t seq = syms[0];"
        "for (int64_t i = begin; i < end; i++) {"
        "  y[i / seq * 2 * seq + i % seq] = x[i]; y[i / seq * 2 * seq + seq + i % seq] = x[i]; }"
    )
    total = (
        "const float *x = bufs[0]; float *w = bufs[1]; int64_t seq = syms[1];"
        "for (int64_t b = begin; b < end; b++) { if (syms[0] == 0) w[b] = 0;"
        "  w[b] += x[b * seq + syms[0]]; }"
    )
    arena = Ref("arena", 0, (ROWS * 4 + 127) // 64 * 64)
    launch = Launches()
    steps = (
        launch("duplicate", (Ref("input"), Ref("output", 0)), ROWS, (), (SEQ,)),
        Repeat(
            "s", SEQ, (launch("total", (Ref("input"), arena), BATCH, (), (Index.of("s"), SEQ)),)
        ),
        Copy(Ref("output", 1), arena, BATCH * 4),
    )
    program = Program(
        "sized",
        (Port("x", "float32", (BATCH, SEQ)), Port("z", "int64", (BATCH, 3))),
        (Port("y", "float32", (BATCH, SEQ * 2)), Port("w", "float32", (BATCH,))),
        (ROWS * 4 + 127) // 64 * 64 + BATCH * 4,
        steps,
        kernels=launch.kernels,
        symbols=(("batch", (0, 64)), ("seq", (1, 9))),
    )
    objects = [compile_c(kernel("duplicate", double) + kernel("total", total))]
    build_library(program, objects, tmp_path / "m.so", {})
    return tmp_path / "m.so"


def _inputs(batch: int, seq: int) -> dict[str, np.ndarray]:
    x = np.arange(batch * seq, dtype=np.float32).reshape(batch, seq)
    return {"x": x, "z": np.zeros((batch, 3), np.int64)}


def test_sizes_that_come_again_run_the_same(library: Path) -> None:
    sizes = [(2, 3), (2, 3), (2, 3), (1, 3), (2, 3), (2, 3), (0, 4), (0, 4), (0, 4), (5, 1), (5, 1)]
    found: list[np.ndarray] = []
    with load(library, threads=1) as session:
        for batch, seq in sizes:
            inputs = _inputs(batch, seq)
            inputs["x"] += len(found)
            y, w = session.run(None, inputs)
            np.testing.assert_array_equal(y, np.tile(inputs["x"], (1, 2)))
            np.testing.assert_array_equal(w, inputs["x"].sum(axis=1))
            assert not any(np.shares_memory(y, before) for before in found)
            found.append(y)
            room = {"y": np.zeros_like(y), "w": np.zeros_like(w)}
            session.run_into(inputs, room)
            np.testing.assert_array_equal(room["y"], y)
            with pytest.raises(ModelError, match="shape"):
                session.run_into(inputs, room | {"w": np.zeros(batch + 1, np.float32)})
            with pytest.raises(ModelError, match="dtype"):
                session.run(None, inputs | {"x": inputs["x"].astype(np.float64)})
    with pytest.raises(ModelError, match="closed"):
        session.run(None, _inputs(5, 1))


@pytest.mark.parametrize("threads", [1, 3])
def test_one_session_runs_all_sizes(library: Path, threads: int) -> None:
    with load(library, threads=threads) as session:
        assert session.get_inputs()[0].shape == ["batch", "seq"]
        assert session.get_outputs()[0].shape == ["batch", "2*seq"]
        assert session.manifest["symbols"] == {"batch": [0, 64], "seq": [1, 9]}
        for batch, seq in ((2, 3), (64, 9), (1, 1), (0, 4), (7, 5), (2, 3)):
            feed = _inputs(batch, seq)
            y, w = session.run(None, feed)
            np.testing.assert_array_equal(y, np.concatenate([feed["x"]] * 2, 1))
            np.testing.assert_allclose(w, feed["x"].sum(1))
            # A strided input, and one output alone.
            strided = np.repeat(feed["x"], 2, axis=1)[:, ::2]
            (w,) = session.run(["w"], {**feed, "x": strided})
            np.testing.assert_allclose(w, feed["x"].sum(1))


def test_the_manifest_bounds_the_memory(library: Path) -> None:
    with load(library) as session:
        assert session.manifest["arena_bytes"] == "4*batch + 64*((batch*seq + 15) // 16) + 64"
        assert session.manifest["arena_bytes_most"] == (64 * 9 * 4 + 127) // 64 * 64 + 64 * 4


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((2, 10), (2, 3)), 'axis 1 of input "x" is seq = 10; .* compiled for seq from 1 to 9'),
        (((65, 1), (65, 3)), 'axis 0 of input "x" is batch = 65; .* for batch from 0 to 64'),
        (((2, 0), (2, 3)), 'axis 1 of input "x" is seq = 0'),
        (
            ((2, 2), (3, 3)),
            'input "z" is batch, which is 2 by axis 0 of input "x", but 3 here',
        ),
        (((2, 2), (2, 4)), r"input 'z' must have shape \[batch, 3\], not \[2, 4\]"),
        (((2,), (2, 3)), r"input 'x' must have shape \[batch, seq\], not \[2\]"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(
    library: Path, shapes: tuple[tuple[int, ...], tuple[int, ...]], message: str
) -> None:
    x, z = shapes
    with load(library) as session:
        with pytest.raises(ModelError, match=message):
            session.run(None, {"x": np.zeros(x, np.float32), "z": np.zeros(z, np.int64)})
        y, _ = session.run(None, _inputs(2, 2))
        assert y.shape == (2, 4)


def test_sizes_may_be_multiples(tmp_path: Path, compile_c: Callable[[str], bytes]) -> None:
    height = Index.of("h/32") * 32
    copy = Copy(Ref("output"), Ref("input"), height * 4)
    ports = ((Port("x", "float32", (height,)),), (Port("y", "float32", (height,)),))
    program = Program("stepped", *ports, 0, (copy,), symbols=(("h/32", (1, 4)),))
    build_library(program, [compile_c("")], tmp_path / "m.so", {})
    with load(tmp_path / "m.so") as session:
        assert session.get_inputs()[0].shape == ["32*'h/32'"]
        for size in (32, 128, 64):
            x = np.arange(size, dtype=np.float32)
            np.testing.assert_array_equal(session.run(None, {"x": x})[0], x)
        for size in (0, 33, 160):
            wanted = f'axis 0 of input "x" is {size}; .* multiples of 32 from 32 to 128'
            with pytest.raises(ModelError, match=wanted):
                session.run(None, {"x": np.zeros(size, np.float32)})


def test_sizes_choose_steps(tmp_path: Path, compile_c: Callable[[str], bytes]) -> None:
    """y = 0 for no rows of x, 2 where there are four or more, 3 of which are too long; else 1."""
    numbers = [kernel(f"give_{n}", f"*(float *)bufs[0] = {n};") for n in range(4)]
    launch = Launches()
    give = [(launch(f"give_{n}", (Ref("output"),), 1),) for n in range(4)]
    long = Branch(SEQ - 5, give[3], give[2])
    steps = (*give[1], Branch(BATCH // 4, (long,)), Branch(BATCH, ()), Branch(1 - BATCH, give[0]))
    ports = (Port("x", "float32", (BATCH, SEQ)),), (Port("y", "float32", (1,)),)
    symbols = (("batch", (0, 64)), ("seq", (0, 9)))
    program = Program("chosen", *ports, 0, steps, symbols=symbols, kernels=launch.kernels)
    assert "  branch size batch // 4\n    branch size seq - 5\n" in str(program)
    build_library(program, [compile_c("".join(numbers))], tmp_path / "m.so", {})
    with load(tmp_path / "m.so", profile=True) as session:
        cases = {(0, 9): 0, (1, 9): 1, (3, 5): 1, (4, 5): 2, (4, 6): 3, (64, 9): 3, (5, 0): 2}
        for shape, wanted in [*cases.items(), *reversed(cases.items())]:
            assert session.run(None, {"x": np.zeros(shape, np.float32)})[0] == [wanted]
        assert {e.name: e.calls for e in session.profile()} == {
            "give_0": 2,
            "give_1": 2 * len(cases),
            "give_2": 4,
            "give_3": 4,
        }


@pytest.mark.parametrize("size", [Index.of("other") // 4, -1])
def test_sizes_that_choose_are_known(size: int | Index) -> None:
    ports = (Port("x", "float32", (BATCH,)),), (Port("y", "float32", (BATCH,)),)
    steps = (Branch(size, (Copy(Ref("output"), Ref("input"), BATCH * 4),)),)
    with pytest.raises(InternalError, match=r"(negative|unknown).* in 'branch size"):
        Program("wrong", *ports, 0, steps, symbols=(("batch", (0, 64)),))


def test_what_several_sizes_are_made_of_is_computed_once() -> None:
    """Formulas of slices hold each other again and again: written out they are long."""
    table = SizeTable(("batch", "seq"))
    size = SEQ
    for step in range(6):
        size = maximum(size // (BATCH + step), minimum(size, BATCH * step))
        table.place(size)
    table.reserved[size] = None
    lines = [*table.source((size, BATCH))]
    assert max(map(len, lines)) < 200
    assert len(lines) < 6 * 3 * 3 + 40
    computed = lines[: lines.index("}")]
    assert len(set(computed)) == len(computed)
