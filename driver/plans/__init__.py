"""Which plans a model gets, judged by estimates."""
