"""Kernels that take turns over the images of a batch: when, and that they compute the same."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rutc.driver.plans.estimates import estimate_plan
from rutc.emit.targets import target_named
from rutc.graph_opt.decide import decide
from rutc.graph_opt.plan import FillHalo, Illegal, InTurn, Plan, Repeat, groups_of
from rutc.runtime import InferenceSession
from rutc.tensor_ir.indices.affine import Index
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.tensor_ir.lower import Group
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.textual.parse import parse
from rutc.tensor_ir.verifier import verify
from tests.compiled import build
from tests.graph_opt.plan_runner import run_plan
from tests.graph_opt.plans import assigned
from tests.kernels import assert_agree
from tests.machines import V4, eager
from tests.tensor_ir.test_chain import TEXT as CHAIN

NETWORK = """
graph "products and a window of images, of which the last are summed up"
symbols batch = 0..64@1
dims n = batch, c = 3, d = 6, e = 7, f = 5, x = 5, y = 4, i = 3, j = 3
%x : f32{c,n,x,y} = input "x" [n, y, x, c]
%w : f32{c,d} = input "w" [c, d]
%k : f32{d,e,i,j} = input "k" [i, j, d, e]
%v : f32{e,f} = input "v" [e, f]
%a : f32{d,n,x,y} = sum{c} %x[c, n, x, y] * %w[c, d]
%b : f32{d,n,x,y} = max(%a[d, n, x, y], 0.0)
%p : f32{e,n,x,y} = sum{d,i,j} %b[d, n, x=x + i - 1, y=y + j - 1 else 0.0] * %k[d, e, i, j]
%q : f32{f,n,x,y} = sum{e} %p[e, n, x, y] * %v[e, f]
%s : f32{f,n} = sum{x,y} %q[f, n, x, y]
%t : f32{f} = sum{n} %s[f, n]
output "q" [n, y, x, f] = %q
output "t" [f] = %t
"""

BATCHES = (0, 1, 2, 3, 7, 8, 64)
SHAPES = {"w": (3, 6), "k": (3, 3, 6, 7), "v": (7, 5)}


LINE = "turns {n, n, n, n}: %a .. %s"
"""The section of the network's kernels."""
LARGE = NETWORK.replace("x = 5, y = 4", "x = 24, y = 24")
SMALL = replace(V4, l2=16 << 10)
"""A machine in whose second cache what passes between kernels for a large image just stays."""


def inputs_for(batch: int) -> dict[str, np.ndarray]:
    """Small integers, of which all sums are exact."""
    rng = np.random.default_rng(batch)
    shapes = {"x": (batch, 4, 5, 3), **SHAPES}
    return {name: rng.integers(-2, 3, shape).astype(np.float32) for name, shape in shapes.items()}


def planned(text: str, *lines: str, machine: Machine = V4) -> Plan:
    return assigned(text, *(lines or (LINE,)), machine=machine)


def chosen(text: str, machine: Machine = SMALL) -> Plan:
    graph = parse(text)
    verify(graph)
    return decide(graph, machine)


def sections(plan: Plan) -> list[InTurn]:
    return [s for s in plan.steps if isinstance(s, InTurn)]


def in_turn(plan: Plan) -> set[str]:
    return {v for s in sections(plan) for g in groups_of(s.steps) for v in g.stored}


def near(plan: Plan) -> set[str]:
    return {x.value for s in sections(plan) for x in s.near}


def test_what_passes_between_kernels_is_near() -> None:
    plan = planned(NETWORK)
    (section,) = sections(plan)
    assert {"b", "p", "q", "s"} == in_turn(plan)
    assert near(plan) == {"b", "p"}
    assert any(isinstance(s, FillHalo) for r in section.steps for s in r.steps)
    for x in section.near:
        assert plan.places[x.value].space == "near"
        assert x.offset + x.bytes <= section.near_bytes
    assert "in turn" in str(plan)


