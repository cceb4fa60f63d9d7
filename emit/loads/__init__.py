"""Elements of memory as LLVM values: loads and stores of one, of neighbours, and across memory."""
