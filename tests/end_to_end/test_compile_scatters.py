"""Scatters as machine code: duplicates, places outside, odd lengths, memory shared with the base.

RUTC_EXAMPLES=50 pytest tests/end_to_end/test_compile_scatters.py
"""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import parser

from rutc.graph_opt import optimize
from rutc.graph_opt.decide import decide
from rutc.graph_opt.plan import Write
from rutc.importer import import_model
from rutc.tensor_ir import Graph
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.textual.parse import parse
from rutc.tensor_ir.verifier import verify
from tests.compiled import build, plan_or_reject, run
from tests.examples import examples
from tests.graph_opt.plans import plan_of
from tests.machines import RUNNABLE, eager, on_machines

LENGTHS = (0, 1, 2, 3, 7, 13, 17, 37, 67)
TYPES = ("f32", "f64", "i64", "i32", "u8", "bf16", "f16", "bool")

pytestmark = pytest.mark.usefixtures("module_cache")


def check(graph: Graph, folder: Path, machine: Machine, seed: int) -> None:
    """The compiled graph on small numbers, indices partly outside, against the interpreter."""
    rng = np.random.default_rng(seed)
    inputs: dict[str, np.ndarray] = {}
    for n in graph.inputs:
        shape = [graph.extent(d) for d in n.axes]
        low, high = (-1, 2 + graph.extent("m")) if n.name == "at" else (0, 5)
        inputs[n.name] = rng.integers(low, high, shape).astype(n.out.dtype.numpy)
    expected = interpret(graph, inputs)
    library = build(plan_or_reject(graph), eager(machine), folder)
    for threads in (1, 2):
        got = run(library, inputs, threads)
        for name, array in expected.items():
            np.testing.assert_array_equal(got[name], array, err_msg=name)


def rows(m: int, n: int, k: int, dtype: str, how: str, axes: str) -> Graph:
    """Whole rows put at chosen places: {k, n} into {m, n}."""
    graph = parse(
        f"""graph "rows"
        dims m = {m}, n = {n}, k = {k}
        %x : {dtype}{{m,n}} = input "x" [{axes}]
        %u : {dtype}{{k,n}} = input "u" [k, n]
        %at : i64{{k}} = input "at" [k]
        %y : {dtype}{{m,n}} = scatter{{k,n}} %x[m=%at[k], n=n] {how}= %u[k, n]
        output "y" [{axes}] = %y
        """
    )
    verify(graph)
    return graph


def reducers(dtype: str) -> tuple[str, ...]:
    return ("set",) if dtype == "bool" else ("set", "sum", "prod", "max", "min")


