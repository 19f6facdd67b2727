"""Registered environments, by id and by spec path."""
