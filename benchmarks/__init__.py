"""Measurements: ``python -m benchmarks.throughput``, ``training`` and ``peers``; ``plot`` draws what they wrote."""
