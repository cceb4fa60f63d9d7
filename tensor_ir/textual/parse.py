"""Graphs from their text form; the grammar is at the top of `text`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from math import prod
from typing import TypeVar

from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.expr import Expr
from rutc.tensor_ir.graph import (
    Bind,
    Body,
    Call,
    Carry,
    Const,
    Data,
    Graph,
    If,
    Input,
    Nest,
    Node,
    Origin,
    Output,
    Scan,
    Scatter,
    State,
    Value,
    While,
)
from rutc.tensor_ir.indices.affine import Index, Range
from rutc.tensor_ir.indices.ranges import with_common
from rutc.tensor_ir.interface import Bundle, Interface, tensor
from rutc.tensor_ir.reducer import REDUCERS, Reducer, reducer
from rutc.tensor_ir.textual.lexer import Kind, Token, tokenize
from rutc.tensor_ir.textual.syntax import Cursor
from rutc.tensor_ir.textual.text import elements, read_item

T = TypeVar("T")
Element = float | bool | str
Attribute = tuple[str, float | str | tuple[int, ...]]


def parse(text: str, constants: Mapping[str, Data] | None = None) -> Graph:
    """The graph that `text` describes; not verified.

    Args:
        text: The text of a graph, or the like.
        constants: The constants that the text gives as digests (see `constants_of`).

    Raises:
        ParseError: The text is malformed; names line and column.
    """
    return _Parser(Cursor(text, tokenize(text)), constants or {}).graph()


def parse_expr(
    text: str, types: Mapping[str, DType] | None = None, expected: DType | None = None
) -> Expr:
    """An expression over values of these types; `expected` types the literals at its top."""
    cursor = Cursor(text, tokenize(text), types=dict(types or {}))
    found = cursor.expr(expected)
    cursor.of(Kind.END)
    return found


@lru_cache(maxsize=1 << 10)
def parse_index(text: str) -> Index:
    """An index expression. A manifest's are asked for again and again."""
    cursor = Cursor(text, tokenize(text))
    found = cursor.index()
    cursor.of(Kind.END)
    return found


