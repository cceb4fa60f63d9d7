"""Schedule steps: golden texts of what they do and refuse, and that they keep kernels' meaning.

A golden file holds a graph, whose nests are lowered as one group over the dims of the first one,
and one section per schedule: the kernel after it, or why it does not apply.
"""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rutc.errors import InternalError
from rutc.tensor_ir import DType, Index, Lit, Nest
from rutc.tensor_ir.canonical import canonical
from rutc.tensor_ir.expr import Read
from rutc.tensor_ir.graph import Value
from rutc.tensor_ir.indices.affine import plain
from rutc.tensor_ir.interpreter.interpret_kernel import interpret_kernel
from rutc.tensor_ir.kernel import Access, Assign, Branch, Buffer, Kernel, Kind, Loop, Space, Stmt
from rutc.tensor_ir.layout import dense, pack
from rutc.tensor_ir.lower import Group, halo_kernel, lower
from rutc.tensor_ir.statements import walk_stmts
from rutc.tensor_ir.steps import (
    BlockReduction,
    Cut,
    Fuse,
    NotApplicable,
    Peel,
    Prepare,
    Reorder,
    Schedule,
    Split,
    Tile,
    apply_schedule,
    parse_schedule,
    print_schedule,
)
from rutc.tensor_ir.steps.text import STEPS
from rutc.tensor_ir.textual.parse import parse
from rutc.tensor_ir.verifier import verify
from tests.examples import examples
from tests.kernels import Case, cases, scheduled
from tests.work import calls_counted

GOLDEN = sorted((Path(__file__).parent / "golden" / "steps").glob("*.txt"))


def kernel_of(text: str) -> Kernel:
    """The kernel of all nests of a graph, everything in the order of its axes."""
    graph = parse(text)
    verify(graph)
    extents = {d: plain(e) for d, e in graph.dims}
    stages = tuple(n for n in graph.nodes if isinstance(n, Nest))
    layouts = {n.out.name: dense(n.axes, extents) for n in graph.inputs}
    layouts |= {o.value: dense(o.axes, extents) for o in graph.outputs}
    group = Group(graph.name, stages, stages[0].out.dims, tuple(o.value for o in graph.outputs))
    return lower(group, graph.values, layouts, extents, dict(graph.symbols))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda p: p.stem)
def test_golden(path: Path, update_golden: bool) -> None:
    text = path.read_text(encoding="utf-8")
    source, *_ = text.partition("=== ")
    kernel = kernel_of(source)
    schedules = [s for s in re.findall(r"^=== (.*) ===$", text, re.MULTILINE) if s != "lowered"]
    sections = [source, f"=== lowered ===\n{kernel}\n\n"]
    for schedule in schedules:
        try:
            result = str(apply_schedule(kernel, parse_schedule(schedule)))
        except NotApplicable as reason:
            result = f"does not apply: {reason}"
        sections.append(f"=== {schedule} ===\n{result}\n\n")
    got = "".join(sections).rstrip() + "\n"
    if update_golden:
        path.write_text(got, encoding="utf-8")
    assert got == path.read_text(encoding="utf-8"), f"{path.name}: see --update-golden"


def test_every_step_has_a_golden_text() -> None:
    assert set(STEPS) <= {p.stem for p in GOLDEN}


