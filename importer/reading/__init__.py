"""Model files: read, and checked before anything is done with them."""
