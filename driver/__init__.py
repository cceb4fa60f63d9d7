"""From a model to an artifact: the stages of `rutc.compile`, and the jobs of its workers."""
