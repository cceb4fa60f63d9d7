"""Every number that decisions depend on has its place, and no other.

What says what something costs, or from where on it pays, is a coefficient: a field of
`tensor_ir/coefficients.py`, or of `tensor_ir/cost/fitted.py`, which is fitted by a script. What a
machine does stands in `Machine`. Other modules that decide have *limits*: they bound code, time or
memory, or are facts of a format or an instruction; no measurement changes them. How searches go
about it stands in their module. Whoever adds a number says here which it is.
"""

import ast
import json
from dataclasses import fields
from pathlib import Path

from rutc.tensor_ir.coefficients import COEFFICIENTS, FILE, GROUPS

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("graph_opt", "tuner", "tensor_ir/cost")
FILES = (
    "driver/build.py",
    "driver/plan_cost.py",
    "emit/dot.py",
    "importer/ops/sieves.py",
    "tensor_ir/windows.py",
)

LIMITS: dict[str, tuple[str, ...]] = {
    "graph_opt/alternatives/factor_parts.py": ("HIGHEST", "SMALLEST"),
    "graph_opt/alternatives/filtering.py": ("MOST_GROWTH", "MOST_FILTERED"),
    "graph_opt/algorithms.py": ("TINY", "ROUNDING"),
    "graph_opt/alternatives/window_rows.py": ("MOST_CHANNELS",),
    "graph_opt/bf16_parts.py": ("LARGEST", "BLOCK"),
    "graph_opt/decide/chains.py": ("FEWEST_SLICES", "MOST_MEMBERS"),
    "graph_opt/decide/fusion.py": ("MOST_OPERATIONS",),
    "graph_opt/decide/halo.py": ("MOST_HALO", "UNKNOWN"),
    "graph_opt/decide/recompute.py": ("MOST_FOLLOWING",),
    "graph_opt/decide/joins.py": ("NEIGHBOURS",),
    "graph_opt/decide/layout.py": ("SWEEPS", "LESS"),
    "graph_opt/decide/memory.py": ("SPAN", "ROUNDS"),
    "graph_opt/decide/own_lines.py": ("ALIGNMENT", "AROUND", "ROUNDS"),
    "graph_opt/decide/searches.py": ("MOST_POINTS",),
    "graph_opt/decide/slices.py": ("MOST_DIMS",),
    "graph_opt/decide/stored_types.py": ("COARSEST",),
    "graph_opt/decide/turns.py": ("WEIGHED",),
    "graph_opt/four_bits.py": ("BLOCK",),
    "graph_opt/minimal_filter.py": ("PIECE_BYTES",),
    "graph_opt/quantise.py": ("LARGEST", "COARSER", "MOST"),
    "graph_opt/magnitudes.py": ("MOST_NESTS",),
    "graph_opt/rewrite.py": ("MOST_ROUNDS",),
    "graph_opt/rounding.py": ("MOST_ELEMENTS",),
    "graph_opt/row_runs.py": ("ROWS", "COLUMNS"),
    "graph_opt/rules/elements.py": ("MOST_PROGRESSION", "MOST_IN_INDEX"),
    "graph_opt/rules/filter_whole.py": ("LARGEST", "LARGEST_FACTOR"),
    "graph_opt/rules/narrow.py": ("LARGEST_SUM",),
    "graph_opt/rules/normalize.py": ("SAMPLES",),
    "graph_opt/rules/phases.py": ("MOST_PHASES",),
    "graph_opt/rules/requantise.py": ("EXACT", "MOST_NESTS"),
    "graph_opt/rules/scale.py": ("MOST_STEPS",),
    "graph_opt/sum_weights.py": ("INPUTS", "LEAST_SHARE"),
    "graph_opt/versions.py": ("MOST_PLACES",),
    "importer/ops/sieves.py": ("BITS", "LANES"),
    "tensor_ir/cost/addresses.py": ("MOST_DISTINCT", "HALF", "WIDE_UNIT_BITS"),
    "tensor_ir/cost/counting.py": ("MOST_COPIES", "ROWS"),
    "tensor_ir/cost/estimate.py": ("TINY",),
    "tensor_ir/cost/frames.py": ("SAMPLES",),
    "tensor_ir/cost/operations.py": ("DIVIDED", "EXTREMES", "JOINED"),
    "tensor_ir/cost/work.py": ("LEVELS",),
    "tensor_ir/windows.py": ("MOST_TAPS",),
    "tuner/columns.py": ("COLUMNS",),
    "tuner/across.py": ("WORD",),
    "tuner/arms.py": ("LONGEST", "MOST_ARMS", "MOST_TURNS"),
    "tuner/engine.py": ("PATIENCE_S", "PAUSE_S", "COLLISIONS", "REACH_S"),
    "tuner/exchange.py": ("FORMAT", "LONGEST"),
    "tuner/factors.py": ("OPERATIONS",),
    "tuner/passes.py": ("MOST_PARTS", "MOST_TILES"),
    "tuner/sharing.py": ("SWEEPS", "MOST_CYCLES"),
    "tuner/space.py": ("MOST_TRIED",),
    "tuner/stored.py": ("CHUNK",),
    "tuner/sums.py": ("PAIRED", "SUMMANDS"),
    "tuner/tables.py": ("VERSION",),
    "tuner/templates/matrix.py": (
        "ROWS",
        "GROUP_BYTES",
        "ROW_BYTES",
        "MOST_BLOCKS",
        "MOST_PERMUTED",
    ),
    "tuner/templates/pointwise.py": ("MOST_PERMUTED", "MOST_PARTED"),
    "tuner/templates/rows.py": ("MOST_WRITTEN_OUT", "MOST_PERMUTED"),
    "tuner/templates/running.py": ("MOST_PERMUTED",),
    "tuner/templates/scatter.py": ("MOST_PERMUTED",),
    "tuner/templates/tiled.py": ("MOST_WRITTEN_OUT", "MOST_OF_LONG", "MOST_BETWEEN", "MOST_LINES"),
    "tuner/templates/tilings.py": ("SHORTEST_BLOCK",),
    "tuner/templates/windows.py": ("MOST_PERMUTED",),
    "tuner/vectors.py": ("MOST_AT_ONCE",),
    "tuner/window_tiles.py": ("MOST_WRITTEN_OUT", "MOST_APART", "MOST_ROWS"),
    "tuner/tile_registers.py": ("LONGEST_UNROLLED",),
    "tuner/tiles.py": ("MOST_VECTORS",),
}
"""File -> the limits in it."""

