import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rutc.tensor_ir import (
    Apply,
    Const,
    Data,
    DType,
    Expr,
    Graph,
    Index,
    IndexValue,
    Lit,
    Read,
    Value,
    apply,
    cast,
)
from rutc.tensor_ir.expr import OPS
from rutc.tensor_ir.graph import constants_of
from rutc.tensor_ir.textual.lexer import ParseError
from rutc.tensor_ir.textual.parse import parse, parse_expr
from rutc.tensor_ir.textual.text import print_expr
from rutc.tensor_ir.typecheck import type_fault
from tests.examples import examples
from tests.strategies import indices

EXAMPLE = """\
graph "example"
symbols batch = 1..8@2, found = 0..5
dims n = batch, t = 5, k = 3, 'b x' = 2, f = found
reducer mine(f32) identity(0.0:f32) lift($x0) merge($a0 + $b0 * 1.0) finish($s0 / 2.0)
%x : f32{k,n,t} = input "x" [n, t, k]
%c : f32{k} = const [k] [1.0, -0.0, nan] @ "conv/weight", "q\\"uote"
%"a/b:0" : f32{n,t} = mine{k} %x[k, n, t=t - 1 else -inf] * 0.1 - (%c[k] - 1.0)
%i : i64{t} = const [t] [0, 4, 4, 1, -7]
%g : f32{k,n,t} = select(index(k) < 1 and not %c[k] == 0.0, -%x[k=-k + 2, n, t=%i[t]], 1.5)
%m : f32{n,t}, %at : i64{n,t} = argmax{k} %g[k, n, t], index(k)
%z : f32{n} = 0.0
%h : f32{n}, %ys : f32{n,t} = scan t carry(%p : f32{n} = %z -> %q) collect(%q) @ "rnn" {
  %q : f32{n} = tanh(%p[n] + %m[n, t])
}
%s : f32{n} = scatter{n,t} %z[n=%at[n, t] + 1] sum= %m[n, t]
%cond : bool{} = %i[t=0] == 0
%o : f32{n} = if %cond {
  %r : f32{n} = sum{t} %s[n] + f32(bf16(%m[n, t]))
  yield %r
} else {
  yield %h
}
%w : bool{}, %last : f32{n} = while carry(%go : bool{} = %cond -> %no, %y : f32{n} = %o -> %y) if %go {
  %no : bool{} = false
}
%top : f32{k,n}, %where : i64{k,n} = call topk(%m[n, t], %c[k], dim="t", largest=1, pads=[1, -2], eps=1e-05) -> [n, k], [k, n]
%count : i64{} = sum{t} %i[t]
%size : i64{} = bind found = %count @ "NonZero"
%some : i64{f} = %i[t=f]
output "o" [n] = %last
output "ys" [t, n] = %ys
"""  # noqa: E501


def test_every_construct_parses_and_prints_as_written() -> None:
    graph = parse(EXAMPLE)
    assert str(graph) == EXAMPLE
    assert parse(str(graph)) == graph


def test_a_graph_knows_its_constants_those_inside_bodies_too() -> None:
    inside = "  %q : f32{n} = tanh("
    graph = parse(EXAMPLE.replace(inside, f"  %w2 : f32{{}} = const [] [2.0]\n{inside}"))
    assert list(graph.constants) == ["c", "i", "w2"]
    assert graph.constants["i"].data.array.tolist() == [0, 4, 4, 1, -7]


def test_comments_line_breaks_and_other_spellings_are_read() -> None:
    loose = (
        EXAMPLE.replace("= tanh(%p[n]", "= tanh( # a comment\n    %p[n]\n")
        .replace("dims n = batch,", "\n\n  # extents\ndims n = batch,\n   ")
        .replace("-k + 2", "2 - k")
        .replace("%z[n=%at[n, t] + 1]", "%z[n=%at[n=n, t=t] + 1:i64]")
        .replace("f32{k,n,t} = input", "f32{n,t,k} = input")
    )
    assert parse(loose) == parse(EXAMPLE)


