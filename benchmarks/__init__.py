"""Benchmarks of rutc beside its peers; not part of the installed package."""
