"""Operators of the domain com.microsoft, which ONNX Runtime's optimiser and exporters write."""

DOMAIN = "com.microsoft"
