"""Models compiled for several targets: each part is what it would be alone, and all are checked."""

from __future__ import annotations

import html
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import rutc
from rutc.driver.parts.build import Builder
from rutc.emit.linking.library import TargetFacts, build_library
from rutc.emit.targets import target_named, targets_named
from rutc.emit.targets.select import save_native
from rutc.errors import UserError
from rutc.graph_opt import optimize
from rutc.graph_opt.decide import decide
from rutc.importer import import_model
from rutc.runtime import load
from rutc.runtime.artifact import open_artifact, programs_of
from rutc.verify import Verification, targets_in, verify_model, verify_targets
from rutc.verify.each_target import Targets
from tests.cli.conftest import invoke
from tests.machines import V3, V4, needs

BOTH = "x86-64-v3,x86-64-v4"
NAMES = ("x86-64-v4", "x86-64-v3")
"""As the library has them."""
pytestmark = [needs(V3), needs(V4)]
ROWS, DEEP, WIDE = 5, 37, 19
TABLE = np.random.default_rng(7).standard_normal((1009, 23)).astype(np.float32)


def info(name: str, *shape: int | str, dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def save(
    path: Path,
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    weights: Mapping[str, np.ndarray],
) -> Path:
    constants = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    opsets = [helper.make_opsetid("", 21)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


def dense(path: Path, rows: int | str = ROWS) -> Path:
    """y = softmax(relu(x @ w) @ v), and the largest three of each row."""
    rng = np.random.default_rng(3)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "v"], ["s"]),
        helper.make_node("Softmax", ["s"], ["y"], axis=-1),
        helper.make_node("TopK", ["s", "k"], ["most", "where"]),
    ]
    weights = {
        "w": rng.standard_normal((DEEP, 64)).astype(np.float32),
        "v": rng.standard_normal((64, WIDE)).astype(np.float32),
        "k": np.array([3]),
    }
    outputs = [info("y", rows, WIDE), info("most", rows, 3)]
    outputs.append(info("where", rows, 3, dtype=TensorProto.INT64))
    return save(path, nodes, [info("x", rows, DEEP)], outputs, weights)


def table(path: Path) -> Path:
    """Rows of a table that is large, times weights that are small."""
    nodes = [
        helper.make_node("Gather", ["t", "i"], ["g"]),
        helper.make_node("MatMul", ["g", "w"], ["y"]),
    ]
    weights = {"t": TABLE, "w": np.eye(23, 11, dtype=np.float32)}
    inputs = [info("i", 7, dtype=TensorProto.INT64)]
    return save(path, nodes, inputs, [info("y", 7, 11)], weights)


def compiled(model: Path, target: str, **how: object) -> Path:
    """The library for a target, or several, in a folder of its own."""
    folder = model.parent / target.replace(",", "-")
    folder.mkdir(exist_ok=True)
    library = folder / "m.so"
    rutc.compile(model, library, target=target, verify=False, db="none", **how)  # type: ignore[arg-type]
    return library


def same_bytes(library: Path, alone: Path, target: str, feed: Mapping[str, np.ndarray]) -> None:
    """Checks that the code for a target gives what a library for it alone does."""
    for threads in (1, 2):
        with (
            load(library, threads=threads, target=target) as one,
            load(alone, threads=threads) as other,
        ):
            found, wanted = one.run(None, feed), other.run(None, feed)
        assert [y.tobytes() for y in found] == [y.tobytes() for y in wanted]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dense(tmp_path_factory.mktemp("dense") / "m.onnx")


@pytest.fixture(scope="module")
def library(model: Path) -> Path:
    return compiled(model, BOTH)


@pytest.mark.parametrize("target", NAMES)
def test_each_part_is_what_it_would_be_alone(model: Path, library: Path, target: str) -> None:
    alone = compiled(model, target)
    x = np.random.default_rng(1).standard_normal((ROWS, DEEP)).astype(np.float32)
    same_bytes(library, alone, target, {"x": x})
    x[1, 3], x[2, 5], x[3] = np.nan, np.inf, -np.inf
    same_bytes(library, alone, target, {"x": x})
    with load(library, target=target) as one, load(alone) as other:
        told, wanted = one.manifest, other.manifest
    different = {key for key in wanted if told[key] != wanted[key]}
    assert different == {"weights_sha256"}


