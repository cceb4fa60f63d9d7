"""Every number that decisions depend on is of one of two kinds, which these lists tell.

A *weight* says what something costs or from where on it pays: it is fitted by hand to kernels that
were measured, and gives way to `tensor_ir/cost`, whose constants are fitted by a script. A *limit*
bounds code, time or memory, or is a fact of a format or an instruction; no measurement changes it.
Whoever adds a number says here which it is; weights only get fewer.
"""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("graph_opt", "tuner", "tensor_ir/cost")
FILES = ("driver/build.py", "driver/plan_cost.py", "emit/dot.py", "tensor_ir/windows.py")

WEIGHTS: dict[str, tuple[str, ...]] = {
    "driver/build.py": ("WAKES",),
    "driver/plan_cost.py": ("GATHER_CYCLES",),
    "emit/dot.py": ("FEW_REGISTERS",),
    "tensor_ir/cost/accesses.py": ("LEAST_TRANSPOSED", "JOINED"),
    "tensor_ir/cost/counting.py": ("DIVIDED",),
    "tensor_ir/cost/operations.py": ("EXTREMES",),
    "tensor_ir/cost/work.py": ("FORWARD",),
    "tensor_ir/windows.py": ("LEAST_GAIN", "FEW_STEPS", "MOST_TAPS"),
    "tuner/across.py": ("SHORTEST",),
    "tuner/blocking.py": (
        "PANEL_SHARE",
        "LINES_SHARE",
        "BUSY_SHARE",
        "NEAR_STEPS",
        "FAR_BYTES",
        "FEW_TILES",
        "FEWEST_TILES",
        "FEW_USES",
        "FEW_LINES",
        "MOST_UNEVEN",
        "SHORTEST_BLOCK",
    ),
    "tuner/choice.py": ("LAUNCHES",),
    "tuner/passes.py": ("SHORTEST",),
    "tuner/sharing.py": ("SPILL_BYTES", "TURN_CYCLES", "CACHE_BYTES", "LEAST_CYCLES", "EFFICIENCY"),
    "tuner/templates/matrix.py": ("SHORTEST_BYTES", "FEWEST_ROWS"),
    "tuner/templates/rows.py": ("LONG",),
    "tuner/templates/tiled.py": ("REUSE", "STREAM_BYTES", "NEAR_LINES", "FEW_STEPS", "MOST_LINES"),
    "tuner/templates/windows.py": (
        "LOADED",
        "HELD",
        "TILE_CYCLES",
        "AHEAD_BYTES",
        "MOST_ROWS",
        "MOST_VECTORS",
    ),
    "tuner/tile_cost.py": (
        "SPARE",
        "TIGHT",
        "LOOP_CYCLES",
        "TESTED",
        "TOGETHER",
        "SPILL",
        "STREAM_SHARE",
        "LANE_LOAD",
        "LANE_STREAM_SHARE",
    ),
    "tuner/tile_loads.py": (
        "LOAD_BITS",
        "LINES_ANEW",
        "EVICTED_CYCLES",
        "SHORTEST_ROW",
        "FAR",
        "UNKNOWN",
        "APART",
    ),
    "tuner/vectors.py": ("MOST_COPIES", "OPERATIONS_TOGETHER"),
}
"""File -> the weights in it."""
MOST_WEIGHTS = 111

