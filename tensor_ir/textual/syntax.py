"""Parsing of expressions: first a tree without types, then an index or a typed expression.

The tree is needed because a literal takes its type from its siblings, and because a coordinate is
an index expression exactly if nothing in it is special to scalar expressions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import assert_never

from rutc.base.record import record
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.expr import (
    COMPARE,
    LOGIC,
    OPS,
    Apply,
    BitCast,
    Cast,
    Coord,
    Expr,
    IndexValue,
    Lit,
    Local,
    Read,
)
from rutc.tensor_ir.indices.affine import Index, maximum, minimum
from rutc.tensor_ir.textual.lexer import Kind, ParseError, Token, error
from rutc.tensor_ir.textual.text import INFIX, NEGATION, NOT

DTYPES: Mapping[str, DType] = {t.value: t for t in DType}
BIT_CASTS: Mapping[str, DType] = {f"bits_{t}": t for t in DType if not t.is_opaque}
_OPERATORS: Mapping[str, tuple[str, int]] = {
    **{sign: (op, strength) for op, (sign, strength) in INFIX.items()},
    "//": ("//", INFIX["mul"][1]),
}


@record
class Number:
    """A numeric literal, its type if it carries one."""

    at: Token
    text: str
    dtype: DType | None


@record
class Constant:
    """A literal whose form gives its type: a bool or a string."""

    at: Token
    value: bool | str


@record
class Name:
    """A dim or a symbol."""

    at: Token


@record
class LocalName:
    """A local."""

    at: Token


@record
class Element:
    """A read; a coordinate None is the dim itself."""

    at: Token
    coords: tuple[tuple[Token, Tree | None], ...]
    fill: Tree | None


@record
class Operation:
    """An operator or a function, by its name in `OPS`; `//`, casts and `index` too."""

    at: Token
    op: str
    args: tuple[Tree, ...]


Tree = Number | Constant | Name | LocalName | Element | Operation


@dataclass
class Cursor:
    """A position in the tokens of a text."""

    text: str
    tokens: list[Token]
    position: int = 0
    types: dict[str, DType] = field(default_factory=dict)
    locals: Mapping[str, DType] = field(default_factory=dict)

    @property
    def token(self) -> Token:
        """The next token."""
        return self.tokens[self.position]

    @property
    def ended(self) -> bool:
        """Whether the text is used up."""
        return self.token.kind is Kind.END

    def take(self) -> Token:
        """The next token, consumed; the end stays."""
        token = self.token
        self.position += token.kind is not Kind.END
        return token

    def fail(self, message: str, at: Token | None = None) -> ParseError:
        """The error `message` at a token, by default the next."""
        return error(self.text, (at or self.token).offset, message)

    def at(self, text: str) -> bool:
        """Whether the next token is this mark or plain word."""
        return self.token.kind in (Kind.MARK, Kind.WORD) and self.token.text == text

    def accept(self, text: str) -> bool:
        """Consume this mark or word if it is next."""
        found = self.at(text)
        self.position += found
        return found

    def expect(self, text: str) -> Token:
        """Consume this mark or word. Raises ParseError if something else is next."""
        if not self.at(text):
            raise self.fail(f"expected {text!r} but found {self.token}")
        return self.take()

    def of(self, *kinds: Kind) -> Token:
        """Consume a token of one of these kinds. Raises ParseError if another is next."""
        if self.token.kind not in kinds:
            wanted = " or ".join(k.value for k in kinds)
            raise self.fail(f"expected {wanted} but found {self.token}")
        return self.take()

    def name(self) -> str:
        """Consume a dim's, symbol's or reducer's name."""
        return self.of(Kind.WORD, Kind.QUOTED).text

    # -- trees ----------------------------------------------------------------------------------
    def tree(self, strength: int = 1) -> Tree:
        """A tree of operators that bind at least this tightly."""
        left = self._prefix()
        while self.token.kind in (Kind.MARK, Kind.WORD) and self.token.text in _OPERATORS:
            op, binding = _OPERATORS[self.token.text]
            if binding < strength:
                break
            at = self.take()
            left = Operation(at, op, (left, self.tree(binding + 1)))
        if self.token.kind is Kind.VALUE:
            raise self.fail("a value begins here; the remainder's % stands apart from what follows")
        return left

    def _prefix(self) -> Tree:
        at = self.token
        if self.accept("not"):
            return Operation(at, "not", (self.tree(NOT),))
        if self.accept("-"):
            following = self.token
            number = following.kind is Kind.NUMBER or self.at("inf") or self.at("nan")
            arg = self.tree(NEGATION)
            if number and isinstance(arg, Number):
                return Number(at, f"-{arg.text}", arg.dtype)
            return Operation(at, "neg", (arg,))
        return self._atom()

    def _atom(self) -> Tree:
        at = self.take()
        match at.kind:
            case Kind.NUMBER:
                return self._number(at)
            case Kind.STRING:
                return Constant(at, at.text)
            case Kind.VALUE:
                return self._element(at)
            case Kind.LOCAL:
                return LocalName(at)
            case Kind.QUOTED:
                return Name(at)
            case Kind.WORD if at.text in ("inf", "nan"):
                return self._number(at)
            case Kind.WORD if at.text in ("true", "false"):
                return Constant(at, at.text == "true")
            case Kind.WORD:
                if not self.accept("("):
                    return Name(at)
                args = [self.tree()]
                while self.accept(","):
                    args.append(self.tree())
                self.expect(")")
                return Operation(at, at.text, tuple(args))
            case Kind.MARK if at.text == "(":
                inner = self.tree()
                self.expect(")")
                return inner
        raise self.fail(f"expected an expression but found {at}", at)

    def _number(self, at: Token) -> Tree:
        dtype = None
        if self.accept(":"):
            dtype = self.dtype()
        return Number(at, at.text, dtype)

    def dtype(self) -> DType:
        """Consume an element type."""
        at = self.of(Kind.WORD)
        if at.text not in DTYPES:
            raise self.fail(f"{at.text!r} is no element type", at)
        return DTYPES[at.text]

    def _element(self, at: Token) -> Element:
        coords: list[tuple[Token, Tree | None]] = []
        fill: Tree | None = None
        if self.accept("["):
            while not self.at("]") and not self.at("else"):
                dim = self.of(Kind.WORD, Kind.QUOTED)
                coords.append((dim, self.tree() if self.accept("=") else None))
                if not self.accept(","):
                    break
            if self.accept("else"):
                fill = self.tree()
            self.expect("]")
        return Element(at, tuple(coords), fill)

    # -- meaning of trees -----------------------------------------------------------------------
    def index(self) -> Index:
        """An index expression."""
        return self._index(self.tree())

    def expr(self, expected: DType | None = None) -> Expr:
        """An expression; `expected` is the type of literals at its top."""
        return self._expr(self.tree(), expected)

    def read(self) -> Read:
        """A read."""
        return self._read(self._element(self.of(Kind.VALUE)))

    def literal(self, expected: DType | None = None) -> Lit:
        """A literal."""
        tree = self.tree()
        found = self._expr(tree, expected)
        if not isinstance(found, Lit):
            raise self.fail("expected a literal", tree.at)
        return found

    def _index(self, t: Tree) -> Index:
        match t:
            case Number() if t.dtype is None and t.text.lstrip("-").isdigit():
                return Index.of(int(t.text))
            case Name():
                return Index.of(t.at.text)
            case Operation() if len(t.args) == _INDEX_OPS.get(t.op):
                args = [self._index(a) for a in t.args]
                if t.op in ("//", "mod") and args[1].is_const and args[1].const <= 0:
                    raise self.fail("a divisor must be positive", t.args[1].at)
                return _index_operation(t.op, args)
        raise self.fail("this is no part of an index expression", t.at)

    def _coord(self, dim: Token, t: Tree | None) -> Coord:
        if t is None:
            return Index.of(dim.text)
        return self._index(t) if _is_index(t) else self._expr(t, DType.I64)

    def _read(self, t: Element) -> Read:
        dtype = self.types.get(t.at.text)
        if dtype is None:
            raise self.fail(f"%{t.at.text} is not defined before this use", t.at)
        found = [(d.text, self._coord(d, c)) for d, c in t.coords]
        coords = sorted(found, key=lambda dim_coord: dim_coord[0])
        fill = None
        if t.fill is not None:
            filler = self._expr(t.fill, dtype)
            if not isinstance(filler, Lit):
                raise self.fail("what stands after 'else' must be a literal", t.fill.at)
            fill = filler
        return Read(t.at.text, tuple(coords), dtype, fill)

    def _expr(self, t: Tree, expected: DType | None) -> Expr:
        match t:
            case Number():
                return self._literal(t, t.dtype or expected)
            case Constant():
                return Lit(t.value, DType.BOOL if isinstance(t.value, bool) else DType.STRING)
            case Name():
                raise self.fail(
                    f"{t.at.text!r} is a dim or a symbol: as a value it is index({t.at.text})",
                    t.at,
                )
            case LocalName():
                if t.at.text not in self.locals:
                    raise self.fail(f"no local ${t.at.text} is known here", t.at)
                return Local(t.at.text, self.locals[t.at.text])
            case Element():
                return self._read(t)
            case Operation():
                return self._operation(t, expected)
            case _:
                assert_never(t)

    def _literal(self, t: Number, dtype: DType | None) -> Lit:
        if dtype is None:
            raise self.fail(f"nothing here gives {t.text} a type: write {t.text}:f32, say", t.at)
        whole = t.text.lstrip("-").isdigit()
        try:
            return Lit(int(t.text) if whole else float(t.text), dtype)
        except ValueError as e:
            raise self.fail(str(e), t.at) from e

    def _operation(self, t: Operation, expected: DType | None) -> Expr:
        if t.op == "index" and len(t.args) == 1:
            return IndexValue(self._index(t.args[0]))
        if t.op in DTYPES and len(t.args) == 1:
            return Cast(self._expr(t.args[0], None), DTYPES[t.op])
        if t.op in BIT_CASTS and len(t.args) == 1:
            return BitCast(self._expr(t.args[0], None), BIT_CASTS[t.op])
        if OPS.get(t.op) != len(t.args):
            count = OPS.get(t.op)
            wanted = f"takes {count} operands" if count else "is no operator of expressions"
            raise self.fail(f"{t.op!r} {wanted}", t.at)
        kin = t.args[1:] if t.op == "select" else t.args
        typed = [self._expr(a, None) if _is_typed(a) else None for a in kin]
        shared = next((e.dtype for e in typed if e is not None), None)
        if shared is None and not _gives_bool(t.op):
            shared = expected
        args = [e or self._expr(a, shared) for a, e in zip(kin, typed, strict=True)]
        if t.op == "select":
            args = [self._expr(t.args[0], DType.BOOL), *args]
        return Apply(t.op, tuple(args))


