"""Indices as LLVM values: where they are computed, and what must stay where it is."""

import pytest

from rutc.emit.index import IndexEmitter
from rutc.emit.llvm import ir
from rutc.emit.llvm.ir_vectors import I64
from rutc.tensor_ir.indices.affine import Index
from rutc.tensor_ir.textual.parse import parse_index

RANGES = {"n": (1, 100), "z": (0, 100)}


class Loop:
    """A function with a loop in which indices over symbols and its counter are emitted."""

    def __init__(self) -> None:
        """Begin in the loop, behind a branch."""
        function = ir.Function(ir.Module("test"), "f", ir.VoidType(), [I64, I64, I64])
        self.first = function.append_basic_block("first")
        self.head = function.append_basic_block("head")
        self.later = function.append_basic_block("later")
        self.builder = ir.IRBuilder(self.first)
        self.index = IndexEmitter(self.builder, hide_divisions=False)
        self.args = dict(zip(("n", "z", "i"), function.args, strict=True))

    def emit(self, *texts: str) -> list[str]:
        """Values of the indices, in the loop's second block."""
        index = self.index
        with (
            index.counter("n", self.args["n"], RANGES["n"]),
            index.counter("z", self.args["z"], RANGES["z"]),
        ):
            self.builder.position_at_end(self.head)
            with index.scope(), index.counter("i", self.args["i"], (-3, 9)):
                self.builder.position_at_end(self.later)
                found = [index.emit(parse_index(t)).ref for t in texts]
            assert self.builder.block is self.later
        return found


def test_is_computed_in_the_loop_whose_counter_it_reads() -> None:
    loop = Loop()
    first, again, other = loop.emit("n*z", "n*z", "n*z + 3*i")
    assert first == again != other
    assert [str(x).split(" = ")[1].split()[0] for x in loop.first.lines] == ["mul"]
    assert [str(x).split(" = ")[1].split()[0] for x in loop.head.lines] == ["mul", "add"]
    assert not loop.later.lines


def test_division_by_what_may_be_zero_stays() -> None:
    loop = Loop()
    loop.emit("7 // z")
    assert not loop.first.lines
    assert "udiv" in str(loop.later)
    loop = Loop()
    loop.emit("7 // n")
    assert "udiv" in str(loop.first)
    assert not loop.later.lines


def test_division_in_a_branch_that_narrows_its_counter_stays() -> None:
    loop = Loop()
    with loop.index.counter("n", loop.args["n"], RANGES["n"]):
        loop.builder.position_at_end(loop.head)
        with loop.index.scope(), loop.index.counter("i", loop.args["i"], (-3, 9)):
            loop.builder.position_at_end(loop.later)
            with loop.index.scope(), loop.index.variable("i", None, (0, 9)):
                loop.index.emit(parse_index("i // n"))
            assert "udiv" in str(loop.later)
            loop.index.emit(parse_index("i // n"))
    assert "sdiv" in str(loop.head)


def test_what_places_of_a_tile_share_is_simplified_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, done = Loop(), list[Index]()
    simplify = Index.simplify
    monkeypatch.setattr(Index, "simplify", lambda x, ranges: done.append(x) or simplify(x, ranges))
    loop.index.ranges |= {"i": (0, 9), "n": (1, 100)}
    texts = [f"{16 * row} + 8*j + 2*min(i + n, 200) + 3*(i // 16)" for row in range(4)]
    found = [loop.index.resolve(parse_index(text)) for text in texts]
    assert [str(x) for x in found] == [
        str(parse_index(f"{16 * row} + 8*j + 2*i + 2*n")) for row in range(4)
    ]
    assert len(done) == 1
