"""The artifact as a file: reproducible bytes, exports, dependencies, weights, toolchains."""

import hashlib
import json
import os
import re
import stat
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Literal

import ml_dtypes
import numpy as np
import pytest

from rutc.emit.host_program.c_text import c_comment, c_string
from rutc.emit.host_program.host_steps import Copy, Launch
from rutc.emit.host_program.kernel_call import KernelId, Ref
from rutc.emit.host_program.ports import Port
from rutc.emit.host_program.program import Program
from rutc.emit.host_program.program_source import symbol_prefix
from rutc.emit.linking import toolchain
from rutc.emit.linking.elf import HUGE_PAGE_BYTES, append_segment
from rutc.emit.linking.host_runtime import HOST_SOURCES
from rutc.emit.linking.library import build_library
from rutc.emit.linking.toolchain import find_toolchain
from rutc.emit.linking.weight_image import weight_image
from rutc.errors import InternalError, UserError
from rutc.runtime import ModelError, load
from tests.launches import Launches
from tests.runtime.conftest import Compile, elementwise, simple, unary

WEIGHTS = np.arange(8, dtype=np.float32)


def _constant(name: str = "model", weight_bytes: int = 32, **more: object) -> Program:
    """A program whose output is its weights."""
    port = (Port("y", "float32", (8,)),)
    steps = (Copy(Ref("output"), Ref("weights", 0, 64), 32),)
    weights = ((64, WEIGHTS), (0, b"\x01\x02"))
    return Program(name, (), port, 0, steps, weights, max(96, weight_bytes), **more)


def _bytes(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_the_same_model_gives_the_same_bytes(
    compile_c: Compile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = [compile_c(unary("twice", "float32", "2 * x"))]
    program = simple("model", **elementwise("twice"), weights=((0, WEIGHTS),), weight_bytes=32)
    results = []
    for run in range(3):
        folder = tmp_path / f"folder{run}"
        folder.mkdir()
        if run == 2:
            monkeypatch.setenv("RUTC_CACHE", str(tmp_path / "another_cache"))
        build_library(program, objects, folder / "model.so", {"a": [1, None]})
        results.append(_bytes(folder))
    assert results[0] == results[1] == results[2]
    assert sorted(results[0]) == ["model.h", "model.so"]
    for text in (str(tmp_path), str(HOST_SOURCES), os.path.expanduser("~/")):
        assert text.encode() not in results[0]["model.so"]


def test_only_the_entry_points_are_exported(doubling: Path) -> None:
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", doubling], capture_output=True, text=True, check=True
    ).stdout
    entries = ["abi_version", "close", "last_error", "manifest", "open", "output_shapes"]
    entries += ["profile", "run"]
    exported = sorted(line.split()[-1] for line in listing.splitlines())
    assert exported == [*(f"doubling_{entry}" for entry in entries), "rutc_artifact_prefix"]


def test_it_depends_on_libc_and_libm_only(compile_c: Compile, tmp_path: Path) -> None:
    objects = [compile_c(unary("f", "float32", "(float)(_Float16)tanhf(x)"))]
    build_library(simple("m", **elementwise("f")), objects, tmp_path / "m.so", {})
    listing = subprocess.run(
        ["ldd", tmp_path / "m.so"], capture_output=True, text=True, check=True
    ).stdout
    names = [Path(line.split()[0]).name.split(".")[0] for line in listing.splitlines()]
    assert {name for name in names if not name.startswith(("ld-", "linux-vdso"))} == {
        "libc",
        "libm",
    }
    headers = subprocess.run(
        ["readelf", "-lW", tmp_path / "m.so"], capture_output=True, text=True, check=True
    ).stdout
    (stack,) = [line for line in headers.splitlines() if "GNU_STACK" in line]
    assert "RWE" not in stack


def test_embedded_weights_and_manifest(tmp_path: Path) -> None:
    build_library(_constant(), [], tmp_path / "model.so", {"versions": {"rutc": "é"}})
    with load(tmp_path / "model.so") as session:
        np.testing.assert_array_equal(session.run(None, {})[0], WEIGHTS)
        manifest = session.manifest
    image = b"\x01\x02" + bytes(62) + WEIGHTS.tobytes()
    assert manifest["weights_sha256"] == hashlib.sha256(image).hexdigest()
    assert (manifest["weight_bytes"], manifest["arena_bytes"]) == (96, 0)
    assert manifest["versions"] == {"rutc": "é"}


def test_external_weights(tmp_path: Path) -> None:
    output = tmp_path / "model.so"
    build_library(_constant(), [], output, {}, weights="external")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "model.h",
        "model.so",
        "model.weights",
    ]
    with load(output) as session:
        np.testing.assert_array_equal(session.run(None, {})[0], WEIGHTS)
    weights = tmp_path / "model.weights"
    image = bytearray(weights.read_bytes())
    image[-1] ^= 1
    weights.write_bytes(image)
    with pytest.raises(ModelError, match="does not belong to this model: its SHA-256 differs"):
        load(output)
    weights.write_bytes(image[:-1])
    with pytest.raises(ModelError, match="it must have 128 bytes"):
        load(output)
    weights.unlink()
    with pytest.raises(ModelError, match=r"cannot open the weights file .*model.weights: No such"):
        load(output)


