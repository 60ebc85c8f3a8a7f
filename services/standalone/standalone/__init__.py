"""The whole platform in one process."""
