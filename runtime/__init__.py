"""The runtime: loads a compiled model and runs it. Needs numpy and nothing else of rutc."""