def test_symbolic_sizes_and_states(tmp_path: Path) -> None:
    model = dense(tmp_path / "m.onnx", "n")
    library = compiled(model, BOTH, dims={"n": (0, 64)})
    for target in NAMES:
        alone = compiled(model, target, dims={"n": (0, 64)})
        for rows in (0, 1, 13, 64):
            x = np.random.default_rng(rows).standard_normal((rows, DEEP)).astype(np.float32)
            same_bytes(library, alone, target, {"x": x})
    nodes = [helper.make_node("Add", ["x", "past"], ["present"])]
    ports = [info("x", 17), info("past", 17)]
    adding = save(tmp_path / "adding.onnx", nodes, ports, [info("present", 17)], {})
    library = compiled(adding, BOTH, states={"past": "present"})
    for target in NAMES:
        with load(library, target=target) as session:
            for _ in range(3):
                session.run(None, {"x": np.ones(17, np.float32)})
            np.testing.assert_array_equal(session.get_state("past"), np.full(17, 3, np.float32))
            session.reset()
            np.testing.assert_array_equal(session.get_state("past"), np.zeros(17, np.float32))


def test_sizes_that_the_program_computes(tmp_path: Path) -> None:
    """Each target has blocks of its own for values of such sizes."""
    nodes = [
        helper.make_node("NonZero", ["x"], ["places"]),
        helper.make_node("Transpose", ["places"], ["t"], perm=[1, 0]),
        helper.make_node("GatherND", ["x", "t"], ["g"]),
        helper.make_node("Exp", ["g"], ["y"]),
    ]
    outputs = [info("places", 2, "n", dtype=TensorProto.INT64), info("y", "n")]
    model = save(tmp_path / "m.onnx", nodes, [info("x", "a", "b")], outputs, {})
    library = compiled(model, BOTH)
    x = np.random.default_rng(2).integers(-1, 2, (11, 7)).astype(np.float32)
    for target in NAMES:
        alone = compiled(model, target)
        for feed in (x, np.zeros((3, 1), np.float32), np.zeros((0, 5), np.float32)):
            same_bytes(library, alone, target, {"x": feed})


def test_each_target_has_its_own_sums_in_8_bits(tmp_path: Path) -> None:
    model = dense(tmp_path / "m.onnx")
    library = compiled(model, BOTH, precision="int8")
    x = np.random.default_rng(4).standard_normal((ROWS, DEEP)).astype(np.float32)
    for target in NAMES:
        alone = compiled(model, target, precision="int8")
        same_bytes(library, alone, target, {"x": x})
        with load(library, target=target) as one, load(alone) as other:
            assert one.manifest["eight_bits"] == other.manifest["eight_bits"]
            assert one.manifest["tolerance"] == other.manifest["tolerance"]


def test_the_order_of_the_list_makes_no_difference(model: Path, library: Path) -> None:
    other = compiled(model, "x86-64-v4,x86-64-v3")
    assert other.read_bytes() == library.read_bytes()


def test_the_manifest_lists_all_targets(library: Path) -> None:
    found = invoke("inspect", library, "--json")
    assert found.status == 0, found.stderr
    told = found.json
    manifest = told["manifest"]
    assert isinstance(manifest, dict)
    (other,) = manifest["fallbacks"]
    assert (manifest["target"], other["target"], told["target"]) == (*NAMES, NAMES[0])
    assert told["lacking"] == {name: [] for name in NAMES}
    assert set(other["features"]) == V3.features
    assert set(manifest["features"]) == V4.features
    for own in (manifest, other):
        assert own["kernels"]
        assert own["arena_bytes"] >= 0
    assert manifest["kernels"] != other["kernels"]


