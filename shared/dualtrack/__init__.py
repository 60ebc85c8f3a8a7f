"""Dualtrack: what every service of the platform shares."""

__version__ = "0.1.0"
