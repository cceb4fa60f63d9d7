"""llama.cpp as a peer, through the C interface of its library.

The library is found in the folder that `RUTC_LLAMA_CPP` names, or in the package llama-cpp-python.
Its structs of options are taken from its own defaults and handed back, of which only the first
field is set: so one text serves many of its versions.
"""

import ctypes
import importlib.metadata
import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rutc.emit.targets.select import host_features
from rutc.errors import UserError
from rutc.verify.interleaved import Run

FOLDER = "RUTC_LLAMA_CPP"
MISSING = (
    f"llama.cpp is not found: set {FOLDER} to a folder with its libllama.so and libggml.so, as "
    "`npm install @node-llama-cpp/linux-x64` has one (bins/linux-x64), or install "
    "llama-cpp-python; and install gguf, which writes its files"
)
PART = 512
"""Tokens that are read at once at most."""


class _Options(ctypes.Structure):
    """Room for a struct of options of any version; `first` is `n_ctx` of a context's."""

    _fields_ = (("first", ctypes.c_uint32), ("others", ctypes.c_uint8 * 1020))


class _Batch(ctypes.Structure):
    _fields_ = (
        ("n_tokens", ctypes.c_int32),
        *((name, ctypes.c_void_p) for name in ("token", "embd", "pos", "n_seq", "seq", "logits")),
    )


def folder() -> Path | None:
    """Returns the folder of llama.cpp's libraries; None where it, or gguf, is not installed."""
    if importlib.util.find_spec("gguf") is None:
        return None
    found = os.environ.get(FOLDER)
    package = importlib.util.find_spec("llama_cpp")
    if found is None and package is not None and package.origin is not None:
        found = str(Path(package.origin).parent / "lib")
    return None if found is None or not any(Path(found).glob("libllama.*so")) else Path(found)


def version() -> str:
    """Returns what the library's file or its package says of its version.

    Raises:
        UserError: the library is not found.
    """
    place = folder()
    if place is None:
        raise UserError(MISSING)
    named = [p.name.removeprefix("libllama.").removesuffix(".so") for p in place.glob("libllama.*")]
    told = [name for name in named if name.startswith("v")]
    return told[0] if told else importlib.metadata.version("llama-cpp-python")


class Llama:
    """A model in llama.cpp, with a cache for so many tokens.

    Raises:
        UserError: the library is not found, or does not load the model.
    """

    def __init__(self, model: Path, threads: int, longest: int) -> None:
        place = folder()
        if place is None:
            raise UserError(MISSING)
        self._library = library = _library(place)
        for name, result in _RESULTS.items():
            getattr(library, name).restype = result
        library.llama_log_set(_SILENT, None)
        library.llama_backend_init()
        options = library.llama_model_default_params()
        self._model = library.llama_model_load_from_file(os.fsencode(model), options)
        if not self._model:
            raise UserError(f"llama.cpp does not load {model}")
        told = library.llama_context_default_params()
        told.first = longest
        self._context = library.llama_init_from_model(ctypes.c_void_p(self._model), told)
        if not self._context:
            raise UserError(f"llama.cpp makes no context of {longest} tokens")
        self._here = ctypes.c_void_p(self._context)
        library.llama_set_n_threads(self._here, threads, threads)
        self._cache = ctypes.c_void_p(library.llama_get_memory(self._here))

    def read(self, tokens: Sequence[int]) -> None:
        """Reads tokens, whose keys and values are appended to the cache."""
        for first in range(0, len(tokens), PART):
            part = np.array(tokens[first : first + PART], np.int32)
            self.decode(part)

    def decode(self, part: np.ndarray, *, every: bool = False) -> None:
        """Reads tokens at once, and computes the logits after the last, or after `every` one.

        Raises:
            UserError: llama.cpp does not read them.
        """
        wanted = np.ones(len(part), np.int8)
        batch = _Batch(len(part), part.ctypes.data, logits=wanted.ctypes.data if every else None)
        if self._library.llama_decode(self._here, batch) != 0:
            raise UserError("llama.cpp does not decode the tokens")

    def shorten(self, length: int) -> None:
        """Forgets what came after so many tokens."""
        self._library.llama_memory_seq_rm(self._cache, 0, length, -1)

    def logits(self, words: int, place: int = -1) -> np.ndarray:
        """Returns the logits {words} after the last token, or that at a place of those read."""
        self._library.llama_get_logits_ith.restype = ctypes.POINTER(ctypes.c_float)
        found = self._library.llama_get_logits_ith(self._here, place)
        return np.ctypeslib.as_array(found, (words,)).copy()


_SILENT = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(
    lambda level, text, data: None
)
"""Is called instead of what tells much on the standard error, as long as the process lives."""
_RESULTS = {
    "llama_backend_init": None,
    "llama_context_default_params": _Options,
    "llama_get_memory": ctypes.c_void_p,
    "llama_init_from_model": ctypes.c_void_p,
    "llama_log_set": None,
    "llama_memory_seq_rm": ctypes.c_bool,
    "llama_model_default_params": _Options,
    "llama_model_load_from_file": ctypes.c_void_p,
    "llama_set_n_threads": None,
}


def _library(place: Path) -> ctypes.CDLL:
    """The library, with the code for this processor where there is some for many.

    It asks the processor itself, from which AVX-512 may be kept (`tests.masked`): then it is given
    the code for those before.
    """
    path = min(place.glob("libllama.*so"))
    library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    haswell = place / "libggml-cpu-haswell.so"
    if haswell.is_file():
        registry = ctypes.CDLL(str(min(place.glob("libggml.*so"))), mode=ctypes.RTLD_GLOBAL)
        if "avx512f" in host_features():
            registry.ggml_backend_load_all_from_path(os.fsencode(place))
        else:
            registry.ggml_backend_load.restype = ctypes.c_void_p
            registry.ggml_backend_load(os.fsencode(haswell))
    return library


def prepare_llama(
    model: Path, threads: int, before: Sequence[int], read: Sequence[int], longest: int
) -> Run:
    """Returns a run that reads tokens after others, and computes the logits after each."""
    llama = Llama(model, threads, longest)
    llama.read(before)
    length, part = len(before), np.array(read, np.int32)

    def run() -> object:
        llama.shorten(length)
        llama.decode(part, every=True)
        return llama

    return run