def test_inspect_tells_of_one_and_lists_the_others(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def first_line(*more: str) -> str:
        found = invoke("inspect", library, *more)
        assert found.status == 0, found.stderr
        assert all(name in found.stdout for name in NAMES)
        return found.stdout.splitlines()[0]

    assert "target x86-64-v4," in first_line()
    assert "target x86-64-v3," in first_line("--target", "x86-64-v3")
    assert "target x86-64-v3," in first_line("--profile", "--target", "x86-64-v3")
    monkeypatch.setenv("RUTC_TARGET", "x86-64-v3")
    assert "target x86-64-v3," in first_line()
    found = invoke("inspect", library, "--target", "aarch64")
    assert (found.status, "has no target 'aarch64': it has" in found.stderr) == (2, True)


@pytest.mark.parametrize("number", [0, 1])
def test_the_page_draws_the_target_that_is_asked_for(
    model: Path, library: Path, tmp_path: Path, number: int
) -> None:
    outlines = []
    for path in (library, compiled(model, NAMES[number])):
        artifact = open_artifact(path)
        with artifact.file:
            outline = artifact.outline()
        assert outline is not None
        found = programs_of(outline)
        outlines.append(found[number if path is library else 0]["plans"])
    assert outlines[0] == outlines[1]
    page = tmp_path / "page.html"
    done = invoke("inspect", library, "--html", page, "--target", NAMES[number])
    assert done.status == 0
    kernels = json.loads(invoke("inspect", library, "--json").stdout)["manifest"]["kernels"]
    steps = {step for k in kernels for step in k["schedule"].split("; ")}
    text = html.unescape(page.read_text(encoding="utf-8"))
    assert NAMES[number] in text
    assert all(json.dumps(step) in text for step in steps) == (number == 0)


def test_what_both_lay_out_alike_is_stored_once(tmp_path: Path) -> None:
    model = table(tmp_path / "m.onnx")
    libraries = {target: compiled(model, target) for target in (BOTH, *NAMES)}
    size = {target: path.stat().st_size for target, path in libraries.items()}
    assert min(size.values()) > TABLE.nbytes
    assert size[BOTH] < sum(size[name] for name in NAMES) - TABLE.nbytes // 2
    feed = {"i": np.array([0, 1008, 500, 3, 3, 7, -1])}
    for name in NAMES:
        same_bytes(libraries[BOTH], libraries[name], name, feed)


def test_every_target_is_compared_before_a_library_is_written(tmp_path: Path) -> None:
    model = dense(tmp_path / "m.onnx")
    made = rutc.compile(model, tmp_path / "m.so", target=BOTH, db="none")
    assert made.verification is not None
    assert made.verification.targets == NAMES
    assert "with the code for x86-64-v4, x86-64-v3\n" in made.verification.summary()
    assert made.report.targets == NAMES
    again = rutc.compile(model, tmp_path / "m.so", target=BOTH, db="none")
    assert set(again.report.seconds) == {"cache"}
    assert again.report.targets == NAMES
    assert again.report.weight_bytes == made.report.weight_bytes


def mixed(model: Path, other: Path, library: Path) -> Path:
    """A library with code of a model, and code for AVX2 of another one in its place."""
    programs, objects = [], []
    for path, machine in ((model, V4), (other, V3)):
        graph = optimize(import_model(path))
        built = Builder(decide(graph, machine), machine, "m", 1).build()
        programs.append(built.program)
        objects += built.objects
    facts = [TargetFacts(name, {"target": name, "kernels": []}) for name in NAMES]
    more = {"model": model.name, "precision": "fp32"}
    build_library(programs[0], objects, library, more, fallbacks=programs[1:], targets=facts)
    return library


def scaled(path: Path, factor: float) -> Path:
    nodes = [helper.make_node("Mul", ["x", "f"], ["y"])]
    weights = {"f": np.array([factor], np.float32)}
    return save(path, nodes, [info("x", 13)], [info("y", 13)], weights)


def _verified(model: Path, library: Path, targets: Targets) -> Verification:
    return verify_targets(targets, lambda target: verify_model(model, library, target=target))


def test_a_target_whose_code_is_wrong_is_found(tmp_path: Path) -> None:
    model = scaled(tmp_path / "m.onnx", 2.0)
    library = mixed(model, scaled(tmp_path / "other.onnx", 3.0), tmp_path / "m.so")
    assert targets_in(library) == Targets(NAMES)
    found = _verified(model, library, Targets(NAMES))
    assert not found.passed
    assert found.outputs[0].reason.startswith("code for x86-64-v3: ")
    assert _verified(model, library, Targets(NAMES[:1])).passed
    result = invoke("verify", model, library)
    assert (result.status, "code for x86-64-v3: " in result.stdout) == (1, True)
    assert invoke("verify", model, library, "--target", "x86-64-v4").status == 0
    assert invoke("verify", model, library, "--target", "x86-64-v3").status == 1


def test_code_that_cannot_run_here_is_told(tmp_path: Path) -> None:
    model = scaled(tmp_path / "m.onnx", 2.0)
    graph = optimize(import_model(model))
    built = Builder(decide(graph, V3), V3, "m", 1).build()
    beyond = replace(built.program, features=(*built.program.features, "amx-complex", "avx10"))
    facts = [TargetFacts(name, {"target": name, "kernels": []}) for name in ("beyond", "here")]
    more = {"model": model.name, "precision": "fp32"}
    library = tmp_path / "m.so"
    build_library(beyond, built.objects, library, more, fallbacks=[built.program], targets=facts)
    assert targets_in(library) == Targets(("here",), ("beyond",))
    result = invoke("verify", model, library)
    assert result.status == 0, result.stderr
    assert "unverified: the code for beyond: this CPU cannot run it" in result.stdout
    assert "lacks" in invoke("inspect", library).stdout


def test_commands_take_one_target_of_a_library(model: Path, library: Path, tmp_path: Path) -> None:
    for target in NAMES:
        output = tmp_path / f"{target}.npz"
        found = invoke("run", library, "--target", target, "-o", output)
        assert found.status == 0, found.stderr
        assert output.exists()
    found = invoke("bench", library, "--target", "x86-64-v3", "--seconds", 0.1, "-q", "--json")
    assert found.status == 0, found.stderr
    for command in ("run", "bench"):
        found = invoke(command, library, "--target", "none")
        assert (found.status, 'no target "none"' in found.stderr) == (2, True)
    found = invoke("inspect", model, "--target", "x86-64-v3")
    told = f"--target: {model} is a model: compile it, then look at the artifact"
    assert (found.status, told in " ".join(found.stderr.split())) == (2, True), found.stderr


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ("x86-64-v3,x86-64-v3", "x86-64-v3 is named twice"),
        ("x86-64-v3,aarch64", "processors of one family"),
        ("x86-64-v3,", "unknown target ''"),
        ("x86-64-v3,x86-64-v9", "unknown target 'x86-64-v9'"),
        ("x86-64-v3,same.json", "x86-64-v3 and same need the same CPU features"),
    ],
)
def test_lists_that_mean_nothing(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, targets: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "same.json").write_text(json.dumps({"target": "x86-64-v3", "l2": 2 << 20}))
    found = invoke("compile", model, "-o", tmp_path / "m.so", "--target", targets)
    assert (found.status, message in found.stderr) == (2, True), found.stderr
    assert not (tmp_path / "m.so").exists()


