"""Files of artifacts that are damaged, cut off, or no artifacts: told before they are loaded."""

import json
import os
import random
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from rutc.emit.host_program.host_steps import Copy
from rutc.emit.host_program.kernel_call import Ref
from rutc.emit.host_program.ports import Port
from rutc.emit.host_program.program import Program
from rutc.emit.linking.bundle import write_loader
from rutc.emit.linking.elf import seal
from rutc.emit.linking.library import build_library
from rutc.runtime import InferenceSession, ModelError, load
from rutc.runtime.artifact import open_artifact
from rutc.runtime.ports import Ports
from rutc.verify.feeding.whole import WholeSession
from tests.cli.conftest import invoke
from tests.runtime.conftest import simple

WEIGHTS = np.arange(20_080, dtype=np.float32)
MACHINE_AT = 18


def _program(**more: object) -> Program:
    """A program whose output is the last of its weights."""
    port = (Port("y", "float32", (8,)),)
    place = WEIGHTS.nbytes - 64
    steps = (Copy(Ref("output"), Ref("weights", 0, place), 32),)
    return Program("model", (), port, 0, steps, ((0, WEIGHTS),), WEIGHTS.nbytes, **more)


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("embedded") / "model.so"
    build_library(_program(), [], path, {"kernels": []})
    return path


