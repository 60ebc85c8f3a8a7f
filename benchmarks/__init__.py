"""Benchmarks: each ends with one line of JSON whose ratios compare with a peer or a floor measured in the same run."""