def test_a_moved_model_takes_its_weights_along(tmp_path: Path) -> None:
    artifact = build_library(_constant(), [], tmp_path / "a.so", {}, weights="external")
    assert artifact.weights is not None
    (tmp_path / "other").mkdir()
    moved = tmp_path / "other" / "b.2.so"
    artifact.library.rename(moved)
    artifact.weights.rename(tmp_path / "other" / "b.2.weights")
    (tmp_path / "link.so").symlink_to(moved)
    for path in (moved, tmp_path / "link.so"):
        with load(path) as session:
            np.testing.assert_array_equal(session.run(None, {})[0], WEIGHTS)


@pytest.mark.parametrize("placement", ["embed", "external"])
@pytest.mark.parametrize("runs", [True, False])
def test_the_first_program_that_the_cpu_can_run_is_chosen(
    tmp_path: Path, placement: Literal["embed", "external"], runs: bool
) -> None:
    impossible = _constant(features=("no-such-feature",))
    port = (Port("y", "float32", (8,)),)
    steps = (Copy(Ref("output"), Ref("weights"), 32),)
    second = Program("model", (), port, 128, steps, ((0, WEIGHTS + 1),), 32)
    third = Program("model", (), port, 128, steps, ((0, WEIGHTS + 2),), 32)
    fallbacks = (second, third) if runs else (impossible, impossible)
    output = tmp_path / "m.so"
    build_library(impossible, [], output, {}, weights=placement, fallbacks=fallbacks)
    if not runs:
        with pytest.raises(ModelError, match="needs the CPU feature no-such-feature"):
            load(output)
        return
    with load(output) as session:
        np.testing.assert_array_equal(session.run(None, {})[0], WEIGHTS + 1)
        assert session.manifest["features"] == ["no-such-feature"]
        needs = {"features": [], "arena_bytes": 128, "thread_bytes": 0, "weight_bytes": 32}
        assert session.manifest["fallbacks"] == [needs, needs]


def test_programs_share_equal_weights(tmp_path: Path) -> None:
    other = replace(_constant(), weights=((64, WEIGHTS), (0, b"\x03\x04")))
    image = weight_image((_constant(), _constant(), other, _constant(weight_bytes=128)))
    assert [p.place(0) for p in image.placed] == [0, 0, 4096, 0]
    assert [p.place(64) for p in image.placed] == [64, 64, 64, 64]
    content = b"".join(image.parts())
    assert len(content) == image.byte_count == 4096 + 64
    assert content[64:96] == WEIGHTS.tobytes()
    assert content[4096:] == b"\x03\x04" + bytes(62)
    fallbacks = (simple("model", ()),)
    with pytest.raises(InternalError, match="the programs of 'model' differ in name, inputs or"):
        build_library(_constant(), [], tmp_path / "m.so", {}, fallbacks=fallbacks)


def test_weights_of_narrow_dtypes(tmp_path: Path) -> None:
    values = np.arange(8).astype(ml_dtypes.bfloat16)
    port = (Port("y", "bfloat16", (8,)),)
    steps = (Copy(Ref("output"), Ref("weights"), 16),)
    program = Program("narrow", (), port, 0, steps, ((0, values),), 16)
    build_library(program, [], tmp_path / "m.so", {})
    with load(tmp_path / "m.so") as session:
        np.testing.assert_array_equal(session.run(None, {})[0], values)


def test_large_weights_load_without_being_read(tmp_path: Path) -> None:
    build_library(_constant(weight_bytes=100 << 20), [], tmp_path / "model.so", {})
    load(tmp_path / "model.so").close()
    start = time.perf_counter()
    resident = _resident_bytes()
    with load(tmp_path / "model.so") as session:
        seconds = time.perf_counter() - start
        assert _resident_bytes() - resident < 10 << 20
        np.testing.assert_array_equal(session.run(None, {})[0], WEIGHTS)
    print(f"100 MiB of weights loaded in {seconds * 1000:.2f} ms")


