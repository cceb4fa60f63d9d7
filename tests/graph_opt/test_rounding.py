"""Rewrites err about as little as the model's own order of operations, over all magnitudes."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rutc.emit.targets import target_named
from rutc.graph_opt import EXACT, optimize, pipeline_for
from rutc.graph_opt.rewrite import Pass, Sweep, rule_name, why_not
from rutc.graph_opt.rounding import BUDGET, Change, over_budget, rounding_of
from rutc.graph_opt.rules.fold import FoldConstants
from rutc.graph_opt.rules.scale import combine_scales, fold_scale
from rutc.tensor_ir import DType, Graph
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.tensor_ir.textual.parse import parse
from rutc.tensor_ir.verifier import verify
from tests.examples import examples
from tests.graph_opt.truth import assert_as_close, root_mean_square, truth

POINTS = 48
Steps = Sequence[tuple[str, float]]
SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
STEPS = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}
SPECIAL = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0], np.float32)

STANDARDISED: Steps = (("sub", 1e6), ("div", 3.0), ("mul", 0.7), ("add", 0.1))
UNIX_TIMES: Steps = (("sub", 1.7e9), ("div", 1e4), ("mul", 0.7))
ROUNDED: Steps = (("add", 12582912.0), ("sub", 12582912.0))
LARGE: Steps = (("mul", 1e30), ("mul", 1e30))
SMALL: Steps = (("div", 1e30), ("mul", 1e-10))


def chain_graph(steps: Steps) -> Graph:
    """A graph of one nest for each step, as a model's nodes are."""
    lines = ['graph "chain"', f"dims i = {POINTS}", '%v0 : f32{i} = input "x" [i]']
    for number, (op, by) in enumerate(steps):
        value = np.format_float_scientific(np.float32(by), trim="0")
        lines.append(f"%v{number + 1} : f32{{i}} = %v{number}[i] {SIGNS[op]} {value}")
    graph = parse("\n".join([*lines, f'output "y" [i] = %v{len(steps)}']))
    verify(graph)
    return graph


def points(offset: float, spread: float, seed: int, size: int = POINTS) -> np.ndarray:
    """Numbers around `offset`, and special ones."""
    noise = np.random.default_rng(seed).standard_normal(size)
    with np.errstate(over="ignore"):
        return (offset + spread * noise).astype(np.float32)


def with_special(x: np.ndarray) -> np.ndarray:
    """The numbers with infinities, NaN and zeros in the last places."""
    return np.concatenate([x[: -len(SPECIAL)], SPECIAL])


magnitudes = st.builds(
    lambda digits, exponent, sign: sign * digits * 10.0**exponent,
    st.floats(1, 9.5),
    st.integers(-38, 37),
    st.sampled_from([1, -1]),
)


@st.composite
def chains(draw: st.DrawFn) -> tuple[list[tuple[str, float]], np.ndarray]:
    """Steps with constants of all magnitudes, of which shifts may cancel or round, and inputs."""
    offset = draw(magnitudes)
    spread = abs(offset) * draw(st.sampled_from([1e-6, 1e-3, 0.1, 1.0, 10.0]))
    now, steps = offset, []
    for _ in range(draw(st.integers(1, 6))):
        op = draw(st.sampled_from(["add", "sub", "mul", "div", "mul", "div"]))
        by = draw(magnitudes)
        if op in ("add", "sub"):
            size = max(abs(now), 1e-30)
            by = draw(st.sampled_from([by, size, -size, 12582912.0 * size, size * 1e-3]))
        elif draw(st.booleans()):
            by = draw(st.floats(0.01, 100.0))
        by = float(np.clip(by, -3e38, 3e38))
        if abs(by) < 1e-38:
            by = 1.0
        step = {"add": now + by, "sub": now - by, "mul": now * by, "div": now / by}[op]
        steps.append((op, by))
        now = float(np.clip(step, -1e60, 1e60))
    return steps, with_special(points(offset, spread, draw(st.integers(0, 99))))


@examples(60)
@given(chains())
@example((STANDARDISED, points(1e6, 3.0, 0)))
@example((UNIX_TIMES, points(1.7e9, 1e4, 0)))
@example((ROUNDED, points(0.0, 100.0, 0)))
@example((LARGE, points(0.0, 1e-30, 0)))
@example((SMALL, points(1e30, 1e29, 0)))
def test_chains_of_scales_and_shifts_err_no_more_than_they_do(
    case: tuple[Steps, np.ndarray],
) -> None:
    steps, x = case
    graph = chain_graph(steps)
    rewritten = optimize(graph)
    own, exact = interpret(graph, {"x": x})["y"], truth(graph, {"x": x})["y"]
    got = interpret(rewritten, {"x": x})["y"]
    usual = as_it_may_be(own, exact, steps, x)
    assert_as_close(got, usual, exact, f"{x}\n{graph}\n{rewritten}")


