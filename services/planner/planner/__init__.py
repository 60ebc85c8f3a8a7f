"""The planner worker."""
