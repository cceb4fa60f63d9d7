"""Artifacts that were compiled before, used again where nothing that decides them has changed.

An entry's key is a hash of all that decides the artifact but the bytes of the model's files: of
these it holds the size and samples only. The archive under the key holds digests of all of the
files, so that they are read in full only if an archive is there, or to make one.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from threading import Thread

import numpy as np

from rutc.base.bulk import THREADS, digest_of
from rutc.base.files import cannot_write
from rutc.driver.options import Options, Report
from rutc.emit import archive
from rutc.emit.cache import digest_of_files, key_of, limit_bytes
from rutc.emit.linking.toolchain import Toolchain
from rutc.emit.targets import targets_named
from rutc.errors import UserError

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = (
    *("base", "driver", "tensor_ir", "importer", "graph_opt", "tuner", "emit", "runtime"),
    *("verify", "report"),
)
"""Those of all that compiles: `verify` tells how far roundings carry, which decides precisions."""
SUFFIXES = frozenset({".py", ".c", ".h", ".json"})
PACKAGES = ("numpy", "ml_dtypes", "onnx", "protobuf", "llvmlite", "scipy")
SAMPLE_BYTES = 1 << 16
COUNTS = frozenset(f.name for f in fields(Report) if f.type == "int")
"""The numbers of a report that an archive holds."""
TEXTS = frozenset(f.name for f in fields(Report) if f.type == "str") - {"precision"}
"""The texts of one."""
OTHERS = frozenset({"arena_formula", "targets"})
"""What it holds besides."""

FileState = tuple[int, int, int]


class Entry:
    """One compilation's place in the cache: the model, the artifact's name and how to compile."""

    def __init__(self, model: Path, output: str, options: Options, toolchain: Toolchain) -> None:
        """Look at the model's size and samples.

        Raises:
            OSError: it cannot be read.
        """
        self.model = model
        self._state = _state(model)
        self._digest: str | None = None
        parts = (
            sources_digest(),
            sys.version,
            *versions(),
            *(str(target.machine) for target in targets_named(options.target)),
            toolchain.identity,
            model.name,
            output,
            *_decisions(options),
            *_sample(model),
        )
        self.key = key_of("artifact", parts)

    def fetch(self, output: Path) -> Report | None:
        """Writes the artifact of an earlier compilation as `output`, if there is one.

        Raises:
            UserError: it cannot be written.
        """
        header = output.with_suffix(".h")
        with archive.opened(self.key) as found:
            if found is None:
                return None
            weights = output.with_suffix(".weights")
            held = {file.name for file in found.files}
            if not {output.name, header.name} <= held <= {output.name, header.name, weights.name}:
                return None
            file = weights if weights.name in held else None
            report = _report(found.facts.get("report"), output, header, file)
            if report is None or not self._unchanged(found.facts.get("inputs")):
                return None
            try:
                return report if found.extract(output.parent) else None
            except OSError as error:
                raise cannot_write(output, error) from error

    @contextmanager
    def hashing(self) -> Iterator[None]:
        """Reads the model in a thread meanwhile, which `store` then need not do."""
        thread = Thread(target=self._hash, args=(1,))
        thread.start()
        try:
            yield
        finally:
            thread.join()

    def store(self, report: Report, external: Mapping[str, FileState]) -> None:
        """Keeps an artifact, unless one of the model's files has changed since it was read.

        `external` are the files beside the model that were read, and their states then. The
        artifact lies in a folder of its own.
        """
        if self._digest is None:
            self._hash()
        if self._digest is None:
            return
        inputs = {"": self._digest}
        try:
            for location in external:
                inputs[location] = digest_of(self.model.parent / location).hex()
            states = {n: _state(self.model.parent / n) for n in external}
            if states != external or _state(self.model) != self._state:
                return
        except OSError:
            return
        written = sorted(report.library.parent.iterdir())
        archive.store(
            self.key,
            {path.name: path for path in written},
            {"inputs": inputs, "report": _facts(report)},
        )

    def _hash(self, threads: int = THREADS) -> None:
        try:
            self._digest = digest_of(self.model, threads).hex()
        except OSError:
            self._digest = None

    def _unchanged(self, inputs: object) -> bool:
        """Whether the model's files are those that an artifact was made of."""
        if not isinstance(inputs, dict):
            return False
        self._hash()
        if self._digest is None or inputs.get("") != self._digest:
            return False
        external = {location: digest for location, digest in inputs.items() if location}
        if not external:
            return True
        # Not at the top of the file: it takes as long as all that is needed without such files.
        from rutc.importer.reading.external import ModelFolder

        folder = ModelFolder(self.model.parent)
        try:
            return all(digest_of(folder.file(n, n)).hex() == d for n, d in external.items())
        except (OSError, ValueError, UserError):
            return False


