"""What every folder but `runtime` may use: frozen records, processes, progress."""
