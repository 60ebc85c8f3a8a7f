"""Sandboxes: the port, its drivers, limits."""
