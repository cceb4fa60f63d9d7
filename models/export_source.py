"""The source of models that are exported on this machine."""

from dataclasses import dataclass
from pathlib import Path

from rutc.models.model_cache import cache_folder, cached
from rutc.models.sources import require


@dataclass(frozen=True)
class Export:
    """A network built in PyTorch and exported (see `exports.py`); most have seeded weights."""

    network: str
    library: str = "transformers"
    revision: int = 1
    weights: str = "random weights"

    def describe(self) -> str:
        """Returns what the network is exported from."""
        return f"export from {self.library}, {self.weights}"

    def _relative(self) -> str:
        return f"exports-{self.revision}/{self.network}.onnx"

    def present(self) -> Path | None:
        """Returns the file if it was exported before."""
        path = cache_folder() / self._relative()
        return path if path.is_file() else None

    def obtain(self) -> Path:
        """Returns the file, exporting the network first if needed.

        Raises:
            UserError: an optional package needed for the export is missing.
        """
        found = self.present()
        if found is not None:
            return found
        require("torch", "onnxscript", "sklearn", "PIL", self.library)
        from rutc.models.exports import EXPORTERS

        return cached(self._relative(), EXPORTERS[self.network])
