"""Weights in a file beside the library: where it is, what is told of others, who shares it."""

import ctypes
import hashlib
import mmap
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import rutc.emit.linking.library as emitted
from rutc.base import files
from rutc.emit.host_program.host_steps import Copy
from rutc.emit.host_program.kernel_call import Ref
from rutc.emit.host_program.ports import Port
from rutc.emit.host_program.program import Program
from rutc.emit.linking.elf import HUGE_PAGE_BYTES
from rutc.emit.linking.host_runtime import HOST_SOURCES
from rutc.emit.linking.library import build_library
from rutc.emit.linking.placement import EMBED_LIMIT_BYTES, weights_file
from rutc.emit.linking.weight_image import Placed, WeightImage
from rutc.runtime import ModelError, load
from tests.runtime.conftest import run_c, simple

DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("int2", "int4", "uint2", "uint4", "float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
)
DIGEST_BYTES = 32


def _program(data: np.ndarray) -> Program:
    """A program whose output is its weights."""
    port = Port("y", str(data.dtype), data.shape)
    steps = (Copy(Ref("output"), Ref("weights"), data.nbytes),)
    return Program("model", (), (port,), 0, steps, ((0, data),), data.nbytes)


def _bytes(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, count, np.uint8)


WEIGHTS = _bytes(20_011)


def _build(folder: Path, data: np.ndarray) -> Path:
    folder.mkdir(exist_ok=True)
    build_library(_program(data), [], folder / "model.so", {}, weights="external")
    return folder / "model.so"


def _run(library: Path, **options: object) -> np.ndarray:
    with load(library, threads=1, **options) as session:  # type: ignore[arg-type]
        return np.asarray(session.run(None, {})[0])


def _maps(file: Path) -> list[tuple[int, str]]:
    """Where a file is mapped in this process, and what may be done there."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return [
        (int(line.partition("-")[0], 16), line.split()[1])
        for line in lines
        if line.endswith(f" {file}")
    ]


@pytest.fixture(scope="module")
def external(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _build(tmp_path_factory.mktemp("external"), WEIGHTS)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library of the same model with other weights of the same size."""
    return _build(tmp_path_factory.mktemp("other"), _bytes(len(WEIGHTS), 1))


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("embedded") / "model.so"
    build_library(_program(WEIGHTS), [], library, {})
    return library


# -- what is in the file ------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_of_all_types(tmp_path: Path, dtype: str) -> None:
    kind = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
    values = _bytes(13 * kind.itemsize)
    data = values.view(kind) if dtype != "bool" else values % 2 == 1
    results = [_run(_build(tmp_path, data))]
    build_library(_program(data), [], tmp_path / "model.so", {}, weights="embed")
    results.append(_run(tmp_path / "model.so"))
    assert [r.dtype for r in results] == [data.dtype] * 2
    assert [r.tobytes() for r in results] == [data.tobytes()] * 2


@pytest.mark.parametrize("size", [1, 31, 4064, 4065, 4096, 70_001])
def test_a_file_is_the_image_and_its_digest(tmp_path: Path, size: int) -> None:
    data = _bytes(size)
    library = _build(tmp_path, data)
    assert sorted(os.listdir(tmp_path)) == ["model.h", "model.so", "model.weights"]
    digest = hashlib.sha256(data.tobytes())
    content = (tmp_path / "model.weights").read_bytes()
    assert content == data.tobytes() + digest.digest()
    with load(library, threads=1, check_integrity=True) as session:
        assert session.manifest["weights_sha256"] == digest.hexdigest()
        assert session.manifest["weights_file"] == {
            "name": "model.weights",
            "bytes": size + DIGEST_BYTES,
        }
        np.testing.assert_array_equal(session.run(None, {})[0], data)
    assert "Its weights are in model.weights" in (tmp_path / "model.h").read_text()


@pytest.mark.parametrize("placement", ["auto", "external"])
def test_who_has_no_weights_has_no_file_of_them(tmp_path: Path, placement: str) -> None:
    library = tmp_path / "model.so"
    built = build_library(simple("model", ()), [], library, {}, weights=placement)  # type: ignore[arg-type]
    assert built.weights is None
    assert sorted(os.listdir(tmp_path)) == ["model.h", "model.so"]
    load(library, check_integrity=True).close()
    with pytest.raises(ModelError, match="options name weights, but those of this model, if"):
        load(library, weights=tmp_path / "model.weights")