def test_values_near_overlap_only_if_their_lives_do_not() -> None:
    (section,) = sections(planned(NETWORK))
    places = {x.value: (x.offset, x.offset + x.bytes) for x in section.near}
    assert places["b"][1] <= places["p"][0] or places["p"][1] <= places["b"][0]


def test_the_arena_has_no_room_for_what_is_near() -> None:
    plan = planned(NETWORK)
    apart = planned(NETWORK.replace("output", 'output "p" [n, y, x, e] = %p\noutput', 1))
    assert near(apart) == {"b"}
    whole = {v: p for v, p in plan.places.items() if p.space == "arena"}
    assert whole.keys() == {"s"}


@pytest.mark.parametrize("batch", [0, 1, 3])
def test_plans_compute_what_the_graph_means(batch: int) -> None:
    plan, given = planned(NETWORK), inputs_for(batch)
    wanted = interpret(plan.graph, given)
    for name, got in run_plan(plan, given).items():
        assert_agree(name, got, wanted[name], exact=True)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    plan, machine = planned(NETWORK), eager(target_named("native").machine)
    return build(plan, machine, tmp_path_factory.mktemp("turns"))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_take_indices_or_share_one(library: Path, threads: int) -> None:
    """Memory is that of the sizes before: a smaller batch follows a larger one, and the reverse."""
    graph = parse(NETWORK)
    with InferenceSession(library, threads=threads) as session:
        for batch in (*BATCHES, *reversed(BATCHES)):
            given = inputs_for(batch)
            wanted = interpret(graph, given)
            names = [o.name for o in session.get_outputs()]
            for name, got in zip(names, session.run(None, given), strict=True):
                assert_agree(name, got, wanted[name], exact=True)


def test_the_manifest_counts_what_threads_have_for_themselves(library: Path) -> None:
    (section,) = sections(planned(NETWORK))
    with InferenceSession(library) as session:
        size = session.manifest["thread_bytes"]
    assert isinstance(size, int)
    # The table of buffers, as long as some lines.
    assert section.near_bytes < size <= section.near_bytes + 512


@pytest.mark.parametrize("threads", [1, 2])
def test_launches_in_turn_have_times_of_their_own(library: Path, threads: int) -> None:
    with InferenceSession(library, threads=threads, profile=True) as session:
        session.run(None, inputs_for(5))
        entries = session.profile()
    assert len(entries) >= 4
    calls = [e.calls for e in entries]
    assert calls.count(5) == 5, "each image's launches count, whichever thread has made them"
    assert {*calls} <= {1, 5}


def fixed(text: str, batch: int) -> str:
    """A network for one size of the batch."""
    return text.replace("symbols batch = 0..64@1\n", "").replace("n = batch", f"n = {batch}")


@pytest.mark.parametrize("batch", [2, 3, 4, 5, 6, 7, 8])
def test_images_of_a_known_number_take_turns(batch: int) -> None:
    """Whatever else is as long: other dims of the network are of 3 to 7 indices."""
    plan = planned(fixed(NETWORK, batch))
    assert {"a", "b", "p"} & near(plan)
    assert all(s.trips == batch for s in sections(plan))
    given = inputs_for(batch)
    wanted = interpret(plan.graph, given)
    for name, got in run_plan(plan, given).items():
        assert_agree(name, got, wanted[name], exact=True)


def test_turns_are_taken_where_what_passes_between_kernels_stays_near() -> None:
    assert {"b", "p"} <= near(chosen(LARGE))
    assert {"b", "p"} <= near(chosen(fixed(LARGE, 8)))
    # All of it stays near.
    assert not sections(chosen(LARGE, V4))
    # Not even one image's does.
    assert not sections(chosen(LARGE, replace(V4, l2=2 << 10)))


def test_estimates_count_what_is_done_in_turn_once() -> None:
    """Each image is a part of the kernels' tasks."""
    plan = planned(fixed(NETWORK, 8))
    assert sections(plan)
    found = estimate_plan(plan, V4)
    assert found.launches
    assert all(x.runs == 1 for x in found.launches)


