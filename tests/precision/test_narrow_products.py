"""Sums of products of 8-bit integers through libraries: exact for all signs, extremes, sizes."""

from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pytest

from rutc.driver.parts.build import Builder
from rutc.graph_opt import PIPELINE, optimize, pipeline_for
from rutc.graph_opt.alternatives import DIRECT
from rutc.graph_opt.decide import decide
from rutc.graph_opt.rules.filter_whole import FilterWhole
from rutc.tensor_ir import Const, Data, DType, Graph, Nest
from rutc.tensor_ir.expr import reads
from rutc.tensor_ir.facts.products import fours_are_small, small_factors
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.tensor_ir.kernel import Small
from rutc.tensor_ir.machine import PAIR, Machine
from rutc.tensor_ir.textual.parse import parse
from tests.compiled import build, run
from tests.machines import NATIVE, TILES, TILES_V3, V3, V4, lacking

pytestmark = pytest.mark.sampled(6)

MACHINES = {
    "v3": V3,
    "v4": V4,
    "vnni": replace(V4, features=V4.features | {"avx512vnni"}),
    "tiles": TILES_V3,
    "native": NATIVE,
}

PRODUCT = """
graph "product"
dims m = {m}, n = {n}, k = {k}
%x : {a}{{m,k}} = input "x" [m, k]
%w : {b}{{n,k}} = input "w" [k, n]
%p : i32{{k,m}} = i32(%x[m, k]) - {zero}
%q : i32{{k,n}} = i32(%w[n, k]) - {other}
%y : i32{{m,n}} = sum{{k}} %p[k, m] * %q[k, n]
output "y" [m, n] = %y
"""
SIGNS = [("u8", "i8"), ("i8", "u8"), ("i8", "i8"), ("u8", "u8")]
SIZES = [(1, 1, 1), (3, 5, 7), (1, 64, 33), (17, 16, 31), (33, 48, 66), (5, 40, 4), (2, 3, 130)]


def extreme(shape: tuple[int, ...], dtype: np.dtype, seed: int) -> np.ndarray:
    """Random integers of which a third are the least and a third the greatest."""
    rng = np.random.default_rng(seed)
    info = np.iinfo(dtype)
    choices = (rng.integers(info.min, info.max + 1, shape), info.min, info.max)
    return np.choose(rng.integers(0, 3, shape), np.broadcast_arrays(*choices)).astype(dtype)


def check(graph: Graph, machine: Machine, folder: Path, constants: tuple[str, ...] = ()) -> None:
    """Compile and run the graph with extreme inputs, some of them as constants."""
    arrays = {
        n.name: extreme(tuple(graph.extents[d].value for d in n.axes), n.out.dtype.numpy, seed)
        for seed, n in enumerate(graph.inputs)
    }
    check_with(graph, arrays, machine, folder, constants)


def check_with(
    graph: Graph,
    arrays: dict[str, np.ndarray],
    machine: Machine,
    folder: Path,
    constants: tuple[str, ...],
) -> None:
    """Compile and run the graph with inputs, of which some become constants."""
    wanted = interpret(graph, arrays)
    nodes = tuple(
        Const(n.out, n.axes, Data(arrays.pop(n.name)))
        if getattr(n, "name", None) in constants
        else n
        for n in graph.nodes
    )
    graph = replace(graph, nodes=nodes)
    plans = [
        decide(optimize(graph, pipeline=p), machine) for p in (PIPELINE, pipeline_for(machine))
    ]
    # As they are, and in 16 bits where the machine multiplies pairs of those.
    for plan in plans[plans[0] == plans[1] :]:
        got = run(build(plan, machine, folder), arrays, 1)
        for name, array in wanted.items():
            np.testing.assert_array_equal(got[name], array, err_msg=name)


@pytest.fixture(params=list(MACHINES))
def machine(request: pytest.FixtureRequest) -> Machine:
    machine = MACHINES[request.param]
    if lacking(machine):
        pytest.skip(lacking(machine))
    return machine


