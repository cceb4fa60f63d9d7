"""A graph while it is being rewritten: nodes by name, producers, readers and sizes, kept current.

Nodes are immutable; only this table changes. A node is known by the name of its first output.
Nodes that nobody reads any more leave the table at once, so that "is read once" stays true.

One editor goes through all steps of the pipeline. It remembers which rules are known not to apply
to a node: an edit makes it forget that for the nodes nearby, so that each step looks at what has
changed since, not at all nodes again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from rutc.errors import InternalError
from rutc.graph_opt.kinds import Kind, kind_of
from rutc.tensor_ir import (
    Bind,
    Const,
    DType,
    Expr,
    Graph,
    If,
    Index,
    Input,
    Nest,
    Node,
    Read,
    Scan,
    Scatter,
    Value,
    While,
)
from rutc.tensor_ir.expr import transform
from rutc.tensor_ir.graph import Body, Origin, bodies, bound_symbols, defined, outs, used
from rutc.tensor_ir.indices.affine import Range, fewest, typical
from rutc.tensor_ir.indices.dim_ranges import dim_range
from rutc.tensor_ir.rebuilder import Rebuilder

BlockId = tuple[str, int]
"""(key of the node that holds the block, which of its blocks); the graph itself is ROOT."""

ROOT: BlockId = ("", 0)


def key_of(n: Node) -> str:
    """The name that a node goes by: its first output's."""
    return outs(n)[0].name


def merge_origins(*nodes: Node) -> Origin:
    """The origins of all `nodes`, each once, in order."""
    return tuple(dict.fromkeys(o for n in nodes for o in n.origin))


def rename_reads(e: Expr, names: Mapping[str, str]) -> Expr:
    """`e` with values renamed."""

    def visit(x: Expr) -> Expr:
        return replace(x, value=names[x.value]) if isinstance(x, Read) and x.value in names else x

    return transform(e, visit)


def rename_uses(n: Node, names: Mapping[str, str]) -> Node:
    """`n` with the values that it reads itself renamed."""
    return _UsesRenamed(names).node(n)


