"""What every folder but `runtime` may use: frozen records, files, processes, progress."""
