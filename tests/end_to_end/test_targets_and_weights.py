"""Libraries for several targets whose weights are in one file: both features, in Python and C."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import rutc
from rutc.runtime import ModelError, load
from rutc.runtime.weights_file import DIGEST_BYTES
from tests.cli.conftest import invoke
from tests.end_to_end.test_several_targets import (
    BOTH,
    DEEP,
    NAMES,
    ROWS,
    TABLE,
    WIDE,
    dense,
    same_bytes,
    table,
)
from tests.machines import V3, V4, needs
from tests.runtime.conftest import run_c

pytestmark = [needs(V3), needs(V4)]

RUN = f"""
#include <stdio.h>
#include "model.h"
#include "tensors.h"

static void run(const char *target, int check, const char *path) {{
  rutc_options options = {{.struct_size = sizeof options, .threads = 1, .weights_path = path,
                          .check_weights = check}};
  rutc_session *session = model_open_target(&options, target);
  if (session == NULL) {{
    printf("%s\\n", model_last_error(NULL));
    return;
  }}
  static float x[{ROWS * DEEP}];
  for (int i = 0; i < {ROWS * DEEP}; i++) x[i] = (float)(i % 11 - 5) / 8;
  int64_t shape[] = {{{ROWS}, {DEEP}}};
  DLTensor in = floats(x, 2, shape);
  DLTensor out[3] = {{{{.data = NULL}}}};
  const DLTensor *inputs[] = {{&in}};
  DLTensor *outputs[] = {{&out[0], &out[1], &out[2]}};
  if (model_run(session, inputs, 1, outputs, 3) != RUTC_OK) {{
    printf("%s\\n", model_last_error(session));
  }} else {{
    printf("%s ", model_target(session));
    const unsigned char *y = out[0].data;
    for (int i = 0; i < {4 * ROWS * WIDE}; i++) printf("%02x", y[i]);
    printf("\\n");
  }}
  model_close(session);
}}

