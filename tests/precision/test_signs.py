"""Products of bytes with magnitudes and signs of constants apart: exact, and where they are."""

from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pytest

from rutc.base.record import record
from rutc.graph_opt import optimize, pipeline_for
from rutc.graph_opt.alternatives import DIRECT, Assigned
from rutc.graph_opt.alternatives.choices import offers, with_algorithms
from rutc.graph_opt.alternatives.signs import SAID, SAID_OF_ROWS, Signed, TakeSigns
from rutc.graph_opt.alternatives.ways import Way
from rutc.graph_opt.decide import decide
from rutc.graph_opt.rewrite import Pass
from rutc.tensor_ir import DType, Graph, Nest
from rutc.tensor_ir.facts.products import factors_of, fours_are_small, magnitudes, small_factors
from rutc.tensor_ir.kernel import Small
from rutc.tensor_ir.machine import QUAD, Machine
from rutc.tensor_ir.textual.parse import parse
from tests import byte_products
from tests.byte_products import MACHINES, VNNI, with_rule, with_weights, without_sums
from tests.lock.texts import TARGETS
from tests.machines import V3, V4
from tests.precision.test_narrow_products import CONVOLUTION, PRODUCT, extreme

pytestmark = pytest.mark.sampled(8)


RUN_ZERO = """
graph "product"
dims m = {m}, n = {n}, k = {k}
%x : u8{{k,m}} = input "x" [m, k]
%z : u8{{}} = input "z" []
%w : i8{{k,n}} = input "w" [k, n]
%p : i32{{k,m}} = i32(%x[k, m]) - i32(%z[])
%y : i32{{m,n}} = sum{{k}} %p[k, m] * i32(%w[k, n])
output "y" [m, n] = %y
"""


@record
class TakeThese(TakeSigns):
    """The rule with one of its algorithms alone."""

    algorithm: str = SAID

    def may_choose(self, way: Way[Signed]) -> bool:
        """Whether it is that one."""
        return way.offer.algorithm == self.algorithm


def always(machine: Machine, algorithm: str) -> tuple[Pass, ...]:
    """The pipeline that takes such signs apart, however little it saves, and no remainders."""
    pipeline = pipeline_for(machine, assigned=Assigned())
    return with_rule(pipeline, TakeThese(inf, -inf, machine, algorithm=algorithm))


def apart(graph: Graph) -> str | None:
    """Which signs are apart in a graph, if any."""
    found = [v for v in graph.values if v.endswith(".signs")]
    if not found:
        return None
    return SAID if all(v in graph.constants for v in found) else SAID_OF_ROWS


def signed(graph: Graph) -> bool:
    """Whether signs are apart in a graph."""
    return apart(graph) is not None


def check(graph: Graph, w: np.ndarray, machine: Machine, folder: Path, algorithm: str) -> None:
    """Compile and run the graph with extreme inputs, signs of a factor apart."""
    found = optimize(with_weights(graph, w), pipeline=always(machine, algorithm))
    assert apart(found) == algorithm
    byte_products.check(graph, w, found, machine, folder)


def extremes(shape: tuple[int, ...], dtype: DType, seed: int) -> np.ndarray:
    """Weights with the largest sums there are: pairs that are least, greatest, and of both."""
    w = extreme(shape, dtype.numpy, seed)
    info = np.iinfo(w.dtype)
    w[:2, 0], w[:2, -1] = info.min, info.max
    return w


@pytest.fixture(params=[SAID, SAID_OF_ROWS])
def algorithm(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=list(MACHINES))
def machine(request: pytest.FixtureRequest) -> Machine:
    return without_sums(request.param)


@pytest.mark.parametrize(("a", "b"), [("u8", "i8"), ("i8", "u8"), ("i8", "i8"), ("u8", "u8")])
@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 2, 2), (3, 5, 7), (17, 40, 31), (33, 48, 66), (5, 70, 129), (12, 16, 64)]
)
def test_products(
    a: str, b: str, m: int, n: int, k: int, machine: Machine, algorithm: str, tmp_path: Path
) -> None:
    zero, other = (0, 3, -7)[m % 3], 128 if b == "u8" else 0
    graph = parse(PRODUCT.format(m=m, n=n, k=k, a=a, b=b, zero=zero, other=other))
    check(graph, extremes((k, n), DType(b), m), machine, tmp_path, algorithm)