class _UsesRenamed(Rebuilder):
    """A node with the values that it reads itself renamed."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self.names_of = names

    def name(self, name: str) -> str:
        return self.names_of.get(name, name)

    def expr(self, e: Expr) -> Expr:
        return rename_reads(e, self.names_of)

    def nodes(self, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        return nodes


class Editor:
    """The working state of the rewriting of `graph`, which `finish` brings up to date."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.changed = False
        self.symbols: Mapping[str, Range] = dict(graph.symbols)
        self.extents: dict[str, Index] = dict(graph.dims)
        self.ranges: dict[str, Range] = dict(graph.ranges)
        self.nodes: dict[str, Node] = {}
        self.values: dict[str, Value] = {}
        self.dtypes: Counter[DType] = Counter()
        """How many values there are of each type."""
        self.kinds: dict[str, Kind] = {}
        self.settled: dict[str, int] = {}
        """The rules, as a sum of `bit`s, that do not apply to a node while nothing near changes."""
        self.found: dict[str, object] = {}
        """What a rule found out about a node, which holds while nothing near it changes."""
        self.ahead: set[tuple[str, str, Index]] = set()
        """Of nodes that a round has yet to come to: dims that no reader needs undivided."""
        self._rules: list[object] = []
        self._block_of: dict[str, BlockId] = {}
        self._order: dict[BlockId, _Order] = {}
        self._producer: dict[str, str] = {}
        self._readers: dict[str, dict[str, None]] = {}
        self._outputs = list(graph.outputs)
        self._output_values = {o.value for o in graph.outputs}
        self._simplified: dict[Index, Index] = {}
        self._may_have_dead = True
        self._fewer_readers: set[str] = set()
        self._add_block(ROOT, graph.nodes)

    # -- questions ------------------------------------------------------------------------------
    def producer(self, value: str) -> Node | None:
        """The node that defines `value`; None for a carried parameter."""
        key = self._producer.get(value)
        return None if key is None else self.nodes[key]

    def constant(self, value: str) -> Const | None:
        """The constant node that defines `value`, if one does."""
        n = self.producer(value)
        return n if isinstance(n, Const) else None

    def nest(self, value: str) -> Nest | None:
        """The nest that defines `value`, if one does."""
        n = self.producer(value)
        return n if isinstance(n, Nest) else None

    def readers(self, value: str) -> tuple[Node, ...]:
        """The nodes that read `value`, in the order in which they came to do so."""
        return tuple(self.nodes[k] for k in self._readers.get(value, ()))

    def is_output(self, value: str) -> bool:
        """Whether the graph gives `value` to its user."""
        return value in self._output_values

    def is_read_once(self, value: str, reader: Node) -> bool:
        """Whether `reader` is all that needs `value`, in the block that computes it."""
        readers, key = self._readers.get(value, {}), key_of(reader)
        return (
            len(readers) == 1
            and key in readers
            and not self.is_output(value)
            and value in self._producer
            and self._block_of[self._producer[value]] == self._block_of[key]
        )

    def leaves_block(self, value: str) -> bool:
        """Whether `value` is more than read by nests: an output, carried, or a block's result."""
        return self.is_output(value) or not all(
            isinstance(n, Nest | Scatter) for n in self.readers(value)
        )

    def block(self, n: Node) -> BlockId:
        """The block that `n` stands in."""
        return self._block_of[key_of(n)]

    def is_before(self, a: Node, b: Node) -> bool:
        """Whether `a` stands before `b`, in the same block."""
        keys = (key_of(a), key_of(b))
        return next(k for k in self._order[self.block(b)] if k in keys) == keys[0]

    def names(self, block: BlockId = ROOT) -> Iterator[str]:
        """The nodes of a block in order, those of inner blocks after their owner."""
        kinds = self.kinds
        for key in self._order[block]:
            yield key
            if kinds[key] == "other":
                for position, _ in enumerate(bodies(self.nodes[key])):
                    yield from self.names((key, position))

    def body(self, n: Node, position: int) -> tuple[Node, ...]:
        """The nodes of one of the blocks that `n` holds, as they are now."""
        return tuple(self._assemble((key_of(n), position)))

    def enclosing_dims(self, n: Node) -> frozenset[str]:
        """The scanned dims that are symbols where `n` stands."""
        found = set()
        owner, _ = self.block(n)
        while owner:
            node = self.nodes[owner]
            if isinstance(node, Scan):
                found.add(node.dim)
            owner, _ = self._block_of[owner]
        return frozenset(found)

    def simplify(self, x: Index) -> Index:
        """`x` simplified by what is known of the ranges of dims and symbols."""
        if x.is_polynomial:
            return x
        found = self._simplified.get(x)
        if found is None:
            found = self._simplified[x] = x.simplify(self.ranges)
        return found

    def size(self, dims: Iterable[str]) -> int | None:
        """The number of points of a space; None if an extent is symbolic."""
        total = 1
        for d in dims:
            if not self.extents[d].is_const:
                return None
            total *= self.extents[d].const
        return total

    def typical(self, dims: Iterable[str]) -> int:
        """The number of points that a space commonly has."""
        return prod(typical(self.extents[d], self.symbols) for d in dims)

    def fewest(self, dims: Iterable[str]) -> int:
        """The points of a space in a run that is as small as it may well be."""
        return prod(fewest(self.extents[d], self.symbols) for d in dims)

    def most(self, dims: Iterable[str]) -> int | None:
        """The most points that a space may have; None if an extent has no bound."""
        total = 1
        for d in dims:
            bounds = self.extents[d].bounds(self.symbols)
            if bounds is None:
                return None
            total *= max(bounds[1], 0)
        return total

    # -- what is left to do ---------------------------------------------------------------------
    def bit(self, rule: object) -> int:
        """The power of two that stands for a rule in `settled`; equal rules have one."""
        if rule not in self._rules:
            self._rules.append(rule)
        return 1 << self._rules.index(rule)

    def touch(self, keys: Iterable[str]) -> None:
        """Any rule may apply to these nodes now."""
        for key in keys:
            self.settled.pop(key, None)
            self.found.pop(key, None)

    def begin_round(self) -> None:
        """Any rule may apply to the readers of values that lost some: together, as they are many.

        What was found out of nodes ahead is forgotten.
        """
        self.ahead.clear()
        for name in self._fewer_readers:
            self.touch(self._readers.get(name, ()))
        self._fewer_readers.clear()

    # -- fresh names ----------------------------------------------------------------------------
    def fresh_value(self, base: str, beside: Iterable[Node] = ()) -> str:
        """A value name like `base` that nothing has yet, nor the new nodes that stand beside it."""
        taken = {v.name for n in beside for v in outs(n)}
        name, count = base, 2
        while name in self.values or name in taken:
            name, count = f"{base}_{count}", count + 1
        return name

    def fresh_dim(self, base: str, extent: Index) -> str:
        """A new dim, named like `base`, of this extent."""
        name, count = base, 2
        while name in self.extents or name in self.symbols:
            name, count = f"{base}_{count}", count + 1
        self.extents[name] = extent
        limits = dim_range(extent, self.symbols)
        if limits is not None:
            self.ranges[name] = limits
        return name

    # -- edits ----------------------------------------------------------------------------------
    def replace(self, old: Node, new: Sequence[Node]) -> None:
        """`new` in the place of `old`; together they define all outputs of `old`.

        A new node may also define again what an earlier node defines: then it takes that node's
        place, with those of the new nodes that stand before it.
        """
        self.changed = True
        block = self.block(old)
        last = block, self._order[block].before(key_of(old))
        gone = [old]
        reads = list(_deep_uses(old, self))
        self._remove(old)
        pending: list[Node] = []
        for n in new:
            pending.append(n)
            again = self.nodes.get(key_of(n))
            if again is not None:
                block = self.block(again)
                place = block, self._order[block].before(key_of(n))
                reads += _deep_uses(again, self)
                self._remove(again)
                gone.append(again)
                self._insert(pending, *place)
                pending = []
        self._insert(pending, *last)
        if len({key_of(n) for n in new}) < len(new):
            raise InternalError(f"two of the nodes in place of %{key_of(old)} have one name")
        missing = [v.name for n in gone for v in outs(n) if v.name not in self._producer]
        if missing:
            raise InternalError(f"the nodes in place of %{key_of(old)} lack {missing}")
        for n in new:
            for v in outs(n):
                self.touch(self._readers.get(v.name, ()))
                reads.append(v.name)
        self._remove_unread(reads)

    def become(self, old: Node, values: Sequence[str]) -> None:
        """Readers of `old`'s outputs read the earlier `values` instead, and `old` goes."""
        self.changed = True
        names = {v.name: by for v, by in zip(outs(old), values, strict=True)}
        for key in dict.fromkeys(k for v in names for k in self._readers.get(v, ())):
            self._forget_uses(self.nodes[key])
            self.nodes[key] = rename_uses(self.nodes[key], names)
            self._note_uses(self.nodes[key])
            self.touch((key,))
        self._outputs = [replace(o, value=names.get(o.value, o.value)) for o in self._outputs]
        self._output_values = {o.value for o in self._outputs}
        self._remove_unread(list(names))

    def set_origin(self, n: Node, origin: Origin) -> None:
        """Change where `n` says that it comes from."""
        if origin != n.origin:
            self.changed = True
            self.nodes[key_of(n)] = replace(n, origin=origin)

    def remove_dead(self) -> None:
        """Remove every node that no output of the graph needs."""
        if self._may_have_dead:
            self._may_have_dead = False
            self._remove_unread(list(self._producer))

    def drop_unused_dims(self) -> None:
        """Take dims that nothing uses any more out of the graph's table."""
        found: set[str] = set()
        for n in self.nodes.values():
            for v in defined(n):
                found.update(v.dims)
            if isinstance(n, Nest):
                found.update(n.bound)
            elif isinstance(n, Scan):
                found.add(n.dim)
            elif isinstance(n, Scatter):
                found.update(n.dims)
        self._drop_dims([d for d in self.extents if d not in found])

    def finish(self) -> Graph:
        """The graph as it is now; the very graph that it last was if nothing changed."""
        if not self.changed:
            return self.graph
        nodes = tuple(self._assemble(ROOT))
        symbols = self.graph.symbols
        if symbols:
            # A size goes with what computed it: with a body in which nothing is read any more.
            lost = bound_symbols(self.graph.nodes) - bound_symbols(nodes)
            symbols = tuple((s, bounds) for s, bounds in symbols if s not in lost)
            self._drop_dims([d for d, e in self.extents.items() if not lost.isdisjoint(e.names())])
        dims, outputs = tuple(self.extents.items()), tuple(self._outputs)
        self.graph = replace(self.graph, dims=dims, nodes=nodes, outputs=outputs, symbols=symbols)
        self.symbols = dict(symbols)
        self.changed = False
        return self.graph

    # -- internals ------------------------------------------------------------------------------
    def _add_block(self, block: BlockId, nodes: Sequence[Node]) -> None:
        self._order[block] = _Order()
        self._insert(nodes, block, "")

    def _insert(self, nodes: Sequence[Node], block: BlockId, place: str) -> None:
        for n in nodes:
            self._add(n, block)
            place = self._order[block].insert_after(place, key_of(n))

    def _add(self, n: Node, block: BlockId) -> None:
        key = key_of(n)
        self.nodes[key] = n
        self.kinds[key] = kind_of(n)
        self._block_of[key] = block
        for v in outs(n):
            self._producer[v.name] = key
        for v in defined(n):
            self.values[v.name] = v
            self.dtypes[v.dtype] += 1
        self._note_uses(n)
        self.touch((key,))
        for position, body in enumerate(bodies(n)):
            self._add_block((key, position), body)

    def _drop_dims(self, dims: Sequence[str]) -> None:
        for d in dims:
            self.changed = True
            del self.extents[d]
            self.ranges.pop(d, None)

    def _remove(self, n: Node) -> None:
        key = key_of(n)
        for position, _ in enumerate(bodies(n)):
            for inner in list(self._order[key, position]):
                self._remove(self.nodes[inner])
            del self._order[key, position]
        self._forget_uses(n)
        self._order[self._block_of[key]].remove(key)
        del self.nodes[key], self._block_of[key]
        del self.kinds[key]
        self.settled.pop(key, None)
        self.found.pop(key, None)
        for v in outs(n):
            del self._producer[v.name]
        for v in defined(n):
            self.dtypes[self.values.pop(v.name).dtype] -= 1

    def _note_uses(self, n: Node) -> None:
        for name in used(n):
            self._readers.setdefault(name, {})[key_of(n)] = None

    def _forget_uses(self, n: Node) -> None:
        key = key_of(n)
        for name in used(n):
            readers = self._readers.get(name, {})
            if key in readers:
                del readers[key]
                self._fewer_readers.add(name)
                if name in self._producer:
                    self.touch((self._producer[name],))

    def _remove_unread(self, names: Sequence[str]) -> None:
        queue = list(names)
        while queue:
            n = self.producer(queue.pop())
            if n is None or isinstance(n, Input | Bind):
                continue
            if not any(self._readers.get(v.name) or self.is_output(v.name) for v in outs(n)):
                self.changed = True
                queue += _deep_uses(n, self)
                self._remove(n)

    def _assemble(self, block: BlockId) -> Iterator[Node]:
        for key in self._order[block]:
            n = self.nodes[key]
            match n:
                case Scan() | While():
                    yield replace(n, body=self.body(n, 0))
                case If():
                    then = Body(self.body(n, 0), n.then.results)
                    orelse = Body(self.body(n, 1), n.orelse.results)
                    yield replace(n, then=then, orelse=orelse)
                case _:
                    yield n


