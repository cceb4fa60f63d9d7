"""What an artifact tells of its model's inputs, by which such are drawn that say something."""

from __future__ import annotations

from rutc.emit.linking.manifest import JsonValue
from rutc.tensor_ir import Graph
from rutc.tensor_ir.facts.divisors import divisors
from rutc.tensor_ir.facts.table_rows import table_rows
from rutc.tensor_ir.facts.vocabulary import known_texts


def told_of_inputs(graph: Graph, imported: Graph) -> dict[str, JsonValue]:
    """Returns what the manifest says of the inputs of a graph, which is made of an imported one.

    {"divisors": ["d"], "texts": {"words": ["a", "b"]}, "rows": {"ids": [30522, "n"]}}
    """
    found: dict[str, JsonValue] = {}
    own = divisors(graph)
    if own:
        found["divisors"] = [*sorted(own)]
    texts = known_texts(graph)
    if texts:
        found["texts"] = {name: list(known) for name, known in texts.items()}
    rows = table_rows(imported)
    if rows:
        found["rows"] = {
            name: [e.const if e.is_const else str(e) for e in extents]
            for name, extents in rows.items()
        }
    return found
