"""How kernels are called: places in memory, and a launch's arguments, tasks and sizes."""

from typing import Literal, NewType

from rutc.base.record import record
from rutc.tensor_ir.indices.affine import Index, Size

Space = Literal["arena", "weights", "block", "input", "output"]

BUFFER_ALIGNMENT = 64
"""Bytes: the arena and the weights start at a multiple of this, and so do all offsets in them."""


@record
class Ref:
    """A place in memory: `offset` bytes into a space; `index` numbers the block or port."""

    space: Space
    index: int = 0
    offset: Size = 0

    def __str__(self) -> str:
        number = str(self.index) if self.space in {"block", "input", "output"} else ""
        return f"{self.space}{number}+{self.offset}"


@record
class Near:
    """The argument of that number passes between kernels in turn: `bytes` of it for one index.

    A thread that takes turns has them at that offset of its scratch.
    """

    argument: int
    offset: Size
    bytes: Size


KernelId = NewType("KernelId", int)
"""The place of a kernel in a program's table."""


@record
class KernelCall:
    """How a launch runs a function: over tasks [0, tasks), shared out to the threads.

    One task runs on the caller's thread. The tasks are `turns` equal runs of consecutive ones. A
    thread does the same part of every run; with 0 turns the caller's does all tasks.
    The function is told the `sizes`, and needs `thread_bytes` of the thread's scratch. `origin`
    names the ONNX nodes that the kernel computes.
    """

    function: str
    args: tuple[Ref, ...]
    tasks: Size
    origin: tuple[str, ...] = ()
    sizes: tuple[Index, ...] = ()
    turns: Size = 1
    near: tuple[Near, ...] = ()
    thread_bytes: Size = 0

    def __str__(self) -> str:
        args = ", ".join(map(str, self.args))
        origin = f"  # {', '.join(self.origin)}" if self.origin else ""
        sizes = f" sizes={', '.join(map(str, self.sizes))}" if self.sizes else ""
        turns = f" turns={self.turns}" if self.turns != 1 else ""
        scratch = f" scratch={self.thread_bytes}" if isinstance(self.thread_bytes, Index) else ""
        return f"launch {self.function}({args}) tasks={self.tasks}{turns}{scratch}{sizes}{origin}"
