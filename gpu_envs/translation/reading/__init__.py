"""Builds the tree from Python's: resolves names, infers types, refuses unsupported code."""