def test_where_weights_are_placed() -> None:
    library, file = Path("a/m.x.so"), Path("a/m.x.weights")
    assert weights_file(library, "auto", EMBED_LIMIT_BYTES) is None
    assert weights_file(library, "auto", EMBED_LIMIT_BYTES + 1) == file
    assert weights_file(library, "embed", 3 << 30) is None
    assert weights_file(library, "external", 1) == file
    assert weights_file(library, "external", 0) is None


def test_files_may_have_more_than_4_gib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sparse one, whose digest is that of no bytes."""
    size, place, said = (4 << 30) + 192, (4 << 30) + 64, hashlib.sha256().digest()

    class Sparse(WeightImage):
        def parts(self) -> Iterator[bytes | memoryview]:
            return iter(())

    image = Sparse(size, (Placed(size),), ())
    monkeypatch.setattr(emitted, "weight_image", lambda programs: image)
    steps = (Copy(Ref("output"), Ref("weights", 0, place), 8),)
    program = Program("model", (), (Port("y", "float32", (2,)),), 0, steps, (), size)
    build_library(program, [], tmp_path / "model.so", {}, weights="external")
    values = np.array([1.5, -2], np.float32)
    with (tmp_path / "model.weights").open("r+b") as file:
        file.truncate(size)
        file.seek(place)
        file.write(values.tobytes())
        file.seek(size)
        file.write(said)
    np.testing.assert_array_equal(_run(tmp_path / "model.so"), values)


# -- where it is --------------------------------------------------------------------------------
def test_it_lies_beside_the_library_wherever_the_process_is(tmp_path: Path, external: Path) -> None:
    """A library that is named by a relative path; what lies in the other folder is not taken."""
    shutil.copytree(external.parent, tmp_path / "here")
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "model.weights").write_bytes(b"no weights")
    program = """
import ctypes, os, sys
library = ctypes.CDLL("./model.so")
os.chdir("../there")
library.model_open.restype = ctypes.c_void_p
library.model_last_error.restype = ctypes.c_char_p
print(library.model_open(None) is not None, library.model_last_error(None).decode())
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, cwd=tmp_path / "here", capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "True"


def test_links_into_a_store_are_followed(tmp_path: Path, external: Path) -> None:
    """Both are links to files with names of their own, or the library alone is one."""
    (tmp_path / "store").mkdir()
    for number, suffix in enumerate((".so", ".weights")):
        shutil.copy(external.with_suffix(suffix), tmp_path / "store" / f"blob{number}")
        (tmp_path / f"m{suffix}").symlink_to(f"store/blob{number}")
    (tmp_path / "alone.so").symlink_to(external)
    for name in ("m.so", "alone.so"):
        result = _run(tmp_path / name, check_integrity=True)
        np.testing.assert_array_equal(result, WEIGHTS)


@pytest.mark.parametrize("integrity", [False, True])
def test_another_file_is_named(tmp_path: Path, external: Path, integrity: bool) -> None:
    shutil.copy(external, tmp_path / "model.so")
    moved = shutil.copy(external.with_suffix(".weights"), tmp_path / "elsewhere.bin")
    with pytest.raises(ModelError, match=r"model\.weights"):
        _run(tmp_path / "model.so", check_integrity=integrity)
    for path in (moved, str(moved), os.path.relpath(moved)):
        result = _run(tmp_path / "model.so", weights=path, check_integrity=integrity)
        np.testing.assert_array_equal(result, WEIGHTS)


def _truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def _flipped(place: int) -> Callable[[Path], None]:
    def flip(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[place] ^= 1
        path.write_bytes(data)

    return flip


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (Path.unlink, "cannot open the weights file .*: No such file or directory$"),
        (
            _truncated,
            "does not belong to this model, or is cut off: it must have 20043 bytes and has 20042",
        ),
        (lambda path: os.truncate(path, 0), "or is cut off: it must have 20043 bytes and has 0"),
        (
            lambda path: os.truncate(path, 1 << 40),
            "or is cut off: it must have 20043 bytes and has 1099511627776",
        ),
        (_flipped(-1), "does not belong to this model: its SHA-256 differs from that"),
        (lambda path: (path.unlink(), path.mkdir()), "is no regular file"),
        (lambda path: (path.unlink(), os.mkfifo(path)), "is no regular file"),
        (lambda path: (path.unlink(), path.symlink_to("/dev/zero")), "is no regular file"),
        (lambda path: (path.unlink(), path.symlink_to(path)), "Too many levels of symbolic"),
    ],
)
def test_what_is_no_file_of_this_model(
    tmp_path: Path, external: Path, damage: Callable[[Path], object], told: str
) -> None:
    path = Path(shutil.copy(external.with_suffix(".weights"), tmp_path / "copy"))
    damage(path)
    with pytest.raises(ModelError, match=told):
        load(external, weights=path)
    with pytest.raises(ModelError, match="copy"):
        load(external, weights=path, check_integrity=True)


