"""What can be found in graphs and kernels, for rewrites, schedules and code generation alike."""
