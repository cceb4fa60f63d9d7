"""The inputs of a model, and what is known of sizes that a run chooses."""
