"""Who may import whom: the table of docs/design.md, checked on the syntax trees."""

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Folder (or root module) -> what of rutc it may import besides itself.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "base": {"errors"},
    "tensor_ir": {"errors", "base"},
    "runtime": set(),
    "importer": {"tensor_ir", "errors", "base"},
    "graph_opt": {"tensor_ir", "errors", "base"},
    "tuner": {"tensor_ir", "errors", "base"},
    "emit": {"tensor_ir", "errors", "base"},
    "verify": {"tensor_ir", "importer", "graph_opt", "tuner", "emit", "runtime", "errors", "base"},
}
EVERYWHERE = {"errors", "base"}

# Third-party module -> the only folders that import it.
HOMES: dict[str, set[str]] = {
    "onnx": {"importer", "models"},
    "llvmlite": {"emit"},
    "onnxruntime": {"verify"},
    "sqlalchemy": {"tuner"},
    "torch": {"models"},
    "typer": {"cli", "report"},
    "rich": {"cli", "models", "report"},
}

NOT_PACKAGED = {"tests", "benchmarks", "docs", "tools", "build", "dist"}


def _sources() -> list[Path]:
    return [
        path
        for path in sorted(ROOT.rglob("*.py"))
        if (top := path.relative_to(ROOT).parts[0]) not in NOT_PACKAGED and not top.startswith(".")
    ]


def _layer(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    """Every absolute module or attribute that the file imports, with its line."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            module = node.module or ""
            yield node.lineno, module
            if module == "rutc":
                for alias in node.names:
                    yield node.lineno, f"rutc.{alias.name}"


def _violations() -> list[str]:
    found = []
    for path in _sources():
        layer = _layer(path)
        for line, module in _imports(path):
            where = f"{path.relative_to(ROOT)}:{line}"
            top, *rest = module.split(".")
            homes = HOMES.get(top)
            if homes is not None and layer not in homes:
                found.append(f"{where}: {top} is imported only in {sorted(homes)}")
            if top == "rutc" and rest and layer in ALLOWED:
                target = rest[0]
                if target != layer and target not in ALLOWED[layer]:
                    found.append(f"{where}: {layer} may not import rutc.{target}")
    return found


def test_layers_import_only_what_they_may() -> None:
    assert _violations() == []


def test_nothing_below_asks_what_people_see() -> None:
    """Only `cli.py` and `report/` know how things are shown; `driver/` works without them."""
    found = [
        str(path.relative_to(ROOT))
        for path in _sources()
        if _layer(path) not in {"cli", "report"}
        for _, module in _imports(path)
        if module.split(".")[:2] == ["rutc", "report"]
    ]
    assert found == []


def _design_table() -> dict[str, tuple[set[str], set[str]]]:
    """Layer -> (what of rutc it may import, what it alone imports), as docs/design.md says."""
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)/` \| (.*?) \| (.*?) \|$", text, flags=re.MULTILINE)
    return {
        layer: (
            {above for above, *_ in rows[:row]} if may == "all above" else _quoted(may),
            _quoted(alone),
        )
        for row, (layer, may, alone) in enumerate(rows)
    }


def _quoted(cell: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", cell))


def test_the_design_page_has_this_table() -> None:
    table = _design_table()
    for layer, allowed in ALLOWED.items():
        if layer not in EVERYWHERE:
            assert table[layer][0] == allowed - EVERYWHERE, layer
    homes = {module: layer for layer, (_, alone) in table.items() for module in alone}
    assert homes == {
        "onnx": "importer",
        "llvmlite": "emit",
        "onnxruntime": "verify",
        "sqlalchemy": "tuner",
    }
    for module, layer in homes.items():
        assert HOMES[module] - {"models"} == {layer}


def test_the_check_sees_the_sources() -> None:
    layers = {_layer(path) for path in _sources()}
    assert {"tensor_ir", "runtime", "emit", "cli", "verify"} <= layers


@pytest.mark.parametrize(
    ("statement", "module"),
    [
        ("import rutc.emit.target", "rutc.emit.target"),
        ("from rutc import emit", "rutc.emit"),
        ("def f():\n    from rutc.emit import x", "rutc.emit"),
    ],
)
def test_imports_are_found(tmp_path: Path, statement: str, module: str) -> None:
    source = tmp_path / "m.py"
    source.write_text(statement)
    assert module in [name for _, name in _imports(source)]


def test_one_module_asks_linux_to_end_processes_with_their_parents():
    asking = [path for path in _sources() if "prctl" in path.read_text(encoding="utf-8")]
    assert asking == [ROOT / "base" / "processes.py"]


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(("rutc", *(parts[:-1] if parts[-1] == "__init__" else parts)))


def _import_graph(sources: Mapping[str, Path]) -> dict[str, set[str]]:
    """Each module's imports, those in functions and for type checkers included."""
    graph: dict[str, set[str]] = {name: set() for name in sources}
    for name, path in sources.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            found: list[str] = []
            if isinstance(node, ast.Import):
                found = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                full = [f"{node.module}.{alias.name}" for alias in node.names]
                found = [x if x in sources else str(node.module) for x in full]
            graph[name] |= {x for x in found if x in sources}
    return graph


def _cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """A path back to its beginning for each module that reaches itself, the shortest."""
    found: dict[frozenset[str], list[str]] = {}
    for start in graph:
        paths = [[start]]
        seen: set[str] = set()
        while paths and start not in seen:
            longer = [[*path, x] for path in paths for x in sorted(graph[path[-1]])]
            paths = []
            for path in longer:
                if path[-1] == start:
                    found.setdefault(frozenset(path), path)
                if path[-1] not in seen:
                    seen.add(path[-1])
                    paths.append(path)
    return list(found.values())


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert _cycles(_import_graph({_module(path): path for path in _sources()})) == []


def test_cycles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set(), "e": {"e"}}
    assert _cycles(graph) == [["b", "c", "b"], ["e", "e"]]


