from collections.abc import Callable
from dataclasses import replace

import pytest

from rutc.errors import InternalError
from rutc.tensor_ir import DType, Expr, Graph, Index, Lit, Local, Nest, Value, While
from rutc.tensor_ir.textual.parse import parse
from rutc.tensor_ir.verifier import VerifyError, verify

GRAPH = """
graph "g"
symbols batch = 1..8, found = 0..4
dims n = batch, t = 5, k = 3, j = 5, z = 0, f = found
%x : f32{k,n,t} = input "x" [n, t, k]
%i : i64{t} = const [t] [0, 4, 4, 1, -7]
%c : f32{k} = const [k] [1.0, 2.0, 3.0]
%e : f32{k,n,t} = %x[k, n, t=-t + 4] * %c[k=k]
%gather : f32{n,t} = %x[k=0, n, t=%i[t] + 1]
%m : f32{n,t}, %at : i64{n,t} = argmax{k} %e[k, n, t], index(k)
%zero : f32{n} = 0.0
%h : f32{n}, %ys : f32{n,t} = scan t carry(%p : f32{n} = %zero -> %q) collect(%q) @ "rnn"  {
  %q : f32{n} = tanh(%p[n] + %m[n, t])
}
%s : f32{n} = scatter{n,t} %zero[n=%at[n, t]] sum= %m[n, t]
%cond : bool{} = %i[t=0] == 0
%o : f32{n} = if %cond {
  %r : f32{n} = sum{t} %s[n] + 1.0
  yield %r
} else {
  yield %h
}
%w : bool{}, %last : f32{n} = while carry(%go : bool{} = %cond -> %no, %y : f32{n} = %o -> %y) if %go {
  %no : bool{} = false
}
%none : f32{z} = %c[k=z + 7]
%split : f32{t} = %c[k=(2*t) % 5 // 2]
%some : f32{n} = %c[k=min(n, 2)]
%count : i64{} = sum{t} %i[t]
%size : i64{} = bind found = %count
%front : f32{f} = %c[k=min(f, 2)]
output "o" [n] = %last
output "ys" [t, n] = %ys
"""  # noqa: E501


def test_a_valid_graph_passes() -> None:
    graph = parse(GRAPH)
    verify(graph)
    assert parse(str(graph)) == graph


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("%i : i64{t} = const [t]", "%i : i32{t} = const [t]", "is i32, not i64"),
        ("t=-t + 4]", "t=-t + 5]", "ranges over 1..5, outside of the extent 5"),
        ("t=-t + 4]", "t=t - 1]", "ranges over -1..3, outside"),
        ("t=-t + 4]", "t=t + k]", "ranges over 0..6, outside"),
        ("%c[k=(2*t) % 5 // 2]", "%c[k=(2*t) % 5]", "ranges over 0..4, outside"),
        ("%c[k=min(n, 2)]", "%c[k=max(n, 3)]", "outside of the extent 3"),
        ("%c[k=k]", "%c[k=t]", "ranges over 0..4, outside of the extent 3"),
        ("%c[k=k]", "%c[k=j]", "j uses ['j'], neither dims of the space"),
        ("%c[k=k]", "%c[t=k]", "is read at ['t'] but its dims are ['k']"),
        ("* %c[k=k]", "* index(k)", "'mul' has operands of different types: f32, i64"),
        ("* %c[k=k]", "* f32(index(j))", "j uses ['j']"),
        ("%x[k=0, n, t=%i[t] + 1]", "%x[k=0, n, t=%c[k=0]]", "coordinate t of %x is f32, not i64"),
        ("bind found = %count", "bind lost = %count", "the symbol lost is unknown"),
        ("bind found = %count", "bind found = %cond", "must agree with"),
        ("%none : f32{z} = %c[k=z + 7]", "%none : f32{f} = 1.0", "found is used where nothing"),
        ("%split : f32{t} = %c[k=(2*t) % 5 // 2]", "%b : i64{} = index(found)", "found is used"),
        (
            "%size : i64{} = bind found = %count",
            "%size : i64{} = bind found = %count\n%again : i64{} = bind found = %count",
            "binds occur twice: found",
        ),
        ("%e[k, n, t], index(k)", "index(k), index(k)", "argmax makes (i64, i64) of (i64, i64)"),
        ("%m : f32{n,t}, %at : i64{n,t}", "%m : f32{n,t}, %at : i64{n}", "must have the same dims"),
        ("argmax{k}", "argmax{t}", "dims of one space occur twice: t"),
        ("argmax{k}", "argmax{zz}", "dim zz is unknown"),
        ("%zero : f32{n}", "%zero : f64{n}", "must agree with %zero : f64{n} (from rnn)"),
        ("%q : f32{n} = tanh(%p[n]", "%q : f32{n,t} = tanh(%p[n]", "which is a scan's counter"),
        ("%q : f32{n} = tanh(%p[n]", "%q : f32{k,n} = tanh(%p[n]", "must agree with %q : f32{k,n}"),
        ("sum{t} %s[n]", "sum{t} %s[n=3] * %q[n]", "%q is used but not defined before"),
        ("tanh(%p[n] + ", "exp(%i[t=0]) + f64(", "'exp' takes a float, not i64"),
        ("%h : f32{n}, %ys", "%h : f32{}, %ys", "must agree with %p : f32{n}"),
        ("%at[n, t]] sum=", "%at[n, t]] any=", "there is no"),
        ("scatter{n,t} %zero[n=%at[n, t]]", "scatter{n,t} %zero[n=%m[n, t]]", "is f32, not i64"),
        ("%cond : bool{} = %i[t=0] == 0", "%cond : i64{} = %i[t=0]", "is no bool scalar"),
        ("yield %r", "yield %i", "%o : f32{n} must agree with %i : i64{t}"),
        ("yield %r", "yield %r, %r", "must agree with %r : f32{n}, %r : f32{n}"),
        ("if %go {", "if %cond {", "%cond is no carried parameter"),
        ('"o" [n]', '"o" []', "the axes [] of output 'o' are not the dims of %last : f32{n}"),
        ('"ys" [t, n] = %ys', '"o" [n] = %o', "outputs occur twice: o"),
        ("1..8", "8..1", "the range 8..1 of symbol batch is empty"),
        ("n = batch", "n = bunch", "uses unknown ['bunch']"),
        ("n = batch", "batch = 1, n = batch", "dims and symbols occur twice: batch"),
        ("z = 0", "z = -1", "the extent -1 of dim z is negative"),
        ("z = 0", "z = 9223372036854775807", "takes 2**63 bytes or more"),
    ],
)
def test_each_rule_is_checked(old: str, new: str, message: str) -> None:
    assert GRAPH.count(old) == 1
    broken = GRAPH.replace(old, new)
    if message == "there is no":
        broken, message = GRAPH.replace(old, old.replace("sum=", "logsumexp=")), "does not make f32"
    with pytest.raises(VerifyError) as caught:
        verify(parse(broken))
    assert message in str(caught.value)


