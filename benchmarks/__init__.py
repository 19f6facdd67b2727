"""Measurements: ``python -m benchmarks.throughput``."""