def test_weights_of_another_compilation(tmp_path: Path, external: Path, other: Path) -> None:
    library = Path(shutil.copy(external, tmp_path))
    shutil.copy(other.with_suffix(".weights"), tmp_path)
    with pytest.raises(ModelError, match="does not belong to this model: its SHA-256 differs"):
        load(library)
    with pytest.raises(ModelError, match="has changed since it was compiled"):
        load(library, check_integrity=True)


@pytest.mark.parametrize("name", ["", "a\0b", b"bytes.weights"])
def test_names_that_no_file_has(external: Path, name: object) -> None:
    with pytest.raises(ModelError, match=r"has the name|do not belong to this model|multiple of"):
        load(external, weights=name)  # type: ignore[arg-type]


def test_a_pair_that_is_half_replaced_does_not_run(tmp_path: Path, external: Path) -> None:
    """A process is killed when the new weights are there and the new library is not."""
    shutil.copytree(external.parent, tmp_path, dirs_exist_ok=True)
    child = os.fork()
    if child == 0:
        move = Path.replace

        def replace(self: Path, target: Path) -> Path:
            if target == tmp_path / "model.so":
                os.kill(os.getpid(), signal.SIGKILL)
            return move(self, target)

        Path.replace = replace  # type: ignore[assignment,method-assign]
        try:
            _build(tmp_path, _bytes(len(WEIGHTS), 2))
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    with pytest.raises(ModelError, match="does not belong to this model: its SHA-256 differs"):
        load(tmp_path / "model.so")
    files.sweep(tmp_path)
    np.testing.assert_array_equal(_run(tmp_path / "model.so"), _bytes(len(WEIGHTS), 2))


# -- memory -------------------------------------------------------------------------------------
def test_weights_may_be_in_memory(tmp_path: Path, external: Path) -> None:
    library = Path(shutil.copy(external, tmp_path))
    with external.with_suffix(".weights").open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    session = load(library, weights=mapped, check_integrity=True)
    with pytest.raises(BufferError):
        mapped.close()
    np.testing.assert_array_equal(session.run(None, {})[0], WEIGHTS)
    session.close()
    del session
    mapped.close()


def _aligned(content: bytes, shift: int = 0) -> np.ndarray:
    room = np.zeros(len(content) + 128, np.uint8)
    begin = -room.ctypes.data % 64 + shift
    room[begin : begin + len(content)] = np.frombuffer(content, np.uint8)
    return room[begin : begin + len(content)]


def test_memory_that_is_not_the_weights(external: Path, other: Path, embedded: Path) -> None:
    content = external.with_suffix(".weights").read_bytes()
    np.testing.assert_array_equal(_run(external, weights=_aligned(content)), WEIGHTS)
    foreign = other.with_suffix(".weights").read_bytes()
    for given, told in (
        (_aligned(content, 32), "must begin at a multiple of 64 bytes"),
        (_aligned(content[:-1]), "cut off: they must have 20043 bytes and have 20042"),
        (_aligned(b""), "memory that has its content: there are no bytes"),
        (_aligned(foreign), "do not belong to this model: their SHA-256 differs"),
        (_aligned(content)[::2], "path of a file or memory that has its content"),
        (5, "path of a file or memory that has its content"),
        (["a"], "path of a file or memory that has its content"),
    ):
        with pytest.raises(ModelError, match=told):
            load(external, weights=given)  # type: ignore[arg-type]
    changed = _aligned(content)
    changed[7] ^= 1
    load(external, weights=changed).close()
    with pytest.raises(ModelError, match="what weights holds has changed since"):
        load(external, weights=changed, check_integrity=True)
    with pytest.raises(ModelError, match="options name weights, but those of this model"):
        load(embedded, weights=_aligned(content))


# -- who shares it ------------------------------------------------------------------------------
def test_sessions_share_a_mapping_for_reading(tmp_path: Path, external: Path) -> None:
    library = Path(shutil.copy(external, tmp_path))
    file = Path(shutil.copy(external.with_suffix(".weights"), tmp_path))
    os.link(file, tmp_path / "hard.weights")
    first, second = load(library), load(library)
    third = load(library, weights=tmp_path / "hard.weights")
    (found,) = _maps(file)
    assert found[1] == "r--p"
    first.close()
    third.close()
    assert _maps(file) == [found]
    np.testing.assert_array_equal(second.run(None, {})[0], WEIGHTS)
    second.close()
    assert _maps(file) == []