class _Parser:
    """Recursive descent over the lines of a graph."""

    def __init__(self, cursor: Cursor, constants: Mapping[str, Data]) -> None:
        self.at = cursor
        self.constants = constants
        self.dims: dict[str, Index] = {}
        self.symbols: dict[str, Range] = {}
        self.reducers: dict[str, list[Reducer]] = {}
        self.outputs: list[Output] = []
        self.members: dict[str, list[tuple[str, Bundle]]] = {"input": [], "output": []}
        self.states: list[State] = []

    def graph(self) -> Graph:
        at = self.at
        while at.token.kind is Kind.NEWLINE:
            at.take()
        at.expect("graph")
        name = at.of(Kind.STRING).text
        nodes: list[Node] = []
        while not at.ended:
            at.of(Kind.NEWLINE)
            if at.token.kind is Kind.VALUE:
                nodes.append(self.node())
            elif at.accept("output"):
                self.outputs.append(self.output())
            elif at.accept("interface"):
                self.member()
            elif at.accept("state"):
                self.states.append(self.state())
            elif at.accept("symbols"):
                self.symbols.update(self.several(self.symbol))
            elif at.accept("dims"):
                self.dims.update(self.several(self.dim))
            elif at.accept("reducer"):
                r = self.reducer()
                self.reducers.setdefault(r.name, []).append(r)
            elif not at.ended:
                raise at.fail(
                    "expected symbols, dims, reducer, output or a value's definition, "
                    f"but found {at.token}"
                )
        return Graph(
            name,
            tuple(self.dims.items()),
            tuple(nodes),
            tuple(self.outputs),
            tuple(self.symbols.items()),
            Interface(*map(tuple, self.members.values())) if any(self.members.values()) else None,
            tuple(self.states),
        )

    def state(self) -> State:
        """One state."""
        taken = self.at.of(Kind.STRING).text
        self.at.expect("=")
        return State(self.at.of(Kind.STRING).text, taken)

    def member(self) -> None:
        """One line of the interface."""
        role = self.at.name()
        if role not in self.members:
            raise self.at.fail("expected input or output")
        name = self.at.of(Kind.STRING).text
        self.at.expect("=")
        self.members[role].append((name, self.bundle()))

    def bundle(self) -> Bundle:
        if self.at.token.kind is Kind.STRING:
            return tensor(self.at.of(Kind.STRING).text)
        kind = self.at.name()
        if kind == "boxed":
            held, port, *shape = self.closed("(", self.key, ")")
            return Bundle(kind, str(port), type=str(held), shape=tuple(map(int, shape)))
        keys = self.closed("[", self.key, "]") if self.at.token.text == "[" else None
        return Bundle(kind, parts=self.closed("(", self.bundle, ")"), keys=keys)

    def key(self) -> int | str:
        if self.at.token.kind is Kind.STRING:
            return self.at.of(Kind.STRING).text
        return self.integer()

    def several(self, item: Callable[[], T], end: str | None = None) -> tuple[T, ...]:
        """Items between commas; with `end`, maybe none, and the mark that follows them."""
        if end is not None and self.at.accept(end):
            return ()
        items = [item()]
        while self.at.accept(","):
            items.append(item())
        if end is not None:
            self.at.expect(end)
        return tuple(items)

    def closed(self, opening: str, item: Callable[[], T], end: str) -> tuple[T, ...]:
        self.at.expect(opening)
        return self.several(item, end)

    # -- header and parts -----------------------------------------------------------------------
    def symbol(self) -> tuple[str, Range]:
        name = self.at.name()
        self.at.expect("=")
        low = self.integer()
        self.at.expect("..")
        high = self.integer()
        return name, with_common((low, high), self.integer() if self.at.accept("@") else None)

    def dim(self) -> tuple[str, Index]:
        token = self.at.token
        name = self.at.name()
        if name in self.dims:
            raise self.at.fail(f"dim {name} has an extent already", token)
        self.at.expect("=")
        return name, self.at.index()

    def integer(self) -> int:
        token = self.at.token
        found = self.item()
        if not isinstance(found, int):
            raise self.at.fail("expected an integer", token)
        return found

    def output(self) -> Output:
        name = self.at.of(Kind.STRING).text
        axes = self.axes()
        self.at.expect("=")
        return Output(name, self.known(), axes)

    def axes(self) -> tuple[str, ...]:
        return self.closed("[", self.at.name, "]")

    def set(self) -> tuple[str, ...]:
        return self.closed("{", self.at.name, "}")

    def value(self) -> str:
        return self.at.of(Kind.VALUE).text

    def known(self) -> str:
        token = self.at.of(Kind.VALUE)
        if token.text not in self.at.types:
            raise self.at.fail(f"%{token.text} is not defined before this use", token)
        return token.text

    def definition(self) -> Value:
        token = self.at.of(Kind.VALUE)
        self.at.expect(":")
        dtype = self.at.dtype()
        dims = self.set()
        if len(set(dims)) != len(dims):
            raise self.at.fail(f"%{token.text} has a dim twice", token)
        return Value(token.text, dtype, tuple(sorted(dims)))

    def define(self, values: tuple[Value, ...], at: Token) -> None:
        for v in values:
            if v.name in self.at.types:
                raise self.at.fail(f"%{v.name} is defined a second time", at)
            self.at.types[v.name] = v.dtype

    def origin(self) -> Origin:
        if not self.at.accept("@"):
            return ()
        return self.several(lambda: self.at.of(Kind.STRING).text)

    def reducer(self) -> Reducer:
        at = self.at
        name = at.name()
        types = self.closed("(", at.dtype, ")")
        at.expect("identity")
        identity = self.closed("(", at.literal, ")")
        states = [i.dtype for i in identity]

        def part(title: str, **scopes: list[DType]) -> tuple[Expr, ...]:
            at.locals = {f"{p}{i}": t for p, ts in scopes.items() for i, t in enumerate(ts)}
            at.expect(title)
            return self.closed("(", at.expr, ")")

        lift = part("lift", x=list(types))
        merge = part("merge", a=states, b=states)
        finish = part("finish", s=states)
        at.locals = {}
        return Reducer(name, types, identity, lift, merge, finish)

    def reducer_of(self, at: Token, elements: tuple[Expr, ...]) -> Reducer:
        types = tuple(e.dtype for e in elements)
        for r in self.reducers.get(at.text, []):
            if r.elements == types:
                return r
        if at.text not in REDUCERS:
            known = ", ".join([*self.reducers, *REDUCERS])
            raise self.at.fail(f"no reducer {at.text!r} over {types}; known are {known}", at)
        try:
            return reducer(at.text, *types)
        except TypeError as e:
            raise self.at.fail(f"{at.text!r} does not take {len(types)} elements", at) from e

    # -- nodes ----------------------------------------------------------------------------------
    def node(self) -> Node:
        at = self.at
        start = at.token
        outs = self.several(self.definition)
        at.expect("=")
        node = self.right_side(outs)
        self.define(outs, start)
        return node

    def right_side(self, outs: tuple[Value, ...]) -> Node:
        at = self.at
        following = at.tokens[min(at.position + 1, len(at.tokens) - 1)]
        named = at.token.kind in (Kind.WORD, Kind.QUOTED)
        if named and following.text == "{" and not at.at("scatter"):
            return self.nest(outs)
        if named and following.text == "(":
            return self.pointwise(outs)
        for keyword, handler in (
            ("input", self.input),
            ("const", self.const),
            ("scan", self.scan),
            ("while", self.loop),
            ("if", self.conditional),
            ("scatter", self.scatter),
            ("bind", self.bind),
            ("call", self.call),
        ):
            if at.accept(keyword):
                return handler(outs)
        return self.pointwise(outs)

    def pointwise(self, outs: tuple[Value, ...]) -> Nest:
        body = self.at.expr(outs[0].dtype)
        return Nest(outs, (), None, (body,), self.origin())

    def nest(self, outs: tuple[Value, ...]) -> Nest:
        token = self.at.take()
        bound = self.set()
        body = self.several(self.at.expr)
        return Nest(outs, bound, self.reducer_of(token, body), body, self.origin())

    def input(self, outs: tuple[Value, ...]) -> Input:
        name = self.at.of(Kind.STRING).text
        axes = self.axes()
        fixed = self.data(outs[0], axes) if self.at.accept("fixed") else None
        return Input(outs[0], name, axes, self.origin(), fixed)

    def const(self, outs: tuple[Value, ...]) -> Const:
        axes = self.axes()
        data = self.data(outs[0], axes)
        return Const(outs[0], axes, data, self.origin())

    def data(self, out: Value, axes: tuple[str, ...]) -> Data:
        at = self.at
        start = at.token
        if at.accept("data"):
            digest = at.of(Kind.STRING).text
            if digest not in self.constants:
                raise at.fail(
                    f"the constant %{out.name} is given by its digest, and "
                    "no constant of this digest is at hand (see constants_of)",
                    start,
                )
            return self.constants[digest]
        items = self.items()
        for d in axes:
            if d not in self.dims or not self.dims[d].is_const:
                raise at.fail(f"%{out.name} needs a constant extent of dim {d}", start)
        shape = tuple(self.dims[d].value for d in axes)
        if len(items) != prod(shape):
            raise at.fail(f"%{out.name} has {prod(shape)} elements but {len(items)} stand here")
        try:
            return elements(items, out.dtype, shape)
        except (ValueError, OverflowError, TypeError) as e:
            raise at.fail(f"an element is no {out.dtype}: {e}", start) from e

    def items(self) -> list[Element]:
        """The elements of nested lists, in order."""
        if not self.at.at("["):
            return [self.item()]
        return [x for row in self.closed("[", self.items, "]") for x in row]

    def item(self) -> Element:
        at = self.at
        if at.token.kind is Kind.STRING:
            return at.take().text
        sign = "-" if at.accept("-") else ""
        token = at.of(Kind.NUMBER, Kind.WORD)
        if token.kind is Kind.WORD and token.text not in ("inf", "nan", "true", "false"):
            raise at.fail(f"expected an element but found {token}", token)
        return read_item(sign + token.text)

    def carry(self) -> Carry:
        token = self.at.token
        param = self.definition()
        self.define((param,), token)
        self.at.expect("=")
        init = self.known()
        self.at.expect("->")
        return Carry(param, init, self.value())

    def body(self) -> tuple[Node, ...]:
        """The lines of a body, up to the mark or word that ends it."""
        at = self.at
        at.expect("{")
        nodes: list[Node] = []
        at.of(Kind.NEWLINE)
        while at.token.kind is Kind.VALUE:
            nodes.append(self.node())
            at.of(Kind.NEWLINE)
        return tuple(nodes)

    def scan(self, outs: tuple[Value, ...]) -> Scan:
        at = self.at
        dim = at.name()
        at.expect("carry")
        carries = self.closed("(", self.carry, ")")
        at.expect("collect")
        collected = self.closed("(", self.value, ")")
        origin = self.origin()
        body = self.body()
        at.expect("}")
        return Scan(outs, dim, carries, collected, body, origin)

    def loop(self, outs: tuple[Value, ...]) -> While:
        at = self.at
        at.expect("carry")
        carries = self.closed("(", self.carry, ")")
        at.expect("if")
        cond = self.value()
        origin = self.origin()
        body = self.body()
        at.expect("}")
        return While(outs, cond, carries, body, origin)

    def conditional(self, outs: tuple[Value, ...]) -> If:
        cond = self.known()
        origin = self.origin()
        then = self.branch()
        self.at.expect("else")
        return If(outs, cond, then, self.branch(), origin)

    def branch(self) -> Body:
        nodes = self.body()
        self.at.expect("yield")
        results = self.several(self.known) if self.at.token.kind is Kind.VALUE else ()
        self.at.of(Kind.NEWLINE)
        self.at.expect("}")
        return Body(nodes, results)

    def scatter(self, outs: tuple[Value, ...]) -> Scatter:
        at = self.at
        dims = self.set()
        target = at.read()
        token = at.of(Kind.WORD, Kind.QUOTED)
        at.expect("=")
        body = at.expr(outs[0].dtype)
        combine = None if token.text == "set" else self.reducer_of(token, (body,))
        return Scatter(outs[0], target.value, dims, target.coords, combine, body, self.origin())

    def bind(self, outs: tuple[Value, ...]) -> Bind:
        symbol = self.at.name()
        self.at.expect("=")
        return Bind(outs[0], symbol, self.known(), self.origin())

    def call(self, outs: tuple[Value, ...]) -> Call:
        at = self.at
        routine = at.name()
        args: list[str] = []
        arg_axes: list[tuple[str, ...]] = []
        attributes: list[Attribute] = []

        def part() -> None:
            if at.token.kind is Kind.VALUE:
                args.append(self.known())
                arg_axes.append(self.axes() if at.at("[") else ())
            else:
                name = at.name()
                at.expect("=")
                attributes.append((name, self.attribute()))

        self.closed("(", part, ")")
        out_axes = self.several(self.axes) if at.accept("->") else ()
        origin = self.origin()
        return Call(
            outs, routine, tuple(args), tuple(attributes), origin, tuple(arg_axes), out_axes
        )

    def attribute(self) -> float | str | tuple[int, ...]:
        if self.at.at("["):
            return self.closed("[", self.integer, "]")
        return self.item()