@pytest.mark.parametrize(("a", "b"), SIGNS)
@pytest.mark.parametrize("constants", [(), ("w",), ("x",)], ids=["inputs", "w", "x"])
def test_products(
    a: str, b: str, constants: tuple[str, ...], machine: Machine, tmp_path: Path
) -> None:
    # Three sizes for every kind of product, all of them for one machine and order of operands.
    first = SIGNS.index((a, b)) + len(constants) + len(machine.features)
    for number in range(first, first + 3):
        m, n, k = SIZES[number % len(SIZES)]
        zero, other = ((0, 0), (3, 0), (0, -7), (-128, 127))[number % 4]
        text = PRODUCT.format(m=m, n=n, k=k, a=a, b=b, zero=zero, other=other)
        check(parse(text), machine, tmp_path, constants)


@pytest.mark.parametrize("columns", [2, 7, 10, 12, 26])
@pytest.mark.parametrize(("rows", "depth"), [(33, 64), (100, 96)])
def test_blocks_of_few_columns(rows: int, depth: int, columns: int, tmp_path: Path) -> None:
    """Registers for matrices have as many columns as there are."""
    graph = parse(PRODUCT.format(m=rows, n=columns, k=depth, a="u8", b="i8", zero=5, other=0))
    w = Data(extreme((depth, columns), np.dtype(np.int8), 1))
    nodes = tuple(
        Const(n.out, n.axes, w) if getattr(n, "name", None) == "w" else n for n in graph.nodes
    )
    plan = decide(optimize(replace(graph, nodes=nodes), pipeline=pipeline_for(TILES)), TILES)
    builder = Builder(plan, TILES, "model", 1, keep_subnormals=False, code=False)
    kernels: list[str] = []
    builder.on_draft = lambda pending, made, draft: kernels.append(str(draft.kernel))
    builder.build()
    assert any(f" in [0, {min(columns, 16)}) matrix {{" in kernel for kernel in kernels)
    if not lacking(TILES_V3):
        check(graph, TILES_V3, tmp_path, ("w",))


@pytest.mark.parametrize(
    ("kinds", "zeros", "columns", "shifted"),
    [
        (("i8", "i8"), (3, 0), 9, True),
        (("u8", "u8"), (3, 0), 9, True),
        (("u8", "u8"), (3, 128), 9, True),
        (("i8", "i8"), (0, 5), 9, False),
        (("i8", "i8"), (0, 5), 35, True),
        (("u8", "u8"), (3, 122), 9, False),
        (("u8", "u8"), (3, 122), 35, True),
        (("u8", "i8"), (3, 5), 35, False),
    ],
)
def test_factors_of_one_sign_are_shifted_where_others_are_multiplied_faster(
    kinds: tuple[str, str], zeros: tuple[int, int], columns: int, shifted: bool, tmp_path: Path
) -> None:
    """Where the shift leaves a zero point, sums of the other factor need many columns."""
    machine = MACHINES["vnni"]
    a, b = kinds
    text = PRODUCT.format(m=9, n=columns, k=50, a=a, b=b, zero=zeros[0], other=zeros[1])
    graph = parse(text)
    w = extreme((50, columns), np.dtype(np.int8 if kinds[1] == "i8" else np.uint8), 1)
    nodes = tuple(
        Const(n.out, n.axes, Data(w)) if getattr(n, "name", None) == "w" else n for n in graph.nodes
    )
    found = optimize(replace(graph, nodes=nodes), pipeline=pipeline_for(machine))
    assert any("shifted" in v for v in found.values) is shifted
    if not lacking(machine):
        check(graph, machine, tmp_path, ("w",))


def test_products_of_an_operand_that_lies_across(machine: Machine, tmp_path: Path) -> None:
    text = PRODUCT.format(m=37, n=70, k=67, a="u8", b="i8", zero=5, other=0)
    check(parse(text.replace("[m, k]\n", "[k, m]\n")), machine, tmp_path, ("w",))


