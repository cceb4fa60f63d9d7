"""The glossary names what exists, and words that were replaced are names of nothing."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"
RETIRED = (
    "alternative",
    "alternatives",
    "asking",
    "crew",
    "kernel_text",
    "recipe",
    "recipes",
    "square",
    "squares",
)
"""Words that no name in `FOLDERS` has any more; alternatives are those of `graph_opt`."""
FOLDERS = ("driver", "emit", "tensor_ir")
MEANS_A_PRODUCT = ("emit/scalar.py", "emit/vector_math")
"""Where a square is a number times itself."""


def _rows() -> list[tuple[str, str, str, str]]:
    text = GLOSSARY.read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.*?) \| (.*?) \| `([\w.]+)` \| (.*?) \|$", text, flags=re.MULTILINE)
    assert len(rows) == len(re.findall(r"^\| ", text, flags=re.MULTILINE)) - 1
    return rows


def _exists(name: str) -> bool:
    parts = ["rutc", *name.split(".")]
    for count in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[count:]:
            declared = getattr(found, "__annotations__", {})
            if attribute not in declared and not hasattr(found, attribute):
                return False
            found = getattr(found, attribute, None)
        return True
    return False


@pytest.mark.parametrize("row", _rows(), ids=lambda row: row[0])
def test_what_the_glossary_names_exists(row: tuple[str, str, str, str]) -> None:
    assert _exists(row[2])


def test_terms_are_in_order_and_each_there_once() -> None:
    words = [row[0] for row in _rows()]
    assert words == sorted(set(words))


def test_what_does_not_exist_is_noticed() -> None:
    assert not _exists("tensor_ir.kernel.Kernels")
    assert not _exists("nothing")
    assert _exists("tensor_ir.graph.Graph.symbols")


def _names(path: Path) -> Iterator[str]:
    """The name of a module, and all that it defines or binds."""
    yield path.stem
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield name


def _words(name: str) -> list[str]:
    """`_madeOf_Two` -> made, of, two."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().strip("_").split("_")


def test_replaced_words_are_names_of_nothing() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not str(path.relative_to(ROOT)).startswith(MEANS_A_PRODUCT)
        for name in _names(path)
        if name in RETIRED or not set(_words(name)).isdisjoint(RETIRED)
    ]
    assert found == []
