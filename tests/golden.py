"""Golden texts of rewrite rules: a graph, and what a rule made of it or why it did not apply.

A file holds a graph's text, one or more sections, each of

    === after RULE ===
    the graph's text after the rule
    === rejected: REASON ===

A test computes the sections from the first graph and compares; `--update-golden` writes them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rutc.tensor_ir import Graph
from rutc.tensor_ir.textual.parse import parse


@dataclass(frozen=True)
class After:
    """The rule `rule` applied and gave `graph`."""

    rule: str
    graph: Graph

    def __str__(self) -> str:
        return f"=== after {self.rule} ===\n{self.graph}"


@dataclass(frozen=True)
class Rejected:
    """The rule did not apply because of `reason`."""

    reason: str

    def __str__(self) -> str:
        return f"=== rejected: {self.reason} ===\n"


def before(path: Path) -> Graph:
    """The graph that a golden file begins with."""
    return parse(_source(path))


def check_golden(path: Path, results: Sequence[After | Rejected], *, update: bool) -> None:
    """Compare the results with the file's sections, or write them. Raises AssertionError."""
    source = _source(path)
    got = "".join([f"{source.rstrip()}\n", *(str(r) for r in results)])
    if update:
        path.write_text(got, encoding="utf-8")
    assert got == path.read_text(encoding="utf-8"), f"{path.name}: see --update-golden"


def _source(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    return text if "\n===" not in text else text[: text.index("\n===") + 1]
