"""Every number that decisions depend on has its place, and no other.

What says what something costs, or from where on it pays, is a coefficient: a field of
`tensor_ir/coefficients.py`, or of `tensor_ir/cost/fitted.py`, which is fitted by a script. What a
machine does stands in `Machine`. Other modules that decide have *limits*: they bound code, time or
memory, or are facts of a format or an instruction; no measurement changes them. How searches go
about it stands in their module, and which values a parameter of a space may have in the template's.
Numbers without a name are *facts*, or *defaults* of a pass's options; *weights* are coefficients
that have no name yet, and become fewer. Whoever adds a number says here which it is.
"""

import ast
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields
from pathlib import Path

import pytest

from rutc.tensor_ir.coefficients import COEFFICIENTS, FILE, GROUPS

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("graph_opt", "tuner", "tensor_ir/cost")
FILES = (
    "driver/parts/build.py",
    "driver/parts/plan_cost.py",
    "emit/dot.py",
    "importer/ops/sieves.py",
    "tensor_ir/facts/matrix_blocks.py",
    "tensor_ir/facts/windows.py",
)

LIMITS: dict[str, tuple[str, ...]] = {
    "driver/parts/plan_cost.py": ("ARMS",),
    "graph_opt/alternatives/factor_parts.py": ("HIGHEST", "SMALLEST", "TERMS"),
    "graph_opt/alternatives/filtering.py": ("MOST_GROWTH", "MOST_FILTERED"),
    "graph_opt/algorithms.py": ("TINY", "ROUNDING"),
    "graph_opt/alternatives/window_rows.py": ("MOST_CHANNELS",),
    "graph_opt/bf16_parts.py": ("LARGEST", "BLOCK"),
    "graph_opt/decide/chains.py": ("MOST_MEMBERS", "MOST_CHAINED"),
    "graph_opt/decide/fusion.py": ("MOST_OPERATIONS",),
    "graph_opt/decide/halo.py": ("MOST_HALO", "UNKNOWN"),
    "graph_opt/decide/recompute.py": ("MOST_FOLLOWING",),
    "graph_opt/decide/joins.py": ("NEIGHBOURS",),
    "graph_opt/decide/layout.py": ("SWEEPS", "LESS"),
    "graph_opt/decide/memory.py": ("ROUNDS",),
    "graph_opt/decide/own_lines.py": ("ALIGNMENT", "AROUND", "MOST_TOGETHER", "ROUNDS"),
    "graph_opt/decide/searches.py": ("MOST_POINTS",),
    "graph_opt/decide/slice_sizes.py": ("FEWEST_SLICES", "SHARED_TURNS", "TILE_VECTORS"),
    "graph_opt/decide/slices.py": ("MOST_DIMS",),
    "graph_opt/decide/stored_types.py": ("COARSEST",),
    "graph_opt/decide/turns.py": ("WEIGHED",),
    "graph_opt/four_bits.py": ("BLOCK", "LEAST", "MOST"),
    "graph_opt/minimal_filter.py": ("PIECE_BYTES",),
    "graph_opt/quantise.py": ("LARGEST", "COARSER", "MOST", "ROUNDED", "QUANTISED"),
    "graph_opt/magnitudes.py": ("MOST_NESTS",),
    "graph_opt/rewrite.py": ("MOST_ROUNDS",),
    "graph_opt/rounding.py": ("MOST_ELEMENTS",),
    "graph_opt/rules/elements.py": ("MOST_PROGRESSION", "MOST_IN_INDEX"),
    "graph_opt/rules/filter_whole.py": ("LARGEST", "LARGEST_FACTOR"),
    "graph_opt/rules/narrow.py": ("LARGEST_SUM", "LEAST_SCALE", "LARGEST_SCALE"),
    "graph_opt/rules/narrow_sums.py": ("LARGEST_SUM",),
    "graph_opt/rules/normalize.py": ("SAMPLES",),
    "graph_opt/rules/phases.py": ("MOST_PHASES",),
    "graph_opt/rules/requantise.py": ("EXACT", "MOST_NESTS", "MOST_STEPS"),
    "graph_opt/rules/scale.py": ("MOST_STEPS",),
    "graph_opt/rules/scaled_signs.py": ("LARGEST_HALVES",),
    "graph_opt/rules/tabulate.py": ("NUMBERS", "MOST_NESTS", "MOST_STEPS", "MOST_BITS"),
    "graph_opt/sum_weights.py": ("INPUTS", "LEAST_SHARE"),
    "graph_opt/versions.py": ("MOST_PLACES",),
    "importer/ops/sieves.py": ("BITS", "LANES"),
    "tensor_ir/cost/addresses.py": ("MOST_DISTINCT", "HALF", "MOST_COPIES", "END"),
    "tensor_ir/cost/estimate.py": ("TINY",),
    "tensor_ir/cost/footprint.py": ("SHARES",),
    "tensor_ir/cost/frames.py": ("SAMPLES",),
    "tensor_ir/cost/operations.py": (
        "DIVIDED",
        "EXTREMES",
        "JOINED",
        "FUNCTION_STEPS",
        "DIVISION_STEPS",
    ),
    "tensor_ir/cost/summary.py": ("RECENT",),
    "tensor_ir/cost/work.py": ("LEVELS",),
    "tensor_ir/facts/matrix_blocks.py": (
        "REGISTERS",
        "ROWS",
        "COLUMNS",
        "ROW_BYTES",
        "GROUP_BYTES",
    ),
    "tensor_ir/facts/windows.py": ("MOST_TAPS",),
    "tuner/across.py": ("WORD",),
    "tuner/arms.py": ("LONGEST", "MOST_ARMS", "MOST_TURNS"),
    "tuner/database/engine.py": ("PATIENCE_S", "PAUSE_S", "COLLISIONS", "REACH_S"),
    "tuner/database/exchange.py": ("FORMAT", "LONGEST"),
    "tuner/factors.py": ("OPERATIONS",),
    "tuner/passes.py": ("MOST_PARTS", "MOST_TILES"),
    "tuner/sharing.py": ("SWEEPS", "MOST_CYCLES"),
    "tuner/space.py": ("MOST_TRIED",),
    "tuner/database/stored.py": ("CHUNK",),
    "tuner/sums.py": ("PAIRED", "SUMMANDS"),
    "tuner/database/tables.py": ("VERSION",),
    "tuner/templates/matrix.py": ("MOST_BLOCKS", "MOST_PERMUTED"),
    "tuner/templates/pointwise_points.py": ("MOST_PERMUTED", "MOST_PARTED"),
    "tuner/templates/rows.py": ("MOST_WRITTEN_OUT", "MOST_PERMUTED"),
    "tuner/templates/running.py": ("MOST_PERMUTED",),
    "tuner/templates/scatter.py": ("MOST_PERMUTED",),
    "tuner/templates/tiled.py": ("MOST_WRITTEN_OUT", "MOST_OF_LONG", "MOST_BETWEEN"),
    "tuner/tiles/tile_prefetch.py": ("MOST_LINES",),
    "tuner/templates/tilings.py": ("SHORTEST_BLOCK",),
    "tuner/templates/windows.py": ("MOST_PERMUTED",),
    "tuner/vectors.py": ("MOST_AT_ONCE",),
    "tuner/tiles/window_tiles.py": (
        "MOST_WRITTEN_OUT",
        "MOST_APART",
        "MOST_ROWS",
        "LOADED",
        "SORTED",
    ),
    "tuner/tiles/tile_registers.py": ("LONGEST_UNROLLED",),
    "tuner/tiles/tiles.py": ("MOST_VECTORS",),
}
"""File -> the limits in it."""

