"""Fakes, scripted model, contract suites, fault points, real servers for tests."""
