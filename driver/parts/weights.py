"""The image of all weights: constants in the layouts that kernels ask for, equal ones once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from rutc.base.mapped import is_mapped
from rutc.emit.host_program.kernel_call import Ref
from rutc.emit.host_program.program import padded
from rutc.emit.linking.weight_data import Late, WeightData, byte_count
from rutc.tensor_ir.graph import Const, Data
from rutc.tensor_ir.indices.affine import Index
from rutc.tensor_ir.layout import Layout, pack

Key = tuple[Data, Layout, str]
Numbers = bytes
"""Those of a kernel, as they lie in memory."""


@dataclass
class Weights:
    """The constants that were asked for: pairs (offset, data) inside `bytes` bytes.

    What is mapped from a file is laid out once it is written, so that no memory holds it till then.
    """

    images: list[tuple[int, WeightData]] = field(default_factory=list)
    bytes: int = 0
    _offsets: dict[Key, int] = field(default_factory=dict)
    _packed: dict[Key, WeightData] = field(default_factory=dict)
    """Constants in layouts in which they have no place yet."""
    _numbers: dict[Numbers, int] = field(default_factory=dict)

    def pack(self, const: Const, layout: Layout) -> None:
        """Packs a constant that gets its place in a layout later: places have an order."""
        key = _key(const, layout)
        if key not in self._offsets and key not in self._packed:
            self._packed[key] = _image(const, layout)

    def place(self, const: Const, layout: Layout) -> Ref:
        """Where a constant lies in a layout."""
        key = _key(const, layout)
        if key not in self._offsets:
            image = self._packed.pop(key, None)
            if image is None:
                image = _image(const, layout)
            self._offsets[key] = self._added(image)
        return Ref("weights", 0, self._offsets[key])

    def place_numbers(self, numbers: Numbers) -> Ref:
        """Where the numbers of a kernel lie."""
        if numbers not in self._numbers:
            self._numbers[numbers] = self._added(np.frombuffer(numbers, np.uint8))
        return Ref("weights", 0, self._numbers[numbers])

    def _added(self, image: WeightData) -> int:
        """The place of what comes behind all else."""
        place = self.bytes
        self.images.append((place, image))
        self.bytes += padded(max(byte_count(image), 1))
        return place


def _image(const: Const, layout: Layout) -> WeightData:
    """A constant laid out in memory, or what will lay it out."""
    if not is_mapped(const.data.array):
        return pack(const.data.array, const.axes, layout)
    elements = Index.of(layout.size).value
    size = -(-elements // 2) if layout.nibbles else elements * const.data.array.itemsize
    return Late(size, partial(_laid_out, const, layout), const.data.forget)


def _laid_out(const: Const, layout: Layout) -> np.ndarray:
    array = const.data.array
    image = pack(array, const.axes, layout)
    if not np.may_share_memory(image, array):
        const.data.forget()
    return image


def _key(const: Const, layout: Layout) -> Key:
    """What tells images apart: two constants of equal content share one, whatever their dims."""
    position = {d: i for i, d in enumerate(const.axes)}
    return const.data, _renamed(layout, position), str(const.out.dtype)


def _renamed(layout: Layout, position: Mapping[str, int]) -> Layout:
    """The layout with dims named by their axis number."""
    axes = tuple(replace(a, dim=f"{position[a.dim]}") for a in layout.axes)
    return Layout(axes, (), None, (), layout.nibbles)
