"""`rutc inspect --html`: all of an artifact or a model is drawn, and names are only text."""

import json
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from rutc.driver.api import compile
from rutc.driver.compiler import compile_model
from rutc.driver.options import Options
from rutc.driver.plans import planning
from rutc.emit.host_program.program import Program
from rutc.emit.linking.library import build_library
from rutc.graph_opt import optimize
from rutc.graph_opt.versions import Version
from rutc.report.printable import printable
from rutc.runtime.artifact import OUTLINE_SECTION, open_artifact
from rutc.tensor_ir import Graph
from rutc.tensor_ir.textual.parse import parse_index
from tests.cli.conftest import Rutc
from tests.cli.pages import Page, read
from tests.onnx_files import write_model

FLOAT = TensorProto.FLOAT
NAMES = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\"'`&lt;]]>--><!--",
    "{{ 7 * 7 }} {% raw %}",
    "ligne\r\nsuivante\t\x1b[31m\x7f",
    "\u202egnorw\u2066",
    "Größe/层/🙂/\u2028\u2029",
    "__proto__",
    "n" * 5000,
)
"""Names that a page may take for something else."""


def save(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, list[int | str]],
    outputs: Sequence[str],
    **weights: np.ndarray,
) -> Path:
    return write_model(path, nodes, inputs, dict.fromkeys(outputs), weights)


def drawn(path: Path, *options: object) -> Callable[[Rutc], Page]:
    """What reads the page of a file."""

    def page(rutc: Rutc) -> Page:
        written = path.with_suffix(".html")
        done = rutc("inspect", path, "--html", written, *options)
        assert done.status == 0, done.stderr
        return read(written)

    return page


def manifest_of(path: Path) -> dict[str, object]:
    artifact = open_artifact(path)
    with artifact.file:
        return dict(artifact.manifest())


