"""Template of a single-agent environment with rules in Python."""
