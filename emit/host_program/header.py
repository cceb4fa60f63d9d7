"""The header `model.h` of an artifact: all that a C or C++ program needs to call the model."""

import json
from collections.abc import Iterator, Mapping, Sequence

from rutc.emit.host_program.c_text import c_comment
from rutc.emit.host_program.ports import Port
from rutc.emit.host_program.program import Program
from rutc.emit.host_program.program_source import symbol_prefix
from rutc.emit.linking.host_runtime import HOST_SOURCES
from rutc.emit.linking.manifest import JsonValue

SHOWN_KEYS = 10
"""Of a map with more keys no more are told; the manifest has all."""


def header_source(
    program: Program,
    weights_file: str | None,
    targets: Sequence[str],
    interface: JsonValue = None,
) -> str:
    """Returns the header's text; it includes the shared declarations, so it stands alone.

    `weights_file` is the name of the file beside the library that has its weights, if one has.
    `targets` are those of a library of several. `interface` is the manifest's, of models whose
    inputs and outputs are not all tensors: the keys of maps are told of the tensor of their values.
    """
    prefix = symbol_prefix(program.name)
    guard = f"RUTC_MODEL_{prefix}_H"
    shared = [(HOST_SOURCES / name).read_text() for name in ("rutc_dlpack.h", "rutc_abi.h")]
    return "\n".join([
        *_introduction(program, prefix, weights_file, dict(_keys(interface))),
        f"#ifndef {guard}",
        f"#define {guard}",
        "",
        *shared,
        *_declarations(program, prefix, targets),
        "",
        "#endif",
        "",
    ])  # fmt: skip


def _introduction(
    program: Program, prefix: str, weights_file: str | None, keys: Mapping[str, str]
) -> Iterator[str]:
    yield f"/* The model {c_comment(program.name)}, compiled by rutc."
    yield " *"
    yield f" * {prefix}_run takes and gives tensors in this order:"
    for role, ports in (("input", program.taken), ("output", program.given)):
        for n, port in enumerate(ports):
            yield f" *   {role} {n}: {_describe(port)}"
            if port.name in keys:
                yield f" *     values of the keys {c_comment(keys[port.name])}, along the last axis"
    if program.states:
        yield " * A session keeps from run to run:"
    for state, taken, given in program.kept:
        limit = "" if state.grows is None else f", axis {state.grows[0]} up to {state.grows[1]}"
        yield f" *   state {_describe(taken)}{limit}: the run's {_describe(given)}"
    if weights_file is not None:
        yield " *"
        yield f" * Its weights are in {c_comment(weights_file)}, which lies beside the library."
    yield " */"


def _describe(port: Port) -> str:
    shape = ", ".join(map(str, port.shown))
    kind = "const DLTensor *" if port.dtype == "tensor" else port.dtype
    return c_comment(f'"{port.name}", {kind} [{shape}]')


def _keys(interface: JsonValue) -> Iterator[tuple[str, str]]:
    """The tensors of an interface, or a part of it, that hold values of maps, and their keys."""
    match interface:
        case {"keys": [*keys], "parts": [{"port": str(port)}]}:
            more = f", ... ({len(keys)} in all)" if len(keys) > SHOWN_KEYS else ""
            yield port, ", ".join(json.dumps(key) for key in keys[:SHOWN_KEYS]) + more
        case dict():
            for part in interface.values():
                yield from _keys(part)
        case list():
            for part in interface:
                yield from _keys(part)


def _declarations(program: Program, prefix: str, targets: Sequence[str]) -> Iterator[str]:
    yield f"""\
#ifdef __cplusplus
extern "C" {{
#endif

#define {prefix}_INPUTS {len(program.taken)}
#define {prefix}_OUTPUTS {len(program.given)}

/* The version of this interface that the library has; compare with RUTC_ABI_VERSION. */
int32_t {prefix}_abi_version(void);

/* The model's description as JSON; it lives as long as the library is loaded. */
const char *{prefix}_manifest(void);

/* Opens a session; options may be NULL. On failure returns NULL: see {prefix}_last_error(NULL). */
rutc_session *{prefix}_open(const rutc_options *options);

/* Fills in the outputs' descriptors, except for their data, for inputs of these shapes. A shape of
 * the caller's is written to; with shape == NULL it points to the session's own numbers, which the
 * next call changes. An extent that only a run can tell is -1. The inputs' data is not read. */
int32_t {prefix}_output_shapes(rutc_session *session, const DLTensor *const *inputs,
    int32_t input_count, DLTensor *const *outputs, int32_t output_count);

/* Runs the model and returns RUTC_OK or why not. Inputs are dense or strided. Outputs are memory of
 * the caller, dense or strided; an output with data == NULL is given memory of the session, which
 * the next run overwrites, and with shape == NULL too, its whole descriptor is filled in. It may
 * be an input of that run. */
int32_t {prefix}_run(rutc_session *session, const DLTensor *const *inputs, int32_t input_count,
    DLTensor *const *outputs, int32_t output_count);

/* The times of a session opened with options.profile: writes up to `capacity` entries, one per
 * step, and returns how many steps there are. */
int32_t {prefix}_profile(rutc_session *session, rutc_profile_entry *entries, int32_t capacity);

/* Why the session's last failed run failed. With NULL, or a session of another model: why the
 * last {prefix}_open on this thread failed, or the last call with such a session. Never NULL;
 * valid until the next failure. */
const char *{prefix}_last_error(const rutc_session *session);

/* Stops the session's threads and releases its memory; NULL is allowed. */
void {prefix}_close(rutc_session *session);
{_kept(prefix) if any(port.block is not None for port in program.given) else ""}{
        _states(prefix) if program.states else ""
    }{_targets(prefix, targets) if targets else ""}
#ifdef __cplusplus
}}
#endif"""


def _kept(prefix: str) -> str:
    return f"""
/* Gives the caller the memory of an output whose shape only a run can tell, in the descriptor that
 * the last run filled in. With 1 it is the caller's, to be released with free(), and the next run
 * takes other memory; with 0 it stays the session's. */
int32_t {prefix}_keep_output(rutc_session *session, const DLTensor *output);
"""


def _states(prefix: str) -> str:
    return f"""
/* What a session keeps from run to run: the next run takes as input NAME what the last one gave. A
 * run that fails changes none of it; one that would make a state longer than there is room for
 * answers RUTC_STATE_FULL. Names are those of the inputs. */

/* As after {prefix}_open: states that grow are empty, the others are zeros. */
int32_t {prefix}_reset(rutc_session *session);

/* Fills in the whole descriptor of a state, with strides; the data belongs to the session, and is
 * valid until the next call with it. */
int32_t {prefix}_get_state(rutc_session *session, const char *name, DLTensor *state);

/* Copies a tensor, dense or strided, into a state. Where several states grow together, as the keys
 * and values of all layers do, set all of them before the next run. What {prefix}_get_state
 * described, with a shape of the caller's that is shorter along the axis that grows, forgets what
 * came after that, and copies nothing. */
int32_t {prefix}_set_state(rutc_session *session, const char *name, const DLTensor *state);
"""


def _targets(prefix: str, targets: Sequence[str]) -> str:
    listed = c_comment(", ".join(targets))
    return f"""
/* The library has code for several targets: {listed}. A session runs the first
 * whose features the CPU has; what the environment variable RUTC_TARGET names, if it is set. */

/* As {prefix}_open, but for the target of that name; with NULL the same. */
rutc_session *{prefix}_open_target(const rutc_options *options, const char *target);

/* The target whose code a session runs; NULL if the session is none of this model. */
const char *{prefix}_target(const rutc_session *session);
"""
