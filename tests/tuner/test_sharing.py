"""How launches are shared among threads."""

from dataclasses import replace

import pytest

from rutc.emit.kernel import parallel_loops
from rutc.tensor_ir.indices.affine import ONE, ZERO, Index
from rutc.tensor_ir.kernel import Kernel, Kind
from rutc.tensor_ir.steps import Mark, Part, Peel, apply_schedule
from rutc.tuner import choose
from rutc.tuner.choice import loops_of_long_tasks, worth_threads
from rutc.tuner.sharing import Operand, Piece, Shared, Way, large, share, stored, ways
from tests.machines import V4, eager
from tests.tuner.test_schedules import MACHINE, lowered

THREADS = MACHINE.cores
LAYER = """
graph "layer"
dims y = 28, x = 28, ci = 96, co = 192
%x : f32{y,x,ci} = input "x" [y, x, ci]
%w : f32{ci,co} = input "w" [ci, co]
%z : f32{y,x,co} = sum{ci} %x[y, x, ci] * %w[ci, co]
output "z" [y, x, co] = %z
"""


def scheduled(text: str) -> Kernel:
    kernel, constants = lowered(text)
    return apply_schedule(kernel, choose(kernel, MACHINE, constants).schedule)


def test_a_way_has_a_piece_of_what_depends_on_the_shared_loop() -> None:
    kernel = scheduled(LAYER)
    loops = parallel_loops(kernel)
    names = [b.name for b in kernel.args]
    assert stored(kernel) == {"z"} | {b.name for b in kernel.locals}
    found = ways(kernel, loops, THREADS)
    dims = [
        {n: p.dim if p else None for n, p in zip(names, way.pieces, strict=True)} for way in found
    ]
    assert {"x": None, "w": "co", "z": "co"} in dims
    assert {"x": "y", "w": None, "z": "y"} in dims
    of_rows = found[dims.index({"x": "y", "w": None, "z": "y"})]
    z = of_rows.pieces[names.index("z")]
    assert z is not None
    assert z.run_bytes == 14 * 28 * 192 * 4


def test_a_shorter_last_panel_leaves_rows_to_share() -> None:
    kernel, constants = lowered(LAYER.replace("co = 192", "co = 208"))
    schedule = choose(kernel, MACHINE, constants).schedule
    panels, *rows = parallel_loops(apply_schedule(kernel, schedule))
    assert Peel(panels.var) in schedule
    assert rows


VECTORS_THAT_LEAVE_A_REST = {
    "fused rows": """
        graph "pictures"
        symbols n = 2..3@2
        dims i = n, y = 5, x = 7
        %x : f32{i,y,x} = input "x" [i, y, x]
        %z : f32{i,y,x} = exp(%x[i, y, x])
        output "z" [i, y, x] = %z
        """,
    "columns": """
        graph "columns in another order"
        dims r = 5, c = 2000, k = 1031
        %x : f32{r,c} = input "x" [r, c]
        %at : i64{k} = input "at" [k]
        %y : f32{k,r} = %x[r, c=%at[k]]
        output "y" [r, k] = %y
        """,
}


@pytest.mark.parametrize("kind", VECTORS_THAT_LEAVE_A_REST)
def test_vectors_are_shared_whose_last_one_has_code_of_its_own(kind: str) -> None:
    kernel, constants = lowered(VECTORS_THAT_LEAVE_A_REST[kind])
    schedule = choose(kernel, eager(V4), constants).schedule
    (peeled,) = (s.var for s in schedule if isinstance(s, Peel))
    assert peeled in [x.var for x in parallel_loops(apply_schedule(kernel, schedule))]


