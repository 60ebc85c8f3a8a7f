"""Tracing, metrics, logging, propagation."""
