"""The walk through the compiler that docs/walkthrough.md takes a newcomer on, kept true."""

import inspect
import re
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from rutc.driver.compiler import Options, compile_model
from rutc.emit.targets import target_named
from rutc.graph_opt import optimize, pipeline, pipeline_for
from rutc.graph_opt.pipeline import PIPELINE
from rutc.graph_opt.rewrite import Reason, rule_name
from rutc.importer import import_model
from rutc.report.explain import explain
from rutc.tensor_ir import Data, Graph, expr, graph, kernel
from rutc.tensor_ir.graph import constants_of
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.tensor_ir.reducer import REDUCERS, Reducer
from rutc.tensor_ir.steps.text import parse_schedule, print_schedule
from rutc.tensor_ir.textual import text as text_form
from rutc.tensor_ir.textual.lexer import ParseError
from rutc.tensor_ir.textual.parse import parse
from rutc.tensor_ir.verifier import verify
from tests.close import assert_close
from tests.documents import blocks, run_document

ROOT = Path(__file__).resolve().parents[2]
WALKTHROUGH = ROOT / "docs" / "walkthrough.md"


def test_the_page_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rutc.importer.registry import OPERATORS

    monkeypatch.chdir(tmp_path)
    known = dict(OPERATORS)
    try:
        compared = run_document(WALKTHROUGH)
    finally:
        OPERATORS.clear()
        OPERATORS.update(known)
    assert compared >= 10


def test_an_operator_is_a_function_in_any_file_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rutc.importer import ops
    from rutc.importer.registry import OPERATORS

    (tmp_path / "example.py").write_text(
        "from rutc.importer.registry import operator\n\n"
        '@operator("Same", domain="com.example")\n'
        "def same(b, x):\n    return x\n"
    )
    monkeypatch.setattr(ops, "__path__", [*ops.__path__, str(tmp_path)])
    ops.register_all()
    del sys.modules["rutc.importer.ops.example"]
    assert OPERATORS.pop(("com.example", "Same")).name == "Same"