SEARCHES: dict[str, tuple[str, ...]] = {
    "tuner/search/search.py": (
        "FIRST",
        "DRAWN",
        "CHAINS",
        "FROM_BEST",
        "STEPS",
        "CHANCE_EVERY",
        "LIKED_SPREAD",
        "MOST_KNOWN",
        "WARM",
        "COLD",
        "LENGTH",
        "NOISE",
        "SCALE",
    ),
    "tuner/search/seeds.py": ("SEEDS",),
}
"""File -> how a search goes about it: it changes which schedules are tried, not what one does."""


SPACES: dict[str, tuple[str, ...]] = {
    "graph_opt/alternatives/filtering.py": ("UNIT_POINTS", "UNIT_STRIDE"),
    "graph_opt/rules/filter_whole.py": ("STRIDES",),
    "graph_opt/decide/neighbours.py": ("BLOCKS", "SIZES"),
    "tuner/templates/matrix.py": ("ABREAST", "HELD"),
    "tuner/templates/pointwise_points.py": ("VECTORS", "CHUNKS", "OF_VECTORS", "OF_ANY"),
    "tuner/templates/rows.py": ("VECTORS", "COPIES"),
    "tuner/templates/running.py": ("VECTORS", "ROWS"),
    "tuner/templates/scatter.py": ("COPIES",),
    "tuner/templates/tilings.py": ("REUSES",),
}
"""File -> the values that a parameter of schedules or plans may have: estimates weigh them."""

