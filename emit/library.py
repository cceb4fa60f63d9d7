"""Building the artifact: compiles the host program and links it with kernels and weights."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from io import FileIO
from itertools import chain
from pathlib import Path

from rutc.base.record import record
from rutc.emit.elf import append_segment, seal, write_chunks
from rutc.emit.files import Workplace, cannot_write
from rutc.emit.header import header_source
from rutc.emit.host_runtime import COMPILE, HOST_SOURCES, TABLES, HostRuntime, calling_units
from rutc.emit.manifest import JsonValue, manifest_json, outline_section
from rutc.emit.placement import WeightPlacement, weights_file
from rutc.emit.program import Program
from rutc.emit.program_source import (
    OUTLINE_FILE,
    data_source,
    entry_source,
    export_map,
    program_source,
)
from rutc.emit.toolchain import Toolchain, find_toolchain
from rutc.emit.weight_image import WeightImage, weight_image
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
    host: HostRuntime | None = None,
    outline: Mapping[str, object] | None = None,
) -> Artifact:
    """Writes the shared library `output` and, beside it, its header (`model.so` -> `model.h`).

    `objects` are object files that define the kernels of all programs. `manifest` is what the
    library tells about itself beyond the program's own facts. Weights are embedded, or written to
    `model.weights` beside the library, as `weights` says. `fallbacks` are programs of the same
    model for CPUs that lack the features of those before them; a session runs the first one that
    its CPU can. `host` is the host runtime where its compilation has begun; without, `toolchain`
    compiles it now. The library keeps an `outline`, JSON for those who look at it, which no run
    reads. The same arguments give the same bytes. The files appear complete or not at all, the
    library last.

    Raises:
        UserError: there is no C compiler, or the output cannot be written there.
        InternalError: a kernel is missing, the programs' interfaces differ, or the compiler fails.
    """
    programs = (program, *fallbacks)
    for other in fallbacks:
        if (other.name, other.inputs, other.outputs, other.states) != (
            program.name,
            program.inputs,
            program.outputs,
            program.states,
        ):
            raise InternalError(
                f"the programs of {program.name!r} differ in name, inputs or outputs"
            )
    weight_bytes = sum(p.weight_bytes for p in programs)
    artifact = Artifact(
        output, output.with_suffix(".h"), weights_file(output, weights, weight_bytes)
    )
    if output in {artifact.header, output.with_suffix(".weights")}:
        raise UserError(f"cannot write the model to {output}: choose a name that ends in .so")
    try:
        with (
            Workplace(output.parent) as place,
            nullcontext(host) if host else HostRuntime(toolchain or find_toolchain()) as running,
        ):
            image = weight_image(programs)
            told, file = None if outline is None else outline_section(outline), artifact.weights
            library = _link(place.path, programs, image, objects, running, file, manifest, told)
            with Workplace(output.parent) as finished:
                library.replace(finished.path / output.name)
                about = header_source(program, None if file is None else file.name)
                (finished.path / artifact.header.name).write_text(about)
                if file is not None:
                    with FileIO(finished.path / file.name, "w") as stream:
                        write_chunks(stream, chain(image.parts(), [image.sha256]))
                finished.publish()
    except OSError as error:
        raise cannot_write(output, error) from error
    return artifact


def _link(
    folder: Path,
    programs: Sequence[Program],
    image: WeightImage,
    objects: Sequence[bytes],
    host: HostRuntime,
    weights: Path | None,
    manifest: Mapping[str, JsonValue],
    outline: bytes | None,
) -> Path:
    """Returns a library in the folder, of generated C, the host runtime, the data and kernels.

    The weights are in the library, or will be in a file.
    All names given to the compiler are relative to the folder, so none of its path is recorded.
    """
    name = programs[0].name
    name_of_file = None if weights is None else weights.name
    (folder / "manifest.json").write_bytes(manifest_json(programs, image, name_of_file, manifest))
    if outline is not None:
        (folder / OUTLINE_FILE).write_bytes(outline)
    ports = (*programs[0].inputs, *programs[0].outputs)
    exchanges = "interface" in manifest or any(port.dtype == "string" for port in ports)
    tables = [
        program_source(program, number, offset)
        for number, (program, offset) in enumerate(zip(programs, image.offsets, strict=True))
    ]
    keeps = bool(programs[0].states)
    entry = entry_source(name, len(programs), image, in_file=weights is not None, states=keeps)
    tables[0] = entry + tables[0]
    sources = {f"program{number}.c": source for number, source in enumerate(tables)}
    sources |= {
        "data.s": data_source(outline=outline is not None),
        "exports.map": export_map(name, objects=exchanges, states=keeps),
    }
    for file, source in sources.items():
        (folder / file).write_text(source)
    compiled = [file for file in sources if file != "exports.map"]
    calling = calling_units(
        {r for p in programs for r in p.routines},
        frozenset.intersection(*(frozenset(p.features) for p in programs)),
        strings=any(p.strings for p in programs),
        objects=exchanges,
    )
    for number, part in enumerate([*host.objects(calling), *objects]):
        compiled.append(f"part{number}.o")
        (folder / compiled[-1]).write_bytes(part)
    how = (*COMPILE, TABLES, "-I", str(HOST_SOURCES), *_LINK)
    host.toolchain.run([*how, *compiled, *_LIBRARIES, "-o", "model.so"], folder)
    library = folder / "model.so"
    if image.byte_count > 0 and weights is None:
        append_segment(library, image.parts(), image.byte_count)
    seal(library)
    return library
