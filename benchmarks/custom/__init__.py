"""Environments from outside the package beside the built-in ones."""