LIMITS: dict[str, tuple[str, ...]] = {
    "driver/build.py": ("MOST_CYCLES",),
    "graph_opt/alternatives/filtering.py": ("MOST_GROWTH", "MOST_FILTERED"),
    "graph_opt/alternatives/split_precision.py": (
        "HIGHEST",
        "LARGEST",
        "SMALLEST",
        "COLUMNS",
        "BLOCK",
        "GROWTH",
    ),
    "graph_opt/decide/chains.py": ("MOST_MEMBERS",),
    "graph_opt/decide/fusion.py": ("MOST_OPERATIONS",),
    "graph_opt/decide/halo.py": ("UNKNOWN",),
    "graph_opt/decide/layout.py": ("SWEEPS",),
    "graph_opt/decide/memory.py": ("ALIGNMENT", "SPAN"),
    "graph_opt/decide/realise.py": ("NEIGHBOURS",),
    "graph_opt/decide/searches.py": ("MOST_POINTS",),
    "graph_opt/decide/slices.py": ("MOST_DIMS",),
    "graph_opt/rewrite.py": ("MOST_ROUNDS",),
    "graph_opt/rounding.py": ("MOST_ELEMENTS",),
    "graph_opt/row_runs.py": ("ROWS",),
    "graph_opt/rules/elements.py": ("MOST_PROGRESSION", "MOST_IN_INDEX"),
    "graph_opt/rules/filter_whole.py": ("LARGEST", "LARGEST_FACTOR"),
    "graph_opt/rules/narrow.py": ("LARGEST_SUM",),
    "graph_opt/rules/normalize.py": ("SAMPLES",),
    "graph_opt/rules/phases.py": ("MOST_PHASES",),
    "graph_opt/rules/scale.py": ("MOST_STEPS",),
    "graph_opt/sum_weights.py": ("INPUTS", "LEAST_SHARE"),
    "tensor_ir/cost/addresses.py": ("MOST_DISTINCT", "WIDE_UNIT_BITS"),
    "tensor_ir/cost/counting.py": ("MOST_COPIES", "ROWS"),
    "tensor_ir/cost/estimate.py": ("TINY",),
    "tensor_ir/cost/frames.py": ("SAMPLES",),
    "tensor_ir/cost/work.py": ("LEVELS",),
    "tuner/access.py": ("SOME",),
    "tuner/arms.py": ("LONGEST", "MOST_TURNS"),
    "tuner/passes.py": ("MOST_PARTS", "MOST_TILES"),
    "tuner/sharing.py": ("SWEEPS",),
    "tuner/space.py": ("MOST_TRIED",),
    "tuner/sums.py": ("SUMMANDS",),
    "tuner/templates/matrix.py": (
        "ROWS",
        "COLUMNS",
        "GROUP_BYTES",
        "ROW_BYTES",
        "MOST_BLOCKS",
        "MOST_PERMUTED",
    ),
    "tuner/templates/pointwise.py": ("MOST_ARMS", "MOST_PERMUTED", "MOST_PARTED"),
    "tuner/templates/rows.py": ("MOST_WRITTEN_OUT", "MOST_PERMUTED"),
    "tuner/templates/scatter.py": ("MOST_PERMUTED",),
    "tuner/templates/tiled.py": ("MOST_BETWEEN",),
    "tuner/templates/tilings.py": ("SHORTEST_BLOCK",),
    "tuner/templates/windows.py": ("MOST_WRITTEN_OUT", "MOST_APART", "MOST_PERMUTED"),
    "tuner/tile_cost.py": ("LONGEST_UNROLLED",),
    "tuner/tiles.py": ("MOST_VECTORS",),
}
"""File -> the limits in it."""


def _numbers(path: Path) -> set[str]:
    """The names of a file's constants that are numbers."""
    found = set()
    for n in ast.parse(path.read_text(encoding="utf-8")).body:
        match n:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                pass
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                pass
            case _:
                continue
        if name.isupper() and _is_number(value):
            found.add(name)
    return found


def _is_number(e: ast.expr) -> bool:
    parts = [x for x in ast.walk(e) if not isinstance(x, ast.operator | ast.unaryop)]
    return all(
        isinstance(x, ast.BinOp | ast.UnaryOp)
        or (isinstance(x, ast.Constant) and type(x.value) in (int, float))
        for x in parts
    )


def _files() -> list[Path]:
    found = [p for f in FOLDERS for p in sorted((ROOT / f).rglob("*.py"))]
    return [*found, *(ROOT / f for f in FILES)]


def test_every_number_is_a_weight_or_a_limit() -> None:
    for path in _files():
        name = str(path.relative_to(ROOT))
        weights, limits = (set(t.get(name, ())) for t in (WEIGHTS, LIMITS))
        assert weights.isdisjoint(limits), name
        assert _numbers(path) == weights | limits, name


def test_the_lists_name_files_that_there_are() -> None:
    known = {str(p.relative_to(ROOT)) for p in _files()}
    assert WEIGHTS.keys() | LIMITS.keys() <= known


def test_weights_do_not_become_more() -> None:
    assert sum(map(len, WEIGHTS.values())) <= MOST_WEIGHTS


def test_numbers_are_found(tmp_path: Path) -> None:
    path = tmp_path / "some.py"
    path.write_text("A = 1\nB: float = -2 * 3.5\nC = A + 1\nd = 4\nE = (1, 2)\nF = True\n")
    assert _numbers(path) == {"A", "B"}
