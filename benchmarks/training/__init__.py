"""Benchmarks of training: time until environments are solved, and steps per second."""
