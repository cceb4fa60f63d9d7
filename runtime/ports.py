"""A model's inputs and outputs as its manifest describes them."""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from rutc.runtime.bundles import Bundle, boxed, bundles
from rutc.runtime.dtypes import dlpack_type, onnx_type
from rutc.runtime.errors import ModelError
from rutc.runtime.objects import Objects
from rutc.runtime.tensors import Array, TensorInfo, tensor_infos

Found = TypeVar("Found")
Maker = Callable[[Sequence[Array]], Any]
"""Makes an output of all the tensors that a library gives, in order."""


@dataclass(frozen=True, slots=True)
class NodeArg:
    """An input or output of the model; `type` is spelled as in `"tensor(float)"`.

    An extent that the shapes of the inputs tell is the name of a size, or a formula of such.
    `value` is what an input must hold, where the model was compiled for it.
    """

    name: str
    shape: list[int | str]
    type: str
    value: Array | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Ports:
    """The tensors that a library takes and gives, and what they make up where that is more."""

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    takes: tuple[Bundle, ...] | None
    gives: tuple[Bundle, ...] | None

    @classmethod
    def of(cls, path: Path, manifest: Mapping[str, object]) -> "Ports":
        """Returns the ports that the manifest of a library describes.

        Raises:
            ModelError: it describes none, or badly.
        """

        def read() -> "Ports":
            takes, gives = (bundles(manifest, key) for key in ("inputs", "outputs"))
            ports = cls(_infos(manifest["inputs"]), _infos(manifest["outputs"]), takes, gives)
            # What does not fit together shows here.
            for info in (*ports.inputs, *ports.outputs):
                dlpack_type(info.dtype_name)
            ports.get_inputs()
            ports.get_outputs()
            return ports

        return undamaged(path, read)

    def get_inputs(self) -> list[NodeArg]:
        """Returns the model's inputs."""
        return _node_args(self.inputs, self.takes)

    def get_outputs(self) -> list[NodeArg]:
        """Returns the model's outputs."""
        return _node_args(self.outputs, self.gives)

    def get_ports(self) -> list[NodeArg]:
        """Returns the tensors that the inputs are made of, as a session lists them."""
        ports = {info.name: node_arg(info) for info in self.inputs}
        for name, bundle in boxed(self.takes).items():
            inner = [f"{name}.{axis}" if n < 0 else n for axis, n in enumerate(bundle.shape)]
            ports[name] = NodeArg(name, [*ports[name].shape, *inner], bundle.contents)
        return list(ports.values())

    def bundled(self, tensors: Mapping[str, Array]) -> dict[str, Any]:
        """Returns the inputs by name that tensors make up, which `get_ports` lists."""
        return _gathered(self.takes, tensors)

    def bundled_outputs(self, tensors: Mapping[str, Array]) -> dict[str, Any]:
        """Returns the outputs by name that tensors make up."""
        return _gathered(self.gives, tensors)

    def spread(self, inputs: Mapping[str, object]) -> dict[str, object]:
        """Returns the tensors that inputs are made of, by the names that `get_ports` lists.

        Raises:
            ModelError: an input is missing or no such value.
        """
        if self.takes is None:
            return dict(inputs)
        dtypes = {info.name: info.dtype for info in self.inputs}
        feed: dict[str, object] = {}
        for bundle in self.takes:
            if bundle.name not in inputs and bundle.ports:
                needed = named("input", [b.name for b in self.takes])
                raise ModelError(f"missing input {bundle.name!r}: the model needs {needed}")
            feed.update(bundle.spread(inputs.get(bundle.name), dtypes))
        return feed

    def makers(self, objects: Objects | None) -> dict[str, Maker] | None:
        """Returns what makes each output of all tensors that a run gives, by name.

        None where more than tensors go in, or what a run tells the structure of goes out.
        """
        if self.takes is not None and not all(_is_tensor(b) for b in self.takes):
            return None
        places = {info.name: place for place, info in enumerate(self.outputs)}
        if self.gives is None:
            return {name: itemgetter(place) for name, place in places.items()}
        if boxed(self.gives):
            return None
        return {b.name: _maker(b, places, self.outputs, objects) for b in self.gives}


def _is_tensor(bundle: Bundle) -> bool:
    return bundle.kind == "tensor" and bundle.port == bundle.name


