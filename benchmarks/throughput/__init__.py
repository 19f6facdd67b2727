"""Benchmarks of the steps per second of environments, teams and wrappers."""
