"""What a search tries next, and what it learned of other kernels."""
