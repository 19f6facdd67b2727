"""Benchmarks: ``python -m benchmarks.throughput``, ``training`` and ``peers`` write results; ``plot`` draws them."""
