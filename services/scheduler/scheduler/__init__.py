"""The only clock."""
