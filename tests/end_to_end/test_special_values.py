"""What operators give for NaN, infinities, signed zeros and the ends of types.

Each family of operators is one model: every operator reads each of these elements, in rows of odd
lengths. Results are what the oracles of `tests.fuzz.oracles` say, and the compiled ones what the
interpreter gives also where these leave a result open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
from onnx import NodeProto, helper

from tests.fuzz.cases import Case, DataSet
from tests.fuzz.check import differs, judge
from tests.fuzz.child import INTERPRETED, Child
from tests.fuzz.data import dtype_named, finfo, iinfo, is_integer
from tests.fuzz.graph import RUNS, tensor
from tests.fuzz.oracles import NoOracle, evaluate, value_info
from tests.fuzz.test_found import gives
from tests.machines import V3, runnable

OPSET = 21
FLOATS = ("float", "double", "float16", "bfloat16")
WHOLE = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
NARROW = ("float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz", "int4", "uint4")
TARGETS = ("native", *([V3.name] if runnable(V3) else []))

Made = tuple[NodeProto, dict[str, np.ndarray], tuple[str, ...]]
"""A node, its operands, and those of them that are known while compiling."""


def special(element: str) -> np.ndarray:
    """Elements at which implementations differ, an odd number of them."""
    kind = dtype_named(element)
    if is_integer(kind):
        low, high = int(iinfo(kind).min), int(iinfo(kind).max)
        found = {low, low + 1, -2, -1, 0, 1, 2, 3, 7, 100, 255, 46341, high // 2, high - 1, high}
        whole = sorted(v for v in found if low <= v <= high)
        return np.array(whole + whole[: 1 - len(whole) % 2], object).astype(kind)
    info = finfo(kind)
    sizes = [0, 0.3, 0.5, 1, 1.5, 2, 2.5, 3, 10, 127.5, 128, 240, 255.5, 448, 464, 57344, 61440]
    sizes += [float(x) for x in (info.max, info.smallest_normal, info.smallest_subnormal)]
    sizes += [float(info.max) / 2, np.inf]
    with np.errstate(all="ignore"):
        return np.array([*sizes, *(-x for x in sizes), np.nan]).astype(kind)


def rows(element: str, length: int) -> np.ndarray:
    """Rows of numbers, with NaN and infinities at their ends or everywhere, of ties, of limits."""
    kind = dtype_named(element)
    random = np.random.default_rng(length)
    if is_integer(kind):
        found = random.choice(special(element), (7, length))
        found[0], found[1] = iinfo(kind).min, iinfo(kind).max
        return found
    x = random.standard_normal((16, length))
    # Such numbers leave room to be summed in any order.
    large = float(finfo(kind).max) / 1024
    tiny = float(finfo(kind).smallest_subnormal)
    x[0], x[1], x[2], x[3, 0], x[3, -1] = np.nan, -np.inf, np.inf, np.inf, -np.inf
    x[4, 0], x[5, -1], x[6], x[7] = np.nan, np.nan, tiny, random.choice([0.0, -0.0], length)
    x[8], x[9], x[10, length // 2] = large, random.choice([large, -large], length), -np.inf
    x[11], x[12, length // 2], x[12, 0] = random.integers(-1, 2, length), np.nan, np.inf
    return x.astype(kind)


def on(name: str, known: Sequence[str] = (), outputs: int = 1, **given: object) -> Made:
    """A node, arrays its operands in this order, other names its attributes."""
    feed = {n: v for n, v in given.items() if isinstance(v, np.ndarray)}
    others = {n: v for n, v in given.items() if n not in feed}
    made = [f"y{k}" for k in range(outputs)]
    return helper.make_node(name, list(feed), made, **others), feed, tuple(known)


def functions(element: str) -> Iterator[Made]:
    """Functions of one element."""
    x = special(element)
    plain = "Abs Sign Identity"
    if element in FLOATS:
        plain += """
            Neg Ceil Floor Round Sqrt Exp Log Sin Cos Tan Asin Acos Atan Sinh Cosh Tanh Asinh Acosh
            Atanh Erf Sigmoid Softplus Softsign Relu LeakyRelu Elu Celu Selu HardSigmoid HardSwish
            Mish Reciprocal IsNaN IsInf Gelu ThresholdedRelu
        """
    for name in plain.split():
        yield on(name, x=x)
    for low, high in ((0, 1), (1, 0)):
        yield on("Clip", x=x, low=np.array(low, x.dtype), high=np.array(high, x.dtype))


def pairs(element: str) -> Iterator[Made]:
    """Functions of every two elements, and of each with one that is known."""
    x = special(element)
    left, right = x[:, None], x[None, :]
    floats = element in FLOATS
    shared = "Add Sub Mul Div Max Min Equal Less GreaterOrEqual"
    for name in (shared + (" Pow" if floats else " BitwiseAnd BitwiseXor")).split():
        yield on(name, a=left, b=right)
    for fmod in (1,) if floats else (0, 1):
        yield on("Mod", a=left, b=right, fmod=fmod)
    if floats:
        for exponent in (2, 3, -1, 0.5, 0, -0.5, np.inf):
            yield on("Pow", ["b"], a=x, b=np.array(exponent, x.dtype))
        return
    for divisor in x:
        yield on("Div", ["b"], a=x, b=np.array(divisor))
        yield on("Mod", ["b"], a=x, b=np.array(divisor))
    if element.startswith("u"):
        bits = 8 * x.dtype.itemsize
        by = np.array([[0, 1, bits - 1, bits, bits + 1, int(x.max())]], object).astype(x.dtype)
        for direction in ("LEFT", "RIGHT"):
            yield on("BitShift", a=left, b=by, direction=direction)


def casts(element: str) -> Iterator[Made]:
    """An element in every other type, beyond what that holds, too."""
    x = special(element)
    for other in (*FLOATS, *WHOLE, *NARROW, "bool"):
        if other != element:
            to = int(helper.np_dtype_to_tensor_dtype(dtype_named(other)))
            yield on("Cast", x=x, to=to)
            if other.startswith("float8"):
                yield on("Cast", x=x, to=to, saturate=0)


def reductions(element: str) -> Iterator[Made]:
    """Reductions along and across memory, in order, and what orders elements."""
    floats = element in FLOATS
    kinds = "Max Min Mean Sum Prod L1 L2 SumSquare LogSum LogSumExp" if floats else "Max Min"
    for length in (1, 17, 97):
        x = rows(element, length)
        for axis, given in ((1, x), (0, np.ascontiguousarray(x.T))):
            at = np.array([axis], np.int64)
            for kind in kinds.split():
                yield on(f"Reduce{kind}", ["axes"], x=given, axes=at)
            for last in (0, 1):
                yield on("ArgMax", x=given, axis=axis, select_last_index=last)
                count = np.array([max(1, length // 2)], np.int64)
                yield on("TopK", ["k"], 2, x=given, k=count, axis=axis, largest=last)
                if floats:
                    yield on("CumSum", ["axis"], x=given, axis=np.array(axis), exclusive=last)
            for name in ("Softmax", "LogSoftmax") if floats else ():
                yield on(name, x=given, axis=axis)


FAMILIES: dict[str, tuple[Callable[[str], Iterator[Made]], tuple[str, ...]]] = {
    "functions": (functions, (*FLOATS, "int8", "int64")),
    "pairs": (pairs, (*FLOATS, *WHOLE)),
    "casts": (casts, (*FLOATS, *WHOLE, *NARROW)),
    "reductions": (reductions, (*FLOATS, "uint8", "int32", "int64")),
}


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    made = Child(600.0)
    yield made
    made.close()


def case_of(family: Sequence[Made], target: str) -> Case:
    """All nodes that an oracle computes in one model, with what the oracles say."""
    nodes, infos, weights, outputs = [], [], [], []
    feeds, expected = {}, {}
    for number, (node, feed, known) in enumerate(family):
        try:
            with np.errstate(all="ignore"):
                results = evaluate(node, OPSET, [feed] * RUNS)
        except NoOracle:
            continue
        renamed = {n: f"{n}_{number}" for n in (*feed, *node.output)}
        for name, array in feed.items():
            if name in known:
                weights.append(tensor(array, renamed[name]))
            else:
                infos.append(value_info(renamed[name], array))
                feeds[renamed[name]] = array
        for name, runs in zip(node.output, results, strict=True):
            outputs.append(value_info(renamed[name], runs[0]))
            expected[renamed[name]] = runs
        nodes.append(NodeProto())
        nodes[-1].CopyFrom(node)
        nodes[-1].input[:] = [renamed[n] for n in node.input]
        nodes[-1].output[:] = [renamed[n] for n in node.output]
    graph = helper.make_graph(nodes, "family", infos, outputs, weights)
    opsets = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    sets = (DataSet(feeds, expected),)
    return Case(model.SerializeToString(), {}, sets, target=target, eager=True)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("family", "element"), [(f, e) for f, (_, types) in FAMILIES.items() for e in types]
)
def test_operators_on_special_values(child: Child, family: str, element: str, target: str) -> None:
    case = case_of(list(FAMILIES[family][0](element)), target)
    answer = child.answer(case)
    verdict = judge(case, answer)
    assert verdict.kind == "pass", verdict.reason
    (results,) = answer.results
    for way, made in results.items():
        for name, got in made.items():
            meant = results[INTERPRETED][name]
            reason = differs(got, [meant], max(got.shape, default=1))
            assert not reason, f"[{way}] {name} is not what the interpreter gives: {reason}"


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(("element", "kind"), [("float", np.float32), ("double", np.float64)])
def test_a_power_of_a_half_of_minus_infinity_is_no_root(
    element: str, kind: type[np.floating], *, known: bool
) -> None:
    """By the standard of floating-point numbers it is infinite; the root is NaN."""
    x = np.array([-1, 1, 0, -9], kind)
    given = "" if known else f"{element}[4] x"
    constant = f", {element}[4] x = {{-1, 1, 0, -9}}" if known else ""
    text = f"""
    g ({given}) => ({element}[4] y, {element}[4] z)
        <{element} zero = {{0}}, {element} half = {{0.5}}{constant}>
        {{ a = Div (x, zero)  y = Pow (a, half)  b = Neg (a)  z = Pow (b, half) }}
    """
    with np.errstate(all="ignore"):
        a = x / kind(0)
        want = [np.where(np.isnan(a), a, np.inf).astype(kind)] * 2
    gives(text, want, **({} if known else {"x": x}))


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    ("attributes", "x", "want"),
    [
        (
            'mode = "linear", coordinate_transformation_mode = "align_corners"',
            [np.inf, 1, 2, -np.inf],
            [np.inf, np.inf, 1, 1.5, 2, -np.inf, -np.inf],
        ),
        (
            'mode = "cubic", coordinate_transformation_mode = "asymmetric"',
            [1, 1, np.inf, -4],
            [1, -np.inf, 1, np.inf, np.inf, np.inf, -4, -np.inf],
        ),
        (
            'mode = "linear", antialias = 1',
            [1, 1, np.inf, 1, 1, 1, 1, 1],
            [1, np.inf, np.inf, 1, 1],
        ),
        (
            'mode = "cubic", exclude_outside = 1',
            [np.inf, 0, 0, 0],
            [np.inf, np.inf, np.inf, -np.inf, -np.inf, 0, 0, 0],
        ),
    ],
)
def test_a_resized_image_has_nothing_of_elements_beyond_its_filter(
    attributes: str, x: list[float], want: list[float], known: bool
) -> None:
    """An infinite element that has no weight makes nothing NaN."""
    given, size = ("", str(len(want))) if known else (", int64[1] s", "m")
    constant = f"<int64[1] s = {{{len(want)}}}>" if known else ""
    text = f"""
    g (float[{len(x)}] x{given}) => (float[{size}] y) {constant}
        {{ y = Resize <{attributes}> (x, "", "", s) }}
    """
    sizes = {} if known else {"s": np.array([len(want)])}
    gives(text, [np.array(want, np.float32)], x=np.array(x, np.float32), **sizes)