HEAD = """\
graph "g"
symbols s = 1..2
dims n = s, t = 5, k = 3
%x : f32{k,n,t} = input "x" [k, n, t]
"""


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("%v : f32{} = 1.0 +", "expected an expression but found the end of the line"),
        ("%v : f32{} = %nothing", "%nothing is not defined before this use"),
        ("%v : f32{} = 1.0 ? 2.0", "'?' begins nothing"),
        ("%v : f31{} = 1.0", "'f31' is no element type"),
        ("%x : f32{} = 1.0", "%x is defined a second time"),
        ("%v : f32{k,k} = 1.0", "%v has a dim twice"),
        ("%v : f32{k} = const [k] [1.0, 2.0]", "%v has 3 elements but 2 stand here"),
        ("%v : f32{n} = const [n] [1.0]", "needs a constant extent of dim n"),
        ('%v : f32{k} = const [k] data "12ab"', "no constant of this digest"),
        ("%v : f32{} = f32(3)", "nothing here gives 3 a type"),
        ("%v : i8{} = 300", "300 is no literal of type i8"),
        ("%v : f32{k} = k * 2.0", "'k' is a dim or a symbol"),
        ("%v : f32{n,t} = %x[k=0, n, t=t // 0]", "a divisor must be positive"),
        ("%v : f32{n,t} = %x[k=0, n, t else %x]", "must be a literal"),
        ("%v : f32{n,t} = average{k} %x[k, n, t]", "no reducer 'average'"),
        ("%v : f32{n,t} = argmax{k} %x[k, n, t], index(k), index(k)", "does not take 3 elements"),
        ("%v : f32{} = frobnicate(1.0)", "'frobnicate' is no operator"),
        ("%v : f32{n,t} = %x[k=0, n, t=t %5]", "the remainder's % stands apart"),
        ("%v : f32{} = exp(1.0, 2.0)", "'exp' takes 1 operands"),
        ("%v : f32{} = $x0", "no local $x0"),
        ("%v : f32{} = if %x {\n  yield %x\n} then", "expected 'else'"),
        ("dims k = 4", "dim k has an extent already"),
        ("nonsense", "expected symbols, dims, reducer, output"),
    ],
)
def test_errors_name_the_place_and_show_the_line(line: str, message: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse(f"{HEAD}{line}\n")
    text = str(caught.value)
    assert message in text
    assert text.startswith(("line 5, column ", "line 7, column "))
    assert "^" in text.splitlines()[-1]


ARRAYS = [
    np.float32([[1.5, np.inf], [-0.0, 1e-45]]),
    np.array([np.nan, -np.inf], np.float64),
    np.array([], np.int32).reshape(0, 2),
    np.array(2**63 + 3, np.uint64),
    np.array([True, False]),
    np.array([["a", 'q"\n'], ["é", ""]], object),
    *(np.array([1, 0]).astype(t.numpy) for t in DType if t is not DType.STRING),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda a: f"{a.dtype}")
def test_small_constants_stand_in_the_text(array: np.ndarray) -> None:
    axes = tuple("qp"[: array.ndim])
    dims = tuple((d, Index.of(n)) for d, n in zip(axes, array.shape, strict=True))
    out = Value("c", DType.of(array.dtype), tuple(sorted(axes)))
    graph = Graph("g", dims, (Const(out, axes, Data(array)),), ())
    assert "data" not in str(graph)
    assert parse(str(graph)) == graph


def test_large_and_odd_constants_are_given_by_digest() -> None:
    payload = np.array([0x7FC00001], np.uint32).view(np.float32)
    for array in (np.arange(65, dtype=np.int8), payload):
        dims = (("i", Index.of(len(array))),)
        node = Const(Value("c", DType.of(array.dtype), ("i",)), ("i",), Data(array))
        graph = Graph("g", dims, (node,), ())
        assert f'data "{node.data.digest}"' in str(graph)
        assert parse(str(graph), constants_of(graph)) == graph


# -- expressions --------------------------------------------------------------------------------
TYPES = [DType.F32, DType.F64, DType.BF16, DType.I64, DType.I8, DType.U64, DType.BOOL]
VALUES = {f"v{t}": t for t in TYPES}


@st.composite
def literals(draw: st.DrawFn, dtype: DType) -> Lit:
    if dtype is DType.BOOL:
        return Lit(draw(st.booleans()), dtype)
    if dtype.is_float:
        return Lit(draw(st.floats()), dtype)
    low = -(1 << (dtype.bits - 1)) if dtype.is_signed else 0
    return Lit(draw(st.integers(low, low + (1 << dtype.bits) - 1)), dtype)


@st.composite
def expressions(draw: st.DrawFn, dtype: DType, depth: int = 4) -> Expr:
    """Any well-typed expression over the values v0 with the dims a and b."""
    smaller = depth - 1
    kinds = ["literal", "read", "apply", "apply", "apply", "cast"] if depth else ["literal", "read"]
    match draw(st.sampled_from(kinds)):
        case "literal":
            return draw(literals(dtype))
        case "cast":
            inner = draw(expressions(draw(st.sampled_from(TYPES)), smaller))
            return cast(inner, dtype)
        case "read":
            coords = []
            for d in ("a", "b"):
                gather = depth and draw(st.booleans())
                coords.append(
                    (
                        d,
                        draw(
                            expressions(DType.I64, smaller)
                            if gather
                            else indices(["a", "b", "c"], 2)
                        ),
                    )
                )
            fill = draw(st.none() | literals(dtype))
            if dtype is DType.I64 and draw(st.booleans()):
                return IndexValue(draw(indices(["a", "b"], 2)))
            return Read(f"v{dtype}", tuple(coords), dtype, fill)
    options = []
    for op in sorted(OPS):
        for t in TYPES:
            types = (DType.BOOL, t, t) if op == "select" else (t,) * OPS[op]
            e = Apply(op, tuple(Lit(0, x) for x in types))
            if e.dtype is dtype and type_fault(e) is None:
                options.append((op, types))
    op, types = draw(st.sampled_from(options))
    return Apply(op, tuple(draw(expressions(t, smaller)) for t in types))


@examples(300)
@given(st.sampled_from(TYPES).flatmap(expressions), st.booleans())
def test_expressions_parse_back(e: Expr, told: bool) -> None:
    expected = e.dtype if told else None
    assert parse_expr(print_expr(e, expected), VALUES, expected) == e


@pytest.mark.parametrize(
    ("e", "text"),
    [
        (apply("sub", Lit(1.0, DType.F32), apply("sub", Lit(2, DType.F32), Lit(3, DType.F32))),
         "1.0 - (2.0 - 3.0)"),
        (apply("mul", Lit(-1.0, DType.F32), apply("neg", Lit(0.1, DType.F32))), "-1.0 * neg(0.1)"),
        (apply("neg", apply("neg", Read("x", (), DType.F32))), "-(-%x)"),
        (apply("mod", Read("x", (), DType.F32), Read("2", (), DType.F32)), "%x % %2"),
        (apply("lt", Lit(1, DType.I8), Lit(2, DType.I8)), "1:i8 < 2:i8"),
        (Read("x", (("b", Index.of("b c") // 2),), DType.F32, Lit(0, DType.F32)),
         "%x[b='b c' // 2 else 0.0]"),
        (Read("x", (("a", Lit(3, DType.I64)),), DType.F32), "%x[a=3:i64]"),
    ],
)  # fmt: skip
def test_how_expressions_look(e: Expr, text: str) -> None:
    assert print_expr(e, DType.F32) == text
