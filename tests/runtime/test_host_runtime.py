"""The host runtime's objects: compiled once, and only what a program needs of them."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from rutc.emit.host_program.host_steps import Call, Copy, Step
from rutc.emit.host_program.kernel_call import Ref
from rutc.emit.host_program.ports import Port
from rutc.emit.host_program.program import Program
from rutc.emit.linking.host_runtime import (
    HOST_SOURCES,
    ROUTINE_SOURCES,
    HostRuntime,
    calling_units,
    runtime_units,
)
from rutc.emit.linking.library import build_library
from rutc.emit.linking.toolchain import Running, Toolchain, find_toolchain
from rutc.emit.targets.measured import SOURCE as RATES
from rutc.errors import UserError
from rutc.runtime import load

COPY = Copy(Ref("output"), Ref("weights"), 8)


@pytest.mark.parametrize(
    ("steps", "strings", "kept"),
    [
        ((COPY,), (), False),
        ((COPY, Call("settle", (), (), depth=1)), (), True),
        ((COPY,), ("", "a"), True),
    ],
)
def test_strings_and_boxes_are_kept_where_there_are_any(
    tmp_path: Path, steps: tuple[Step, ...], strings: tuple[str, ...], kept: bool
) -> None:
    weights = ((0, np.array([7])),)
    outputs = (Port("y", "int64", ()),)
    program = Program("m", (), outputs, 0, steps, weights, 8, strings=strings)
    build_library(program, [], tmp_path / "m.so", {})
    listing = ["nm", tmp_path / "m.so"]
    names = subprocess.run(listing, capture_output=True, text=True, check=True).stdout
    assert ("rutc_strings_reset" in names) == kept
    with load(tmp_path / "m.so") as session:
        for _ in range(2):
            assert session.run(None, {})[0] == 7


def test_every_source_is_in_one_unit() -> None:
    routines = [path.stem for path in ROUTINE_SOURCES.glob("*.c")]
    units = [*runtime_units(targets=True), *calling_units(routines, objects=True)]
    found = [source for unit in units for source in unit.sources]
    assert sorted(found) == sorted(HOST_SOURCES.glob("**/*.c"))
    assert len({unit.name for unit in units}) == len(units)
    assert calling_units([]) == ()
    assert [unit.name for unit in calling_units([], strings=True)] == ["calling"]
    assert [unit.name for unit in calling_units([], objects=True)] == ["exchanging"]


def test_a_first_compilation_reads_no_header_of_all_intrinsics() -> None:
    """It takes longer to read than the longest of these sources to compile."""
    for sources, flags in (
        (sorted(HOST_SOURCES.glob("*.c")), []),
        ([RATES], ["-march=native", "-DBYTES=64"]),
    ):
        command = ["cc", *flags, "-M", *sources]
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        read = {Path(name).name for name in found.split()}
        assert read >= {source.name for source in sources}
        assert "immintrin.h" not in read


def test_routines_are_compiled_for_what_the_program_needs_anyway() -> None:
    (*_, routine) = calling_units(["topk"], {"avx2", "amx-int8", "bmi2"})
    assert routine.flags[-3:] == ("-O2", "-mavx2", "-mbmi2")
    assert calling_units(["topk"])[-1].flags[-1] == "-O2"


class Counting(Toolchain):
    """A compiler that counts what it is asked for."""

    def begin(self, commands: Sequence[Sequence[str]], directory: Path) -> Running:
        COMPILED.extend(command[-1] for command in commands)
        return super().begin(commands, directory)


COMPILED: list[str] = []


def test_units_are_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUTC_CACHE", str(tmp_path))
    found = find_toolchain()
    units = calling_units(["topk", "settle"])
    COMPILED.clear()
    own = ["checking.o", "launching.o", "session.o"]
    with HostRuntime(Counting(found.command, found.identity)) as host:
        assert sorted(COMPILED) == own
        host.begin(units)
        host.begin(units)
        first = host.objects(units)
    assert sorted(COMPILED) == sorted([*own, "calling.o", "settle.o", "topk.o"])
    with HostRuntime(Counting(found.command, found.identity)) as host:
        assert host.objects(units) == first
        assert host.objects() == first[:3]
    assert len(COMPILED) == 6


def test_units_do_not_share_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sources of two folders may have one name, as the store of boxes and the routine have."""
    units = calling_units(["boxes"])
    assert {s.name for s in units[0].sources} & {s.name for s in units[1].sources} == {"boxes.c"}
    monkeypatch.setenv("RUTC_CACHE", str(tmp_path))
    with HostRuntime(find_toolchain()) as host:
        *_, calling, routine = host.objects(units)
    assert b"rutc_boxes_reset" in calling
    assert b"rutc_routine_boxes" not in calling
    assert b"rutc_routine_boxes" in routine


@pytest.mark.parametrize(
    "script",
    ["kill -9 $$", "sh -c 'kill -9 $$'", "echo 'Killed signal terminated program cc1'; false"],
)
def test_a_compiler_that_the_system_ends_is_no_bug(tmp_path: Path, script: str) -> None:
    """Memory is short: either of the driver, of what a shell runs, or of what the driver runs."""
    found = Toolchain(("sh", "-c", script), "killed")
    with pytest.raises(UserError, match="the C compiler was killed"):
        found.run([], tmp_path)