@pytest.mark.parametrize("weight_bytes", [96, 4096, 70_001, 5_000_003])
def test_tools_know_the_segment_of_weights(tmp_path: Path, weight_bytes: int) -> None:
    library = tmp_path / "model.so"
    build_library(_constant(weight_bytes=weight_bytes), [], library, {})
    done = subprocess.run(
        ["readelf", "-SlW", library],
        capture_output=True,
        text=True,
        check=True,
        env={"LC_ALL": "C"},
    )
    assert not done.stderr
    (section,) = re.findall(r"\.rutc_weights +PROGBITS +(\w+) (\w+) (\w+)", done.stdout)
    assert int(section[2], 16) == weight_bytes
    segments = re.findall(r"LOAD +0x(\w+) 0x(\w+) 0x\w+ 0x(\w+) 0x\w+ R +0x", done.stdout)
    assert section in [
        (f"{int(a, 16):016x}", f"{int(o, 16):06x}", f"{int(n, 16):06x}") for o, a, n in segments
    ]
    subprocess.run(["strip", library], check=True)
    with load(library) as session:
        np.testing.assert_array_equal(session.run(None, {})[0], WEIGHTS)


@pytest.mark.parametrize("placement", ["embed", "external"])
def test_large_weights_begin_at_a_huge_page(
    tmp_path: Path, placement: Literal["embed", "external"]
) -> None:
    """In the file and in memory, whatever the sizes of the parts that make them up."""
    data = np.random.default_rng(0).integers(0, 256, 9_000_001, np.uint8)
    cuts = [0, 64, 6_000_000 // 64 * 64, 6_000_064 // 64 * 64, len(data)]
    parts = tuple((a, data[a:b]) for a, b in pairwise(cuts))
    port = Port("y", "uint8", (len(data),))
    steps = (Copy(Ref("output"), Ref("weights"), len(data)),)
    program = Program("m", (), (port,), 0, steps, parts, len(data))
    library = tmp_path / "m.so"
    build_library(program, [], library, {}, weights=placement)
    with load(library) as session:
        np.testing.assert_array_equal(session.run(None, {})[0], data)
    if placement == "embed":
        done = subprocess.run(["readelf", "-lW", library], capture_output=True, check=True)
        last = done.stdout.decode().split("LOAD")[-1].split()
        offset, address, alignment = int(last[0], 16), int(last[1], 16), int(last[6], 16)
        assert alignment == HUGE_PAGE_BYTES
        assert offset % HUGE_PAGE_BYTES == address % HUGE_PAGE_BYTES == 0


def test_a_segment_is_appended_to_libraries_only(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"no library")
    with pytest.raises(InternalError, match="is no 64-bit little-endian ELF file"):
        append_segment(path, [b"x"], 1)
    build_library(_constant(), [], tmp_path / "model.so", {})
    with pytest.raises(InternalError, match="has no segment that could be replaced"):
        append_segment(tmp_path / "model.so", [b"x"], 1)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_nothing_half_written_is_left(tmp_path: Path) -> None:
    output = tmp_path / "model.so"
    with pytest.raises(InternalError, match=r"undefined reference to .missing|undefined symbol"):
        build_library(simple("model", **elementwise("missing")), [], output, {})
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UserError, match=r"cannot write in .*none: No such file or directory"):
        build_library(_constant(), [], tmp_path / "none" / "model.so", {})
    with pytest.raises(UserError, match=r"choose a name that ends in \.so"):
        build_library(_constant(), [], tmp_path / "model.h", {})


def test_permissions_follow_the_umask(doubling: Path) -> None:
    created = doubling.parent / "created"
    created.touch()
    readable = stat.S_IMODE(created.stat().st_mode)
    for path in (doubling, doubling.with_suffix(".h")):
        assert stat.S_IMODE(path.stat().st_mode) & 0o666 == readable


