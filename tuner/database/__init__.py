"""The database of tuning records: what schedules of kernels took on which machines."""