def test_a_fault_is_shown_within_its_lines() -> None:
    broken = parse(GRAPH.replace("%p[n] + %m[n, t]", "%p[n] + %m[n, t=k]"))
    with pytest.raises(InternalError) as caught:
        verify(broken)
    lines = str(caught.value).splitlines()
    marked = [line for line in lines if line.startswith(">")]
    assert marked == [">   %q : f32{n} = tanh(%p[n] + %m[n, t=k])"]
    assert len(lines) <= 10


CHECKED = """
graph "g"
dims k = 3, n = 3
%x : f32{k} = input "x" [k]
%z : f32{} = input "z" []
%y : f32{n} = %x[k=n]
%go : bool{} = %y[n=0] == 0.0
%last : bool{} = while carry(%p : bool{} = %go -> %no) if %p {
  %no : bool{} = false
}
output "y" [n] = %y
output "last" [] = %last
"""


def _smaller(graph: Graph) -> Graph:
    """Another extent of a value that is as it was, and is read as it was."""
    return replace(graph, dims=(("k", Index.of(2)), ("n", Index.of(3))))


def _undefined(graph: Graph) -> Graph:
    return replace(graph, nodes=graph.nodes[1:])


def _other_type(graph: Graph) -> Graph:
    real = Nest((Value("go", DType.F32, ()),), (), None, (Lit(0.0, DType.F32),))
    nodes = (*graph.nodes[:3], real, *graph.nodes[4:])
    return replace(graph, nodes=nodes)


def _moved_into_body(graph: Graph) -> Graph:
    x, z, y, go, loop = graph.nodes
    assert isinstance(loop, While)
    return replace(graph, nodes=(x, y, go, replace(loop, body=(z, *loop.body))))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_smaller, "ranges over 0..2"),
        (_undefined, "%x"),
        (_other_type, "f32"),
        (_moved_into_body, "an input stands in a body"),
    ],
)
def test_nodes_that_were_checked_before_are_checked_again(
    change: Callable[[Graph], Graph], message: str
) -> None:
    graph = parse(CHECKED)
    verify(graph)
    broken = change(graph)
    for since in (None, graph):
        with pytest.raises(VerifyError, match=message):
            verify(broken, since=since)


def test_what_no_text_can_say_is_checked_too() -> None:
    def nest(*outs: Value, body: Expr) -> Graph:
        return Graph("g", (("a", Index.of(2)),), (Nest(outs, (), None, (body,)),), ())

    scalar = Value("v", DType.F32, ())
    with pytest.raises(VerifyError, match="outside of a reducer"):
        verify(nest(scalar, body=Local("x0", DType.F32)))
    with pytest.raises(VerifyError, match="one body of its output's type"):
        verify(nest(scalar, Value("w", DType.F32, ()), body=Lit(1.0, DType.F32)))
    with pytest.raises(VerifyError, match="occur twice"):
        verify(Graph("g", (("a", Index.of(2)), ("a", Index.of(2))), (), ()))