@examples(40)
@given(st.data())
def test_rows(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    m, n, k = (data.draw(st.sampled_from(LENGTHS)) for _ in range(3))
    dtype = data.draw(st.sampled_from(TYPES))
    how = data.draw(st.sampled_from(reducers(dtype)))
    axes = data.draw(st.sampled_from(("m, n", "n, m")))
    machine = data.draw(st.sampled_from(tuple(RUNNABLE.values())))
    graph = rows(m, n, k, dtype, how if k < 8 or how != "prod" else "max", axes)
    check(graph, tmp_path_factory.mktemp("rows"), machine, data.draw(st.integers(0, 9)))


CASES = {
    "elements along the last axis": """
        dims m = 11, n = 5, k = 13
        %x : f32{m,n} = input "x" [n, m]
        %u : f32{k,n} = input "u" [n, k]
        %at : i64{k,n} = input "at" [n, k]
        %y : f32{m,n} = scatter{k,n} %x[m=%at[k, n], n=n] sum= %u[k, n]
        output "y" [n, m] = %y
    """,
    "elements that lanes put to rows of their own": """
        dims m = 11, n = 37, k = 13
        %x : f32{m,n} = input "x" [m, n]
        %u : f32{k,n} = input "u" [k, n]
        %at : i64{k,n} = input "at" [k, n]
        %y : f32{m,n} = scatter{k,n} %x[m=%at[k, n], n=n] max= %u[k, n]
        output "y" [m, n] = %y
    """,
    "one element": """
        dims m = 4
        %x : f32{m} = input "x" [m]
        %at : i64{} = input "at" []
        %y : f32{m} = scatter{} %x[m=%at] set= 7.0
        output "y" [m] = %y
    """,
    "the last of all that meet": """
        dims a = 3, b = 7, m = 2
        %x : f32{m} = input "x" [m]
        %u : f32{a,b} = input "u" [b, a]
        %y : f32{m} = scatter{a,b} %x[m=mod(index(b), 2)] set= %u[a, b]
        output "y" [m] = %y
    """,
    "a base that is read again": """
        dims m = 9, n = 20, k = 4
        %x : f32{m,n} = input "x" [m, n]
        %at : i64{k} = input "at" [k]
        %z : f32{m,n} = %x[m, n] + 1.0
        %y : f32{m,n} = scatter{k,n} %z[m=%at[k], n=n] sum= %z[m=k, n=n]
        %w : f32{m,n} = %y[m, n] * %z[m, n=19-n]
        output "w" [m, n] = %w
    """,
    "scatters into one memory, read with a halo": """
        dims m = 9, n = 20, k = 4, r = 3
        %x : f32{m,n} = input "x" [m, n]
        %at : i64{k} = input "at" [k]
        %z : f32{m,n} = %x[m=8-m, n] + 1.0
        %y : f32{m,n} = scatter{k,n} %z[m=%at[k], n=n] sum= 3.0
        %v : f32{m,n} = scatter{k,n} %y[m=%at[k]+1, n=n] max= 9.0
        %w : f32{m,n} = max{r} %v[m=m+r-1, n else 0.0]
        output "w" [n, m] = %w
    """,
    "places that are sums of two indices": """
        dims m = 9, n = 3, a = 5, b = 6
        %x : f32{m,n} = input "x" [m, n]
        %u : f32{a,b} = input "u" [a, b]
        %y : f32{m,n} = scatter{a,b} %x[m=a+b, n=1] set= %u[a, b]
        output "y" [m, n] = %y
    """,
    "a scatter on what a scan carries": """
        dims m = 6, t = 9
        %x : f32{m} = input "x" [m]
        %at : i64{t} = input "at" [t]
        %last : f32{m} = scan t carry(%h : f32{m} = %x -> %n) collect() {
          %n : f32{m} = scatter{} %h[m=%at[t]] sum= %h[m=0] + 1.0
        }
        output "last" [m] = %last
    """,
}


@on_machines
@pytest.mark.parametrize("name", CASES)
def test_case(name: str, machine: Machine, tmp_path: Path) -> None:
    graph = parse(f'graph "case"\n{CASES[name]}')
    verify(graph)
    check(graph, tmp_path, machine, 1)


def test_a_base_that_dies_lends_its_memory() -> None:
    plan = plan_of(f'graph "case"\n{CASES["scatters into one memory, read with a halo"]}')
    assert plan.places["z"] == plan.places["y"] == plan.places["v"]
    assert not any(name.endswith(".base") for name in plan.values)
    assert sum(isinstance(s, Write) for s in plan.steps) == 2


@pytest.mark.parametrize("name", ["a base that is read again", "one element"])
def test_a_base_that_others_need_is_copied(name: str) -> None:
    plan = plan_of(f'graph "case"\n{CASES[name]}')
    base = "z" if "z" in plan.values else "x"
    assert plan.places["y.base"] == plan.places["y"]
    assert plan.places[base] != plan.places["y"]


@on_machines
def test_lanes_that_data_leave_out_end_where_no_loop_does(machine: Machine, tmp_path: Path) -> None:
    """Without registers for masks, vectors are stored whole where a loop does not end in them."""
    model = (
        '<ir_version: 10, opset_import: ["": 20]> g (float[m,2,2,n] x, int64[1,3] i, float[1,11] w)'
        " => (float[m,2,2,n] y) { y = ScatterND (x, i, w) }"
    )
    path = tmp_path / "model.onnx"
    path.write_bytes(parser.parse_model(model).SerializeToString())
    graph = import_model(path, dims={"n": (1, 11), "m": (2, 8)})
    library = build(decide(optimize(graph), machine), machine, tmp_path)
    if machine in RUNNABLE:
        x = {
            "x": np.ones((3, 2, 2, 11), np.float32),
            "i": np.array([[1, 0, 1]]),
            "w": np.arange(11, dtype=np.float32)[None],
        }
        np.testing.assert_array_equal(run(library, x, 1)["y"], interpret(graph, x)["y"])
