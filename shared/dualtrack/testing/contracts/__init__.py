"""One contract suite for each port; every adapter, the fake included, passes it."""
