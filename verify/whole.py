"""Sessions that keep nothing: states are inputs and outputs like any other.

So a compiled model takes and gives all that its ONNX model does, whichever of it are states.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from rutc.runtime import InferenceSession
from rutc.runtime.ports import NodeArg, Ports
from rutc.runtime.states import States


class WholeSession(InferenceSession):
    """A session whose runs are given all states, and give what became of them."""

    def __init__(self, path: str | os.PathLike[str], threads: int | None = None) -> None:
        """Opens the model; see `InferenceSession`."""
        super().__init__(path, threads=threads)
        self._kept = States(self.manifest)
        own = super().ports
        self._all = Ports(
            (*own.inputs, *self._kept.inputs),
            (*own.outputs, *self._kept.outputs),
            own.takes,
            own.gives,
        )

    @property
    def ports(self) -> Ports:
        """All that the ONNX model takes and gives."""
        return self._all

    def get_inputs(self) -> list[NodeArg]:
        """Returns the ONNX model's inputs."""
        return self._all.get_inputs()

    def get_outputs(self) -> list[NodeArg]:
        """Returns the ONNX model's outputs."""
        return self._all.get_outputs()

    def get_ports(self) -> list[NodeArg]:
        """Returns the tensors that these inputs are made of."""
        return self._all.get_ports()

    def bundled(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the inputs that these tensors make up."""
        return self._all.bundled(tensors)

    def run(
        self,
        output_names: Iterable[str] | None,
        input_feed: Mapping[str, object],
        run_options: object | None = None,
    ) -> list[Any]:
        """Returns the named outputs of a run from the states that are given."""
        for info in self._kept.inputs:
            if info.name in input_feed:
                self.set_state(info.name, input_feed[info.name])
        return self.step(output_names, input_feed)

    def step(
        self, output_names: Iterable[str] | None, input_feed: Mapping[str, object]
    ) -> list[Any]:
        """Returns the named outputs of a run from the states that the session has."""
        states = {info.name for info in self._kept.inputs}
        results = {info.name for info in self._kept.outputs}
        names = list(output_names) if output_names else [o.name for o in self.get_outputs()]
        feed = {name: value for name, value in input_feed.items() if name not in states}
        own = [name for name in names if name not in results]
        made = dict(zip(own, super().run(own, feed), strict=True)) if own else {}
        if not own:
            super().run(None, feed)
        return [made[n] if n in made else self.get_state(n) for n in names]

    def states(self) -> dict[str, Any]:
        """Returns copies of all states, by the names of their inputs."""
        return {info.name: self.get_state(info.name) for info in self._kept.inputs}

    def growing(self) -> dict[tuple[str, int], str]:
        """Returns the sizes that grow, by the states and the axes along which these do."""
        axes = zip(self._kept.inputs, self._kept.axes, strict=True)
        return {(i.name, a): str(i.shape[a]) for i, a in axes if a is not None}


def load_whole(path: str | os.PathLike[str], threads: int | None = None) -> WholeSession:
    """Opens a compiled model whose states are inputs and outputs.

    Raises:
        ModelError: the file is no model, needs another CPU, or the options are wrong.
    """
    return WholeSession(path, threads)