@pytest.mark.parametrize("depth", [5, 8, 29, 64])
def test_magnitudes_in_fours(depth: int, machine: Machine, tmp_path: Path) -> None:
    """Two sums of two products are as large as 16 bits hold."""
    graph = parse(PRODUCT.format(m=9, n=33, k=depth, a="u8", b="i8", zero=3, other=0))
    row = np.tile([128, 32, 63, 127, 96, 0, 60, 6], depth)[:depth]
    drawn = np.random.default_rng(depth).choice([-1, 1], (depth, 33))
    drawn[:, 0] = -1
    w = np.clip(row[:, None] * drawn, -128, 127).astype(np.int8)
    assert fours_are_small(np.abs(w.astype(np.int16)).astype(np.uint8), 0)
    check(graph, w, machine, tmp_path, SAID)


@pytest.mark.parametrize(("m", "n", "k"), [(3, 5, 7), (33, 48, 66)])
def test_zero_points_that_a_run_tells(
    m: int, n: int, k: int, machine: Machine, algorithm: str, tmp_path: Path
) -> None:
    graph = parse(RUN_ZERO.format(m=m, n=n, k=k))
    check(graph, extremes((k, n), DType.I8, m), machine, tmp_path, algorithm)


@pytest.mark.parametrize("given", ["u8", "i8"])
@pytest.mark.parametrize(("c", "o", "s"), [(34, 20, 2), (16, 32, 1), (5, 16, 2)])
def test_convolutions_that_read_outside(
    given: str, c: int, o: int, s: int, machine: Machine, algorithm: str, tmp_path: Path
) -> None:
    text = CONVOLUTION.format(c=c, o=o, i=9, y=(9 - 1) // s + 1, s=s, w="%q[c, kx, ky, o]")
    graph = parse(text.replace("x : u8", f"x : {given}"))
    w = extremes((o, c, 3, 3), DType.I8, s)
    filters = with_algorithms(with_weights(graph, w), machine, DIRECT)
    if any(".points" in v for v in filters.values):
        pytest.skip("filters take fewer products")
    check(graph, w, machine, tmp_path, algorithm)


@pytest.mark.parametrize(
    ("machine", "wanted"), [(V3, True), (V4, True), (VNNI, False), (TARGETS["amx"], False)]
)
def test_signs_are_apart_where_instructions_take_small_bytes_only(
    machine: Machine, *, wanted: bool
) -> None:
    text = PRODUCT.format(m=128, n=384, k=384, a="u8", b="i8", zero=3, other=0)
    graph = with_weights(parse(text), extremes((384, 384), DType.I8, 0))
    assert signed(optimize(graph, pipeline=pipeline_for(machine))) is wanted


@pytest.mark.parametrize(
    ("machine", "rows", "wanted"),
    [
        (V3, 1, SAID_OF_ROWS),
        (V3, 8, SAID),
        # To read the constant once takes as long as to multiply it in pairs.
        (V4, 1, None),
        (V4, 2, SAID_OF_ROWS),
        (V4, 8, SAID),
    ],
)
def test_constants_of_few_rows_are_read_once(
    machine: Machine, rows: int, wanted: str | None
) -> None:
    """Their signs are as many bytes again, which take longer to read than to multiply."""
    text = PRODUCT.format(m=rows, n=1024, k=256, a="u8", b="i8", zero=3, other=0)
    graph = with_weights(parse(text), extremes((256, 1024), DType.I8, 0))
    assert apart(optimize(graph, pipeline=pipeline_for(machine))) == wanted


@pytest.mark.parametrize(
    ("rows", "deep", "wanted"),
    [
        (1, 512, SAID_OF_ROWS),
        (3, 512, SAID),
        (1, 768, SAID_OF_ROWS),
        (1, 2048, SAID_OF_ROWS),
        (4, 1024, SAID),
        (4, 2048, SAID),
    ],
)
def test_what_half_of_the_second_cache_does_not_keep_is_read_once(
    rows: int, deep: int, wanted: str
) -> None:
    """The last cache gives it at half the rate."""
    near = replace(V3, l2=1 << 20, l2_bytes_per_cycle=2 * V3.l3_bytes_per_cycle)
    text = PRODUCT.format(m=rows, n=deep, k=deep, a="u8", b="i8", zero=3, other=0)
    graph = with_weights(parse(text), extremes((deep, deep), DType.I8, 0))
    assert apart(optimize(graph, pipeline=pipeline_for(near))) == wanted


def test_magnitudes_are_multiplied_four_at_a_time() -> None:
    text = PRODUCT.format(m=128, n=384, k=384, a="u8", b="i8", zero=3, other=0)
    graph = with_weights(parse(text), extremes((384, 384), DType.I8, 0))
    found = optimize(graph, pipeline=pipeline_for(V3))
    (total,) = (n for n in found.nodes if isinstance(n, Nest) and n.reducer is not None)
    factors = factors_of(total.reducer, total.body)
    assert factors is not None
    assert [f.dtype for f in factors] == [DType.I8, DType.U8]
    constants = {n.out.name: n for n in found.nodes if hasattr(n, "data")}
    small = small_factors([total], constants)
    assert small == {"w.sizes": Small(any_two=True)}
    assert V3.products(DType.I8, DType.U8, small=True) == QUAD


def test_sums_have_signs_apart_that_are_assigned_so() -> None:
    text = PRODUCT.format(m=4, n=8, k=8, a="u8", b="i8", zero=3, other=0)
    graph = with_weights(parse(text), extremes((8, 8), DType.I8, 0))
    assert not signed(optimize(graph, pipeline=pipeline_for(V3)))
    found = [o for o in offers(graph, V3, DIRECT) if o.algorithm in (SAID, SAID_OF_ROWS)]
    assert [o.algorithm for o in found] == [SAID, SAID_OF_ROWS]
    for offer in found:
        assert offer.value == "y"
        assert offer.cost >= offer.direct
        assert apart(with_algorithms(graph, V3, Assigned((("y", offer.algorithm),)))) == (
            offer.algorithm
        )
    assert not signed(with_algorithms(graph, V3, DIRECT))


IMAGE = """
graph "one by one"
dims c = 256, o = 64, y = 56, x = 56
%q : u8{c,x,y} = input "q" [c, y, x]
%w : i8{c,o} = input "w" [o, c]
%t : i32{o,x,y} = sum{c} i32(%q[c, x, y]) * i32(%w[c, o])
output "t" [o, y, x] = %t
"""


def test_what_is_multiplied_together_lies_side_by_side() -> None:
    """In planes of an image it does not: they are copied, and lanes go along the constant."""
    graph = with_weights(parse(IMAGE), extremes((64, 256), DType.I8, 0))
    assignment = decide(optimize(graph, pipeline=pipeline_for(V3)), V3).assignment
    (copy,) = assignment.copies
    arrangement = dict(assignment.arrangements)[copy.name]
    assert (copy.value, arrangement.order[-1]) == ("q", "c")


@pytest.mark.parametrize(
    ("body", "known"),
    [
        ("u8(abs(i32(%q[m, k]) - 128))", True),
        ("u8(abs(i32(%s[m, k])))", True),
        ("u8(abs(i32(%q[m, k]) - 127))", True),
        ("u8(abs(i32(%q[m, k]) - 126))", False),
        ("u8(abs(i32(%q[m, k])))", False),
        ("u8(i32(%q[m, k]) - 128)", False),
        ("%q[m, k]", False),
    ],
)
def test_magnitudes_are_known_by_what_they_are_computed_from(body: str, *, known: bool) -> None:
    text = f"""
        graph "sizes"
        dims m = 3, k = 8
        %q : u8{{k,m}} = input "q" [m, k]
        %s : i8{{k,m}} = input "s" [m, k]
        %y : u8{{k,m}} = {body}
        output "y" [m, k] = %y
        """
    assert ("y" in magnitudes(parse(text))) is known
