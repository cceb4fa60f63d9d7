"""The versions of a graph: when there are two, and which steps make them."""

from dataclasses import replace

import numpy as np
import pytest

from rutc.emit.targets import target_named
from rutc.graph_opt import EXACT, Version, optimize, pipeline_for, versions
from rutc.graph_opt.algorithms import Algorithms
from rutc.graph_opt.alternatives import Assigned
from rutc.graph_opt.alternatives.choices import with_algorithms
from rutc.graph_opt.alternatives.split_precision import SAID, SAID_ROUNDED, MultiplyParts
from rutc.graph_opt.leeway import Leeway
from rutc.tensor_ir import Data, Graph, Index
from rutc.tensor_ir.indices.ranges import CommonRange
from rutc.tensor_ir.textual.parse import parse

PLAIN = target_named("x86-64-v4").machine
ABLE = replace(PLAIN, features=PLAIN.features | {"amx-tile", "amx-bf16"})
MANY = Index.of("n") // 64
WEIGHTS = Data(np.random.default_rng(0).random((256, 256), np.float32))


def made(
    symbols: str = "n = 0..999", more: str = "", output: str = "", dims: str = "", row: str = "m"
) -> Graph:
    """A product that the step takes apart, beside values of symbolic size."""
    text = f"""
        graph "g"
        symbols {symbols}
        dims r = n, m = n, k = 256, c = 256{dims}
        %x : f32{{k,m}} = input "x" [m, k]
        %z : f32{{r}} = input "z" [r]
        %w : f32{{c,k}} = const [k, c] data "{WEIGHTS.digest}"
        %y : f32{{c,m}} = sum{{k}} %x[k, {row}] * %w[k, c]
        %v : f32{{r}} = exp(%z[r])
        {more}
        output "y" [m, c] = %y
        output "v" [r] = %v
        {output}
    """
    return parse(text, {WEIGHTS.digest: WEIGHTS})


FIXED = {
    "more": '%q : f32{k,t} = input "q" [t, k]\n%s : f32{c,t} = sum{k} %q[k, t] * %w[k, c]',
    "output": 'output "s" [t, c] = %s',
    "dims": ", t = 512",
}
"""What of `made` has as many rows in every run."""
FIXED_BESIDE_RANDOM = FIXED | {
    "more": f"{FIXED['more']}\n%u : f64{{r}} = call uniform(seed=1) -> [r]",
    "output": f'{FIXED["output"]}\noutput "u" [r] = %u',
}


@pytest.fixture(scope="module")
def graph() -> Graph:
    """The graph whose sizes are those of its inputs."""
    return made()


def found(graph: Graph, where: Index | None, *, exact: bool = False) -> tuple[Version, ...]:
    return versions(graph, ABLE, Leeway(exact=exact), where=lambda _: where)


def has_parts(graph: Graph) -> bool:
    return any(v.endswith(".mid") for v in graph.values)


def test_rows_are_read_backward_by_parts() -> None:
    """The size of a run, of which a place is told, is no loop."""
    backward = made(row="m=n - 1 - m")
    many, few = versions(backward, ABLE, where=lambda _: MANY)
    assert has_parts(many.graph)
    assert not has_parts(few.graph)
    wheres = [[v.where for v in versions(g, ABLE)] for g in (backward, made())]
    assert wheres[0] == wheres[1]


def test_two_versions_where_sizes_tell(graph: Graph) -> None:
    steps: list[tuple[str, bool]] = []
    asked: list[Graph] = []

    def where(before: Graph) -> Index:
        asked.append(before)
        return MANY

    many, few = versions(
        graph, ABLE, on_step=lambda name, _, changed: steps.append((name, changed)), where=where
    )
    assert (many.where, few.where) == (MANY, None)
    assert has_parts(many.graph)
    assert few.graph == optimize(graph, pipeline=pipeline_for(PLAIN))
    assert not has_parts(few.graph)
    assert not any(map(has_parts, asked))
    every = [step.name for step in pipeline_for(ABLE)]
    after = every[every.index(MultiplyParts().name) :]
    again = [f"{name} for few rows" for name in ("leave factors whole", *after)]
    assert [name for name, _ in steps] == every + again