def _maker(
    bundle: Bundle,
    places: Mapping[str, int],
    outputs: Sequence[TensorInfo],
    objects: Objects | None,
) -> Maker:
    """What makes an output, or an element of one."""
    match bundle.kind:
        case "tensor":
            return itemgetter(places[bundle.port])
        case "sequence":
            parts = [_maker(part, places, outputs, objects) for part in bundle.parts]
            return lambda tensors: [part(tensors) for part in parts]
        case "optional" if bundle.parts:
            return _maker(bundle.parts[0], places, outputs, objects)
        case "maps":
            maker = _maps(bundle, places, outputs, objects)
            if maker is not None:
                return maker
    ports = [(port, places[port]) for port in bundle.ports]
    return lambda tensors: bundle.gathered({port: tensors[place] for port, place in ports})


def _maps(
    bundle: Bundle,
    places: Mapping[str, int],
    outputs: Sequence[TensorInfo],
    objects: Objects | None,
) -> Maker | None:
    """What the library's own code makes a map for each row of a matrix by; None where it cannot."""
    place = places[bundle.parts[0].port]
    if not bundle.keys or objects is None or outputs[place].shape[1:] != (len(bundle.keys),):
        return None
    maps = objects.maps_of(bundle.keys, outputs[place].dtype)
    return None if maps is None else lambda tensors: maps(tensors[place])


def undamaged(path: Path, read: Callable[[], Found]) -> Found:
    """Returns what `read` makes of the manifest of a library.

    Raises:
        ModelError: it meets something else than it looks for.
    """
    try:
        return read()
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        text = str(error) if isinstance(error, ModelError) else f"{type(error).__name__}: {error}"
        raise ModelError(f"the manifest in {path} is damaged: {text}") from error


def node_arg(info: TensorInfo) -> NodeArg:
    """Returns a tensor as an input or output of the model."""
    value = None
    if info.fixed is not None:
        value = np.frombuffer(info.fixed, info.dtype).reshape([int(x) for x in info.shape])
    return NodeArg(info.name, list(info.shape), onnx_type(info.dtype_name), value)


def _infos(entries: object) -> tuple[TensorInfo, ...]:
    if not isinstance(entries, list):
        raise ModelError("it lists no inputs and outputs")
    return tensor_infos(entries)


def _node_args(infos: tuple[TensorInfo, ...], whole: tuple[Bundle, ...] | None) -> list[NodeArg]:
    return whole_args([node_arg(info) for info in infos], whole)


def whole_args(tensors: Sequence[NodeArg], whole: tuple[Bundle, ...] | None) -> list[NodeArg]:
    """Returns the inputs or outputs that tensors make up; None: each is one by itself."""
    if whole is None:
        return list(tensors)
    args = {arg.name: arg for arg in tensors}
    types = {name: arg.type for name, arg in args.items()}
    return [
        args[b.port] if b.kind == "tensor" else NodeArg(b.name, [], b.type(types)) for b in whole
    ]


def check_mapping(role: str, values: object) -> None:
    """Raises ModelError where what is given by name, as inputs are, has no names."""
    if type(values) is not dict and not isinstance(values, Mapping):
        kind = type(values).__name__
        raise ModelError(f"{role}s must be a dict of tensors by the {role}s' names, not {kind}")


def named(role: str, names: Iterable[str]) -> str:
    """Returns names as messages list them: `"inputs 'a', 'b'"`."""
    quoted = [repr(name) for name in names]
    if not quoted:
        return f"no {role}s"
    return f"{role}{'s' if len(quoted) > 1 else ''} {', '.join(quoted)}"


def _gathered(whole: tuple[Bundle, ...] | None, tensors: Mapping[str, Array]) -> dict[str, Any]:
    """The values that tensors make up, by name."""
    return dict(tensors) if whole is None else {b.name: b.gathered(tensors) for b in whole}


def check_names(role: str, names: Iterable[str], known: Mapping[str, object]) -> None:
    """Raises ModelError where a name is none of those known."""
    for name in names:
        if name not in known:
            # Not at the top of the file: servers import this, and most never need it.
            import difflib

            close = difflib.get_close_matches(str(name), known, 1)
            hint = f" (did you mean {close[0]!r}?)" if close else ""
            raise ModelError(f"the model has no {role} {name!r}{hint}; it has {named(role, known)}")


def check_all(role: str, names: Container[str], known: Iterable[str]) -> None:
    """Raises ModelError where one of those known is not among the names."""
    missing = [name for name in known if name not in names]
    if missing:
        raise ModelError(f"missing {named(role, missing)}: the model needs {named(role, known)}")
