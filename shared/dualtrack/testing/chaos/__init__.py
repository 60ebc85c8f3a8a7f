"""The proof: the real stack under named faults, judged from outside. `python -m dualtrack.testing.chaos --help`; docs/reliability.md."""
