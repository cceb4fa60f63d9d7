"""Each rule that declares to round errs little more than the model's own order does."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rutc.graph_opt.pipeline import optimize
from rutc.graph_opt.rewrite import Sweep, rule_name
from rutc.graph_opt.rules.algebra import simplify_expressions
from rutc.graph_opt.rules.nan_rows import LeaveNaNToSum
from rutc.graph_opt.rules.narrow import drop_requantised, sum_integers
from rutc.graph_opt.rules.narrow_sums import sum_bytes
from rutc.graph_opt.rules.normalize import (
    MultiplyByReciprocal,
    OnePassMoments,
    OnePassSoftmax,
    divide_later,
)
from rutc.graph_opt.rules.requantise import quantise_by_factors
from rutc.graph_opt.rules.scale import join_weights
from rutc.tensor_ir import Graph, Nest
from rutc.tensor_ir.expr import reads
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.tensor_ir.machine import COMMON
from rutc.tensor_ir.textual.parse import parse
from rutc.tensor_ir.verifier import verify
from tests.examples import examples
from tests.graph_opt.truth import assert_as_close, root_mean_square, truth
from tests.machines import V3

SOFTMAX = """
    graph "attention"
    dims b = 5, i = 48, k = 8
    %x : f32{b,i} = input "x" [b, i]
    %v : f32{i,k} = input "v" [i, k]
    %m : f32{b} = max{i} %x[b, i]
    %e : f32{b,i} = exp(%x[b, i] - %m[b])
    %z : f32{b} = sum{i} %e[b, i]
    %p : f32{b,i} = %e[b, i] / %z[b]
"""
PROBABILITIES = SOFTMAX + 'output "p" [b, i] = %p'
ATTENTION = SOFTMAX + '%y : f32{b,k} = sum{i} %p[b, i] * %v[i, k]\noutput "y" [b, k] = %y'
MOMENTS = """
    graph "moments"
    dims b = 3, i = 4096
    %x : f32{b,i} = input "x" [b, i]
    %s : f32{b} = sum{i} %x[b, i]
    %m : f32{b} = %s[b] * 0.000244140625
    %c : f32{b,i} = %x[b, i] - %m[b]
    %q : f32{b} = sum{i} %c[b, i] * %c[b, i]
    %v : f32{b} = %q[b] * 0.000244140625
    %y : f32{b,i} = %c[b, i] / sqrt(%v[b])
    output "v" [b] = %v
    output "y" [b, i] = %y
"""
ONE_PASS = replace(COMMON, l2=0)
"""A machine on which no row is too short for one pass."""
seeds = st.integers(0, 999)
exponents = st.integers(-30, 30)


def graph_of(text: str) -> Graph:
    """The graph of a text."""
    graph = parse("\n".join(line.strip() for line in text.strip().splitlines()))
    verify(graph)
    return graph


def rewritten(graph: Graph, *rules: object) -> Graph:
    """The graph after some rules, of which each applies."""
    for rule in rules:
        after = optimize(graph, pipeline=(Sweep(rule_name(rule), (rule,)),))  # type: ignore[arg-type]
        assert after is not graph, rule
        verify(after)
        graph = after
    return graph


def check(graph: Graph, after: Graph, inputs: dict[str, np.ndarray]) -> None:
    """Asserts that each row of each output errs as little as the model's own order does."""
    own, exact, got = interpret(graph, inputs), truth(graph, inputs), interpret(after, inputs)
    for name in own:
        for a, b, c in zip(got[name], own[name], exact[name], strict=True):
            assert_as_close(*map(np.atleast_1d, (a, b, c)), f"{name}\n{after}", root_mean_square)


@examples(40)
@given(seeds, st.sampled_from([1e-20, 1e-3, 1.0, 30.0, 1e5]), st.floats(-1e6, 1e6), exponents)
def test_rules_for_softmax(seed: int, spread: float, offset: float, exponent: int) -> None:
    rng = np.random.default_rng(seed)
    x = (offset + spread * rng.standard_normal((5, 48))).astype(np.float32)
    x[0, 3], x[1, 5], x[2, :] = np.inf, np.nan, -np.inf
    x[3, :40] = -np.inf
    # The rule gives up as many powers of two at the top as rows have elements.
    v = (rng.standard_normal((48, 8)) * 10.0**exponent).astype(np.float32)
    inputs = {"x": x, "v": v}
    graph = graph_of(PROBABILITIES)
    check(graph, rewritten(graph, MultiplyByReciprocal()), inputs)
    check(graph, rewritten(graph, LeaveNaNToSum(V3)), inputs)
    check(graph, rewritten(graph, MultiplyByReciprocal(), LeaveNaNToSum(V3)), inputs)
    check(graph, rewritten(graph, OnePassSoftmax(ONE_PASS)), inputs)
    graph = graph_of(ATTENTION)
    check(graph, rewritten(graph, divide_later), inputs)
    check(graph, rewritten(graph, divide_later, LeaveNaNToSum(V3)), inputs)


