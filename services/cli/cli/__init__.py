"""The dualtrack command."""
