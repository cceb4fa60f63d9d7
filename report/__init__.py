"""What a person sees: arguments, tables, progress, and answers on models and artifacts."""
