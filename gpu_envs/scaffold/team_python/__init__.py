"""A team, rules in Python."""
