"""Benchmarks of users' environments, compared with built-in ones."""
