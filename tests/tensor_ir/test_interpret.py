import re
import tracemalloc

import numpy as np
import pytest

from rutc.errors import InternalError, UserError
from rutc.tensor_ir.interpreter.interpret import interpret, interpret_values
from rutc.tensor_ir.textual.parse import parse
from rutc.tensor_ir.verifier import verify
from rutc.verify.judging.tolerance import Level
from tests.close import assert_close

GRAPH = """
graph "g"
symbols batch = 1..8
dims n = batch, m = 2*batch, t = 5, k = 3, z = 0
%x : f32{n,t} = input "x" [t, n]
%i : i64{k} = input "i" [k]
"""
X = np.arange(10, dtype=np.float32).reshape(5, 2)
I = np.array([0, 7, -2])  # noqa: E741


def run(*lines: str, **more: int) -> np.ndarray:
    """The output `y` of a graph with the inputs `X` and `I`."""
    graph = parse(GRAPH + "\n".join(lines))
    verify(graph)
    return interpret(graph, {"x": X, "i": I}, more)["y"]


def test_axes_are_those_of_the_interface() -> None:
    np.testing.assert_array_equal(run('output "y" [t, n] = %x'), X)
    np.testing.assert_array_equal(run('output "y" [n, t] = %x'), X.T)


def test_a_gather_without_a_fill_clamps() -> None:
    got = run("%g : f32{k,n} = %x[n, t=%i[k]]", 'output "y" [k, n] = %g')
    np.testing.assert_array_equal(got, X[[0, 4, 0]])


def test_a_gather_with_a_fill_fills() -> None:
    got = run("%g : f32{k,n} = %x[n, t=%i[k] else 9.0]", 'output "y" [k, n] = %g')
    np.testing.assert_array_equal(got, [X[0], [9, 9], [9, 9]])


def test_windows_strides_and_reversals_read_with_a_fill() -> None:
    got = run("%g : f32{k,n} = %x[n, t=-2*k + 4 else 9.0]", 'output "y" [k, n] = %g')
    np.testing.assert_array_equal(got, X[4::-2])
    got = run("%g : f32{n,t} = sum{k} %x[n, t=t + k - 1 else 100.0]", 'output "y" [t, n] = %g')
    padded = np.pad(X, [(1, 1), (0, 0)], constant_values=100)
    np.testing.assert_array_equal(got, padded[:-2] + padded[1:-1] + padded[2:])


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("t - k", [0, 2, 6, 12, 20]),
        ("t - k - 1", [0, 0, 2, 6, 12]),
        ("t + k", [20, 20, 18, 14, 8]),
        ("t + k + 1", [20, 18, 14, 8, 0]),
        ("t - k + 1", [2, 6, 12, 20, 20]),
    ],
)
def test_running_sums_go_on_from_either_end(place: str, expected: list[int]) -> None:
    graph = GRAPH.replace("k = 3", "k = 5")
    lines = [f"%g : f32{{n,t}} = sum{{k}} %x[n, t={place} else 0.0]", 'output "y" [t, n] = %g']
    given = {"x": X, "i": np.zeros(5, np.int64)}
    got = interpret(parse(graph + "\n".join(lines)), given)["y"]
    np.testing.assert_array_equal(got[:, 0], expected)


def test_empty_spaces_give_identities_and_empty_values() -> None:
    got = run("%g : f32{n} = max{z} %x[n, t=z]", 'output "y" [n] = %g')
    np.testing.assert_array_equal(got, [-np.inf, -np.inf])
    assert run("%g : f32{n,z} = %x[n, t=z]", 'output "y" [z, n] = %g').shape == (0, 2)


def test_symbols_follow_from_inputs_and_reach_expressions() -> None:
    got = run("%g : i64{m} = index(m*batch)", 'output "y" [m] = %g')
    np.testing.assert_array_equal(got, [0, 2, 4, 6])


def test_a_scan_counts_and_collects() -> None:
    got = run(
        "%zero : f32{n} = 0.0",
        "%last : f32{n}, %all : f32{n,t} = scan t carry(%p : f32{n} = %zero -> %q) collect(%q) {",
        "  %q : f32{n} = %p[n] + %x[n, t] * f32(index(t))",
        "}",
        'output "y" [t, n] = %all',
    )
    np.testing.assert_array_equal(got, np.cumsum(X * np.arange(5)[:, None], axis=0))


