"""Generates parts of the documentation from specs, results and commands."""
