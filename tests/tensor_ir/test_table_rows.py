"""The inputs that only say where in tables something is, and how long these are."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from rutc.driver.api import compile, verify
from rutc.driver.options import Calibration
from rutc.driver.precision.calibration import RunningLibrary
from rutc.graph_opt import optimize
from rutc.importer import import_model
from rutc.runtime import InferenceSession
from rutc.tensor_ir.facts.table_rows import table_rows
from rutc.tensor_ir.textual.parse import parse
from rutc.verify.feeding.input_spec import InputSpec
from rutc.verify.feeding.input_values import generate
from rutc.verify.feeding.ports import input_specs

HEADER = '<ir_version: 10, opset_import: ["" : 20]> '
TABLES = {"w": (61, 3), "v": (7, 3), "l": (3, 61)}

MODELS = {
    "looked up": ("i64", "y = Gather (w, i)", ["61"]),
    "looked up at any axis, converted": (
        "i32",
        "t = Cast <to = 7> (i) z = Gather <axis = 1> (l, t) y = Transpose (z)",
        ["61"],
    ),
    "moved before": (
        "i64",
        "s = Constant <value_ints = [-1]> () r = Reshape (i, s) y = Gather (w, r)",
        ["61"],
    ),
    "looked up in two": ("i64", "a = Gather (w, i) b = Gather (v, i) y = Add (a, b)", ["61", "7"]),
    "of a size of an input": ("i64", "y = Gather (x, i)", ["m"]),
    "of a place in a place": (
        "i64",
        "c = Constant <value_ints = [5, 3, 4]> () a = Gather (c, i) y = Gather (w, a)",
        ["3"],
    ),
    "added to": ("i64", "o = Constant <value_int = 2> () s = Add (i, o) y = Gather (w, s)", ["59"]),
    "added to, before it is converted": (
        "i32",
        "c = Constant <value = int32 {2}> () s = Add (c, i) t = Cast <to = 7> (s)"
        " a = Gather (w, t) b = Gather (v, i) y = Add (a, b)",
        ["59", "7"],
    ),
    "moved back": (
        "i64",
        "o = Constant <value_int = -2> () s = Add (i, o) y = Gather (w, s)",
        ["63"],
    ),
    "less a number": (
        "i64",
        "o = Constant <value_int = 2> () s = Sub (i, o) y = Gather (w, s)",
        ["63"],
    ),
    "less more than there are rows": (
        "i64",
        "o = Constant <value_int = 8> () s = Sub (i, o) y = Gather (v, s)",
        None,
    ),
    "less a number, in a table of an input's size": (
        "i64",
        "o = Constant <value_int = 1> () s = Sub (i, o) y = Gather (x, s)",
        None,
    ),
    "moved back and forth": (
        "i64",
        "o = Constant <value_int = 3> () r = Sub (i, o) q = Add (r, o) y = Gather (w, q)",
        ["61"],
    ),
    "clipped": (
        "i64",
        "o = Constant <value_int = 0> () h = Constant <value_int = 60> ()"
        " s = Clip (i, o, h) y = Gather (w, s)",
        ["61"],
    ),
    "replaced where it pads": (
        "i64",
        "o = Constant <value_int = 5> () c = Equal (i, o) s = Where (c, o, i) y = Gather (w, s)",
        ["61"],
    ),
    "replaced where something is computed of it": (
        "i64",
        "o = Constant <value_int = 5> () r = Mul (i, o) c = Equal (r, o) s = Where (c, o, i)"
        " y = Gather (w, s)",
        None,
    ),
    "counted from the end by the model": (
        "i64",
        "o = Constant <value_int = 0> () e = Constant <value_int = 61> () c = Less (i, o)"
        " j = Add (i, e) s = Where (c, j, i) y = Gather (w, s)",
        None,
    ),
    "a bool that is a place": (
        "i64",
        "o = Constant <value_int = 1> () z = Constant <value_int = 0> () b = Cast <to = 9> (i)"
        " s = Where (b, o, z) y = Gather (w, s)",
        None,
    ),
    "taken from": ("i64", "o = Constant <value_int = 1> () s = Sub (o, i) y = Gather (w, s)", None),
    "added to itself": ("i64", "s = Add (i, i) y = Gather (w, s)", None),
    "compared": (
        "i64",
        "o = Constant <value_int = 0> () c = Equal (i, o) f = Cast <to = 1> (c)"
        " p = Constant <value_ints = [1]> () u = Unsqueeze (f, p) a = Gather (w, i)"
        " y = Mul (a, u)",
        ["61"],
    ),
    "compared alone": (
        "i64",
        "o = Constant <value_int = 0> () c = Greater (i, o) f = Cast <to = 1> (c)"
        " p = Constant <value_ints = [1]> () y = Unsqueeze (f, p)",
        None,
    ),
    "places of tokens that do not pad": (
        "i64",
        "o = Constant <value_int = 1> () z = Constant <value_int = 0> () c = Equal (i, o)"
        " n = Not (c) k = Cast <to = 7> (n) s = CumSum (k, z) m = Mul (s, k) q = Add (m, o)"
        " a = Gather (w, i) b = Gather (w, q) y = Add (a, b)",
        ["61"],
    ),
    "what is looked up is compared": (
        "i64",
        "t = Constant <value_ints = [5, 1, 4]> () o = Constant <value_int = 4> ()"
        " g = Gather (t, i) c = Less (g, o) f = Cast <to = 1> (c) u = Gather (w, i)"
        " p = Constant <value_ints = [1]> () h = Unsqueeze (f, p) y = Mul (u, h)",
        ["3", "61"],
    ),
    "compared with what is made of it": (
        "i64",
        "o = Constant <value_int = 1> () s = Neg (i) c = Greater (i, s) f = Cast <to = 1> (c)"
        " p = Constant <value_ints = [1]> () h = Unsqueeze (f, p) u = Gather (w, i)"
        " y = Mul (u, h)",
        None,
    ),
    "true or false": (
        "i64",
        "c = Cast <to = 9> (i) f = Cast <to = 1> (c) p = Constant <value_ints = [1]> ()"
        " u = Unsqueeze (f, p) a = Gather (w, i) y = Mul (a, u)",
        None,
    ),
    "a factor": (
        "i64",
        "f = Cast <to = 1> (i) p = Constant <value_ints = [1]> () y = Unsqueeze (f, p)",
        None,
    ),
    "more in a branch": (
        "i64",
        "o = Constant <value_int = 0> () k = ReduceSum <keepdims = 0> (x) z = CastLike (k, o)"
        " c = Greater (z, o) y = If (c) <then_branch = a () => (float[n, 3] t) {"
        " t = Gather (w, i) }, else_branch = b () => (float[n, 3] e) {"
        " j = Neg (i) e = Gather (w, j) }>",
        None,
    ),
    "the same in both branches": (
        "i64",
        "o = Constant <value_int = 0> () k = ReduceSum <keepdims = 0> (x) z = CastLike (k, o)"
        " c = Greater (z, o) y = If (c) <then_branch = a () => (float[n, 3] t) {"
        " t = Gather (w, i) }, else_branch = b () => (float[n, 3] e) { e = Gather (v, i) }>",
        ["61", "7"],
    ),
}


def _saved(kind: str, nodes: str, path: Path) -> Path:
    element = {"i64": "int64", "i32": "int32"}[kind]
    text = f"g ({element}[n] i, float[m, 3] x) => (float[p, q] y) {{ {nodes} }}"
    model = parser.parse_model(HEADER + text)
    random = np.random.default_rng(1)
    for name, shape in TABLES.items():
        table = random.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(table, name))
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("name", MODELS)
def test_rows_of_tables(name: str, tmp_path: Path) -> None:
    kind, nodes, wanted = MODELS[name]
    graph = import_model(_saved(kind, nodes, tmp_path / "m.onnx"))
    found = {key: sorted(map(str, extents)) for key, extents in table_rows(graph).items()}
    assert found == ({} if wanted is None else {"i": sorted(wanted)})
    assert table_rows(optimize(graph)).keys() <= table_rows(graph).keys()


def test_what_is_compared_is_read_somewhere() -> None:
    graph = parse("""
    graph "in one nest"
    dims n = 4, d = 5
    %i : i64{n} = input "i" [n]
    %t : i64{d} = const [d] [5, 1, 4, 2, 0]
    %y : bool{n} = %t[d=%i[n]] < 4
    output "y" [n] = %y
    """)
    assert {name: list(map(str, rows)) for name, rows in table_rows(graph).items()} == {"i": ["5"]}


@pytest.mark.parametrize(
    ("place", "wanted"),
    [
        ("%i[n]", ["5"]),
        ("%i[n] - 2", None),
        ("select(%i[n] < 0, %i[n] + 5, %i[n])", ["5"]),
        ("select(%i[n] - 2 < 0, %i[n] + 3, %i[n] - 2)", ["7"]),
        ("select(%j[n] < 0, 3, %i[n])", ["5"]),
        ("select(%j[n] < 0, 3, %i[n] - 2)", None),
        ("select(%j[n] < 0, %i[n] + 3, %i[n])", None),
    ],
)
def test_places_count_from_the_end_where_they_are_negative(
    place: str, wanted: list[str] | None
) -> None:
    """And only there: a number below the one that is taken away would be outside elsewhere."""
    graph = parse(f"""
    graph "in one nest"
    dims n = 4, d = 5
    %i : i64{{n}} = input "i" [n]
    %j : i64{{n}} = input "j" [n]
    %t : i64{{d}} = const [d] [5, 1, 4, 2, 0]
    %y : i64{{n}} = %t[d={place}]
    output "y" [n] = %y
    """)
    found = {name: list(map(str, rows)) for name, rows in table_rows(graph).items()}
    assert found == ({} if wanted is None else {"i": wanted})


@pytest.mark.parametrize("name", MODELS)
def test_models_agree_on_places_of_any_row(name: str, tmp_path: Path) -> None:
    kind, nodes, wanted = MODELS[name]
    path = _saved(kind, nodes, tmp_path / "m.onnx")
    report = compile(path, tmp_path / "m.so")
    assert verify(path, report.library).passed
    with InferenceSession(report.library) as session:
        (spec,) = [item for item in input_specs(session) if item.name == "i"]
    drawn = generate([spec], dims={"n": 2000, "m": 9})["i"]
    least = min((9 if rows == "m" else int(rows) for rows in wanted), default=2) if wanted else 2
    assert set(drawn.tolist()) == set(range(least))


def test_a_row_that_is_wrong_is_seen(tmp_path: Path) -> None:
    """Row 0 and row 1 alone tell nothing of the others."""
    path = _saved("i64", MODELS["looked up"][1], tmp_path / "m.onnx")
    report = compile(path, tmp_path / "m.so")
    model = onnx.load(path)
    (table,) = [t for t in model.graph.initializer if t.name == "w"]
    changed = numpy_helper.to_array(table).copy()
    changed[2:] += 1
    table.CopyFrom(numpy_helper.from_array(changed, "w"))
    onnx.save(model, path)
    assert not verify(path, report.library).passed


@pytest.mark.parametrize("name", ["added to", "compared"])
def test_what_is_measured_on_generated_cases_reads_any_row(name: str, tmp_path: Path) -> None:
    """Of a calibration, and of all others that make a library of a graph to run it."""
    kind, nodes, _ = MODELS[name]
    graph = optimize(import_model(_saved(kind, nodes, tmp_path / "m.onnx")))
    with RunningLibrary(graph, Calibration()) as running:
        drawn = [row for case in running.cases() for row in np.ravel(case["i"]).tolist()]
    assert max(drawn) > 30


def test_a_quarter_of_places_is_what_tokens_that_pad_are() -> None:
    spec = InputSpec("i", np.dtype(np.int64), (4000,), rows=(1000,))
    drawn = generate([spec])["i"]
    assert 0.2 < np.mean(drawn < 2) < 0.3
    assert 0.05 < np.mean(drawn > 900) < 0.1
    single = InputSpec("i", np.dtype(np.int64), (), rows=(1000,))
    assert generate([single])["i"].shape == ()


@pytest.mark.parametrize(
    ("dtype", "rows", "least", "most"),
    [
        (np.int64, (300, 5), 0, 4),
        (np.uint8, (300,), 0, 255),
        (np.int8, (300,), 0, 127),
        (np.int64, ("n", 300), 0, 2),
        (np.int64, (0,), 0, 0),
    ],
)
def test_places_are_rows_that_all_tables_have(
    dtype: type[np.integer], rows: tuple[int | str, ...], least: int, most: int
) -> None:
    spec = InputSpec("i", np.dtype(dtype), (4000,), rows=rows)
    drawn = generate([spec], dims={"n": 3})["i"]
    assert (drawn.min(), drawn.max()) == (least, most)
    assert drawn.dtype == dtype