_INDEX_OPS = {"add": 2, "sub": 2, "mul": 2, "mod": 2, "//": 2, "neg": 1, "min": 2, "max": 2}


def _index_operation(op: str, args: list[Index]) -> Index:
    match op, args:
        case "add", [a, b]:
            return a + b
        case "sub", [a, b]:
            return a - b
        case "mul", [a, b]:
            return a * b
        case "mod", [a, b]:
            return a % b
        case "//", [a, b]:
            return a // b
        case "min", [a, b]:
            return minimum(a, b)
        case "max", [a, b]:
            return maximum(a, b)
        case _:
            return -args[0]


def _is_index(t: Tree) -> bool:
    match t:
        case Number():
            return t.dtype is None
        case Name():
            return True
        case Operation():
            return t.op in _INDEX_OPS and all(_is_index(a) for a in t.args)
        case Constant() | LocalName() | Element():
            return False
        case _:
            assert_never(t)


def _gives_bool(op: str) -> bool:
    return op in COMPARE or op in LOGIC or op in ("not", "isnan", "isinf")


def _is_typed(t: Tree) -> bool:
    """Whether the type of `t` follows from `t` alone."""
    match t:
        case Number():
            return t.dtype is not None
        case Constant() | Element() | LocalName():
            return True
        case Name():
            return False
        case Operation():
            if t.op == "index" or t.op in DTYPES or t.op in BIT_CASTS or _gives_bool(t.op):
                return True
            return any(_is_typed(a) for a in (t.args[1:] if t.op == "select" else t.args))
        case _:
            assert_never(t)
