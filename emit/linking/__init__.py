"""The artifact: host program, kernels and weights in one library."""
