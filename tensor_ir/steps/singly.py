"""Elements that lie apart in memory, loaded and stored one by one."""

from __future__ import annotations

from dataclasses import replace

from rutc.base.record import record
from rutc.tensor_ir.kernel import Kernel, Space
from rutc.tensor_ir.steps.step import NotApplicable, Step


@record
class Singly(Step):
    """Load and store the element of each lane by itself where lanes of `buffer` are no neighbours.

    Elsewhere what lies between them is loaded, too, and sorted in registers, as far as that pays by
    itself: vectors across memory are transposed where an unrolled loop goes along it, and elements
    near each other, or in a short row, are picked from whole vectors. With other loops around, or
    where few of them are used, that may take longer than to load each.
    """

    buffer: str

    def apply(self, kernel: Kernel) -> Kernel:
        """The kernel that says so. Raises NotApplicable where the buffer is in no memory."""
        found = next((b for b in (*kernel.args, *kernel.locals) if b.name == self.buffer), None)
        if found is None or found.space is Space.REGISTER:
            raise NotApplicable(f"there is no memory %{self.buffer}")
        if found.layout.nibbles:
            raise NotApplicable(f"elements of %{self.buffer} are halves of bytes")
        if found.singly:
            raise NotApplicable(f"%{self.buffer} is accessed so already")
        changed = replace(found, singly=True)
        args, own = (
            tuple(changed if b is found else b for b in part)
            for part in (kernel.args, kernel.locals)
        )
        return replace(kernel, args=args, locals=own)
