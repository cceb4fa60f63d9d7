"""The operators, one module per family."""

from importlib import import_module

FAMILIES = (
    "activations",
    "attention",
    "contraction",
    "control",
    "convolution",
    "cuts",
    "deformable",
    "early",
    "elementwise",
    "features",
    "linalg",
    "linear_models",
    "lookup",
    "images",
    "iteration",
    "gradient",
    "scans",
    "maps",
    "microsoft.activation",
    "microsoft.attention",
    "microsoft.blocks",
    "microsoft.contraction",
    "microsoft.grouped",
    "microsoft.normalization",
    "microsoft.quantized",
    "microsoft.recurrence",
    "microsoft.standardized",
    "microsoft.tokenizer",
    "movement",
    "ngrams",
    "normalization",
    "padding",
    "pooling",
    "prefix",
    "quantization",
    "random",
    "recurrence",
    "recurrent",
    "reductions",
    "regions",
    "resize",
    "rotary",
    "sampling",
    "scatter",
    "selection",
    "sequences",
    "sorting",
    "spectral",
    "strings",
    "training",
    "trees",
    "unit_axes",
)


def register_all() -> None:
    """Loads every family, which enters its operators in the registry."""
    for family in FAMILIES:
        import_module(f"rutc.importer.ops.{family}")
