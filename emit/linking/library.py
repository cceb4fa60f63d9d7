"""Building the artifact: compiles the host program and links it with kernels and weights."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from io import FileIO
from pathlib import Path

from rutc.base.files import Workplace, cannot_write
from rutc.base.record import record
from rutc.emit.host_program.header import header_source
from rutc.emit.host_program.program import Program
from rutc.emit.host_program.program_source import (
    OUTLINE_FILE,
    Extras,
    data_source,
    entry_source,
    export_map,
    program_source,
)
from rutc.emit.linking.elf import append_segment, replace_bytes, seal, write_chunks
from rutc.emit.linking.host_runtime import (
    COMPILE,
    HOST_SOURCES,
    TABLES,
    HostRuntime,
    calling_units,
    suffixes,
)
from rutc.emit.linking.manifest import JsonValue, manifest_json, outline_section
from rutc.emit.linking.placement import WeightPlacement, weights_file
from rutc.emit.linking.toolchain import Toolchain, find_toolchain
from rutc.emit.linking.weight_image import UNKNOWN, WeightImage, weight_image
from rutc.errors import InternalError, UserError

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


@record
class ArtifactFiles:
    """The files of a built model; `weights` is None where they are in the library.

    The weights of all programs take `weight_bytes`.
    """

    library: Path
    header: Path
    weights: Path | None
    weight_bytes: int


@record
class TargetFacts:
    """A target of a library of several: its name, and what the manifest tells of its program."""

    name: str
    facts: Mapping[str, JsonValue]


def build_library(
    program: Program,
    objects: Sequence[bytes],
    output: Path,
    manifest: Mapping[str, JsonValue],
    toolchain: Toolchain | None = None,
    weights: WeightPlacement = "auto",
    fallbacks: Sequence[Program] = (),
    host: HostRuntime | None = None,
    outline: Mapping[str, object] | None = None,
    targets: Sequence[TargetFacts] = (),
) -> ArtifactFiles:
    """Writes the shared library `output` and, beside it, its header (`model.so` -> `model.h`).

    `objects` are object files that define the kernels of all programs. `manifest` is what the
    library tells about itself beyond the program's own facts. Weights are embedded, or written to
    `model.weights` beside the library, as `weights` says. `fallbacks` are programs of the same
    model for CPUs that lack the features of those before them; a session runs the first one that
    its CPU can, or that of the one of the `targets`, which then are as many as programs, that it is
    asked for. `host` is the host runtime where its compilation has begun; without, `toolchain`
    compiles it now. The library keeps an `outline`, JSON for those who look at it, which no run
    reads. The same arguments give the same bytes. The files appear complete or not at all, the
    library last.

    Raises:
        UserError: there is no C compiler, or the output cannot be written there.
        InternalError: a kernel is missing, the programs' interfaces differ, or the compiler fails.
    """
    programs = (program, *fallbacks)
    if any(_interface(other) != _interface(program) for other in fallbacks):
        raise InternalError(f"the programs of {program.name!r} differ in name, inputs or outputs")
    if targets and len(targets) != len(programs):
        raise InternalError(f"{len(programs)} programs for {len(targets)} targets")
    header, beside = output.with_suffix(".h"), output.with_suffix(".weights")
    if output in {header, beside}:
        raise UserError(f"cannot write the model to {output}: choose a name that ends in .so")
    try:
        with (
            Workplace(output.parent) as place,
            nullcontext(host)
            if host
            else HostRuntime(toolchain or find_toolchain(), targets=bool(targets)) as running,
        ):
            image = weight_image(programs)
            file = weights_file(output, weights, image.byte_count)
            beside_it = None if file is None else file.name
            first, *others = (dict(t.facts) for t in targets) if targets else ({},)
            told = manifest_json(programs, image, beside_it, {**manifest, **first}, others)
            section = None if outline is None else outline_section(outline)
            extras = _extras(programs, manifest, targets, in_file=file is not None)
            library = _link(place.path, programs, image, objects, running, extras, told, section)
            with Workplace(output.parent) as finished:
                # The weights are made as they are written, and the rest is told their digest then.
                digest = _write_weights(image, library, file and finished.path / file.name)
                replace_bytes(library, UNKNOWN, digest)
                replace_bytes(library, UNKNOWN.hex().encode(), digest.hex().encode())
                seal(library)
                library.replace(finished.path / output.name)
                about = header_source(program, beside_it, extras.targets, manifest.get("interface"))
                (finished.path / header.name).write_text(about)
                finished.publish()
    except OSError as error:
        raise cannot_write(output, error) from error
    return ArtifactFiles(output, header, file, image.byte_count)


def _interface(program: Program) -> tuple[object, ...]:
    """What all programs of a model have in common: each has blocks and states of its own."""
    outputs = tuple(replace(port, block=port.block and 0) for port in program.outputs)
    grown = tuple(state.grows for state in program.states)
    return program.name, program.inputs, outputs, grown


def _extras(
    programs: Sequence[Program],
    manifest: Mapping[str, JsonValue],
    targets: Sequence[TargetFacts],
    *,
    in_file: bool,
) -> Extras:
    """What the library of these programs has that not all have."""
    ports = (*programs[0].inputs, *programs[0].outputs)
    return Extras(
        objects="interface" in manifest or any(port.dtype == "string" for port in ports),
        computed=any(port.block is not None for p in programs for port in p.given),
        states=bool(programs[0].states),
        targets=tuple(t.name for t in targets),
        in_file=in_file,
    )


def _link(
    folder: Path,
    programs: Sequence[Program],
    image: WeightImage,
    objects: Sequence[bytes],
    host: HostRuntime,
    extras: Extras,
    manifest: bytes,
    outline: bytes | None,
) -> Path:
    """Returns a library in the folder, of generated C, the host runtime and kernels.

    Its weights will be in the library, or in a file.
    All names given to the compiler are relative to the folder, so none of its path is recorded.
    """
    name = programs[0].name
    ways = suffixes(p.features for p in programs)
    tables = [
        program_source(program, number, placed, suffix)
        for number, (program, placed, suffix) in enumerate(
            zip(programs, image.placed, ways, strict=True)
        )
    ]
    tables[0] = entry_source(name, len(programs), image, extras) + tables[0]
    sources = {f"program{number}.c": source for number, source in enumerate(tables)}
    sources["data.s"] = data_source(outline=outline is not None)
    compiled = list(sources)
    sources["exports.map"] = export_map(name, extras)
    for file, source in sources.items():
        (folder / file).write_text(source)
    (folder / "manifest.json").write_bytes(manifest)
    if outline is not None:
        (folder / OUTLINE_FILE).write_bytes(outline)
    strings = any(p.strings for p in programs)
    needed = dict.fromkeys(
        unit
        for p, suffix in zip(programs, ways, strict=True)
        for unit in calling_units(
            p.routines, p.features, strings=strings, objects=extras.objects, suffix=suffix
        )
    )
    for number, part in enumerate([*host.objects(needed), *objects]):
        compiled.append(f"part{number}.o")
        (folder / compiled[-1]).write_bytes(part)
    how = (*COMPILE, TABLES, "-I", str(HOST_SOURCES), *_LINK)
    host.toolchain.run([*how, *compiled, *_LIBRARIES, "-o", "model.so"], folder)
    return folder / "model.so"


def _write_weights(image: WeightImage, library: Path, file: Path | None) -> bytes:
    """Returns the SHA-256 of weights after they are written to their file, or to the library."""
    found = hashlib.sha256()

    def parts() -> Iterator[bytes | memoryview]:
        for part in image.parts():
            found.update(part)
            yield part
            del part

    if file is not None:
        with FileIO(file, "w") as stream:
            write_chunks(stream, parts())
            write_chunks(stream, [found.digest()])
    elif image.byte_count > 0:
        append_segment(library, parts(), image.byte_count)
    return found.digest()