int main(void) {{
  run(NULL, 0, NULL);
  for (int check = 0; check < 2; check++) {{
    run("{NAMES[0]}", check, NULL);
    run("{NAMES[1]}", check, "./model.weights");
  }}
  return 0;
}}
"""


def placed(model: Path, target: str, weights: str) -> Path:
    """The library for a target, or several, with weights in it or beside it."""
    folder = model.parent / f"{target.replace(',', '-')}-{weights}"
    folder.mkdir()
    library = folder / "model.so"
    rutc.compile(model, library, target=target, weights=weights, verify=False, db="none")
    return library


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dense(tmp_path_factory.mktemp("dense") / "m.onnx")


@pytest.fixture(scope="module")
def external(model: Path) -> Path:
    return placed(model, BOTH, "external")


@pytest.fixture(scope="module")
def alone(model: Path) -> dict[str, Path]:
    return {target: placed(model, target, "embed") for target in NAMES}


@pytest.fixture
def copied(external: Path, tmp_path: Path) -> Path:
    """The library and its file in a folder where they may be changed."""
    for file in external.parent.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path / external.name


def test_the_file_is_the_image_of_all(model: Path, external: Path) -> None:
    assert sorted(os.listdir(external.parent)) == ["model.h", "model.so", "model.weights"]
    content = external.with_suffix(".weights").read_bytes()
    image, digest = content[:-DIGEST_BYTES], content[-DIGEST_BYTES:]
    assert hashlib.sha256(image).digest() == digest
    with load(placed(model, BOTH, "embed")) as inside:
        assert inside.manifest["weights_sha256"] == digest.hex()
    for target in NAMES:
        with load(external, target=target, check_integrity=True) as session:
            told = session.manifest
        assert told["weights_sha256"] == digest.hex()
        assert told["weights_file"] == {"name": "model.weights", "bytes": len(content)}
    header = external.with_suffix(".h").read_text()
    assert "Its weights are in model.weights" in header
    assert "model_open_target" in header


@pytest.mark.parametrize("target", NAMES)
def test_each_part_is_what_it_would_be_alone(
    external: Path, alone: dict[str, Path], target: str
) -> None:
    x = np.random.default_rng(1).standard_normal((ROWS, DEEP)).astype(np.float32)
    same_bytes(external, alone[target], target, {"x": x})
    x[1, 3], x[2, 5], x[3] = np.nan, np.inf, -np.inf
    same_bytes(external, alone[target], target, {"x": x})


def test_c_programs_run_each_target(copied: Path, alone: dict[str, Path]) -> None:
    x = ((np.arange(ROWS * DEEP) % 11 - 5) / 8).astype(np.float32).reshape(ROWS, DEEP)
    wanted = {}
    for target, library in alone.items():
        with load(library, threads=1) as session:
            wanted[target] = f"{target} {session.run(None, {'x': x})[0].tobytes().hex()}"
    best, least = (wanted[target] for target in NAMES)
    assert run_c(copied.parent, RUN).splitlines() == [best, best, least, best, least]

    file = copied.with_suffix(".weights")
    content = bytearray(file.read_bytes())
    content[5] ^= 1
    file.write_bytes(content)
    changed = run_c(copied.parent, RUN).splitlines()
    assert all("the weights have changed since they were compiled" in x for x in changed[3:])
    file.unlink()
    missing = run_c(copied.parent, RUN).splitlines()
    assert len(missing) == 5
    assert all("cannot open the weights file" in x for x in missing)


@pytest.mark.parametrize("target", [None, *NAMES])
def test_every_target_needs_the_file(copied: Path, target: str | None) -> None:
    file = copied.with_suffix(".weights")
    other = file.rename(copied.with_name("other"))
    load(copied, target=target, weights=other, check_integrity=True).close()
    with pytest.raises(ModelError, match=r"cannot open the weights file .*model\.weights"):
        load(copied, target=target)
    content = bytearray(other.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(ModelError, match="does not belong to this model"):
        load(copied, target=target)


def test_what_both_lay_out_alike_is_in_the_file_once(tmp_path: Path) -> None:
    model = table(tmp_path / "m.onnx")
    file = placed(model, BOTH, "external").with_suffix(".weights")
    single = [placed(model, name, "external").with_suffix(".weights") for name in NAMES]
    both, *each = (path.stat().st_size for path in (file, *single))
    assert TABLE.nbytes < both < sum(each) - TABLE.nbytes // 2
    feed = {"i": np.array([0, 1008, 500, 3, 3, 7, -1])}
    for name, path in zip(NAMES, single, strict=True):
        same_bytes(file.with_suffix(".so"), path.with_suffix(".so"), name, feed)


def test_commands_know_both(model: Path, tmp_path: Path) -> None:
    library = tmp_path / "net.so"
    command = ("compile", model, "-o", library, "--target", BOTH, "--weights", "external")
    made = invoke(*command, "--json")
    assert made.status == 0, made.stderr
    assert made.json["weights"] == str(tmp_path / "net.weights")
    again = rutc.compile(model, library, target=BOTH, weights="external")
    assert (again.report.targets, again.weights) == (NAMES, tmp_path / "net.weights")
    assert set(again.report.seconds) == {"cache"}
    for target in NAMES:
        told = invoke("inspect", library, "--target", target, "--integrity", "--json").json
        assert told["target"] == target
        assert told["weights"]["file"] == str(tmp_path / "net.weights")
        ran = invoke("inspect", library, "--target", target, "--profile")
        assert ran.status == 0, ran.stderr
    assert invoke("verify", model, library).status == 0


def test_a_bundle_has_the_file(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "served"
    rutc.compile(model, bundle=folder, target=BOTH, weights="external", verify=False, db="none")
    assert sorted(os.listdir(folder)) == ["m.h", "m.so", "m.weights", "rutc_runtime.py"]
    script = (
        "import rutc_runtime\n"
        f"for name in {NAMES}:\n"
        "    with rutc_runtime.load('m.so', target=name, check_integrity=True) as session:\n"
        "        print(session.target)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == list(NAMES)
