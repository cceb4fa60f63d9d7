"""Rules and the driver that applies them to a whole graph.

A rule looks at one node and gives the nodes to put in its place, or the earlier values that its
outputs are equal to, or the reason why it does not apply:

    def drop_copy(n: Node, editor: Editor) -> Result: ...

A rule never edits: the driver does, so that what a rule saw is what is replaced. It may declare
(`matches`) which kinds of nodes it is about. Why it does not apply may depend on the node, on what
computes the values that it reads, and on their readers: it is asked again when one of them changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from rutc.base.record import record
from rutc.errors import InternalError
from rutc.graph_opt.editor import Editor, key_of
from rutc.graph_opt.kinds import KINDS, Kind, kinds_of
from rutc.tensor_ir import Graph, Node

MOST_ROUNDS = 64
"""Rounds of a sweep, and rewrites of one node in a round, before rules count as endless."""


class Reason(str):
    """Why a rule does not apply to a node, in words for the user."""

    __slots__ = ()


@record
class Equal:
    """The node's outputs are equal to these values, defined before it."""

    values: tuple[str, ...]


NONE_APPLIES = Reason("no rule applies")

Result = tuple[Node, ...] | Equal | Reason
Rule = Callable[[Node, Editor], Result]
Asked = Mapping[Kind, Sequence[tuple[Rule, int]]]
"""The rules that may apply to nodes of a kind, each with its bit."""


class Pass(Protocol):
    """A step of the pipeline: a frozen dataclass whose fields are its options."""

    @property
    def name(self) -> str:
        """What the step is called in dumps and errors."""

    def run(self, editor: Editor) -> None:
        """Rewrites the graph."""


@record
class Sweep:
    """Applies `rules` to every node, in order, until none applies; then drops what is unread.

    Nodes are visited in definition order, so a rule sees producers that are already rewritten. A
    rule that did not apply to a node, in this sweep or in one before, is asked again only after
    the node or a neighbour has changed; with `again`, after any node has: for rules that look
    further than that. With `once` there are no later rounds, and what a rule puts in a node's
    place is not visited: for rules that do not stop at what they made.
    """

    name: str
    rules: tuple[Rule, ...] = ()
    again: bool = False
    once: bool = False

    def __str__(self) -> str:
        return f"{self.name}: {', '.join(map(rule_name, self.rules)) or 'no rules'}"

    def run(self, editor: Editor) -> None:
        """Applies the rules to their end."""
        editor.remove_dead()
        asked = {
            kind: tuple((rule, editor.bit(rule)) for rule in self.rules if kind in kinds_of(rule))
            for kind in KINDS
        }
        bits = {kind: sum(bit for _, bit in rules) for kind, rules in asked.items()}
        for _ in range(MOST_ROUNDS):
            editor.begin_round()
            settled, kinds = editor.settled, editor.kinds
            due = [k for k in editor.names() if bits[kinds[k]] & ~settled.get(k, 0)]
            if not due:
                return
            changed = [self._rewrite(key, editor, asked) for key in due]
            if self.once or not any(changed):
                return
            if self.again:
                _forget(self.rules, editor)
        raise InternalError(f"{self} does not come to an end; still changing: {due[:5]}")

    def _rewrite(self, start: str, editor: Editor, asked: Asked) -> bool:
        """Rewrites a node until no rule applies, and what is put in its place; whether any did."""
        queue = [start]
        changed = False
        for _ in range(MOST_ROUNDS):
            if not queue:
                return changed
            key = queue.pop(0)
            n = editor.nodes.get(key)
            if n is None:
                continue
            result = _first(key, n, editor, asked)
            if isinstance(result, Reason):
                continue
            changed = True
            if isinstance(result, Equal):
                editor.become(n, result.values)
            else:
                editor.replace(n, result)
                queue = [] if self.once else [*(key_of(r) for r in result), *queue]
        return changed


def _first(key: str, n: Node, editor: Editor, asked: Asked) -> Result:
    """What the first rule that applies to a node gives; those that do not are settled."""
    settled = editor.settled.get(key, 0)
    for rule, bit in asked[editor.kinds[key]]:
        if settled & bit:
            continue
        result = rule(n, editor)
        if not isinstance(result, Reason):
            return result
        settled |= bit
    editor.settled[key] = settled
    return NONE_APPLIES


def _forget(rules: Sequence[Rule], editor: Editor) -> None:
    """Have these rules look at every node again."""
    bits = sum({editor.bit(rule) for rule in rules})
    for key in editor.settled:
        editor.settled[key] &= ~bits


@record
class DropDims:
    """Takes dims that nothing uses any more out of the graph's table."""

    name: str = "drop unused dims"

    def __str__(self) -> str:
        return self.name

    def run(self, editor: Editor) -> None:
        """Leaves only the dims that occur."""
        editor.drop_unused_dims()


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
