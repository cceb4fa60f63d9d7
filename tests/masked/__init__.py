"""Runs a command as on an x86 processor without AVX-512, VNNI and AMX, at full speed.

    python -m tests.masked python -m pytest -q -n 2
    python -m tests.masked python -m benchmarks.zoo --peers onnxruntime openvino

Software asks the processor what it has by the instruction CPUID. Here the packages that ask are
copied into rutc's cache, and each CPUID in their libraries becomes UD2, an instruction that raises
SIGILL; its handler (`masked.c`) gives CPUID's answer without those features. What is compiled
meanwhile takes `include/cpuid.h`, which masks the same; the C library is told by its tunables. So
rutc and its peers choose what they would choose on a processor with AVX2 only. An instruction of
AVX-512 would still run, were one chosen in spite of that.
"""