SHARED_NAMES: dict[str, str] = {
    "__main__": "what `python -m` runs",
    "attention": "one family of operators, and what com.microsoft has of it",
    "boxes": "tensors as elements: imported, computed, and taken from Python",
    "coefficients": "of polynomials, and of the costs that decide",
    "bundles": "sequences, optionals and maps as inputs and outputs: imported, and in a run",
    "contraction": "sums of products: the operators, and the rules about them",
    "database": "a package and what it is named after",
    "decide": "a package and what it is named after",
    "dot": "loops of few products: how they are scheduled, and emitted",
    "errors": "the exceptions of rutc; the runtime imports nothing and has its own",
    "filtering": "minimal filtering: the rule, and the check of what it costs",
    "four_bits": "weights of 4 bits: graphs that have them, and which ones gain",
    "images": "ImageDecoder: the operator, and its routine",
    "interface": "inputs and outputs: what they are made of, and the copies that they need",
    "kernel": "kernels: the language, and the LLVM IR made of it",
    "layout": "layouts: what they are, and how they are chosen",
    "matrix": "tiles in registers for matrices: the step, its schedule, and its code",
    "normalization": "one family of operators, and what com.microsoft has of it",
    "outside": "reads outside of their values: what they add, and the rule that leaves them out",
    "ports": "the model's inputs and outputs: read from a manifest, and before there is one",
    "prepare": "what is computed once for several tiles: the step, and when it pays",
    "random": "random numbers: the operators, and their routines",
    "regex": "regular expressions: their syntax, and what they match",
    "rows": "what is computed of rows: the rule that computes it again, and the schedules",
    "running": "running reductions: what they are, the step, and their schedules",
    "scatter": "scatters: the operators, and their schedules",
    "search": "a package and what it is named after",
    "selection": "which elements there are: the operators, and their routines",
    "sorting": "sorting: the operators, and its routine",
    "strings": "strings: the operators, and their routines",
    "text": "the text forms: of graphs, and of schedules",
    "tiles": "a package and what it is named after",
    "truth": "a package and what it is named after",
    "verify": "a package and what it is named after",
    "windows": "windows of reads: what they are, and their schedules",
}
"""Names that several modules have, and the one thing that each stands for."""


def test_a_name_of_modules_means_one_thing() -> None:
    modules = [_module(path) for path in _sources()]
    names = Counter(module.rpartition(".")[2] for module in modules)
    assert {name for name, count in names.items() if count > 1} == SHARED_NAMES.keys()


MOST_LINES = 500
"""Lines of a source file, beyond which nobody reads it as a whole."""


def test_files_are_short_enough_to_be_read():
    lengths = {
        str(p.relative_to(ROOT)): len(p.read_text(encoding="utf-8").splitlines())
        for p in _sources()
    }
    assert {name: n for name, n in lengths.items() if n > MOST_LINES} == {}


WHOLE = {
    "alternatives",
    "cost",
    "ops",
    "routines",
    "rules",
    "steps",
    "targets",
    "templates",
    "vector_math",
}
"""Folders whose files are all of one kind, which docs/source_map.md names as a whole."""


def _mapped() -> dict[str, list[str]]:
    """Layer -> the files that docs/source_map.md names in its section."""
    text = (ROOT / "docs" / "source_map.md").read_text(encoding="utf-8")
    found: dict[str, list[str]] = {}
    for section in text.split("\n## ")[1:]:
        if layer := re.match(r"`(\w+)/`", section):
            found[layer[1]] = re.findall(r"`(\w+\.py)`", section)
    return found


def test_the_source_map_has_every_file_once() -> None:
    """Those of a layer's own folder and of its folders, but for those that are named as a whole."""
    mapped = _mapped()
    assert mapped.keys() == ALLOWED.keys() - EVERYWHERE | {"driver"}
    for layer, files in mapped.items():
        folders = [path.parent for path in (ROOT / layer).glob("**/__init__.py")]
        folders = [folder for folder in folders if WHOLE.isdisjoint(folder.relative_to(ROOT).parts)]
        there = {path.name for folder in folders for path in folder.glob("*.py")}
        repeated = [name for name, times in Counter(files).items() if times > 1]
        assert not repeated, f"docs/source_map.md has twice: {repeated}"
        assert set(files) == there - {"__init__.py"}, layer
