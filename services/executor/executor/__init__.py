"""The executor worker."""
