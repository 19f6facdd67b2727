"""What the adapters cost, section by section, for ``python -m benchmarks.adapters``."""
