"""Sessions that keep nothing: states are inputs and outputs like any other.

So a compiled model takes and gives all that its ONNX model does, whichever of it are states.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from rutc.runtime import InferenceSession
from rutc.runtime.artifact import programs_of
from rutc.runtime.ports import Ports
from rutc.tensor_ir.textual.parse import parse_index
from rutc.verify.feeding.manifest_kinds import check_told

T = TypeVar("T")


class WholeSession(InferenceSession):
    """A session whose runs are given all states, and give what became of them."""

    def _prepare(self) -> None:
        super()._prepare()
        own = self._ports
        self._all = Ports(
            (*own.inputs, *self._states.inputs),
            (*own.outputs, *self._states.outputs),
            own.takes,
            own.gives,
        )
        for program in programs_of(self._library.manifest):
            check_told(program, self._all.inputs)

    @property
    def ports(self) -> Ports:
        """All that the ONNX model takes and gives."""
        return self._all

    def run(
        self,
        output_names: Iterable[str] | None,
        input_feed: Mapping[str, object],
        run_options: object | None = None,
    ) -> list[Any]:
        """Returns the named outputs of a run from the states that are given."""
        for info in self._states.inputs:
            if info.name in input_feed:
                self.set_state(info.name, input_feed[info.name])
        return self.step(output_names, input_feed)

    def step(
        self, output_names: Iterable[str] | None, input_feed: Mapping[str, object]
    ) -> list[Any]:
        """Returns the named outputs of a run from the states that the session has."""
        names = list(output_names) if output_names else [o.name for o in self.get_outputs()]
        own = list(self.given(dict.fromkeys(names)))
        # No names would be all.
        found = super().run(own, self.taken(input_feed)) if own else None
        if found is None:
            super().run(None, self.taken(input_feed))
        made = dict(zip(own, found or (), strict=True))
        return [made[n] if n in made else self.get_state(n) for n in names]

    def taken(self, inputs: Mapping[str, T]) -> dict[str, T]:
        """Returns the inputs that are no states."""
        states = {info.name for info in self._states.inputs}
        return {name: value for name, value in inputs.items() if name not in states}

    def given(self, outputs: Mapping[str, T]) -> dict[str, T]:
        """Returns the outputs that are no states."""
        states = {info.name for info in self._states.outputs}
        return {name: value for name, value in outputs.items() if name not in states}

    def states(self) -> dict[str, Any]:
        """Returns copies of all states, by the names of their inputs."""
        return {info.name: self.get_state(info.name) for info in self._states.inputs}

    def fits(self, sizes: Mapping[str, int]) -> bool:
        """Returns whether the states have room for what a run at these sizes makes of them."""
        states = zip(self._states.outputs, self._states.axes, self._states.most, strict=True)
        return all(
            int(parse_index(str(info.shape[axis])).evaluate(sizes)) <= most
            for info, axis, most in states
            if axis is not None
        )

    def growing(self) -> dict[tuple[str, int], str]:
        """Returns the sizes that grow, by the states and the axes along which these do."""
        axes = zip(self._states.inputs, self._states.axes, strict=True)
        return {(i.name, a): str(i.shape[a]) for i, a in axes if a is not None}
