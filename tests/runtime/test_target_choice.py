"""Libraries of several targets: which of the programs a session runs, and what they share."""

import json
import platform
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from rutc.emit.host_program.host_steps import Call, Copy
from rutc.emit.host_program.kernel_call import Ref
from rutc.emit.host_program.ports import Port
from rutc.emit.host_program.program import Program
from rutc.emit.linking.elf import seal
from rutc.emit.linking.host_runtime import TARGETS, runtime_units, suffixes
from rutc.emit.linking.library import TargetFacts, build_library
from rutc.emit.linking.manifest import manifest_json
from rutc.emit.linking.toolchain import find_toolchain
from rutc.emit.linking.weight_image import PAGE_BYTES, weight_image
from rutc.errors import InternalError
from rutc.runtime import ModelError, load
from rutc.runtime.artifact import programs_of
from rutc.tensor_ir.indices.affine import Index
from tests.masked.__main__ import HERE, mask
from tests.runtime.conftest import Compile, elementwise, run_c, simple, unary

HAS = {"x86_64": "sse3", "aarch64": "neon"}[platform.machine()]
"""A feature of every processor that rutc compiles for."""
LACKS = "no-such-feature"
X = np.arange(8, dtype=np.float32)


def built(
    folder: Path,
    compile_c: Compile,
    targets: Sequence[tuple[str, Sequence[str], int]],
    name: str = "model",
) -> Path:
    """A library whose code for each target, of a name and features, multiplies by a number."""
    objects = [compile_c(unary(f"by{n}", "float32", f"{n} * x")) for _, _, n in targets]
    first, *others = (
        simple(name, **elementwise(f"by{n}"), features=tuple(features))
        for _, features, n in targets
    )
    facts = [TargetFacts(target, {"target": target, "flops": n}) for target, _, n in targets]
    library = folder / "model.so"
    build_library(first, objects, library, {"a": 1}, fallbacks=others, targets=facts)
    return library


