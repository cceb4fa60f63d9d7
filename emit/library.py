"""Building the artifact: compiles the host program and links it with kernels and weights."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, assert_never

from rutc.emit.cache import cached
from rutc.emit.header import HOST_SOURCES, ROUTINE_SOURCES, header_source
from rutc.emit.manifest import JsonValue, manifest_json
from rutc.emit.program import Call, Program, walk
from rutc.emit.program_source import (
    WeightPlace,
    WeightsFile,
    data_source,
    entry_source,
    export_map,
    program_source,
)
from rutc.emit.toolchain import Toolchain, find_toolchain
from rutc.emit.weights import WeightImage, write_weights
from rutc.errors import InternalError, UserError

WeightPlacement = Literal["auto", "embed", "external"]

EMBED_LIMIT_BYTES = 1 << 30
"""Larger weights go into a file of their own: code reaches at most 2 GiB far in one library."""

_COMPILE = ("-std=c11", "-O2", "-fPIC", "-fvisibility=hidden", "-pthread")
_LINK = (
    "-shared",
    "-pthread",
    "-static-libgcc",
    "-Wl,--version-script=exports.map",
    "-Wl,-Bsymbolic",
    "-Wl,-z,defs",
    "-Wl,-z,noexecstack",
    "-Wl,-z,relro",
    "-Wl,-z,now",
    "-Wl,--build-id=none",
    "-Wl,--as-needed",
)
_LIBRARIES = ("-lm", "-ldl")


@dataclass(frozen=True, slots=True)
class Artifact:
    """The files of a built model; `weights` is None where they are in the library."""

    library: Path
    header: Path
    weights: Path | None


def build_library(
    program: Program,
    objects: Sequence[bytes],
    output: Path,
    manifest: Mapping[str, JsonValue],
    toolchain: Toolchain | None = None,
    weights: WeightPlacement = "auto",
    fallbacks: Sequence[Program] = (),
) -> Artifact:
    """Writes the shared library `output` and, beside it, its header (`model.so` -> `model.h`).

    `objects` are object files that define the kernels of all programs. `manifest` is what the
    library tells about itself beyond the program's own facts. Weights are embedded, or written to
    `model.weights` beside the library. `fallbacks` are programs of the same model for CPUs that
    lack the features of those before them; a session runs the first one that its CPU can. The same
    arguments give the same bytes. The files appear complete or not at all, the library last.

    Raises:
        UserError: there is no C compiler, or the output cannot be written there.
        InternalError: a kernel is missing, the programs' interfaces differ, or the compiler fails.
    """
    programs = (program, *fallbacks)
    for other in fallbacks:
        if (other.name, other.inputs, other.outputs) != (
            program.name,
            program.inputs,
            program.outputs,
        ):
            raise InternalError(
                f"the programs of {program.name!r} differ in name, inputs or outputs"
            )
    chosen = toolchain or find_toolchain()
    external = _is_external(weights, sum(p.weight_bytes for p in programs))
    artifact = Artifact(
        output, output.with_suffix(".h"), output.with_suffix(".weights") if external else None
    )
    if output in {artifact.header, output.with_suffix(".weights")}:
        raise UserError(f"cannot write the model to {output}: choose a name that ends in .so")
    try:
        with tempfile.TemporaryDirectory(dir=output.parent, prefix=".rutc-") as temporary:
            folder = Path(temporary)
            image = write_weights(folder / "weights.bin", programs)
            (folder / "manifest.json").write_bytes(
                manifest_json(programs, image.sha256.hex(), manifest)
            )
            _link(folder, programs, image, objects, chosen, external)
            (folder / "model.h").write_text(header_source(program))
            if artifact.weights is not None:
                with (folder / "weights.bin").open("ab") as stream:
                    stream.write(image.sha256)
                (folder / "weights.bin").replace(artifact.weights)
            (folder / "model.h").replace(artifact.header)
            (folder / "model.so").replace(artifact.library)
    except OSError as error:
        raise UserError(f"cannot write the model to {output}: {error.strerror or error}") from error
    return artifact


def _is_external(weights: WeightPlacement, weight_bytes: int) -> bool:
    match weights:
        case "auto":
            return weight_bytes > EMBED_LIMIT_BYTES
        case "embed":
            if weight_bytes > EMBED_LIMIT_BYTES:
                raise UserError(
                    f"{weight_bytes} bytes of weights are too large to embed (the limit is "
                    f"{EMBED_LIMIT_BYTES}): use --weights external"
                )
            return False
        case "external":
            return weight_bytes > 0
        case _:
            assert_never(weights)


def _link(
    folder: Path,
    programs: Sequence[Program],
    image: WeightImage,
    objects: Sequence[bytes],
    toolchain: Toolchain,
    external: bool,
) -> None:
    """Builds `model.so` in the folder from generated C, the host runtime, the data and kernels.

    All names given to the compiler are relative to the folder, so none of its path is recorded.
    """
    name = programs[0].name
    weights_file = WeightsFile(image.byte_count, image.sha256) if external else None
    sources = {"entry.c": entry_source(name, len(programs), weights_file)}
    for number, (program, offset) in enumerate(zip(programs, image.offsets, strict=True)):
        place = WeightPlace(offset, embedded=not external)
        sources[f"program{number}.c"] = program_source(program, number, place)
    parts = []
    for file, source in sources.items():
        (folder / file).write_text(source)
        parts.append(Path(file).with_suffix(".o").name)
        compiling = ["-c", *_COMPILE, "-I", str(HOST_SOURCES), file, "-o", parts[-1]]
        toolchain.run(compiling, folder)
    routines = {
        s.routine: ROUTINE_SOURCES / f"{s.routine}.c"
        for p in programs
        for s in walk(p.steps)
        if isinstance(s, Call)
    }
    runtime = [*sorted(HOST_SOURCES.glob("*.c")), *(routines[r] for r in sorted(routines))]
    for number, part in enumerate([*_host_objects(runtime, toolchain), *objects]):
        parts.append(f"part{number}.o")
        (folder / parts[-1]).write_bytes(part)
    (folder / "data.s").write_text(data_source(embed_weights=image.byte_count > 0 and not external))
    (folder / "exports.map").write_text(export_map(name))
    toolchain.run(["-c", "data.s", "-o", "data.o"], folder)
    toolchain.run([*_LINK, *parts, "data.o", *_LIBRARIES, "-o", "model.so"], folder)


def _host_objects(sources: Sequence[Path], toolchain: Toolchain) -> list[bytes]:
    """Returns the compiled sources of the host runtime, from the cache where possible."""
    headers = [path.read_bytes() for path in sorted(HOST_SOURCES.glob("**/*.h"))]

    def build(source: Path) -> bytes:
        with tempfile.TemporaryDirectory(prefix="rutc-") as temporary:
            folder = Path(temporary)
            (folder / source.name).write_bytes(source.read_bytes())
            include = ["-I", str(HOST_SOURCES), "-I", str(ROUTINE_SOURCES)]
            toolchain.run(["-c", *_COMPILE, *include, source.name, "-o", "host.o"], folder)
            return (folder / "host.o").read_bytes()

    def compiled(source: Path) -> bytes:
        key: list[str | bytes] = [
            toolchain.identity,
            *_COMPILE,
            source.name,
            source.read_bytes(),
            *headers,
        ]
        return cached("host", key, lambda: build(source))

    return [compiled(source) for source in sources]
