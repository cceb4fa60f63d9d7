"""Rules and the driver that applies them to a whole graph.

A rule looks at one node and gives the nodes to put in its place, or the earlier values that its
outputs are equal to, or the reason why it does not apply:

    def drop_copy(n: Node, editor: Editor) -> Result: ...

A rule never edits: the driver does, so that what a rule saw is what is replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from rutc.errors import InternalError
from rutc.graph_opt.editor import Editor, key_of
from rutc.record import record
from rutc.tensor_ir import Graph, Nest, Node, Scan, Scatter
from rutc.tensor_ir.graph import defined, walk_nodes

MOST_ROUNDS = 64
"""Rounds of a sweep, and rewrites of one node in a round, before rules count as endless."""


class Reason(str):
    """Why a rule does not apply to a node, in words for the user."""

    __slots__ = ()


@record
class Equal:
    """The node's outputs are equal to these values, defined before it."""

    values: tuple[str, ...]


Result = tuple[Node, ...] | Equal | Reason
Rule = Callable[[Node, Editor], Result]


class Pass(Protocol):
    """A step of the pipeline: a frozen dataclass whose fields are its options."""

    @property
    def name(self) -> str:
        """What the step is called in dumps and errors."""

    def run(self, graph: Graph) -> Graph:
        """The rewritten graph; `graph` itself if there was nothing to do."""


@record
class Sweep:
    """Applies `rules` to every node, in order, until none applies; then drops what is unread.

    Nodes are visited in definition order, so a rule sees producers that are already rewritten.
    Later rounds visit only nodes whose neighbours changed, or with `again` all nodes: for rules
    that look further than that. With `once` there are none, and what a rule puts in a node's place
    is not visited: for rules that do not stop at what they made.
    """

    name: str
    rules: tuple[Rule, ...] = ()
    again: bool = False
    once: bool = False

    def __str__(self) -> str:
        return f"{self.name}: {', '.join(map(rule_name, self.rules)) or 'no rules'}"

    def run(self, graph: Graph) -> Graph:
        """The graph with the rules applied to their end."""
        editor = Editor(graph)
        editor.remove_dead()
        for _ in range(MOST_ROUNDS):
            due = [key for key in editor.names() if key in editor.touched]
            if not due:
                return editor.finish()
            changed = [self._rewrite(key, editor) for key in due]
            if self.once:
                return editor.finish()
            if self.again and any(changed):
                editor.touched.update(editor.names())
        raise InternalError(f"{self} does not come to an end; still changing: {due[:5]}")

    def _rewrite(self, start: str, editor: Editor) -> bool:
        """Rewrites a node until no rule applies, and what is put in its place; whether any did."""
        queue = [start]
        changed = False
        for _ in range(MOST_ROUNDS):
            if not queue:
                return changed
            n = editor.nodes.get(queue.pop(0))
            if n is None:
                continue
            editor.touched.discard(key_of(n))
            result = self._first(n, editor)
            changed = changed or not isinstance(result, Reason)
            if isinstance(result, tuple):
                editor.replace(n, result)
                queue = [] if self.once else [*(key_of(r) for r in result), *queue]
            elif isinstance(result, Equal):
                editor.become(n, result.values)
        editor.touched.update(queue)
        return changed

    def _first(self, n: Node, editor: Editor) -> Result:
        for rule in self.rules:
            result = rule(n, editor)
            if not isinstance(result, Reason):
                return result
        return Reason("no rule applies")


@record
class DropDims:
    """Takes dims that nothing uses any more out of the graph's table."""

    name: str = "drop unused dims"

    def __str__(self) -> str:
        return self.name

    def run(self, graph: Graph) -> Graph:
        """The graph with only the dims that occur."""
        found: set[str] = set()
        for n in walk_nodes(graph.nodes):
            found.update(d for v in defined(n) for d in v.dims)
            if isinstance(n, Nest):
                found.update(n.bound)
            elif isinstance(n, Scan):
                found.add(n.dim)
            elif isinstance(n, Scatter):
                found.update(n.dims)
        dims = tuple((d, extent) for d, extent in graph.dims if d in found)
        return graph if dims == graph.dims else replace(graph, dims=dims)


def rule_name(rule: Rule) -> str:
    """A rule as its function's name, or as the dataclass prints itself."""
    return str(getattr(rule, "__name__", rule))


def why_not(rule: Rule, graph: Graph, value: str) -> Reason | None:
    """Why `rule` does not apply to the node that defines `value`; None if it does.

    Raises:
        KeyError: No node defines `value`.
    """
    editor = Editor(graph)
    n = editor.producer(value)
    if n is None:
        raise KeyError(value)
    result = rule(n, editor)
    return result if isinstance(result, Reason) else None
