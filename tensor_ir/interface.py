"""Inputs and outputs that are no tensors, by the tensors (ports) that they are made of.

    interface := interface input|output "name" = bundle           one line each, in their order
    bundle    := "port"                                           a tensor
               | sequence(bundle, ...)                            one bundle for each element
               | optional(bundle) | optional()                    with and without an element
               | map[key, ...](bundle)                            the values {keys} of these keys
               | map(bundle)                                      the values in the keys' order
               | maps[key, ...](bundle)                           a sequence of maps, {n, keys}
               | boxed("type", "port", extent, ...)               boxes {n}, by their type as ONNX
                                                                  Runtime writes it: a sequence, an
                                                                  optional (n < 2), a tensor (n = 1)
                                                                  and the tensors' shape; -1: any

A graph whose inputs and outputs are all tensors has no such lines.
"""

from __future__ import annotations

from collections.abc import Mapping

from rutc.base.record import record

Key = int | str


@record
class Bundle:
    """A value of the interface. `kind` is tensor, sequence, optional, map, maps or boxed."""

    kind: str
    port: str = ""
    parts: tuple[Bundle, ...] = ()
    keys: tuple[Key, ...] | None = None
    type: str = ""
    shape: tuple[int, ...] = ()

    def facts(self) -> dict[str, object]:
        """The bundle as JSON: `{"kind": .., "port": .., "parts": .., "keys": ..}`."""
        found: dict[str, object] = {"kind": self.kind}
        if self.port:
            found["port"] = self.port
        if self.type:
            found["type"], found["shape"] = self.type, list(self.shape)
        if self.kind not in ("tensor", "boxed"):
            found["parts"] = [p.facts() for p in self.parts]
        if self.keys is not None:
            found["keys"] = list(self.keys)
        return found


def tensor(port: str) -> Bundle:
    """The bundle of one tensor."""
    return Bundle("tensor", port)


@record
class Interface:
    """All inputs and outputs in their order."""

    inputs: tuple[tuple[str, Bundle], ...]
    outputs: tuple[tuple[str, Bundle], ...]

    @property
    def is_plain(self) -> bool:
        """Whether all are tensors."""
        return all(b.kind == "tensor" for _, b in (*self.inputs, *self.outputs))

    def facts(self) -> Mapping[str, object]:
        """The interface as JSON."""
        return {
            "inputs": [{"name": n, **b.facts()} for n, b in self.inputs],
            "outputs": [{"name": n, **b.facts()} for n, b in self.outputs],
        }