def test_unusual_names_are_made_safe(tmp_path: Path) -> None:
    names = ['a"b*/c', "??/\\\n", "ünï", "%s"]
    ports = tuple(Port(name, "float32", (8,)) for name in names)
    steps = tuple(Copy(Ref("output", n), Ref("input", n), 32) for n in range(len(names)))
    program = Program("3/*d model*/\n", ports, ports, 0, steps)
    build_library(program, [], tmp_path / "m.so", {})
    with load(tmp_path / "m.so") as session:
        results = session.run(names, {name: WEIGHTS + n for n, name in enumerate(names)})
        assert [result[0] for result in results] == [0, 1, 2, 3]
        assert [port.name for port in session.get_inputs()] == names
    command = ["cc", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-x", "c", tmp_path / "m.h"]
    subprocess.run(command, check=True)


def test_a_path_may_be_no_utf8(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"\xff.so")
    build_library(_constant(), [], path, {})
    with load(path) as session:
        (y,) = session.run(None, {})
    np.testing.assert_array_equal(y, WEIGHTS)


def test_names_in_c() -> None:
    assert symbol_prefix("resnet50-v1.7") == "resnet50_v1_7"
    assert symbol_prefix("3d") == "model_3d"
    assert symbol_prefix("") == "model_"
    assert symbol_prefix("rutc_session") == "model_rutc_session"
    assert c_string('a"\n?é') == r'"a\042\012\077\303\251"'
    assert c_comment("a*/b\n/*c") == "a* /b?/ *c"


def test_the_host_runtime_compiles_without_warnings(tmp_path: Path) -> None:
    flags = ["-std=c11", "-O2", "-fPIC", "-Wall", "-Wextra", "-Werror", "-Wshadow", "-pedantic"]
    for source in sorted(HOST_SOURCES.glob("*.c")):
        subprocess.run(["cc", *flags, "-c", source, "-o", tmp_path / "host.o"], check=True)


def test_manifest_keys_of_the_program_are_its_own(tmp_path: Path) -> None:
    with pytest.raises(InternalError, match="the manifest's inputs come from the host program"):
        build_library(_constant(), [], tmp_path / "m.so", {"inputs": []})
    with pytest.raises(InternalError, match="the manifest is not JSON"):
        build_library(_constant(), [], tmp_path / "m.so", {"x": float("nan")})


def test_a_program_is_checked_and_printed() -> None:
    launch = Launches()
    with pytest.raises(InternalError, match=r"input1\+0 names no input in 'launch k\(input1\+0\)"):
        simple("m", (launch("k", (Ref("input", 1),), 1),), kernels=launch.kernels)
    with pytest.raises(InternalError, match="there is no kernel 1 in 'Launch"):
        simple("m", (Launch(KernelId(1)),), kernels=launch.kernels)
    with pytest.raises(InternalError, match=r"arena.8192 lies outside its space"):
        simple("m", (Copy(Ref("arena", 0, 8192), Ref("input"), 4),))
    with pytest.raises(InternalError, match="weights are read-only"):
        _ = Program("m", (), (), 64, (Copy(Ref("weights"), Ref("arena"), 0),), (), 64)
    assert str(simple("m", **elementwise("twice"))) == (
        "program m arena=4096 weights=0\n"
        "  input0 x: float32[8]\n"
        "  output0 y: float32[8]\n"
        "  launch twice(input0+0, output0+0) tasks=8  # node_0\n"
    )


def test_no_compiler_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RUTC_CC", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"no C compiler found: .*\$RUTC_CC, cc, or .* ziglang"):
        find_toolchain()
    with pytest.raises(UserError, match="no C compiler found for riscv64 on this"):
        find_toolchain("riscv64")


def test_the_configured_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUTC_CC", "cc -O1")
    assert find_toolchain().command == ("cc", "-O1")
    monkeypatch.setenv("RUTC_CC", "/no/such/compiler")
    with pytest.raises(UserError, match="cannot run the C compiler '/no/such/compiler': No such"):
        find_toolchain()


@pytest.mark.slow
def test_ziglang_builds_and_cross_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ziglang")
    monkeypatch.setenv("RUTC_CC", f"{sys.executable} -m ziglang cc")
    build_library(_constant(), [], tmp_path / "model.so", {})
    with load(tmp_path / "model.so", threads=2) as session:
        np.testing.assert_array_equal(session.run(None, {})[0], WEIGHTS)
    monkeypatch.delenv("RUTC_CC")
    other = "aarch64" if os.uname().machine == "x86_64" else "x86_64"
    build_library(_constant(), [], tmp_path / "other.so", {}, find_toolchain(other))
    assert json.dumps("model")[1:-1].encode() in (tmp_path / "other.so").read_bytes()
    with pytest.raises(ModelError, match=f"is for {other} processors"):
        load(tmp_path / "other.so")
