"""Translates rules written in Python to a C++ header."""