def network(path: Path) -> Path:
    """Products, a reduction over rows, a residual and a concatenation, of odd sizes."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="/block/product"),
        helper.make_node("Softmax", ["a"], ["s"], name="/block/softmax"),
        helper.make_node("MatMul", ["s", "v"], ["b"], name="/block/back"),
        helper.make_node("Add", ["b", "x"], ["c"], name="/block/residual"),
        helper.make_node("Concat", ["c", "s"], ["y"], axis=1, name="/head/join"),
        helper.make_node("ReduceMax", ["y"], ["m"], keepdims=0, name="/head/largest"),
    ]
    weights = {
        "w": rng.standard_normal((67, 131)).astype(np.float32),
        "v": rng.standard_normal((131, 67)).astype(np.float32),
    }
    return save(path, nodes, {"x": [5, 67]}, ["y", "m"], **weights)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("network")
    compile_model(network(folder / "net.onnx"), folder / "net.so")
    return folder / "net.so"


def test_every_kernel_value_and_weight_of_an_artifact_is_there(rutc: Rutc, library: Path) -> None:
    page = drawn(library)(rutc)
    kernels = manifest_of(library)["kernels"]
    assert isinstance(kernels, list)
    (details,) = page.details
    shown = [s for s in details["steps"] if s["texts"]["schedule"]]
    assert [s["name"] for s in shown] == [k["name"] for k in kernels]
    assert ["; ".join(s["texts"]["schedule"]) for s in shown] == [k["schedule"] for k in kernels]
    boxes = page.numbers("g", "steps")
    assert boxes == set(range(len(details["steps"])))
    text = " ".join(row.text for row in page.rows("steps"))
    for name in ("/block/product", "/block/softmax", "/block/back", "/head/largest"):
        assert name in text
    assert {w["name"] for w in details["weights"]} == {"w", "v"}
    values = {v["name"]: v for v in details["values"]}
    assert values["x"]["links"]["written by"] == ["steps", []]
    assert values["x"]["links"]["read by"][1] != []
    title = next(e for e in page.elements if e.tag == "title")
    assert title.text == "net.so"
    overview = page.all("section")[0].text
    for told in ("net.onnx", "weights", "working memory", "of the peak", f"{len(kernels)}, with"):
        assert told in overview


def test_values_of_the_arena_are_rectangles(rutc: Rutc, library: Path) -> None:
    page = drawn(library)(rutc)
    rows = page.rows("values")
    inside = {n for n, row in enumerate(rows) if "arena+" in row.text}
    assert inside
    assert page.numbers("g", "values") >= inside
    (peak,) = page.all("path", class_="peak")
    assert peak.attributes["d"]


def test_the_page_is_told_beside_the_tables_and_the_same_again(
    rutc: Rutc, library: Path, tmp_path: Path
) -> None:
    first, second = tmp_path / "a.html", tmp_path / "b.html"
    done = rutc("inspect", library, "--html", first)
    assert f"{first}: open it in a browser" in done.stdout.replace("\n", "")
    assert "working memory" in done.stdout
    done = rutc("inspect", library, "--html", second, "--json")
    assert json.loads(done.stdout)["page"] == str(second)
    assert first.read_bytes() == second.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.html", "b.html"]


def test_measured_times(rutc: Rutc, library: Path) -> None:
    page = drawn(library, "--profile", "--threads", 1)(rutc)
    titles = [e.text for e in page.all("th")]
    assert "µs" in titles
    overview = page.all("section")[0].text
    for told in ("measured time of a run", "by one thread", "GFLOP/s", "of the peak"):
        assert told in overview
    assert page.all("circle", of="steps")
    bars = [e for e in page.all("g") if str(e.attributes.get("class")).startswith("bar")]
    assert {e.attributes.get("data-n") for e in bars if e.attributes.get("data-of") == "steps"}


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_hostile_names_are_text(rutc: Rutc, tmp_path: Path, name: str) -> None:
    nodes = [
        helper.make_node("MatMul", [f"x{name}", f"w{name}"], [f"h{name}"], name=name),
        helper.make_node("Relu", [f"h{name}"], [f"y{name}"], name=f"relu {name}"),
    ]
    weights = {f"w{name}": np.ones((7, 3), np.float32)}
    path = save(tmp_path / "m.onnx", nodes, {f"x{name}": [f"n{name}", 7]}, [f"y{name}"], **weights)
    compile_model(path, tmp_path / "m.so")
    (of_library,) = drawn(tmp_path / "m.so")(rutc).details
    assert any(printable(name) in s["texts"]["computes"] for s in of_library["steps"])
    (of_model,) = drawn(path)(rutc).details
    assert [s["name"] for s in of_model["steps"]] == [printable(name), printable(f"relu {name}")]
    assert [w["name"] for w in of_model["weights"]] == [printable(f"w{name}")]


def test_sizes_that_a_run_chooses(rutc: Rutc, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Softmax", ["a"], ["s"]),
        helper.make_node("MatMul", ["s", "w"], ["y"]),
    ]
    weights = {"w": np.eye(31, dtype=np.float32)}
    path = save(tmp_path / "m.onnx", nodes, {"x": ["n", 31]}, ["y"], **weights)
    compile_model(path, tmp_path / "m.so", Options(dims={"n": (0, 9, 1, 5)}))
    page = drawn(tmp_path / "m.so")(rutc)
    assert any("n=n" in row.text or "=n" in row.text for row in page.rows("values"))
    assert "sizes that a run chooses: n (0..9, planned for 5)" in page.all("section")[0].text


def test_a_loop_and_a_choice(rutc: Rutc, tmp_path: Path) -> None:
    """Both are steps around those of their bodies, and the memory of a body lives within."""
    path = tmp_path / "m.onnx"
    onnx.save(with_control_flow(), path)
    compile_model(path, tmp_path / "m.so")
    page = drawn(tmp_path / "m.so")(rutc)
    kinds = [row.text for row in page.rows("steps")]
    assert any("end" in text for text in kinds)
    assert any("· " in text for text in kinds)
    profiled = drawn(tmp_path / "m.so", "--profile", "--dim", "n=3")(rutc)
    assert profiled.rows("steps")


def with_control_flow() -> onnx.ModelProto:
    """A Scan of a product, and an If of a sum that says more than the graph around it."""
    floats = helper.make_tensor_value_info
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["h", "w"], ["p"], name="/body/product"),
            helper.make_node("Add", ["p", "x"], ["q"], name="/body/add"),
            helper.make_node("Tanh", ["q"], ["o"], name="/body/tanh"),
            helper.make_node("Identity", ["o"], ["k"]),
        ],
        "body",
        [floats("h", FLOAT, [3, 17]), floats("x", FLOAT, [3, 17])],
        [floats("o", FLOAT, [3, 17]), floats("k", FLOAT, [3, 17])],
    )
    branches = [
        helper.make_graph(
            [helper.make_node(op, ["last"], [f"{op}.r"], name=f"/if/{op}")],
            op,
            [],
            [floats(f"{op}.r", FLOAT, [3, 17])],
        )
        for op in ("Exp", "Softmax")
    ]
    nodes = [
        helper.make_node("Scan", ["start", "xs"], ["last", "ys"], body=body, num_scan_inputs=1),
        helper.make_node("ReduceSum", ["ys"], ["s"], keepdims=0),
        helper.make_node("Greater", ["s", "zero"], ["c"]),
        helper.make_node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1]),
    ]
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((17, 17)).astype(np.float32),
        "zero": np.zeros((), np.float32),
    }
    graph = helper.make_graph(
        nodes,
        "g",
        [floats("start", FLOAT, [3, 17]), floats("xs", FLOAT, ["n", 3, 17])],
        [floats("y", FLOAT, [3, 17]), floats("ys", FLOAT, ["n", 3, 17])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def test_states_are_inputs_and_outputs(rutc: Rutc, tmp_path: Path) -> None:
    nodes = [helper.make_node("Add", ["x", "before"], ["after"], name="sum")]
    path = save(tmp_path / "m.onnx", nodes, {"x": [7], "before": [7]}, ["after"])
    compile(path, tmp_path / "m.so", states={"before": "after"}, verify=False)
    page = drawn(tmp_path / "m.so")(rutc)
    titles = [e.text for e in page.all("title")]
    assert any(text.startswith("input before") for text in titles)
    assert any(text.startswith("output after") for text in titles)


def test_a_model_without_kernels(rutc: Rutc, tmp_path: Path) -> None:
    build_library(Program("m", (), (), 0, ()), [], tmp_path / "none.so", {"kernels": []})
    page = drawn(tmp_path / "none.so")(rutc)
    assert page.details == []
    path = save(tmp_path / "id.onnx", [helper.make_node("Identity", ["x"], ["y"])], {"x": [3]}, "y")
    assert drawn(path)(rutc).rows("steps")
    compile_model(path, tmp_path / "id.so")
    assert len(drawn(tmp_path / "id.so")(rutc).details) == 1


def test_a_library_of_before_there_were_outlines(rutc: Rutc, tmp_path: Path) -> None:
    kernels = [
        {"name": f"k{n}", "symbol": f"s{n}", "origin": [f"/node{n}"], "flops": n, "bytes": 8}
        for n in range(3)
    ]
    build_library(Program("m", (), (), 0, ()), [], tmp_path / "m.so", {"kernels": kernels})
    page = drawn(tmp_path / "m.so")(rutc)
    assert len(page.rows("steps")) == 3
    assert "compile the model again" in page.all("section")[0].text


def test_plans_of_several_versions(
    rutc: Rutc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def two(graph: Graph, *_: object, **asked: object) -> tuple[Version, ...]:
        many, few = (optimize(graph, limit=n) for n in (None, 2))
        return Version(many, parse_index("n // 3")), Version(few)

    monkeypatch.setattr(planning, "versions", two)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Mul", ["p", "half"], ["y"]),
    ]
    weights = {"w": np.ones((48, 32), np.float32), "half": np.full((), 0.5, np.float32)}
    path = save(tmp_path / "m.onnx", nodes, {"x": ["n", 7, 48]}, ["y"], **weights)
    compile_model(path, tmp_path / "m.so", Options(dims={"n": (0, 8, 1, 4)}))
    page = drawn(tmp_path / "m.so")(rutc)
    plans = [e.text for e in page.all("h2", class_="plan")]
    assert plans == ["Plan 0: runs where n // 3 > 0", "Plan 1: runs elsewhere"]
    profiled = drawn(tmp_path / "m.so", "--profile", "--dim", "n=1")(rutc)
    assert len(profiled.details) == 2


def test_a_model_of_3000_nodes(rutc: Rutc, tmp_path: Path) -> None:
    """Branches, residuals, and a value that all read: the page stays small, all of it is drawn."""
    count = 3000
    nodes = [helper.make_node("Neg", ["x"], ["v0"], name="/stem/neg")]
    for n in range(1, count):
        reads = [f"v{n - 1}", f"v{max(n - 7, 0)}" if n % 5 else "v0"]
        name = f"/layer.{n // 30}/block.{n // 6 % 5}/add{n}"
        nodes.append(helper.make_node("Add", reads, [f"v{n}"], name=name))
    path = save(tmp_path / "m.onnx", nodes, {"x": [11]}, [f"v{count - 1}"])
    page = drawn(path)(rutc)
    assert len(page.rows("steps")) == count
    assert page.numbers("g", "steps") == set(range(count))
    assert (tmp_path / "m.html").stat().st_size < 1500 * count


def test_nodes_weights_and_attributes_of_a_model(rutc: Rutc, tmp_path: Path) -> None:
    nodes = [
        helper.make_node(
            "Conv", ["x", "w"], ["c"], name="conv", kernel_shape=[3, 3], pads=[1, 1, 1, 1]
        ),
        helper.make_node("LeakyRelu", ["c"], ["y"], name="", alpha=0.25),
    ]
    weights = {"w": np.ones((5, 3, 3, 3), np.float32)}
    path = save(tmp_path / "m.onnx", nodes, {"x": [1, 3, 7, 11]}, ["y"], **weights)
    page = drawn(path)(rutc)
    (details,) = page.details
    assert [s["name"] for s in details["steps"]] == ["conv", "y"]
    assert "kernel_shape = [3, 3]" in details["steps"][0]["texts"]["attributes"]
    assert details["steps"][1]["texts"]["attributes"] == ["alpha = 0.25"]
    assert details["steps"][0]["links"]["weights"] == ["weights", [0]]
    assert details["weights"][0]["links"]["read by"] == ["steps", [0]]
    assert "float32 [5, 3, 3, 3]" in page.rows("weights")[0].text


def test_nodes_that_stand_in_any_order_are_drawn_in_that_of_their_reads(
    rutc: Rutc, tmp_path: Path
) -> None:
    nodes = [
        helper.make_node("Neg", ["a"], ["y"], name="second"),
        helper.make_node("Exp", ["x"], ["a"], name="first"),
    ]
    page = drawn(save(tmp_path / "m.onnx", nodes, {"x": [3]}, ["y"]))(rutc)
    assert [s["name"] for s in page.details[0]["steps"]] == ["first", "second"]
    assert len([e for e in page.all("path") if "data-a" in e.attributes]) == 3


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("page.txt", "is written as .html; name the file so"),
        ("none/page.html", "there is no directory"),
        ("folder.html", "it is a directory"),
        ("link.html", "it is a symbolic link"),
    ],
)
def test_pages_that_cannot_be_written(
    rutc: Rutc, tmp_path: Path, library: Path, name: str, told: str
) -> None:
    (tmp_path / "folder.html").mkdir()
    (tmp_path / "link.html").symlink_to(library)
    before = library.read_bytes()
    done = rutc("inspect", library, "--html", tmp_path / name)
    assert done.status == 2
    assert told in done.stderr.replace("\n", " ")
    assert library.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder.html", "link.html"]


def test_a_page_does_not_replace_what_it_is_about(
    rutc: Rutc, tmp_path: Path, library: Path
) -> None:
    path = tmp_path / "net.html"
    shutil.copy(library, path)
    done = rutc("inspect", path, "--html", path)
    assert done.status == 2
    assert "it is what the page is about" in done.stderr
    assert path.read_bytes() == library.read_bytes()


def test_a_page_replaces_an_older_one(rutc: Rutc, tmp_path: Path, library: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("old")
    assert rutc("inspect", library, "--html", path).status == 0
    assert read(path).rows("steps")


@pytest.mark.parametrize("place", [0.0, 0.5, 0.99])
def test_a_damaged_outline_is_told(rutc: Rutc, tmp_path: Path, library: Path, place: float) -> None:
    artifact = open_artifact(library)
    artifact.file.close()
    begin, end = artifact.sections[OUTLINE_SECTION]
    data = bytearray(library.read_bytes())
    at = begin + int(place * (end - begin))
    data[at : at + 2] = bytes(x ^ 0xFF for x in data[at : at + 2])
    (tmp_path / "m.so").write_bytes(data)
    done = rutc("inspect", tmp_path / "m.so", "--html", tmp_path / "m.html")
    assert done.status == 2, done.stderr
    assert "the outline in" in done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.so"]
    assert rutc("inspect", tmp_path / "m.so").status == 0


@pytest.mark.parametrize(
    "outline",
    [{}, {"machine": {}, "plans": [{}]}, {"machine": {}, "plans": 3}, {"machine": [], "plans": []}],
    ids=str,
)
def test_an_outline_of_something_else_is_told(
    rutc: Rutc, tmp_path: Path, outline: dict[str, object]
) -> None:
    build_library(
        Program("m", (), (), 0, ()), [], tmp_path / "m.so", {"kernels": []}, outline=outline
    )
    done = rutc("inspect", tmp_path / "m.so", "--html", tmp_path / "m.html")
    assert done.status == (0 if outline.get("plans") == [] else 2)


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no JavaScript here")
def test_the_script_is_one(tmp_path: Path, library: Path, rutc: Rutc) -> None:
    written = tmp_path / "page.html"
    assert rutc("inspect", library, "--html", written).status == 0
    (script,) = (e for e in read(written).all("script") if not e.attributes)
    (tmp_path / "page.js").write_text(script.text)
    subprocess.run(["node", "--check", tmp_path / "page.js"], check=True)
