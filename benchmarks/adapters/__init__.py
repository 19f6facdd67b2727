"""Benchmarks of the adapters: their overhead, and training with each library."""
