"""The searches for plans and schedules, and their records."""