FACTS: dict[str, tuple[float, ...]] = {
    "emit/dot.py": (4, 16, 32, 3855),
    "graph_opt/alternatives/filtering.py": (4.0,),
    "graph_opt/alternatives/remainders.py": (3, 4, 20),
    "graph_opt/alternatives/signs.py": (128,),
    "graph_opt/bf16_parts.py": (16, 32767, 4294901760),
    "graph_opt/decide/halo.py": (32,),
    "graph_opt/decide/prepared.py": (62,),
    "graph_opt/larger_filters.py": (4.0,),
    "graph_opt/minimal_filter.py": (3, 4, 6, 10),
    "graph_opt/nest_cost.py": (40,),
    "graph_opt/rewrite.py": (5,),
    "graph_opt/rounding.py": (24.0,),
    "graph_opt/rules/algebra.py": (0.5, 3, 11, 24, 53, 100),
    "graph_opt/rules/filter_whole.py": (127, 128, 255),
    "graph_opt/rules/narrow.py": (127, 128, 255),
    "graph_opt/rules/normalize.py": (1e-6,),
    "graph_opt/rules/pairs.py": (127, 128, 255),
    "graph_opt/rules/requantise.py": (255.0,),
    "graph_opt/rules/scale.py": (3, 14),
    "graph_opt/rules/scaled_signs.py": (0.5,),
    "graph_opt/rules/widen.py": (32,),
    "importer/ops/sieves.py": (16, 27, 28, 32, 2479, 125613361),
    "tensor_ir/cost/counting.py": (3, 4, 5),
    "tensor_ir/cost/frames.py": (0.5,),
    "tensor_ir/facts/windows.py": (4096,),
    "tuner/choice.py": (1e-9,),
    "tuner/database/exchange.py": (6,),
    "tuner/database/faults.py": (255,),
    "tuner/search/nest_features.py": (32, 1000),
    "tuner/passes.py": (3,),
    "tuner/search/search.py": (0.001, 0.5),
    "tuner/search/seeds.py": (0.001,),
    "tuner/database/tables.py": (16, 64),
    "tuner/templates/tiled.py": (4,),
    "tuner/tiles/tile_loads.py": (4096,),
    "tuner/tiles/tile_registers.py": (4,),
    "tuner/database/trial.py": (31,),
}
"""File -> numbers in expressions that are facts of a type, a format, an instruction or a form of
code, or that bound code, time or memory."""

DEFAULTS: dict[str, tuple[float, ...]] = {
    "graph_opt/alternatives/filtering.py": (0.02, 0.8, 40_000.0),
    "graph_opt/alternatives/remainders.py": (0.95, 20_000.0),
    "graph_opt/alternatives/separable.py": (0.7,),
    "graph_opt/alternatives/split_precision.py": (0.1, 20, 24, 40_000.0),
    "graph_opt/rules/constants.py": (12,),
    "graph_opt/rules/filter_whole.py": (0.9, 40_000.0),
    "graph_opt/rules/fold.py": (16, 28, 32),
    "graph_opt/rules/split.py": (16,),
    "tensor_ir/cost/fitted.py": (0.5, 0.7, 0.8, 1.5, 4.0, 5.0, 10.0, 16.0, 30.0),
}
"""File -> numbers that are the defaults of a pass's options, or of costs before any is fitted."""

WEIGHTS: dict[str, tuple[float, ...]] = {
    "graph_opt/decide/operand_copies.py": (4,),
    "graph_opt/nest_cost.py": (0.5,),
    "tuner/tiles/blocking.py": (4,),
    "tuner/choice.py": (4,),
    "tuner/templates/matrix.py": (3, 4),
    "tuner/tiles/tile_loads.py": (1.5,),
    "tuner/tiles/tile_prefetch.py": (4,),
}
"""File -> numbers in expressions that say what something costs, or from where on it pays."""