def test_sums_wrap(machine: Machine, tmp_path: Path) -> None:
    k = 140_001
    text = PRODUCT.format(m=2, n=17, k=k, a="i8", b="i8", zero=127, other=127)
    x, w = np.full((2, k), -128, np.int8), np.full((k, 17), -128, np.int8)
    graph = parse(text)
    total = (255 * 255 * k + (1 << 31)) % (1 << 32) - (1 << 31)
    for pipeline in (PIPELINE, pipeline_for(machine)):
        plan = decide(optimize(graph, pipeline=pipeline), NATIVE)
        got = run(build(plan, machine, tmp_path), {"x": x, "w": w}, 1)
        np.testing.assert_array_equal(got["y"], np.full((2, 17), total, np.int32))


def small(shape: tuple[int, ...], dtype: np.dtype, seed: int) -> np.ndarray:
    """Numbers of magnitudes up to 64, most of them 64: of u8, less 128."""
    rng = np.random.default_rng(seed)
    found = np.choose(rng.integers(0, 3, shape), (rng.integers(-64, 65, shape), -64, 64))
    return (found + (128 if dtype.kind == "u" else 0)).astype(dtype)


@pytest.mark.parametrize(("a", "b"), SIGNS)
@pytest.mark.parametrize("first", [0, 3])
def test_small_factors(a: str, b: str, first: int, machine: Machine, tmp_path: Path) -> None:
    for number in range(first, first + 4):
        m, n, k = SIZES[number % len(SIZES)]
        zero, other = (0, 3, -7)[number % 3], 128 if b == "u8" else 0
        graph = parse(PRODUCT.format(m=m, n=n, k=k, a=a, b=b, zero=zero, other=other))
        x, w = np.dtype(DType(a).numpy), np.dtype(DType(b).numpy)
        arrays = {"x": extreme((m, k), x, number), "w": small((k, n), w, number)}
        # A largest pair of products among them: both elements are as far from 0 as they may be.
        arrays["x"][:, :2], arrays["w"][:2, :1] = np.iinfo(x).max, 64 + other
        check_with(graph, arrays, machine, tmp_path, ("w",))


