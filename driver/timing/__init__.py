"""Schedules and plans timed in their models."""
