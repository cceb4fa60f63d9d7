"""Ways to load and store: alone, side by side, across memory, masked, shuffled, of few bits."""
