"""The deep track: plan, execute, record; the scheduler."""
