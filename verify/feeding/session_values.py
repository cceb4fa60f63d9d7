"""Inputs of a compiled model, given and generated, and how strictly its outputs are compared."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from functools import partial
from pathlib import Path

from rutc.base.record import record
from rutc.errors import UserError
from rutc.importer.quantised import is_quantised
from rutc.runtime import InferenceSession, ModelError
from rutc.tensor_ir import DType
from rutc.tensor_ir.indices.ranges import sizes_text
from rutc.verify.feeding.input_values import gather, given_names, told_names
from rutc.verify.feeding.ports import input_specs
from rutc.verify.feeding.rounds import Draw, joined, sums_told
from rutc.verify.feeding.sizes import (
    Sizes,
    advice,
    extents_at,
    modest,
    multiples,
    narrowed,
    sample_sizes,
    session_common_sizes,
    session_symbols,
    sizes_lines,
    sizes_of,
)
from rutc.verify.judging.compare import Value
from rutc.verify.judging.tolerance import Level
from rutc.verify.truth.weight_noise import stored_type


def session_values(
    session: InferenceSession,
    sources: Sequence[str],
    seed: int = 0,
    dims: Mapping[str, int] | None = None,
) -> dict[str, Value]:
    """Returns all inputs of a compiled model from `NAME=SOURCE` items, as `gather` does.

    What is generated has the sizes of what is given, or else those of `dims` and common ones.

    Raises:
        UserError: an item or a size does not fit the model.
    """
    specs = input_specs(session)
    common = session_common_sizes(session, dims or {})
    given = gather(specs, sources, seed, extents_at(session, common))
    return session.bundled(given)


@record
class Ran:
    """A run of a compiled model: its inputs, the sizes that they have, and its outputs by name.

    `refused` are the sizes that it was planned for, where it did not run on inputs of these;
    `generated` are the inputs that no source was `given` for.
    """

    values: Mapping[str, Value]
    sizes: Sizes
    outputs: Mapping[str, Value]
    refused: Sizes = field(default_factory=dict)
    generated: tuple[str, ...] = ()
    given: tuple[str, ...] = ()

    @property
    def drawn(self) -> list[str]:
        """The line that says which inputs were generated; or none."""
        if not self.generated:
            return []
        others = f", but for {', '.join(map(repr, self.given))}" if self.given else ""
        return [f"on inputs generated from seed 0{others}; --input NAME=SOURCE gives them"]

    @property
    def lines(self) -> list[str]:
        """The line that says at which sizes it ran, and why at others than usual; or none."""
        if not self.refused:
            return sizes_lines(self.sizes)
        told = sizes_text(self.refused)
        return [f"at {sizes_text(self.sizes)}, as it does not run on inputs generated at {told}"]


def run_once(session: InferenceSession, sources: Sequence[str], dims: Mapping[str, int]) -> Ran:
    """Runs a compiled model on all its inputs, as `session_values` gives them.

    Where it does not run at the sizes that it was planned for, no input is given, and it has no
    states, others stand in: those of which one, or a length that an input holds, is the sum of two
    others, as a decoder's mask has a column for each token before and each new one, and those that
    it is verified at, or multiples of these.

    Raises:
        UserError: an item or a size does not fit the model, what is given has other sizes, or the
            model refuses inputs that are generated.
        ModelError: it refuses what is given.
    """
    values = session_values(session, sources, dims=dims)
    sizes = sizes_of(session, values)
    for name, size in dims.items():
        if sizes.get(name, size) != size:
            raise UserError(f"--dim {name}={size}: what --input gives has {name}={sizes[name]}")
    specs = input_specs(session)
    told = told_names(specs, sources)
    generated = tuple(spec.name for spec in specs if spec.name not in told)
    ran = partial(Ran, generated=generated, given=tuple(told))
    try:
        return ran(values, sizes, _outputs(session, values))
    except ModelError as error:
        failure = error
    if not sources and not session.get_states():
        for other in _others(session, dims):
            drawn = other.made(session).values
            with suppress(ModelError):
                outputs = _outputs(session, drawn)
                return ran(drawn, sizes_of(session, drawn), outputs, sizes)
    given = given_names(specs, sources)
    if len(given) == len(specs):
        raise failure
    those = f"All inputs but {', '.join(map(repr, given))}" if given else "Inputs"
    at = f" at {sizes_text(sizes)}" if sizes else ""
    said = f"{str(failure).rstrip('.')}. {those} were generated{at}. {advice(session)}"
    raise UserError(said) from failure


def refusal(session: InferenceSession, dims: Mapping[str, int], failure: ModelError) -> UserError:
    """Returns why no run of a compiled model can be timed at its common sizes, or these `dims`.

    It refuses what is generated. Where it runs at others, that is told: which size is the sum of
    two, or all of them.
    """
    common = sizes_text(session_common_sizes(session, dims))
    at = f" at {common}" if common else ""
    said = f"{str(failure).rstrip('.')}. Inputs were generated{at}"
    for other in _others(session, dims):
        with suppress(ModelError):
            _outputs(session, other.made(session).values)
            sums = [f"--dim {told}" for told in sums_told(other)]
            sizes = [f"--size {told}" for told in sizes_text(other.sizes).split()]
            return UserError(f"{said}; say {' '.join(sums or sizes)}, as it runs so")
    more = "others with --size NAME=N, or which is a sum of others: --dim NAME=A+B"
    return UserError(f"{said}; say {more}" if common else said)


def _outputs(session: InferenceSession, values: Mapping[str, Value]) -> dict[str, Value]:
    names = [port.name for port in session.get_outputs()]
    return dict(zip(names, session.run(None, values), strict=True))


def _others(session: InferenceSession, dims: Mapping[str, int]) -> Iterator[Draw]:
    """Yields inputs of other runs, none of which is more work than is wanted."""
    ranges = narrowed(session_symbols(session), dims)
    if ranges:
        common = session_common_sizes(session, dims)
        usual = Draw(0, common)
        near = partial(modest, session)
        yield from (d for d in joined(session, usual, common, ranges) if near(d.sizes))
        for sampled in sample_sizes(ranges, near):
            yield replace(usual, sizes=sampled)
            longer = filter(near, multiples(sampled, ranges))
            yield from (replace(usual, sizes=sizes) for sizes in longer)


def session_level(session: InferenceSession, model: Path) -> Level:
    """Returns how strictly a compiled model is compared with ONNX Runtime alone."""
    stored = stored_type(session.manifest)
    if stored in (DType.BF16, DType.I8, DType.I4):
        return Level.REDUCED
    if stored is not None and not is_quantised(model):
        return Level.HALF
    return Level.QUANTISED if is_quantised(model) else Level.MODEL
