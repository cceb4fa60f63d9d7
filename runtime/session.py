"""Sessions that run a compiled model from Python, in the manner of ONNX Runtime's."""

import ctypes
import operator
import os
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, NoReturn, Self, SupportsIndex

import numpy as np
import numpy.typing as npt

from rutc.runtime.binding import Arguments, Binding
from rutc.runtime.boxes import slot_of
from rutc.runtime.c_interface import DLTensor, Options, Pointer, pointer_to
from rutc.runtime.errors import ModelError
from rutc.runtime.forks import Locked
from rutc.runtime.kept import States
from rutc.runtime.loader import Library, open_library
from rutc.runtime.plain import plain_tensors
from rutc.runtime.ports import NodeArg, Ports, check_all, check_mapping, check_names, undamaged
from rutc.runtime.step_profile import ProfileEntry, measured
from rutc.runtime.tensors import Array, check_shape
from rutc.runtime.weights_file import WeightsSource, given_weights, tell_weights

MAX_THREADS: Final = 4096
"""As many as a session takes."""


class InferenceSession:
    """A loaded model with its own memory and threads.

        with InferenceSession("model.so", threads=2) as session:
            (y,) = session.run(None, {"x": x})

    Sessions are independent. One session may be used by many threads, whose runs wait for one
    another; the interpreter is free for other threads during a run. What runs in the middle of a
    call, as a signal's handler does, gets an error of the session that its own thread is in.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        sess_options: object | None = None,
        providers: Sequence[object] | None = None,
        *,
        threads: int | None = None,
        pin_threads: bool = False,
        profile: bool = False,
        check_integrity: bool = False,
        weights: WeightsSource | None = None,
        target: str | None = None,
    ) -> None:
        """Opens the model.

        Args:
            path: the library that rutc compiled.
            sess_options: for programs written for ONNX Runtime: its `intra_op_num_threads` is the
                thread count unless `threads` says otherwise; the rest has no meaning here.
            providers: accepted for the same programs; a compiled model has one target.
            threads: threads of a run, the calling one included; None: all CPUs that the process
                may use, by its affinity mask and its cgroup's quota.
            pin_threads: keep each thread of the pool on one CPU.
            profile: measure every step, for `profile()`.
            check_integrity: compare every byte of the library, and of its file of weights, with
                the digests that were made when it was compiled; it reads all of them. What is
                loaded of the library but the weights is compared with a checksum in any case.
            weights: where the file of weights is that the library was compiled with, or its content
                in memory, from a multiple of 64 bytes on, as of an mmap; None: in the library, or
                beside it.
            target: of a library of several targets the one whose code runs; None: what the
                environment variable RUTC_TARGET names, or the best that the CPU can run.

        Raises:
            ModelError: the file is no model or not whole, has changed since it was compiled (if
                that is checked), needs another CPU, or the options are wrong.
        """
        if threads is None:
            # ONNX Runtime's 0 leaves the choice to it.
            threads = getattr(sess_options, "intra_op_num_threads", 0) or None
        options = Options(
            struct_size=ctypes.sizeof(Options),
            threads=0 if threads is None else _thread_count(threads),
            pin_threads=bool(pin_threads),
            profile=bool(profile),
        )
        given = None if weights is None else given_weights(weights)
        held = tell_weights(options, given)
        library = open_library(path, check_integrity=check_integrity, weights=given)
        self._library = library
        self._locked = Locked()
        try:
            self._ports = Ports.of(library.path, library.manifest)
            undamaged(library.path, self._prepare)
            handle, self._manifest = library.open(options, target)
        except ModelError:
            library.release()
            raise
        self._close = weakref.finalize(self, _close, library, handle, held)
        # Threads may still be in a run when the interpreter exits; the process's end does the rest.
        self._close.atexit = False
        self._handle: Pointer = pointer_to(handle)
        """The library's session; None: closed."""

    def __getstate__(self) -> NoReturn:
        """Lets nobody copy it, as the first of copies that ends would close them all."""
        raise TypeError("a session can be neither copied nor pickled: open another one")

    def _prepare(self) -> None:
        """Makes what describes tensors to the library."""
        self._states = States(self._library)
        self._inputs, self._outputs = self._ports.inputs, self._ports.outputs
        self._takes, self._gives = self._ports.takes, self._ports.gives
        objects = self._library.objects
        self._input_slots = {x.name: slot_of("input", x, objects) for x in self._inputs}
        self._output_slots = {x.name: slot_of("output", x, objects) for x in self._outputs}
        shapes = [() if x.computed else x.known_shape for x in self._outputs]
        self._fixed_shapes = None if None in shapes else [x for x in shapes if x is not None]
        self._input_addresses = (ctypes.c_void_p * len(self._inputs))()
        self._output_addresses = (ctypes.c_void_p * len(self._outputs))()
        # What a run appends to states may change shapes that inputs do not tell.
        lasting = not self._states.grows
        self._plain = plain_tensors(self._inputs, self._outputs, objects, lasting=lasting)
        self._makers = self._ports.makers(objects)

    @property
    def manifest(self) -> Mapping[str, object]:
        """What the model says of itself: interface, target, versions, kernels.

        Of several targets it is that of the one whose code runs.
        """
        return self._manifest

    @property
    def target(self) -> str:
        """The target whose code runs."""
        return str(self._manifest.get("target"))

    def get_inputs(self) -> list[NodeArg]:
        """Returns the model's inputs."""
        return self.ports.get_inputs()

    def get_outputs(self) -> list[NodeArg]:
        """Returns the model's outputs."""
        return self.ports.get_outputs()

    @property
    def ports(self) -> Ports:
        """The tensors that the library takes and gives, as its manifest describes them."""
        return self._ports

    def get_ports(self) -> list[NodeArg]:
        """Returns the tensors that the inputs are made of; of a model of tensors the inputs.

        A sequence whose length the run tells is one, as are such optionals: its shape is that
        length and the declared shape of the tensors in it.
        """
        return self.ports.get_ports()

    def bundled(self, tensors: Mapping[str, Array]) -> dict[str, Any]:
        """Returns the inputs by name that tensors make up, which `get_ports` lists."""
        return self.ports.bundled(tensors)

    def spread(self, inputs: Mapping[str, object]) -> dict[str, object]:
        """Returns the tensors that inputs are made of, by the names that `get_ports` lists.

        Raises:
            ModelError: an input is missing or no such value.
        """
        return self._ports.spread(inputs)

    def get_providers(self) -> list[str]:
        """Returns what ONNX Runtime calls the model's device."""
        return ["CPUExecutionProvider"]

    def run(
        self,
        output_names: Iterable[str] | None,
        input_feed: Mapping[str, object],
        run_options: object | None = None,
    ) -> list[Any]:
        """Returns the named outputs (None: all of them) as new numpy arrays.

        Inputs are numpy arrays or tensors of any library that speaks DLPack, in CPU memory;
        they are read in place, strided ones after a copy. `run_options` is accepted for programs
        written for ONNX Runtime and has no meaning here. A sequence is a list, an optional without
        an element None, a map a dict.

        Raises:
            ModelError: an input is missing, unknown, or has the wrong dtype or shape.
        """
        del run_options
        check_mapping("input", input_feed)
        wanted = list(output_names) if output_names else []
        makers = self._makers
        if makers is not None and (not wanted or makers.keys() >= set(wanted)):
            # Until the outputs are made, as what makes them is code of the library.
            locked = self._locked
            if locked.lock._is_owned():
                raise locked.again()
            with locked.lock:
                results = self._run_plain(input_feed)
                if results is not None:
                    if not wanted and self._gives is None:
                        return results
                    return [makers[name](results) for name in wanted or makers]
        if self._takes is None or self._gives is None:
            names = wanted or [info.name for info in self._outputs]
            return self._run_tensors(names, input_feed)
        takes, gives = ({b.name: b for b in whole} for whole in (self._takes, self._gives))
        names = wanted or list(gives)
        check_names("output", names, gives)
        check_names("input", input_feed, takes)
        feed = self.spread(input_feed)
        ports = [port for name in names for port in gives[name].ports]
        found = dict(zip(ports, self._run_tensors(ports, feed), strict=True)) if ports else {}
        return [gives[name].gathered(found) for name in names]

    def _run_plain(self, inputs: Mapping[str, object]) -> list[Any] | None:
        """Returns all outputs; None where the inputs need a closer look, or the session does."""
        plain = self._plain
        if plain is None or self._handle is None:
            return None
        # Described arrays live until the model has run.
        held = plain.describe(inputs)
        if held is None:
            return None
        if not plain.told:
            self._check(self._library.entries.output_shapes(self._handle, *plain.arguments))
            plain.learn()
        results = plain.make()
        self._check(self._library.entries.run(self._handle, *plain.arguments))
        plain.finish(results, self._keep)
        return results

    def _run_tensors(self, names: Sequence[str], inputs: Mapping[str, object]) -> list[Array]:
        """Returns the named outputs, after a closer look at the inputs."""
        check_names("output", names, self._output_slots)
        self._check_inputs(inputs)
        with self._locked.alone():
            try:
                self._describe(inputs)
                results: dict[str, Array] = {
                    info.name: np.empty(shape, info.dtype)
                    for info, shape in zip(self._outputs, self._output_shapes(), strict=True)
                    if info.name in names and not info.computed
                }
                self._run_into(results)
                read = [name for name in names if name not in results]
                results |= {name: self._output_slots[name].read(self._keep) for name in read}
            finally:
                self._release()
        return [results[name] for name in names]

    def _keep(self, tensor: DLTensor) -> bool:
        """Takes the memory of an output that the last run described; returns whether it could."""
        keeping = self._library.keeping
        return keeping is not None and bool(keeping.keep_output(self._handle, ctypes.byref(tensor)))

    def _output_shapes(self) -> list[tuple[int, ...]]:
        """Returns the shape of every output for the inputs that are described."""
        if self._fixed_shapes is not None:
            return self._fixed_shapes
        for number, slot in enumerate(self._output_slots.values()):
            self._output_addresses[number] = slot.describe_shape()
        self._call(self._library.entries.output_shapes)
        found = [slot.shape for slot in self._output_slots.values()]
        for info, shape in zip(self._outputs, found, strict=True):
            if not info.computed:
                check_shape(info.name, shape)
        return found

    def run_into(self, inputs: Mapping[str, object], outputs: Mapping[str, object]) -> None:
        """Runs the model and writes the named outputs into the caller's tensors.

        The tensors are numpy arrays or DLPack tensors (for example `torch.empty(...)`).

        Raises:
            ModelError: a tensor is missing, unknown, or has the wrong dtype or shape.
        """
        check_mapping("input", inputs)
        check_mapping("output", outputs)
        plain = self._plain
        if plain is not None:
            locked = self._locked
            if locked.lock._is_owned():
                raise locked.again()
            with locked.lock:
                opened = self._handle is not None
                described = plain.describe_into(inputs, outputs) if opened else None
                if described is not None:
                    self._check(self._library.entries.run(self._handle, *plain.arguments))
                    return
        check_names("output", outputs, self._output_slots)
        self._check_inputs(inputs)
        with self._locked.alone():
            try:
                self._describe(inputs)
                self._run_into(outputs)
            finally:
                self._release()

    def bind(self, inputs: Mapping[str, object], outputs: Mapping[str, object]) -> Binding:
        """Returns a run that reads these inputs and writes all outputs where they are.

        The tensors, as `run_into` takes them, are looked at once: they must stay in their memory.

        Raises:
            ModelError: a tensor is missing, unknown, of objects, or has the wrong dtype or shape.
        """
        check_mapping("input", inputs)
        check_mapping("output", outputs)
        self._check_inputs(inputs)
        check_names("output", outputs, self._output_slots)
        check_all("output", outputs, self._output_slots)
        return Binding(
            self._run_bound,
            [(info, inputs[info.name]) for info in self._inputs],
            [(info, outputs[info.name]) for info in self._outputs],
        )

    def _run_bound(self, arguments: Arguments) -> None:
        """Runs the model on tensors that are described already."""
        locked = self._locked
        if locked.lock._is_owned():
            raise locked.again()
        with locked.lock:
            self._check_open()
            self._check(self._library.entries.run(self._handle, *arguments))

    def _check_inputs(self, inputs: Mapping[str, object]) -> None:
        check_names("input", inputs, self._input_slots)
        check_all("input", inputs, self._input_slots)

    def _check_open(self) -> None:
        if self._handle is None:
            raise ModelError(f"the session of {self._library.path} is closed")

    def _release(self) -> None:
        for slot in (*self._input_slots.values(), *self._output_slots.values()):
            slot.release()

    def _describe(self, inputs: Mapping[str, object]) -> None:
        self._check_open()
        for number, (name, slot) in enumerate(self._input_slots.items()):
            self._input_addresses[number] = slot.describe(inputs[name])

    def _run_into(self, outputs: Mapping[str, object]) -> None:
        """Runs the model on the described inputs; the session provides what is not in `outputs`."""
        for number, (name, slot) in enumerate(self._output_slots.items()):
            given = name in outputs
            address = slot.describe(outputs[name]) if given else slot.describe_nothing()
            self._output_addresses[number] = address
        self._call(self._library.entries.run)
        for name in outputs:
            self._output_slots[name].finish()

    def _call(self, entry: Callable[..., int]) -> None:
        inputs, outputs = self._input_addresses, self._output_addresses
        self._check(entry(self._handle, inputs, len(inputs), outputs, len(outputs)))

    def _check(self, status: int) -> None:
        """Raises ModelError where a call of the library failed."""
        if status != 0:
            message = self._library.entries.last_error(self._handle)
            raise ModelError(message.decode(errors="replace"))

    def get_states(self) -> list[NodeArg]:
        """Returns what the session keeps from run to run, as the inputs that these are."""
        return self._states.args()

    def get_state(self, name: str) -> npt.NDArray[Any]:
        """Returns a copy of a state by the name of its input or output.

        Raises:
            ModelError: there is no such state, or the session is closed.
        """
        with self._locked.alone():
            self._check_open()
            return self._states.read(self._handle, name)

    def set_state(self, name: str, value: object) -> None:
        """Copies a tensor into a state, by the name of its input or output.

        States that grow together, as the caches of all layers do, must all be set before a run.

        Raises:
            ModelError: there is no such state, it has no room for the tensor, or that has another
                dtype or shape.
        """
        with self._locked.alone():
            self._check_open()
            self._states.write(self._handle, name, value)

    def shorten(self, length: int) -> None:
        """Makes all states that grow no longer than `length`: what came after it is forgotten.

        Raises:
            ModelError: the length is negative, or the session is closed.
        """
        with self._locked.alone():
            self._check_open()
            self._states.shorten(self._handle, length)

    def reset(self) -> None:
        """Makes all states as in a new session: those that grow are empty, others zeros."""
        with self._locked.alone():
            self._check_open()
            self._states.reset(self._handle)

    def profile(self) -> list[ProfileEntry]:
        """Returns the time of every step, summed over all runs so far.

        Raises:
            ModelError: the session was opened without `profile=True`, or is closed.
        """
        with self._locked.alone():
            self._check_open()
            entries = measured(self._library.entries.profile, self._handle)
        if not entries:
            raise ModelError("nothing was measured: open the session with profile=True")
        return entries

    def close(self) -> None:
        """Stops the session's threads and releases its memory; a closed session cannot run."""
        with self._locked.alone():
            self._handle = None
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def load(
    path: str | os.PathLike[str],
    threads: int | None = None,
    *,
    pin_threads: bool = False,
    profile: bool = False,
    check_integrity: bool = False,
    weights: WeightsSource | None = None,
    target: str | None = None,
) -> InferenceSession:
    """Opens a compiled model; see `InferenceSession`.

    Raises:
        ModelError: the file is no model, needs another CPU, or the options are wrong.
    """
    return InferenceSession(
        path,
        threads=threads,
        pin_threads=pin_threads,
        profile=profile,
        check_integrity=check_integrity,
        weights=weights,
        target=target,
    )


def _thread_count(threads: SupportsIndex) -> int:
    try:
        count = 0 if isinstance(threads, bool) else operator.index(threads)
    except TypeError:
        count = 0
    if not 1 <= count <= MAX_THREADS:
        raise ModelError(f"threads must be a whole number from 1 to {MAX_THREADS}, not {threads!r}")
    return count


def _close(library: Library, handle: int, held: object) -> None:
    """Closes a session; `held` is the memory that it reads until then."""
    library.entries.close(handle)
    library.release()
