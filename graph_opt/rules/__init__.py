"""The rewrite rules, one file per family; `pipeline` says in which order they run."""
