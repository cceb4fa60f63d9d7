"""LLVM's language as text, and LLVM: modules in, machine code out."""