@pytest.fixture(scope="module")
def both(compile_c: Compile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The code for `best` doubles, that for `plain` triples; all processors have what they need."""
    folder = tmp_path_factory.mktemp("both")
    return built(folder, compile_c, [("best", (HAS,), 2), ("plain", (), 3)])


def factor(library: Path, **how: Any) -> float:
    """What a session of the library multiplies by."""
    with load(library, threads=1, **how) as session:
        (y,) = session.run(None, {"x": X})
    np.testing.assert_array_equal(y, X * y[1])
    return float(y[1])


def test_the_best_target_runs_unless_one_is_named(both: Path) -> None:
    assert factor(both) == 2
    assert factor(both, target="best") == 2
    assert factor(both, target="plain") == 3


def test_a_session_tells_of_the_target_that_it_runs(both: Path) -> None:
    for target, features, flops in (("best", [HAS], 2), ("plain", [], 3)):
        with load(both, target=target) as session:
            assert session.target == target
            told = session.manifest
        assert (told["target"], told["features"], told["flops"]) == (target, features, flops)
        assert (told["a"], told["fallbacks"]) == (1, [])


def test_the_environment_names_a_target(both: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUTC_TARGET", "plain")
    assert factor(both) == 3
    assert factor(both, target="best") == 2
    monkeypatch.setenv("RUTC_TARGET", "")
    assert factor(both) == 2
    monkeypatch.setenv("RUTC_TARGET", "other")
    with pytest.raises(
        ModelError,
        match=r'no target "other", which RUTC_TARGET asks for: it has best, plain$',
    ):
        load(both)


def test_targets_that_are_not_there(both: Path, doubling: Path) -> None:
    for name in ("other", "", "bes", "best "):
        with pytest.raises(ModelError, match=f'no target "{name}": it has best, plain$'):
            load(both, target=name)
    with pytest.raises(ModelError, match="has no target 'best': it has"):
        load(doubling, target="best")


def test_what_the_cpu_lacks_is_passed_over(tmp_path: Path, compile_c: Compile) -> None:
    listed = [("first", (LACKS,), 2), ("second", (HAS,), 3), ("third", (), 5)]
    library = built(tmp_path, compile_c, listed)
    assert factor(library) == 3
    assert factor(library, target="third") == 5
    with pytest.raises(ModelError, match=f"needs the CPU feature {LACKS}"):
        load(library, target="first")
    assert factor(library) == 3


def test_none_fits(tmp_path: Path, compile_c: Compile) -> None:
    library = built(tmp_path, compile_c, [("first", (LACKS,), 2), ("second", (LACKS,), 3)])
    message = (
        r"this CPU fits none of the library's targets first, second; for the last of them: the "
        f"model needs the CPU feature {LACKS}"
    )
    with pytest.raises(ModelError, match=message):
        load(library)


def test_other_errors_stay_what_they_are(both: Path) -> None:
    printed = run_c(both.parent, OPEN_WRONGLY)
    assert printed == "options.threads must lie in [0, 4096], not -1\n" * 2


OPEN_WRONGLY = """
#include <stdio.h>
#include "model.h"
int main(void) {
  rutc_options options = {.struct_size = sizeof options, .threads = -1};
  if (model_open(&options) == NULL) puts(model_last_error(NULL));
  if (model_open_target(&options, "plain") == NULL) puts(model_last_error(NULL));
  return 0;
}
"""

CHOOSING = """
#include <stdio.h>
#include <stdlib.h>
#include "model.h"
#include "tensors.h"

static void run(rutc_session *session) {
  float data[8] = {0, 1, 2, 3, 4, 5, 6, 7};
  int64_t shape[1] = {8};
  DLTensor x = floats(data, 1, shape), y = {0};
  const DLTensor *inputs[] = {&x};
  DLTensor *outputs[] = {&y};
  if (session == NULL) {
    printf("%s\\n", model_last_error(NULL));
    return;
  }
  int status = model_run(session, inputs, model_INPUTS, outputs, model_OUTPUTS);
  if (status != RUTC_OK) printf("%s\\n", model_last_error(session));
  printf("%s %g\\n", model_target(session), ((float *)y.data)[1]);
  model_close(session);
}

int main(void) {
  run(model_open(NULL));
  run(model_open_target(NULL, NULL));
  run(model_open_target(NULL, "plain"));
  run(model_open_target(NULL, "none"));
  setenv("RUTC_TARGET", "plain", 1);
  run(model_open(NULL));
  run(model_open_target(NULL, "best"));
  printf("%s\\n", model_target(NULL) == NULL ? "no session" : "");
  return 0;
}
"""


def test_a_c_program_chooses(both: Path) -> None:
    program = f"#define _POSIX_C_SOURCE 200112L\n{CHOOSING}"
    assert run_c(both.parent, program).splitlines() == [
        "best 2",
        "best 2",
        "plain 3",
        'the library has no target "none": it has best, plain',
        "plain 3",
        "best 2",
        "no session",
    ]


def test_the_usual_header_has_none_of_it(both: Path, doubling: Path) -> None:
    assert "open_target" in both.with_suffix(".h").read_text()
    assert "open_target" not in doubling.with_suffix(".h").read_text()
    exported = {path: _exported(path) for path in (both, doubling)}
    added = {"model_open_target", "model_target"}
    assert exported[both] == added | {n.replace("doubling", "model") for n in exported[doubling]}


def _exported(library: Path) -> set[str]:
    listing = ["nm", "-D", "--defined-only", library]
    done = subprocess.run(listing, capture_output=True, text=True, check=True)
    return {line.split()[-1] for line in done.stdout.splitlines()}


def test_the_code_that_chooses_is_only_where_it_is_needed() -> None:
    usual, several = runtime_units(), runtime_units(targets=True)
    names = [{s.name for unit in units for s in unit.sources} for units in (usual, several)]
    assert names[1] - names[0] == TARGETS
    assert [unit.name for unit in several if "RUTC_TARGETS" in unit.text] == ["targets"]
    assert all(not unit.defined for unit in usual)


def test_sessions_of_all_targets_run_beside_each_other(both: Path) -> None:
    wanted = {"best": 2 * X, "plain": 3 * X}
    wrong: list[str] = []

    def work(target: str, threads: int) -> None:
        for _ in range(20):
            with load(both, target=target, threads=threads) as session:
                found = [session.run(None, {"x": X})[0] for _ in range(5)]
            wrong.extend(target for y in found if not np.array_equal(y, wanted[target]))

    workers = [
        threading.Thread(target=work, args=(target, threads))
        for target in wanted
        for threads in (1, 2, 3)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []


def test_a_session_belongs_to_its_own_library(
    both: Path, tmp_path: Path, compile_c: Compile
) -> None:
    """Also one whose target was named: what it was opened with is a part of the model."""
    other = built(tmp_path, compile_c, [("plain", (), 5), ("least", (), 7)], "other")
    with load(both, target="plain") as session, load(other, target="least") as foreign:
        assert session._library.entries.run(foreign._handle, None, 0, None, 0) != 0
        told = session._library.entries.last_error(None).decode()
        assert told == "the session is one of another model"
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], 3 * X)


def test_an_arena_of_known_size_has_no_largest_one() -> None:
    """Where that of the first program is a formula."""
    x = Port("x", "float32", (Index.of("n"),))
    how = {"steps": (), "symbols": (("n", (1, 9)),)}
    programs = [
        Program("m", (x,), (), arena_bytes=size, **how) for size in (64 * Index.of("n"), 128)
    ]
    told = manifest_json(programs, weight_image(programs), None, {})
    first, second = programs_of(json.loads(told))
    assert (first["arena_bytes_most"], first["arena_bytes"]) == (576, "64*n")
    assert (second["arena_bytes_most"], second["arena_bytes"]) == (None, 128)


def _copies(weights: Sequence[tuple[int, np.ndarray]], *sources: int) -> Program:
    """A program whose outputs are weights, 8 numbers at each of some offsets."""
    ports = tuple(Port(f"y{n}", "float32", (8,)) for n in range(len(sources)))
    steps = tuple(Copy(Ref("output", n), Ref("weights", 0, at), 32) for n, at in enumerate(sources))
    end = max(offset + data.nbytes for offset, data in weights)
    return Program("model", (), ports, 0, steps, tuple(weights), -(-end // 64) * 64)


NUMBERS = [np.arange(8, dtype=np.float32) + 10 * n for n in range(4)]


def test_equal_weights_are_stored_once() -> None:
    a, b, c, _ = NUMBERS
    empty = np.zeros(0, np.float32)
    first = _copies([(64, b), (0, a), (128, np.zeros(17, np.int8))], 0, 64)
    second = _copies([(0, c), (64, b), (128, empty), (192, a)], 0, 64)
    image = weight_image((first, second, first))
    own = first.weight_bytes + -first.weight_bytes % PAGE_BYTES
    assert [image.placed[1].place(at) for at in (0, 64, 192)] == [own, 64, 0]
    assert image.placed[1].place(80) == 64 + 16
    assert [image.placed[n].place(at) for n in (0, 2) for at in (0, 64)] == [0, 64, 0, 64]
    content = b"".join(image.parts())
    assert len(content) == image.byte_count == own + 128
    for number, place in ((a, 0), (b, 64), (c, own)):
        assert content[place : place + 32] == number.tobytes()
    assert weight_image((first, first)).byte_count == first.weight_bytes


def test_what_is_no_place_of_weights_is_noticed() -> None:
    first, second = _copies([(0, NUMBERS[0])], 0), _copies([(64, NUMBERS[1])], 64)
    image = weight_image((first, second))
    with pytest.raises(InternalError, match="weights at 0 are shared, and none begin there"):
        image.placed[1].place(0)


@pytest.mark.parametrize("placement", ["embed", "external"])
def test_each_target_reads_its_own_weights(
    tmp_path: Path, placement: Literal["embed", "external"]
) -> None:
    a, b, c, d = NUMBERS
    first = _copies([(0, a), (64, b), (128, c)], 0, 64)
    second = _copies([(0, d), (64, c), (128, b)], 64, 0)
    library = tmp_path / "m.so"
    facts = [TargetFacts(name, {"target": name}) for name in ("one", "two")]
    made = build_library(
        first, [], library, {}, weights=placement, fallbacks=[second], targets=facts
    )
    assert made.weight_bytes == PAGE_BYTES + 64
    for target, wanted in (("one", [a, b]), ("two", [c, d])):
        with load(library, target=target, check_integrity=True) as session:
            np.testing.assert_array_equal(session.run(None, {}), wanted)
            assert session.manifest["weight_bytes"] == 192


def test_programs_need_a_target_each(tmp_path: Path) -> None:
    program = _copies([(0, NUMBERS[0])], 0)
    with pytest.raises(InternalError, match="2 programs for 1 targets"):
        build_library(
            program, [], tmp_path / "m.so", {}, fallbacks=[program], targets=[TargetFacts("a", {})]
        )


def test_routines_are_compiled_for_each_target(tmp_path: Path) -> None:
    """Each program calls those for its own features; equal ones are there once."""
    assert suffixes([("avx2", LACKS), ("avx2",), (), (HAS,)]) == ("", "", "_2", "_2")
    call, copy = Call("settle", (), (), depth=1), Copy(Ref("output"), Ref("weights"), 32)
    port = (Port("y", "float32", (8,)),)
    programs = [
        Program("m", (), port, 0, (call, copy), ((0, NUMBERS[n]),), 64, features=features)
        for n, features in enumerate([("avx2", LACKS), ("avx2", LACKS), ()])
    ]
    library = tmp_path / "m.so"
    facts = [TargetFacts(f"t{n}", {"target": f"t{n}"}) for n in range(3)]
    build_library(programs[0], [], library, {}, fallbacks=programs[1:], targets=facts)
    names = subprocess.run(["nm", library], capture_output=True, text=True, check=True).stdout
    assert sorted(re.findall(r"rutc_routine_\w+", names)) == [
        "rutc_routine_settle",
        "rutc_routine_settle_2",
    ]
    with load(library) as session:
        assert session.target == "t2"
        np.testing.assert_array_equal(session.run(None, {})[0], NUMBERS[2])


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the processor has no CPUID")
@pytest.mark.skipif(shutil.which("objdump") is None, reason="binutils are not installed")
def test_a_cpu_without_avx512_takes_the_target_without(tmp_path: Path, compile_c: Compile) -> None:
    """On processors that have it, too: the library is told of none."""
    library = built(tmp_path, compile_c, [("wide", ("avx512f",), 2), ("narrow", (), 3)])
    handler = (f"-I{HERE / 'include'}", str(HERE / "masked.c"))
    find_toolchain().run(("-shared", "-fPIC", *handler, "-o", "masked.so"), tmp_path)
    mask(library)
    seal(library)
    script = (
        "import ctypes, rutc.runtime, sys\n"
        "ctypes.CDLL('./masked.so')\n"
        "with rutc.runtime.load('model.so') as session: print(session.target)\n"
        "try: rutc.runtime.load('model.so', target='wide')\n"
        "except rutc.runtime.ModelError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    first, second = done.stdout.splitlines()
    assert first == "narrow"
    assert "the model was compiled for CPUs with avx512f, which this CPU lacks" in second
