"""The templates of schedules, each a file: its parameters, what they become, and which are best."""
