"""ONNX models as graphs of nests."""

from rutc.importer.model import import_model

__all__ = ["import_model"]
