"""Template of a multi-agent environment with rules in C++."""