class _Order:
    """A linked list of distinct names; "" stands before its first and after its last."""

    def __init__(self) -> None:
        self._next = {"": ""}
        self._previous = {"": ""}
        self._listed: list[str] | None = None
        """All names, while none comes or goes: most sweeps change nothing."""

    def __iter__(self) -> Iterator[str]:
        if self._listed is None:
            self._listed = list(self._followed())
        return iter(self._listed)

    def _followed(self) -> Iterator[str]:
        name = self._next[""]
        while name:
            yield name
            name = self._next[name]

    def before(self, name: str) -> str:
        """The name before `name`."""
        return self._previous[name]

    def insert_after(self, place: str, name: str) -> str:
        """Insert `name` after `place`; gives `name`."""
        self._listed = None
        follower = self._next[place]
        self._next[place], self._next[name] = name, follower
        self._previous[name], self._previous[follower] = place, name
        return name

    def remove(self, name: str) -> None:
        """Take `name` out."""
        self._listed = None
        before, after = self._previous.pop(name), self._next.pop(name)
        self._next[before], self._previous[after] = after, before


def _deep_uses(n: Node, editor: Editor) -> Iterator[str]:
    yield from used(n)
    for position, _ in enumerate(bodies(n)):
        for key in editor.names((key_of(n), position)):
            yield from used(editor.nodes[key])
