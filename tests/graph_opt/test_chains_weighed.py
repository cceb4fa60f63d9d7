"""What chains of kernels are weighed by: sizes of slices, and which chains need not be weighed."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rutc.graph_opt.decide import decide
from rutc.graph_opt.decide.chains import MOST_CHAINED, MOST_MEMBERS, Chain, Member
from rutc.graph_opt.decide.greedy import greedy
from rutc.graph_opt.decide.likeness import Found, Likeness
from rutc.graph_opt.decide.prepared import prepare
from rutc.graph_opt.decide.realise import Realisation
from rutc.graph_opt.decide.slice_sizes import even_slices
from rutc.graph_opt.decide.slices import Slicer
from rutc.graph_opt.plan import FillHalo, Illegal, PlanStep, Run
from rutc.tensor_ir.graph import Nest
from rutc.tensor_ir.indices.affine import Index, maximum, minimum
from rutc.tensor_ir.lower import Group
from rutc.tensor_ir.textual.parse import parse
from tests.examples import examples
from tests.graph_opt.test_decide_slices import BATCH, HEADS, SOFTMAX
from tests.machines import V4

RANGES = {"n": (0, 4099), "m": (0, 97), "w": (1, 1021)}


@given(
    st.fixed_dictionaries({name: st.integers(*r) for name, r in RANGES.items()}),
    st.integers(1, 4099),
    st.none() | st.integers(1, 1 << 20),
    st.integers(0, 64),
)
@examples(100)
def test_even_slices_of_a_size_that_a_run_tells_are_those_of_the_number(
    sizes: dict[str, int], size: int, within: int | None, least: int
) -> None:
    fits = None if within is None else within // (4 * Index.of("w"))
    found = even_slices(
        Index.of("n"),
        Index.of("m"),
        Index.of(size),
        fits,
        Index.of(least),
        lambda a, b: minimum(a, b, RANGES),
        lambda a, b: maximum(a, b, RANGES),
    )
    number = None if within is None else within // (4 * sizes["w"])
    wanted = even_slices(sizes["n"], sizes["m"], size, number, least, min, max)
    assert tuple(x.evaluate(sizes) for x in found) == wanted
    count, each = wanted
    assert each <= size
    assert count * max(each, 1) >= sizes["n"]


def test_rows_of_a_product_are_the_dims_along_which_a_factor_stays() -> None:
    graph = parse("""
graph "a product with rows of a table, and one with a matrix"
dims k = 7, m = 3, n = 5, v = 11
%i : i64{m} = input "i" [m]
%t : f32{k,v} = input "t" [v, k]
%w : f32{k,n} = input "w" [k, n]
%y : f32{m,n} = sum{k} %t[k, v=%i[m]] * %w[k, n]
output "y" [m, n] = %y
""")
    (nest,) = (n for n in graph.nodes if isinstance(n, Nest))
    group = Group("g", (nest,), ("m", "n"), ("y",))
    assert group.rows == {"t": frozenset(), "i": frozenset("n"), "w": frozenset("m")}
    assert group.moved == {"t": None, "i": frozenset("m"), "w": frozenset("kn")}
    assert Member(0, group, ("m",), (1,)).moved == {
        "t": frozenset("m"),
        "i": frozenset("m"),
        "w": frozenset(),
    }


ATTENTION = SOFTMAX.format(h=12, k=64, n=64, s=1024, t=1024)
IMAGES = BATCH.replace("symbols batch = 0..2147483648@1\n", "").replace("= batch", "= 8")


@pytest.mark.parametrize(
    ("text", "l2", "fewer"),
    [(ATTENTION, V4.l2, True), (IMAGES, 64 << 10, False)],
    ids=["attention", "images"],
)
def test_chains_that_pass_on_too_little_are_not_weighed_and_would_not_be_chosen(
    text: str, l2: int, fewer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, machine = parse(text), replace(V4, l2=l2)
    weighed = [0]
    size, paying = Slicer._size, Slicer._paying

    def counted(self: Slicer, members: tuple[Member, ...]) -> tuple[int, int | None] | None:
        weighed[0] += 1
        return size(self, members)

    def every(self: Slicer, grown: Sequence[tuple[Member, ...]], least: float) -> list[Chain]:
        return [chain for members in grown for chain in paying(self, [members], 0.0)]

    monkeypatch.setattr(Slicer, "_size", counted)
    chosen = decide(graph, machine).assignment
    some = weighed[0]
    monkeypatch.setattr(Slicer, "_paying", every)
    weighed[0] = 0
    assert decide(graph, machine).assignment == chosen
    assert chosen.slices
    assert (some < weighed[0]) == fewer


# Before that, two products side by side, whose concatenation is no work.
JOINED = ATTENTION.replace(
    "%q : ",
    """%i : f32{l,b} = input "i" [b, l]