def test_many_rows_pay_although_few_are_commoner() -> None:
    seldom = made("n = 0..999@1")
    many, few = versions(seldom, ABLE)
    assert many.where == versions(made(), ABLE)[0].where
    assert has_parts(many.graph)
    assert not has_parts(few.graph)
    # What the plan for many has in mind is told as common, so that it expects no single row.
    assert many.graph.symbols == (("n", CommonRange(0, 999, 128)),)
    assert few.graph.symbols == seldom.symbols


def test_sums_of_known_size_have_parts_in_both_versions() -> None:
    many, few = versions(made(**FIXED), ABLE)
    assert many.where == MANY
    assert {"x.mid", "q.mid"} <= many.graph.values.keys()
    assert "q.mid" in few.graph.values
    assert "x.mid" not in few.graph.values


@pytest.mark.parametrize(
    ("graph", "sums"),
    [
        (made(), {"y"}),
        (made(**FIXED), {"y", "s"}),
        (made(**FIXED_BESIDE_RANDOM), {"s"}),
    ],
    ids=["symbolic", "fixed", "fixed beside random"],
)
def test_sums_of_parts_are_told_of_in_any_version(graph: Graph, sums: set[str]) -> None:
    algorithms = Algorithms()
    versions(graph, ABLE, on_step=algorithms, where=lambda _: MANY)
    facts = algorithms.facts()
    assert {a["sum"] for a in facts} == sums
    for a in facts:
        assert a["name"] == "parts in bf16"
        most = WEIGHTS.array.sum(axis=0).max()
        assert a["largest"] == pytest.approx(3.4e38 / most, rel=0.02)
    assert versions(graph, ABLE, Leeway(exact=True), on_step=(exact := Algorithms()))
    assert exact.facts() == []


def test_one_version_otherwise(graph: Graph) -> None:
    (apart,) = found(graph, None)
    assert has_parts(apart.graph)
    assert apart.where is None
    assert apart.graph == optimize(graph, pipeline=pipeline_for(ABLE))
    assert apart.assigned == Assigned((("y", SAID),))
    assert found(graph, MANY + 1) == (apart,)
    assert found(graph, MANY, exact=True) == (Version(optimize(graph, pipeline=EXACT)),)
    assert versions(graph, PLAIN, where=lambda _: MANY) == (Version(optimize(graph)),)


def test_one_version_where_nothing_is_taken_apart() -> None:
    small = parse("""
        graph "g"
        symbols n = 0..999
        dims r = n
        %z : f32{r} = input "z" [r]
        %v : f32{r} = exp(%z[r])
        output "v" [r] = %v
    """)
    assert found(small, MANY) == (Version(small),)


@pytest.mark.parametrize(
    "stateful",
    [
        made(more="%u : f64{r} = call uniform(seed=1) -> [r]", output='output "u" [r] = %u'),
        made(
            "n = 0..999, b = 0..9",
            "%count : i64{} = i64(%z[r=0 else 0.0])\n"
            "%size : i64{} = bind b = %count\n%u : f32{e} = exp(%z[r=e else 0.0])",
            'output "u" [e] = %u',
            ", e = b",
        ),
    ],
    ids=["random", "bind"],
)
def test_what_has_state_has_one_version(stateful: Graph) -> None:
    """Two versions would not go on from one another."""
    (version,) = found(stateful, MANY)
    assert version.where is None
    assert not has_parts(version.graph)
    assert version.graph.outputs[-1].name == "u"


@pytest.mark.parametrize(("symbols", "number"), [("n = 64..999", 1), ("n = 0..999@1", 2)])
def test_factors_are_rounded_for_many_rows(symbols: str, number: int) -> None:
    """Few rows leave registers for matrices idle, and wait for constants."""
    algorithms = Algorithms()
    several = versions(made(symbols), ABLE, Leeway(bf16=True), on_step=algorithms)
    assert len(several) == number
    assert several[0].assigned == Assigned((("y", SAID_ROUNDED),))
    assert "x.hi" in several[0].graph.values
    assert not has_parts(several[0].graph)
    assert all("x.hi" not in v.graph.values for v in several[1:])
    (fact,) = algorithms.facts()
    assert fact["name"] == "factors in bf16"
    # As it is assigned, whoever asks for it.
    again = with_algorithms(made("n = 0..999"), ABLE, several[0].assigned)
    assert again.values.keys() == several[0].graph.values.keys()
    assert versions(made(symbols), PLAIN, Leeway(bf16=True)) == versions(made(symbols), PLAIN)
