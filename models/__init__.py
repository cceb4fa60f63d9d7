"""Small real models with their training scripts, and the zoo of models used to test and measure rutc."""
