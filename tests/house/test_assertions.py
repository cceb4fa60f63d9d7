"""What holds of all tests: each asserts something, and none has a tolerance of its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHECKS = ("raises", "warns", "fail")
"""What asserts beside `assert` and functions whose names begin with it."""
OWN_BOUNDS = {
    "importer/test_random.py": "shares of random draws, which are as many as the test can afford",
    "end_to_end/test_filter_bounds.py": "numbers that a page states with few digits",
    "importer/test_models.py": "ONNX Runtime's error is not known; relative to the largest element",
    "emit/test_scalar.py": "a step of the type, and what ONNX Runtime's functions are off by",
}
"""Files that state a tolerance, and why the table has none for it."""


def _called(node: ast.AST) -> str:
    match node:
        case ast.Call(func=ast.Attribute(attr=name)) | ast.Call(func=ast.Name(id=name)):
            return name
        case _:
            return ""


def _asserts(function: ast.AST, helpers: set[str]) -> bool:
    """Whether a function asserts, raises, runs what must succeed, or uses one that does."""
    for node in ast.walk(function):
        name = _called(node)
        if isinstance(node, ast.Assert | ast.Raise) or name in CHECKS or name.startswith("assert"):
            return True
        if isinstance(node, ast.keyword) and node.arg == "check":
            return True
        if name in helpers or (isinstance(node, ast.Name) and node.id in helpers):
            return True
    return False


def _functions() -> Iterator[tuple[Path, ast.FunctionDef]]:
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                yield path.relative_to(ROOT), node


def test_every_test_asserts_something() -> None:
    functions = list(_functions())
    helpers: set[str] = set()
    while True:
        found = {f.name for _, f in functions if _asserts(f, helpers)}
        if found == helpers:
            break
        helpers = found
    idle = [f"{path}: {f.name}" for path, f in functions if f.name.startswith("test_")]
    idle = [x for x in idle if x.split(": ")[1] not in helpers]
    assert idle == []


def test_tolerances_are_those_of_the_table() -> None:
    stated = set()
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for keyword in node.keywords if isinstance(node, ast.Call) else ():
                value = keyword.value
                if keyword.arg in ("rtol", "atol") and any(
                    isinstance(x, ast.Constant) and isinstance(x.value, float)
                    for x in ast.walk(value)
                ):
                    stated.add(str(path.relative_to(ROOT)))
    assert stated == OWN_BOUNDS.keys()