def test_a_loop_whose_iterations_have_code_of_their_own_has_pieces() -> None:
    kernel, _ = lowered("""
        graph "halves"
        dims c = 8, y = 4, x = 28
        %x : f32{c,y,x} = input "x" [c, y, x]
        %b : f32{c} = input "b" [c]
        %z : f32{c,y,x} = exp(%x[c, y, x]) + %b[c]
        output "z" [c, y, x] = %z
        """)
    parallel = (Mark("c", Kind.PARALLEL), Mark("y", Kind.PARALLEL))
    whole, apart = (
        apply_schedule(kernel, schedule)
        for schedule in (parallel, (*parallel, Part("y", (1, 2, 3))))
    )
    assert apart != whole
    found, parted = (ways(k, parallel_loops(k), 2) for k in (whole, apart))
    assert parted == found
    of_rows = next(way for way in found if way.turns == 8)
    assert [p and (p.dim, p.run_bytes) for p in of_rows.pieces] == [
        ("y", 2 * 28 * 4),
        None,
        ("y", 2 * 28 * 4),
    ]


def test_loops_whose_iterations_have_the_same_code_are_not_written_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel, _ = lowered(LAYER)
    alike = apply_schedule(kernel, (Mark("y", Kind.PARALLEL),))
    apart = apply_schedule(alike, (Part("y", (1, 27, 28)),))
    found = ways(alike, parallel_loops(alike), THREADS)

    def refuse(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr("rutc.tuner.sharing.with_index", refuse)
    assert ways(alike, parallel_loops(alike), THREADS) == found
    with pytest.raises(AssertionError):
        ways(apart, parallel_loops(apart), THREADS)


def test_turns_divide_the_tasks() -> None:
    kernel = scheduled(LAYER)
    loops = parallel_loops(kernel)
    tasks = 1
    for loop in loops:
        tasks *= (loop.hi - loop.lo).value
    *shared, alone = ways(kernel, loops, THREADS)
    assert alone.alone
    assert alone.turns == 0
    for way in shared:
        assert not way.alone
        assert isinstance(way.turns, int)
        assert tasks % way.turns == 0
        assert way.turns == 1 or tasks // way.turns >= THREADS


def test_a_kernel_without_parallel_loops_has_one_way() -> None:
    (way,) = ways(scheduled(LAYER), (), THREADS)
    assert way.turns == 1
    assert way.alone
    assert not any(way.pieces)


def launch(reads: str, writes: str, size: int, weights: int) -> Shared:
    """A layer that threads may share by channels (1 turn) or by rows (8 turns)."""
    operands = (
        Operand(reads, size, constant=False, stored=False),
        Operand(f"{writes}.w", weights, constant=True, stored=False),
        Operand(writes, size, constant=False, stored=True),
    )
    by_channels = (None, Piece("c", 256), Piece("c", 256))
    by_rows = (Piece("y", size // 2), None, Piece("y", size // 2))
    return Shared(operands, (Way(1, by_channels), Way(8, by_rows, count=8)), 1000)


def test_small_weights_are_shared_by_rows_and_large_ones_by_channels() -> None:
    large = MACHINE.l2 * 8
    small = [launch("a", "b", 1 << 20, 1 << 10), launch("b", "c", 1 << 20, 1 << 10)]
    assert share([*small, launch("q", "r", 1 << 10, large)], MACHINE) == [8, 8, 1]


def test_weights_that_stay_in_the_cache_cost_nothing() -> None:
    assert share([launch("a", "b", 1 << 14, 1 << 18)], MACHINE) == [8]
    streams = launch("c", "d", 1 << 10, MACHINE.l2 * 2)
    assert share([launch("a", "b", 1 << 14, 1 << 18), streams], MACHINE) == [1, 1]


def test_pieces_of_a_few_lines_cost_what_threads_share_of_these() -> None:
    """Longer lines are shared by more of a row's pieces: weights are then read by all threads."""
    size = 1 << 20
    layer = launch("a", "b", size, int(size * MACHINE.memory_bytes_per_cycle) // 2)
    assert share([layer], MACHINE) == [1]
    assert share([layer], replace(MACHINE, line_bytes=2 * MACHINE.line_bytes)) == [8]


def test_neighbours_agree() -> None:
    """One that could go either way follows those around it."""
    x = launch("b", "c", 1 << 20, 0)
    by_channels, by_rows = x.ways
    pieces = (Piece("c", 1 << 16), None, Piece("c", 1 << 16))
    between = replace(x, ways=(replace(by_channels, pieces=pieces), by_rows))
    rows = [launch("a", "b", 1 << 20, 64), between, launch("c", "d", 1 << 20, 64)]
    assert share(rows, MACHINE) == [8, 8, 8]
    alone = [replace(s, ways=s.ways[:1]) if s is not between else s for s in rows]
    assert share(alone, MACHINE)[1] == 1


def test_small_launches_stay_on_the_thread_that_has_their_values() -> None:
    """They are shared where neighbours are, and where they take long."""
    alone = Way(0, (None, None, None), alone=True)

    def choice(flops: int, neighbour: tuple[Way, ...]) -> int:
        before, after = launch("a", "b", 1 << 17, 64), launch("c", "d", 1 << 17, 64)
        between = launch("b", "c", 1 << 17, 64)
        launches = [
            replace(before, ways=neighbour),
            replace(between, ways=(*between.ways, alone), flops=flops),
            replace(after, ways=neighbour),
        ]
        turns = share(launches, MACHINE)[1]
        assert isinstance(turns, int)
        return turns

    by_rows = launch("a", "b", 1 << 17, 64).ways[1:]
    assert choice(1000, (alone,)) == 0
    assert choice(1000, by_rows) == 8
    assert choice(100_000_000, (alone,)) == 8


def test_a_launch_of_symbolic_size_is_shared_in_runs_that_make_it_large() -> None:
    n, sizes = Index.of("n"), {"n": (1, 512)}
    least = worth_threads(MACHINE)
    moved = n * least // 100 * int(MACHINE.l2_bytes_per_cycle / 2)
    found = large(ZERO, moved, sizes, MACHINE)
    shared = [bool(found.evaluate({"n": k})) for k in range(1, 513)]
    assert not shared[0]
    assert shared == sorted(shared)
    assert 90 <= shared.index(True) <= 110
    operations = n * least * 1000
    assert large(operations, ZERO, sizes, MACHINE) == ONE


def test_what_has_one_size_or_any_is_shared_as_its_schedule_has_it() -> None:
    huge = {"n": (0, 1 << 62)}
    assert large(ONE, ONE, {}, MACHINE) == ONE
    assert large(ZERO, Index.of("n") * Index.of("n"), huge, MACHINE) == ONE


def test_what_takes_no_longer_than_to_go_on_is_no_task() -> None:
    turn = MACHINE.turn_cycles
    rows, columns = 576, 14
    assert loops_of_long_tasks((rows, columns), rows * columns * (turn + 1), MACHINE) is None
    assert loops_of_long_tasks((rows, columns), rows * columns * (turn - 1), MACHINE) == 1
    assert loops_of_long_tasks((rows, columns, 2), rows * columns * turn, MACHINE) == 2
    assert loops_of_long_tasks((rows,), rows, MACHINE) is None


def test_rows_of_a_few_bytes_are_shared_by_images() -> None:
    kernel = scheduled("""
graph "copy"
dims c = 1024, y = 14, x = 14, r = 16
%x : u8{c,y,r} = input "x" [c, y, r]
%w : u8{c,y,x} = %x[c, y, r=x+1]
output "w" [c, y, x] = %w
""")
    assert [loop.hi.value for loop in parallel_loops(kernel)] == [1024]


def test_a_slow_machine_has_less_than_an_operation_a_cycle() -> None:
    slow = replace(MACHINE, vector_bits=32, fma_per_cycle=0.5)
    found = large(Index.of("n"), ZERO, {"n": (1, 1 << 20)}, slow)
    assert [found.evaluate({"n": k}) for k in (1, 1 << 20)] == [0, 1]