def entry(model: Path, output: str, options: Options, toolchain: Toolchain) -> Entry | None:
    """The entry of a compilation; None if its artifact cannot be one that was made before."""
    if options.dump is not None or limit_bytes() == 0:
        return None
    try:
        return Entry(model, output, options, toolchain)
    except (OSError, ImportError):
        return None


@functools.cache
def sources_digest() -> str:
    """A hash of the sources that decide what a model becomes."""
    files = [p for p in ROOT.iterdir() if p.suffix in SUFFIXES]
    for folder in FOLDERS:
        files += [p for p in (ROOT / folder).rglob("*") if p.suffix in SUFFIXES]
    return digest_of_files(ROOT, files)


@functools.cache
def versions() -> tuple[str, ...]:
    """The packages that take part in compiling.

    Raises:
        ImportError: one of them is not installed.
    """
    installed: dict[str, str] = {}
    for folder in filter(os.path.isdir, sys.path):
        for name in os.listdir(folder):
            if name.endswith(".dist-info"):
                installed.setdefault(name.partition("-")[0], name)
    return tuple(installed.get(name) or _version(name) for name in PACKAGES)


def _version(name: str) -> str:
    """The version of a package that is installed in another way than usual."""
    # Not at the top of the file: it takes longer than looking for an artifact.
    import importlib.metadata

    return f"{name} {importlib.metadata.version(name)}"


def _decisions(options: Options) -> Iterator[str | bytes]:
    """The options that decide what is made; not how many processes make it."""
    for name, value in sorted(options.values.items()):
        array = np.asarray(value)
        yield f"value {name} {array.dtype} {array.shape}"
        yield repr(array.tolist()) if array.dtype.hasobject else array.tobytes()
    shapes, dims = dict(sorted(options.shapes.items())), dict(sorted(options.dims.items()))
    yield repr(replace(options, values={}, jobs=None, shapes=shapes, dims=dims))


def _sample(model: Path) -> tuple[bytes, ...]:
    with model.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        first = file.read(SAMPLE_BYTES)
        file.seek(max(size - SAMPLE_BYTES, 0))
        return (str(size).encode(), first, file.read(SAMPLE_BYTES))


def _state(path: Path) -> FileState:
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ino


def _report(facts: object, library: Path, header: Path, weights: Path | None) -> Report | None:
    """The report of an artifact of the cache; None if that holds none."""
    if not isinstance(facts, dict) or facts.keys() != COUNTS | TEXTS | OTHERS:
        return None
    counts = {name: facts[name] for name in COUNTS}
    texts = {name: facts[name] for name in TEXTS}
    formula, targets = facts["arena_formula"], facts["targets"]
    if any(type(n) is not int for n in counts.values()) or not isinstance(formula, str | None):
        return None
    if not isinstance(targets, list):
        return None
    if not all(isinstance(text, str) for text in (*texts.values(), *targets)):
        return None
    return Report(
        library,
        header,
        {},
        arena_formula=formula,
        weights=weights,
        targets=tuple(targets),
        **counts,
        **texts,
    )


def _facts(report: Report) -> dict[str, object]:
    return {name: getattr(report, name) for name in sorted(COUNTS | TEXTS | OTHERS)}