@examples(25)
@given(seeds, exponents, st.sampled_from([0.0, 1.0, 100.0, 1e4, 1e6]), st.booleans())
def test_moments_in_one_pass(seed: int, exponent: int, offset: float, outlier: bool) -> None:
    rng = np.random.default_rng(seed)
    size = 10.0 ** (exponent / 2)
    x = ((offset + rng.standard_normal((3, 4096))) * size).astype(np.float32)
    if outlier:
        x[1, rng.integers(4096)] += np.float32(1000 * size)
    x[2, 7] = np.inf
    graph = graph_of(MOMENTS)
    check(graph, rewritten(graph, OnePassMoments(ONE_PASS)), {"x": x})


@examples(40)
@given(seeds, st.floats(1, 9.9), st.integers(-30, 30), st.integers(0, 255), st.floats(-99, 99))
def test_quantising_by_factors(
    seed: int, digits: float, exponent: int, zero: int, bound: float
) -> None:
    rng = np.random.default_rng(seed)
    step = np.float32(digits * 10.0**exponent)
    scales = (rng.uniform(0.001, 0.1, 4) * step).astype(np.float32)
    biases = (rng.uniform(-50, 50, 4) * step).astype(np.float32)
    real = f"max(f32(%t[m, n] - %c[n]) * %s[n] + %b[n], {np.float32(bound * step)!s})"
    graph = graph_of(f"""
        graph "layer"
        dims m = 32, k = 24, n = 4
        %q : u8{{k,m}} = input "q" [m, k]
        %w : i8{{k,n}} = const [k, n] {rng.integers(-128, 128, (24, 4)).tolist()}
        %c : i32{{n}} = const [n] {rng.integers(-9999, 9999, 4).tolist()}
        %s : f32{{n}} = const [n] {scales.tolist()}
        %b : f32{{n}} = const [n] {biases.tolist()}
        %t : i32{{m,n}} = sum{{k}} i32(%q[k, m]) * i32(%w[k, n])
        %y : u8{{m,n}} = u8(i32(min(max(round({real} / {step!s}) + {zero}.0, 0.0), 255.0)))
        %x : f32{{m,n}} = {real} / {step!s} + {zero}.0
        output "y" [m, n] = %y
        output "x" [m, n] = %x
    """)
    inputs = {"q": rng.integers(0, 256, (32, 24)).astype(np.uint8)}
    after = interpret(rewritten(graph, quantise_by_factors), inputs)
    wanted = np.clip(truth(graph, inputs)["x"], 0, 255)
    off = np.abs(after["y"].astype(np.float64) - wanted)
    # The nearest number, or the other one next to the middle.
    assert off.max() < 0.5 + 2.0**-10


def test_the_middle_between_two_steps_stays_where_whole_numbers_are_shifted() -> None:
    """Sums of 400, 1200, 2000.. are next to it, where f32(t) * s - f32(c * s) is in it."""
    graph = graph_of("""
        graph "layer"
        dims m = 256, k = 2, n = 3
        %q : u8{k,m} = input "q" [m, k]
        %w : i8{k,n} = const [k, n] [[100, 100, 50], [1, 0, 3]]
        %c : i32{n} = const [n] [1007, 3300, 4777]
        %t : i32{m,n} = sum{k} i32(%q[k, m]) * i32(%w[k, n])
        %x : f32{m,n} = f32(%t[m, n] - %c[n]) * 0.0012500001
        %y : u8{m,n} = u8(i32(min(max(round(%x[m, n] / 1.0) + 120.0, 0.0), 255.0)))
        output "y" [m, n] = %y
    """)
    each = np.arange(256)
    inputs = {"q": np.stack([each, each * 7 % 256], axis=1).astype(np.uint8)}
    after = interpret(rewritten(graph, quantise_by_factors), inputs)
    assert np.array_equal(after["y"], interpret(graph, inputs)["y"])


def test_constants_of_many_bytes_are_quantised_as_bytes() -> None:
    """In f32 they are too large to store, and in f64 they are computed anew in every run."""
    rng = np.random.default_rng(0)
    graph = graph_of(f"""
        graph "embedded"
        dims m = 256, n = 300
        %q : u8{{m,n}} = input "q" [m, n]
        %p : u8{{m,n}} = const [m, n] {rng.integers(0, 256, (256, 300)).tolist()}
        %a : f32{{m,n}} = f32(i32(%q[m, n]) - 121) * 0.05
        %b : f32{{m,n}} = f32(i32(%p[m, n]) - 100) * 0.03
        %y : u8{{m,n}} = u8(i32(min(max(round((%a[m, n] + %b[m, n]) / 0.04) + 128.0, 0.0), 255.0)))
        %x : f32{{m,n}} = (%a[m, n] + %b[m, n]) / 0.04 + 128.0
        output "y" [m, n] = %y
        output "x" [m, n] = %x
    """)
    inputs = {"q": rng.integers(0, 256, (256, 300)).astype(np.uint8)}
    after = rewritten(graph, quantise_by_factors)
    made = next(n for n in after.nodes if isinstance(n, Nest) and n.out.name == "y")
    assert {r.value for e in made.body for r in reads(e)} == {"p", "q"}
    wanted = np.clip(truth(graph, inputs)["x"], 0, 255)
    assert np.abs(interpret(after, inputs)["y"] - wanted).max() < 0.5 + 2.0**-10


