"""How to put operators on a model, a module for each family."""

from importlib import import_module

FAMILIES = (
    "elementwise",
    "reductions",
    "movement",
    "indexing",
    "products",
    "windows",
    "normal",
    "quantization",
    "layers",
    "control",
    "bundles",
    "classical",
    "text",
    "drawn",
    "sampled",
    "contrib",
    "contrib_quantized",
)

for family in FAMILIES:
    import_module(f"tests.fuzz.operators.{family}")