def test_what_fails_to_open_leaves_no_mapping(tmp_path: Path) -> None:
    _build(tmp_path, WEIGHTS)
    _flipped(3)(tmp_path / "model.weights")
    printed = run_c(tmp_path, OPENINGS)
    assert "checked: the weights have changed" in printed
    assert "mapped" not in printed


def test_sessions_open_and_close_at_once(external: Path) -> None:
    results: list[bytes] = []

    def work() -> None:
        results.extend(_run(external).tobytes() for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [WEIGHTS.tobytes()] * 80
    assert _maps(external.with_suffix(".weights")) == []


def test_children_open_sessions_of_their_own(external: Path) -> None:
    with load(external, threads=1) as session:
        child = os.fork()
        if child == 0:
            same = _run(external).tobytes() == WEIGHTS.tobytes()
            same = same and session.run(None, {})[0].tobytes() == WEIGHTS.tobytes()
            os._exit(0 if same else 1)
        assert os.waitpid(child, 0)[1] == 0


def test_a_session_keeps_weights_that_are_replaced(
    tmp_path: Path, external: Path, other: Path
) -> None:
    """Who opens the old library anew is told; who loads the new one has the new weights."""
    shutil.copytree(external.parent, tmp_path, dirs_exist_ok=True)
    library = ctypes.CDLL(str(tmp_path / "model.so"))
    library.model_open.restype = ctypes.c_void_p
    library.model_last_error.restype = ctypes.c_char_p
    with load(tmp_path / "model.so") as session:
        for suffix in (".weights", ".so"):
            shutil.copy(other.with_suffix(suffix), tmp_path / "new")
            (tmp_path / "new").replace(tmp_path / f"model{suffix}")
        assert not library.model_open(None)
        assert b"its SHA-256 differs" in library.model_last_error(None)
        np.testing.assert_array_equal(session.run(None, {})[0], WEIGHTS)
        np.testing.assert_array_equal(_run(tmp_path / "model.so"), _bytes(len(WEIGHTS), 1))


def test_large_files_begin_at_a_huge_page_of_memory(tmp_path: Path) -> None:
    data = _bytes(2 * HUGE_PAGE_BYTES + 4099)
    with load(_build(tmp_path, data), threads=1) as session:
        begin, _ = min(_maps(tmp_path / "model.weights"))
        assert begin % HUGE_PAGE_BYTES == 0
        np.testing.assert_array_equal(session.run(None, {})[0], data)


# -- C programs ---------------------------------------------------------------------------------
OPENINGS = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "model.h"

static void try(const char *what, rutc_options options) {
  options.struct_size = sizeof options;
  rutc_session *session = model_open(&options);
  DLTensor y = {.data = NULL};
  DLTensor *outputs[] = {&y};
  printf("%s: ", what);
  if (session == NULL) {
    printf("%s\\n", model_last_error(NULL));
  } else if (model_run(session, NULL, 0, outputs, 1) != RUTC_OK) {
    printf("%s\\n", model_last_error(session));
  } else {
    long sum = 0;
    for (int64_t i = 0; i < y.shape[0]; i++) sum += ((const uint8_t *)y.data)[i];
    printf("%ld\\n", sum);
  }
  model_close(session);
}

int main(void) {
  static char memory[1 << 16];
  char *content = memory + (64 - (uintptr_t)memory % 64);
  size_t bytes = 0;
  FILE *file = fopen("model.weights", "rb");
  if (file != NULL) {
    bytes = fread(content, 1, 1 << 15, file);
    fclose(file);
  }
  try("beside", (rutc_options){.threads = 1});
  try("checked", (rutc_options){.threads = 1, .check_weights = 1});
  try("named", (rutc_options){.threads = 1, .weights_path = "./model.weights"});
  try("wrong", (rutc_options){.threads = 1, .weights_path = "model.h"});
  try("none", (rutc_options){.threads = 1, .weights_path = "none"});
  rutc_options held = {.threads = 1, .weights = content, .weights_bytes = (int64_t)bytes};
  try("held", held);
  held.check_weights = 1;
  try("held and checked", held);
  held.weights_path = "model.weights";
  try("both", held);
  held = (rutc_options){.threads = 1, .weights = content + 1, .weights_bytes = (int64_t)bytes};
  try("crooked", held);
  char line[4096];
  file = fopen("/proc/self/maps", "r");
  while (file != NULL && fgets(line, sizeof line, file) != NULL) {
    if (strstr(line, "model.weights") != NULL) printf("mapped\\n");
  }
  if (file != NULL) fclose(file);
  return 0;
}
"""


def _answers(printed: str) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in printed.splitlines())


def test_c_programs_say_where_the_weights_are(tmp_path: Path) -> None:
    _build(tmp_path, WEIGHTS)
    total = str(int(WEIGHTS.sum()))
    answers = _answers(run_c(tmp_path, OPENINGS))
    for what in ("beside", "checked", "named", "held", "held and checked"):
        assert answers[what] == total
    assert "model.h does not belong to this model" in answers["wrong"]
    assert answers["none"] == "cannot open the weights file none: No such file or directory"
    assert "give one of the two" in answers["both"]
    assert answers["crooked"] == "options.weights must begin at a multiple of 64 bytes"
    assert answers.keys() == _answers(run_c(tmp_path, OPENINGS)).keys()

    _flipped(11)(tmp_path / "model.weights")
    changed = _answers(run_c(tmp_path, OPENINGS))
    for what in ("beside", "named", "held"):
        assert changed[what] not in (total, "")
        assert changed[what].isdigit()
    for what in ("checked", "held and checked"):
        assert "the weights have changed since they were compiled" in changed[what]

    (tmp_path / "model.weights").unlink()
    missing = _answers(run_c(tmp_path, OPENINGS))
    assert re.search(
        r"cannot open the weights file .*/model\.weights: No such file or directory; a "
        r"library's weights lie beside it in a file of its name: rename and move both together, or "
        r"say where they are \(options\.weights_path, in Python weights=\)$",
        missing["beside"],
    )


def test_the_example_of_the_docs_opens_what_it_names(tmp_path: Path) -> None:
    _build(tmp_path, WEIGHTS)
    (tmp_path / "model.weights").rename(tmp_path / "elsewhere")
    docs = Path(__file__).resolve().parents[2] / "docs" / "c_api.md"
    (example,) = re.findall(
        r"```c\n(static rutc_session \*open_with.*?)```", docs.read_text(), re.S
    )
    main = """
int main(void) {
  rutc_session *session = open_with("elsewhere");
  printf("%d %d\\n", session != NULL, open_with("model.weights") != NULL);
  model_close(session);
  return 0;
}
"""
    assert run_c(tmp_path, f'#include <stdio.h>\n#include "model.h"\n{example}{main}') == "1 0\n"


def test_embedded_weights_are_checked_on_request(tmp_path: Path) -> None:
    """They, too, are no options; and a library that has changed runs unless it is checked."""
    build_library(_program(WEIGHTS), [], tmp_path / "model.so", {})
    total = str(int(WEIGHTS.sum()))
    answers = _answers(run_c(tmp_path, OPENINGS))
    assert answers["beside"] == answers["checked"] == total
    for what in ("named", "wrong", "held", "both"):
        assert answers[what].startswith("options name weights, but those of this model")
    data = bytearray((tmp_path / "model.so").read_bytes())
    data[data.index(WEIGHTS.tobytes()) + 5] ^= 1
    (tmp_path / "model.so").write_bytes(data)
    answers = _answers(run_c(tmp_path, OPENINGS))
    assert answers["beside"].isdigit()
    assert "the weights have changed since they were compiled" in answers["checked"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("portable", [False, True])
def test_the_digest_is_sha_256(tmp_path: Path, portable: bool) -> None:
    """By instructions for it, where the processor has them, and without."""
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-shared", "-fPIC", "-O1"]
    flags += ["-DRUTC_PORTABLE"] if portable else []
    source, made = HOST_SOURCES / "sha256.c", tmp_path / "s.so"
    subprocess.run(["cc", *flags, source, "-o", made], check=True)
    digest_of = ctypes.CDLL(str(tmp_path / "s.so")).rutc_sha256
    digest_of.argtypes = (ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p)
    digest_of.restype = None
    edges = chain.from_iterable((n - 9, n - 8, n - 1, n, n + 1) for n in (64, 128, 4096))
    for size in (0, 1, 2, 3, *edges, 100_003):
        data = _bytes(size).tobytes()
        found = ctypes.create_string_buffer(DIGEST_BYTES)
        digest_of(data, size, found)
        assert found.raw == hashlib.sha256(data).digest(), size
