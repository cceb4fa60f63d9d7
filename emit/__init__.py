"""Emission: machine code for kernels, the host program, and the shared library."""
