"""Environments that the benchmarks bring along, as a user would."""
