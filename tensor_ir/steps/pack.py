"""Packing: lay a constant out in the order in which a kernel reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rutc.base.record import record
from rutc.tensor_ir.indices.affine import Size
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.layout import Layout, dense, in_nibbles
from rutc.tensor_ir.statements import accesses, walk_stmts
from rutc.tensor_ir.steps.step import NotApplicable, Step, check_positive


@record
class Pack(Step):
    """Lay out `buffer` with its dims in this `order`, inner `blocks` of some of them last.

    w [k, n]  ->  pack(w, [n, k], [[n, 16]])  ->  w [n/16, k, n%16]

    It is for constants, which are laid out when the library is made; a kernel does not tell which
    of its buffers are.
    """

    buffer: str
    order: tuple[str, ...]
    blocks: tuple[tuple[str, int], ...] = ()

    def apply(self, kernel: Kernel) -> Kernel:
        """The kernel with that layout. Raises NotApplicable for what is written, or other dims."""
        found = next((b for b in kernel.args if b.name == self.buffer), None)
        if found is None:
            raise NotApplicable(f"there is no argument %{self.buffer}")
        if any(a.buffer == self.buffer for s in walk_stmts(kernel.body) for a in accesses(s)):
            raise NotApplicable(f"%{self.buffer} is written")
        if found.layout.halo or found.layout.capacity:
            raise NotApplicable(f"%{self.buffer} has room for more than its elements")
        extents = dict(found.layout.extents)
        if sorted(self.order) != sorted(extents):
            raise NotApplicable(f"the dims of %{self.buffer} are {', '.join(extents) or 'none'}")
        for d, block in self.blocks:
            if d not in extents or len(dict(self.blocks)) < len(self.blocks):
                raise NotApplicable(f"%{self.buffer} has no dim {d}, or it has two blocks")
            check_positive("block", block)
        packed = replace(found, layout=self.layout(found.layout, extents, {d: d for d in extents}))
        args = tuple(packed if b is found else b for b in kernel.args)
        return replace(kernel, args=args)

    def layout(
        self, before: Layout, extents: Mapping[str, Size], names: Mapping[str, str]
    ) -> Layout:
        """The layout of what lies as `before`, for dims of other names and these extents."""
        blocks = {names[d]: n for d, n in self.blocks}
        found = dense([names[d] for d in self.order], extents, blocks=blocks)
        return in_nibbles(found) if before.nibbles else found
