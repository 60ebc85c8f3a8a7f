"""The systems measured beside us. Each module is a program with an environment of its own (.venv-bench) that runs jobs when told to.

A step is the same everywhere: a decision made durable, then an observation made durable, then the next decision.
"""
