"""The manifest inside an artifact: what a program can learn about the model without running it."""

import json
import zlib
from collections.abc import Mapping, Sequence

from rutc.emit.host_program.ports import Port, State
from rutc.emit.host_program.program import Program
from rutc.emit.linking.elf import DIGEST_BYTES
from rutc.emit.linking.weight_image import UNKNOWN, WeightImage
from rutc.errors import InternalError
from rutc.tensor_ir.indices.ranges import CommonRange

JsonValue = (
    str | int | float | bool | None | list["JsonValue"] | tuple["JsonValue", ...]
    | Mapping[str, "JsonValue"]
)  # fmt: skip


def manifest_json(
    programs: Sequence[Program],
    image: WeightImage,
    weights_file: str | None,
    facts: Mapping[str, JsonValue],
    others: Sequence[Mapping[str, JsonValue]] = (),
) -> bytes:
    """Returns the manifest as ASCII JSON: what the programs say of themselves, then `facts`.

    `weights_file` is the name that the file of weights is given; None: the library has them. No
    program goes by it: the file may be renamed with the library. Each fallback has what it says of
    itself, and the facts of `others` that hold for it instead.

    Raises:
        InternalError: `facts` repeat a key of the program's own or hold a value JSON has not.
    """
    program, *fallbacks = programs
    needs = _needs(program)
    own: dict[str, JsonValue] = {
        "name": program.name,
        "inputs": [_port(port) for port in program.taken],
        "outputs": [_port(port) for port in program.given],
        "states": [_state(*kept) for kept in program.kept],
        "symbols": {name: list(bounds) for name, bounds in program.symbols},
        "common_sizes": {n: r.common for n, r in program.symbols if isinstance(r, CommonRange)},
        **needs,
        "fallbacks": [
            {**dict.fromkeys(needs), **_needs(fallback), **_own_states(fallback, program), **other}
            for fallback, other in zip(fallbacks, others or [{}] * len(fallbacks), strict=True)
        ],
        "weights_sha256": UNKNOWN.hex(),
        "weights_file": None,
    }
    if weights_file is not None:
        size = image.byte_count + DIGEST_BYTES
        own["weights_file"] = {"name": weights_file, "bytes": size}
    repeated = sorted(own.keys() & facts.keys())
    if repeated:
        raise InternalError(f"the manifest's {', '.join(repeated)} come from the host program")
    try:
        text = json.dumps({**own, **facts}, indent=1, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InternalError(f"the manifest is not JSON: {error}") from error
    return text.encode("ascii")


def outline_section(outline: Mapping[str, object]) -> bytes:
    """Returns what a library holds of an outline: JSON, compressed.

    Raises:
        InternalError: it holds a value JSON has not.
    """
    try:
        text = json.dumps(outline, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InternalError(f"the outline is not JSON: {error}") from error
    return zlib.compress(text.encode("ascii"))


def _needs(program: Program) -> dict[str, JsonValue]:
    return {
        "features": list(program.features),
        **_arena(program),
        "thread_bytes": program.bytes_of_threads,
        "weight_bytes": program.weight_bytes,
    }


def _own_states(program: Program, first: Program) -> dict[str, JsonValue]:
    """Returns the states of a program, if it keeps them in another way than the first one."""
    if program.states == first.states:
        return {}
    return {"states": [_state(*kept) for kept in program.kept]}


def _arena(program: Program) -> dict[str, JsonValue]:
    """Returns the arena's size; of a symbolic one the formula, and its largest value as well."""
    size = program.arena_bytes
    if isinstance(size, int):
        return {"arena_bytes": size}
    bounds = size.bounds(dict(program.symbols))
    return {"arena_bytes": str(size), "arena_bytes_most": None if bounds is None else bounds[1]}


def _state(state: State, taken: Port, given: Port) -> dict[str, JsonValue]:
    """Returns a state: the input and the output that it is, and what a session keeps of it."""
    about: dict[str, JsonValue] = {
        "input": _port(taken),
        "output": _port(given),
        "bytes": state.bytes if state.together else 2 * state.bytes,
        "in_place": state.together,
    }
    if state.grows is not None:
        about["axis"], about["capacity"] = state.grows
    return about


def _port(port: Port) -> dict[str, JsonValue]:
    about: dict[str, JsonValue] = {"name": port.name, "dtype": port.dtype, "shape": port.shown}
    if port.block is not None:
        about["computed"] = True
    if port.fixed is not None:
        about["fixed"] = port.fixed.data.hex()
    return about