def test_a_single_image_takes_no_turns() -> None:
    assert not sections(chosen(fixed(LARGE, 1)))
    with pytest.raises(Illegal, match="there is no dim n of several indices"):
        planned(fixed(NETWORK, 1))


def test_kernels_of_no_loop_take_turns_over_single_images() -> None:
    with pytest.raises(Illegal, match="only a loop's kernels take turns over several indices"):
        planned(NETWORK, "turns {n, n} by 2: %a .. %p")


def test_dims_within_the_models_inputs_take_no_turns() -> None:
    text = fixed(LARGE, 8).replace('"x" [n, y, x, c]', '"x" [y, n, x, c]')
    assert not sections(chosen(text))


@pytest.mark.parametrize("threads", [1, 2])
def test_images_of_a_known_number_compute_the_same(tmp_path: Path, threads: int) -> None:
    plan = planned(fixed(NETWORK, 5))
    given = inputs_for(5)
    wanted = interpret(plan.graph, given)
    library = build(plan, target_named("native").machine, tmp_path)
    with InferenceSession(library, threads=threads) as session:
        names = [o.name for o in session.get_outputs()]
        for name, got in zip(names, session.run(None, given), strict=True):
            assert_agree(name, got, wanted[name], exact=True)


def test_what_reads_another_image_takes_no_turns_with_it() -> None:
    old, new = "%p[e, n, x, y] * %v", "%p[e, n=batch - 1 - n, x, y] * %v"
    with pytest.raises(Illegal, match="the kernel of %q is not the same for every index of n"):
        planned(NETWORK.replace(old, new))
    plan = chosen(LARGE.replace(old, new))
    assert "b" in near(plan)
    assert "p" not in near(plan)
    (own,) = (s for s in sections(plan) if "p" in {v for g in groups_of(s.steps) for v in g.stored})
    assert "q" not in {v for g in groups_of(own.steps) for v in g.stored}
    plan = planned(NETWORK.replace(old, new), "turns {n, n}: %a .. %p")
    given = inputs_for(3)
    wanted = interpret(plan.graph, given)
    for name, got in run_plan(plan, given).items():
        assert_agree(name, got, wanted[name], exact=True)


def test_images_of_any_size_take_turns() -> None:
    text = LARGE.replace("0..64@1", "0..64@1, width = 1..64").replace("x = 24", "x = width")
    plan = chosen(text)
    assert {"b", "p"} <= near(plan)
    (section,) = sections(plan)
    assert all(isinstance(x.bytes, Index) and x.bytes.names() == {"width"} for x in section.near)
    room = Index.of(section.near_bytes)
    for x in section.near:
        for width in range(1, 65):
            end = Index.of(x.offset + x.bytes).evaluate({"width": width})
            assert end <= room.evaluate({"width": width})


ANY_WIDTH = NETWORK.replace("0..64@1", "0..64@1, width = 1..300").replace("x = 5", "x = width")