@examples(40)
@given(seeds, exponents, exponents, exponents)
def test_joined_weights(seed: int, x: int, s: int, w: int) -> None:
    rng = np.random.default_rng(seed)
    scale, weights = (
        (rng.standard_normal(shape) * 10.0**e).astype(np.float32)
        for shape, e in (((12,), s), ((12, 4), w))
    )
    graph = graph_of(f"""
        graph "factors"
        dims c = 12, m = 20, o = 4
        %x : f32{{c,m}} = input "x" [m, c]
        %s : f32{{c}} = const [c] {scale.tolist()}
        %w : f32{{c,o}} = const [c, o] {weights.tolist()}
        %y : f32{{m,o}} = sum{{c}} %x[c, m] * %s[c] * %w[c, o]
        output "y" [m, o] = %y
    """)
    data = (rng.standard_normal((20, 12)) * 10.0**x).astype(np.float32)
    data[0, 0], data[1, 1] = np.inf, np.nan
    check(graph, optimize(graph, pipeline=(Sweep("join", (join_weights,)),)), {"x": data})


@examples(40)
@given(seeds, st.integers(-34, 30), st.integers(-34, 30), st.integers(0, 255))
def test_sums_of_quantised_numbers(seed: int, a: int, b: int, zero: int) -> None:
    rng = np.random.default_rng(seed)
    scales = (rng.uniform(1, 9, 5) * 10.0**b).astype(np.float32)
    graph = graph_of(f"""
        graph "quantised"
        dims m = 16, n = 5, k = 24
        %q : u8{{k,m}} = input "q" [m, k]
        %w : i8{{k,n}} = input "w" [k, n]
        %s : f32{{n}} = const [n] {scales.tolist()}
        %a : f32{{k,m}} = f32(i32(%q[k, m]) - {zero}) * {np.float32(3.3 * 10.0**a)!s}
        %b : f32{{k,n}} = f32(%w[k, n]) * %s[n]
        %y : f32{{m,n}} = sum{{k}} %a[k, m] * %b[k, n]
        output "y" [m, n] = %y
    """)
    q = rng.integers(0, 256, (16, 24)).astype(np.uint8)
    w = rng.integers(-128, 128, (24, 5)).astype(np.int8)
    check(graph, rewritten(graph, sum_integers), {"q": q, "w": w})


@examples(40)
@given(seeds, st.integers(-38, 34), st.integers(0, 255))
def test_means_of_quantised_numbers(seed: int, exponent: int, zero: int) -> None:
    graph = graph_of(f"""
        graph "mean"
        dims m = 16, k = 24
        %q : u8{{k,m}} = input "q" [m, k]
        %a : f32{{k,m}} = f32(i32(%q[k, m]) - {zero}) * {np.float32(3.3 * 10.0**exponent)!s}
        %y : f32{{m}} = sum{{k}} %a[k, m]
        output "y" [m] = %y
    """)
    q = np.random.default_rng(seed).integers(0, 256, (16, 24)).astype(np.uint8)
    check(graph, rewritten(graph, sum_bytes), {"q": q})


@examples(40)
@given(st.floats(1, 9.9), st.integers(-38, 37), st.integers(0, 255))
def test_quantising_again(digits: float, exponent: int, zero: int) -> None:
    scale = np.float32(digits * 10.0**exponent)
    graph = graph_of(f"""
        graph "again"
        dims i = 256
        %q : u8{{i}} = input "q" [i]
        %x : f32{{i}} = f32(i32(%q[i]) - {zero}) * {scale!s}
        %y : u8{{i}} = u8(i32(min(max(round(%x[i] / {scale!s}) + {zero}.0, 0.0), 255.0)))
        output "y" [i] = %y
    """)
    inputs = {"q": np.arange(256, dtype=np.uint8)}
    after = optimize(graph, pipeline=(Sweep("again", (drop_requantised,)),))
    np.testing.assert_array_equal(interpret(after, inputs)["y"], interpret(graph, inputs)["y"])


@examples(40)
@given(seeds, exponents, st.sampled_from(["1.0", "2.0", "3.0", "-1.0", "0.5", "0.0"]))
def test_powers(seed: int, exponent: int, power: str) -> None:
    x = np.abs(np.random.default_rng(seed).standard_normal(32)) * 10.0**exponent
    x[:3] = np.inf, np.nan, 0.0
    graph = graph_of(f"""
        graph "powers"
        dims i = 32
        %x : f32{{i}} = input "x" [i]
        %y : f32{{i}} = pow(abs(%x[i]), {power})
        output "y" [i] = %y
    """)
    check(graph, rewritten(graph, simplify_expressions), {"x": x.astype(np.float32)})
