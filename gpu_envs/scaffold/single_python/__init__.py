"""One agent, rules in Python."""