# -- the text form ------------------------------------------------------------------------------
def test_schedules_print_and_parse_back() -> None:
    schedule = (
        Split("x", 12),
        Tile(("a", "b c"), (Kind.UNROLL, Kind.VECTOR)),
        Cut("x'\\\n", (1, -2)),
        Reorder(("y", "x")),
        BlockReduction("k", 4, "i", "out"),
    )
    text = print_schedule(schedule)
    assert text.startswith("split(x, 12); tile([a, 'b c'], [unroll, vector]); cut(")
    assert parse_schedule(text) == schedule
    assert parse_schedule("") == ()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("spilt(x, 2)", "'spilt' is no step"),
        ("split(x)", "split takes var, factor: got 1 fields"),
        ("prepare(w, y)", "prepare takes buffer, outside, loops, least: got 2 fields"),
        ("split(2, x)", "split's var cannot be 2"),
        ("mark(x, fast)", "mark's kind cannot be fast"),
        ("tile(x, vector)", "tile's loops cannot be x"),
        ("split(x, 2", "'the end' stands where ',' is missing"),
        ("split(x,", "the schedule ends where ')' is missing"),
        ("split(x, 2) peel(x)", "'peel' stands where ';' is missing"),
        ("split(x; 2)", "';' stands where ',' is missing"),
        ("split(x, )", "')' stands where a field is missing"),
        ("split x", "'x' stands where '(' is missing"),
        ("split(x, 2); ", "'' is no step"),
        ("split(x, 2) ?", "no token of a schedule: ' ?'"),
    ],
)
def test_what_is_no_schedule(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        parse_schedule(text)


def test_schedules_on_record_may_lack_fields_that_have_defaults() -> None:
    (older,) = parse_schedule("prepare(w, y, [k, n])")
    assert older == Prepare("w", "y", ("k", "n"))
    assert parse_schedule(str(older)) == (older,)


def test_what_is_prepared_of_finite_numbers_is_finite() -> None:
    """Windows leave out what lies outside where it meets such numbers, however these are stored."""
    kernel = kernel_of("""
graph "windows"
dims a = 5, k = 3, n = 4, y = 5
%x : f32{a} = input "x" [a]
%w : bf16{k,n} = input "w" [k, n]
%y : f32{n,y} = sum{k} %x[a=y + 4*k - 4 else 0.0] * f32(%w[k, n])
output "y" [y, n] = %y
""")
    schedule = parse_schedule("reorder([y, n]); prepare(w, y, [k, n], 2); inside([k])")
    with pytest.raises(NotApplicable, match="no iteration of k is known to be outside"):
        apply_schedule(kernel, schedule)
    finite = tuple(replace(b, finite=b.name == "w") for b in kernel.args)
    after = str(apply_schedule(replace(kernel, args=finite), schedule))
    assert "%w.prepared: f32 [k, n] stack finite" in after
    assert "else 0.0" not in after


# -- meaning ------------------------------------------------------------------------------------
def check(case: Case, kernel: Kernel) -> None:
    """Run the kernel and compare what it stores with the graph's interpretation."""
    arrays = case.arrays()
    memory = case.memory(arrays, kernel)
    interpret_kernel(kernel, memory)
    case.check(memory, arrays)


@examples(150)
@given(cases())
def test_lowering_keeps_the_meaning(case: Case) -> None:
    check(case, case.kernel())


@examples(300)
@given(cases(), st.data())
def test_steps_keep_the_meaning(case: Case, data: st.DataObject) -> None:
    kernel, schedule = data.draw(scheduled(case.kernel(), 6))
    assert parse_schedule(print_schedule(schedule)) == schedule
    check(case, kernel)


@examples(60)
@given(cases(["contraction", "window", "reduction"]), st.data())
def test_blocked_reductions_keep_the_meaning(case: Case, data: st.DataObject) -> None:
    kernel = case.kernel()
    bound = case.group.stages[0].bound
    blocked: list[Kernel] = []
    for outside in case.group.shared[:1]:
        for var in bound:
            for output in (*case.group.stored, "parts"):
                step = BlockReduction(var, data.draw(st.sampled_from([2, 3, 8])), outside, output)
                try:
                    blocked.append(step.apply(kernel))
                except NotApplicable:
                    continue
    assume(blocked)
    for k in blocked:
        check(case, data.draw(scheduled(k, 4))[0])


@examples(50)
@given(cases(), st.data())
def test_renaming_keeps_the_meaning(case: Case, data: st.DataObject) -> None:
    kernel, _ = data.draw(scheduled(case.kernel(), 3))
    renamed = canonical(kernel)
    arrays = case.arrays()
    memory = case.memory(arrays, kernel)
    names = {old: new for new, old in renamed.buffers.items()}
    interpret_kernel(renamed.kernel, {names[name]: array for name, array in memory.items()})
    case.check(memory, arrays)
    again = canonical(renamed.kernel)
    assert again.kernel == renamed.kernel


def test_kernels_over_parts_of_different_values_are_different() -> None:
    text = """
        graph "part"
        dims a = 4, b = {b}, c = 3
        %x : f32{{b,c}} = input "x" [c, b]
        %y : f32{{a,c}} = %x[b=a, c]
        output "y" [a, c] = %y
    """
    short, long = (canonical(kernel_of(text.format(b=b))).kernel for b in (5, 6))
    assert str(short) == str(long)
    assert short != long


@pytest.mark.parametrize("blocks", [{}, {"x": 4}], ids=["dense", "blocked"])
def test_halos_are_filled_and_nothing_else(blocks: dict[str, int]) -> None:
    extents = {"x": 5, "y": 3, "z": 2}
    fill = Lit(-1.0, DType.F32)
    halo = {"x": (1, 2), "y": (0, 1)}
    layout = dense(["y", "z", "x"], extents, halo=halo, fill=fill, blocks=blocks)
    kernel = halo_kernel(Value("v", DType.F32, ("x", "y", "z")), layout, extents)
    assert kernel is not None
    memory = np.zeros(layout.elements, np.float32)
    interpret_kernel(kernel, {"v": memory})
    inside = np.zeros((5, 3, 2), np.float32)
    assert (memory[pack(inside, ["x", "y", "z"], layout) == 0] == 0).all()
    filled = (memory == -1).sum()
    assert filled == (5 + 3) * (3 + 1) * 2 - 5 * 3 * 2


# -- what the language forbids ------------------------------------------------------------------
X = Buffer("x", DType.F32, dense(["i"], {"i": 4}))
ACC = Buffer("acc", DType.F32, dense([], {}), Space.REGISTER)


def loop(*body: Stmt, var: str = "i", extent: int = 4) -> Loop:
    return Loop(var, Index.of(0), Index.of(extent), Kind.SERIAL, body)


def element(at: Index | str) -> Read:
    return Read("x", (("i", Index.of(at)),), DType.F32)


@pytest.mark.parametrize(
    ("stmt", "reason"),
    [
        (loop(Assign(Access("acc"), element(Index.of("i") + 1))), "%x[i=i + 1] is read at 4 of 4"),
        (loop(Assign(Access("x", (("i", Index.of("i") - 1),)), Lit(0, DType.F32))), "at i=-1"),
        (Assign(Access("x", (("i", Index.of(0)),)), Read("acc", (), DType.F32)), "before it was"),
        (Assign(Access("acc"), element("i")), "i uses ['i'] outside of their loops"),
        (Assign(Access("acc"), Lit(0, DType.F64)), "float64 is stored to %acc of f32"),
    ],
)
def test_forbidden(stmt: Stmt, reason: str) -> None:
    kernel = Kernel("k", (X,), (ACC,), (stmt,))
    with pytest.raises(InternalError, match=re.escape(reason)):
        interpret_kernel(kernel, {"x": np.zeros(4, np.float32)})


def test_arguments_must_fit() -> None:
    kernel = Kernel("k", (X,), (), ())
    with pytest.raises(InternalError, match=r"%x takes 4 elements of f32, not float32\[3\]"):
        interpret_kernel(kernel, {"x": np.zeros(3, np.float32)})
    twice = Kernel("k", (X,), (replace(ACC, name="x"),), ())
    with pytest.raises(InternalError, match="two buffers are named %x"):
        interpret_kernel(twice, {"x": np.zeros(4, np.float32)})


# -- refusals that no lowered kernel meets ------------------------------------------------------
def test_bounds_that_are_not_constant() -> None:
    inner = Loop("j", Index.of("i"), Index.of("i") + 2, Kind.SERIAL, ())
    kernel = Kernel("k", (), (), (loop(inner),))
    with pytest.raises(NotApplicable, match="the bounds of j are not constant"):
        Peel("j").apply(kernel)
    with pytest.raises(NotApplicable, match="the bounds of j depend on i"):
        Fuse("i", "j", "ij").apply(kernel)
    with pytest.raises(NotApplicable, match="j does not start at 0"):
        Tile(("j",), (Kind.UNROLL,)).apply(kernel)
    assert len(list(walk_stmts(Split("j", 2).apply(kernel).body))) == 3


@pytest.mark.parametrize("ends", [Index.of(2), Index.of("i") + 1])
def test_peeled_inside_of_parallel_loops_whose_ends_are_the_same(ends: Index) -> None:
    inner = Loop("j", Index.of(0), ends, Kind.PARALLEL, (Assign(Access("acc"), element("i")),))
    outer = Loop("i", Index.of(0), Index.of(4), Kind.PARALLEL, (inner,))
    (made,) = Peel("i").apply(Kernel("k", (X,), (ACC,), (outer,))).body
    assert isinstance(made, Loop)
    (within,) = made.body
    assert isinstance(within, Branch if "i" in ends.names() else Loop)


def test_iterations_that_keep_different_values_in_one_place() -> None:
    """A row of what one j needs stands on the stack: a tile of j has no row for each."""
    kernel = kernel_of(
        """
        graph "case"
        dims i = 3, j = 3
        %x : f32{i,j} = input "x" [i, j]
        %most : f32{j} = max{i} %x[i, j]
        %less : f32{i,j} = %x[i, j] - %most[j]
        %y : f32{j} = sum{i} %less[i, j]
        output "y" [j] = %y
        """
    )
    with pytest.raises(NotApplicable, match=r"iterations of j share places of %less.local"):
        Tile(("j",), (Kind.UNROLL,)).apply(kernel)


def test_unrolled_loops_whose_bounds_depend_on_one_moved_with_them() -> None:
    kernel = kernel_of(
        """
        graph "copy"
        dims i = 3
        %x : f32{i} = input "x" [i]
        %y : f32{i} = %x[i]
        output "y" [i] = %y
        """
    )
    schedule = parse_schedule(
        "split(i, 2); split(i.o, 2); split(i.o.i, 2); fuse(i.o.o, i.o.i.o, outer); "
        "tile([i.o.i.i, i.i], [unroll, unroll])"
    )
    with pytest.raises(NotApplicable, match=r"the bounds of i.i depend on i.o.i.i"):
        apply_schedule(kernel, schedule)


def _sum_of_turned(count: int) -> Kernel:
    """A sum of so many operands, whose result lies across them."""
    names = [f"x{i}" for i in range(count)]
    inputs = "\n".join(f'%{n} : f32{{i,j}} = input "{n}" [i, j]' for n in names)
    return kernel_of(
        f"""
        graph "sum"
        dims i = 4, j = 8
        {inputs}
        %y : f32{{i,j}} = {" + ".join(f"%{n}[i, j]" for n in names)}
        output "y" [j, i] = %y
        """
    )


def _with_tiles(count: int) -> Schedule:
    steps = [f"preload(x{i}, [i, j])" for i in range(count)]
    return parse_schedule("; ".join(["tile([i, j], [unroll, vector])", *steps]))


def test_tiles_of_many_operands_are_those_of_each_after_the_other() -> None:
    kernel, schedule = _sum_of_turned(5), _with_tiles(5)
    one_by_one = kernel
    for step in schedule:
        one_by_one = step.apply(one_by_one)
    assert apply_schedule(kernel, schedule) == one_by_one
    for more, reason in (
        ("preload(x1, [i, j])", r"preload\(x1, \[i, j\]\): there are registers %x1.tile already"),
        ("preload(z, [i, j])", r"preload\(z, \[i, j\]\): %z is read at 0 places, not at one"),
    ):
        with pytest.raises(NotApplicable, match=f"^{reason}$"):
            apply_schedule(kernel, (*schedule, *parse_schedule(more)))


def test_tiles_of_many_operands_take_work_in_proportion() -> None:
    counts: list[int] = []
    for count in (20, 20, 40, 80):
        kernel, schedule = _sum_of_turned(count), _with_tiles(count)
        with calls_counted() as made:
            apply_schedule(kernel, schedule)
        counts.append(made[0])
    _, one, two, four = counts
    assert four - two <= 2.1 * (two - one)