FREE = (0, 1, 2, 8)
"""No number of these is asked for a reason where it has no name: bytes have 8 bits."""


def _numbers(path: Path) -> set[str]:
    """The names of a file's constants that are numbers, several of them, or ranges."""
    found: set[str] = set()
    for names, _ in _constants(ast.parse(path.read_text(encoding="utf-8"))):
        found.update(names)
    return found


def _constants(module: ast.Module) -> Iterator[tuple[list[str], ast.stmt]]:
    """The constants of a module that are numbers: their names, and where they are said."""
    known: set[str] = set()
    for n in module.body:
        match n:
            case ast.Assign(targets=[target], value=value):
                pass
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                pass
            case _:
                continue
        targets = target.elts if isinstance(target, ast.Tuple) else [target]
        names = [x.id for x in targets if isinstance(x, ast.Name) and x.id.isupper()]
        if names and _is_number(value, known):
            known.update(names)
            yield names, n


def _is_number(e: ast.expr, known: AbstractSet[str] = frozenset()) -> bool:
    """Whether it is a number, several or a range, said by numbers or by constants that are some."""
    match e:
        case ast.Constant(value=value):
            return type(value) in (int, float)
        case ast.Name(id=name):
            return name in known
        case ast.UnaryOp(operand=x):
            return _is_number(x, known)
        case (
            ast.BinOp(left=ast.Name(id=name), right=x) | ast.BinOp(left=x, right=ast.Name(id=name))
        ):
            # What is multiplied by a number is one, wherever it is from.
            return name.isupper() and _is_number(x, known)
        case ast.BinOp(left=x, right=y):
            return _is_number(x, known) and _is_number(y, known)
        case ast.Tuple(elts=several) | ast.Call(func=ast.Name(id="range"), args=several):
            return bool(several) and all(_is_number(x, known) for x in several)
        case _:
            return False


def _literals(path: Path) -> set[float]:
    """The numbers in a file that are in no constant that is one, but those that are free."""
    module = ast.parse(path.read_text(encoding="utf-8"))
    named = {x for _, n in _constants(module) for x in ast.walk(n)}
    return {
        n.value
        for n in ast.walk(module)
        if isinstance(n, ast.Constant)
        and type(n.value) in (int, float)
        and n.value not in FREE
        and n not in named
    }


def _files() -> list[Path]:
    found = [p for f in FOLDERS for p in sorted((ROOT / f).rglob("*.py"))]
    return [*found, *(ROOT / f for f in FILES)]


NAMED = (LIMITS, SEARCHES, SPACES)
UNNAMED = (FACTS, DEFAULTS, WEIGHTS)


@pytest.mark.parametrize(("tables", "found"), [(NAMED, _numbers), (UNNAMED, _literals)])
def test_every_number_is_in_one_of_the_tables(
    tables: Sequence[Mapping[str, Sequence[object]]], found: Callable[[Path], set[object]]
) -> None:
    """With a name: a limit, of a search, of a space; without: a fact, a default, a weight."""
    for path in _files():
        name = str(path.relative_to(ROOT))
        said = [x for t in tables for x in t.get(name, ())]
        assert len(set(said)) == len(said), name
        assert found(path) == set(said), name


def test_the_lists_name_files_that_there_are() -> None:
    known = {str(p.relative_to(ROOT)) for p in _files()}
    for table in (*NAMED, *UNNAMED):
        assert table.keys() <= known


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
    path.write_text(
        "A = 1\nB: float = -2 * 3.5\nC = A + 1\nd = 4\nE = (3, 5)\nF = True\n"
        "G, H = 6, 7\nI = range(3, 9)\nJ = f(11)\nK: float = 0.5 * C\nL = x.M\n"
    )
    assert _numbers(path) == {"A", "B", "C", "E", "G", "H", "I", "K"}
    assert _literals(path) == {4, 11}


def test_numbers_in_expressions_and_defaults_are_found(tmp_path: Path) -> None:
    path = tmp_path / "some.py"
    path.write_text(
        "A = 3\nclass B:\n    share: float = 0.8\n"
        "def f(x: float, y: int = 5) -> float:\n    z = 1.5 * x if x > 2 else -7\n"
        "    return z + A * 8 + True\n"
    )
    assert _numbers(path) == {"A"}
    assert _literals(path) == {0.8, 5, 1.5, 7}
