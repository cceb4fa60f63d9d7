"""Building the artifact: compiles the host program and links it with kernels and weights."""

import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, assert_never

import numpy as np

from rutc.emit.header import HOST_SOURCES, header_source
from rutc.emit.manifest import JsonValue, manifest_json
from rutc.emit.program import Program, WeightData
from rutc.emit.program_source import data_source, export_map, program_source
from rutc.emit.toolchain import Toolchain, cached, find_toolchain
from rutc.errors import UserError

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


def build_library(
    program: Program,
    objects: Sequence[bytes],
    output: Path,
    manifest: Mapping[str, JsonValue],
    toolchain: Toolchain | None = None,
    weights: WeightPlacement = "auto",
) -> None:
    """Writes the shared library `output` and, beside it, its header (`model.so` -> `model.h`).

    `objects` are object files that define the program's kernels. `manifest` is what the library
    tells about itself beyond the program's own facts. Weights are embedded, or written to
    `model.weights` beside the library. The same arguments give the same bytes. The files appear
    complete or not at all, the library last.

    Raises:
        UserError: there is no C compiler, or the output cannot be written there.
        InternalError: a kernel is missing or the compiler fails.
    """
    chosen = toolchain or find_toolchain()
    external = _is_external(weights, program.weight_bytes)
    weights_path = output.with_suffix(".weights")
    header_path = output.with_suffix(".h")
    if output in {weights_path, header_path}:
        raise UserError(f"cannot write the model to {output}: choose a name that ends in .so")
    try:
        with tempfile.TemporaryDirectory(dir=output.parent, prefix=".rutc-") as temporary:
            folder = Path(temporary)
            digest = _write_weights(folder / "weights.bin", program, external)
            name = weights_path.name if external else None
            (folder / "program.c").write_text(program_source(program, name, digest))
            (folder / "manifest.json").write_bytes(manifest_json(program, digest.hex(), manifest))
            _link(folder, program, objects, chosen, external)
            (folder / "model.h").write_text(header_source(program))
            if external:
                (folder / "weights.bin").replace(weights_path)
            (folder / "model.h").replace(header_path)
            (folder / "model.so").replace(output)
    except OSError as error:
        raise UserError(f"cannot write the model to {output}: {error.strerror or error}") from error


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


def _write_weights(path: Path, program: Program, external: bool) -> bytes:
    """Writes the image of the weights and returns its SHA-256; a file of its own ends with it."""
    digest = hashlib.sha256()
    position = 0
    with path.open("wb") as stream:
        for offset, data in sorted(program.weights, key=lambda weight: weight[0]):
            for part in (bytes(max(0, offset - position)), _byte_view(data)):
                digest.update(part)
                stream.write(part)
                position += len(part)
        padding = bytes(program.weight_bytes - position)
        digest.update(padding)
        stream.write(padding)
        if external:
            stream.write(digest.digest())
    return digest.digest()


def _byte_view(data: WeightData) -> memoryview:
    if isinstance(data, np.ndarray):
        return np.ascontiguousarray(data).reshape(-1).view(np.uint8).data
    return memoryview(data).cast("B")


def _link(
    folder: Path,
    program: Program,
    objects: Sequence[bytes],
    toolchain: Toolchain,
    external: bool,
) -> None:
    """Builds `model.so` in the folder from `program.c`, the host runtime, the data and kernels.

    All names given to the compiler are relative to the folder, so none of its path is recorded.
    """
    names = []
    host = _host_objects(toolchain)
    for number, kernel_object in enumerate([*host, *objects]):
        names.append(f"part{number}.o")
        (folder / names[-1]).write_bytes(kernel_object)
    embed = program.weight_bytes > 0 and not external
    (folder / "data.s").write_text(data_source(embed))
    (folder / "exports.map").write_text(export_map(program.name))
    toolchain.run(
        ["-c", *_COMPILE, "-I", str(HOST_SOURCES), "program.c", "-o", "program.o"], folder
    )
    toolchain.run(["-c", "data.s", "-o", "data.o"], folder)
    inputs = ["program.o", *names, "data.o"]
    toolchain.run([*_LINK, *inputs, *_LIBRARIES, "-o", "model.so"], folder)


def _host_objects(toolchain: Toolchain) -> list[bytes]:
    """Returns the compiled sources of the host runtime, from the cache where possible."""
    headers = [path.read_bytes() for path in sorted(HOST_SOURCES.glob("*.h"))]

    def build(source: Path) -> bytes:
        with tempfile.TemporaryDirectory(prefix="rutc-") as temporary:
            folder = Path(temporary)
            (folder / source.name).write_bytes(source.read_bytes())
            include = ["-I", str(HOST_SOURCES)]
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

    return [compiled(source) for source in sorted(HOST_SOURCES.glob("*.c"))]
