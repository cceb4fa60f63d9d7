"""Whether outputs are near enough to the truth, and say anything."""
