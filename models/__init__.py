"""Small real models with their training scripts, and the zoo of models for tests and benchmarks."""