@pytest.mark.parametrize(
    "command", [("explain",), ("tune", "--trials", 1), ("compile", "--tune", 1)]
)
def test_what_is_for_one_target_says_so(
    model: Path, tmp_path: Path, command: tuple[object, ...]
) -> None:
    name, *options = command
    db = () if name == "explain" else ("--db", tmp_path / "db.sqlite")
    found = invoke(name, model, *options, "--target", BOTH, *db)
    assert found.status == 2
    assert "target" in found.stderr
    assert "x86-64-v3" in found.stderr


def test_features_decide_the_order(tmp_path: Path) -> None:
    server = tmp_path / "server.json"
    server.write_text(json.dumps({"target": "x86-64-v4", "features": ["avx512vnni"]}))
    laptop = tmp_path / "laptop.json"
    laptop.write_text(json.dumps({"target": "x86-64-v3", "features": ["avxvnni"]}))
    listed = f"x86-64-v3,{laptop},x86-64-v4,{server}"
    found = targets_named(listed)
    assert [t.name for t in found] == ["server", "x86-64-v4", "laptop", "x86-64-v3"]
    assert [t.asked for t in found] == [str(server), "x86-64-v4", str(laptop), "x86-64-v3"]
    for number, target in enumerate(found):
        for later in found[number:]:
            assert not target.machine.features < later.machine.features
    with pytest.raises(UserError, match="several targets, and here one is needed"):
        target_named(listed)
    assert targets_named("x86-64-v3") == (target_named("x86-64-v3"),)


def test_saved_descriptions_and_the_native_target(tmp_path: Path) -> None:
    save_native(tmp_path / "here.json")
    with pytest.raises(UserError, match="native and here need the same CPU features"):
        targets_named(f"native,{tmp_path / 'here.json'}")
    model = scaled(tmp_path / "m.onnx", 2.0)
    rutc.compile(model, tmp_path / "m.so", target=f"x86-64-v3,{tmp_path / 'here.json'}", db="none")
    x = np.arange(13, dtype=np.float32)
    for target in ("here", "x86-64-v3"):
        with load(tmp_path / "m.so", target=target) as session:
            assert session.target == target
            np.testing.assert_array_equal(session.run(None, {"x": x})[0], 2 * x)


def test_forms_are_written_for_each_target(tmp_path: Path) -> None:
    model = scaled(tmp_path / "m.onnx", 2.0)
    compiled(model, BOTH, dump=tmp_path / "forms")
    assert {path.name for path in (tmp_path / "forms").iterdir()} == set(NAMES)
    for name in NAMES:
        assert (tmp_path / "forms" / name / "plan.txt").exists()
        program = (tmp_path / "forms" / name / "program.txt").read_text()
        assert ("avx512f" in program) == (name == "x86-64-v4")


def test_a_bundle_takes_the_best_target(tmp_path: Path) -> None:
    model = scaled(tmp_path / "m.onnx", 2.0)
    rutc.compile(model, bundle=tmp_path / "b", target=BOTH, verify=False, db="none")
    script = (
        "import rutc_runtime\n"
        "for name in (None, 'x86-64-v3'):\n"
        "    with rutc_runtime.load('m.so', target=name) as session: print(session.target)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path / "b",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == list(NAMES)
