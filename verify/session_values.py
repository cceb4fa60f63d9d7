"""Inputs of a compiled model, given and generated, and how strictly its outputs are compared."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rutc.errors import UserError
from rutc.importer.quantised import is_quantised
from rutc.runtime import InferenceSession
from rutc.tensor_ir import DType
from rutc.verify.compare import (
    Value,
)
from rutc.verify.input_values import gather
from rutc.verify.ports import input_specs
from rutc.verify.sizes import (
    Sizes,
    extents_at,
    session_common_sizes,
    sizes_of,
)
from rutc.verify.tolerance import Level
from rutc.verify.weight_noise import stored_type


def session_values(
    session: InferenceSession,
    sources: Sequence[str],
    seed: int = 0,
    dims: Mapping[str, int] | None = None,
) -> dict[str, Value]:
    """Returns all inputs of a compiled model from `NAME=SOURCE` items, as `inputs.gather` does.

    What is generated has the sizes of what is given, or else those of `dims` and common ones.

    Raises:
        UserError: an item or a size does not fit the model.
    """
    specs = input_specs(session)
    common = session_common_sizes(session, dims or {})
    given = gather(specs, sources, seed, extents_at(session, common))
    return session.bundled(given)


def run_values(
    session: InferenceSession, sources: Sequence[str], dims: Mapping[str, int]
) -> tuple[dict[str, Value], Sizes]:
    """Returns all inputs of a run as `session_values` does, and the sizes that they have.

    Raises:
        UserError: an item or a size does not fit the model, or what is given has other sizes.
    """
    values = session_values(session, sources, dims=dims)
    sizes = sizes_of(session, values)
    for name, size in dims.items():
        if sizes.get(name, size) != size:
            raise UserError(f"--dim {name}={size}: what --input gives has {name}={sizes[name]}")
    return values, sizes


def session_level(session: InferenceSession, model: Path) -> Level:
    """Returns how strictly a compiled model is compared with ONNX Runtime alone."""
    stored = stored_type(session.manifest)
    if stored in (DType.BF16, DType.I8, DType.I4):
        return Level.REDUCED
    if stored is not None and not is_quantised(model):
        return Level.HALF
    return Level.QUANTISED if is_quantised(model) else Level.MODEL