def as_it_may_be(own: np.ndarray, exact: np.ndarray, steps: Steps, x: np.ndarray) -> np.ndarray:
    """The model's own results, or others with such roundings that err more.

    Those of equal numbers are one, and may happen to cancel.
    """
    seen = np.isfinite(own) & np.isfinite(exact)

    def error(y: np.ndarray) -> float:
        good = bool(np.isfinite(y[seen]).all())
        return float(np.abs(y[seen] - exact[seen]).max(initial=0.0)) if good else -1.0

    rng = np.random.default_rng(0)
    others = (np.where(seen, rounded_anew(steps, x, rng), own) for _ in range(8))
    return max(own, *others, key=error)


def rounded_anew(steps: Steps, x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """What the steps may give in f32: each result is off by up to half a unit, and rounded."""
    now = x
    with np.errstate(all="ignore"):
        for op, by in steps:
            step = STEPS[op](now.astype(np.float64), float(np.float32(by)))
            off = rng.uniform(-1, 1) * np.finfo(np.float32).eps / 2
            now = (step * (1 + off)).astype(np.float32)
    return now


def test_roundings_that_happen_to_cancel_are_not_the_models_error() -> None:
    """All numbers are one after the first step, and the last one is right by luck."""
    steps: Steps = (
        *(("add", 12582912.0), ("add", 1.0), ("mul", 5.0), ("div", 0.3046875)),
        ("sub", 206488812.0),
    )
    x = points(0.0, 1e-3, 0)
    graph = chain_graph(steps)
    own, exact = interpret(graph, {"x": x})["y"], truth(graph, {"x": x})["y"]
    got = interpret(optimize(graph), {"x": x})["y"]
    assert_as_close(got, as_it_may_be(own, exact, steps, x), exact)
    with pytest.raises(AssertionError, match="errs by"):
        assert_as_close(got + 200, as_it_may_be(own, exact, steps, x), exact)


@examples(30)
@given(chains())
@example((ROUNDED, points(0.0, 100.0, 0)))
def test_the_exact_pipeline_keeps_every_bit_of_chains(case: tuple[Steps, np.ndarray]) -> None:
    steps, x = case
    graph = chain_graph(steps)
    own = interpret(graph, {"x": x})["y"]
    got = interpret(optimize(graph, pipeline=EXACT), {"x": x})["y"]
    kept = ~np.isnan(own)
    np.testing.assert_array_equal(got[kept].view(np.uint32), own[kept].view(np.uint32))
    assert np.isnan(got[~kept]).all()


# -- sums of products ----------------------------------------------------------------------------
ROWS, COLUMNS = 24, 3


def sum_graph(weights: np.ndarray, steps: Sequence[tuple[str, np.ndarray]]) -> Graph:
    """A sum of products with constant weights, then steps by a constant for each column."""
    lines = [
        'graph "sum"',
        f"dims k = {len(weights)}, m = {ROWS}, n = {COLUMNS}",
        '%x : f32{k,m} = input "x" [m, k]',
        f"%w : f32{{k,n}} = const [k, n] {_listed(weights)}",
        "%v0 : f32{m,n} = sum{k} %x[k, m] * %w[k, n]",
    ]
    for number, (op, by) in enumerate(steps):
        lines.append(f"%c{number} : f32{{n}} = const [n] {_listed(by)}")
        value = f"%v{number}[m, n] {SIGNS[op]} %c{number}[n]"
        lines.append(f"%v{number + 1} : f32{{m,n}} = {value}")
    graph = parse("\n".join([*lines, f'output "y" [m, n] = %v{len(steps)}']))
    verify(graph)
    return graph


def _listed(a: np.ndarray) -> str:
    if a.ndim > 1:
        return f"[{', '.join(map(_listed, a))}]"
    return f"[{', '.join(np.format_float_scientific(x, trim='0') for x in a.astype(np.float32))}]"


@st.composite
def sums(draw: st.DrawFn) -> tuple[Graph, np.ndarray]:
    """Sums with weights and inputs of all magnitudes, then normalised in some order."""
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    terms = draw(st.sampled_from([2, 5, 16, 64]))
    size = 10.0 ** draw(st.integers(-12, 12))
    weights = rng.standard_normal((terms, COLUMNS)) * 10.0 ** draw(st.integers(-25, 25))
    offset = draw(st.sampled_from([0.0, 0.0, 1.0, 30.0, 1e4, 1e6]))
    x = (rng.standard_normal((ROWS, terms)) + offset) * size
    now = x @ weights
    steps: list[tuple[str, np.ndarray]] = []
    for _ in range(draw(st.integers(1, 4))):
        op = draw(st.sampled_from(["add", "sub", "mul", "div", "mul", "sub"]))
        if op in ("add", "sub"):
            factor = draw(st.sampled_from([1.0, 0.1, 10.0, 1e6]))
            by = now.mean(axis=0) + now.std(axis=0) * rng.standard_normal(COLUMNS) * factor
        else:
            exponent = draw(st.sampled_from([0, 0, 1, -2, 6, -6, 20, -20, 30, -30]))
            by = rng.uniform(0.5, 2.0, COLUMNS) * 10.0**exponent
        by = np.clip(by, -3e38, 3e38)
        by = np.where(np.abs(by) < 1e-37, 1.0, by)
        now = {"add": now + by, "sub": now - by, "mul": now * by, "div": now / by}[op]
        steps.append((op, by))
    return sum_graph(weights, steps), x.astype(np.float32)


@examples(50)
@given(sums())
def test_scales_and_shifts_behind_sums_err_little_more_than_the_sums(
    case: tuple[Graph, np.ndarray],
) -> None:
    graph, x = case
    rewritten = optimize(graph)
    own, exact = interpret(graph, {"x": x})["y"], truth(graph, {"x": x})["y"]
    got = interpret(rewritten, {"x": x})["y"]
    for n in range(COLUMNS):
        text = f"column {n}\n{graph}\n{rewritten}"
        # Twice is what sums of few terms come near to; of 9,000 columns three went beyond it.
        assert_as_close(got[:, n], own[:, n], exact[:, n], text, root_mean_square, times=3.0)


# -- declarations --------------------------------------------------------------------------------
PAGE = Path(__file__).parents[2] / "docs" / "numerics.md"


PLAIN = target_named("x86-64-v4").machine
ABLE = replace(PLAIN, features=PLAIN.features | {"amx-tile", "amx-bf16"})


def rules_of(steps: Iterable[Pass]) -> Iterator[tuple[str, object]]:
    """All that steps do, by the names of functions and classes."""
    for step in steps:
        if isinstance(step, Sweep):
            yield from ((rule_name(rule).partition("(")[0], rule) for rule in step.rules)
        else:
            yield type(step).__name__, step


def declared() -> dict[str, tuple[str, str]]:
    """What the rules of the longest pipeline declare to change, by their names."""
    found = {}
    for name, rule in rules_of(pipeline_for(ABLE)):
        rounding = rounding_of(rule)
        if rounding is not None:
            found[name] = (rounding.changes, rounding.refused)
    return found


def test_the_page_lists_what_rules_declare() -> None:
    page = PAGE.read_text(encoding="utf-8")
    (table,) = re.findall(r"^\| rewrite \|.*\n(?:\|.*\n)+", page, re.M)
    rows = re.findall(r"^\| `(\w+)` \| (.*) \| (.*) \|$", table, re.M)
    assert [(name, (changes, refused)) for name, changes, refused in rows] == list(
        declared().items()
    )


def test_the_exact_pipeline_has_no_rule_that_declares_to_round() -> None:
    rules = [rule for _, rule in rules_of(EXACT)]
    assert rules
    assert all(rounding_of(rule) is None for rule in rules)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (Change(bits=1.1), "it may cost 1.1 bits, more than 1"),
        (Change(top=30), "f32 would overflow 30 powers of two sooner, more than 24"),
        (Change(bottom=30), "f32 would underflow 30 powers of two sooner, more than 24"),
        (Change(bits=np.nan), "it may cost nan bits, more than 1"),
        (BUDGET, None),
    ],
)
def test_the_budget_refuses_with_the_number(change: Change, why: str | None) -> None:
    assert over_budget(change, DType.F32) == why


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        ([("sub", 1e6), ("div", 3.0)], "it may cost 1[0-9].[0-9] bits, more than 1"),
        ([("sub", 0.5), ("div", 3.0)], None),
        ([("mul", 1e20), ("mul", 1e20)], "the product of its scales is no normal number"),
        ([("mul", 1e8), ("mul", 1e8)], "f32 would overflow 5[0-9] powers of two sooner"),
        ([("div", 1e8), ("mul", 1e-8)], "f32 would underflow 5[0-9] powers of two sooner"),
    ],
)
def test_scales_behind_a_sum_are_refused_beyond_the_budget(
    steps: Sequence[tuple[str, float]], why: str | None
) -> None:
    weights = np.random.default_rng(3).standard_normal((16, COLUMNS))
    by = [(op, np.full(COLUMNS, value)) for op, value in steps]
    step = Sweep("combine", (combine_scales, FoldConstants()))
    graph = optimize(sum_graph(weights, by), pipeline=(step,))
    reasons = [why_not(rule, graph, f"v{len(steps)}") for rule in (combine_scales, fold_scale)]
    if why is None:
        assert reasons[1] is None
    else:
        assert reasons[1] is not None
        assert any(re.search(why, str(reason)) for reason in reasons), reasons
