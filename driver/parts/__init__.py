"""From plans to the parts of an artifact: kernels' code, steps, weights."""
