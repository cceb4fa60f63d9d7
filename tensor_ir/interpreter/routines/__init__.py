"""The routines of the host runtime: what each computes, in numpy.

A routine of an artifact is the C function of the same name in `runtime/host/routines/`; these twins
are its meaning and the interpreter's implementation. `fail` alone is no function there but a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from rutc.errors import UserError
from rutc.tensor_ir.interpreter.routines.boxes import BOX_ROUTINES, Box
from rutc.tensor_ir.interpreter.routines.images import image_pixels, image_size
from rutc.tensor_ir.interpreter.routines.job import Job, Result, Routine
from rutc.tensor_ir.interpreter.routines.random import numpy_uniform, uniform
from rutc.tensor_ir.interpreter.routines.selection import (
    check_position,
    non_max_suppression,
    nonzero,
    unique,
)
from rutc.tensor_ir.interpreter.routines.sorting import topk
from rutc.tensor_ir.interpreter.routines.strings import TEXT_ROUTINES

__all__ = ["ROUTINES", "Box", "Job", "Result", "Routine"]


def _fail(job: Job) -> NoReturn:
    raise UserError(job.text("message"))


ROUTINES: Mapping[str, Routine] = {
    "check_position": check_position,
    "fail": _fail,
    "image_pixels": image_pixels,
    "image_size": image_size,
    "non_max_suppression": non_max_suppression,
    "nonzero": nonzero,
    "numpy_uniform": numpy_uniform,
    "topk": topk,
    "uniform": uniform,
    "unique": unique,
    **BOX_ROUTINES,
    **TEXT_ROUTINES,
}
"""Every routine by name; `fail` ends the run with its `message`."""
