"""Inputs of a compiled model, given and generated, and how strictly its outputs are compared."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rutc.errors import UserError
from rutc.importer.quantised import is_quantised
from rutc.runtime import InferenceSession, ModelError
from rutc.tensor_ir import DType
from rutc.verify.compare import (
    Value,
)
from rutc.verify.input_values import gather, generate
from rutc.verify.ports import input_specs
from rutc.verify.sizes import (
    Sizes,
    extents_at,
    narrowed,
    session_common_sizes,
    session_symbols,
    sizes_of,
    sums,
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

    Where the model takes none of the sizes that it was planned for, and no input is given, those
    stand in which differ in one that is the sum of two others: a decoder's mask has a column for
    each token before and each new one.

    Raises:
        UserError: an item or a size does not fit the model, or what is given has other sizes.
    """
    values = session_values(session, sources, dims=dims)
    ranges = narrowed(session_symbols(session), dims)
    may_sum = len(ranges) > 2 and not sources and not session.get_states()
    if may_sum and not _takes(session, values):
        common = session_common_sizes(session, dims)
        summed = sums(common, common, ranges)
        made = (_generated(session, extents, joined) for extents, joined in summed)
        values = next((v for v in made if _takes(session, v)), values)
    sizes = sizes_of(session, values)
    for name, size in dims.items():
        if sizes.get(name, size) != size:
            raise UserError(f"--dim {name}={size}: what --input gives has {name}={sizes[name]}")
    return values, sizes


def _generated(session: InferenceSession, sizes: Sizes, joined: str) -> dict[str, Value]:
    specs = input_specs(session)
    return session.bundled(generate(specs, 0, extents_at(session, sizes), joined=joined))


def _takes(session: InferenceSession, values: Mapping[str, Value]) -> bool:
    """Whether the model runs on these inputs."""
    try:
        session.run(None, values)
    except ModelError:
        return False
    return True


def session_level(session: InferenceSession, model: Path) -> Level:
    """Returns how strictly a compiled model is compared with ONNX Runtime alone."""
    stored = stored_type(session.manifest)
    if stored in (DType.BF16, DType.I8, DType.I4):
        return Level.REDUCED
    if stored is not None and not is_quantised(model):
        return Level.HALF
    return Level.QUANTISED if is_quantised(model) else Level.MODEL
