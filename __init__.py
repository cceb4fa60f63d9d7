"""rutc: an ahead-of-time compiler from ONNX models to standalone shared libraries."""
