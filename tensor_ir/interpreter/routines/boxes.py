"""Boxes: tensors as elements of tensors, which is what sequences and optionals are made of.

    sequence of tensors                 %s : tensor{n}        a box for each element
    optional                            %o : tensor{n}        n is 0 or 1
    value whose shape loops change      %v : tensor{}

A box never changes. What is in one is told by `box_rank` and `box_shape`, bound as sizes, and then
read by `unbox`. `take`, `give`, `sweep` and `settle`, which keep boxes in memory, exist in
artifacts only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rutc.base.record import record
from rutc.tensor_ir.interpreter.routines.job import Job, Routine


@record(eq=False)
class Box:
    """One element of type `tensor`: an array, dense; of boxes if its own dtype is object."""

    array: np.ndarray


def _boxes(items: Sequence[np.ndarray]) -> np.ndarray:
    """The boxes {n} of arrays."""
    made: np.ndarray = np.empty(len(items), object)
    made[:] = [Box(np.array(a)) for a in items]
    return made


def _content(job: Job, box: object) -> np.ndarray:
    if not isinstance(box, Box):
        job.fail("a box holds nothing")
    return box.array


def box(job: Job) -> Sequence[np.ndarray]:
    """The box of the first operand; a second one is the shape that its elements get."""
    x, *shape = job.args
    return (_boxes([x.reshape(shape[0]) if shape else x]).reshape(()),)


def boxes(job: Job) -> Sequence[np.ndarray]:
    """The boxes {n} of n scalar operands, in order."""
    made: np.ndarray = np.empty(len(job.args), object)
    made[:] = [a.item() for a in job.args]
    return (made,)


def box_rank(job: Job) -> Sequence[np.ndarray]:
    """The rank of what is in a box."""
    return (np.array(_content(job, job.args[0].item()).ndim, np.int64),)


def box_shape(job: Job) -> Sequence[np.ndarray]:
    """The shape of what is in a box, which has as many axes as the result has elements."""
    shape = _content(job, job.args[0].item()).shape
    if len(shape) != job.results[0].shape[0]:
        job.fail(f"the rank of an element is {len(shape)}, not {job.results[0].shape[0]}")
    return (np.array(shape, np.int64),)


def unbox(job: Job) -> Sequence[np.ndarray]:
    """What is in a box, which must have the result's type and shape; with `flat`, in one row."""
    array, result = _content(job, job.args[0].item()), job.results[0]
    if job.integer("flat", 0):
        array = array.reshape(-1)
    if array.dtype != result.dtype.numpy or array.shape != result.shape:
        job.fail(
            f"an element is {array.dtype}{list(array.shape)}, "
            f"not {result.dtype.numpy}{list(result.shape)}"
        )
    return (array,)


def joined_shape(job: Job) -> Sequence[np.ndarray]:
    """The shape of `joined`; that of no element at all is 0 along all axes."""
    axis, stacked = job.integer("axis"), job.integer("new_axis")
    rank = job.results[0].shape[0]
    shapes = [_content(job, b).shape for b in job.args[0].tolist()]
    if not shapes:
        return (np.zeros(rank, np.int64),)
    first = shapes[0]
    if len(first) != rank - stacked:
        job.fail(f"the rank of an element is {len(first)}, not {rank - stacked}")
    for shape in shapes[1:]:
        ignored = () if stacked else (axis,)
        ends = [[n for i, n in enumerate(s) if i not in ignored] for s in (shape, first)]
        if len(shape) != len(first) or ends[0] != ends[1]:
            job.fail(f"elements of shapes {list(first)} and {list(shape)} cannot be joined")
    if stacked:
        return (np.array([*first[:axis], len(shapes), *first[axis:]], np.int64),)
    whole = list(first)
    whole[axis] = sum(s[axis] for s in shapes)
    return (np.array(whole, np.int64),)


def joined(job: Job) -> Sequence[np.ndarray]:
    """What is in the boxes {n}, along an axis one after the other, or along a `new_axis`."""
    result = job.results[0]
    parts = [_content(job, b) for b in job.args[0].tolist()]
    if not parts:
        return (np.empty(result.shape, result.dtype.numpy),)
    wrong = [p for p in parts if p.dtype != result.dtype.numpy]
    if wrong:
        job.fail(f"an element is {wrong[0].dtype}, not {result.dtype.numpy}")
    join = np.stack if job.integer("new_axis") else np.concatenate
    made = join(parts, job.integer("axis"))
    if made.shape != result.shape:
        job.fail(f"elements of {list(made.shape)} do not make up {list(result.shape)}")
    return (made,)


def cut(job: Job) -> Sequence[np.ndarray]:
    """Boxes {n} of the parts of the first operand along an axis; the second says their extents.

    Without `keepdims` all of these are 1, and the parts lack the axis.
    """
    x, extents = job.args
    axis = job.integer("axis")
    if sum(extents.tolist()) != x.shape[axis] or (extents < 0).any():
        job.fail(f"the parts do not make up {x.shape[axis]}")
    parts = np.split(x, np.cumsum(extents)[:-1], axis) if extents.size else []
    if not job.integer("keepdims"):
        parts = [p.squeeze(axis) for p in parts]
    return (_boxes(parts),)


BOX_ROUTINES: Mapping[str, Routine] = {
    f.__name__: f for f in (box, box_rank, box_shape, boxes, cut, joined, joined_shape, unbox)
}
"""The routines on boxes by name."""
