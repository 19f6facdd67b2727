"""Rules written in Python are translated to a C++ header."""