def test_a_scatter_keeps_the_last_or_reduces() -> None:
    base = "%b : f32{t} = 10.0"
    got = run(
        base, "%g : f32{t} = scatter{k} %b[t=k // 2] set= f32(index(k))", 'output "y" [t] = %g'
    )
    np.testing.assert_array_equal(got, [1, 2, 10, 10, 10])
    got = run(
        base, "%g : f32{t} = scatter{k} %b[t=k // 2] sum= f32(index(k))", 'output "y" [t] = %g'
    )
    np.testing.assert_array_equal(got, [11, 12, 10, 10, 10])
    got = run(base, "%g : f32{t} = scatter{k} %b[t=%i[k]] set= 1.0", 'output "y" [t] = %g')
    np.testing.assert_array_equal(got, [1, 10, 10, 10, 10])


def test_every_value_can_be_seen() -> None:
    graph = parse(GRAPH + "%g : f32{n,t} = %x[n, t] + 1.0")
    values = interpret_values(graph, {"x": X, "i": I})
    np.testing.assert_array_equal(values["g"], X.T + 1)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"i": I}, "input 'x' is missing; given are ['i']"),
        ({"x": X.T, "i": I}, "input 'x' is f32 of shape [5, 5] but float32 of shape [2, 5]"),
        ({"x": X, "i": I.astype(np.int32)}, "input 'i' is i64 of shape [3] but int32"),
    ],
)
def test_inputs_that_do_not_fit_are_named(inputs: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        interpret(parse(GRAPH), inputs)


def test_a_missing_symbol_is_named() -> None:
    text = 'graph "g"\nsymbols s = 1..9\ndims n = 2*s\n%x : i64{n} = index(n)\noutput "y" [n] = %x'
    with pytest.raises(UserError, match="needs values for s"):
        interpret(parse(text), {})
    assert len(interpret(parse(text), {}, {"s": 2})["y"]) == 4


def test_an_unknown_routine_and_a_read_outside_are_internal_errors() -> None:
    graph = parse(GRAPH + '%g : i64{k} = call frobnicate(%i[k])\noutput "y" [k] = %g')
    with pytest.raises(InternalError, match="no routine 'frobnicate'"):
        interpret(graph, {"x": X, "i": I})
    graph = parse(GRAPH + '%g : f32{n,t} = %x[n, t=t + 1]\noutput "y" [n, t] = %g')
    with pytest.raises(InternalError, match="leaves the extent 5 of t"):
        interpret(graph, {"x": X, "i": I})


def test_the_routine_fail_ends_the_run_with_its_message() -> None:
    graph = parse(GRAPH + '%g : i64{k} = call fail(message="no such branch")')
    with pytest.raises(UserError, match="no such branch"):
        interpret(graph, {"x": X, "i": I})


def test_memory_stays_below_the_stated_bound() -> None:
    text = """
graph "g"
dims a = 300, b = 300, c = 300
%x : f32{a,b} = input "x" [a, b]
%y : f32{a,c} = sum{b} exp(%x[a, b]) * select(%x[a=b, b=c] < 0.0, %x[a=b, b=c], 1.0)
output "y" [a, c] = %y
"""
    x = np.random.default_rng(0).standard_normal((300, 300)).astype(np.float32)
    tracemalloc.start()
    got = interpret(parse(text), {"x": x})["y"]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 256 * 2**20
    assert_close(got, np.exp(x) @ np.where(x < 0, x, 1), level=Level.MODEL)


BOUND = """
graph "g"
symbols s = 1..4
dims n = s, t = 3
%c : i64{} = input "c" []
%b : i64{} = bind s = %c @ "Count"
%y : i64{n} = index(n) + index(2*s)
%again : i64{} = %b + index(s)
output "y" [n] = %y
output "again" [] = %again
"""


def test_a_size_that_the_program_computes() -> None:
    got = interpret(parse(BOUND), {"c": np.array(3)})
    assert got["y"].tolist() == [6, 7, 8]
    assert got["again"] == 6
    with pytest.raises(UserError, match=r"Count: the size s is 5, outside of 1\.\.4"):
        interpret(parse(BOUND), {"c": np.array(5)})


def test_a_size_outside_of_its_range_is_an_error():
    g = parse("""
        graph "g"
        symbols n = 2..3
        dims i = n
        %x : f32{i} = input "x" [i]
        %y : f32{i} = -%x[i]
        output "y" [i] = %y
    """)
    assert interpret(g, {"x": np.ones(3, np.float32)})["y"].shape == (3,)
    with pytest.raises(UserError, match=r"the size n is 4, outside of 2\.\.3"):
        interpret(g, {"x": np.ones(4, np.float32)})
