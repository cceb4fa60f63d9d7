"""The inputs that a model is checked on: those that are given, or a folder of cases."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rutc.base.record import record

if TYPE_CHECKING:
    from rutc.tensor_ir import Graph
    from rutc.verify.judging.compare import Value

# What checks them is imported where it is needed, while the C compiler runs.


@record
class Given:
    """What a verification uses: `NAME=SOURCE` items, a folder of cases, or generated inputs."""

    inputs: tuple[str, ...] = ()
    data: Path | None = None

    def check(self, graph: Graph) -> None:
        """Raises UserError where no such inputs are a model's."""
        if self.inputs:
            from rutc.verify.feeding.input_values import check_sources
            from rutc.verify.feeding.ports import input_specs, ports_of

            check_sources(input_specs(ports_of(graph)), self.inputs)
        if self.data is not None:
            from rutc.verify.feeding.dataset import check_samples
            from rutc.verify.feeding.ports import ports_of

            check_samples(self.data, ports_of(graph))

    def values(
        self, library: Path, dims: Mapping[str, int] | None = None
    ) -> Mapping[str, Value] | None:
        """All inputs of a compiled model, if there are items; generated ones at some sizes."""
        from rutc.verify.feeding.session_values import session_values
        from rutc.verify.feeding.whole import WholeSession

        if not self.inputs:
            return None
        with WholeSession(library, threads=1) as session:
            return session_values(session, self.inputs, dims=dims)