def test_the_page_takes_an_hour() -> None:
    assert sum(len(b.text.splitlines()) for b in blocks(WALKTHROUGH)) < 400


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three nodes: a convolution, a clipping, a mean over what the convolution made."""
    weights = np.random.default_rng(0).standard_normal((4, 2, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="filter", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"], name="positive"),
        helper.make_node("GlobalAveragePool", ["r"], ["y"], name="mean"),
    ]
    made = helper.make_graph(
        nodes,
        "three",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 1, 1])],
        [numpy_helper.from_array(weights, "w")],
    )
    path = tmp_path_factory.mktemp("model") / "three.onnx"
    opsets = [helper.make_opsetid("", 21)]
    onnx.save(helper.make_model(made, opset_imports=opsets, ir_version=10), path)
    return path


@pytest.fixture(scope="module")
def dump(model: Path) -> Path:
    """The folder that `--dump` fills."""
    folder = model.with_name("steps")
    compile_model(model, model.with_suffix(".so"), Options(dump=folder))
    return folder


def all_constants(path: Path) -> tuple[Graph, dict[str, Data]]:
    """The imported graph, and the constants of it after every step."""
    imported = import_model(path)
    found = dict(constants_of(imported))
    optimize(imported, on_step=lambda name, g, changed: found.update(constants_of(g)))
    return imported, found


def test_every_dump_parses_verifies_and_means_the_same(model: Path, dump: Path) -> None:
    imported, constants = all_constants(model)
    inputs = {"x": np.linspace(-1, 1, 128, dtype=np.float32).reshape(1, 2, 8, 8)}
    wanted = interpret(imported, inputs)["y"]
    files = sorted(dump.glob("[0-9][0-9]-*.txt"))
    steps = pipeline_for(target_named("native").machine)
    assert [int(f.name[:2]) for f in files] == list(range(1, len(steps) + 1))
    for file, step in zip(files, steps, strict=True):
        stem = file.stem.removesuffix(" (unchanged)")
        assert stem[3:] == step.name.replace(" ", "-")
        text = file.read_text(encoding="utf-8")
        if file.stem.endswith("(unchanged)"):
            before = re.fullmatch(r"\(unchanged\) see (.*)\n", text)
            assert before is not None
            assert before[1] in [f.name for f in files]
            continue
        parsed = parse(text, constants)
        verify(parsed)
        assert str(parsed) == text
        assert_close(interpret(parsed, inputs)["y"], wanted, reduction=1024)


def test_the_dump_holds_plan_kernels_and_program(dump: Path) -> None:
    plan = (dump / "plan.txt").read_text(encoding="utf-8")
    assert plan.startswith("plan three: arena ")
    program = (dump / "program.txt").read_text(encoding="utf-8")
    symbols = set(re.findall(r"launch (k_\w+)", program))
    texts = {f.name.split(".")[-2]: f for f in (dump / "kernels").glob("*.txt")}
    assert symbols == set(texts)
    for file in texts.values():
        parts = file.read_text(encoding="utf-8").split("\n=== ")
        assert [p.split(" ===")[0] for p in parts[1:]] == ["schedule", "scheduled"]
        schedule = "; ".join(parts[1].partition("\n")[2].split("\n")).strip("; ")
        assert print_schedule(parse_schedule(schedule)) == schedule
        assert file.with_suffix(".ll").is_file()


def test_each_entry_of_the_pipeline_has_a_reason_above_it() -> None:
    source = inspect.getsource(pipeline)
    after = source.partition("    steps: tuple[Pass, ...] = (\n")[2]
    table = after.partition("\n    )\n")[0].splitlines()
    entries = [i for i, line in enumerate(table) if re.match(r"        [\w*]", line)]
    # Four more are for some machines only.
    assert len(entries) == len(PIPELINE) + 4
    for i in entries:
        last = i == len(table) - 1
        assert last or table[i - 1].startswith("        # "), table[i]


def test_rules_show_before_and_after_or_say_what_they_do() -> None:
    for step in PIPELINE:
        for rule in getattr(step, "rules", ()):
            text = inspect.getdoc(rule if inspect.isfunction(rule) else type(rule)) or ""
            assert "->" in text or "{" in text, rule_name(rule)


def test_explain_says_why_something_did_not_fuse(model: Path) -> None:
    found = explain(model, "mean")
    assert found.apart
    assert all(a.reason for a in found.apart)
    assert "positive" in found.apart[0].value_origin + found.apart[0].reader_origin


def test_a_rule_says_why_it_does_not_apply(model: Path) -> None:
    from rutc.graph_opt.rewrite import why_not
    from rutc.graph_opt.rules.scale import fold_scale

    imported = import_model(model)
    reason = why_not(fold_scale, imported, imported.outputs[0].value)
    assert isinstance(reason, Reason)


# -- the grammars -------------------------------------------------------------------------------
EXAMPLES = {
    "input": '%v : f32{a,b} = input "v" [b, a]',
    "const": "%v : f32{a} = const [a] [1.0, 2.5]",
    "nest": "%v : f32{a} = sum{b} %x[a, b=b+1 else 0.0] * 2.0",
    "scan": "%v : f32{} = scan t carry(%p : f32{} = %s -> %n) collect() {\n"
    "  %n : f32{} = %p + 1.0\n}",
    "if": "%v : f32{} = if %c {\n  yield %s\n} else {\n  %n : f32{} = -%s\n  yield %n\n}",
    "while": "%v : bool{} = while carry(%p : bool{} = %c -> %n) if %p {\n  %n : bool{} = not %p\n}",
    "scatter": "%v : f32{a,b} = scatter{} %x[a=0, b=i64(%s)] sum= 1.0",
    "bind": "%v : i64{} = bind m = %i",
    "call": "%v : f32{a,b} = call sort(%x[a, b], axis=1)",
}
"""A node of every kind in the grammar of `tensor_ir.graph`, over the values of `FRAME`."""

FRAME = """graph "example"
symbols m = 0..9
dims a = 2, b = 3, t = 4
%x : f32{{a,b}} = input "x" [a, b]
%s : f32{{}} = input "s" []
%c : bool{{}} = input "c" []
%i : i64{{}} = input "i" []
{node}
output "v" [{axes}] = %v
"""


def grammar(module: object) -> set[str]:
    """The names that a module's docstring defines."""
    return set(re.findall(r"^    (\w+)\s+:=", inspect.getdoc(module) or "", flags=re.MULTILINE))


@pytest.mark.parametrize("kind", EXAMPLES)
def test_the_grammar_has_an_example_of_each_node(kind: str) -> None:
    node = EXAMPLES[kind]
    dims = node[node.index("{") + 1 : node.index("}")]
    text = FRAME.format(node=node, axes=dims.replace(",", ", "))
    parsed = parse(text)
    verify(parsed)
    assert parse(str(parsed)) == parsed


def test_the_examples_are_the_grammars_nodes() -> None:
    parts = {"graph", "value", "dim", "output"}
    assert grammar(graph) == {*EXAMPLES, *parts}
    assert {"graph", "line", "node", "index", "expr", "literal"} <= grammar(text_form)
    assert {"expr", "read", "coord"} <= grammar(expr)
    assert {"kernel", "buffer", "stmt"} <= grammar(kernel)


def test_the_reducers_table_names_every_reducer() -> None:
    table = inspect.getdoc(inspect.getmodule(Reducer)) or ""
    for name in REDUCERS:
        assert re.search(rf"\b{name}\b", table), name


def test_a_text_that_breaks_the_grammar_is_refused_with_its_place() -> None:
    with pytest.raises(ParseError, match="line 2"):
        parse('graph "x"\ndims a 2\n')
