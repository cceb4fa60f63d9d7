"""What LLVM's text is made of: modules, functions, blocks, and what instructions give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rutc.emit.llvm.ir_types import Constant, PointerType, Type, Value

POINTER = PointerType()
REPEATS = '"repeats"'
"""An attribute of functions that LLVM itself knows nothing of."""


class Instruction(Value):
    """The result of an operation, with what it was computed from."""

    __slots__ = ("op", "operands")

    def __init__(self, type_: Type, ref: str, op: str, operands: tuple[Value, ...]) -> None:
        """What an instruction of that name gives."""
        self.type = type_
        self.ref = ref
        self.op = op
        self.operands = operands


class Phi(Value):
    """A value that depends on the block from which this one is reached."""

    __slots__ = ("_incoming",)

    def __init__(self, type_: Type, ref: str) -> None:
        """A value that no block gives yet."""
        super().__init__(type_, ref)
        self._incoming: list[str] = []

    def add_incoming(self, value: Value, block: Block) -> None:
        """The value for those who come from a block."""
        self._incoming.append(f"[{value.ref}, %{block.name}]")

    @property
    def line(self) -> str:
        """The instruction, once all blocks are added."""
        return f"{self.ref} = phi {self.type.text} {', '.join(self._incoming)}"


class Block:
    """Instructions that run one after the other, and where they lead."""

    def __init__(self, function: Function, name: str) -> None:
        """A block without instructions."""
        self.function = function
        self.name = name
        self.lines: list[str | Phi] = []
        self.end: str | None = None

    def __str__(self) -> str:
        """The block as text."""
        lines = [x if isinstance(x, str) else x.line for x in self.lines]
        if self.end is not None:
            lines.append(self.end)
        return f"{self.name}:\n  " + "\n  ".join(lines)


class Module:
    """Functions and tables, by name."""

    def __init__(self, name: str) -> None:
        """A module without any."""
        self.name = name
        self.triple = ""
        self.globals: dict[str, Function | GlobalVariable] = {}

    def declared(self, name: str, result: Type, args: Sequence[Type]) -> Function:
        """The function of that name, declared on first use."""
        found = self.globals.get(name)
        if found is None:
            return Function(self, name, result, args)
        assert isinstance(found, Function)
        return found

    def __str__(self) -> str:
        """The module as text."""
        triple = f'target triple = "{self.triple}"\n' if self.triple else ""
        return triple + "\n".join(map(Function.text, _functions(self))) + _tables(self)

    def drop(self) -> None:
        """Takes its functions apart, once its text is known.

        They refer to what refers to them: only the search for cycles would find that to be garbage.
        """
        for f in _functions(self):
            f.blocks.clear()
            f.numbers = None
        self.globals.clear()


def _functions(module: Module) -> list[Function]:
    return [f for f in module.globals.values() if isinstance(f, Function)]


def _tables(module: Module) -> str:
    tables = [t for t in module.globals.values() if isinstance(t, GlobalVariable)]
    return "".join(f"{t.text()}\n" for t in tables)


class GlobalVariable(Value):
    """A table of constants in a module."""

    __slots__ = ("align", "initializer", "value_type")

    def __init__(
        self, module: Module, name: str, initializer: Constant, align: int | None = None
    ) -> None:
        """A table that only this module knows."""
        super().__init__(POINTER, f"@{name}")
        self.value_type = initializer.type
        self.initializer = initializer
        self.align = align
        module.globals[name] = self

    def text(self) -> str:
        """Its definition."""
        aligned = "" if self.align is None else f", align {self.align}"
        return f"{self.ref} = internal constant {self.initializer}{aligned}"


Number = tuple[Type, float]


class Held(Protocol):
    """The literals of a function that its caller holds (`numbers.py`)."""

    @property
    def bytes(self) -> bytes:
        """All of them, as they lie in memory."""

    def scalar(self, number: Number) -> Value:
        """One of them."""

    def vector(self, number: Number, lanes: int) -> Value:
        """One of them in so many lanes."""

    def in_lanes(self, value: Value, lanes: int) -> Value | None:
        """What `scalar` gave, in so many lanes; None of any other value."""


class Function(Value):
    """A function: its blocks, or only what it takes and gives."""

    __slots__ = (
        "_names",
        "args",
        "blocks",
        "internal",
        "module",
        "noalias",
        "noinline",
        "numbers",
        "repeats",
        "result",
    )

    def __init__(self, module: Module, name: str, result: Type, args: Sequence[Type]) -> None:
        """A function without blocks, which is a declaration."""
        super().__init__(POINTER, f"@{name}")
        self.module = module
        self.result = result
        self.args = [Value(t, f"%a{n}") for n, t in enumerate(args)]
        self.blocks: list[Block] = []
        self.internal = self.noinline = False
        """Whether only this module knows it, and whether it stays a function."""
        self.repeats = False
        """Whether its loops compute again and again what does not change in them."""
        self.noalias = 0
        """How many of its first arguments point to memory of their own."""
        self.numbers: Held | None = None
        """The literals that its caller holds, where some may be."""
        self._names = 0
        module.globals[name] = self

    def append_basic_block(self, name: str = "block") -> Block:
        """A new block behind the others."""
        block = Block(self, f"{name}.{len(self.blocks)}")
        self.blocks.append(block)
        return block

    def new_name(self) -> str:
        """A name for a value that no other has."""
        self._names += 1
        return f"%v{self._names}"

    def text(self) -> str:
        """Its definition, or its declaration."""
        types = [
            f"{a.type.text} noalias" if n < self.noalias else a.type.text
            for n, a in enumerate(self.args)
        ]
        result = self.result.text
        if not self.blocks:
            return f"declare {result} {self.ref}({', '.join(types)})\n"
        args = ", ".join(f"{t} {a.ref}" for t, a in zip(types, self.args, strict=True))
        linkage = "internal " if self.internal else ""
        attributes = " noinline" if self.noinline else ""
        attributes += f" {REPEATS}" if self.repeats else ""
        blocks = "\n".join(map(str, self.blocks))
        return f"define {linkage}{result} {self.ref}({args}){attributes} {{\n{blocks}\n}}\n"