def small_in_fours(depth: int, columns: int, seed: int) -> np.ndarray:
    """Factors of which pairs 4i and 4i + 2, and 4i + 1 and 4i + 3, are as large as they may be."""
    w = np.full((-(-depth // 8) * 8, columns), 32, np.int8)
    w[:, 0] = np.tile([64, 64, 128 - 1, 1, 0, 0, 0, 0], len(w) // 8)
    w[:, -1] = -np.tile([0, 100, 31, 30, 28, 0, 33, 34], len(w) // 8)
    w[:, 1:-1] *= np.random.default_rng(seed).choice(np.array([-1, 1], np.int8), w[:, 1:-1].shape)
    return w[:depth]


@pytest.mark.parametrize("depth", [3, 4, 5, 8, 12, 15, 64, 130])
def test_pairs_of_pairs_with_small_factors_stay_in_16_bits(
    depth: int, machine: Machine, tmp_path: Path
) -> None:
    graph = parse(PRODUCT.format(m=9, n=33, k=depth, a="u8", b="i8", zero=3, other=0))
    x = extreme((9, depth), np.dtype(np.uint8), 0)
    x[:2] = [[0], [255]]
    arrays = {"x": x, "w": small_in_fours(depth, 33, 1)}
    check_with(graph, arrays, machine, tmp_path, ("w",))


def test_fours_without_a_sign_add_up_to_twice_as_much() -> None:
    w = np.full((16, 3), 64, np.uint8)
    assert fours_are_small(w, 0)
    assert not fours_are_small(w.astype(np.int8), 0)
    w[5, 1] = 65
    assert not fours_are_small(w, 0)


@pytest.mark.parametrize(
    ("at", "value", "together"), [(0, 0, True), (0, 65, False), (5, 1, False), (-1, 0, True)]
)
def test_factors_that_are_small_in_fours_are_found(at: int, value: int, *, together: bool) -> None:
    w = small_in_fours(16, 8, 0)
    w[at, 0] = value
    assert fours_are_small(w, 0) is together
    assert fours_are_small(w[:15].T, 1) is (together or at == -1)


@pytest.mark.parametrize(("given", "s"), [("u8", 2), ("i8", 2), ("u8", 1)])
def test_convolutions_with_small_factors(
    given: str, s: int, machine: Machine, tmp_path: Path
) -> None:
    text = CONVOLUTION.format(c=10, o=19, i=9, y=(9 - 1) // s + 1, s=s, w="%q[c, kx, ky, o]")
    graph = parse(text.replace("x : u8", f"x : {given}"))
    x = extreme((2, 10, 9, 9), np.dtype(DType(given).numpy), 0)
    w = small((19, 10, 3, 3), np.dtype(np.int8), 1)
    check_with(graph, {"x": x, "w": w}, machine, tmp_path, ("w",))


@pytest.mark.parametrize(
    ("pair", "small"),
    [
        ((64, 64), Small(any_two=True)),
        ((65, -64), Small(pairs=("k",))),
        ((1, 127), Small(pairs=("k",))),
        ((65, 64), None),
        ((2, 127), None),
    ],
)
def test_pairs_of_products_with_small_factors_stay_in_16_bits(
    pair: tuple[int, int], small: Small | None
) -> None:
    graph = parse(PRODUCT.format(m=40, n=48, k=64, a="u8", b="i8", zero=3, other=0))
    w = np.full((64, 48), -64, np.int8)
    w[4:6, 7] = pair
    nodes = tuple(
        Const(n.out, n.axes, Data(w)) if getattr(n, "name", None) == "w" else n for n in graph.nodes
    )
    found = optimize(replace(graph, nodes=nodes), pipeline=pipeline_for(V3))
    constants = {n.out.name: n for n in found.nodes if isinstance(n, Const)}
    nests = [n for n in found.nodes if isinstance(n, Nest)]
    # Of others, signs are taken apart: any two magnitudes are small.
    sizes = {"w.sizes": Small(any_two=True)}
    assert small_factors(nests, constants) == ({"w": small} if small else sizes)


SPLIT = """
graph "a row of heads"
dims m = 40, n = 48, k = 96, h = 3, d = 32
%c : u8{d,h,m} = input "c" [h, m, d]
%w : i8{k,n} = input "w" [k, n]
%q : u8{k,m} = max(%c[d=k % 32, h=k // 32, m], 3)
%y : i32{m,n} = sum{k} i32(%q[k, m]) * i32(%w[k, n])
output "y" [m, n] = %y
"""


def test_pairs_of_small_factors_are_found_where_a_sum_is_split(tmp_path: Path) -> None:
    graph = parse(SPLIT)
    w = small((96, 48), np.dtype(np.int8), 0)
    w[::2], w[1::2] = 127, -128
    nodes = tuple(
        Const(n.out, n.axes, Data(w)) if getattr(n, "name", None) == "w" else n for n in graph.nodes
    )
    found = optimize(replace(graph, nodes=nodes), pipeline=pipeline_for(V3))
    constants = {n.out.name: n for n in found.nodes if isinstance(n, Const)}
    nests = [n for n in found.nodes if isinstance(n, Nest)]
    assert list(small_factors(nests, constants).values()) == [Small(pairs=("d",))]
    arrays = {"c": extreme((3, 40, 32), np.dtype(np.uint8), 1), "w": w}
    if not lacking(V3):
        check_with(graph, arrays, V3, tmp_path, ("w",))


PAIRS = """
graph "pairs"
dims m = {m}, n = 19, k = {k}
%x : i16{{k,m}} = input "x" [m, k]
%w : {b}{{k,n}} = input "w" [k, n]
%y : i32{{m,n}} = sum{{k}} i32(%x[k, m]) * i32(%w[k, n])
output "y" [m, n] = %y
"""


@pytest.mark.parametrize("b", ["i16", "i8", "u8"])
@pytest.mark.parametrize(("m", "k"), [(1, 1), (2, 7), (13, 66)])
def test_products_of_16_bits(b: str, m: int, k: int, machine: Machine, tmp_path: Path) -> None:
    # Two products of the least i16 make the one sum of a pair that wraps.
    check(parse(PAIRS.format(b=b, m=m, k=k)), machine, tmp_path, ("w",))
    least = {n: np.full(s, np.iinfo(np.int16).min) for n, s in (("x", (m, k)), ("w", (k, 19)))}
    least = {n: a.astype(np.int16) for n, a in least.items()}
    check_with(parse(PAIRS.format(b="i16", m=m, k=k)), least, machine, tmp_path, ())


CONVOLUTION = """
graph "convolution"
dims n = 2, c = {c}, o = {o}, i = {i}, j = {i}, y = {y}, x = {y}, ky = 3, kx = 3
%x : u8{{c,i,j,n}} = input "x" [n, c, i, j]
%w : i8{{c,kx,ky,o}} = input "w" [o, c, ky, kx]
%p : i32{{c,i,j,n}} = i32(%x[c, i, j, n]) - 9
%q : i32{{c,kx,ky,o}} = i32(%w[c, kx, ky, o])
%t : i32{{n,o,x,y}} = sum{{c,ky,kx}} %p[c, i={s}*y + ky - 1, j={s}*x + kx - 1, n else 0] * {w}
output "t" [n, o, y, x] = %t
"""


@pytest.mark.parametrize(("c", "o", "i", "s"), [(3, 16, 7, 1), (8, 5, 9, 2), (20, 33, 11, 1)])
def test_convolutions(c: int, o: int, i: int, s: int, machine: Machine, tmp_path: Path) -> None:
    w = "%q[c, kx, ky, o]"
    text = CONVOLUTION.format(c=c, o=o, i=i, y=(i - 1) // s + 1, s=s, w=w)
    check(parse(text), machine, tmp_path, ("w",))


@pytest.mark.parametrize(("c", "o", "i", "s"), [(3, 16, 7, 1), (8, 5, 9, 2), (20, 33, 11, 1)])
@pytest.mark.parametrize("zero", [0, 9, 255])
def test_convolutions_of_an_unknown_zero_point(
    c: int, o: int, i: int, s: int, zero: int, machine: Machine, tmp_path: Path
) -> None:
    """What a window reads outside of its operand is the zero point, which the run tells."""
    text = CONVOLUTION.format(c=c, o=o, i=i, y=(i - 1) // s + 1, s=s, w="%q[c, kx, ky, o]")
    text = text.replace("%w :", '%z : u8{} = input "z" []\n%w :', 1)
    graph = parse(text.replace("i32(%x[c, i, j, n]) - 9", "i32(%x[c, i, j, n]) - i32(%z)"))
    found = optimize(graph, pipeline=pipeline_for(machine))
    sums = [n for n in found.nodes if isinstance(n, Nest) and n.reducer is not None]
    assert all(r.dtype.bits < 32 for n in sums for r in reads(n.body[0]) if len(n.bound) > 1)
    arrays = {
        "x": extreme((2, c, i, i), np.dtype(np.uint8), 1),
        "z": np.array(zero, np.uint8),
        "w": extreme((o, c, 3, 3), np.dtype(np.int8), 2),
    }
    check_with(graph, arrays, machine, tmp_path, ("w",))


@pytest.mark.parametrize(
    ("i", "y", "s"), [(7, 7, 1), (10, 9, 1), (3, 1, 1), (7, 4, 2), (10, 5, 2), (5, 3, 2), (3, 1, 2)]
)
@pytest.mark.parametrize("c", [2, 5])
def test_filters_of_integers_are_exact(i: int, y: int, s: int, c: int) -> None:
    text = CONVOLUTION.format(c=c, o=3, i=i, y=y, s=s, w="%q[c, kx, ky, o]")
    graph = parse(text)
    arrays = {
        n.name: extreme(tuple(graph.extents[d].value for d in n.axes), n.out.dtype.numpy, seed)
        for seed, n in enumerate(graph.inputs)
    }
    wanted = interpret(graph, arrays)
    w = arrays.pop("w")
    nodes = tuple(
        Const(n.out, n.axes, Data(w)) if getattr(n, "name", None) == "w" else n for n in graph.nodes
    )
    steps = [
        replace(
            step,
            rules=tuple(FilterWhole(inf, -inf) if isinstance(r, FilterWhole) else r for r in rules),
        )
        if (rules := getattr(step, "rules", None))
        else step
        for step in pipeline_for(V3, assigned=DIRECT)
    ]
    found = optimize(replace(graph, nodes=nodes), pipeline=tuple(steps))
    assert any(v.endswith(".points") for v in found.values)
    np.testing.assert_array_equal(interpret(found, arrays)["t"], wanted["t"])


@pytest.mark.parametrize(("s", "y", "c", "o"), [(1, 22, 48, 50), (2, 12, 128, 130)])
@pytest.mark.parametrize("name", ["v3", "native"])
def test_filters_of_integers_through_libraries(
    name: str, s: int, y: int, c: int, o: int, tmp_path: Path
) -> None:
    machine = MACHINES[name].without_matrices()
    if lacking(machine):
        pytest.skip(lacking(machine))
    text = CONVOLUTION.format(c=c, o=o, i=23, y=y, s=s, w="%q[c, kx, ky, o]")
    text = text.replace("x : u8", "x : i8")
    graph = parse(text)
    if machine.products(DType.U8, DType.I8) == PAIR:
        nodes = tuple(
            Const(n.out, n.axes, Data(extreme((o, c, 3, 3), np.dtype(np.int8), 0)))
            if getattr(n, "name", None) == "w"
            else n
            for n in graph.nodes
        )
        found = optimize(replace(graph, nodes=nodes), pipeline=pipeline_for(machine))
        assert any(v.endswith(".points") for v in found.values)
    check(graph, machine, tmp_path, ("w",))


def test_depthwise_convolutions(machine: Machine, tmp_path: Path) -> None:
    text = CONVOLUTION.format(c=1, o=12, i=9, y=9, s=1, w="%q[c, kx, ky, o]")
    text = text.replace(
        '%x : u8{c,i,j,n} = input "x" [n, c, i, j]', '%x : u8{i,j,n,o} = input "x" [n, o, i, j]'
    )
    text = text.replace(
        "%p : i32{c,i,j,n} = i32(%x[c, i, j, n])", "%p : i32{i,j,n,o} = i32(%x[i, j, n, o])"
    )
    text = text.replace(
        "%p[c, i=1*y + ky - 1, j=1*x + kx - 1, n else 0]",
        "%p[i=y + ky - 1, j=x + kx - 1, n, o else 0]",
    )
    check(parse(text), machine, tmp_path, ("w",))


PACKED = """
graph "4-bit weights"
dims m = {m}, n = 601, g = 3, k = 96
%x : f32{{k,m}} = input "x" [m, k]
%w : u4{{k,n}} = input "w" [k, n]
%s : f32{{g,n}} = input "s" [g, n]
%b : f32{{k,n}} = (f32(%w[k, n]) - 8.0) * %s[g=k // 32, n]
%y : f32{{m,n}} = sum{{k}} %x[k, m] * %b[k, n]
output "y" [m, n] = %y
"""


@pytest.mark.parametrize("m", [1, 2, 33, 40])
def test_products_of_packed_weights(m: int, machine: Machine, tmp_path: Path) -> None:
    graph = parse(PACKED.format(m=m))
    rng = np.random.default_rng(m)
    arrays = {
        n.name: rng.integers(0, 9, [graph.extents[d].value for d in n.axes]).astype(
            n.out.dtype.numpy
        )
        for n in graph.inputs
    }
    check_with(graph, arrays, machine, tmp_path, ("w", "s"))


QUANTISED = """
graph "quantised"
dims m = 9, n = 21, k = 50
%x : u8{k,m} = input "x" [m, k]
%w : i8{k,n} = input "w" [k, n]
%s : f32{n} = const [n] [{scales}]
%a : f32{k,m} = f32(i32(%x[k, m]) - 100) * 0.5
%b : f32{k,n} = f32(%w[k, n]) * %s[n]
%y : f32{m,n} = sum{k} %a[k, m] * %b[k, n]
output "y" [m, n] = %y
"""


def test_real_products_of_quantised_operands_are_exact(machine: Machine, tmp_path: Path) -> None:
    scales = ", ".join(str(2.0 ** (i % 5 - 2)) for i in range(21))
    check(parse(QUANTISED.replace("{scales}", scales)), machine, tmp_path, ("w",))