def of_width(batch: int, width: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng([batch, width])
    shapes = {"x": (batch, 4, width, 3), **SHAPES}
    return {name: rng.integers(-2, 3, shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize("width", [1, 2, 9])
def test_plans_of_any_width_compute_what_the_graph_means(width: int) -> None:
    plan, given = planned(ANY_WIDTH), of_width(3, width)
    assert sections(plan)
    wanted = interpret(plan.graph, given)
    for name, got in run_plan(plan, given).items():
        assert_agree(name, got, wanted[name], exact=True)


@pytest.mark.parametrize("target", ["native", "x86-64-v3"])
def test_threads_have_what_is_near_of_images_of_any_width(tmp_path: Path, target: str) -> None:
    """Wide images follow narrow ones, of which a thread has less memory, and the reverse."""
    graph, machine = parse(ANY_WIDTH), eager(target_named(target).machine)
    library = build(planned(ANY_WIDTH), machine, tmp_path)
    for threads in (1, 2, 3):
        with InferenceSession(library, threads=threads) as session:
            names = [o.name for o in session.get_outputs()]
            for batch, width in ((2, 5), (7, 1), (0, 3), (1, 300), (3, 31), (5, 300), (4, 16)):
                given = of_width(batch, width)
                wanted = interpret(graph, given)
                for name, got in zip(names, session.run(None, given), strict=True):
                    assert_agree(name, got, wanted[name], exact=True)


def test_images_whose_size_the_program_computes_take_no_turns() -> None:
    told = """
    graph "three kernels over images of any height"
    symbols batch = 0..64@1, h = 1..24
    dims n = batch, c = 3, d = 6, e = 7, x = 240, y = h
    %x : f32{c,n,x,y} = input "x" [n, y, x, c]
    %w : f32{c,d} = input "w" [c, d]
    %v : f32{d,e} = input "v" [d, e]
    %a : f32{d,n,x,y} = sum{c} %x[c, n, x, y] * %w[c, d]
    %p : f32{e,n,x,y} = sum{d} %a[d, n, x, y] * %v[d, e]
    %q : f32{e,n,x,y} = abs(%p[e, n=batch - 1 - n, x, y])
    output "q" [n, y, x, e] = %q
    """
    turns = "turns {n, n}: %a .. %p"
    assert near(planned(told, turns)) == {"a"}
    computed = told.replace("y = h", "y = h, z = 24").replace(
        '%x : f32{c,n,x,y} = input "x" [n, y, x, c]',
        '%x : f32{c,n,x,z} = input "x" [n, z, x, c]\n'
        '%k : i64{} = input "k" []\n%size : i64{} = bind h = %k',
    )
    with pytest.raises(Illegal, match="is not the same for every index of n"):
        planned(computed.replace("%x[c, n, x, y]", "%x[c, n, x, z=y]"), turns)


def test_kernels_of_short_texts_share_their_rows() -> None:
    """Weights that long ones hide would be read again for each short one."""
    text = LARGE.replace("d = 6, e = 7", "d = 60, e = 70").replace("x = 24, y = 24", "x = m, y = 1")
    assert not sections(chosen(text.replace("0..64@1", "0..64@1, m = 1..1024@512")))
    assert sections(chosen(text.replace("0..64@1", "0..64@1, m = 256..1024@512")))


def test_reading_much_again_for_each_image_does_not_pay() -> None:
    """Weights of a hundred times the size: not even then would they stay near."""
    wide = LARGE.replace("d = 6, e = 7", "d = 60, e = 70").replace("x = 24, y = 24", "x = 8, y = 8")
    assert not sections(chosen(wide))


@pytest.mark.parametrize(("side", "pays"), [(7, False), (9, True)])
def test_reading_again_pays_where_rows_hide_it(side: int, pays: bool) -> None:
    """As many rows of an image as a block has: a fifth of what is read again is waited for."""
    wide = LARGE.replace("d = 6, e = 7", "d = 48, e = 56")
    shown = chosen(wide.replace("x = 24, y = 24", f"x = {side}, y = {side}"))
    assert bool(sections(shown)) == pays


def test_what_does_not_fit_into_a_threads_memory_lies_in_the_arena() -> None:
    plan = planned(NETWORK, machine=replace(V4, l3=1100))
    assert len(near(plan)) == 1
    (section,) = sections(plan)
    assert section.near_bytes <= 1100
    given = inputs_for(3)
    wanted = interpret(plan.graph, given)
    for name, got in run_plan(plan, given).items():
        assert_agree(name, got, wanted[name], exact=True)


def test_chains_of_an_image_are_not_cut_into_images_again() -> None:
    with pytest.raises(Illegal, match="the first kernel has no loops over these dims"):
        planned(NETWORK, LINE, "slices {n} by 1: %p .. %q")


def test_what_one_chain_holds_takes_no_turns() -> None:
    """Its slices are tasks of all images at once, which more threads share."""
    text = CHAIN.replace("k = 5, n = 4, s = 8, t = 7", "k = 16, n = 16, s = 64, t = 64")
    plan = chosen(text, replace(V4, l2=32 << 10))
    assert not sections(plan)
    assert isinstance(plan.steps[0], Repeat)


WIDE = """
graph "products of which those between are too many to stay near of an image"
symbols batch = 0..64@{common}
dims n = batch, c = 3, d = 3, e = 24, f = 3, x = 24, y = 24
%x : f32{{c,n,x,y}} = input "x" [n, y, x, c]
%w : f32{{c,d}} = input "w" [c, d]
%k : f32{{d,e}} = input "k" [d, e]
%v : f32{{e,f}} = input "v" [e, f]
%a : f32{{d,n,x,y}} = sum{{c}} %x[c, n, x, y] * %w[c, d]
%b : f32{{e,n,x,y}} = sum{{d}} %a[d, n, x, y] * %k[d, e]
%q : f32{{f,n,x,y}} = sum{{e}} %b[e, n, x, y] * %v[e, f]
output "q" [n, y, x, f] = %q
"""


@pytest.mark.parametrize("common", [1, 8])
def test_turns_go_on_to_the_end_of_a_chain_of_an_image(common: int) -> None:
    """Its last kernel saves nothing by turns: what it reads stays near slice by slice."""
    plan = chosen(WIDE.format(common=common))
    (section,) = sections(plan)
    assert plan.steps == (section,)
    (sliced,) = groups_in_slices(section)
    assert [g.stored for g in sliced] == [("a",), ("b",), ("q",)]


LARGER = """
graph "windows of which an image has more than stays near"
symbols batch = 0..64@1, side = 1..64@32
dims n = batch, c = 64, d = 24, e = 4, f = 56, x = side, y = side, i = 3
%x : f32{c,n,x,y} = input "x" [n, y, x, c]
%w : f32{c,d} = input "w" [c, d]
%k : f32{e,i} = input "k" [i, e]
%v : f32{d,e,f} = input "v" [d, e, f]
%a : f32{d,n,x,y} = sum{c} %x[c, n, x, y] * %w[c, d]
%b : f32{d,e,n,x,y} = sum{i} %a[d, n, x=x + i - 1, y else 0.0] * %k[e, i]
%q : f32{f,n,x,y} = sum{d,e} %b[d, e, n, x, y] * %v[d, e, f]
output "q" [n, y, x, f] = %q
"""


def test_turns_do_not_end_within_a_chain_of_an_image() -> None:
    """It keeps slice by slice what is too large, though small images have too few rows for it."""
    plan = chosen(LARGER, replace(V4, l2=32 << 10, l3=2 << 20))
    assert [s.kernels for s in plan.assignment.slices] == [("b", "q")]


@pytest.mark.parametrize(("images", "slices"), [(1, 4), (2, 2), (3, 2), (8, 2)])
def test_images_in_turn_are_shared_out_as_slices_are(images: int, slices: int) -> None:
    """Where there are several, slices need be as short as those that are left over want them."""
    plan = chosen(LARGER, replace(V4, l2=32 << 10, l3=2 << 20))
    (section,) = sections(plan)
    inside = (s for r in section.steps for s in r.steps)
    (trips,) = [s.trips for s in inside if isinstance(s, Repeat)]
    assert Index.of(trips).evaluate({"batch": images, "side": 8}) == slices
    assert Index.of(trips).evaluate({"batch": images, "side": 64}) > 4


@pytest.mark.parametrize(("l3", "pays"), [(32 << 20, False), (256 << 10, True), (8 << 10, False)])
def test_turns_keep_in_the_last_cache_what_is_too_large_for_the_second(l3: int, pays: bool) -> None:
    """Where it has room for one image of what passes, and not for eight."""
    plan = chosen(LARGE, replace(V4, l2=4 << 10, l3=l3))
    assert bool(sections(plan)) == pays


def groups_in_slices(section: InTurn) -> list[list[Group]]:
    """The kernels of each chain of a section."""
    around = [s for r in section.steps if isinstance(r, Repeat) for s in r.steps]
    return [list(groups_of(s.steps)) for s in around if isinstance(s, Repeat)]