@pytest.fixture(scope="module")
def external(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("external") / "model.so"
    build_library(_program(), [], path, {}, weights="external")
    return path


def _section(path: Path, name: str) -> tuple[int, int]:
    """Where a section of a library begins and ends in its file."""
    artifact = open_artifact(path)
    artifact.file.close()
    return artifact.sections[name]


def _manifest(path: Path) -> dict[str, object]:
    artifact = open_artifact(path)
    with artifact.file:
        return dict(artifact.manifest())


def _copy(path: Path, folder: Path, change: Callable[[bytearray], object]) -> Path:
    """A copy of the files of a library, which is changed."""
    for file in path.parent.iterdir():
        shutil.copy(file, folder)
    data = bytearray(path.read_bytes())
    change(data)
    (folder / path.name).write_bytes(data)
    return folder / path.name


def test_a_library_that_is_cut_off_is_not_loaded(tmp_path: Path, embedded: Path) -> None:
    size = embedded.stat().st_size
    places = {0, 1, 20, 63, 64, 400, 4095, 4096, size // 4, size // 2, size - 4096, size - 1}
    for place in sorted(places):
        path = tmp_path / f"{place}.so"
        path.write_bytes(embedded.read_bytes()[:place])
        with pytest.raises(ModelError, match=r"cannot load .*(cut off or damaged|no ELF file)"):
            load(path)


def test_c_programs_are_told_of_missing_weights(tmp_path: Path, embedded: Path) -> None:
    """They load the library themselves; to read what is missing would end them."""
    begin, _ = _section(embedded, ".rutc_weights")
    (tmp_path / "cut.so").write_bytes(embedded.read_bytes()[: begin + 5000])
    program = f"""
import ctypes
library = ctypes.CDLL({str(tmp_path / "cut.so")!r})
library.model_open.restype = ctypes.c_void_p
library.model_last_error.restype = ctypes.c_char_p
assert not library.model_open(None)
print(library.model_last_error(None).decode())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "the library is cut off" in done.stdout


def test_every_byte_is_checked_on_request(tmp_path: Path, embedded: Path, external: Path) -> None:
    load(embedded, check_integrity=True).close()
    load(external, check_integrity=True).close()
    draw = random.Random(0)
    for number, whole in enumerate((embedded, external, external.with_suffix(".weights"))):
        folder = tmp_path / str(number)
        folder.mkdir()
        data = whole.read_bytes()
        for place in [0, 40, 58, len(data) - 1, *draw.sample(range(len(data)), 60)]:
            changed = bytearray(data)
            changed[place] ^= 1 << draw.randrange(8)
            library = _copy(embedded if number == 0 else external, folder, lambda data: None)
            (folder / whole.name).write_bytes(changed)
            with pytest.raises(ModelError, match=r"SHA-256 differs|cannot load|holds no|no model"):
                load(library, check_integrity=True)


def test_no_code_that_has_changed_is_loaded(tmp_path: Path, embedded: Path) -> None:
    """It may end the process; a changed word of the manifest is no less told."""
    whole = embedded.read_bytes()
    weights = range(*_section(embedded, ".rutc_weights"))
    artifact = open_artifact(embedded)
    artifact.file.close()
    mapped = [range(s[2], s[2] + s[5]) for s in artifact.segments if s[0] == 1]
    places = [at for span in mapped for at in span if at >= 64 and at not in weights]
    draw = random.Random(1)
    for at in [whole.index(b'"kernels"') + 2, *draw.sample(places, 60)]:
        changed = bytearray(whole)
        changed[at] ^= 1 << draw.randrange(8)
        (tmp_path / f"{at}.so").write_bytes(changed)
        with pytest.raises(ModelError, match=r"its CRC-32 differs|cannot load|holds no digest"):
            load(tmp_path / f"{at}.so")


def test_a_library_whose_end_is_zeros_is_not_loaded(tmp_path: Path, embedded: Path) -> None:
    """As a copy leaves it that was broken off: the table of sections, which has the note, too."""
    whole = embedded.read_bytes()
    for kept in (len(whole) // 2, len(whole) - 64):
        (tmp_path / f"{kept}.so").write_bytes(whole[:kept].ljust(len(whole), b"\0"))
        with pytest.raises(ModelError, match=r"no model compiled by|CRC-32 differs"):
            load(tmp_path / f"{kept}.so")


def test_a_changed_weight_is_loaded_unless_asked(tmp_path: Path, embedded: Path) -> None:
    """Large weights are mapped, not read."""
    begin, _ = _section(embedded, ".rutc_weights")

    def change(data: bytearray) -> None:
        data[begin] ^= 1

    path = _copy(embedded, tmp_path, change)
    load(path).close()
    with pytest.raises(ModelError, match=r"model.so has changed since it was compiled"):
        load(path, check_integrity=True)


@pytest.mark.parametrize("integrity", [False, True])
@pytest.mark.parametrize(
    "damage",
    [
        Path.unlink,
        lambda path: path.write_bytes(b""),
        lambda path: os.truncate(path, path.stat().st_size - 1),
        lambda path: path.write_bytes(path.read_bytes() + b"more"),
        lambda path: (path.unlink(), path.mkdir()),
        lambda path: (path.unlink(), os.mkfifo(path)),
    ],
)
def test_files_of_weights(
    tmp_path: Path, external: Path, damage: Callable[[Path], object], integrity: bool
) -> None:
    path = _copy(external, tmp_path, lambda data: None)
    damage(tmp_path / "model.weights")
    with pytest.raises(ModelError, match=r"model\.weights"):
        load(path, check_integrity=integrity)


def test_weights_of_links_lie_beside_what_they_lead_to(tmp_path: Path, external: Path) -> None:
    (tmp_path / "link.so").symlink_to(external)
    with load(tmp_path / "link.so", check_integrity=True) as session:
        np.testing.assert_array_equal(session.run(None, {})[0], WEIGHTS[-16:-8])


def _bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(path))


@pytest.mark.parametrize("integrity", [False, True])
@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda path: None, "No such file or directory"),
        (Path.mkdir, "it is a directory"),
        (os.mkfifo, "it is no regular file"),
        (_bind, "cannot load"),
        (lambda path: path.write_text("text"), "it is no ELF file"),
        (lambda path: path.write_bytes(b"\x7fELF\x02\x01"), "it is no ELF file"),
        (lambda path: path.write_bytes(b"\x7fELF\x02\x01" + bytes(200)), "it is no shared library"),
        (lambda path: shutil.copy(sys.executable, path), "cannot load|no model compiled"),
    ],
)
def test_what_is_no_library(
    tmp_path: Path, make: Callable[[Path], object], told: str, integrity: bool
) -> None:
    make(tmp_path / "a.so")
    with pytest.raises(ModelError, match=told):
        load(tmp_path / "a.so", check_integrity=integrity)


@pytest.mark.parametrize("name", ["a\0.so", "a" * 300])
def test_names_that_no_file_has(name: str) -> None:
    with pytest.raises(ModelError, match="cannot load"):
        load(name)


@pytest.mark.parametrize(
    "threads", [0, -1, 4097, 10**9, 2**31, 2**32 + 1, 2**70, True, False, 2.0, "2", np.float32(1)]
)
def test_absurd_thread_counts(embedded: Path, threads: object) -> None:
    with pytest.raises(ModelError, match="threads must be a whole number from 1 to 4096"):
        load(embedded, threads=threads)  # type: ignore[arg-type]
    if threads:
        options = SimpleNamespace(intra_op_num_threads=threads)
        with pytest.raises(ModelError, match="threads must be a whole number"):
            InferenceSession(embedded, options)


def test_numbers_of_numpy_are_thread_counts(embedded: Path) -> None:
    with load(embedded, threads=np.int64(1)) as session:  # type: ignore[arg-type]
        np.testing.assert_array_equal(session.run(None, {})[0], WEIGHTS[-16:-8])
    with InferenceSession(embedded, SimpleNamespace(intra_op_num_threads=0)) as session:
        np.testing.assert_array_equal(session.run(None, {})[0], WEIGHTS[-16:-8])


@pytest.mark.parametrize(
    ("number", "told"), [(183, "aarch64"), (62, "x86_64"), (243, r"other \(243\)")]
)
def test_libraries_for_other_processors(
    tmp_path: Path,
    embedded: Path,
    number: int,
    told: str,
) -> None:
    def change(data: bytearray) -> None:
        data[MACHINE_AT : MACHINE_AT + 2] = number.to_bytes(2, "little")

    path = _copy(embedded, tmp_path, change)
    if path.read_bytes() != embedded.read_bytes():
        with pytest.raises(ModelError, match=f"is for {told} processors, and this one is"):
            load(path)
    shown = invoke("inspect", path)
    assert shown.status == 0, shown.stderr
    assert "tensor(float)" in shown.stdout


@pytest.mark.parametrize("feature", ["amx-tile", "avx512f", "sve2", "no-such-feature"])
def test_what_this_processor_lacks_is_no_matter_to_inspect(
    tmp_path: Path,
    feature: str,
) -> None:
    build_library(simple("m", (), features=(feature,)), [], tmp_path / "m.so", {})
    shown = invoke("inspect", tmp_path / "m.so", "--json")
    assert shown.status == 0, shown.stderr
    manifest = shown.json["manifest"]
    assert isinstance(manifest, dict)
    assert manifest["features"] == [feature]


def test_inspect_checks_integrity(tmp_path: Path, embedded: Path) -> None:
    shown = invoke("inspect", embedded, "--integrity")
    assert shown.status == 0, shown.stderr
    assert "every byte is what it was" in shown.stdout

    def change(data: bytearray) -> None:
        data[-1] ^= 1

    path = _copy(embedded, tmp_path, change)
    assert invoke("inspect", path).status == 0
    shown = invoke("inspect", path, "--integrity")
    assert shown.status == 2
    assert "has changed since it was compiled" in shown.stderr


def test_segments_that_begin_where_the_note_ends_are_checked_as_others(tmp_path: Path) -> None:
    """As one does in the file of any 500th library; without weights it was taken for theirs."""

    program = simple("copy", (Copy(Ref("output"), Ref("input"), 32),))

    def built(room: int) -> tuple[Path, int, list[int]]:
        path = tmp_path / f"{room}.so"
        build_library(program, [], path, {"room": "x" * room})
        artifact = open_artifact(path)
        artifact.file.close()
        begins = [offset for kind, _, offset, *_ in artifact.segments if kind == 1]
        return path, _section(path, ".note.rutc")[1], begins

    _, note_end, begins = built(0)
    place = next(b % 4096 for b in begins if b >= note_end)
    path, note_end, begins = built((place - note_end) % 4096)
    assert note_end in begins, "the linker leaves something between them"
    x = np.arange(8, dtype=np.float32)
    with load(path) as session:
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], x)


@pytest.mark.parametrize(
    "command", [["run"], ["bench", "--seconds", "0.1"], ["inspect", "--profile"]], ids=" ".join
)
def test_what_commands_run_is_whole(tmp_path: Path, embedded: Path, command: list[str]) -> None:
    """Code that is damaged may end the process that runs it."""
    name, *options = command
    assert invoke(name, embedded, *options).status == 0

    def change(data: bytearray) -> None:
        data[-1] ^= 1

    shown = invoke(name, _copy(embedded, tmp_path, change), *options)
    assert shown.status == 2
    assert "has changed since it was compiled" in shown.stderr


def _text(**changes: object) -> Callable[[dict[str, object]], str]:
    return lambda manifest: json.dumps({**manifest, **changes})


TENSOR = {"name": "y", "dtype": "float32", "shape": [8]}
STATE = {"input": {**TENSOR, "name": "past"}, "output": {**TENSOR, "name": "present"}}


def _with_manifest(folder: Path, text: str) -> Path:
    """A library that was made with another text for its manifest."""
    room = folder / "model.so"
    # A manifest with room for another.
    build_library(_program(), [], room, {"room": "x" * 25_000})
    begin, end = _section(room, ".rutc_manifest")
    data = bytearray(room.read_bytes())
    data[begin:end] = text.encode("latin-1").ljust(end - begin - 1) + b"\0"
    room.write_bytes(data)
    seal(room)
    return room


@pytest.mark.parametrize(
    "make",
    [
        lambda manifest: "",
        lambda manifest: "[]",
        lambda manifest: "{",
        lambda manifest: "null",
        lambda manifest: "[" * 20_000,
        lambda manifest: '"\udcff"'.encode("utf-8", "surrogateescape").decode("latin-1"),
        _text(inputs=None),
        _text(inputs=5),
        _text(inputs={}),
        _text(outputs=[5]),
        _text(outputs=["name"]),
        _text(outputs=[{}]),
        _text(outputs=[{**TENSOR, "dtype": "float7"}]),
        _text(outputs=[{**TENSOR, "dtype": None}]),
        _text(outputs=[{**TENSOR, "dtype": "U5"}]),
        _text(outputs=[{**TENSOR, "shape": 8}]),
        _text(outputs=[{**TENSOR, "shape": [8.5]}]),
        _text(outputs=[{**TENSOR, "shape": [-1]}]),
        _text(outputs=[{**TENSOR, "shape": [1 << 80]}]),
        _text(outputs=[{**TENSOR, "shape": [None]}]),
        _text(outputs=[{**TENSOR, "fixed": "zz"}]),
        _text(outputs=[{**TENSOR, "fixed": "00"}]),
        _text(outputs=[{**TENSOR, "fixed": 7}]),
        _text(states=[{"input": TENSOR}]),
        _text(states=[{**STATE, "axis": 1}]),
        _text(states=[{**STATE, "axis": -1}]),
        _text(states=[{**STATE, "axis": "x"}]),
        _text(states=[{**STATE, "axis": 0, "capacity": "many"}]),
        _text(interface={}),
        _text(interface={"inputs": 1, "outputs": 2}),
        _text(interface={"inputs": [], "outputs": [{}]}),
        _text(interface={"inputs": [], "outputs": [{"kind": "tensor", "port": "z"}]}),
        _text(interface={"inputs": [], "outputs": [{"kind": "map"}]}),
    ],
)
def test_manifests_that_are_damaged(
    tmp_path: Path,
    embedded: Path,
    make: Callable[[dict[str, object]], str],
) -> None:
    room = _with_manifest(tmp_path, make(_manifest(embedded)))
    with pytest.raises(ModelError, match=r"the manifest in .*model.so is damaged"):
        load(room)
    shown = invoke("inspect", room)
    assert shown.status == 2, shown.stdout
    assert "is damaged" in shown.stderr
    assert shown.stderr.count("error:") == 1


@pytest.mark.parametrize(
    ("features", "told"),
    [([["f1"], {"f2": 3}], "with ['f1'], {'f2': 3}, "), (7, "v3, "), (None, "v3, ")],
)
def test_what_a_manifest_says_of_features_may_be_anything(
    tmp_path: Path, embedded: Path, features: object, told: str
) -> None:
    facts = {**_manifest(embedded), "target": "x86-64-v3", "features": features}
    shown = invoke("inspect", _with_manifest(tmp_path, json.dumps(facts)))
    assert shown.status == 0, shown.stderr
    assert told in " ".join(shown.stdout.split())


ALGORITHM = {
    "sum": "y",
    "origin": ["y"],
    "typical": 1.67,
    "outputs": [2, 2],
    "taps": [3, 3],
    "reach": [3, 3],
}
TOLD: dict[str, tuple[object, list[object]]] = {
    "symbols": ({"n": [1, 8]}, [7, {"n": 3}, {"n": [1]}, {"n": [None, 2]}, {"n": [8, 1]}]),
    "common_sizes": ({"n": 3}, ["n", {"n": None}, {"n": [{}]}, {"n": 1 << 70}]),
    "arena_bytes": ("64*n", [{}, "8 +", -1, 1.5, True]),
    "divisors": (["d"], ["d", [None], {"d": 1}]),
    "texts": ({"s": ["a", ""]}, [["a"], {"s": None}, {"s": 7}, {"s": "a"}, {"s": [{}]}]),
    "rows": ({"i": [5, "n"]}, [5, {"i": None}, {"i": 7}, {"i": [None]}, {"i": ["6.*n"]}]),
    "algorithms": (
        [ALGORITHM],
        [{}, [5], [{}], [{**ALGORITHM, "reach": None}], [{**ALGORITHM, "origin": [7]}]],
    ),
}


@pytest.mark.parametrize("name", TOLD)
def test_what_generated_inputs_go_by_is_damaged(tmp_path: Path, embedded: Path, name: str) -> None:
    right, wrong = TOLD[name]
    for value in (right, None):
        path = _with_manifest(tmp_path, _text(**{name: value})(_manifest(embedded)))
        WholeSession(path).close()
    for value in wrong:
        path = _with_manifest(tmp_path, _text(**{name: value})(_manifest(embedded)))
        with pytest.raises(ModelError, match=rf"manifest in .* is damaged: its {name} cannot be"):
            WholeSession(path)
        of_fallback = _text(fallbacks=[{name: value}])(_manifest(embedded))
        with pytest.raises(ModelError, match="is damaged"):
            WholeSession(_with_manifest(tmp_path, of_fallback))


@pytest.mark.parametrize("size", ["n", "2*m + 1", "'m/2'"])
def test_a_size_of_an_input_without_a_range_is_damage(
    tmp_path: Path, embedded: Path, size: str
) -> None:
    given = {"inputs": [{**TENSOR, "name": "x", "shape": [size]}], "symbols": {"k": [1, 2]}}
    path = _with_manifest(tmp_path, _text(**given)(_manifest(embedded)))
    with pytest.raises(ModelError, match=r"is damaged: it has no range of the size '.*' of input"):
        WholeSession(path)


@pytest.mark.parametrize("command", ["run", "bench"])
def test_commands_tell_a_damaged_manifest(tmp_path: Path, command: str) -> None:
    path = tmp_path / "model.so"
    build_library(_program(), [], path, {"texts": {"s": None}, "rows": {"i": [{}]}})
    shown = invoke(command, path)
    assert shown.status == 2
    assert "is damaged: its texts cannot be {'s': None}" in " ".join(shown.stderr.split())
    assert shown.stderr.count("error:") == 1


@pytest.mark.parametrize("kernels", [None, 5, [5], [{}], [{"flops": "x", "name": 3, "nodes": 4}]])
def test_what_a_manifest_says_of_kernels_may_be_anything(
    tmp_path: Path,
    kernels: object,
) -> None:
    facts = {"kernels": kernels, "versions": kernels, "target": kernels}
    build_library(simple("m", ()), [], tmp_path / "m.so", facts)  # type: ignore[arg-type]
    assert invoke("inspect", tmp_path / "m.so").status in (0, 2)


def test_the_loader_in_one_file_checks_the_same(tmp_path: Path, embedded: Path) -> None:
    write_loader(tmp_path)
    data = embedded.read_bytes()
    (tmp_path / "cut.so").write_bytes(data[: len(data) // 2])
    (tmp_path / "changed.so").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    program = """
import rutc_runtime
for name in ("cut.so", "changed.so", "none.so", ".", "a\\0b"):
    try:
        rutc_runtime.load(name, check_integrity=True)
    except rutc_runtime.ModelError as error:
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    told = ["cut off", "SHA-256 differs", "No such file", "it is a directory", "cannot load"]
    lines = done.stdout.splitlines()
    assert len(lines) == len(told)
    assert all(word in line for word, line in zip(told, lines, strict=True))


def test_the_ports_of_a_file_are_those_of_its_session(embedded: Path) -> None:
    with load(embedded) as session:
        ports = Ports.of(embedded, _manifest(embedded))
        assert ports.get_outputs() == session.get_outputs()
        assert ports.get_inputs() == session.get_inputs()


@pytest.mark.parametrize("size", ["8 +", "64*(n // -6)", "6.*n", "}"])
@pytest.mark.parametrize("of_input", [False, True])
def test_sizes_that_are_none_are_damage(
    tmp_path: Path, embedded: Path, size: str, of_input: bool
) -> None:
    """Nobody wrote line 1, column 3 of it: the manifest is at fault."""
    facts = {"inputs": [{**TENSOR, "shape": [size]}]} if of_input else {"arena_bytes": size}
    room = _with_manifest(tmp_path, json.dumps({**_manifest(embedded), **facts}))
    shown = invoke("inspect", room)
    assert shown.status == 2
    assert f"the manifest in {room} is damaged" in " ".join(shown.stderr.split())