%j : f32{l,o} = input "j" [l, o]
%a0 : f32{b,o} = sum{l} %i[l, b] * %j[l, o]
%a1 : f32{b,o} = max(%a0[b, o], 0.0) * 2.0
%d : f32{b,c} = select(index(c - 32) < 0, %a0[b, o=c else 0.0], %a1[b, o=c - 32 else 0.0])
%f : f32{b,c} = sum{x} %d[b, c=x] * %g[x, c]
output "f" [b, c] = %f
%q : """,
    1,
).replace("dims ", "dims b = 128, l = 16, o = 32, c = 64, x = 64, ", 1)
JOINED = JOINED.replace("%i : f32", '%g : f32{c,x} = input "g" [x, c]\n%i : f32', 1)


def followed(
    slicer: Slicer, steps: Sequence[PlanStep], start: int, dims: tuple[str, ...]
) -> list[tuple[Member, ...]]:
    """The chains over slices of these dims, each kernel asked whether it follows over all."""
    first = steps[start]
    assert isinstance(first, Run)
    members: tuple[Member, ...] = (Member(start, first.group, dims, (1,) * len(dims)),)
    found: list[tuple[Member, ...]] = []
    if not slicer.alike(members[0]):
        return found
    for number in range(start + 1, len(steps)):
        if isinstance(steps[number], FillHalo):
            continue
        following = slicer.follows(members, number, steps[number])
        if following is None or len(members) == MOST_MEMBERS:
            break
        if slicer.code((*members, following)) > MOST_CHAINED:
            break
        members = (*members, following)
        found.append(members)
    return found


def beginnings(text: str, l2: int) -> Iterator[tuple[Slicer, Sequence[PlanStep], int, Run]]:
    """Where chains of a graph may begin: its slicer and steps, and each of these that is a run."""
    found = greedy(prepare(parse(text)), replace(V4, l2=l2)).realisation
    for start, step in enumerate(found.steps):
        if isinstance(step, Run):
            yield found.turns.slicer, found.steps, start, step


@pytest.mark.parametrize("text", [ATTENTION, IMAGES, BATCH, JOINED])
@pytest.mark.parametrize("l2", [V4.l2, 64 << 10])
def test_kernels_that_follow_over_several_dims_are_found_dim_by_dim(text: str, l2: int) -> None:
    compared = 0
    for slicer, steps, start, step in beginnings(text, l2):
        along = partial(slicer._along, steps, start)
        for count in (1, 2, 3):
            for dims in permutations(slicer._cut(step.group), count):
                wanted = followed(slicer, steps, start, dims)
                assert slicer._grown(along, dims) == wanted
                compared += bool(wanted) and count > 1
    assert compared or text not in (ATTENTION, JOINED)


@pytest.mark.parametrize("text", [ATTENTION, IMAGES, BATCH, JOINED])
@pytest.mark.parametrize("l2", [V4.l2, 64 << 10])
def test_over_more_dims_no_more_kernels_follow_each_other(text: str, l2: int) -> None:
    compared = 0
    for slicer, steps, start, step in beginnings(text, l2):
        along = partial(slicer._along, steps, start)
        for d, e in permutations(slicer._cut(step.group), 2):
            one, both = (slicer._grown(along, dims) for dims in ((d,), (d, e)))
            assert len(both) <= len(one)
            passed = [slicer._passed(members) for members in one]
            assert passed == sorted(passed)
            compared += bool(both)
    assert compared or text not in (ATTENTION, JOINED)


@pytest.mark.parametrize("text", [ATTENTION, IMAGES, BATCH, JOINED])
@pytest.mark.parametrize("l2", [V4.l2, 64 << 10])
def test_chains_of_steps_that_are_alike_are_found_once(
    text: str, l2: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    weighed: list[int] = []
    best = Slicer._best

    def counted(self: Slicer, steps: Sequence[PlanStep], start: int) -> Chain | None:
        weighed.append(start)
        return best(self, steps, start)

    monkeypatch.setattr(Slicer, "_best", counted)
    graph, machine = parse(text), replace(V4, l2=l2)
    prepared = prepare(graph)
    first = greedy(prepared, machine).realisation
    given = first.assignment
    plain = replace(given, slices=(), turns=())
    assert weighed
    weighed.clear()
    again = first.but(plain)
    assert again.turns.chosen(again.steps) == (given.turns, given.slices)
    assert not weighed
    # What lies otherwise is weighed anew, and so are the kernels that read it or write it.
    compared = 0
    for v, before in plain.arrangements.items():
        turned = replace(before, order=before.order[::-1])
        changed = replace(plain, arrangements={**plain.arrangements, v: turned})
        try:
            found, alone = first.but(changed), Realisation(prepared, changed, machine)
            chosen = found.turns.chosen(found.steps)
            assert alone.turns.chosen(alone.steps) == chosen
        except Illegal:
            continue
        compared += 1
    assert compared


def test_chains_behind_steps_that_go_are_those_of_before(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, machine = parse(JOINED), replace(V4, l2=64 << 10)
    weighed: list[int] = []
    best = Slicer._best

    def counted(self: Slicer, steps: Sequence[PlanStep], start: int) -> Chain | None:
        weighed.append(start)
        return best(self, steps, start)

    def anew(
        self: Likeness, steps: Sequence[PlanStep], start: int, find: Callable[[], Chain | None]
    ) -> Chain | None:
        return find()

    monkeypatch.setattr(Slicer, "_best", counted)
    chosen, some = decide(graph, machine), len(weighed)
    assert chosen.assignment is not None
    assert chosen.assignment.joins
    assert chosen.assignment.slices
    monkeypatch.setattr(Likeness, "best", anew)
    weighed.clear()
    assert str(decide(graph, machine)) == str(chosen)
    assert some < len(weighed)


def test_a_chain_that_was_found_is_of_the_kernels_at_hand() -> None:
    """What kernels are called, and where their steps are, differs from plan to plan."""
    found = greedy(prepare(parse(ATTENTION)), V4).realisation
    slicer, steps = found.turns.slicer, found.steps
    renamed = tuple(
        Run(replace(s.group, name=f"other {s.group.name}")) if isinstance(s, Run) else s
        for s in steps
    )
    start = next(at for at in range(len(steps)) if slicer._best(steps, at) is not None)
    for before in (0, 1):
        shared = Found()
        first = Likeness(shared, slicer.extents, slicer._facts)
        chain = first.best(steps, start, lambda: slicer._best(steps, start))
        assert chain is not None
        moved = renamed[start - before :] if before <= start else renamed
        at = before if before <= start else start
        second = Likeness(shared, slicer.extents, slicer._facts)
        other = second.best(moved, at, lambda: None)
        assert other is not None
        assert [m.group.name for m in other.members] == [
            f"other {m.group.name}" for m in chain.members
        ]
        assert all(moved[m.step] == Run(m.group) for m in other.members)
        assert replace(other, members=chain.members) == chain


def test_blocks_of_queries_are_of_one_text_where_only_the_number_of_slices_varies() -> None:
    """Keys of a known number: what a query passes on is known, how many there are is not.

    A block of all texts' queries would read the keys of all texts again.
    """
    head = """
    graph "attention of any number of queries to the keys of a picture"
    symbols batch = 0..2147483648@1, rows = 0..2147483648
    dims b = batch, h = 4, k = 16, n = 16, o = 64, s = rows, t = 1500
    """
    tail = """
    %c : f32{h,n,o} = input "c" [h, n, o]
    %y : f32{b,o,s} = sum{h,n} %u[b, h, n, s] * %c[h, n, o]
    output "y" [b, s, o] = %y
    """
    text = f"{head}{HEADS}{tail}"
    assignment = decide(parse(text), replace(V4, l2=1 << 20)).assignment
    (slicing,) = assignment.slices
    turns = {k: d for t in assignment.turns for k, d in zip(t.kernels, t.dims, strict=True)}
    *around, last = slicing.dims
    assert last == "s"
    assert "b" in around or all(turns.get(k) == "b" for k in slicing.kernels)


PLANES = """
graph "pixels of rows of planes, each of a sum over channels"
dims b = 16, c = 3, n = 16, x = 56, z = 4
%a : f32{b,c,x,z} = input "a" [b, c, z, x]
%w : f32{c,n} = const [c, n] data "w"
%p : f32{b,n,x,z} = sum{c} %a[b, c, x, z] * %w[c, n]
%q : f32{b,n,x,z} = %p[b, n, x, z] + %p[b, n=0, x, z]
output "q" [b, n, z, x] = %q
"""


@pytest.mark.parametrize("x", [24, 40, 56])
@pytest.mark.parametrize("image", [0.8, 1.0, 1.2])
def test_a_slice_is_no_longer_than_its_dim(x: int, image: float) -> None:
    """Also where the second cache holds a whole row of lines more, as about one image is."""
    graph = parse(PLANES.replace("x = 56", f"x = {x}"), {"w": np.ones((3, 16), np.float32)})
    machine = replace(V4, l2=int(4 * 4 * 16 * x / image))
    (slicing,) = decide(graph, machine).assignment.slices
    assert slicing.dims == ("b", "x")
    assert slicing.size <= x
    assert slicing.size % V4.width == 0