SEARCHES: dict[str, tuple[str, ...]] = {
    "tuner/search.py": (
        "CHAINS",
        "STEPS",
        "RANDOM_EVERY",
        "LIKED_SPREAD",
        "MOST_KNOWN",
    ),
    "tuner/seeds.py": ("SEEDS",),
}
"""File -> how a search goes about it: it changes which schedules are tried, not what one does."""


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


def test_every_number_is_a_limit_or_of_a_search() -> None:
    for path in _files():
        name = str(path.relative_to(ROOT))
        limits, searches = (set(t.get(name, ())) for t in (LIMITS, SEARCHES))
        assert limits.isdisjoint(searches), name
        assert _numbers(path) == limits | searches, name


def test_the_lists_name_files_that_there_are() -> None:
    known = {str(p.relative_to(ROOT)) for p in _files()}
    assert LIMITS.keys() | SEARCHES.keys() <= known


def test_coefficients_are_those_of_their_file() -> None:
    known = json.loads(FILE.read_text())
    assert {g: set(own) for g, own in known.items()} == {
        g: {f.name for f in fields(made)} for g, made in GROUPS.items()
    }


def test_every_coefficient_is_used() -> None:
    sources = [
        p
        for f in (*FOLDERS, "driver", "emit", "importer")
        for p in sorted((ROOT / f).rglob("*.py"))
    ]
    read = {
        n.attr
        for p in sources
        for n in ast.walk(ast.parse(p.read_text(encoding="utf-8")))
        if isinstance(n, ast.Attribute)
    }
    for group in GROUPS:
        unused = {f.name for f in fields(getattr(COEFFICIENTS, group))} - read
        assert not unused, (group, unused)


def test_numbers_are_found(tmp_path: Path) -> None:
    path = tmp_path / "some.py"
    path.write_text("A = 1\nB: float = -2 * 3.5\nC = A + 1\nd = 4\nE = (1, 2)\nF = True\n")
    assert _numbers(path) == {"A", "B"}
